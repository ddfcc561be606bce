//! JSON Schema: compile once, validate every call, say what is wrong in words a model can act on.

#[cfg(test)]
mod bounds;
mod coerce;
mod defaults;
mod message;
mod placeholders;
mod ref_graph;
mod shape;
mod suggest;
#[cfg(test)]
mod suite;
mod validate;
pub mod wrapped;

pub(crate) use coerce::Attempt;
pub use coerce::Coerced;
pub use defaults::fill_defaults;
pub(crate) use message::shorten;
pub(crate) use shape::shape_at;
pub use shape::{argument_list, shape};
pub use suggest::suggest;
pub use validate::{CompiledSchema, Draft, SchemaError, Violation};
