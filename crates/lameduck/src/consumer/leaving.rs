//! A word to who reads a long answer: its server is going away.

use std::future::Future;

use futures_util::future::select;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Tells the reader of an answer that the server it comes from is going away: it said that it is
/// closing, it left the registry, or its connection ends. The answer goes on; a stream that can be
/// asked for elsewhere is best moved now, since it is cut at the latest 10 minutes after its
/// endpoint was removed.
///
/// In the answer's extensions where the channel was built with
/// [`ChannelBuilder::tell_leaving`](super::ChannelBuilder::tell_leaving).
///
/// ```no_run
/// # async fn follow(response: tonic::Response<tonic::Streaming<()>>) {
/// use lameduck::consumer::Leaving;
/// if let Some(leaving) = response.extensions().get::<Leaving>() {
///     leaving.told().await;
/// }
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Leaving {
    retired: CancellationToken,
    closing: watch::Receiver<bool>,
}

impl Leaving {
    pub(super) fn new(retired: CancellationToken, closing: watch::Receiver<bool>) -> Self {
        Self { retired, closing }
    }

    /// Resolves once the server is going away; at once where it is already.
    pub fn told(&self) -> impl Future<Output = ()> + Send + use<> {
        let (retired, mut closing) = (self.retired.clone(), self.closing.clone());
        async move {
            let retired = std::pin::pin!(retired.cancelled());
            let closing = std::pin::pin!(async {
                if closing.wait_for(|closing| *closing).await.is_err() {
                    // The endpoint is gone altogether; the connection tells.
                    std::future::pending::<()>().await;
                }
            });
            select(retired, closing).await;
        }
    }

    /// Whether it is going away.
    #[must_use]
    pub fn is_told(&self) -> bool {
        self.retired.is_cancelled() || *self.closing.borrow()
    }
}
