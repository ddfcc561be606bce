//! Decodes responses of Gemini, with arguments that Vertex AI streams value by value.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolwright_core::model::{ModelError, RawToolCall, StopReason, Usage};

use super::API;
use super::interactions::Interaction;
use crate::codec::response::{ApiDecoder, ResponseBuilder, Sink, Text, lenient, parse, value};
use crate::failure;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chunk<'a> {
    #[serde(borrow)]
    candidates: Option<Vec<Candidate<'a>>>,
    #[serde(borrow)]
    prompt_feedback: Option<Feedback<'a>>,
    usage_metadata: Option<UsageMetadata>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    /// From the Interactions API.
    #[serde(borrow, default, rename = "event_type")]
    event_type: Text<'a>,
    /// From the Interactions API.
    #[serde(borrow, default)]
    object: Text<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Feedback<'a> {
    #[serde(borrow, default)]
    block_reason: Text<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct UsageMetadata {
    #[serde(default, deserialize_with = "lenient")]
    prompt_token_count: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    tool_use_prompt_token_count: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    candidates_token_count: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    thoughts_token_count: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    cached_content_token_count: Option<u64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Candidate<'a> {
    #[serde(default, deserialize_with = "lenient")]
    index: Option<u64>,
    #[serde(borrow)]
    content: Option<Content<'a>>,
    #[serde(borrow, default)]
    finish_reason: Text<'a>,
    #[serde(borrow)]
    grounding_metadata: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow)]
    parts: Option<Vec<Part<'a>>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
    #[serde(default, deserialize_with = "lenient")]
    thought: Option<bool>,
    #[serde(borrow, default)]
    thought_signature: Text<'a>,
    #[serde(borrow)]
    function_call: Option<FunctionCall<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FunctionCall<'a> {
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow)]
    args: Option<&'a RawValue>,
    #[serde(borrow)]
    partial_args: Option<Vec<PartialArg<'a>>>,
    #[serde(default, deserialize_with = "lenient")]
    will_continue: Option<bool>,
}

/// A call with arguments still arriving.
struct PartialCall {
    id: String,
    name: String,
    arguments: Arguments,
}

/// A response that is being decoded.
#[derive(Default)]
pub(crate) struct GeminiDecoder {
    answer: ResponseBuilder,
    growing: Option<PartialCall>,
    interaction: Interaction,
}

impl ApiDecoder for GeminiDecoder {
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        let chunk: Chunk<'_> = parse(API, data)?;
        if chunk.event_type.filled().is_some() || chunk.object.as_str() == "interaction" {
            let is_complete = self.interaction.event(data, &mut self.answer, sink)?;
            self.answer.complete |= is_complete;
            return Ok(());
        }
        if let Some(error) = chunk.error {
            return Err(failure::from_event(API, &value(error)));
        }
        if let Some(figures) = &chunk.usage_metadata {
            self.usage(figures);
        } else if chunk.candidates.is_none() && chunk.prompt_feedback.is_none() {
            return failure::from_unknown(API, data).map_or(Ok(()), Err);
        }
        if chunk.prompt_feedback.is_some_and(|feedback| feedback.block_reason.filled().is_some()) {
            self.finish(StopReason::Refusal, sink);
        }
        let mut whole: Option<Value> = None;
        // We request one candidate. Without an index, its position counts.
        for (at, candidate) in (0..).zip(chunk.candidates.into_iter().flatten()) {
            if candidate.index.unwrap_or(at) != 0 {
                continue;
            }
            let parts = candidate.content.and_then(|content| content.parts);
            for (number, part) in parts.into_iter().flatten().enumerate() {
                if !self.part(part, sink) {
                    if whole.is_none() {
                        whole = parse(API, data)?;
                    }
                    let place = format!("/candidates/{at}/content/parts/{number}");
                    let kept = whole.as_mut().and_then(|whole| whole.pointer_mut(&place)).map(Value::take);
                    self.answer.opaque(kept.unwrap_or_default());
                }
            }
            if let Some(grounding) = candidate.grounding_metadata {
                self.answer.native_note(&json!({"groundingMetadata": value(grounding)}));
            }
            if let Some(reason) = candidate.finish_reason.filled() {
                self.finish(stop_reason(reason), sink);
            }
        }
        Ok(())
    }

    fn answer(&mut self) -> &mut ResponseBuilder {
        &mut self.answer
    }
}

impl GeminiDecoder {
    /// Decodes a part. Returns whether it is known; an unknown one is kept unchanged.
    fn part(&mut self, part: Part<'_>, sink: Sink<'_>) -> bool {
        let signature = part.thought_signature.filled();
        if let Some(call) = part.function_call {
            self.call(call, signature, sink);
        } else if let Some(text) = &part.text {
            let (text, thought) = (text.as_str(), part.thought == Some(true));
            if let Some(signature) = signature {
                let mut item = json!({"text": text, "thoughtSignature": signature});
                if thought {
                    item["thought"] = json!(true);
                }
                self.answer.opaque_with(item, if thought { 0 } else { text.len() });
            }
            if thought {
                self.answer.reasoning(text, sink);
            } else {
                self.answer.text(text, sink);
            }
        } else {
            return false;
        }
        true
    }

