//! One call's attempts: a plain struct that lives inside the call's future.

use crate::failover::Proof;
use crate::limits::{ATTEMPTS_MAX, PLACEMENTS_MAX};
use crate::mutant;

/// What a caller allows for its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Attempts in all that may reach a server; at least 1.
    pub attempts_max: u32,
    /// Whether the method is declared idempotent.
    pub idempotent: bool,
    /// `false`: nothing is placed twice, not even a request handed back unsent.
    pub failover: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            attempts_max: ATTEMPTS_MAX,
            idempotent: false,
            failover: true,
        }
    }
}

/// What is to be done after an attempt failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Place it once more, on another endpoint where there is one; `proven` says whether that is
    /// allowed by proof or by the method's declaration.
    Again {
        /// It provably was not processed.
        proven: bool,
    },
    /// Give the failure to the caller.
    Fail(Stop),
}

/// Why a call is not placed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Failover is switched off.
    Off,
    /// The request itself is at fault: no other endpoint would do better.
    Request,
    /// It may have been processed, and its method is not declared idempotent.
    MayHaveRun,
    /// Its body is gone: a stream that was read from, or larger than what is kept.
    BodyGone,
    /// It has had all its attempts.
    Attempts,
    /// The retry budget is used up.
    Budget,
}

/// What happened to one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// How sure it is that it was not processed.
    pub proof: Proof,
    /// Whether the request itself is the reason: it cannot be sent anywhere.
    pub own_fault: bool,
    /// Whether the request can be sent again as it was.
    pub replayable: bool,
    /// Whether this endpoint has refused this very call before.
    pub refused_here_before: bool,
}

/// The attempts of one call so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// How many left the process.
    sent: u32,
    /// How many were tried at all.
    placed: u32,
    /// How many of them a server refused.
    refused: u32,
}

