//! Tests of the registries from outside.

mod process;
