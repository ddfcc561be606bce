//! The meta fields of a call: what it says beside its parameters.

pub use crate::model::call_meta::{CallMeta, META_FIELDS, Method, is_meta_field};