impl Attempts {
    /// None yet.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            sent: 0,
            placed: 0,
            refused: 0,
        }
    }

    /// How many times it was placed so far.
    #[must_use]
    pub const fn placed(&self) -> u32 {
        self.placed
    }

    /// Decides after one more attempt failed. `withdraw` takes from the retry budget and is asked
    /// only where the answer depends on it.
    ///
    /// What never left the process is free, up to [`PLACEMENTS_MAX`]. A refusal is free once; from
    /// the second on, and where the same endpoint refuses again, it draws on the budget, so that a
    /// fleet that refuses everything is not hammered. All else needs the declaration and the budget.
    pub fn after_failure(
        &mut self,
        policy: &Policy,
        failure: Failure,
        withdraw: impl FnOnce() -> bool,
    ) -> Decision {
        self.placed += 1;
        self.sent += u32::from(failure.proof != Proof::NeverLeft);
        self.refused += u32::from(failure.proof == Proof::NotProcessed);
        if !policy.failover && !mutant!("attempts/off-means-off") {
            return Decision::Fail(Stop::Off);
        }
        if failure.own_fault {
            return Decision::Fail(Stop::Request);
        }
        let may_have_run = failure.proof == Proof::Unknown && !policy.idempotent;
        if may_have_run && !mutant!("attempts/only-idempotent-twice") {
            return Decision::Fail(Stop::MayHaveRun);
        }
        if !failure.replayable {
            return Decision::Fail(Stop::BodyGone);
        }
        if self.placed >= PLACEMENTS_MAX || self.sent >= policy.attempts_max {
            return Decision::Fail(Stop::Attempts);
        }
        let first_refusal = self.refused == 1 && !failure.refused_here_before;
        let free = match failure.proof {
            Proof::NeverLeft => true,
            Proof::NotProcessed => first_refusal,
            Proof::Unknown => false,
        };
        if !free && !withdraw() {
            return Decision::Fail(Stop::Budget);
        }
        Decision::Again {
            proven: failure.proof != Proof::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const PROVEN: Decision = Decision::Again { proven: true };

    fn failed(proof: Proof) -> Failure {
        Failure {
            proof,
            own_fault: false,
            replayable: true,
            refused_here_before: false,
        }
    }

    /// Runs a series of failures through one call; the budget grants as long as `grants` says.
    fn check(policy: Policy, series: &[Proof], grants: bool, expected: &[Decision]) {
        let mut attempts = Attempts::new();
        let mut got = Vec::new();
        for proof in series {
            got.push(attempts.after_failure(&policy, failed(*proof), || grants));
        }
        assert_eq!(got, expected, "{policy:?} {series:?}");
    }

    #[test]
    fn what_never_left_is_free() {
        let mut expected = [PROVEN; PLACEMENTS_MAX as usize];
        expected[PLACEMENTS_MAX as usize - 1] = Decision::Fail(Stop::Attempts);
        let series = [Proof::NeverLeft; PLACEMENTS_MAX as usize];
        check(Policy::default(), &series, false, &expected);
    }

    #[test]
    fn a_refusal_is_free_once() {
        let series = [Proof::NotProcessed, Proof::NotProcessed];
        check(
            Policy::default(),
            &series,
            false,
            &[PROVEN, Decision::Fail(Stop::Budget)],
        );
        let series = [Proof::NotProcessed; 3];
        let expected = [PROVEN, PROVEN, Decision::Fail(Stop::Attempts)];
        check(Policy::default(), &series, true, &expected);
    }

    #[test]
    fn the_same_endpoint_refusing_again_is_not_free() {
        let mut attempts = Attempts::new();
        let again = Failure {
            refused_here_before: true,
            ..failed(Proof::NotProcessed)
        };
        let decision = attempts.after_failure(&Policy::default(), again, || false);
        assert_eq!(decision, Decision::Fail(Stop::Budget));
    }

    #[test]
    fn what_may_have_run_needs_the_declaration_and_the_budget() {
        let declared = Policy {
            idempotent: true,
            ..Policy::default()
        };
        let unknown = [Proof::Unknown];
        check(
            Policy::default(),
            &unknown,
            true,
            &[Decision::Fail(Stop::MayHaveRun)],
        );
        check(
            declared,
            &unknown,
            true,
            &[Decision::Again { proven: false }],
        );
        check(declared, &unknown, false, &[Decision::Fail(Stop::Budget)]);
    }

    #[test]
    fn off_means_off_and_a_body_that_is_gone_stays_gone() {
        let off = Policy {
            failover: false,
            idempotent: true,
            ..Policy::default()
        };
        for proof in [Proof::NeverLeft, Proof::NotProcessed, Proof::Unknown] {
            check(off, &[proof], true, &[Decision::Fail(Stop::Off)]);
        }
        let gone = Failure {
            replayable: false,
            ..failed(Proof::NeverLeft)
        };
        let decision = Attempts::new().after_failure(&Policy::default(), gone, || true);
        assert_eq!(decision, Decision::Fail(Stop::BodyGone));
    }

    #[test]
    fn what_no_endpoint_can_take_is_placed_once() {
        let declared = Policy {
            idempotent: true,
            ..Policy::default()
        };
        for proof in [Proof::NeverLeft, Proof::NotProcessed, Proof::Unknown] {
            let own_fault = Failure {
                own_fault: true,
                ..failed(proof)
            };
            let decision = Attempts::new().after_failure(&declared, own_fault, || true);
            assert_eq!(decision, Decision::Fail(Stop::Request));
        }
    }

    proptest! {
        #[test]
        fn never_twice_without_proof_or_declaration(
            series in prop::collection::vec((0_u8..3, any::<bool>(), any::<bool>()), 1..40),
            idempotent: bool,
            attempts_max in 1_u32..6,
        ) {
            let policy = Policy { attempts_max, idempotent, failover: true };
            let mut attempts = Attempts::new();
            let mut sent = 0;
            for (proof, granted, refused_here_before) in series {
                let proof = [Proof::NeverLeft, Proof::NotProcessed, Proof::Unknown][usize::from(proof)];
                sent += u32::from(proof != Proof::NeverLeft);
                let failure = Failure { proof, own_fault: false, replayable: true, refused_here_before };
                match attempts.after_failure(&policy, failure, || granted) {
                    Decision::Again { proven } => {
                        prop_assert!(proven || idempotent);
                        prop_assert!(sent < attempts_max);
                        prop_assert!(attempts.placed() < PLACEMENTS_MAX);
                        prop_assert!(proven == (proof != Proof::Unknown));
                    }
                    Decision::Fail(_) => break,
                }
            }
        }
    }
}
