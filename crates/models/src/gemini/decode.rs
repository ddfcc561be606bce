//! Decodes answers of Gemini.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use toolwright_core::model::{ModelError, StopReason, Usage, WrittenCall};

use super::API;
use super::interactions::Interaction;
use super::partial::{Arguments, PartialArg};
use crate::failure;
use crate::response::answer::{Answer, Assemble, Sink};
use crate::response::wire::{Text, lenient, parse, value};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chunk<'a> {
    #[serde(borrow)]
    candidates: Option<Vec<Candidate<'a>>>,
    #[serde(borrow)]
    prompt_feedback: Option<Feedback<'a>>,
    usage_metadata: Option<Figures>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    /// Of the Interactions API.
    #[serde(borrow, default, rename = "event_type")]
    event_type: Text<'a>,
    /// Of the Interactions API.
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
struct Figures {
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

/// A call whose arguments are still coming.
struct Growing {
    id: String,
    name: String,
    arguments: Arguments,
}

/// An answer under assembly.
#[derive(Default)]
pub(crate) struct Assembly {
    answer: Answer,
    growing: Option<Growing>,
    interaction: Interaction,
    complete: bool,
}

impl Assemble for Assembly {
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        let chunk: Chunk<'_> = parse(API, data)?;
        if chunk.event_type.filled().is_some() || chunk.object.as_str() == "interaction" {
            self.complete |= self.interaction.event(data, &mut self.answer, sink)?;
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
        // We ask for one candidate. Without an index, one is known by its position.
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
            if let Some(reason) = candidate.finish_reason.filled() {
                self.finish(stop_reason(reason), sink);
            }
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn answer(&mut self) -> &mut Answer {
        &mut self.answer
    }

    fn unclosed(&mut self) -> Vec<WrittenCall> {
        // Nothing tells whether a further argument was to come.
        Vec::new()
    }
}

impl Assembly {
    /// Whether the part was understood; one that was not belongs to the server and is kept as it is.
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

    /// A call, or a piece of one: a name begins it, and one without `willContinue` ends it.
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
                self.answer.close_call(WrittenCall { id, name, arguments }, sink);
                return;
            }
            let root: Map<String, Value> =
                call.args.and_then(|args| serde_json::from_str(args.get()).ok()).unwrap_or_default();
            self.growing = Some(Growing { id, name, arguments: Arguments::new(root) });
        }
        let Some(growing) = &mut self.growing else { return };
        call.partial_args.iter().flatten().for_each(|arg| growing.arguments.add(arg));
        if call.will_continue != Some(true) {
            self.close(sink);
        }
    }

    fn close(&mut self, sink: Sink<'_>) {
        if let Some(Growing { id, name, arguments }) = self.growing.take() {
            self.answer.close_call(WrittenCall { id, name, arguments: arguments.into_text() }, sink);
        }
    }

    fn finish(&mut self, reason: StopReason, sink: Sink<'_>) {
        if reason == StopReason::End {
            self.close(sink);
        }
        self.growing = None;
        self.answer.stop = Some(reason);
        self.complete = true;
        self.answer.release(sink);
    }

    fn usage(&mut self, figures: &Figures) {
        let sum = |a: Option<u64>, b: Option<u64>| a.unwrap_or(0).saturating_add(b.unwrap_or(0));
        self.answer.usage = Usage {
            input_tokens: sum(figures.prompt_token_count, figures.tool_use_prompt_token_count),
            output_tokens: sum(figures.candidates_token_count, figures.thoughts_token_count),
            cached_tokens: figures.cached_content_token_count.unwrap_or(0),
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
