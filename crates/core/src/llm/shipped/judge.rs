//! `llm:classify`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{closed, definition, inert_in, large, material, numbered, small, texts};
use crate::llm::definition::{LlmDefinition, MaxTokens};
use crate::llm::prompt::{LlmHooks, OutputHook, PrepareHook};

const LARGE: &str = concat!(
    "You choose, out of a list of options, the one that a request asks for. ",
    material!(),
    "

The options are numbered from 0. Choose the option that does what the request wants, which need not be the one that \
     shares words with it. If two would do, choose the more specific; if none does it fully, the one that comes \
     nearest. The order of the options means nothing. Always choose one.

reasoning: one sentence that names what in the request decides. selected_index: the number of the option. \
     confidence: how many of a hundred requests like this one you would expect to get right this way, divided by a \
     hundred: near 1 where the request says it outright, below 0.5 where you had to guess."
);

const LITTLE: &str = concat!(
    material!(),
    "

Choose the option that does what the request wants.
- The options are numbered from 0. selected_index is the number of your option.
- Choose exactly one. If two fit, take the more specific one.
- reasoning: one short sentence.
- confidence: from 0 to 1. Write 0.9 if you are sure, 0.4 if you guess."
);

pub(super) fn tool() -> (LlmDefinition, LlmHooks) {
    let parameters = json!({
        "type": "object",
        "properties": {
            "request": {"type": "string", "minLength": 1, "description": "What is to be classified."},
            "suggestions": {
                "type": "array", "items": {"type": "string"}, "minItems": 1,
                "description": "The options, of which one is chosen.",
            },
        },
        "required": ["request", "suggestions"],
        "additionalProperties": false,
    });
    let output = closed(json!({
        "reasoning": {"type": "string", "description": "Why this one."},
        "selected_index": {"type": "integer", "minimum": 0, "description": "The option's place in the list, from 0."},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1, "description": "How sure that is, 0 to 1."},
    }));
    let mut definition = definition(
        "classify",
        "Chooses the one of several options that a request asks for, and says how sure the choice is.",
        parameters,
        output,
    );
    definition.title = Some("Classify".to_owned());
    definition.recommended_threshold = 90;
    definition.user = "<request>\n{{ request }}\n</request>\n<options>\n{{ options }}\n</options>".to_owned();
    definition.system = LARGE.to_owned();
    definition.variants = vec![large(LARGE), small(LITTLE)];
    definition.max_tokens = Some(MaxTokens { base: 300, per_input_token: 0.0, max: 300 });
    definition.example =
        Some(json!({"reasoning": "It asks to get money back.", "selected_index": 1, "confidence": 0.93}));
    let prepare: PrepareHook = Arc::new(|values| {
        let mut values = inert_in(values, &["request"]);
        let options = numbered(values.get("suggestions"), "options");
        values.insert("options".to_owned(), options.into());
        Ok(values)
    });
    let output: OutputHook = Arc::new(|value, arguments| {
        let options = texts(arguments.get("suggestions")).len();
        match value.get("selected_index").and_then(Value::as_u64).and_then(|index| usize::try_from(index).ok()) {
            Some(index) if index < options => Ok(value),
            index => Err(format!("selected_index is {index:?}, and there are {options} options, numbered from 0")),
        }
    });
    (definition, LlmHooks { prepare: Some(prepare), output: Some(output), ..LlmHooks::default() })
}
