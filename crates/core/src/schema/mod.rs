//! JSON Schema: compile once, validate every call, and describe violations in words that a model can act on.

mod bundle;
mod coerce;
mod message;
mod ref_graph;
mod shape;
mod validate;
pub mod wrapped;

pub use self::bundle::{LoadDocument, bundle};
pub(crate) use coerce::CoercionAttempt;
pub use coerce::{Coerced, fill_defaults};
pub(crate) use message::shorten;
pub use message::suggest;
pub use shape::{argument_list, shape};
pub(crate) use shape::{referred, schema_at, shape_at};
pub use validate::{CompiledSchema, Draft, SchemaError, Violation};

#[cfg(test)]
mod tests;
