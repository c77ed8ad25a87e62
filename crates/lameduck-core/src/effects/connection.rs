//! One connection of a server: what the process orders, what its [machine](crate::conn) is
//! told of that, and what the machine says, done.

use core::time::Duration;

use crate::conn::{Input, Look, Output, Reason};

/// First GOAWAYs are spread over a pace in this many steps, by the connection's number.
const PACE_STEPS: u64 = 256;

/// What the connections of a process are told to do. Read by each at its own pace; nothing here is
/// ever taken back from a connection that has acted on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Orders {
    /// Connections with a smaller number existed when the closing was announced.
    announced: Option<u64>,
    /// Connections with a smaller number take leave, spread over this time.
    hint: Option<(u64, Duration)>,
    /// All take leave, and no new request after this time.
    leave: Option<Duration>,
    /// All are cut.
    cut: bool,
}

impl Orders {
    /// Answers are marked from here on; connections accepted later have a number of at least
    /// `next`. Nothing is to be done about it yet.
    pub fn announced(&mut self, next: u64) {
        self.announced.get_or_insert(next);
    }

    /// Takes an announcement back. A connection that was told to go still ends.
    pub fn resumed(&mut self) {
        self.hint = None;
        self.announced = None;
    }

    /// Connections that existed at the announcement take leave, spread over `pace`; without an
    /// announcement, those below `next`. One accepted later is not told: a client with one static
    /// address would dial again in a loop.
    pub fn go_away(&mut self, next: u64, pace: Duration) {
        self.hint = Some((self.announced.unwrap_or(next), pace));
    }

    /// All take leave, and no new request later than `within` from now. The shortest time counts.
    pub fn go_away_all(&mut self, within: Duration) {
        self.leave = Some(self.leave.map_or(within, |now| now.min(within)));
    }

    /// All are cut.
    pub const fn cut(&mut self) {
        self.cut = true;
    }

    /// What the machine of connection `number` is told now. It may be told again.
    pub fn inputs(self, number: u64) -> impl Iterator<Item = Input> + use<> {
        let step = number % PACE_STEPS;
        let hint = self.hint.filter(|(below, _)| number < *below);
        let hint = hint.map(|(_, pace)| Input::Hint(pace.mul_f64(step as f64 / PACE_STEPS as f64)));
        let cut = self.cut.then_some(Input::Force);
        let leave = self.leave.map(Input::Leave);
        [hint, leave, cut].into_iter().flatten()
    }
}

/// What a connection is able to do.
pub trait Edge {
    /// Takes leave: the first GOAWAY with its PING, or `Connection: close`.
    fn graceful(&mut self);
    /// Acts as if the PING had been answered.
    fn inject_pong(&mut self);
    /// Looks whether there is a request on the connection.
    fn look(&mut self) -> Look;
    /// HTTP/1: says `Connection: close` in the next answer.
    fn last_answer(&mut self);
    /// As far as can be known no new request will come here.
    fn settled(&mut self);
    /// Ends the answers in flight in a way that their readers can tell from a good end.
    fn end_answers(&mut self);
    /// Resets what is still open.
    fn reset(&mut self);
    /// Drops the connection.
    fn drop_it(&mut self, reason: Reason);
}

/// Performs one output; gives what the machine is told at once in return.
#[must_use]
pub fn perform(edge: &mut impl Edge, output: Output) -> Option<Input> {
    match output {
        Output::GoAway | Output::Close => edge.graceful(),
        Output::InjectPong => edge.inject_pong(),
        Output::Look => return Some(Input::Seen(edge.look())),
        Output::LastAnswer => edge.last_answer(),
        Output::Settled => edge.settled(),
        Output::EndStreams => {
            edge.end_answers();
            // What ends by itself now leaves the connection idle: it may close before the reset.
            edge.graceful();
        }
        Output::ResetStreams => edge.reset(),
        Output::Drop(reason) => edge.drop_it(reason),
    }
    None
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    fn told(orders: Orders, number: u64) -> Vec<Input> {
        orders.inputs(number).collect()
    }

    #[test]
    fn who_is_told_what() {
        let second = Duration::from_secs(1);
        let mut orders = Orders::default();
        assert_eq!(told(orders, 0), []);
        orders.announced(3);
        orders.announced(9);
        assert_eq!(told(orders, 0), [], "an announcement is no order");
        orders.go_away(7, second);
        assert_eq!(told(orders, 0), [Input::Hint(Duration::ZERO)]);
        assert_eq!(told(orders, 2), [Input::Hint(second / 128)]);
        assert_eq!(told(orders, 3), [], "accepted after the announcement");
        orders.go_away_all(second * 2);
        orders.go_away_all(second);
        orders.go_away_all(second * 3);
        orders.cut();
        assert_eq!(told(orders, 3), [Input::Leave(second), Input::Force]);
    }

    #[test]
    fn what_a_resume_takes_back() {
        let mut orders = Orders::default();
        orders.announced(3);
        orders.go_away(3, Duration::ZERO);
        orders.resumed();
        assert_eq!(orders, Orders::default());
        orders.go_away(5, Duration::ZERO);
        assert_eq!(told(orders, 4), [Input::Hint(Duration::ZERO)]);
    }
}
