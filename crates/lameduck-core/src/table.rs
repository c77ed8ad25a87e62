//! Snapshots of whole transition tables: a change of one line is seen in review.

use std::string::String;
use std::{env, fs, path::PathBuf};

/// Compares `actual` with `tables/<name>.txt`; writes it instead where `LAMEDUCK_BLESS` is set.
pub(crate) fn assert_table(name: &str, actual: &str) {
    let path: PathBuf = [
        env!("CARGO_MANIFEST_DIR"),
        "tables",
        &std::format!("{name}.txt"),
    ]
    .iter()
    .collect();
    if env::var_os("LAMEDUCK_BLESS").is_some() {
        fs::create_dir_all(path.parent().expect("a file lies in a directory")).expect("writable");
        fs::write(&path, actual).expect("writable");
        return;
    }
    let expected: String = fs::read_to_string(&path).unwrap_or_default();
    let differs = expected
        .lines()
        .zip(actual.lines())
        .enumerate()
        .find(|(_, (e, a))| e != a);
    if let Some((line, (expected, actual))) = differs {
        panic!(
            "tables/{name}.txt:{}: expected\n  {expected}\ngot\n  {actual}\nrun with LAMEDUCK_BLESS=1 to accept",
            line + 1
        );
    }
    assert_eq!(
        expected.lines().count(),
        actual.lines().count(),
        "tables/{name}.txt has another length"
    );
}
