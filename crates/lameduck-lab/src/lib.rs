//! placeholder
pub mod pb;
