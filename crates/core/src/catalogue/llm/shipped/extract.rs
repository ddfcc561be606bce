//! Tools that extract data from a text: `llm:structure` and `llm:fact-extract`.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{closed, count, definition, escape_texts, large, material, small};
use crate::definition::llm::{LlmDefinition, MaxTokens};
use crate::error::{ErrorKind, ToolError};
use crate::llm::prompt::{LlmHooks, OutputHook, PrepareHook, SchemaHook, TokensHook};
use crate::schema::CompiledSchema;

const STRUCTURE_LARGE: &str = concat!(
    "You fill a form, given as a JSON Schema, from a request. ",
    material!(),
    "

Fill in what the request says and nothing else. Turn what it says into the type and unit that the schema wants (dates, \
     numbers, one of the listed values); the meaning stays. A property of which the request says nothing is left out \
     where the schema lets it be; a required one is null where null is allowed, else the emptiest value that the schema \
     permits. Names of people, places and products stay as they are written. Where the request says a thing twice and \
     differently, the later counts."
);

const STRUCTURE_LITTLE: &str = concat!(
    material!(),
    "

Write one JSON object that fits the schema, from the request.
- Use only what the request says. Invent nothing.
- Leave out optional properties of which it says nothing.
- Use the types of the schema: numbers without quotes, dates in the form it asks for.
- Required properties are always there."
);

pub(super) fn structure() -> (LlmDefinition, LlmHooks) {
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
    definition.system = STRUCTURE_LARGE.to_owned();
    definition.variants = vec![large(STRUCTURE_LARGE), small(STRUCTURE_LITTLE)];
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
        Ok(escape_texts(values, &["request"]))
    });
    let output_schema: SchemaHook = Arc::new(|arguments| arguments.get("schema").cloned());
    let hooks =
        LlmHooks { prepare: Some(prepare), output_schema: Some(output_schema), asks_again: 1, ..LlmHooks::default() };
    (definition, hooks)
}

/// Default number of facts.
const USUAL: u32 = 20;
/// Tokens of a fact, of the surrounding text, and the maximum.
const FACT: u32 = 80;
const AROUND: u32 = 200;
const MOST: u32 = 4096;
/// Categories of facts.
const CATEGORIES: [&str; 9] =
    ["person", "organisation", "place", "time", "quantity", "decision", "preference", "task", "other"];

const FACT_EXTRACT_LARGE: &str = concat!(
    "You take facts out of a text, for a memory that will be read without it. ",
    material!(),
    "

A fact is one statement that the text makes, small enough that it is either right or wrong as a whole, and complete \
     enough to be understood alone: write names in place of \"she\", dates in place of \"tomorrow\" where the text tells \
     them. Take no more than {{ max_facts }}, the ones that somebody would look up later first: decisions, figures, \
     names, dates, wishes, duties. Leave out small talk, opinions that nobody holds to, and all that you would have to \
     infer.

key: what the fact is about, in snake_case, the same key for the same thing. value: what the text says of it. \
     category: one of person, organisation, place, time, quantity, decision, preference, task, other. quote: the few \
     words of the text that say it, copied letter by letter; empty where no short passage does. A text without facts \
     has an empty list."
);

const FACT_EXTRACT_LITTLE: &str = concat!(
    material!(),
    "

List the facts that the text states. At most {{ max_facts }}.
- One statement each. Use names, not \"he\" or \"it\".
- Only what the text says. Do not guess.
- key: short, in snake_case. value: what the text says.
- category: person, organisation, place, time, quantity, decision, preference, task or other.
- quote: the words of the text, copied exactly. Leave it empty if you are not sure.
- No facts in the text: an empty list."
);

pub(super) fn fact_extract() -> (LlmDefinition, LlmHooks) {
    let parameters = json!({
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 1, "description": "The text."},
            "max_facts": {"type": "integer", "minimum": 1, "default": USUAL, "description": "Facts at most."},
        },
        "required": ["text"],
        "additionalProperties": false,
    });
    let facts = |quote: &str| {
        let fact = closed(json!({
            "key": {"type": "string", "description": "What it is about, in snake_case."},
            "value": {"type": "string", "description": "What is said of it."},
            "category": {"type": "string", "enum": CATEGORIES},
            "quote": {"type": "string", "description": quote},
        }));
        closed(json!({"facts": {"type": "array", "items": fact}}))
    };
    // The model writes every field, even if empty, because strict modes allow no optional ones. Results omit empty
    // fields.
    let asked_schema = facts("The words of the text; empty where no short passage says it.");
    let mut output = facts("The words of the text.");
    output["properties"]["facts"]["items"]["required"] = json!(["key", "value", "category"]);
    let mut definition = definition(
        "fact-extract",
        "Takes the facts out of a text, one by one, each with a key, a category and the words that say it.",
        parameters,
        output,
    );
    definition.title = Some("Extract facts".to_owned());
    definition.recommended_threshold = 90;
    definition.user = "<text>\n{{ text }}\n</text>".to_owned();
    definition.system = FACT_EXTRACT_LARGE.to_owned();
    definition.variants = vec![large(FACT_EXTRACT_LARGE), small(FACT_EXTRACT_LITTLE)];
    definition.example = Some(json!({"facts": [{
        "key": "delivery_date", "value": "The pumps are delivered on 3 May 2026.", "category": "time",
        "quote": "we'll have the pumps with you on 3 May",
    }]}));
    let prepare: PrepareHook = Arc::new(|values| Ok(escape_texts(values, &["text"])));
    let max_tokens: TokensHook = Arc::new(|arguments, _| {
        let facts = count(arguments.get("max_facts")).unwrap_or(USUAL);
        Some(FACT.saturating_mul(facts).saturating_add(AROUND).min(MOST))
    });
    let output: OutputHook = Arc::new(|value, arguments| Ok(clean_facts(&value, arguments)));
    let hooks = LlmHooks {
        prepare: Some(prepare),
        max_tokens: Some(max_tokens),
        asked_schema: Some(asked_schema),
        cut_list: Some("facts"),
        output: Some(output),
        ..LlmHooks::default()
    };
    (definition, hooks)
}

/// Returns the distinct facts, as many as requested, without quotes that are not in the text.
fn clean_facts(value: &Value, arguments: &Map<String, Value>) -> Value {
    let text = folded(arguments.get("text").and_then(Value::as_str).unwrap_or_default());
    let most = count(arguments.get("max_facts")).unwrap_or(USUAL) as usize;
    let mut keys_and_values = HashSet::new();
    let mut facts = Vec::new();
    for fact in value.get("facts").and_then(Value::as_array).into_iter().flatten() {
        let field_text = |name: &str| folded(fact.get(name).and_then(Value::as_str).unwrap_or_default());
        if facts.len() == most || !keys_and_values.insert((field_text("key"), field_text("value"))) {
            continue;
        }
        let mut fact = fact.clone();
        let quote = field_text("quote");
        if let Some(members) = fact.as_object_mut()
            && (quote.is_empty() || !text.contains(&quote))
        {
            members.shift_remove("quote");
        }
        facts.push(fact);
    }
    json!({"facts": facts})
}

/// A text without regard to white space.
fn folded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
