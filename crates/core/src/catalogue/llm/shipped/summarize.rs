//! `llm:summarize`.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{SMALL, closed, count, definition, escape_texts, material};
use crate::definition::llm::{LlmDefinition, Variant};
use crate::llm::prompt::{LlmHooks, PrepareHook, TokensHook, WarningHook};

/// Tokens of an English word, on average.
const TOKENS_A_WORD: f64 = 1.33;
/// Factor by which a summary may exceed its requested length.
const LEEWAY: f64 = 1.15;
/// Tokens of an answer without a requested length.
const UNLIMITED: u32 = 800;

const STRICT: &str = concat!(
    "You write summaries for readers who will never see the text. ",
    material!(),
    "

Say what such a reader must know{% if words is not none %}, in {{ words }} words at most{% endif %}. Names, numbers, \
     dates, decisions and their reasons come before background. Everything you say stands in the text: add no \
     judgement, no guess, no knowledge of your own. Keep the text's own certainty: what it calls possible stays \
     possible, and who claims a thing is named with it. Where the text contradicts itself, say so. Write in the \
     language of the text, in plain sentences, and do not speak of \"the text\" or \"the author\" unless that is what \
     it is about.{% if focus is not none %}

The reader asks above all about what is between the focus marks: that comes first and in more detail; the rest is \
     kept to what is needed to follow it. If the text says nothing of it, the summary says that in its first \
     sentence.{% endif %}

key_points: three to seven statements, fewer for a short text, the weightiest first. Each stands alone, without \
     \"it\" or \"this\" that points elsewhere, and none repeats another."
);

const BALANCED: &str = concat!(
    "You write summaries that read well. ",
    material!(),
    "

Retell the text{% if words is not none %} in about {{ words }} words and not more{% endif %}, in the order in which \
     it makes its argument, so that its reasons and its turns stay recognisable. You may join, smooth and put in your \
     own words; you may not add facts or change how sure the text is. Examples and asides go first when there is no \
     room, what everything else hangs on goes last. Write in the language of the text.{% if focus is not none %}

Give what is between the focus marks more room than its share of the text. If the text says nothing of it, say \
     so.{% endif %}

key_points: three to seven statements, in the order of the text, each understandable alone."
);

const SMALL_STRICT: &str = concat!(
    material!(),
    "

Summarize the text.
- Use only what the text says. Add nothing.
- Keep names, numbers, dates and decisions.{% if words is not none %}
- Use {{ words }} words at most.{% endif %}{% if focus is not none %}
- Put first what the text says about the focus. If it says nothing about it, say that.{% endif %}
- Write in the language of the text.
- key_points: 3 to 7 short statements. Each is a full sentence."
);

const SMALL_BALANCED: &str = concat!(
    material!(),
    "

Retell the text briefly.
- Keep the order of the text and its reasons.
- Use only what the text says.{% if words is not none %}
- Use about {{ words }} words.{% endif %}{% if focus is not none %}
- Say more about the focus than about the rest.{% endif %}
- Write in the language of the text.
- key_points: 3 to 7 short statements, in the order of the text."
);

const USER: &str =
    "{% if focus is not none %}<focus>{{ focus }}</focus>\n{% endif %}<content>\n{{ content }}\n</content>";

pub(super) fn summarize() -> (LlmDefinition, LlmHooks) {
    let parameters = json!({
        "type": "object",
        "properties": {
            "content": {"type": "string", "minLength": 1, "description": "The text to summarize."},
            "max_length": {
                "type": "integer", "minimum": 20,
                "description": "Words of the summary at most. Default: as many as the text needs.",
            },
            "max_tokens": {
                "type": "integer", "minimum": 20,
                "description": "Tokens that the model's whole answer may have. Default: by max_length.",
            },
            "focus": {"type": "string", "description": "What the reader asks about above all."},
        },
        "required": ["content"],
        "additionalProperties": false,
    });
    let output = closed(json!({
        "summary": {"type": "string", "description": "The summary."},
        "key_points": {"type": "array", "items": {"type": "string"}, "description": "Its main statements."},
    }));
    let variant = |id: &str, mode: &str, system: &str| Variant {
        id: id.to_owned(),
        mode: Some(mode.to_owned()),
        system: Some(system.to_owned()),
        ..Variant::default()
    };
    let of_small = |variant: Variant| Variant { provider_match: SMALL.map(str::to_owned).to_vec(), ..variant };
    let variants = vec![
        Variant { is_default: true, ..variant("strict", "strict", STRICT) },
        of_small(variant("strict-small", "strict", SMALL_STRICT)),
        variant("balanced", "balanced", BALANCED),
        of_small(variant("balanced-small", "balanced", SMALL_BALANCED)),
    ];
    let mut definition = definition(
        "summarize",
        "Summarizes a text: what a reader must know who will not see it, and its main statements one by one. For texts \
         of any kind and language; nothing is added to what the text says.",
        parameters,
        output,
    );
    definition.title = Some("Summarize".to_owned());
    definition.recommended_threshold = 95;
    definition.user = USER.to_owned();
    definition.system = STRICT.to_owned();
    definition.variants = variants;
    definition.model_preference.temperature = Some(0.2);
    definition.example = Some(json!({
        "summary": "The council moved the market to Friday from 3 May on, because the square is closed on Saturdays.",
        "key_points": ["The market is on Fridays from 3 May on.", "The square is closed on Saturdays."],
    }));
    let prepare: PrepareHook = Arc::new(|values| {
        let mut values = escape_texts(values, &["content", "focus"]);
        let words = values.get("max_length").cloned().unwrap_or_default();
        values.insert("words".to_owned(), words);
        let focus = values.get("focus").filter(|focus| focus.as_str().is_some_and(|text| !text.trim().is_empty()));
        let focus = focus.cloned().unwrap_or_default();
        values.insert("focus".to_owned(), focus);
        Ok(values)
    });
    let max_tokens: TokensHook = Arc::new(|arguments, _| {
        let max_tokens = count(arguments.get("max_tokens"));
        Some(max_tokens.unwrap_or_else(|| count(arguments.get("max_length")).map_or(UNLIMITED, limit)))
    });
    let warning: WarningHook = Arc::new(too_long);
    let hooks = LlmHooks {
        prepare: Some(prepare),
        max_tokens: Some(max_tokens),
        warning: Some(warning),
        ..LlmHooks::default()
    };
    (definition, hooks)
}

/// Models count badly: a summary that exceeds its length by more than the leeway gets a warning.
fn too_long(value: &Value, arguments: &Map<String, Value>) -> Option<String> {
    let most = count(arguments.get("max_length"))?;
    let words = value.get("summary").and_then(Value::as_str)?.split_whitespace().count();
    (words as f64 > f64::from(most) * LEEWAY)
        .then(|| format!("the summary has {words} words, and max_length is {most}"))
}

/// Tokens for a summary of so many words and its main statements.
fn limit(words: u32) -> u32 {
    let tokens = (f64::from(words) * TOKENS_A_WORD).ceil();
    // The cast saturates.
    ((tokens * 1.6).ceil() as u32).saturating_add(400)
}
