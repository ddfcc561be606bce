//! Calls of LLM-backed tools: tries one model after another until one returns a result.

use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::call::ValidCall;
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::{Entry, PromptSize, PromptSizeQuery};
use toolwright_core::content::joined_text;
use toolwright_core::context::{Services, TokenCounter, ToolContext, UsageRecorder};
use toolwright_core::definition::{ModelPreference, OnOutputMismatch};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::llm::{Resolve, SHOWN_CHARACTERS, models};
use toolwright_core::model::{
    ModelClient, ModelError, ModelErrorKind, ModelEvent, ModelEvents, ModelRequest, ModelResponse, NotRecorded, Usage,
    is_replay,
};
use toolwright_core::operation::Op;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::redact::shown_arguments;
use toolwright_core::session::CallId;
use toolwright_core::tool_id::ToolId;

use super::call_record::CallUsage;
use super::run::Attempts;
use super::{Executor, LlmOptions, RunContext};
use crate::models::micros;

/// A model is asked only if its window has room for this many answer tokens, or for the answer's limit if that is
/// lower.
const MIN_ANSWER_TOKENS: u32 = 256;
/// The same for the reasoning tokens of a reasoning model.
const MIN_THINKING_TOKENS: u32 = 1024;

/// Key in the extras of a call whose result came from a later model: the models asked before it, and why they gave no
/// result.
pub(super) const FAILED_MODELS: &str = "failed_models";

/// The models of one call.
pub(super) struct LlmCall {
    executor: Arc<Executor>,
    /// The context of the call's own requests.
    run: RunContext,
    op: Op,
    call: CallId,
    models: Vec<Arc<str>>,
    /// Whether the tool was declared as LLM-backed, not written in code.
    is_declared: bool,
}

impl Executor {
    /// Loads the recordings that a call may be answered from.
    pub(super) async fn ready_recordings(&self, run: &RunContext) {
        let named = [run.llm.model.as_deref(), run.model.as_deref(), self.options.default_model.as_deref()];
        for recording in named.into_iter().flatten().filter(|model| is_replay(model)) {
            // For an unreadable recording, the model card has the error, and the call is refused for it.
            let _ = self.options.services.model.ready(recording).await;
        }
    }

    /// Returns the models for a call of this tool, in order; `None` for tools that ask none.
    ///
    /// # Errors
    /// `not_permitted` if there is no model that can be asked.
    pub(super) fn models_of(&self, entry: &Entry, run: &RunContext) -> Result<Option<Vec<Arc<str>>>, ToolError> {
        if !asks_by_model(entry) {
            return Ok(None);
        }
        let preference = entry.definition().model_preference.as_ref();
        let named = |error: ToolError| {
            let message = format!("{}: {}", entry.id(), error.message());
            ToolError::new(error.kind(), message).with_model_message(error.model_message().to_owned())
        };
        self.resolve(entry.id(), preference, &run.llm, run.model.as_deref()).map(Some).map_err(named)
    }

    /// Returns whether the LLM-backed tool `id` with this preference has a model to ask by default.
    #[must_use]
    pub fn has_model_for(&self, id: &ToolId, preference: Option<&ModelPreference>) -> bool {
        self.resolve(id, preference, &LlmOptions::default(), None).is_ok()
    }

    fn resolve(
        &self,
        id: &ToolId,
        preference: Option<&ModelPreference>,
        llm: &LlmOptions,
        run_model: Option<&str>,
    ) -> Result<Vec<Arc<str>>, ToolError> {
        // A recording is used only if the caller asks for it; a declaration that names one was refused earlier.
        let preference = preference.map(|preference| {
            let is_real = |model: &String| !is_replay(model);
            ModelPreference {
                preferred_model: preference.preferred_model.clone().filter(is_real),
                fallback_models: preference.fallback_models.iter().filter(|model| is_real(model)).cloned().collect(),
                ..preference.clone()
            }
        });
        let recommended = (self.options.compat)(id);
        let model = &self.options.services.model;
        let default = self.options.default_model.as_deref().or(llm.default.as_deref());
        models(&Resolve {
            forced: llm.model.as_deref(),
            recommended: &recommended,
            preference: preference.as_ref(),
            default: default.or(run_model),
            run: run_model,
            card: &|name| model.card(name),
        })
    }

    /// Prepares a request to the models of [`Executor::models_of`]; `None` if the call asks none.
    pub(super) fn by_model(
        self: &Arc<Self>,
        call: &ValidCall,
        run: &RunContext,
        op: &Op,
    ) -> Result<Option<Box<LlmCall>>, ToolError> {
        if !call.provenance.route.is_tool() {
            return Ok(None);
        }
        let Some(models) = self.models_of(&call.entry, run)? else { return Ok(None) };
        Ok(Some(Box::new(LlmCall {
            executor: Arc::clone(self),
            run: RunContext { lineage: op.inside(), ..run.clone() },
            op: op.clone(),
            call: call.id.clone(),
            models,
            is_declared: is_declared(&call.entry),
        })))
    }
}

