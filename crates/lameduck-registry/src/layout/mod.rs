//! Bytes that other programs see in a registry: keys and values, both ways, without any IO.

pub mod foreign;
pub mod gozero;
pub mod lameduck;
