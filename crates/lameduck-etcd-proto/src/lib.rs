//! The etcd v3 API as Rust types, for lameduck's client and its development server.
//!
//! Everything below is generated from this crate's `proto/` by `cargo xtask codegen` and committed,
//! so that no build needs `protoc`. It is the part of etcd 3.4's API that registries use; clients and
//! servers of other versions understand it, as fields unknown to one side are ignored.
//!
//! Keys and values are [`prost::bytes::Bytes`], so that passing them on copies nothing.

/// Keys, values and events.
pub mod mvccpb {
    include!("generated/mvccpb.rs");
}

/// Services and their messages.
#[expect(
    clippy::allow_attributes,
    reason = "generated: tonic writes `allow` into it"
)]
pub mod etcdserverpb {
    include!("generated/etcdserverpb.rs");
}
