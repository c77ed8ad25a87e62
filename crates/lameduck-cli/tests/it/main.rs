//! Tests of the command from outside.

mod registry;
