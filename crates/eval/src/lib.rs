//! Measures models ([`mod@bench`], for `toolwright bench`) and selection ([`mod@select`], for `toolwright eval`). The
//! caller prints.

pub mod bench;
pub mod select;
