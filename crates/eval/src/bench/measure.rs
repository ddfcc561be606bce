//! Measures one call of a plan: runs it, checks its output, and has rubrics judged by `llm:score`.

use std::error::Error;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use toolwright_core::approval::NoApprover;
use toolwright_core::llm::llm_definition;
use toolwright_core::model::{ModelError, ModelErrorKind, RequestAllowance};
use toolwright_core::schema::Violation;
use toolwright_core::{
    CallId, Entry, ErrorKind, Lineage, Outcome, Policy, RawArguments, Redactor, Session, Snapshot, ToolCall, ToolError,
    TraceId,
};
use toolwright_runtime::executor::LlmOptions;
use toolwright_runtime::{Executor, Priority, RunContext};

use super::case::{Case, CaseError, CaseLocation, Suite};
use super::check::{Check, Kind, Verdict, clipped, judged};
use super::plan::{Cell, Plan};
use super::summary::{CheckScore, Measurement};

/// The most characters of an output that are stored.
const MAX_OUTPUT: usize = 2000;
/// The most characters of an error.
const MAX_ERROR: usize = 500;
/// The most violations of one input that are reported.
const MAX_SHOWN: usize = 3;

/// The prepared parts of a measurement.
pub struct PreparedBench {
    /// The calls.
    pub plan: Plan,
    /// The catalogue in which names resolve.
    pub snapshot: Arc<Snapshot>,
    /// The tools of the plan, in its order.
    pub entries: Vec<Arc<Entry>>,
    /// The judging tool, if one is needed.
    pub judge: Option<Arc<Entry>>,
}

impl Suite {
    /// Checks that the tool asks models, in the mode of these cases, and accepts their inputs.
    ///
    /// # Errors
    /// All faults with their places.
    pub fn check(&self, entry: &Entry) -> Result<(), Vec<CaseError>> {
        let refused = |at: &CaseLocation, message: String, remedy| Err(vec![self.fault(at, message, remedy)]);
        let (id, definition) = (entry.id(), llm_definition(entry));
        if definition.is_none() && entry.definition().model_preference.is_none() {
            let remedy = "only tools that a model answers are measured";
            return refused(&self.tool_at, format!("{id} asks no model"), remedy);
        }
        if let Some(mode) = &self.mode {
            let modes = definition.as_ref().map(|definition| definition.modes()).unwrap_or_default();
            if modes.is_empty() {
                return refused(&self.mode_at, format!("{id} has no modes"), "leave it out");
            }
            if !modes.contains(&mode.as_str()) {
                let message = format!("{id} has no mode `{mode}`; its modes: {}", modes.join(", "));
                return refused(&self.mode_at, message, "write one of them, or leave it out");
            }
        }
        let schema = match entry.tool.schema() {
            Ok(schema) => schema,
            Err(error) => return refused(&self.tool_at, format!("{id}: {error}"), "tell its author"),
        };
        let Some(schema) = schema else { return Ok(()) };
        let mut faults = Vec::new();
        for Case { id, input, line, key, .. } in &self.cases {
            for Violation { path, message, .. } in schema.violations(input).into_iter().take(MAX_SHOWN) {
                let key = if key.is_empty() { "input".to_owned() } else { format!("{key}.input") };
                let colon = if path.is_empty() { "" } else { ": " };
                let message = format!("the input of case `{id}`: {path}{colon}{message}");
                let remedy = "write what the parameters of the tool take";
                faults.push(self.fault(&CaseLocation { line: *line, key }, message, remedy));
            }
        }
        if faults.is_empty() { Ok(()) } else { Err(faults) }
    }

    /// Returns an error in the file's settings for its tool.
    #[must_use]
    pub fn fault(&self, at: &CaseLocation, message: String, remedy: &'static str) -> CaseError {
        let CaseLocation { line, key } = at.clone();
        CaseError { file: self.file.clone(), line, key, message, remedy }
    }
}

/// Makes the calls of a plan and evaluates their results.
pub struct Bencher<'a> {
    /// The prepared parts.
    pub prepared: &'a PreparedBench,
    /// The executor of the calls.
    pub executor: Arc<Executor>,
    /// The session of the calls.
    pub session: Arc<Session>,
    /// The policy of the calls.
    pub policy: Arc<Policy>,
    /// Distinguishes the traces of this run from those of others.
    pub name: String,
}

/// An ended call.
pub(super) struct FinishedCall {
    /// Its measurement, without its cost.
    pub(super) measured: Measurement,
    /// The trace of the call.
    pub(super) trace: TraceId,
    /// The traces of its judges.
    pub(super) judge_traces: Vec<TraceId>,
    /// The fault, if there is no result that is about the model.
    pub(super) fault: Option<CallFault>,
    /// Whether that is the judge's fault.
    pub(super) by_judge: bool,
}

