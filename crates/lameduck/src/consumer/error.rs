//! What a call that failed tells its caller.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use lameduck_core::failover::Proof;
use lameduck_core::failover::attempt::Stop;
use lameduck_core::instance::Incarnation;
use lameduck_core::name::Address;

/// Why a call failed on its way, and what is proven of it. It is the source of the
/// [`tonic::Status`] that the application gets: walk `source()` and downcast.
///
/// ```no_run
/// # fn look(status: &tonic::Status) {
/// use std::error::Error;
/// use lameduck::consumer::CallFailed;
/// let failed = status.source().and_then(|source| source.downcast_ref::<CallFailed>());
/// let may_have_run = failed.is_none_or(|failed| failed.proof == lameduck::core::failover::Proof::Unknown);
/// # }
/// ```
pub struct CallFailed {
    /// Where it was placed last; `None` where there was nowhere to place it.
    pub endpoint: Option<(Address, Incarnation)>,
    /// How sure it is that it was not processed there.
    pub proof: Proof,
    /// Why it was not placed again; `None` where it never was placed at all, or its answer had begun.
    pub stop: Option<Stop>,
    /// How often it was placed; of an answer that broke off only its own placement is counted.
    pub placed: u32,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl CallFailed {
    pub(super) fn placed(
        endpoint: (Address, Incarnation),
        proof: Proof,
        stop: Stop,
        placed: u32,
        source: Option<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self {
            endpoint: Some(endpoint),
            proof,
            stop: Some(stop),
            placed,
            source,
        }
    }

    /// An answer that began and broke off: whatever it was, it was processed, perhaps in part.
    pub(super) fn in_answer(
        endpoint: (Address, Incarnation),
        status: tonic::Status,
    ) -> tonic::Status {
        let code = status.code();
        let failed = Self {
            endpoint: Some(endpoint),
            proof: Proof::Unknown,
            stop: None,
            placed: 1,
            source: Some(status.into()),
        };
        failed.into_status(code)
    }

    /// The status for the application, with this error as its source.
    pub(super) fn into_status(self, code: tonic::Code) -> tonic::Status {
        let mut status = tonic::Status::new(code, self.to_string());
        status.set_source(Arc::new(self));
        status
    }
}

impl fmt::Display for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((address, incarnation)) = &self.endpoint {
            write!(f, "{address} ({incarnation}): ")?;
        }
        match &self.source {
            // A status shows all of itself; its message says what there is to say.
            Some(source) => match source.downcast_ref::<tonic::Status>() {
                Some(status) => f.write_str(status.message())?,
                None => source.fmt(f)?,
            },
            None => f.write_str("the server refused the call; it was not processed")?,
        }
        match self.stop {
            None => Ok(()),
            Some(Stop::Off) => f.write_str(" (failover is switched off)"),
            Some(Stop::Request) => f.write_str(" (not repeated: the request itself is at fault)"),
            Some(Stop::MayHaveRun) => f.write_str(" (not repeated: not declared idempotent)"),
            Some(Stop::BodyGone) => f.write_str(" (not repeated: its body is gone)"),
            Some(Stop::Attempts) => write!(f, " (given up after {} attempts)", self.placed),
            Some(Stop::Budget) => f.write_str(" (not repeated: the retry budget is used up)"),
        }
    }
}

/// Only what the words do not say: a status that is printed shows its message, which are these words,
/// and then its source by `Debug`.
impl fmt::Debug for CallFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CallFailed")
            .field("proof", &self.proof)
            .field("stop", &self.stop)
            .field("placed", &self.placed)
            .finish_non_exhaustive()
    }
}

impl Error for CallFailed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let source = self.source.as_deref()?;
        Some(source)
    }
}

/// The deadline that the application set has passed, within an answer that has begun.
pub(super) fn deadline_in_answer(address: &Address) -> tonic::Status {
    tonic::Status::deadline_exceeded(format!(
        "the call's deadline has passed while it read the answer of {address}"
    ))
}

/// The same, before the answer began.
pub(super) fn deadline_at(address: &Address) -> tonic::Status {
    tonic::Status::deadline_exceeded(format!(
        "the call's deadline has passed while it waited for the answer of {address}"
    ))
}

/// The same, before there was anywhere to place it.
pub(super) fn deadline_nowhere(proof: Proof, placed: u32, why: &str) -> tonic::Status {
    let text = format!("the call's deadline has passed while it waited for an instance: {why}");
    unplaced(proof, placed, text).into_status(tonic::Code::DeadlineExceeded)
}

/// There was nowhere to place the call.
pub(super) fn nowhere(proof: Proof, placed: u32, why: String) -> tonic::Status {
    unplaced(proof, placed, why).into_status(tonic::Code::Unavailable)
}

fn unplaced(proof: Proof, placed: u32, why: String) -> CallFailed {
    CallFailed {
        endpoint: None,
        proof,
        stop: None,
        placed,
        source: Some(why.into()),
    }
}
