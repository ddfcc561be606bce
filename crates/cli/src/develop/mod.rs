//! Commands for authors of tools and for measuring models: `validate`, `encode`, `decode`, `catalogue`, `eval`,
//! `bench`.

pub(crate) mod bench;
pub(crate) mod bench_plan;
pub(crate) mod catalogue;
pub(crate) mod codec;
pub(crate) mod eval;