/// Returns whether the runner asks models for calls of this tool.
pub(super) fn asks_by_model(entry: &Entry) -> bool {
    entry.definition().model_preference.is_some() || is_declared(entry)
}

/// Returns whether a tool is declared. Most tools have no declaration, and their providers are not asked.
fn is_declared(entry: &Entry) -> bool {
    entry.definition().declaration.is_some() && entry.provider.llm(entry.id()).is_some()
}

/// A model that gave no result.
struct Failure {
    model: Arc<str>,
    /// The model whose recorded answer was used: messages about the model apply to that one.
    stood_for: Option<Arc<str>>,
    error: ToolError,
}

impl LlmCall {
    /// Tries the models in order. Returns the first result that the tool's output schema accepts, with its model and
    /// the usage of all attempts.
    pub(super) async fn run(self: Box<Self>, attempts: &mut Attempts) -> Result<ToolOutput, ToolError> {
        if self.is_declared {
            // Requests to models are already retried when they are sent, if that is safe.
            attempts.retries = 0;
        }
        let (call, services) = (Arc::clone(&attempts.call), Arc::clone(&attempts.context.services));
        let (entry, arguments) = (&call.entry, &call.arguments);
        let redacted_arguments = shown_arguments(entry, arguments, &*services.redactor);
        let tool = entry.id().clone();
        let (mut failures, mut total, mut tried) = (Vec::<Failure>::new(), Usage::default(), 0);
        // Models whose recording lacks the call, because they were not asked when it was made.
        let mut missed = Vec::<Failure>::new();
        let failure = |model: &Arc<str>, error| {
            let stood_for = services.model.card(model).stands_for;
            Failure { model: Arc::clone(model), stood_for, error }
        };
        for (index, model) in self.models.iter().enumerate() {
            let next = self.models.get(index + 1).map(|next| &**next);
            let counter = services.tokens.of_model(&known_as(model, &services));
            if let Some(error) = self.too_long(model, entry, arguments, &services, counter.as_ref()).await {
                self.report_fallback(attempts, model, next, &error);
                failures.push(failure(model, error));
                continue;
            }
            tried += 1;
            let variant = self.variant(entry, &known_as(model, &services));
            let started = services.clock.now();
            let attempt =
                LlmAttempt { tool: &tool, model, number: tried, variant: variant.clone(), of: &self, started };
            services.events.emit_routine(|| attempt.began(&redacted_arguments));
            let usage = Arc::new(CallUsage::default());
            attempts.context.services = Arc::new(self.services(&services, model, counter, variant, &usage));
            let result = attempts.repeated().await;
            let result = result.and_then(|output| self.accepted(output, entry));
            let used = usage.total();
            total.add(used);
            let error = match result {
                Ok(output) => {
                    services.events.emit_routine(|| attempt.ended(used));
                    let mut output = output.with_extra("model", &**model);
                    if !failures.is_empty() {
                        let failed = reasons(&failures);
                        output = output.with_extra(FAILED_MODELS, services.redactor.redact(&failed).into_owned());
                    }
                    return Ok(output.with_extra("usage", serde_json::to_value(total).unwrap_or_default()));
                }
                Err(error) => error,
            };
            let is_over = self.is_over(&error, attempts);
            let next = next.filter(|_| !is_over);
            services.events.emit_with(|| attempt.failed(&error, next, used));
            if let Some(cause) = attempts.context.cancel.cause() {
                return Err(ToolError::canceled(cause).with_last_message(&error));
            }
            if is_over {
                return Err(if failures.is_empty() || !is_model_fault(&error) {
                    error
                } else {
                    failures.push(failure(model, error));
                    all_failed(entry, failures)
                });
            }
            if is_unrecorded(&error) {
                missed.push(failure(model, error));
                continue;
            }
            self.report_fallback(attempts, model, next, &error);
            failures.push(failure(model, error));
        }
        Err(all_failed(entry, if failures.is_empty() { missed } else { failures }))
    }

