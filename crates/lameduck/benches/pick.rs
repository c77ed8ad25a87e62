//! What it costs to choose where a call goes: the snapshot is loaded, two instances are drawn and the
//! less loaded one is taken. It must not grow with the number of instances, and it allocates nothing.
//!
//! For information, `pick-and-take`: with a stream of the chosen one's connection taken and given
//! back, which are words that the call that follows touches anyway, wherever they are in memory.

use lameduck::consumer::workbench::Workbench;
use lameduck_pairs::{Side, compare};

/// Instances of the smallest directory, with which the others are compared.
const FEW: u16 = 10;

/// A way to choose, by its name.
type Way = (&'static str, fn(&Workbench) -> bool);

const WAYS: [Way; 2] = [
    ("pick", Workbench::choose),
    ("pick-and-take", Workbench::choose_and_take),
];

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    let few = Workbench::new(FEW);
    for count in [1_000, 10_000] {
        let many = Workbench::new(count);
        for (name, way) in WAYS {
            check_allocations(&many, way);
            let names = [count, FEW].map(|count| format!("{name}/{count}"));
            let many = Side::single(&names[0], || way(&many));
            let few = Side::single(&names[1], || way(&few));
            println!("{}", compare(many, few));
        }
    }
}

fn check_allocations(workbench: &Workbench, way: fn(&Workbench) -> bool) {
    assert!(way(workbench), "all instances are ready");
    let allocated = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            assert!(way(workbench));
        }
    });
    assert_eq!(allocated.count_total, 0, "a choice allocates nothing");
}
