//! Commands for whoever writes tools or measures models.

pub(crate) mod bench;
pub(crate) mod catalogue;
pub(crate) mod catalogue_file;
pub(crate) mod decode;
pub(crate) mod encode;
pub(crate) mod eval;
pub(crate) mod records;
pub(crate) mod tool_file;
pub(crate) mod validate;
