//! Makes tools from definitions of LLM-backed tools.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::answer::{self, AnswerError, ExpectedJson};
use super::check::DefineError;
use super::prompt::{LlmHooks, PromptTarget, RenderedPrompt, prompt, unfit};
use super::template;
use crate::catalogue::context::{TokenCounter, ToolContext};
use crate::catalogue::tool::Tool;
use crate::catalogue::{Entry, PromptSize};
use crate::definition::listed_output::as_listed;
use crate::definition::llm::{LlmDefinition, OutputKind, TemplateDefinition};
use crate::definition::{OnOutputMismatch, ToolDefinition};
use crate::error::{ErrorKind, ToolError, labelled};
use crate::event::Event;
use crate::model::{
    IgnoreModelEvents, Message, ModelCard, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ModelSettings,
    StopReason,
};
use crate::output::outcome::ToolOutput;
use crate::schema::CompiledSchema;

/// Code of the warning about an odd result.
const ODD: &str = "llm_tool_result";
/// Key in the outcome's `extras` for an answer that was cut.
const CUT: &str = "cut";
/// Bound on the violations listed when a model is asked again.
const MAX_NAMED: usize = 3;

/// Creates a tool answered by a model.
///
/// # Errors
/// [`DefineError`] for an invalid definition.
pub fn define_llm_tool(definition: LlmDefinition, hooks: LlmHooks) -> Result<Arc<dyn Tool>, DefineError> {
    LlmTool::new(definition, hooks).map(|tool| Arc::new(tool) as _)
}

/// Creates a tool that fills its arguments into a text template.
///
/// # Errors
/// [`DefineError`] for an invalid definition.
pub fn define_template_tool(definition: TemplateDefinition) -> Result<Arc<dyn Tool>, DefineError> {
    TemplateTool::new(definition).map(|tool| Arc::new(tool) as _)
}

/// Returns the definition of an LLM-backed tool; `None` for other tools.
#[must_use]
pub fn llm_definition(entry: &Entry) -> Option<LlmDefinition> {
    entry.provider.llm(entry.id()).map(|definition| (*definition).clone())
}

/// A tool answered by a model. The executor chooses the model and runs the attempts; one run is one attempt.
#[derive(Debug, Clone)]
pub struct LlmTool {
    definition: Arc<LlmDefinition>,
    hooks: LlmHooks,
}

impl LlmTool {
    /// Creates the tool.
    ///
    /// # Errors
    /// [`DefineError`] for an invalid definition.
    pub fn new(definition: LlmDefinition, hooks: LlmHooks) -> Result<Self, DefineError> {
        let definition = definition.with_listed_output();
        definition.check()?;
        Ok(Self { definition: Arc::new(definition), hooks })
    }

    /// Its definition.
    #[must_use]
    pub fn source(&self) -> &Arc<LlmDefinition> {
        &self.definition
    }

    /// Its code hooks.
    #[must_use]
    pub fn hooks(&self) -> &LlmHooks {
        &self.hooks
    }

    /// Runs one attempt, with the model that the context names.
    ///
    /// # Errors
    /// `invalid_parameters` for arguments that give no prompt, else the failure of the request or its answer.
    pub async fn attempt(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let services = &context.services;
        let Some(model) = services.model_id.as_deref() else {
            return Err(ToolError::new(ErrorKind::InternalError, "no model was chosen for an LLM-backed tool"));
        };
        let card = services.model.card(model);
        let known_as = card.stands_for.as_deref().unwrap_or(model);
        let target = PromptTarget { model: known_as, mode: services.model_mode.as_deref(), tokens: &*services.tokens };
        let mut prompted = prompt(&self.definition, &self.hooks, arguments, target)?;
        let request = &mut prompted.request;
        let effort_settings = ModelSettings { effort: services.model_effort, ..ModelSettings::default() };
        request.settings = effort_settings.or(&request.settings).into();
        let requested_max = request.max_tokens;
        let mut asks_left = self.hooks.asks_again;
        loop {
            prompted.request.max_tokens = requested_max.map(|max| limit(max, &prompted, &card));
            let answer = services.model.complete(model, &prompted.request, &IgnoreModelEvents, &context.cancel).await;
            let answer = answer.map_err(|error| failed(error, context))?;
            let insists = asks_left > 0 || self.definition.on_output_mismatch == OnOutputMismatch::Error;
            match self.read(&prompted, &answer, insists) {
                Err(bad) if asks_left > 0 && bad.is_repairable() => {
                    asks_left -= 1;
                    ask_again(&mut prompted.request, answer, &bad);
                }
                Err(bad) => {
                    let ModelRequest { max_tokens, settings, .. } = &prompted.request;
                    let limit = services.model.answer_tokens(model, *max_tokens, settings);
                    return Err(ToolError::new(ErrorKind::ExecutionError, bad.within(limit)));
                }
                Ok(output) => {
                    let output = self.warned(output, &prompted, context);
                    return Ok(match prompted.variant {
                        Some(variant) => output.with_extra("variant", variant),
                        None => output,
                    });
                }
            }
        }
    }

