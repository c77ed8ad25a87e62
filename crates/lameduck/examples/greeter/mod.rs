//! The greeter service of the examples, generated from `greeter.proto` by `cargo xtask codegen`.
//!
//! An example says `mod greeter;`. With a build script of your own, or `protoc`, it looks the same.

#![expect(
    clippy::allow_attributes,
    reason = "generated: tonic writes `allow` into it"
)]

include!("generated/greeter.v1.rs");
