//! The messages of `grpc.health.v1`, for server and caller.

use std::collections::HashMap;

/// The service's full name.
pub const SERVICE: &str = "grpc.health.v1.Health";
/// The path of its unary question.
pub const CHECK_PATH: &str = "/grpc.health.v1.Health/Check";
/// The path of its stream.
pub const WATCH_PATH: &str = "/grpc.health.v1.Health/Watch";
/// The path of its list.
pub const LIST_PATH: &str = "/grpc.health.v1.Health/List";

/// How a service does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    /// Nothing is known.
    Unknown = 0,
    /// It takes calls.
    Serving = 1,
    /// It does not want calls.
    NotServing = 2,
    /// This server does not know the service (on Watch only; the stream stays open).
    ServiceUnknown = 3,
}

/// Which service is asked for.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct HealthCheckRequest {
    /// Its name; empty for the server as a whole.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// How it does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct HealthCheckResponse {
    /// The status.
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// Asks for all services.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct HealthListRequest {}

/// How all services do.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthListResponse {
    /// Name to status.
    #[prost(map = "string, message", tag = "1")]
    pub statuses: HashMap<String, HealthCheckResponse>,
}
