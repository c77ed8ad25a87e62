//! A service's live view: what its [directory](crate::directory) says, done.

use alloc::collections::{BTreeMap, BTreeSet, VecDeque};
use core::ops::ControlFlow;

use crate::directory::{Directory, EndpointId, Input, Output, Snapshot};
use crate::endpoint;
use crate::event::{Event, Tier};
use crate::instance::Incarnation;
use crate::machine::Machine;
use crate::name::Address;
use crate::time::Timestamp;

/// What a directory is told. `W` names a withholding, see [`statement`](super::statement).
#[derive(Debug)]
pub enum Message<W> {
    /// For the machine.
    Input(Input),
    /// What was said before this concerns an endpoint that calls withhold since.
    Withheld {
        /// Which endpoint.
        endpoint: EndpointId,
        /// Which withholding.
        withheld: W,
    },
    /// Nobody uses it any more.
    Stop,
}

/// The directory's machine, and where in the order of its inputs calls withheld an endpoint.
///
/// Its events come after everything else that one input brings: whoever hears that a life is
/// closing finds the view published that no longer offers it.
#[derive(Debug)]
pub struct InOrder<W> {
    machine: Directory,
    events: VecDeque<Event>,
    /// What is done after all of that.
    last: Option<Kind<W>>,
}

/// What is to be done next.
#[derive(Debug)]
pub struct Step<W>(Kind<W>);

#[derive(Debug)]
enum Kind<W> {
    Output(Output),
    Withheld(EndpointId, W),
    Stop,
}

impl<W> InOrder<W> {
    /// Puts the outputs of `machine` in order.
    #[must_use]
    pub const fn new(machine: Directory) -> Self {
        Self {
            machine,
            events: VecDeque::new(),
            last: None,
        }
    }

    /// The machine as it is.
    #[must_use]
    pub const fn machine(&self) -> &Directory {
        &self.machine
    }
}

impl<W> Machine for InOrder<W> {
    type Input = Message<W>;
    type Output = Step<W>;

    fn handle(&mut self, now: Timestamp, message: Message<W>) {
        match message {
            Message::Input(input) => self.machine.handle(now, input),
            Message::Withheld { endpoint, withheld } => {
                self.last = Some(Kind::Withheld(endpoint, withheld));
            }
            Message::Stop => self.last = Some(Kind::Stop),
        }
    }

    fn handle_timeout(&mut self, now: Timestamp) {
        self.machine.handle_timeout(now);
    }

    fn poll(&mut self) -> Option<Step<W>> {
        while let Some(output) = self.machine.poll() {
            match output {
                Output::Event(event) => self.events.push_back(event),
                output => return Some(Step(Kind::Output(output))),
            }
        }
        if let Some(event) = self.events.pop_front() {
            return Some(Step(Kind::Output(Output::Event(event))));
        }
        self.last.take().map(Step)
    }

    fn deadline(&self) -> Option<(Timestamp, &'static str)> {
        self.machine.deadline()
    }
}

/// What a directory is able to do.
pub trait Edge {
    /// Names one withholding.
    type Withheld: Copy;

    /// A new endpoint: dials it, keeps it connected.
    fn add(&mut self, endpoint: EndpointId, address: Address, incarnation: Incarnation);
    /// The endpoint is another life from here on.
    fn became(&mut self, endpoint: EndpointId, incarnation: Incarnation);
    /// Tells an endpoint's machine.
    fn endpoint(&mut self, endpoint: EndpointId, input: endpoint::Input);
    /// The endpoint was told to go, and is not mentioned again.
    fn forget(&mut self, endpoint: EndpointId);
    /// Whether the endpoint's health clients look for a Resume.
    fn count_as_closing(&mut self, endpoint: EndpointId, closing: bool);
    /// Calls choose from this from here on.
    fn publish(&mut self, snapshot: Snapshot);
    /// Takes that withholding back, unless the endpoint was withheld once more since.
    fn release(&mut self, endpoint: EndpointId, withheld: Self::Withheld);
    /// Tells the other directories and who listens.
    fn heard(&mut self, event: &Event);
}

