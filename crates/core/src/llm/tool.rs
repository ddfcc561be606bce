//! Definitions as tools.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::answer::{self, Wanted};
use super::definition::{DefineError, LlmDefinition, OutputKind, TemplateDefinition};
use super::prompt::{For, LlmHooks, Prompted, prompt};
use super::template::{TemplateError, evaluate, render};
use crate::catalogue::{Entry, PromptSize};
use crate::context::{TokenCounter, ToolContext};
use crate::definition::ToolDefinition;
use crate::error::{ErrorKind, ToolError};
use crate::event::Event;
use crate::model::{
    IgnoreModelEvents, Message, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ModelSettings, StopReason,
};
use crate::outcome::ToolOutput;
use crate::schema::CompiledSchema;
use crate::tool::Tool;

/// Code of the warning about an odd result.
const ODD: &str = "llm_tool_result";
/// Violations that a model is told when it is asked once more.
const TOLD: usize = 3;

/// Makes a tool that a model answers.
///
/// # Errors
/// [`DefineError`] for a definition that makes none.
pub fn define_llm_tool(definition: LlmDefinition, hooks: LlmHooks) -> Result<Arc<dyn Tool>, DefineError> {
    LlmTool::new(definition, hooks).map(|tool| Arc::new(tool) as _)
}

/// Makes a tool that fills its arguments into a text.
///
/// # Errors
/// [`DefineError`] for a definition that makes none.
pub fn define_template_tool(definition: TemplateDefinition) -> Result<Arc<dyn Tool>, DefineError> {
    TemplateTool::new(definition).map(|tool| Arc::new(tool) as _)
}

/// What an LLM-backed tool was made of; `None` for other tools.
#[must_use]
pub fn llm_definition(entry: &Entry) -> Option<LlmDefinition> {
    entry.provider.llm(entry.id()).map(|definition| (*definition).clone())
}

/// A tool that a model answers. The executor chooses the model and runs the attempts; a run of this is one of them.
#[derive(Debug, Clone)]
pub struct LlmTool {
    definition: Arc<LlmDefinition>,
    hooks: LlmHooks,
}

impl LlmTool {
    /// Makes the tool.
    ///
    /// # Errors
    /// [`DefineError`] for a definition that makes none.
    pub fn new(definition: LlmDefinition, hooks: LlmHooks) -> Result<Self, DefineError> {
        definition.check()?;
        Ok(Self { definition: Arc::new(definition), hooks })
    }

    /// What it was made of.
    #[must_use]
    pub fn source(&self) -> &Arc<LlmDefinition> {
        &self.definition
    }

    /// What functions it has besides.
    #[must_use]
    pub fn hooks(&self) -> &LlmHooks {
        &self.hooks
    }

    /// One attempt, with the model that the context names.
    ///
    /// # Errors
    /// `invalid_parameters` for arguments from which no prompt can be made, else what went wrong with the request or
    /// its answer.
    pub async fn attempt(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let services = &context.services;
        let Some(model) = services.model_id.as_deref() else {
            return Err(ToolError::new(ErrorKind::InternalError, "no model was chosen for an LLM-backed tool"));
        };
        let card = services.model.card(model);
        let known_as = card.stands_for.as_deref().unwrap_or(model);
        let asked = For { model: known_as, mode: services.model_mode.as_deref(), tokens: &*services.tokens };
        let mut prompted = prompt(&self.definition, &self.hooks, arguments, asked)?;
        let request = &mut prompted.request;
        let said = ModelSettings { effort: services.model_effort, ..ModelSettings::default() };
        request.settings = said.or(&request.settings);
        let room = card.window.map(|window| window.saturating_sub(prompted.input_tokens));
        let room = room.map(|room| u32::try_from(room).unwrap_or(u32::MAX).max(1));
        for limit in [card.max_output, room].into_iter().flatten() {
            prompted.request.max_tokens = prompted.request.max_tokens.map(|tokens| tokens.min(limit));
        }
        let mut asks_left = self.hooks.asks_again;
        loop {
            let answer = services.model.complete(model, &prompted.request, &IgnoreModelEvents, &context.cancel).await;
            let answer = answer.map_err(|error| failed(error, context))?;
            match (self.read(&prompted, &answer), asks_left) {
                (Err(bad), 1..) if answer.stop != StopReason::Refusal => {
                    asks_left -= 1;
                    ask_again(&mut prompted.request, answer, &bad);
                }
                (Err(bad), _) => return Err(ToolError::new(ErrorKind::ExecutionError, bad)),
                (Ok(output), _) => {
                    let output = self.warned(output, &prompted, context);
                    return Ok(match prompted.variant {
                        Some(variant) => output.with_extra("variant", variant),
                        None => output,
                    });
                }
            }
        }
    }

    /// Tells what is odd about a result.
    fn warned(&self, output: ToolOutput, prompted: &Prompted, context: &ToolContext) -> ToolOutput {
        let Some((hook, value)) = self.hooks.warning.as_ref().zip(output.structured.as_ref()) else { return output };
        let Some(warning) = hook(value, &prompted.arguments) else { return output };
        let message = format!("{}: {warning}", self.definition.id);
        context.services.events.tell(|| Event::Warning { code: ODD.to_owned(), message });
        output.with_extra("warning", warning)
    }

