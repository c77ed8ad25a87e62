//! Checks a stream's items as they come: each is the one after the last, and none is missing.

use std::fmt;

/// What one item of a stream says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim<'a> {
    /// The call that it answers.
    pub id: &'a str,
    /// The life that sends it.
    pub life: &'a str,
    /// Its number, from 0.
    pub seq: u32,
    /// Items of the whole stream.
    pub count: u32,
}

/// A stream that is not the one asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// An item is missing, came twice, or in the wrong place.
    Sequence {
        /// The number that was next.
        expected: u32,
        /// The number that came.
        got: u32,
    },
    /// It ended well, but before its last item or after it.
    Count {
        /// Items asked for.
        expected: u32,
        /// Items that came.
        got: u32,
    },
    /// An item answers another call.
    Foreign(String),
    /// Items of one stream name two lives.
    Lives(String, String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sequence { expected, got } => {
                write!(f, "item {got} came where {expected} was next")
            }
            Self::Count { expected, got } => {
                write!(f, "{got} items of {expected}, then a good end")
            }
            Self::Foreign(id) => write!(f, "an item of call {id}"),
            Self::Lives(one, other) => write!(f, "items of two lives: {one} and {other}"),
        }
    }
}

impl std::error::Error for Fault {}

/// The state of one stream.
#[derive(Clone, Debug)]
pub struct Sequence {
    id: String,
    count: u32,
    next: u32,
    life: Option<String>,
}

impl Sequence {
    /// A stream of `count` items that answers call `id`.
    #[must_use]
    pub fn new(id: String, count: u32) -> Self {
        Self {
            id,
            count,
            next: 0,
            life: None,
        }
    }

    /// Takes the next item.
    ///
    /// # Errors
    ///
    /// Where it is not the one that had to come.
    pub fn item(&mut self, claim: &Claim<'_>) -> Result<(), Fault> {
        if claim.id != self.id {
            return Err(Fault::Foreign(claim.id.to_owned()));
        }
        let life = self.life.get_or_insert_with(|| claim.life.to_owned());
        if life != claim.life {
            return Err(Fault::Lives(life.clone(), claim.life.to_owned()));
        }
        if claim.seq != self.next || claim.count != self.count {
            let (expected, got) = (self.next, claim.seq);
            return Err(Fault::Sequence { expected, got });
        }
        self.next += 1;
        Ok(())
    }

    /// Takes the stream's good end; gives the life that sent it, and the number of items.
    ///
    /// # Errors
    ///
    /// Where items are missing, or too many came.
    pub fn end(self) -> Result<(String, u32), Fault> {
        let (expected, got) = (self.count, self.next);
        match self.life {
            Some(life) if got == expected => Ok((life, got)),
            _ => Err(Fault::Count { expected, got }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(items: &[(&str, &str, u32)], expected: Result<u32, Fault>) {
        let mut sequence = Sequence::new("0-1".to_owned(), 3);
        let all = items.iter().try_for_each(|(id, life, seq)| {
            let claim = Claim {
                id,
                life,
                seq: *seq,
                count: 3,
            };
            sequence.item(&claim)
        });
        let got = all.and_then(|()| sequence.end());
        assert_eq!(got.map(|(_, count)| count), expected, "{items:?}");
    }

    #[test]
    fn only_the_whole_stream_will_do() {
        let item = |seq| ("0-1", "a", seq);
        let cut = |got| Fault::Count { expected: 3, got };
        let sequence = |expected, got| Fault::Sequence { expected, got };
        check(&[item(0), item(1), item(2)], Ok(3));
        check(&[], Err(cut(0)));
        check(&[item(0), item(1)], Err(cut(2)));
        check(&[item(0), item(2)], Err(sequence(1, 2)));
        check(&[item(1)], Err(sequence(0, 1)));
        check(&[item(0), item(0)], Err(sequence(1, 0)));
        check(&[item(0), item(1), item(2), item(3)], Err(cut(4)));
        check(&[("0-2", "a", 0)], Err(Fault::Foreign("0-2".to_owned())));
        let lives = Fault::Lives("a".to_owned(), "b".to_owned());
        check(&[item(0), ("0-1", "b", 1)], Err(lives));
    }
}