/// Performs the steps of one directory.
#[derive(Debug)]
pub struct Performer<W> {
    /// All endpoints.
    endpoints: BTreeSet<EndpointId>,
    /// The last withholding of an endpoint that the machine has heard the reason of.
    withheld: BTreeMap<EndpointId, W>,
    /// Those that were published as ready.
    ready: BTreeSet<EndpointId>,
}

impl<W> Default for Performer<W> {
    fn default() -> Self {
        Self {
            endpoints: BTreeSet::new(),
            withheld: BTreeMap::new(),
            ready: BTreeSet::new(),
        }
    }
}

impl<W: Copy> Performer<W> {
    /// Performs one step. Breaks where nobody uses the directory any more.
    pub fn perform(
        &mut self,
        edge: &mut impl Edge<Withheld = W>,
        step: Step<W>,
    ) -> ControlFlow<()> {
        match step.0 {
            Kind::Output(output) => self.output(edge, output),
            Kind::Withheld(endpoint, withheld) if self.endpoints.contains(&endpoint) => {
                self.withheld.insert(endpoint, withheld);
                self.release(edge);
            }
            // One that was removed meanwhile.
            Kind::Withheld(..) => {}
            Kind::Stop => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn output(&mut self, edge: &mut impl Edge<Withheld = W>, output: Output) {
        match output {
            Output::Add {
                endpoint,
                address,
                incarnation,
            } => {
                self.endpoints.insert(endpoint);
                edge.add(endpoint, address, incarnation);
            }
            Output::Dialling { endpoint, allowed } => {
                edge.endpoint(endpoint, endpoint::Input::Dialling { allowed });
            }
            Output::Became {
                endpoint,
                incarnation,
            } => edge.became(endpoint, incarnation),
            Output::Remove { endpoint } => {
                edge.endpoint(endpoint, endpoint::Input::Remove);
                self.endpoints.remove(&endpoint);
                self.withheld.remove(&endpoint);
                edge.forget(endpoint);
            }
            Output::Publish(snapshot) => self.publish(edge, snapshot),
            Output::Event(event) => edge.heard(&event),
        }
    }

    fn publish(&mut self, edge: &mut impl Edge<Withheld = W>, snapshot: Snapshot) {
        self.ready.clear();
        for member in &snapshot.members {
            edge.count_as_closing(member.endpoint, member.tier == Tier::LastResort);
            if member.tier == Tier::Ready {
                self.ready.insert(member.endpoint);
            }
        }
        edge.publish(snapshot);
        self.release(edge);
    }

    /// What is ready after all that was said is chosen again.
    fn release(&mut self, edge: &mut impl Edge<Withheld = W>) {
        let ready = &self.ready;
        self.withheld.retain(|endpoint, withheld| {
            let stays = !ready.contains(endpoint);
            if !stays {
                // Where it does not fit any more, a later statement is on its way here.
                edge.release(*endpoint, *withheld);
            }
            stays
        });
    }
}

#[cfg(test)]
mod tests {
    use alloc::borrow::ToOwned;
    use alloc::format;
    use alloc::string::String;
    use alloc::vec::Vec;

    use super::*;
    use crate::directory::{Member, Tombstones};
    use crate::event::ClosingSource;
    use crate::instance::{BootId, Instance, Life};
    use crate::registry::{Entry, EntryId, Update};

    /// Writes down what it is asked to do.
    #[derive(Default)]
    struct Book(Vec<String>);

    impl Edge for Book {
        type Withheld = u64;

        fn add(&mut self, endpoint: EndpointId, _: Address, _: Incarnation) {
            self.0.push(format!("add {}", endpoint.0));
        }

        fn became(&mut self, endpoint: EndpointId, _: Incarnation) {
            self.0.push(format!("became {}", endpoint.0));
        }

        fn endpoint(&mut self, endpoint: EndpointId, input: endpoint::Input) {
            self.0.push(format!("tell {} {input:?}", endpoint.0));
        }

        fn forget(&mut self, endpoint: EndpointId) {
            self.0.push(format!("forget {}", endpoint.0));
        }

        fn count_as_closing(&mut self, endpoint: EndpointId, closing: bool) {
            self.0.push(format!("closing {} {closing}", endpoint.0));
        }

        fn publish(&mut self, snapshot: Snapshot) {
            self.0.push(format!("publish {}", snapshot.members.len()));
        }

        fn release(&mut self, endpoint: EndpointId, withheld: u64) {
            self.0.push(format!("release {} {withheld}", endpoint.0));
        }

        fn heard(&mut self, _: &Event) {
            self.0.push("event".to_owned());
        }
    }

    fn life() -> Incarnation {
        Incarnation::Life(Life::first(BootId::from_bits(1)))
    }

    fn address() -> Address {
        "10.0.0.1:80".parse().expect("an address")
    }

    fn add(id: u64) -> Step<u64> {
        Step(Kind::Output(Output::Add {
            endpoint: EndpointId(id),
            address: address(),
            incarnation: life(),
        }))
    }

    fn view(tiers: &[(u64, Tier)]) -> Step<u64> {
        let members = tiers.iter().map(|(id, tier)| Member {
            endpoint: EndpointId(*id),
            address: address(),
            incarnation: life(),
            tier: *tier,
        });
        Step(Kind::Output(Output::Publish(Snapshot {
            members: members.collect(),
            ..Snapshot::default()
        })))
    }

    fn withheld(id: u64, which: u64) -> Step<u64> {
        Step(Kind::Withheld(EndpointId(id), which))
    }

    #[track_caller]
    fn check(steps: impl IntoIterator<Item = Step<u64>>, expected: &[&str]) {
        let (mut book, mut performer) = (Book::default(), Performer::default());
        for step in steps {
            assert!(performer.perform(&mut book, step).is_continue());
        }
        assert_eq!(book.0, expected);
    }

    #[test]
    fn what_is_withheld_is_let_in_once_the_view_still_says_ready() {
        check(
            [
                add(0),
                view(&[(0, Tier::Ready)]),
                // The directory has heard the reason, and its view has not changed.
                withheld(0, 1),
                view(&[(0, Tier::LastResort)]),
                withheld(0, 2),
                withheld(0, 3),
                view(&[(0, Tier::Ready)]),
                view(&[(0, Tier::Ready)]),
            ],
            &[
                "add 0",
                "closing 0 false",
                "publish 1",
                "release 0 1",
                "closing 0 true",
                "publish 1",
                "closing 0 false",
                "publish 1",
                "release 0 3",
                "closing 0 false",
                "publish 1",
            ],
        );
    }

    #[test]
    fn nothing_is_kept_of_what_is_removed() {
        let remove = Step(Kind::Output(Output::Remove {
            endpoint: EndpointId(0),
        }));
        let steps = [
            add(0),
            withheld(0, 1),
            remove,
            withheld(0, 2),
            view(&[(0, Tier::Ready)]),
        ];
        let expected = [
            "add 0",
            "tell 0 Remove",
            "forget 0",
            "closing 0 false",
            "publish 1",
        ];
        check(steps, &expected);
    }

    #[test]
    fn events_come_after_the_view_that_they_are_about() {
        let mut machine = InOrder::<u64>::new(Directory::new(None, Tombstones::new()));
        let (mut book, mut performer) = (Book::default(), Performer::default());
        let entry = Entry {
            id: EntryId(1),
            instance: Instance::new(address(), life()),
        };
        let list = Input::Update(Update::Reset {
            entries: Vec::from([entry]),
            revision: 1,
        });
        let endpoint = EndpointId(0);
        let closing = Input::Closing {
            incarnation: life(),
            source: ClosingSource::Mark,
        };
        for input in [list, Input::Link { endpoint, up: true }, closing] {
            book.0.clear();
            machine.handle(Timestamp::ZERO, Message::Input(input));
            while let Some(step) = machine.poll() {
                let _ = performer.perform(&mut book, step);
            }
        }
        let (publish, event) = (
            book.0.iter().position(|line| line == "publish 1"),
            book.0.iter().position(|line| line == "event"),
        );
        assert!(publish.is_some() && publish < event, "{:?}", book.0);
        machine.handle(Timestamp::ZERO, Message::Stop);
        let stop = machine.poll().expect("a step");
        assert!(performer.perform(&mut book, stop).is_break());
    }
}