    /// Emits the warning about a result, if any.
    fn warned(&self, output: ToolOutput, prompted: &RenderedPrompt, context: &ToolContext) -> ToolOutput {
        let Some(value) = &output.structured else { return output };
        let cut =
            output.extras.contains_key(CUT).then(|| "the list was cut at the token limit of its answer".to_owned());
        let odd = self.hooks.warning.as_ref().and_then(|hook| hook(value, &prompted.arguments));
        // Violations of the tool's own schema are reported where results are shaped.
        let own = prompted.schema.as_ref().filter(|_| self.definition.on_output_mismatch == OnOutputMismatch::Warn);
        let own = own.filter(|own| self.definition.common_result_schema().as_ref() != Some(*own));
        let breach = || breaks(own?, value).err();
        let Some(warning) = cut.or(odd).or_else(breach) else { return output };
        let message = format!("{}: {warning}", self.definition.id);
        context.services.events.emit_with(|| Event::Warning { code: ODD.to_owned(), message });
        output.with_extra("warning", warning)
    }

    /// Reads the answer, or returns its fault. Unless it `insists`, a value that breaks its schema is a result:
    /// the violation is reported where results are shaped.
    fn read(
        &self,
        prompted: &RenderedPrompt,
        answer: &ModelResponse,
        insists: bool,
    ) -> Result<ToolOutput, ResultError> {
        if prompted.output == OutputKind::Text {
            let output = ToolOutput::text(answer::text(answer)?);
            let is_cut = answer.stop == StopReason::MaxTokens;
            return Ok(if is_cut { output.with_extra(CUT, true) } else { output });
        }
        let (mut value, is_cut) = match value_of(answer, prompted.schema.as_ref()) {
            Err(bad @ AnswerError::Cut(_)) => (self.whole_part(answer).ok_or(bad)?, true),
            value => (value?, false),
        };
        if let Some(schema) = prompted.schema.as_ref().filter(|_| insists) {
            breaks(schema, &value).map_err(ResultError::Value)?;
        }
        if let Some(hook) = &self.hooks.output {
            value = hook(value, &prompted.arguments).map_err(ResultError::Value)?;
        }
        let text = ToolOutput::text(value.to_string());
        let output = ToolOutput { structured: value.is_object().then_some(value), ..text };
        Ok(if is_cut { output.with_extra(CUT, true) } else { output })
    }

    /// Returns the complete part of a cut answer: the first items of the single list in the result.
    fn whole_part(&self, answer: &ModelResponse) -> Option<Value> {
        let member = self.hooks.cut_list?;
        let items = answer::whole_items(answer::text(answer).ok()?, member);
        (!items.is_empty()).then(|| json!({member: items}))
    }
}

/// Why an answer is no result.
#[derive(Debug, thiserror::Error)]
enum ResultError {
    /// The answer cannot be read.
    #[error(transparent)]
    Answer(#[from] AnswerError),
    /// The value breaks the tool's contract.
    #[error("{0}")]
    Value(String),
}

impl ResultError {
    /// Whether the model may do better when told of the fault. A limit cannot be corrected.
    fn is_repairable(&self) -> bool {
        !matches!(self, Self::Answer(AnswerError::Cut(_) | AnswerError::Refused(_)))
    }

