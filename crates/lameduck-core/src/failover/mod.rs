//! Whether a call that failed may be placed once more, and where not.
//!
//! Two questions decide, and a status code answers neither. First: is it *proven* that the server
//! did not process the call ([`Proof`])? Such a call may go elsewhere whatever its method does.
//! Second: is the method *declared* idempotent? Only then may a call go elsewhere that perhaps was
//! processed. What left the process costs a retry budget ([`budget`]), so that failing servers do
//! not get more calls than healthy ones (gRPC A6 and Envoy's retry budgets draw the same lines).

pub mod attempt;
pub mod budget;

/// How sure it is that a server did not process a call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Proof {
    /// It never left this process: no connection, or the connection refused to open a stream.
    NeverLeft,
    /// It left, and the peer said that it was not processed: a GOAWAY whose last stream id lies
    /// below this stream's, RST_STREAM(REFUSED_STREAM), or the refused mark.
    NotProcessed,
    /// It left, and nobody can say what happened.
    Unknown,
}