    /// What the answer says, or what is wrong with it.
    fn read(&self, prompted: &Prompted, answer: &ModelResponse) -> Result<ToolOutput, String> {
        let words = |bad: answer::BadAnswer| bad.to_string();
        if prompted.output == OutputKind::Text {
            let output = ToolOutput::text(answer::text(answer).map_err(words)?);
            let is_cut = answer.stop == StopReason::MaxTokens;
            return Ok(if is_cut { output.with_extra("cut", true) } else { output });
        }
        let wanted = if prompted.schema.is_some() { Wanted::Object } else { Wanted::Any };
        let mut value = answer::json(answer, wanted).map_err(words)?;
        if let Some(schema) = &prompted.schema {
            breaks(schema, &value)?;
        }
        if let Some(hook) = &self.hooks.output {
            value = hook(value, &prompted.arguments)?;
        }
        let text = ToolOutput::text(value.to_string());
        Ok(ToolOutput { structured: value.is_object().then_some(value), ..text })
    }
}

/// Says in which ways a value breaks its schema. One that does not compile is broken by nothing: it was refused
/// before.
fn breaks(schema: &Value, value: &Value) -> Result<(), String> {
    let Ok(compiled) = CompiledSchema::compile(schema) else { return Ok(()) };
    if compiled.is_valid(value) {
        return Ok(());
    }
    let violations: Vec<String> = compiled
        .violations(value)
        .into_iter()
        .take(TOLD)
        .map(|violation| {
            let path = if violation.path.is_empty() { "the whole" } else { violation.path.as_str() };
            format!("{path}: {}", violation.message)
        })
        .collect();
    Err(format!("the answer breaks its output schema: {}", violations.join("; ")))
}

/// Puts the answer and what is wrong with it after the conversation.
fn ask_again(request: &mut ModelRequest, answer: ModelResponse, bad: &str) {
    let ModelResponse { text, opaque, .. } = answer;
    if text.trim().is_empty() {
        // APIs take no empty answer back: it is asked the same once more.
        return;
    }
    request.messages.push(Message::Assistant { text, calls: Vec::new(), opaque });
    let again = format!("That was not right: {bad}. Answer once more, the whole value, corrected.");
    request.messages.push(Message::user(again));
}

/// A failed request as a failed attempt.
fn failed(error: ModelError, context: &ToolContext) -> ToolError {
    let kind = match error.kind {
        ModelErrorKind::Canceled => {
            return match context.cancel.cause() {
                Some(cause) => ToolError::canceled(cause),
                None => ToolError::new(ErrorKind::Canceled, error.message.clone()).with_source(error),
            };
        }
        ModelErrorKind::Unavailable | ModelErrorKind::RateLimit => ErrorKind::TransportError,
        _ => ErrorKind::ExecutionError,
    };
    let message = format!("{}: {}", error.kind.as_str(), error.message);
    let model = match error.kind {
        ModelErrorKind::ContextOverflow => "the input is too long for the model behind this tool",
        ModelErrorKind::ContentFilter => "the provider of the model behind this tool refused the input",
        _ => "the model behind this tool could not be asked",
    };
    ToolError::new(kind, message).with_model_message(model).with_source(error)
}

#[async_trait]
impl Tool for LlmTool {
    fn definition(&self) -> ToolDefinition {
        self.definition.tool()
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        self.attempt(arguments, context).await
    }

    /// It holds no slot while it waits for its model: models have queues of their own.
    fn awaits_others(&self) -> bool {
        true
    }

    fn llm(&self) -> Option<Arc<LlmDefinition>> {
        Some(Arc::clone(&self.definition))
    }

    fn prompt_size(&self, arguments: &Value, model: &str, mode: Option<&str>, tokens: &dyn TokenCounter) -> PromptSize {
        let asked = For { model, mode, tokens };
        // What cannot be prompted is found out by the attempt.
        let Ok(prompted) = prompt(&self.definition, &self.hooks, arguments.clone(), asked) else {
            return PromptSize::default();
        };
        PromptSize {
            input: prompted.input_tokens,
            max_answer: prompted.request.max_tokens,
            settings: prompted.request.settings,
            asks_again: self.hooks.asks_again,
        }
    }
}

/// A tool that fills its arguments into a text.
#[derive(Debug, Clone)]
pub struct TemplateTool {
    definition: TemplateDefinition,
}

impl TemplateTool {
    /// Makes the tool.
    ///
    /// # Errors
    /// [`DefineError`] for a definition that makes none.
    pub fn new(definition: TemplateDefinition) -> Result<Self, DefineError> {
        definition.check()?;
        Ok(Self { definition })
    }

    /// The text for these arguments.
    ///
    /// # Errors
    /// `invalid_parameters` where something is missing.
    pub fn fill(&self, arguments: Value) -> Result<String, ToolError> {
        let TemplateDefinition { id, template, prepare, .. } = &self.definition;
        let Value::Object(mut values) = arguments else {
            return Err(ToolError::new(ErrorKind::InvalidParameters, "the arguments are no object"));
        };
        let failed = |field: &str, error: TemplateError| {
            let message = format!("{id}: its `{field}` cannot be filled in: {error}");
            ToolError::new(ErrorKind::InvalidParameters, message).with_source(error)
        };
        for (key, entry) in prepare {
            let value = evaluate(entry, &values).map_err(|error| failed(&format!("prepare.{key}"), error))?;
            values.insert(key.clone(), value);
        }
        render(template, &values).map_err(|error| failed("template", error))
    }
}

#[async_trait]
impl Tool for TemplateTool {
    fn definition(&self) -> ToolDefinition {
        self.definition.tool()
    }

    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        self.fill(arguments).map(ToolOutput::text)
    }
}
