//! Defines the traits behind `#[tool]`: the types that may be a tool's arguments, and those that it may return.
//!
//! The traits hold for every type that qualifies; nobody implements them by hand. They are named in bounds
//! so that the compiler's message can say what to do.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{ErrorKind, ToolError};
use crate::output::outcome::ToolOutput;

/// The type of a tool's arguments: all of them as one struct, or one of them.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a tool",
    label = "needs `serde::Deserialize` and `schemars::JsonSchema`, and must own its data",
    note = "derive both on it: `#[derive(serde::Deserialize, schemars::JsonSchema)]`"
)]
pub trait ToolArguments: Sized {
    /// JSON Schema of the arguments: for a struct, an object. The Rust type's own name and documentation are
    /// left out: the definition has a title and a description already.
    #[must_use]
    fn schema() -> Value;

    /// Validated arguments as their type.
    ///
    /// # Errors
    /// `invalid_parameters` where the type is narrower than its schema: a number out of range, say.
    fn read(arguments: Value) -> Result<Self, ToolError>;
}

#[diagnostic::do_not_recommend]
impl<T: DeserializeOwned + JsonSchema + Send> ToolArguments for T {
    fn schema() -> Value {
        let mut schema = root::<T>(SchemaSettings::draft2020_12().for_deserialize());
        if let Some(object) = schema.as_object_mut()
            && object.get("type") == Some(&json!("object"))
        {
            object.shift_remove("description");
            object.entry("properties").or_insert_with(|| json!({}));
        }
        schema
    }

    fn read(arguments: Value) -> Result<Self, ToolError> {
        serde_json::from_value(arguments)
            .map_err(|error| ToolError::new(ErrorKind::InvalidParameters, format!("the arguments do not fit: {error}")))
    }
}

/// What a tool returns when it succeeds.
///
/// A [`ToolOutput`] goes as it is. Anything else is serialised: a text becomes a text block, nothing (`()`,
/// `None`) becomes no block, an object becomes the structured result with its JSON as the text beside it,
/// and any other value becomes its JSON text.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the result of a tool",
    label = "needs `serde::Serialize` and `schemars::JsonSchema`",
    note = "derive both on it, or return a `String` for plain text, or a `ToolOutput` for content blocks"
)]
pub trait ToolReturn: Sized {
    /// JSON Schema of the structured result, where every result has one.
    #[must_use]
    fn output_schema() -> Option<Value>;

    /// The result as an executor takes it.
    ///
    /// # Errors
    /// `internal_error` when the value does not serialise to JSON.
    fn into_output(self) -> Result<ToolOutput, ToolError>;
}

impl ToolReturn for ToolOutput {
    fn output_schema() -> Option<Value> {
        None
    }

    fn into_output(self) -> Result<ToolOutput, ToolError> {
        Ok(self)
    }
}

#[diagnostic::do_not_recommend]
impl<T: Serialize + JsonSchema> ToolReturn for T {
    fn output_schema() -> Option<Value> {
        let schema = root::<T>(SchemaSettings::draft2020_12().for_serialize());
        (schema.get("type") == Some(&json!("object"))).then_some(schema)
    }

    fn into_output(self) -> Result<ToolOutput, ToolError> {
        let value = serde_json::to_value(self).map_err(|error| {
            ToolError::new(ErrorKind::InternalError, format!("the result cannot be written as JSON: {error}"))
                .with_source(error)
        })?;
        Ok(match value {
            Value::Null => ToolOutput::default(),
            Value::String(text) => ToolOutput::text(text),
            Value::Object(_) => ToolOutput { structured: Some(value.clone()), ..ToolOutput::text(value.to_string()) },
            other => ToolOutput::text(other.to_string()),
        })
    }
}

/// The error type of a tool's function.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be the error of a tool",
    label = "does not convert into `ToolError`",
    note = "return `Result<_, ToolError>`, or implement `From<{Self}> for ToolError`"
)]
pub trait ToolFailure: Into<ToolError> {}

