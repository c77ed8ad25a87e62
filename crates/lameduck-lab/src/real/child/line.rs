//! What a caller calls through: lameduck's channel, or tonic's.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tonic::body::Body;
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Either channel.
#[derive(Clone, Debug)]
pub(super) enum Line {
    Lameduck(lameduck::Channel),
    Tonic(tonic::transport::Channel),
}

impl Service<Request<Body>> for Line {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Lameduck(channel) => ready!(channel.poll_ready(context))?,
            Self::Tonic(channel) => ready!(channel.poll_ready(context))?,
        }
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self {
            Self::Lameduck(channel) => {
                let answer = channel.call(request);
                Box::pin(async { Ok(answer.await?) })
            }
            Self::Tonic(channel) => {
                let answer = channel.call(request);
                Box::pin(async { Ok(answer.await?) })
            }
        }
    }
}