    /// Describes the fault, with the limit that cut the answer.
    fn within(&self, limit: Option<u32>) -> String {
        match (self, limit) {
            (Self::Answer(AnswerError::Cut(_)), Some(limit)) => format!(
                "{self} (the limit is {limit} tokens, thinking among them: a lower `effort` or a longer limit helps)"
            ),
            _ => self.to_string(),
        }
    }
}

/// Returns the limit of an answer: bounded by the model's maximum, and by the rest of its context window.
fn limit(requested_max: u32, prompted: &RenderedPrompt, card: &ModelCard) -> u32 {
    // The messages after the first are earlier answers and their faults.
    let more: usize = prompted.request.messages.iter().skip(1).map(Message::tokens).sum();
    let left = card.output_room(prompted.input_tokens + more).map(|left| left.max(1));
    [card.max_output, left].into_iter().flatten().fold(requested_max, u32::min)
}

/// Returns the JSON value of an answer. If it should be a list in an object, a bare list is accepted: without schema
/// enforcement models often write the list alone.
fn value_of(answer: &ModelResponse, schema: Option<&Value>) -> Result<Value, AnswerError> {
    let Some(schema) = schema else { return answer::json(answer, ExpectedJson::Any) };
    let object = answer::json(answer, ExpectedJson::Object);
    let fits = |value: &Value| breaks(schema, value).is_ok();
    let bare = || as_listed(answer::json(answer, ExpectedJson::Any).ok()?, schema);
    match bare() {
        // The object may have been found inside the list.
        Some(list) if fits(&list) || !object.as_ref().is_ok_and(fits) => Ok(list),
        _ => object,
    }
}

/// Describes how a value breaks its schema. A schema that does not compile was refused earlier, so it counts as
/// satisfied.
fn breaks(schema: &Value, value: &Value) -> Result<(), String> {
    let Ok(compiled) = CompiledSchema::compile(schema) else { return Ok(()) };
    if compiled.is_valid(value) {
        return Ok(());
    }
    let violations: Vec<String> = compiled
        .violations(value)
        .into_iter()
        .take(MAX_NAMED)
        .map(|violation| {
            let path = if violation.path.is_empty() { "the whole" } else { violation.path.as_str() };
            format!("{path}: {}", violation.message)
        })
        .collect();
    Err(format!("the answer breaks its output schema: {}", violations.join("; ")))
}

/// Appends the answer and its fault to the conversation.
fn ask_again(request: &mut ModelRequest, answer: ModelResponse, bad: &ResultError) {
    let ModelResponse { text, opaque, .. } = answer;
    if text.trim().is_empty() {
        // APIs refuse empty answers in a conversation: the request is repeated unchanged.
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
    let message = labelled(error.kind.as_str(), &error.message);
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
        let target = PromptTarget { model, mode, tokens };
        // The attempt reports arguments that give no prompt.
        let Ok(prompted) = prompt(&self.definition, &self.hooks, arguments.clone(), target) else {
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
    /// Creates the tool.
    ///
    /// # Errors
    /// [`DefineError`] for an invalid definition.
    pub fn new(definition: TemplateDefinition) -> Result<Self, DefineError> {
        definition.check()?;
        Ok(Self { definition })
    }

    /// Renders the text for these arguments.
    ///
    /// # Errors
    /// `invalid_parameters` if a value is missing.
    pub fn fill(&self, arguments: Value) -> Result<String, ToolError> {
        let TemplateDefinition { id, template: text, prepare, .. } = &self.definition;
        let Value::Object(mut values) = arguments else {
            return Err(ToolError::new(ErrorKind::InvalidParameters, "the arguments are no object"));
        };
        template::prepare(prepare, &mut values).map_err(|(field, error)| unfit(id, &field, error))?;
        template::render(text, &values).map_err(|error| unfit(id, "template", error))
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
