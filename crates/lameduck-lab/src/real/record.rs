//! One line of a ledger file: when, and what.
//!
//! A line is text, so that a person can read and `grep` a kept ledger: nanoseconds, a letter, and
//! the letter's fields, with free text only at the end.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use lameduck_core::event::Tier;
use lameduck_core::instance::Life;
use lameduck_core::time::Timestamp;

/// Names one call: which caller's, and which one of its plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// Which caller, from 0.
    pub caller: u16,
    /// Which call of that caller, from 0.
    pub number: u32,
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.caller, self.number)
    }
}

impl FromStr for CallId {
    type Err = RecordError;

    fn from_str(text: &str) -> Result<Self, RecordError> {
        let (caller, number) = text.split_once('-').ok_or_else(|| refuse(text))?;
        let caller = caller.parse().map_err(|_| refuse(text))?;
        let number = number.parse().map_err(|_| refuse(text))?;
        Ok(Self { caller, number })
    }
}

/// What a call asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Unary, declared idempotent.
    Get,
    /// Unary, not declared idempotent.
    Put,
    /// A server stream, not declared idempotent.
    Stream,
}

impl Kind {
    /// Whether its method is declared idempotent.
    #[must_use]
    pub const fn is_idempotent(self) -> bool {
        matches!(self, Self::Get)
    }

    const fn letter(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Stream => "stream",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.letter())
    }
}

/// An endpoint as a caller knew it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Where.
    pub address: SocketAddr,
    /// Which life, where the caller knew it.
    pub life: Option<Life>,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A server: this process is this life.
    Born {
        /// Its life.
        life: Life,
        /// Where it listens.
        address: SocketAddr,
    },
    /// A server's handler is about to work. Written before the work.
    Started {
        /// For which call.
        id: CallId,
        /// In which life.
        life: Life,
    },
    /// A server entered a phase of leaving.
    Phase(String),
    /// A server says, before it has drained, that something did not end well.
    Problem {
        /// Whether that is no more than a registration that may be left until its lease ends.
        is_left: bool,
        /// What.
        what: String,
    },
    /// A server has drained and is about to exit.
    Drained {
        /// Its exit code.
        exit: u8,
        /// Requests that it cut.
        abandoned: u64,
    },
    /// A caller is about to call. Written before the call.
    Intent {
        /// Which call.
        id: CallId,
        /// What it asks for.
        kind: Kind,
        /// When the plan wanted it sent.
        due: Timestamp,
    },
    /// A caller has the whole answer.
    Answered {
        /// To which call.
        id: CallId,
        /// The life that the answer names.
        life: Life,
        /// Items received, in order and without a gap; 1 for unary.
        items: u32,
    },
    /// A caller has an error.
    Failed {
        /// Of which call.
        id: CallId,
        /// What it says.
        error: String,
    },
    /// A caller chose an endpoint.
    Picked {
        /// For which call, where the caller could tell.
        id: Option<CallId>,
        /// Which endpoint.
        place: Place,
        /// From which tier.
        tier: Tier,
    },
    /// A caller placed a call once more.
    Replaced {
        /// Which call, where the caller could tell.
        id: Option<CallId>,
        /// Where it had been before.
        address: SocketAddr,
        /// Whether it provably had not been processed there.
        proven: bool,
    },
    /// An endpoint moved in a caller's order of choice.
    Moved {
        /// Which endpoint.
        place: Place,
        /// Where to.
        tier: Tier,
    },
    /// A caller took a closing statement.
    Closing {
        /// Of which endpoint.
        place: Place,
        /// What said so.
        source: String,
    },
    /// A closing statement was taken back.
    Lifted {
        /// Of which endpoint.
        place: Place,
    },
    /// A caller has stopped as told; every call before `next` has its end.
    Stopped {
        /// The first call of its plan that it did not send.
        next: u32,
    },
    /// A thread of this process that only sleeps woke up just now, and late.
    Stalled {
        /// By how much.
        late: Duration,
    },
    /// Anything else worth reading.
    Note(String),
}

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When it was written, on the machine's monotonic clock.
    pub at: Timestamp,
    /// What happened.
    pub record: Record,
}

/// A text that is no line of a ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordError {
    text: String,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no line of a ledger", self.text)
    }
}

impl std::error::Error for RecordError {}

fn refuse(text: &str) -> RecordError {
    RecordError {
        text: text.to_owned(),
    }
}