/// A failure and its origin.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CallFault {
    /// Its origin.
    pub(super) origin: FaultOrigin,
    /// The error.
    pub(super) message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultOrigin {
    /// The model: its answer was not a valid result.
    Model,
    /// The way to the model, with a failure that may pass.
    Transport,
    /// The way to the model, with a failure that will not pass by itself: a key, an account, a rule.
    Setup,
}

/// A judge's result for a check.
enum JudgeResult {
    /// A verdict.
    Verdict(Verdict),
    /// None: the judge could not be asked, or its answer was unusable.
    Failed(CallFault),
}

impl CallFault {
    /// Returns the fault of a tool's error.
    fn of(error: &ToolError, redactor: &dyn Redactor) -> Self {
        let origin = match (asked(error), error.kind()) {
            (Some(kind), _) => match kind {
                ModelErrorKind::ContextOverflow | ModelErrorKind::ContentFilter => FaultOrigin::Model,
                ModelErrorKind::RateLimit
                | ModelErrorKind::Unavailable
                | ModelErrorKind::BadResponse
                | ModelErrorKind::Canceled
                // An API may refuse one request for its schema and accept the next.
                | ModelErrorKind::Invalid
                | ModelErrorKind::Unsupported => FaultOrigin::Transport,
                ModelErrorKind::Auth | ModelErrorKind::Quota => FaultOrigin::Setup,
            },
            // A queue is full only for a while.
            (None, ErrorKind::LimitExceeded) if error.is_retryable() => FaultOrigin::Transport,
            // A context window that is too small is also the model's fault.
            (None, ErrorKind::ExecutionError | ErrorKind::LimitExceeded) => FaultOrigin::Model,
            (None, ErrorKind::NotPermitted | ErrorKind::Denied | ErrorKind::UnknownTool) => FaultOrigin::Setup,
            (None, _) => FaultOrigin::Transport,
        };
        Self { origin, message: clipped(&redactor.redact(error.message()), MAX_ERROR) }
    }
}

/// Returns the kind of the failed request behind an error, if there is one.
fn asked(error: &ToolError) -> Option<ModelErrorKind> {
    let mut cause: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<ModelError>() {
            return Some(error.kind);
        }
        cause = error.source();
    }
    None
}

