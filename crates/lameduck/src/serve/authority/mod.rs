//! Requests whose `:authority` h2 would refuse, made requests that it takes.
//!
//! Some callers send the whole list of their servers (or of their registry's hosts) as `:authority`:
//! go-zero with several etcd hosts, grpcio with `ipv4:a:1,b:2`, Kratos with `direct:///a:1,b:2`. Go's and
//! C's servers take that, h2 resets the stream. So in each header block, before h2 reads it, the bytes of
//! an authority that h2 would refuse are replaced by others whose decoded *and* coded length is the same:
//! `,` and `X` both have 8 bits in HPACK's code, `:` and `B` 7. Sizes, indices and frames stay as they
//! are; nothing else is touched, and all other blocks pass byte by byte.
//!
//! An HPACK library would not do: they give values, and what is needed is where those are. To know which
//! field is `:authority`, the names of the peer's dynamic table are followed.

mod block;
mod filter;
mod huffman;
mod mend;
mod table;
#[cfg(test)]
mod tests;

pub(super) use filter::Filter;
