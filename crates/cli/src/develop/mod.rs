//! Commands for whoever writes tools or measures models: `validate`, `encode`, `decode`, `catalogue`, `eval`, `bench`.

pub(crate) mod bench;
pub(crate) mod catalogue;
pub(crate) mod catalogue_file;
pub(crate) mod codec;
pub(crate) mod eval;
pub(crate) mod records;
