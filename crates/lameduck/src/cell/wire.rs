//! What one connection's parts tell each other: its IO wrapper, its service, its bodies, its task.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lameduck_core::limits::RESETS_SUSPECT;

/// One fact or wish about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flag {
    /// The peer has said something whole: its first frame, or its first request.
    Spoken = 1,
    /// The first GOAWAY (last id 2^31-1) has left.
    GoAwayOut = 1 << 1,
    /// The final GOAWAY has left.
    FinalOut = 1 << 2,
    /// Hand the answer to the shutdown PING to the reader at the next frame boundary.
    InjectPong = 1 << 3,
    /// A request body was given up before its end: the peer may still be sending.
    UploadUnread = 1 << 4,
    /// The answer's end is the connection's end (HTTP/1.0): a FIN would look complete.
    CloseDelimited = 1 << 5,
    /// The connection was handed to another protocol.
    Upgraded = 1 << 6,
    /// The socket is gone from the IO wrapper.
    Dropped = 1 << 7,
    /// The connection is cut while another protocol reads from it: its end is to be an error.
    Cut = 1 << 8,
    /// The peer's first byte is here.
    Begun = 1 << 9,
    /// HTTP/1: the next answer says `Connection: close`.
    LastAnswer = 1 << 10,
    /// HTTP/2: the peer gives up too many calls; the connection ends.
    TooManyResets = 1 << 11,
    /// The peer has asked who answers.
    AskedLife = 1 << 12,
    /// The socket takes no more bytes, and there are more.
    Unwritten = 1 << 13,
    /// The connection is closing, and the peer has not acknowledged all of its bytes.
    Behind = 1 << 14,
    /// HTTP/1: an answer has ended, and its last bytes are not written.
    Unflushed = 1 << 15,
    /// HTTP/1: a request whose body has not been read to its end.
    Uploading = 1 << 16,
    /// HTTP/1: what was read ends within a request's head.
    HeadBegun = 1 << 17,
}

/// How large a header list the peer takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadersMax {
    /// Always.
    pub(crate) sure: u32,
    /// At most.
    pub(crate) most: u32,
}

const ONE_BEGUN: u64 = 1 << 32;

const fn in_flight(requests: u64) -> u64 {
    requests % ONE_BEGUN
}

/// The flags and counts of one connection.
///
/// Everything here is read by tasks that are woken through other means (the IO itself, a notify),
/// which order it; release and acquire make each flag carry what was done before it was set.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    flags: AtomicU32,
    // How many have begun in the upper half, how many are in flight in the lower one.
    requests: AtomicU64,
    identified: AtomicU32,
    // HTTP/2: the header list that the peer takes for sure and at most, one half each; 0 is not known.
    headers_max: AtomicU64,
    // HTTP/2: answers that have begun, and resets that the peer has sent. Both wrap.
    answered: AtomicU32,
    resets: AtomicU32,
}

impl Wire {
    pub(crate) fn set(&self, flag: Flag) {
        self.flags.fetch_or(flag as u32, Ordering::Release);
    }

    pub(crate) fn has(&self, flag: Flag) -> bool {
        self.flags.load(Ordering::Acquire) & flag as u32 != 0
    }

    /// Clears the flag. True where it was set.
    pub(crate) fn take(&self, flag: Flag) -> bool {
        self.has(flag) && self.flags.fetch_and(!(flag as u32), Ordering::AcqRel) & flag as u32 != 0
    }

    /// Sets the flag or clears it.
    pub(crate) fn put(&self, flag: Flag, on: bool) {
        if on && !self.has(flag) {
            self.set(flag);
        } else if !on {
            self.take(flag);
        }
    }

    /// Whether the peer has not got all of what it was answered, and no request stands for that.
    pub(crate) fn owes(&self) -> bool {
        self.has(Flag::Behind) || (self.has(Flag::Unwritten) && !self.busy())
    }