    /// A call, or a piece of one: a name begins it, and a piece without `willContinue` ends it.
    fn call(&mut self, call: FunctionCall<'_>, signature: Option<&str>, sink: Sink<'_>) {
        if let Some(name) = call.name.filled() {
            self.close(sink);
            let id = call.id.as_str();
            if signature.is_some() || !id.is_empty() {
                let mut head = json!({"functionCall": {}});
                if !id.is_empty() {
                    head["functionCall"]["id"] = json!(id);
                }
                if let Some(signature) = signature {
                    head["thoughtSignature"] = json!(signature);
                }
                self.answer.opaque(head);
            }
            let (id, name) = (id.to_owned(), name.to_owned());
            if call.partial_args.is_none() && call.will_continue != Some(true) {
                let arguments = call.args.map_or("{}", RawValue::get).to_owned();
                self.answer.close_call(RawToolCall { id, name, arguments }, sink);
                return;
            }
            let root: Map<String, Value> =
                call.args.and_then(|args| serde_json::from_str(args.get()).ok()).unwrap_or_default();
            self.growing = Some(PartialCall { id, name, arguments: Arguments::new(root) });
        }
        let Some(growing) = &mut self.growing else { return };
        call.partial_args.iter().flatten().for_each(|arg| growing.arguments.add(arg));
        if call.will_continue != Some(true) {
            self.close(sink);
        }
    }

    fn close(&mut self, sink: Sink<'_>) {
        if let Some(PartialCall { id, name, arguments }) = self.growing.take() {
            self.answer.close_call(RawToolCall { id, name, arguments: arguments.into_text() }, sink);
        }
    }

    fn finish(&mut self, reason: StopReason, sink: Sink<'_>) {
        if reason == StopReason::End {
            self.close(sink);
        }
        self.growing = None;
        self.answer.stop = Some(reason);
        self.answer.complete = true;
        self.answer.release(sink);
    }

    fn usage(&mut self, figures: &UsageMetadata) {
        let sum = |a: Option<u64>, b: Option<u64>| a.unwrap_or(0).saturating_add(b.unwrap_or(0));
        self.answer.usage = Usage {
            input_tokens: sum(figures.prompt_token_count, figures.tool_use_prompt_token_count),
            output_tokens: sum(figures.candidates_token_count, figures.thoughts_token_count),
            cached_tokens: figures.cached_content_token_count.unwrap_or(0),
            reasoning_tokens: figures.thoughts_token_count.unwrap_or(0),
            ..Usage::default()
        };
    }
}

fn stop_reason(reason: &str) -> StopReason {
    match reason {
        "STOP" => StopReason::End,
        "MAX_TOKENS" => StopReason::MaxTokens,
        "SAFETY"
        | "RECITATION"
        | "BLOCKLIST"
        | "PROHIBITED_CONTENT"
        | "SPII"
        | "LANGUAGE"
        | "MODEL_ARMOR"
        | "IMAGE_SAFETY"
        | "IMAGE_PROHIBITED_CONTENT"
        | "IMAGE_RECITATION" => StopReason::Refusal,
        other => StopReason::Other(other.to_owned()),
    }
}

/// The deepest path that is followed.
const MAX_DEPTH: usize = 64;
/// Maximal number of missing list elements of one call: the API does not send empty ones.
const MAX_GAPS: usize = 64;

/// A value, or a piece of a text.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PartialArg<'a> {
    #[serde(borrow, default)]
    json_path: Text<'a>,
    #[serde(borrow)]
    string_value: Option<Text<'a>>,
    #[serde(borrow)]
    number_value: Option<&'a RawValue>,
    #[serde(default, deserialize_with = "lenient")]
    bool_value: Option<bool>,
    #[serde(default, deserialize_with = "lenient")]
    will_continue: Option<bool>,
}

/// Arguments that are being assembled.
#[derive(Debug, Default)]
struct Arguments {
    root: Map<String, Value>,
    /// The path of a text that continues.
    growing: Option<String>,
    /// Elements that were missing.
    gaps: usize,
}

impl Arguments {
    /// Starts with the arguments that arrived complete.
    fn new(root: Map<String, Value>) -> Self {
        Self { root, ..Self::default() }
    }