impl fmt::Display for Line {
    /// Without the line's end.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ", self.at.as_nanos())?;
        match &self.record {
            Record::Born { life, address } => write!(f, "B {life} {address}"),
            Record::Started { id, life } => write!(f, "S {id} {life}"),
            Record::Phase(phase) => write!(f, "H {}", one_line(phase)),
            Record::Problem { is_left, what } => {
                let word = if *is_left { "left" } else { "other" };
                write!(f, "Q {word} {}", one_line(what))
            }
            Record::Drained { exit, abandoned } => write!(f, "X {exit} {abandoned}"),
            Record::Intent { id, kind, due } => write!(f, "I {id} {kind} {}", due.as_nanos()),
            Record::Answered { id, life, items } => write!(f, "A {id} {life} {items}"),
            Record::Failed { id, error } => write!(f, "F {id} {}", one_line(error)),
            Record::Picked { id, place, tier } => {
                write!(f, "P {} {} {}", Maybe(*id), Put(*place), tier_word(*tier))
            }
            Record::Replaced {
                id,
                address,
                proven,
            } => {
                let word = if *proven { "proven" } else { "unproven" };
                write!(f, "R {} {address} {word}", Maybe(*id))
            }
            Record::Moved { place, tier } => write!(f, "T {} {}", Put(*place), tier_word(*tier)),
            Record::Closing { place, source } => {
                write!(f, "C {} {}", Put(*place), one_line(source))
            }
            Record::Lifted { place } => write!(f, "L {}", Put(*place)),
            Record::Stopped { next } => write!(f, "E {next}"),
            Record::Stalled { late } => write!(f, "J {}", late.as_nanos()),
            Record::Note(text) => write!(f, "N {}", one_line(text)),
        }
    }
}

impl FromStr for Line {
    type Err = RecordError;

    fn from_str(text: &str) -> Result<Self, RecordError> {
        parse(text).ok_or_else(|| refuse(text))
    }
}

fn parse(text: &str) -> Option<Line> {
    let (at, rest) = text.split_once(' ')?;
    let (letter, rest) = rest.split_once(' ')?;
    let mut fields = Fields { rest };
    let record = match letter {
        "B" | "S" | "H" | "Q" | "X" => server_record(letter, &mut fields)?,
        _ => caller_record(letter, &mut fields)?,
    };
    let at = Timestamp::from_nanos(at.parse().ok()?);
    fields.rest.is_empty().then_some(Line { at, record })
}

fn server_record(letter: &str, fields: &mut Fields<'_>) -> Option<Record> {
    Some(match letter {
        "B" => Record::Born {
            life: fields.take()?,
            address: fields.take()?,
        },
        "S" => Record::Started {
            id: fields.take()?,
            life: fields.take()?,
        },
        "H" => Record::Phase(fields.text()),
        "Q" => Record::Problem {
            is_left: fields.word() == "left",
            what: fields.text(),
        },
        _ => Record::Drained {
            exit: fields.take()?,
            abandoned: fields.take()?,
        },
    })
}

fn caller_record(letter: &str, fields: &mut Fields<'_>) -> Option<Record> {
    Some(match letter {
        "I" => Record::Intent {
            id: fields.take()?,
            kind: kind(fields.word())?,
            due: Timestamp::from_nanos(fields.take()?),
        },
        "A" => Record::Answered {
            id: fields.take()?,
            life: fields.take()?,
            items: fields.take()?,
        },
        "F" => Record::Failed {
            id: fields.take()?,
            error: fields.text(),
        },
        "P" => Record::Picked {
            id: fields.maybe()?,
            place: fields.place()?,
            tier: tier(fields.word())?,
        },
        "R" => Record::Replaced {
            id: fields.maybe()?,
            address: fields.take()?,
            proven: fields.word() == "proven",
        },
        "T" => Record::Moved {
            place: fields.place()?,
            tier: tier(fields.word())?,
        },
        "C" => Record::Closing {
            place: fields.place()?,
            source: fields.text(),
        },
        "L" => Record::Lifted {
            place: fields.place()?,
        },
        "E" => Record::Stopped {
            next: fields.take()?,
        },
        "J" => Record::Stalled {
            late: Duration::from_nanos(fields.take()?),
        },
        "N" => Record::Note(fields.text()),
        _ => return None,
    })
}

/// The blank-separated fields of a line, from left to right.
struct Fields<'a> {
    rest: &'a str,
}

impl<'a> Fields<'a> {
    fn word(&mut self) -> &'a str {
        let (word, rest) = self.rest.split_once(' ').unwrap_or((self.rest, ""));
        self.rest = rest;
        word
    }

    fn take<T: FromStr>(&mut self) -> Option<T> {
        self.word().parse().ok()
    }

    /// `Some(None)` where the field says that it is not known.
    fn maybe<T: FromStr>(&mut self) -> Option<Option<T>> {
        match self.word() {
            "-" => Some(None),
            word => word.parse().ok().map(Some),
        }
    }

    fn place(&mut self) -> Option<Place> {
        Some(Place {
            address: self.take()?,
            life: self.maybe()?,
        })
    }

    fn text(&mut self) -> String {
        std::mem::take(&mut self.rest).to_owned()
    }
}

/// A value, or `-`.
struct Maybe<T>(Option<T>);

impl<T: fmt::Display> fmt::Display for Maybe<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(value) => value.fmt(f),
            None => f.write_str("-"),
        }
    }
}

struct Put(Place);

