//! JSON Schema: compile once, validate every call, say what is wrong in words a model can act on.

mod defaults;
mod validate;

pub use defaults::fill_defaults;
pub use validate::{CompiledSchema, SchemaError, Violation};
