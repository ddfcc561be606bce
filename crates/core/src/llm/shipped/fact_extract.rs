//! `llm:fact-extract`.

use std::collections::HashSet;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{closed, count, definition, inert_in, large, material, small};
use crate::llm::definition::LlmDefinition;
use crate::llm::prompt::{LlmHooks, OutputHook, PrepareHook, TokensHook};

/// Facts where nobody says how many.
const USUAL: u32 = 20;
/// Tokens of a fact, of what is around them, and at most.
const FACT: u32 = 80;
const AROUND: u32 = 200;
const MOST: u32 = 4096;
/// What a fact is about.
const CATEGORIES: [&str; 9] =
    ["person", "organisation", "place", "time", "quantity", "decision", "preference", "task", "other"];

const LARGE: &str = concat!(
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

const LITTLE: &str = concat!(
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

pub(super) fn tool() -> (LlmDefinition, LlmHooks) {
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
    // A model writes each, if empty: strict modes know no property that may be left out. A result has none that is empty.
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
    definition.system = LARGE.to_owned();
    definition.variants = vec![large(LARGE), small(LITTLE)];
    definition.example = Some(json!({"facts": [{
        "key": "delivery_date", "value": "The pumps are delivered on 3 May 2026.", "category": "time",
        "quote": "we'll have the pumps with you on 3 May",
    }]}));
    let prepare: PrepareHook = Arc::new(|values| Ok(inert_in(values, &["text"])));
    let max_tokens: TokensHook = Arc::new(|arguments, _| {
        let facts = count(arguments.get("max_facts")).unwrap_or(USUAL);
        Some(FACT.saturating_mul(facts).saturating_add(AROUND).min(MOST))
    });
    let output: OutputHook = Arc::new(|value, arguments| Ok(sound(&value, arguments)));
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

/// The facts, each once, as many as were asked for, without quotes that are none.
fn sound(value: &Value, arguments: &Map<String, Value>) -> Value {
    let text = folded(arguments.get("text").and_then(Value::as_str).unwrap_or_default());
    let most = count(arguments.get("max_facts")).unwrap_or(USUAL) as usize;
    let mut seen = HashSet::new();
    let mut facts = Vec::new();
    for fact in value.get("facts").and_then(Value::as_array).into_iter().flatten() {
        let said = |name: &str| folded(fact.get(name).and_then(Value::as_str).unwrap_or_default());
        if facts.len() == most || !seen.insert((said("key"), said("value"))) {
            continue;
        }
        let mut fact = fact.clone();
        let quote = said("quote");
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
