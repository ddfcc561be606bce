//! Decodes responses of Ollama.

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use toolwright_core::model::{ModelError, StopReason, Usage, WrittenCall};

use super::API;
use crate::codec::event::{Text, arguments, lenient, parse, value};
use crate::codec::response::{ApiDecoder, ResponseBuilder, Sink};
use crate::failure;

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    message: Option<AnswerMessage<'a>>,
    #[serde(default, deserialize_with = "lenient")]
    done: Option<bool>,
    #[serde(borrow, default)]
    done_reason: Text<'a>,
    #[serde(default, deserialize_with = "lenient")]
    prompt_eval_count: Option<u64>,
    /// Those of them that were cached, if the server reports it.
    #[serde(default, deserialize_with = "lenient")]
    prompt_eval_cached_count: Option<u64>,
    #[serde(default, deserialize_with = "lenient")]
    eval_count: Option<u64>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnswerMessage<'a> {
    #[serde(borrow, default)]
    content: Text<'a>,
    #[serde(borrow, default)]
    thinking: Text<'a>,
    #[serde(borrow)]
    tool_calls: Option<Vec<Call<'a>>>,
}

#[derive(Deserialize)]
struct Call<'a> {
    /// Only newer servers send one.
    #[serde(borrow, default)]
    id: Text<'a>,
    #[serde(borrow)]
    function: Function<'a>,
}

#[derive(Deserialize)]
struct Function<'a> {
    #[serde(borrow, default)]
    name: Text<'a>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

/// A response that is being decoded.
#[derive(Default)]
pub(crate) struct OllamaDecoder {
    answer: ResponseBuilder,
    complete: bool,
}

impl ApiDecoder for OllamaDecoder {
    fn event(&mut self, data: &[u8], sink: Sink<'_>) -> Result<(), ModelError> {
        let line: Line<'_> = parse(API, data)?;
        if let Some(error) = line.error {
            return Err(failure::from_event(API, &value(error)));
        }
        if line.message.is_none() && line.done.is_none() {
            return failure::from_unknown(API, data).map_or(Ok(()), Err);
        }
        if let Some(message) = line.message {
            self.answer.reasoning(message.thinking.as_str(), sink);
            self.answer.text(message.content.as_str(), sink);
            for Call { id, function } in message.tool_calls.into_iter().flatten() {
                let arguments = function.arguments.map_or("{}".into(), arguments).into_owned();
                let call = WrittenCall { id: id.into_string(), name: function.name.into_string(), arguments };
                self.answer.close_call(call, sink);
            }
        }
        if line.done == Some(true) {
            self.complete = true;
            self.answer.stop = line.done_reason.filled().map(stop_reason);
            self.answer.usage = Usage {
                input_tokens: line.prompt_eval_count.unwrap_or(0),
                output_tokens: line.eval_count.unwrap_or(0),
                cached_tokens: line.prompt_eval_cached_count.unwrap_or(0),
                ..Usage::default()
            };
            self.answer.release(sink);
            if !self.answer.shown_reasoning().is_empty() {
                let thinking = json!({"thinking": self.answer.shown_reasoning()});
                self.answer.opaque(thinking);
            }
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.complete
    }

    fn answer(&mut self) -> &mut ResponseBuilder {
        &mut self.answer
    }

    fn unclosed(&mut self) -> Vec<WrittenCall> {
        Vec::new()
    }
}

fn stop_reason(reason: &str) -> StopReason {
    match reason {
        "stop" => StopReason::End,
        "length" => StopReason::MaxTokens,
        other => StopReason::Other(other.to_owned()),
    }
}
