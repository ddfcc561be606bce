//! `llm:clarify`.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{closed, definition, inert_in, large, material, numbered, small, texts};
use crate::llm::definition::{LlmDefinition, MaxTokens};
use crate::llm::prompt::{LlmHooks, OutputHook, PrepareHook};

const LARGE: &str = concat!(
    "You check whether a prompt says all that is required before work on it begins. ",
    material!(),
    "

The requirements are numbered from 0. Go through them one by one. A requirement is met where the prompt states it, or \
     where it follows from what the prompt states without guessing. That most people would mean it so is a guess. What \
     is vague (\"soon\", \"some\", \"the usual\") does not meet a requirement that asks for a certain value.

missing: the numbers of the requirements that are not met. clarification_questions: one question for each of them, in \
     the same order, in the language of the prompt. Each asks for one thing, can be answered in a line, and names \
     likely choices where the prompt suggests some. No question about anything that is met, or not required."
);

const LITTLE: &str = concat!(
    material!(),
    "

Check which requirements the prompt does not meet.
- The requirements are numbered from 0.
- A requirement is met only if the prompt says it. Do not guess.
- missing: the numbers of those that are not met. An empty list if all are met.
- clarification_questions: one short question for each number in missing, in the same order."
);

pub(super) fn tool() -> (LlmDefinition, LlmHooks) {
    let parameters = json!({
        "type": "object",
        "properties": {
            "prompt": {"type": "string", "minLength": 1, "description": "What somebody asks for."},
            "requirements": {
                "type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1,
                "description": "What it must say.",
            },
        },
        "required": ["prompt", "requirements"],
        "additionalProperties": false,
    });
    let output = closed(json!({
        "satisfied": {"type": "boolean", "description": "Whether nothing is missing."},
        "missing_requirements": {
            "type": "array", "items": {"type": "string"}, "description": "The requirements that are not met.",
        },
        "clarification_questions": {
            "type": "array", "items": {"type": "string"}, "description": "One question for each of them.",
        },
    }));
    let asked = closed(json!({
        "missing": {"type": "array", "items": {"type": "integer", "minimum": 0}},
        "clarification_questions": {"type": "array", "items": {"type": "string"}},
    }));
    let mut definition = definition(
        "clarify",
        "Says which of several requirements a prompt does not meet, and what to ask to fill the gaps.",
        parameters,
        output,
    );
    definition.title = Some("Clarify".to_owned());
    definition.recommended_threshold = 90;
    definition.user = "<prompt>\n{{ prompt }}\n</prompt>\n<options>\n{{ options }}\n</options>".to_owned();
    definition.system = LARGE.to_owned();
    definition.variants = vec![large(LARGE), small(LITTLE)];
    definition.max_tokens = Some(MaxTokens { base: 600, per_input_token: 0.0, max: 600 });
    let prepare: PrepareHook = Arc::new(|values| {
        let mut values = inert_in(values, &["prompt"]);
        let options = numbered(values.get("requirements"), "options");
        values.insert("options".to_owned(), options.into());
        Ok(values)
    });
    let output: OutputHook = Arc::new(|value, arguments| {
        let requirements = texts(arguments.get("requirements"));
        let numbers = value.get("missing").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_u64);
        let mut missing: Vec<&str> = Vec::new();
        for number in numbers {
            let index = usize::try_from(number).ok().filter(|index| *index < requirements.len());
            let requirement = index.map(|index| requirements[index]).ok_or_else(|| {
                format!("there is no requirement {number}: there are {}, numbered from 0", requirements.len())
            })?;
            if !missing.contains(&requirement) {
                missing.push(requirement);
            }
        }
        let mut questions = texts(value.get("clarification_questions"));
        if questions.len() < missing.len() {
            return Err(format!(
                "{} requirements are missing, and there are {} questions",
                missing.len(),
                questions.len()
            ));
        }
        questions.truncate(missing.len());
        Ok(json!({
            "satisfied": missing.is_empty(), "missing_requirements": missing, "clarification_questions": questions,
        }))
    });
    let hooks = LlmHooks {
        prepare: Some(prepare),
        output_schema: Some(Arc::new(move |_| Some(asked.clone()))),
        output: Some(output),
        ..LlmHooks::default()
    };
    (definition, hooks)
}
