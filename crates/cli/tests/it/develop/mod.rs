//! Commands for developers of tools and models.

pub(crate) mod bench;
mod bench_bounds;
mod codec;
mod demo;
mod eval;
mod replay;
