//! One call, measured.

use std::error::Error;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use toolwright::Toolwright;
use toolwright::core::approval::NoApprover;
use toolwright::core::model::{ModelError, ModelErrorKind, RequestAllowance};
use toolwright::core::{
    CallId, Entry, ErrorKind, Lineage, Outcome, Policy, Profile, RawArguments, Session, ToolCall, ToolError, TraceId,
};
use toolwright::runtime::executor::LlmTerms;
use toolwright::runtime::{Priority, RunContext};
use toolwright_eval::{Cell, Measured, Scored, Verdict, clipped};

use super::judge::Judged;
use super::prepare::Prepared;
use crate::terminal::screen::{redacted, redacted_value};

/// Characters of an output that are kept.
const MAX_OUTPUT: usize = 2000;
/// Characters of an error.
const MAX_ERROR: usize = 500;

/// What measures.
pub(super) struct Bencher<'a> {
    app: &'a Arc<Toolwright>,
    pub(super) prepared: &'a Prepared,
    session: Arc<Session>,
    policy: Arc<Policy>,
    /// Tells the traces of this run from those of others.
    name: String,
}

/// A call that has ended.
pub(super) struct FinishedCall {
    /// What it came to; what it cost is not in it yet.
    pub(super) measured: Measured,
    /// The trace of the call.
    pub(super) trace: TraceId,
    /// Those of its judges.
    pub(super) judged: Vec<TraceId>,
    /// Why no result says anything of the model, where that is so.
    pub(super) fault: Option<Fault>,
    /// Whether that is so of the judge.
    pub(super) by_judge: bool,
}

/// Whose fault a failure is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    /// Whose.
    pub(super) whose: FaultOrigin,
    /// What went wrong.
    pub(super) what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultOrigin {
    /// The model's: its answer was no valid result.
    Model,
    /// That of the way to it, which may pass.
    Way,
    /// That of the way to it, which will not pass by itself: a key, an account, a rule.
    Setting,
}

impl Fault {
    /// Whose fault this error of a tool is.
    pub(super) fn of(error: &ToolError) -> Self {
        let whose = match (asked(error), error.kind()) {
            (Some(kind), _) => match kind {
                ModelErrorKind::ContextOverflow | ModelErrorKind::ContentFilter => FaultOrigin::Model,
                ModelErrorKind::RateLimit
                | ModelErrorKind::Unavailable
                | ModelErrorKind::BadResponse
                | ModelErrorKind::Canceled
                // An API may refuse one request, for its schema, and take the next.
                | ModelErrorKind::Invalid
                | ModelErrorKind::Unsupported => FaultOrigin::Way,
                ModelErrorKind::Auth | ModelErrorKind::Quota => FaultOrigin::Setting,
            },
            // A queue that is full is so for a while.
            (None, ErrorKind::LimitExceeded) if error.is_retryable() => FaultOrigin::Way,
            // A window that is too small is the model's, too.
            (None, ErrorKind::ExecutionError | ErrorKind::LimitExceeded) => FaultOrigin::Model,
            (None, ErrorKind::NotPermitted | ErrorKind::Denied | ErrorKind::UnknownTool) => FaultOrigin::Setting,
            (None, _) => FaultOrigin::Way,
        };
        Self { whose, what: clipped(&redacted(error.message()), MAX_ERROR) }
    }
}

/// The kind of the failed request behind an error, if one is.
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

impl<'a> Bencher<'a> {
    pub(super) fn new(app: &'a Arc<Toolwright>, prepared: &'a Prepared, name: &str) -> Self {
        Self {
            app,
            prepared,
            session: app.session(name),
            policy: Arc::new(app.config().policy(Some(Profile::Owner), Profile::Owner)),
            name: name.to_owned(),
        }
    }