    /// Returns why this model is skipped: its window has no room for the prompt and an answer. Counting may read a
    /// large file, so it runs on a blocking thread; the attempt reuses the count.
    async fn too_long(
        &self,
        model: &str,
        entry: &Arc<Entry>,
        arguments: &Value,
        services: &Services,
        counter: Option<&Arc<dyn TokenCounter>>,
    ) -> Option<ToolError> {
        let card = services.model.card(model);
        if !self.is_declared || card.window.is_none() && counter.is_none() {
            return None;
        }
        let (named, mode) = (known_as(model, services), self.run.llm.mode.clone());
        let size = match counter {
            None => size_of(entry, arguments, &named, mode.as_deref(), &*services.tokens),
            Some(counter) => {
                let (entry, arguments, counter) = (Arc::clone(entry), arguments.clone(), Arc::clone(counter));
                let count = move || size_of(&entry, &arguments, &named, mode.as_deref(), &*counter);
                // If counting fails, the attempt counts again and reports the error.
                tokio::task::spawn_blocking(count).await.ok()?
            }
        };
        let window = card.window?;
        // Tokens that the client adds to the answer's limit are for reasoning.
        let thinking =
            services.model.longest_answer(model, Some(1), &size.settings, 1).saturating_sub(1).min(MIN_THINKING_TOKENS);
        let least = size.max_answer.unwrap_or(MIN_ANSWER_TOKENS).min(MIN_ANSWER_TOKENS) + thinking;
        let left = card.output_room(size.input)?;
        (left < least).then(|| {
            let message = format!(
                "its input of {} tokens leaves {left} of the model's window of {window} to an answer, which needs {least}",
                size.input
            );
            ToolError::new(ErrorKind::LimitExceeded, message).with_model_message("the input is too long for it")
        })
    }

    /// Returns how `model` is asked, for a declared tool with several variants.
    fn variant(&self, entry: &Entry, model: &str) -> Option<Arc<str>> {
        let definition = self.is_declared.then(|| entry.provider.llm(entry.id())).flatten()?;
        Some(definition.variant(self.run.llm.mode.as_deref(), model)?.id.as_str().into())
    }

    fn services(
        &self,
        services: &Services,
        model: &Arc<str>,
        counter: Option<Arc<dyn TokenCounter>>,
        variant: Option<Arc<str>>,
        usage: &Arc<CallUsage>,
    ) -> Services {
        let mut run = self.run.clone();
        run.llm.variant = variant;
        let client = AttemptClient { executor: Arc::clone(&self.executor), run, used: Arc::clone(usage) };
        Services {
            tokens: counter.unwrap_or_else(|| Arc::clone(&services.tokens)),
            model: Arc::new(client),
            model_id: Some(model.to_string()),
            model_mode: self.run.llm.mode.clone(),
            model_effort: self.run.llm.effort,
            usage: Arc::clone(usage) as _,
            ..services.clone()
        }
    }

    /// Returns a result if it is acceptable: no failure, and valid where the tool enforces its output schema.
    fn accepted(&self, output: ToolOutput, entry: &Entry) -> Result<ToolOutput, ToolError> {
        if output.is_error {
            let text: String = joined_text(&output.content).chars().take(SHOWN_CHARACTERS).collect();
            return Err(ToolError::new(ErrorKind::ExecutionError, text));
        }
        // A mere warning is given once, when the result is shaped.
        if entry.definition().on_output_mismatch == OnOutputMismatch::Error {
            return self.executor.check_output_schema(output, entry);
        }
        Ok(output)
    }

    /// Returns whether no other model is tried: the caller has gone, the input is at fault, or another attempt could
    /// repeat an effect.
    fn is_over(&self, error: &ToolError, attempts: &Attempts) -> bool {
        let context: &ToolContext = &attempts.context;
        let now = context.services.clock.now();
        let is_past_deadline = context.deadline.is_some_and(|deadline| now >= deadline);
        let repeats = !self.is_declared && {
            let effects = attempts.call.entry.definition().effects;
            !effects.read_only && !effects.idempotent
        };
        repeats || is_past_deadline || context.cancel.is_cancelled() || !is_model_fault(error)
    }

    fn report_fallback(&self, attempts: &Attempts, model: &str, next: Option<&str>, error: &ToolError) {
        let Some(next) = next else { return };
        let services = &attempts.context.services;
        services.events.emit_with(|| Event::Fallback {
            what: attempts.call.entry.wire_name.clone(),
            from: model.to_owned(),
            to: next.to_owned(),
            reason: services.redactor.redact(error.message()).into_owned(),
        });
    }
}

/// Returns the usual name of a model, not that of its recording.
fn known_as(model: &str, services: &Services) -> Arc<str> {
    services.model.card(model).stands_for.unwrap_or_else(|| model.into())
}

fn size_of(entry: &Entry, arguments: &Value, model: &str, mode: Option<&str>, tokens: &dyn TokenCounter) -> PromptSize {
    entry.provider.prompt_size(entry.id(), PromptSizeQuery { arguments, model, mode, tokens })
}