impl Bencher<'_> {
    /// Calls a tool with one model and no fallback, at the lowest priority.
    async fn call(
        &self,
        tool: &Entry,
        input: Value,
        model: &str,
        mode: Option<&str>,
        requests: &RequestAllowance,
        trace: &str,
    ) -> (Outcome, TraceId) {
        let lineage = Lineage::named(&format!("{}-{trace}", self.name));
        let id = lineage.trace;
        let run = RunContext {
            lineage,
            priority: Priority::Low,
            llm: LlmOptions {
                model: Some(model.into()),
                mode: mode.map(Arc::from),
                requests: requests.clone(),
                ..LlmOptions::default()
            },
            ..RunContext::new(
                Arc::clone(&self.session),
                Arc::clone(&self.prepared.snapshot),
                Arc::clone(&self.policy),
                Arc::new(NoApprover { remedy: "nobody is there to ask".into() }),
            )
        };
        let call_id = CallId::new(format!("{}-{trace}", self.name));
        let call = ToolCall::new(call_id.clone(), tool.id().as_str().to_owned(), RawArguments::Value(input));
        let outcome = self.executor.run_calls(vec![call], &run).await.pop();
        let none =
            || Outcome::failed(call_id, ToolError::new(ErrorKind::InternalError, "the executor gave no outcome"));
        (outcome.unwrap_or_else(none), id)
    }

    /// Makes a call of the plan, with at most these requests, and evaluates the result.
    pub(super) async fn measure(&self, cell: &Cell, requests: &RequestAllowance) -> FinishedCall {
        let redactor = &*self.executor.services().redactor;
        let plan = &self.prepared.plan;
        let (planned, model) = (&plan.tools[cell.tool], &plan.models[cell.model]);
        let case = &planned.cases[cell.case];
        let entry = &self.prepared.entries[cell.tool];
        let (input, mode) = (case.input.clone(), planned.mode.as_deref());
        let (outcome, trace) = self.call(entry, input, model, mode, requests, &cell.key).await;
        let mut took = FinishedCall {
            measured: Measurement {
                key: cell.key.clone(),
                tool: planned.tool.to_string(),
                case: redactor.redact(&case.id).into_owned(),
                model: model.clone(),
                repeat: cell.repeat,
                done: true,
                score: 0.0,
                checks: Vec::new(),
                error: None,
                output: kept(&redactor.redact(&outcome.text())),
                input_tokens: 0,
                output_tokens: 0,
                requests: 0,
                cost_usd: None,
                judge_cost_usd: None,
                charged_usd: None,
                latency_ms: outcome.latency.as_secs_f64() * 1e3,
                at_ms: 0,
            },
            trace,
            judge_traces: Vec::new(),
            fault: None,
            by_judge: false,
        };
        if let Some(error) = &outcome.error {
            took.failed(CallFault::of(error, redactor));
        } else {
            let output = outcome.structured.clone().unwrap_or_else(|| Value::String(outcome.text()));
            let shown = redactor.redact_value(&output);
            for (index, check) in case.checks.iter().enumerate() {
                let verdict = match check.kind.verdict(&output) {
                    // A note contains the beginnings of texts. Redaction could not recognise the rest of a cut secret.
                    Some(verdict) if shown != output => {
                        let note = check.kind.verdict(&shown).and_then(|verdict| verdict.note);
                        Verdict { note: verdict.note.and(note), ..verdict }
                    }
                    Some(verdict) => verdict,
                    None => {
                        let name = format!("{}-judge-{index}", cell.key);
                        let (said, judge) = self.judged(check, &output, requests, &name).await;
                        took.judge_traces.extend(judge);
                        match said {
                            JudgeResult::Verdict(verdict) => verdict,
                            JudgeResult::Failed(fault) => {
                                // The model is not to blame for its judge.
                                let origin = if fault.origin == FaultOrigin::Setup {
                                    FaultOrigin::Setup
                                } else {
                                    FaultOrigin::Transport
                                };
                                took.failed(CallFault { origin, ..fault });
                                took.by_judge = true;
                                break;
                            }
                        }
                    }
                };
                took.measured.checks.push(CheckScore::new(check.kind.word(), check.weight, verdict));
            }
            if took.fault.is_none() {
                took.measured.score = CheckScore::mean(&took.measured.checks);
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        took.measured.at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        took
    }

    /// Has a rubric judged, by a call with its own trace.
    async fn judged(
        &self,
        check: &Check,
        output: &Value,
        requests: &RequestAllowance,
        trace: &str,
    ) -> (JudgeResult, Option<TraceId>) {
        let nothing = |note: &str| JudgeResult::Verdict(Verdict { value: 0.0, note: Some(note.to_owned()) });
        let (Kind::Rubric { task, criteria, min, .. }, Some(tool), Some(judge)) =
            (&check.kind, &self.prepared.judge, &self.prepared.plan.judge)
        else {
            return (nothing("there is no judge"), None);
        };
        let Some(answer) = check.kind.judged_text(output) else { return (nothing("there is no text to judge"), None) };
        let mut input = json!({"task": task, "answer": answer});
        if !criteria.is_empty() {
            input["criteria"] = json!(criteria);
        }
        let (outcome, id) = self.call(tool, input, judge, None, requests, trace).await;
        if let Some(error) = &outcome.error {
            let mut fault = CallFault::of(error, &*self.executor.services().redactor);
            fault.message = format!("the judge {judge} gave no score: {}", fault.message);
            return (JudgeResult::Failed(fault), Some(id));
        }
        let score = outcome.structured.as_ref().and_then(|value| value["score"].as_f64()).unwrap_or(f64::NAN);
        (JudgeResult::Verdict(judged(score, *min)), Some(id))
    }
}

impl FinishedCall {
    fn failed(&mut self, fault: CallFault) {
        self.measured.done = fault.origin == FaultOrigin::Model;
        self.measured.error = Some(fault.message.clone());
        self.fault = (fault.origin != FaultOrigin::Model).then_some(fault);
    }
}

/// Returns the beginning of an output.
fn kept(text: &str) -> String {
    let mut out: String = text.chars().take(MAX_OUTPUT).collect();
    if text.chars().nth(MAX_OUTPUT).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use toolwright_core::secret::NoRedaction;

    use super::*;

    #[test]
    fn a_full_queue_is_not_the_models_fault() {
        let limit = || ToolError::new(ErrorKind::LimitExceeded, "too much");
        assert_eq!(CallFault::of(&limit(), &NoRedaction).origin, FaultOrigin::Model);
        assert_eq!(CallFault::of(&limit().retryable(), &NoRedaction).origin, FaultOrigin::Transport);
    }
}