    /// Calls a tool with one model, which no other takes the place of, behind everything that somebody waits for.
    pub(super) async fn call(
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
            llm: LlmTerms {
                model: Some(model.into()),
                mode: mode.map(Arc::from),
                requests: requests.clone(),
                ..LlmTerms::default()
            },
            ..RunContext::new(
                Arc::clone(&self.session),
                Arc::clone(&self.prepared.snapshot),
                Arc::clone(&self.policy),
                Arc::new(NoApprover { remedy: "nobody is there to ask".into() }),
            )
        };
        let call_id = CallId::new(format!("{}-{trace}", self.name));
        let call = ToolCall {
            id: call_id.clone(),
            name: tool.id().as_str().to_owned(),
            arguments: RawArguments::Value(input),
        };
        let outcome = self.app.executor().run_calls(vec![call], &run).await.pop();
        let none =
            || Outcome::failed(call_id, ToolError::new(ErrorKind::InternalError, "the executor gave no outcome"));
        (outcome.unwrap_or_else(none), id)
    }

    /// Makes a call of the plan, with these requests at most, and looks at what came of it.
    pub(super) async fn measure(&self, cell: &Cell, requests: &RequestAllowance) -> FinishedCall {
        let plan = &self.prepared.plan;
        let (planned, model) = (&plan.tools[cell.tool], &plan.models[cell.model]);
        let case = &planned.cases[cell.case];
        let entry = &self.prepared.entries[cell.tool];
        let (input, mode) = (case.input.clone(), planned.mode.as_deref());
        let (outcome, trace) = self.call(entry, input, model, mode, requests, &cell.key).await;
        let mut took = FinishedCall {
            measured: Measured {
                key: cell.key.clone(),
                tool: planned.tool.to_string(),
                case: redacted(&case.id).into_owned(),
                model: model.clone(),
                repeat: cell.repeat,
                done: true,
                score: 0.0,
                checks: Vec::new(),
                error: None,
                output: kept(&outcome.text()),
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
            judged: Vec::new(),
            fault: None,
            by_judge: false,
        };
        if let Some(error) = &outcome.error {
            took.failed(Fault::of(error));
        } else {
            let output = outcome.structured.clone().unwrap_or_else(|| Value::String(outcome.text()));
            let shown = redacted_value(&output);
            for (index, check) in case.checks.iter().enumerate() {
                let verdict = match check.kind.verdict(&output) {
                    // A note has the beginnings of texts: of a secret that is cut, the rest would not be known for one.
                    Some(verdict) if shown != output => {
                        let note = check.kind.verdict(&shown).and_then(|verdict| verdict.note);
                        Verdict { note: verdict.note.and(note), ..verdict }
                    }
                    Some(verdict) => verdict,
                    None => {
                        let name = format!("{}-judge-{index}", cell.key);
                        let (said, judge) = self.judged(check, &output, requests, &name).await;
                        took.judged.extend(judge);
                        match said {
                            Judged::Verdict(verdict) => verdict,
                            Judged::Failed(fault) => {
                                // The model is not to blame for its judge.
                                let whose = if fault.whose == FaultOrigin::Setting {
                                    FaultOrigin::Setting
                                } else {
                                    FaultOrigin::Way
                                };
                                took.failed(Fault { whose, ..fault });
                                took.by_judge = true;
                                break;
                            }
                        }
                    }
                };
                took.measured.checks.push(Scored::new(check.kind.word(), check.weight, verdict));
            }
            if took.fault.is_none() {
                took.measured.score = Scored::mean(&took.measured.checks);
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        took.measured.at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        took
    }
}

impl FinishedCall {
    fn failed(&mut self, fault: Fault) {
        self.measured.done = fault.whose == FaultOrigin::Model;
        self.measured.error = Some(fault.what.clone());
        self.fault = (fault.whose != FaultOrigin::Model).then_some(fault);
    }
}

/// The beginning of an output, without secrets.
fn kept(text: &str) -> String {
    let text = redacted(text);
    let mut out: String = text.chars().take(MAX_OUTPUT).collect();
    if text.chars().nth(MAX_OUTPUT).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_that_is_full_is_not_the_model_s_fault() {
        let limit = || ToolError::new(ErrorKind::LimitExceeded, "too much");
        assert_eq!(Fault::of(&limit()).whose, FaultOrigin::Model);
        assert_eq!(Fault::of(&limit().retryable()).whose, FaultOrigin::Way);
    }
}
