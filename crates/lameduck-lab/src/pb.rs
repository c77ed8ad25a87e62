//! The lab's own service, generated from `proto/lab.proto` by `cargo xtask codegen`.

#![expect(
    clippy::allow_attributes,
    reason = "generated: tonic writes `allow` into it"
)]

include!("generated/lameduck.lab.v1.rs");
