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
use crate::screen::{redacted, redacted_value};

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
pub(super) struct Took {
    /// What it came to; what it cost is not in it yet.
    pub(super) measured: Measured,
    /// The trace of the call.
    pub(super) trace: TraceId,
    /// Those of its judges.
    pub(super) judged: Vec<TraceId>,
    /// Why no result says anything of the model, where that is so.
    pub(super) blame: Option<Blame>,
    /// Whether that is so of the judge.
    pub(super) by_judge: bool,
}

/// Whose fault a failure is.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Blame {
    /// Whose.
    pub(super) whose: Whose,
    /// What went wrong.
    pub(super) what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The model's: its answer was no valid result.
    Model,
    /// That of the way to it, which may pass.
    Way,
    /// That of the way to it, which will not pass by itself: a key, an account, a rule.
    Setting,
}

impl Blame {
    /// Whose fault this error of a tool is.
    pub(super) fn of(error: &ToolError) -> Self {
        let whose = match (asked(error), error.kind()) {
            (Some(kind), _) => match kind {
                ModelErrorKind::ContextOverflow | ModelErrorKind::ContentFilter => Whose::Model,
                ModelErrorKind::RateLimit
                | ModelErrorKind::Unavailable
                | ModelErrorKind::BadResponse
                | ModelErrorKind::Canceled
                // An API may refuse one request, for its schema, and take the next.
                | ModelErrorKind::Invalid
                | ModelErrorKind::Unsupported => Whose::Way,
                ModelErrorKind::Auth | ModelErrorKind::Quota => Whose::Setting,
            },
            // A queue that is full is so for a while.
            (None, ErrorKind::LimitExceeded) if error.is_retryable() => Whose::Way,
            // A window that is too small is the model's, too.
            (None, ErrorKind::ExecutionError | ErrorKind::LimitExceeded) => Whose::Model,
            (None, ErrorKind::NotPermitted | ErrorKind::Denied | ErrorKind::UnknownTool) => Whose::Setting,
            (None, _) => Whose::Way,
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
    pub(super) async fn measure(&self, cell: &Cell, requests: &RequestAllowance) -> Took {
        let plan = &self.prepared.plan;
        let (planned, model) = (&plan.tools[cell.tool], &plan.models[cell.model]);
        let case = &planned.cases[cell.case];
        let entry = &self.prepared.entries[cell.tool];
        let (input, mode) = (case.input.clone(), planned.mode.as_deref());
        let (outcome, trace) = self.call(entry, input, model, mode, requests, &cell.key).await;
        let mut took = Took {
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
            blame: None,
            by_judge: false,
        };
        if let Some(error) = &outcome.error {
            took.failed(Blame::of(error));
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
                            Judged::Failed(blame) => {
                                // The model is not to blame for its judge.
                                let whose = if blame.whose == Whose::Setting { Whose::Setting } else { Whose::Way };
                                took.failed(Blame { whose, ..blame });
                                took.by_judge = true;
                                break;
                            }
                        }
                    }
                };
                took.measured.checks.push(Scored::new(check.kind.word(), check.weight, verdict));
            }
            if took.blame.is_none() {
                took.measured.score = Scored::mean(&took.measured.checks);
            }
        }
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        took.measured.at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        took
    }
}

impl Took {
    fn failed(&mut self, blame: Blame) {
        self.measured.done = blame.whose == Whose::Model;
        self.measured.error = Some(blame.what.clone());
        self.blame = (blame.whose != Whose::Model).then_some(blame);
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
        assert_eq!(Blame::of(&limit()).whose, Whose::Model);
        assert_eq!(Blame::of(&limit().retryable()).whose, Whose::Way);
    }
}
