//! A user's token of etcd: renewed by whoever needs it, once for all.
//!
//! A login costs etcd a bcrypt, tens of milliseconds of a core. So at most one is under way for a
//! client; all that need a token wait for its result, and none of them ends it by giving up. A login
//! that failed, and a token that is refused as soon as it is there, keep the whole client from
//! trying again for a while.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};

use http::HeaderValue;
use lameduck_core::backoff::Backoff;
use lameduck_core::limits;
use lameduck_core::mutant;
use lameduck_core::rng::Rng;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Status};

/// Texts by which etcd says of a call that its token is of no use any more. The status code differs
/// between versions, and a watch that is refused has only the text.
const LOST: [&str; 3] = [
    "invalid auth token",
    "revision of auth store is old",
    "user name is empty",
];

/// What a call does, as far as its refusal depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One answer.
    Unary,
    /// A watch.
    Watch,
}

/// What one login gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    /// `None` where etcd asks nobody for a login.
    pub(super) token: Option<HeaderValue>,
    /// The connection that it came over.
    pub(super) generation: u64,
}

/// A pass, and which login it comes from.
#[derive(Clone, Debug)]
pub(super) struct Token {
    pass: Pass,
    number: u64,
    since: Instant,
}

impl Token {
    /// What calls carry.
    pub(super) fn header(&self) -> Option<HeaderValue> {
        self.pass.token.clone()
    }
}

/// How a login went.
pub(super) type Outcome = Result<Pass, Failed>;

/// A login that failed.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) status: Status,
    /// Whether etcd may have had work with it.
    pub(super) is_sent: bool,
}

/// Name and password, and how the login with them stands.
pub(super) struct Login {
    pub(super) name: String,
    pub(super) password: String,
    slot: Mutex<Slot>,
}

struct Slot {
    standing: Standing,
    /// Logins so far.
    number: u64,
    backoff: Backoff,
    /// Tokens in a row that were refused as soon as they were there.
    refused_new: u32,
    /// Grows while logins anew do not help against "permission denied".
    doubt: Backoff,
    /// No such login before this.
    doubt_from: Option<Instant>,
    rng: Rng,
}

enum Standing {
    Out,
    /// After a failure nobody tries again before `until`.
    Waiting {
        until: Instant,
        status: Status,
    },
    Flying(watch::Receiver<Option<Result<Token, Status>>>),
    In(Token),
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").finish_non_exhaustive()
    }
}

impl Login {
    pub(super) fn new(name: &str, password: &str, seed: u64) -> Self {
        let (first, last) = limits::REGISTRY_BACKOFF;
        let (sooner, later) = limits::LOGIN_DOUBT;
        Self {
            name: name.to_owned(),
            password: password.to_owned(),
            slot: Mutex::new(Slot {
                standing: Standing::Out,
                number: 0,
                backoff: Backoff::new(first, last),
                refused_new: 0,
                doubt: Backoff::new(sooner, later),
                doubt_from: None,
                rng: Rng::from_seed(seed),
            }),
        }
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Slot> {
        self.slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token to call with. Where there is none, `log_in` is run by a task of its own, unless that
    /// is under way already; its result is waited for.
    ///
    /// # Errors
    ///
    /// What the login that was waited for ended with, or the latest one that failed, while its pause
    /// lasts.
    pub(super) async fn token<F>(
        self: &Arc<Self>,
        log_in: impl FnOnce() -> F,
    ) -> Result<Token, Status>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut flight = match self.standing(log_in)? {
            Ok(token) => return Ok(token),
            Err(flight) => flight,
        };
        let landed = flight.wait_for(Option::is_some).await;
        let gone = || Status::unavailable("etcd: the login was dropped");
        let landed = landed.map_err(|_| gone())?.clone();
        landed.unwrap_or_else(|| Err(gone()))
    }

    /// The token, or the login to wait for.
    #[expect(clippy::type_complexity, reason = "one private caller")]
    fn standing<F>(
        self: &Arc<Self>,
        log_in: impl FnOnce() -> F,
    ) -> Result<Result<Token, watch::Receiver<Option<Result<Token, Status>>>>, Status>
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let mut slot = self.slot();
        match &slot.standing {
            Standing::In(token) => return Ok(Ok(token.clone())),
            Standing::Waiting { until, status }
                if *until > Instant::now() && !mutant!("login/backs-off") =>
            {
                return Err(status.clone());
            }
            // One whose runtime has ended never lands.
            Standing::Flying(flight)
                if (flight.has_changed().is_ok() || flight.borrow().is_some())
                    && !mutant!("login/once-for-all") =>
            {
                return Ok(Err(flight.clone()));
            }
            Standing::Out | Standing::Waiting { .. } | Standing::Flying(_) => {}
        }
        slot.number += 1;
        let number = slot.number;
        let (sender, flight) = watch::channel(None);
        slot.standing = Standing::Flying(flight.clone());
        drop(slot);
        let (login, log_in) = (Arc::clone(self), log_in());
        tokio::spawn(async move {
            let outcome = log_in.await;
            sender.send_replace(Some(login.landed(number, outcome)));
        });
        Ok(Err(flight))
    }

