//! `llm:structure`.

use std::sync::Arc;

use serde_json::json;

use super::{definition, inert_in, large, material, small};
use crate::error::{ErrorKind, ToolError};
use crate::llm::definition::{LlmDefinition, MaxTokens};
use crate::llm::prompt::{LlmHooks, PrepareHook, SchemaHook};
use crate::schema::CompiledSchema;

const LARGE: &str = concat!(
    "You fill a form, given as a JSON Schema, from a request. ",
    material!(),
    "

Fill in what the request says and nothing else. Turn what it says into the type and unit that the schema wants (dates, \
     numbers, one of the listed values); the meaning stays. A property of which the request says nothing is left out \
     where the schema lets it be; a required one is null where null is allowed, else the emptiest value that the schema \
     permits. Names of people, places and products stay as they are written. Where the request says a thing twice and \
     differently, the later counts."
);

const LITTLE: &str = concat!(
    material!(),
    "

Write one JSON object that fits the schema, from the request.
- Use only what the request says. Invent nothing.
- Leave out optional properties of which it says nothing.
- Use the types of the schema: numbers without quotes, dates in the form it asks for.
- Required properties are always there."
);

pub(super) fn tool() -> (LlmDefinition, LlmHooks) {
    let parameters = json!({
        "type": "object",
        "properties": {
            "request": {"type": "string", "minLength": 1, "description": "What is to be put into the form."},
            "schema": {
                "type": "object",
                "description": "JSON Schema of the result, with `type: object`. References stay inside it.",
            },
        },
        "required": ["request", "schema"],
        "additionalProperties": false,
    });
    let mut definition = definition(
        "structure",
        "Makes a JSON object of a given schema out of a text. The result is checked against the schema.",
        parameters,
        json!({"type": "object"}),
    );
    definition.title = Some("Structure".to_owned());
    definition.recommended_threshold = 95;
    definition.user = "<request>\n{{ request }}\n</request>".to_owned();
    definition.system = LARGE.to_owned();
    definition.variants = vec![large(LARGE), small(LITTLE)];
    definition.max_tokens = Some(MaxTokens { base: 400, per_input_token: 1.0, max: 8192 });
    let prepare: PrepareHook = Arc::new(|values| {
        let refused = |why: String| Err(ToolError::new(ErrorKind::InvalidParameters, format!("/schema: {why}")));
        let schema = values.get("schema").cloned().unwrap_or_default();
        if schema.get("type") != Some(&json!("object")) {
            return refused("its `type` is not `object`: the result is an object".to_owned());
        }
        if let Err(error) = CompiledSchema::compile(&schema) {
            return refused(error.to_string());
        }
        Ok(inert_in(values, &["request"]))
    });
    let output_schema: SchemaHook = Arc::new(|arguments| arguments.get("schema").cloned());
    let hooks =
        LlmHooks { prepare: Some(prepare), output_schema: Some(output_schema), asks_again: 1, ..LlmHooks::default() };
    (definition, hooks)
}
