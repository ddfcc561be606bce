//! One request to a model: an output that fits a schema, tool calls, or both. Nothing runs.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde_json::Value;
use toolwright_agent::{PlannedCall, offer, read_calls};
use toolwright_core::call::{Caller, Rejection};
use toolwright_core::catalogue::declared::DeclaredTools;
use toolwright_core::catalogue::{Provider, Snapshot};
use toolwright_core::content::ContentBlock;
use toolwright_core::model::{IgnoreModelEvents, Message, ModelRequest, ModelResponse, OutputFormat, Usage};
use toolwright_core::schema::CompiledSchema;
use toolwright_core::{Entry, Profile};
use toolwright_runtime::RunContext;
use toolwright_textcalls::composed::ComposedTools;

use super::Toolwright;
use crate::error::Error;

/// The settings of a request.
#[derive(Debug, Clone, Default)]
pub struct RequestConfig {
    /// The model, `provider/model`.
    pub model: String,
    /// The system prompt.
    pub system: String,
    /// Globs on the tools of the catalogue that it may call. Default: none.
    pub tools: Vec<String>,
    /// The most tokens of its answer.
    pub max_tokens: Option<u32>,
}

/// A part of a request's context.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestContext {
    /// A text for the model.
    Text(String),
    /// A tool that the model may call, declared only by its schema.
    Tool {
        /// Its name, possibly `namespace:name`.
        name: String,
        /// Its JSON Schema.
        schema: Value,
    },
}

/// A model's answer to a request.
#[derive(Debug, Clone)]
pub struct RequestAnswer<T> {
    /// The output; `None` while calls are still needed to find it.
    pub output: Option<T>,
    /// The calls in written order, each valid or rejected with the reason.
    pub calls: Vec<Result<PlannedCall, Box<Rejection>>>,
    /// The usage of the model.
    pub usage: Usage,
}

impl Toolwright {
    /// Asks a model once for an output that fits `schema`, for calls, or for both, through one combined schema. If the
    /// answer has neither, or the output does not fit, the model is asked once more.
    ///
    /// # Errors
    /// [`Error::Usage`] for an invalid schema, [`Error::Model`] if the model cannot be asked, [`Error::Answer`] if its
    /// second answer is unusable too.
    pub async fn request<T: DeserializeOwned>(
        self: &Arc<Self>,
        config: &RequestConfig,
        schema: Value,
        context: Vec<RequestContext>,
    ) -> Result<RequestAnswer<T>, Error> {
        let compiled =
            CompiledSchema::compile(&schema).map_err(|error| Error::Usage(format!("the output schema: {error}")))?;
        let (snapshot, words) = self.request_tools(config, context)?;
        let policy = Arc::new(self.config().policy(None, Profile::Ask));
        let run = RunContext::new(self.call_session(), Arc::new(snapshot), policy, self.approver());
        let caller = Caller::of(&run.session.principal);
        let model_request = ModelRequest {
            system: config.system.clone(),
            messages: vec![Message::User { content: words }],
            output: Some(OutputFormat { name: "answer".into(), schema: Some(schema) }),
            max_tokens: config.max_tokens,
            ..ModelRequest::default()
        };
        let model_request = offer(model_request, &run.snapshot, caller.principal);
        let composed = ComposedTools::of(&model_request);
        let mut sent = composed.request(&model_request);
        let (mut usage, mut is_last) = (Usage::default(), false);
        loop {
            let answer = self.executor().ask_model(&config.model, &sent, None, &run).await?;
            usage.add(answer.usage);
            let written = answer.text.clone();
            match read(composed.finish(Ok(answer), &IgnoreModelEvents)?, &compiled) {
                Ok((output, response)) => {
                    return Ok(RequestAnswer {
                        output,
                        calls: read_calls(response, &run.snapshot, caller).calls,
                        usage,
                    });
                }
                Err(why) if is_last => return Err(Error::Answer(why)),
                Err(why) => {
                    if !written.trim().is_empty() {
                        sent.messages.push(Message::Assistant { text: written, calls: Vec::new(), opaque: Vec::new() });
                    }
                    sent.messages.push(Message::user(format!(
                        "[toolwright notice] Your answer cannot be used: {why}. Answer once more with one JSON object: the final \
                         result in `output`, or the tools to call in `calls`."
                    )));
                    is_last = true;
                }
            }
        }
    }

    /// Returns the tools that a request may call, and the texts of its context.
    fn request_tools(
        &self,
        config: &RequestConfig,
        context: Vec<RequestContext>,
    ) -> Result<(Snapshot, Vec<ContentBlock>), Error> {
        let (mut words, mut declared) = (Vec::new(), Vec::new());
        for piece in context {
            match piece {
                RequestContext::Text(text) => words.push(ContentBlock::text(text)),
                RequestContext::Tool { name, schema } => declared.push((name, schema)),
            }
        }
        if words.is_empty() {
            return Err(Error::Usage("a request needs a text: add RequestContext::Text to its context".into()));
        }
        let declared =
            Arc::new(DeclaredTools::new("request", declared.iter().map(|(name, schema)| (name.as_str(), schema))));
        if let Some(issue) = declared.issues().first() {
            return Err(Error::Usage(issue.clone()));
        }
        let may_call = |entry: &Entry| entry.is_named_by(&config.tools);
        let chosen = self.catalogue().snapshot().only(may_call, "not among the tools of this request");
        let tools = declared.tools().to_vec();
        Ok((chosen.with(&(declared as Arc<dyn Provider>), &tools), words))
    }
}

/// Reads the output of an answer, and the answer for its calls.
fn read<T: DeserializeOwned>(
    response: ModelResponse,
    schema: &CompiledSchema,
) -> Result<(Option<T>, ModelResponse), String> {
    if response.text.trim().is_empty() {
        return if response.calls.is_empty() {
            Err("it has neither an output nor a call".into())
        } else {
            Ok((None, response))
        };
    }
    let value: Value =
        serde_json::from_str(&response.text).map_err(|_| "its output is not JSON of the schema".to_owned())?;
    if let Some(violation) = schema.violations(&value).first() {
        return Err(format!("its output does not fit: {violation}"));
    }
    let output = serde_json::from_value(value).map_err(|error| format!("its output does not fit: {error}"))?;
    Ok((Some(output), response))
}