/// Returns whether an error is about the model, and not about the call or its input.
fn is_model_fault(error: &ToolError) -> bool {
    !matches!(error.kind(), ErrorKind::Canceled | ErrorKind::Timeout | ErrorKind::InvalidParameters)
}

/// Returns whether it failed because the recording lacks the request.
fn is_unrecorded(error: &ToolError) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if error.is::<NotRecorded>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Returns why each model gave no result.
fn reasons(failures: &[Failure]) -> String {
    let each = failures.iter().map(|Failure { model, error, .. }| format!("{model}: {}", error.message()));
    each.collect::<Vec<_>>().join("; ")
}

/// Returns the error of a call for which no model gave a result, with each model's reason.
fn all_failed(entry: &Entry, failures: Vec<Failure>) -> ToolError {
    let (mut message, mut to_model) = (format!("{} got no result from a model", entry.id()), String::new());
    if !failures.is_empty() {
        message = format!("{message}: {}", reasons(&failures));
    }
    for (index, Failure { model, stood_for, error }) in failures.iter().enumerate() {
        let separator = if index == 0 { "" } else { "; " };
        // Writing to a text cannot fail.
        let _ = write!(to_model, "{separator}{}: {}", stood_for.as_ref().unwrap_or(model), error.model_message());
    }
    let Some(Failure { error: last, .. }) = failures.into_iter().next_back() else {
        return ToolError::new(ErrorKind::InternalError, message);
    };
    let made = ToolError::new(last.kind(), message).with_model_message(to_model);
    made.with_source(last)
}

/// One attempt, for its events.
struct LlmAttempt<'a> {
    tool: &'a ToolId,
    model: &'a str,
    number: u32,
    variant: Option<Arc<str>>,
    of: &'a LlmCall,
    started: Instant,
}

impl LlmAttempt<'_> {
    fn began(&self, redacted_arguments: &Value) -> Event {
        Event::LlmAttemptStarted {
            op: self.of.op.clone(),
            session: self.of.run.session.id.clone(),
            call: self.of.call.clone(),
            tool: self.tool.clone(),
            model: self.model.to_owned(),
            attempt: self.number,
            arguments: redacted_arguments.clone(),
        }
    }

    fn latency_us(&self) -> u64 {
        let clock = &self.of.executor.options.services.clock;
        micros(clock.now().saturating_duration_since(self.started))
    }

    fn ended(&self, usage: Usage) -> Event {
        Event::LlmAttemptFinished {
            op: self.of.op.clone(),
            session: self.of.run.session.id.clone(),
            call: self.of.call.clone(),
            tool: self.tool.clone(),
            model: self.model.to_owned(),
            attempt: self.number,
            variant: self.variant.as_deref().map(str::to_owned),
            latency_us: self.latency_us(),
            usage,
        }
    }

    fn failed(&self, error: &ToolError, next: Option<&str>, usage: Usage) -> Event {
        let redactor = &self.of.executor.options.services.redactor;
        Event::LlmAttemptFailed {
            op: self.of.op.clone(),
            session: self.of.run.session.id.clone(),
            call: self.of.call.clone(),
            tool: self.tool.clone(),
            model: self.model.to_owned(),
            attempt: self.number,
            variant: self.variant.as_deref().map(str::to_owned),
            kind: error.kind(),
            message: redactor.redact(error.message()).into_owned(),
            next: next.map(str::to_owned),
            latency_us: self.latency_us(),
            usage,
        }
    }
}

/// The model client of one attempt. Reports and records each request as an operation inside the call.
struct AttemptClient {
    executor: Arc<Executor>,
    run: RunContext,
    used: Arc<CallUsage>,
}

#[async_trait]
impl ModelClient for AttemptClient {
    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        let answer = tokio::select! {
            biased;
            answer = self.executor.ask_model(model, request, None, &self.run) => answer,
            cause = cancel.cancelled() => {
                Err(ModelError::new(ModelErrorKind::Canceled, format!("cancelled {}", cause.describe())))
            }
        };
        self.used.record(model, answer.as_ref().map_or_else(|error| error.usage, |answer| answer.usage));
        let answer = answer?;
        if !answer.reasoning.is_empty() {
            events.on_event(ModelEvent::Reasoning(answer.reasoning.clone()));
        }
        if !answer.text.is_empty() {
            events.on_event(ModelEvent::Text(answer.text.clone()));
        }
        answer.calls.iter().for_each(|call| events.on_event(ModelEvent::Call(call.clone())));
        Ok(answer)
    }

    fn inner(&self) -> Option<&dyn ModelClient> {
        Some(&*self.executor.options.services.model)
    }
}