    /// One request more. True where it is the only one.
    pub(crate) fn begin(&self) -> bool {
        in_flight(self.requests.fetch_add(ONE_BEGUN | 1, Ordering::Relaxed)) == 0
    }

    /// One request less. True where it was the only one.
    pub(crate) fn end(&self) -> bool {
        in_flight(self.requests.fetch_sub(1, Ordering::Release)) == 1
    }

    pub(crate) fn busy(&self) -> bool {
        in_flight(self.requests.load(Ordering::Acquire)) > 0
    }

    /// How many requests have begun. Wraps.
    pub(crate) fn begun(&self) -> u32 {
        (self.requests.load(Ordering::Acquire) / ONE_BEGUN) as u32
    }

    /// HTTP/2: the peer has said what header list it takes, in bytes.
    pub(crate) fn set_headers_max(&self, sure: u32, most: u32) {
        let both = u64::from(sure) << 32 | u64::from(most);
        self.headers_max.store(both, Ordering::Relaxed);
    }

    /// HTTP/2: what header list the peer takes, where it has said so.
    pub(crate) fn headers_max(&self) -> Option<HeadersMax> {
        let both = self.headers_max.load(Ordering::Relaxed);
        (both > 0).then_some(HeadersMax {
            sure: (both >> 32) as u32,
            most: both as u32,
        })
    }

    /// HTTP/2: one answer more has begun.
    pub(crate) fn answer(&self) {
        self.answered.fetch_add(1, Ordering::Relaxed);
    }

    /// HTTP/2: how many answers have begun. Wraps.
    pub(crate) fn answered(&self) -> u32 {
        self.answered.load(Ordering::Relaxed)
    }

    /// HTTP/2: the peer has reset one stream more.
    pub(crate) fn reset(&self) {
        self.resets.fetch_add(1, Ordering::Relaxed);
    }

    /// HTTP/2: whether the peer resets much more than it is answered.
    pub(crate) fn is_suspect(&self) -> bool {
        let more = self
            .resets
            .load(Ordering::Relaxed)
            .wrapping_sub(self.answered());
        // Fewer resets than answers is the upper half of the numbers.
        more > RESETS_SUSPECT && more < u32::MAX / 2
    }

    /// True the first time that it is called for this generation of the identity (1, 2, …).
    pub(crate) fn identify(&self, generation: u32) -> bool {
        // Whoever raises the number says who answers; answers at the same moment leave it out.
        self.identified.load(Ordering::Relaxed) < generation
            && self.identified.fetch_max(generation, Ordering::Relaxed) < generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_set_and_taken_one_by_one() {
        let wire = Wire::default();
        wire.set(Flag::GoAwayOut);
        wire.set(Flag::InjectPong);
        assert!(wire.take(Flag::InjectPong));
        assert!(!wire.take(Flag::InjectPong));
        assert!(wire.has(Flag::GoAwayOut));
        assert!(!wire.has(Flag::FinalOut));
    }

    #[test]
    fn requests_are_counted_from_their_begin_to_their_end() {
        let wire = Wire::default();
        assert!(wire.begin());
        assert!(!wire.begin());
        assert!(!wire.end());
        assert!(wire.busy());
        assert!(wire.end());
        assert!(!wire.busy());
        assert_eq!(wire.begun(), 2);
    }

    #[test]
    fn s5_only_more_resets_than_answers_are_suspect() {
        let wire = Wire::default();
        let reset = |count: u32| (0..count).for_each(|_| wire.reset());
        wire.answer();
        assert!(!wire.is_suspect());
        reset(RESETS_SUSPECT + 1);
        assert!(!wire.is_suspect());
        reset(1);
        assert!(wire.is_suspect());
        wire.answer();
        assert!(!wire.is_suspect());
    }

    #[test]
    fn identity_is_told_once_a_generation() {
        let wire = Wire::default();
        assert!(wire.identify(1));
        assert!(!wire.identify(1));
        assert!(wire.identify(3));
        assert!(!wire.identify(2));
    }
}