    fn landed(&self, number: u64, outcome: Outcome) -> Result<Token, Status> {
        let mut slot = self.slot();
        let result = match outcome {
            Ok(pass) => Ok(Token {
                pass,
                number,
                since: Instant::now(),
            }),
            Err(failed) => Err(failed),
        };
        if number == slot.number {
            slot.standing = match &result {
                Ok(token) => {
                    if slot.refused_new == 0 {
                        slot.backoff.reset();
                    }
                    Standing::In(token.clone())
                }
                // Nothing reached etcd: the connection has a pause of its own.
                Err(failed) if !failed.is_sent => Standing::Out,
                Err(failed) => slot.pause(failed.status.clone()),
            };
        }
        result.map_err(|failed| failed.status)
    }

    /// Whether `status`, the answer to a call with `token` over the connection `generation`, is a
    /// reason to log in again. If so the token is forgotten, unless another has taken its place.
    pub(super) fn is_lost(
        &self,
        token: &Token,
        status: &Status,
        kind: Kind,
        generation: u64,
    ) -> bool {
        let now = Instant::now();
        let mut slot = self.slot();
        let text = status.message();
        let said = status.code() == Code::Unauthenticated
            || LOST.iter().any(|lost| text.contains(lost)) && !mutant!("login/lost-by-words");
        // Before 3.4.22 and 3.5.1 a watch with a lost token is told "permission denied", too.
        let denied = kind == Kind::Watch && text.contains("permission denied");
        if !said && !denied {
            return false;
        }
        if !matches!(&slot.standing, Standing::In(own) if own.number == token.number) {
            // Somebody else was faster.
            return true;
        }
        if !said && !slot.doubts(now, token, generation) {
            return false;
        }
        let is_new = said && now.duration_since(token.since) < limits::LOGIN_PACE;
        slot.refused_new = if is_new { slot.refused_new + 1 } else { 0 };
        // Once is chance: somebody may be changing users just now.
        slot.standing = if slot.refused_new > 1 && !mutant!("login/paces-itself") {
            slot.pause(still_lost(status.clone()))
        } else {
            Standing::Out
        };
        true
    }
}

impl Slot {
    /// Whether a watch that is denied may be so because its token is lost: once for each connection,
    /// and again after pauses that grow.
    fn doubts(&mut self, now: Instant, token: &Token, generation: u64) -> bool {
        if mutant!("login/doubts-a-denial") {
            return false;
        }
        let moved = token.pass.generation != generation;
        if moved {
            self.doubt.reset();
        }
        let due = self
            .doubt_from
            .unwrap_or_else(|| token.since + limits::LOGIN_DOUBT.0);
        if !moved && now < due && !mutant!("login/doubts-seldom") {
            return false;
        }
        self.doubt_from = Some(now + self.doubt.next(&mut self.rng) * 2);
        true
    }

    fn pause(&mut self, status: Status) -> Standing {
        let until = Instant::now() + self.backoff.next(&mut self.rng);
        Standing::Waiting { until, status }
    }
}