#[diagnostic::do_not_recommend]
impl<E: Into<ToolError>> ToolFailure for E {}

/// A root schema without `$schema` (2020-12 is what is assumed) and without the Rust type's name.
fn root<T: JsonSchema>(mut settings: SchemaSettings) -> Value {
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    if let Some(object) = schema.as_object_mut() {
        object.shift_remove("title");
    }
    schema
}

/// What the code that `#[tool]` writes refers to. Not for use by hand: it changes with the macro.
#[doc(hidden)]
pub mod macro_support {
    pub use std::sync::OnceLock;
    pub use std::time::Duration;

    pub use async_trait::async_trait;
    pub use schemars;
    pub use serde;
    pub use serde_json::{self, Value, json};

    pub use super::{ToolArguments, ToolFailure, ToolReturn};
    pub use crate::catalogue::CallScope;
    pub use crate::catalogue::context::ToolContext;
    pub use crate::catalogue::tool::Tool;
    pub use crate::definition::SandboxProfile;
    pub use crate::definition::{Concurrency, Effects, Mode, ModelPreference, OnOutputMismatch, ToolDefinition};
    pub use crate::error::ToolError;
    pub use crate::identity::session::Session;
    pub use crate::output::outcome::ToolOutput;

    use crate::identity::tool_id::ToolId;

    /// An id whose form the macro has checked.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the macro refuses an illegal id at compile time")]
    pub fn id(text: &str) -> ToolId {
        ToolId::parse(text).expect("a legal id")
    }

    /// The members of a JSON object.
    #[must_use]
    pub fn members(value: Value) -> serde_json::Map<String, Value> {
        match value {
            Value::Object(members) => members,
            _ => serde_json::Map::new(),
        }
    }

    /// Lets the compiler say at the type what an argument needs.
    pub fn is_argument<T: ToolArguments>() {}

    /// What a tool's function failed with.
    pub fn failure<E: ToolFailure>(error: E) -> ToolError {
        error.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    /// Where to look.
    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only its schema is asked for")]
    struct Place {
        /// City or village.
        city: String,
        #[serde(default)]
        radius: u8,
        near: Option<String>,
    }

    #[derive(Serialize, JsonSchema)]
    struct Found {
        n: u8,
    }

    #[test]
    fn parameters_leave_out_the_rust_type_name() {
        let schema = Place::schema();
        assert_eq!(
            schema,
            json!({
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "City or village."},
                    "radius": {"type": "integer", "format": "uint8", "minimum": 0, "maximum": 255, "default": 0},
                    "near": {"type": ["string", "null"]},
                },
                "additionalProperties": false,
                "required": ["city"],
            })
        );
    }

    #[test]
    fn a_result_is_shaped_by_its_json() {
        let check = |output: Result<ToolOutput, ToolError>, expect: ToolOutput| {
            assert_eq!(output.expect("output"), expect);
        };
        check("a".to_owned().into_output(), ToolOutput::text("a"));
        check(().into_output(), ToolOutput::default());
        check(vec![1, 2].into_output(), ToolOutput::text("[1,2]"));
        check(ToolOutput::failure("no").into_output(), ToolOutput::failure("no"));
        let structured = ToolOutput { structured: Some(json!({"n": 3})), ..ToolOutput::text(r#"{"n":3}"#) };
        check(Found { n: 3 }.into_output(), structured);
        assert_eq!(Found::output_schema().expect("schema")["required"], json!(["n"]));
        let without = [String::output_schema(), ToolOutput::output_schema(), Option::<Found>::output_schema()];
        assert_eq!(without, [None, None, None], "only a schema that every result fits");
    }

    #[test]
    fn arguments_too_large_for_their_type_are_invalid() {
        let error = Place::read(json!({"city": "x", "radius": 300})).err().expect("refused");
        assert_eq!(error.kind(), ErrorKind::InvalidParameters);
        assert!(error.message().contains("300"), "{error}");
    }
}