    /// Adds a value, or continues the growing text. Ignores an invalid path.
    fn add(&mut self, arg: &PartialArg<'_>) {
        let path = arg.json_path.as_str();
        let piece = arg.string_value.as_ref().map(Text::as_str);
        let continues = self.growing.as_deref() == Some(path);
        if let Some(place) = steps(path).and_then(|steps| self.place(&steps)) {
            match (piece, place) {
                (Some(piece), Value::String(text)) if continues => text.push_str(piece),
                (Some(piece), place) => *place = piece.into(),
                (None, place) => {
                    let number = arg.number_value.and_then(|number| serde_json::from_str(number.get()).ok());
                    *place = number.or(arg.bool_value.map(Value::Bool)).unwrap_or_default();
                }
            }
        }
        if arg.will_continue != Some(true) {
            self.growing = None;
        } else if !continues {
            self.growing = Some(path.to_owned());
        }
    }

    /// The arguments as JSON text.
    fn into_text(self) -> String {
        Value::Object(self.root).to_string()
    }

    fn place(&mut self, steps: &[Step<'_>]) -> Option<&mut Value> {
        let (Step::Key(first), rest) = steps.split_first()? else { return None };
        let mut place = self.root.entry(*first).or_insert(Value::Null);
        for step in rest {
            match step {
                Step::Key(key) => {
                    if !place.is_object() {
                        *place = Value::Object(Map::new());
                    }
                    place = place.as_object_mut()?.entry(*key).or_insert(Value::Null);
                }
                Step::Element(at) => {
                    if !place.is_array() {
                        *place = Value::Array(Vec::new());
                    }
                    let list = place.as_array_mut()?;
                    if let Some(gap) = at.checked_sub(list.len()) {
                        if gap > MAX_GAPS - self.gaps {
                            return None;
                        }
                        self.gaps += gap;
                        list.resize(*at + 1, Value::Null);
                    }
                    place = list.get_mut(*at)?;
                }
            }
        }
        Some(place)
    }
}

enum Step<'a> {
    Key(&'a str),
    Element(usize),
}

/// The steps of a path like `$.a.b[0]['c d']`.
fn steps(path: &str) -> Option<Vec<Step<'_>>> {
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() == MAX_DEPTH {
            return None;
        }
        let step;
        (step, rest) = if let Some(inner) = rest.strip_prefix('[') {
            match inner.chars().next().filter(|quote| matches!(quote, '\'' | '"')) {
                Some(quote) => {
                    let (key, after) = inner[1..].split_once(quote)?;
                    (Step::Key(key), after.strip_prefix(']')?)
                }
                None => {
                    let (at, after) = inner.split_once(']')?;
                    (Step::Element(at.parse().ok()?), after)
                }
            }
        } else {
            let key = rest.strip_prefix('.').unwrap_or(rest);
            let end = key.find(['.', '[']).unwrap_or(key.len());
            let (key, after) = key.split_at(end);
            (Step::Key(key).into_named()?, after)
        };
        steps.push(step);
    }
    Some(steps)
}

impl<'a> Step<'a> {
    /// Returns the step if it has a name.
    fn into_named(self) -> Option<Step<'a>> {
        if let Step::Key("") = self { None } else { Some(self) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_at_their_paths() {
        let check = |args: &str, expect: &str| {
            let args: Vec<PartialArg<'_>> = serde_json::from_str(args).expect("arguments");
            let mut arguments = Arguments::default();
            args.iter().for_each(|arg| arguments.add(arg));
            assert_eq!(arguments.into_text(), expect);
        };
        check(
            r#"[{"jsonPath": "$.a", "stringValue": "x", "willContinue": true}, {"jsonPath": "$.a", "stringValue": "y"},
                {"jsonPath": "$.b[0].c", "numberValue": 0.5}, {"jsonPath": "$.b[1].c", "boolValue": true},
                {"jsonPath": "$['d e'][\"f\"]", "nullValue": "NULL_VALUE"}]"#,
            r#"{"a":"xy","b":[{"c":0.5},{"c":true}],"d e":{"f":null}}"#,
        );
        check(r#"[{"jsonPath": "$.a[2]", "numberValue": 1}]"#, r#"{"a":[null,null,1]}"#);
        check(
            r#"[{"jsonPath": "$.a[99999999]", "numberValue": 1}, {"jsonPath": "$"}, {"jsonPath": "$..x"}]"#,
            r#"{"a":[]}"#,
        );
        check(r#"[{"jsonPath": "$.a", "stringValue": "x"}, {"jsonPath": "$.a", "stringValue": "y"}]"#, r#"{"a":"y"}"#);
    }

    #[test]
    fn a_short_path_makes_no_large_value() {
        let path = format!("$.a{}", "[64]".repeat(MAX_DEPTH - 1));
        let args = format!(r#"[{{"jsonPath": "{path}", "numberValue": 1}}, {{"jsonPath": "$.b[60]"}}]"#);
        let args: Vec<PartialArg<'_>> = serde_json::from_str(&args).expect("arguments");
        let mut arguments = Arguments::default();
        args.iter().for_each(|arg| arguments.add(arg));
        assert!(arguments.into_text().len() < 1000);
    }
}
