//! The one loop that runs a [`Machine`] on tokio.
//!
//! It stands here and not in `lameduck` because publications and subscriptions of back ends are
//! driven by it too; `lameduck` re-exports it.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::task::{Context, Poll};
use std::time::Duration;

use lameduck_core::machine::Machine;
use lameduck_core::time::Timestamp;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// A monotonic clock whose origin is its own making. Follows tokio's paused time in tests.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: Instant,
}

impl Clock {
    /// A clock that starts now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            origin: Instant::now(),
        }
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::ZERO + self.origin.elapsed()
    }

    /// The instant to sleep until for `timestamp`; far future where it cannot be expressed.
    #[must_use]
    pub fn instant(&self, timestamp: Timestamp) -> Instant {
        let since = timestamp.saturating_since(Timestamp::ZERO);
        let century = Duration::from_secs(100 * 365 * 24 * 3600);
        self.origin + since.min(century)
    }
}

/// Performs a machine's outputs. Must not block: IO is spawned, and its completion comes back as
/// an input.
pub trait Effects<Output> {
    /// Performs one output; [`ControlFlow::Break`] ends the loop.
    fn perform(&mut self, output: Output) -> ControlFlow<()>;
}

impl<Output, F: FnMut(Output) -> ControlFlow<()>> Effects<Output> for F {
    fn perform(&mut self, output: Output) -> ControlFlow<()> {
        self(output)
    }
}

/// Where a machine's inputs come from: a channel.
///
/// Bounded where the senders can wait; unbounded where they cannot (a call that reads a mark), and
/// something else bounds how much they say.
pub trait Inbox<Input> {
    /// The next input; `None` once all senders are gone.
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Input>>;
}

impl<Input> Inbox<Input> for mpsc::Receiver<Input> {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Input>> {
        self.poll_recv(context)
    }
}

impl<Input> Inbox<Input> for mpsc::UnboundedReceiver<Input> {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Input>> {
        self.poll_recv(context)
    }
}

/// Runs `machine` until `effects` breaks or all senders of `inputs` are gone. Gives the machine
/// back, so that its last state can be looked at.
///
/// One input, then all outputs, then the next input or the deadline: the order that machines are
/// written for. Inputs that wait come before a deadline that is due, since what has happened may
/// make the timeout moot.
pub async fn drive<M: Machine>(
    mut machine: M,
    clock: Clock,
    mut inputs: impl Inbox<M::Input>,
    mut effects: impl Effects<M::Output>,
) -> M {
    loop {
        while let Some(output) = machine.poll() {
            if effects.perform(output).is_break() {
                return machine;
            }
        }
        match next(&machine, clock, &mut inputs).await {
            Wake::Input(input) => machine.handle(clock.now(), input),
            Wake::Deadline => machine.handle_timeout(clock.now()),
            Wake::Closed => return machine,
        }
    }
}

enum Wake<Input> {
    Input(Input),
    Deadline,
    Closed,
}

async fn next<M: Machine>(
    machine: &M,
    clock: Clock,
    inputs: &mut impl Inbox<M::Input>,
) -> Wake<M::Input> {
    let deadline = machine.deadline().map(|(at, _)| clock.instant(at));
    let mut sleep = std::pin::pin!(deadline.map(sleep_until));
    poll_fn(|context| {
        if let Poll::Ready(input) = inputs.poll_next(context) {
            return Poll::Ready(input.map_or(Wake::Closed, Wake::Input));
        }
        match sleep.as_mut().as_pin_mut() {
            Some(sleep) => sleep.poll(context).map(|()| Wake::Deadline),
            None => Poll::Pending,
        }
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Asks to be woken once after each input; says what it saw.
    #[derive(Default)]
    struct Echo {
        out: VecDeque<String>,
        due: Option<Timestamp>,
    }

    impl Machine for Echo {
        type Input = u32;
        type Output = String;

        fn handle(&mut self, now: Timestamp, input: u32) {
            self.out.push_back(format!("{input} at {now}"));
            self.due = Some(now + Duration::from_millis(10));
        }

        fn handle_timeout(&mut self, now: Timestamp) {
            if self.due.is_some_and(|due| due <= now) {
                self.due = None;
                self.out.push_back("woken".to_owned());
            }
        }

        fn poll(&mut self) -> Option<String> {
            self.out.pop_front()
        }

        fn deadline(&self) -> Option<(Timestamp, &'static str)> {
            self.due.map(|due| (due, "echo"))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn inputs_outputs_and_deadlines_in_order() {
        let clock = Clock::start();
        let (sender, receiver) = mpsc::channel(4);
        let (seen, mut sight) = mpsc::unbounded_channel();
        let effects = move |output: String| {
            seen.send(output).expect("the test listens");
            ControlFlow::Continue(())
        };
        let task = tokio::spawn(drive(Echo::default(), clock, receiver, effects));
        sender.send(1).await.expect("it runs");
        assert_eq!(sight.recv().await.as_deref(), Some("1 at 0.000000 ms"));
        assert_eq!(sight.recv().await.as_deref(), Some("woken"));
        assert!(clock.now() >= Timestamp::from_millis(10));
        drop(sender);
        assert_eq!(task.await.expect("no panic").due, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_break_ends_the_loop() {
        let (sender, receiver) = mpsc::channel(4);
        sender.send(1).await.expect("room");
        let echo = drive(Echo::default(), Clock::start(), receiver, |_| {
            ControlFlow::Break(())
        })
        .await;
        assert!(echo.due.is_some());
    }
}