impl fmt::Display for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0.address, Maybe(self.0.life))
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn kind(word: &str) -> Option<Kind> {
    [Kind::Get, Kind::Put, Kind::Stream]
        .into_iter()
        .find(|kind| kind.letter() == word)
}

const TIERS: [(Tier, &str); 3] = [
    (Tier::Ready, "ready"),
    (Tier::LastResort, "last_resort"),
    (Tier::Out, "out"),
];

fn tier_word(tier: Tier) -> &'static str {
    let known = TIERS.iter().find(|(known, _)| *known == tier);
    known.map_or("out", |(_, word)| word)
}

fn tier(word: &str) -> Option<Tier> {
    let known = TIERS.iter().find(|(_, known)| *known == word);
    known.map(|(tier, _)| *tier)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lameduck_core::instance::BootId;
    use proptest::prelude::*;

    fn a_life(bits: u128) -> Life {
        Life::first(BootId::from_bits(bits))
    }

    #[test]
    fn golden_lines() {
        let id = CallId {
            caller: 1,
            number: 42,
        };
        let place = Place {
            address: "127.0.0.1:80".parse().unwrap(),
            life: None,
        };
        let record = Record::Picked {
            id: Some(id),
            place,
            tier: Tier::LastResort,
        };
        let line = Line {
            at: Timestamp::from_nanos(7),
            record,
        };
        assert_eq!(line.to_string(), "7 P 1-42 127.0.0.1:80 - last_resort");
        let line = Line {
            at: Timestamp::from_nanos(8),
            record: Record::Started {
                id,
                life: a_life(0xab),
            },
        };
        let text = "8 S 1-42 000000000000000000000000000000ab.0";
        assert_eq!(line.to_string(), text);
    }

    #[test]
    fn broken_lines_are_told() {
        for text in [
            "",
            "7",
            "7 S",
            "7 S 1-42",
            "7 S 1-42 ab.0",
            "7 Z x",
            "x N hi",
            "7 E 1 2",
        ] {
            assert!(text.parse::<Line>().is_err(), "{text:?}");
        }
    }

    fn any_place() -> impl Strategy<Value = Place> {
        (any::<u16>(), prop::option::of(any::<u128>())).prop_map(|(port, life)| Place {
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            life: life.map(a_life),
        })
    }

    fn any_id() -> impl Strategy<Value = CallId> {
        (any::<u16>(), any::<u32>()).prop_map(|(caller, number)| CallId { caller, number })
    }

    fn any_record() -> impl Strategy<Value = Record> {
        let tiers = prop::sample::select(TIERS.map(|(tier, _)| tier).to_vec());
        let kinds = prop::sample::select(vec![Kind::Get, Kind::Put, Kind::Stream]);
        let ids = || prop::option::of(any_id());
        prop_oneof![
            (any::<u128>(), any_place()).prop_map(|(life, place)| Record::Born {
                life: a_life(life),
                address: place.address,
            }),
            (any_id(), any::<u128>()).prop_map(|(id, life)| Record::Started {
                id,
                life: a_life(life),
            }),
            (any::<bool>(), "[ -~]{0,30}")
                .prop_map(|(is_left, what)| Record::Problem { is_left, what }),
            (any::<u8>(), any::<u64>())
                .prop_map(|(exit, abandoned)| Record::Drained { exit, abandoned }),
            (any_id(), kinds, any::<u64>()).prop_map(|(id, kind, due)| Record::Intent {
                id,
                kind,
                due: Timestamp::from_nanos(due),
            }),
            (any_id(), any::<u128>(), any::<u32>()).prop_map(|(id, life, items)| {
                Record::Answered {
                    id,
                    life: a_life(life),
                    items,
                }
            }),
            (any_id(), "[ -~]{0,30}").prop_map(|(id, error)| Record::Failed { id, error }),
            (ids(), any_place(), tiers.clone()).prop_map(|(id, place, tier)| Record::Picked {
                id,
                place,
                tier
            }),
            (ids(), any_place(), any::<bool>()).prop_map(|(id, place, proven)| Record::Replaced {
                id,
                address: place.address,
                proven,
            }),
            (any_place(), tiers).prop_map(|(place, tier)| Record::Moved { place, tier }),
            (any_place(), "[a-z]{1,9}")
                .prop_map(|(place, source)| Record::Closing { place, source }),
            any_place().prop_map(|place| Record::Lifted { place }),
            any::<u32>().prop_map(|next| Record::Stopped { next }),
            any::<u64>().prop_map(|late| Record::Stalled {
                late: Duration::from_nanos(late)
            }),
            "[ -~]{0,30}".prop_map(Record::Note),
        ]
    }

    proptest! {
        #[test]
        fn lines_are_read_as_they_are_written(at in any::<u64>(), record in any_record()) {
            let line = Line { at: Timestamp::from_nanos(at), record };
            prop_assert_eq!(line.to_string().parse::<Line>(), Ok(line));
        }
    }
}