/// A call that was refused for its token, with a token that is new: something else changes the users
/// at the same time, so it is worth another try.
pub(super) fn still_lost(status: Status) -> Status {
    let lost = LOST.iter().any(|lost| status.message().contains(lost));
    if lost || status.code() == Code::Unauthenticated {
        return Status::aborted(status.message());
    }
    status
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::time::Duration;

    use futures_util::future::join_all;

    use super::*;

    fn login() -> Arc<Login> {
        Arc::new(Login::new("app", "word", 7))
    }

    /// How often somebody has logged in.
    #[derive(Clone, Default)]
    struct Count(Arc<AtomicU32>);

    impl Count {
        fn so_far(&self) -> u32 {
            self.0.load(SeqCst)
        }

        /// A login that takes a while and then goes as `outcome` says.
        fn slow(&self, outcome: Outcome) -> impl Future<Output = Outcome> + use<> {
            self.0.fetch_add(1, SeqCst);
            async move {
                tokio::time::sleep(Duration::from_secs(4)).await;
                outcome
            }
        }
    }

    fn pass(generation: u64) -> Outcome {
        let token = Some(HeaderValue::from_static("token"));
        Ok(Pass { token, generation })
    }

    fn failed(is_sent: bool) -> Outcome {
        let status = Status::invalid_argument("authentication failed");
        Err(Failed { status, is_sent })
    }

    fn lost() -> Status {
        Status::unauthenticated("etcdserver: invalid auth token")
    }

    async fn wait(seconds: u64) {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn r3_c_all_wait_for_one_login_and_those_who_give_up_do_not_end_it() {
        let (login, count) = (login(), Count::default());
        for _ in 0..3 {
            let hasty = login.token(|| count.slow(pass(1)));
            let hasty = tokio::time::timeout(Duration::from_secs(1), hasty).await;
            assert!(hasty.is_err(), "it takes longer");
        }
        let all = (0..100).map(|_| login.token(|| count.slow(pass(1))));
        assert!(join_all(all).await.iter().all(Result::is_ok));
        assert_eq!(count.so_far(), 1);
        let token = login.token(|| count.slow(pass(1))).await.expect("there");
        assert_eq!((token.pass.generation, count.so_far()), (1, 1));
        // All of them hear that it is lost; the first makes way for a new one.
        wait(2).await;
        for _ in 0..100 {
            assert!(login.is_lost(&token, &lost(), Kind::Unary, 1));
        }
        let all = (0..100).map(|_| login.token(|| count.slow(pass(1))));
        assert!(join_all(all).await.iter().all(Result::is_ok));
        assert_eq!(count.so_far(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn r3_d_a_login_that_failed_keeps_the_whole_client_waiting() {
        let (login, count) = (login(), Count::default());
        for n in 1..=20 {
            let error = login.token(|| count.slow(failed(true))).await;
            assert_eq!(error.expect_err("wrong").code(), Code::InvalidArgument);
            let again = login.token(|| count.slow(failed(true))).await;
            assert_eq!(again.expect_err("at once").code(), Code::InvalidArgument);
            assert_eq!(count.so_far(), n);
            wait(10).await;
        }
        // What never reached etcd has cost it nothing.
        for n in 21..=23 {
            let error = login.token(|| count.slow(failed(false))).await;
            assert!(error.is_err());
            assert_eq!(count.so_far(), n);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn r5_c_a_token_is_lost_by_all_of_etcds_words_and_by_no_others() {
        let (login, count) = (login(), Count::default());
        let words = [
            Status::unauthenticated("etcdserver: invalid auth token"),
            Status::invalid_argument("etcdserver: revision of auth store is old"),
            Status::invalid_argument("etcdserver: user name is empty"),
            Status::aborted("etcd: the watch was cancelled: rpc error: invalid auth token"),
        ];
        for status in words {
            let token = login.token(|| count.slow(pass(1))).await.expect("there");
            wait(2).await;
            assert!(login.is_lost(&token, &status, Kind::Unary, 1), "{status}");
            assert_eq!(still_lost(status).code(), Code::Aborted);
        }
        let token = login.token(|| count.slow(pass(1))).await.expect("there");
        wait(2).await;
        for status in [
            Status::permission_denied("etcdserver: permission denied"),
            Status::invalid_argument("etcdserver: key is not provided"),
            Status::unavailable("etcdserver: no leader"),
        ] {
            assert!(!login.is_lost(&token, &status, Kind::Unary, 1), "{status}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn r5_d_tokens_refused_at_once_are_not_fetched_in_a_circle() {
        let (login, count) = (login(), Count::default());
        let start = Instant::now();
        let mut refused = 0;
        while start.elapsed() < Duration::from_secs(300) {
            match login.token(|| count.slow(pass(1))).await {
                Ok(token) => assert!(login.is_lost(&token, &lost(), Kind::Unary, 1)),
                Err(status) => {
                    assert_eq!(status.code(), Code::Aborted);
                    refused += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        // Four seconds each without a pause; with pauses of up to ten seconds between.
        assert!(count.so_far() < 40 && refused > 100, "{}", count.so_far());
    }

    #[tokio::test(start_paused = true)]
    async fn r2_e_a_watch_that_is_denied_is_doubted_seldom_unless_etcd_may_be_another() {
        let (login, count) = (login(), Count::default());
        let denied = Status::permission_denied("etcd: the watch was cancelled: permission denied");
        let start = Instant::now();
        let mut token = login.token(|| count.slow(pass(1))).await.expect("there");
        while start.elapsed() < Duration::from_secs(3600) {
            if login.is_lost(&token, &denied, Kind::Watch, 1) {
                token = login.token(|| count.slow(pass(1))).await.expect("there");
            }
            wait(5).await;
        }
        assert!((6..=16).contains(&count.so_far()), "{}", count.so_far());
        let before = count.so_far();
        assert!(login.is_lost(&token, &denied, Kind::Watch, 2));
        token = login.token(|| count.slow(pass(2))).await.expect("there");
        assert!(!login.is_lost(&token, &denied, Kind::Watch, 2));
        assert_eq!(count.so_far(), before + 1);
    }
}
