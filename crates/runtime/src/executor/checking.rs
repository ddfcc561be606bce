//! Before the stages: calls are checked, and what a model may mend is mended once.

use std::time::Duration;

use futures_util::future::join_all;
use toolwright_core::call::{Caller, Landing, Rejection, ToolCall, ValidCall, check, land};
use toolwright_core::catalogue::Snapshot;
use toolwright_core::event::Event;
use toolwright_core::model::{IgnoreModelEvents, ModelError, ModelErrorKind, ModelRequest, ModelResponse};
use toolwright_core::plan::Planned;
use toolwright_core::policy::Effect;
use toolwright_core::repair::{self, RepairEnd, RepairRecord};
use toolwright_core::variables::Outlook;

use super::pipeline::policy;
use super::{Executor, RunContext};

/// Who mends the arguments of calls that are not valid. Each attempt is a request to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepairOptions {
    /// The model, `provider/model`, asked through the client of the services.
    pub model: String,
    /// Limit of the request.
    pub timeout: Duration,
}

impl RepairOptions {
    /// By `model`, within a minute.
    #[must_use]
    pub fn by(model: impl Into<String>) -> Self {
        Self { model: model.into(), timeout: Duration::from_secs(60) }
    }
}

impl Executor {
    /// The call, if it may start by itself before its turn is over (SPEC section 6): it is valid as it was
    /// written, under a schema, without references, and policy lets it run without a question. The events
    /// tell of nothing; what is not returned is to be run with the rest of its turn.
    #[must_use]
    pub fn startable(&self, call: ToolCall, snapshot: &Snapshot, run: &RunContext) -> Option<ValidCall> {
        let call = check(call, snapshot, caller(run)).ok()?;
        let refers = !call.pending.is_empty() || !call.provenance.resolved.is_empty();
        if refers || call.unvalidated.is_some() {
            return None;
        }
        let scope = call.entry.provider.scope(call.entry.id(), &call.arguments, &run.session);
        (policy(&call, scope, run).effect == Effect::Allow).then_some(call)
    }

    /// Checks calls, in order. Of those that are rejected for their arguments, as many as may run in a turn
    /// are mended if there is somebody to do it.
    pub(super) async fn checked(
        &self,
        calls: Vec<ToolCall>,
        snapshot: &Snapshot,
        run: &RunContext,
    ) -> Vec<Result<ValidCall, Box<Rejection>>> {
        let mut left = self.options.calls_per_turn;
        let checked = calls.into_iter().map(|call| {
            let checked = check(call, snapshot, caller(run));
            let asks = checked.as_ref().err().and_then(|rejection| {
                let repair = self.options.repair.as_ref().filter(|_| left > 0)?;
                let request = repair::request(rejection)?;
                left -= 1;
                Some((repair, request))
            });
            async move {
                match (checked, asks) {
                    (Err(rejection), Some((options, request))) => {
                        self.mended(rejection, options, request, snapshot, run).await
                    }
                    (checked, _) => checked,
                }
            }
        });
        // Every call is checked before the first is asked about, so that `left` counts in call order.
        let checked: Vec<_> = checked.collect();
        let checked = join_all(checked).await;
        checked.iter().flatten().for_each(|call| self.warn_of_schema(call));
        checked
    }

    async fn mended(
        &self,
        mut rejection: Box<Rejection>,
        options: &RepairOptions,
        request: ModelRequest,
        snapshot: &Snapshot,
        run: &RunContext,
    ) -> Result<ValidCall, Box<Rejection>> {
        let mut record = RepairRecord::begin(options.model.as_str(), &rejection);
        let answer = self.ask(options, &request, run).await.map_err(|error| error.message);
        let checked = match answer.and_then(|answer| repair::read(&answer)) {
            Ok(candidate) => {
                record.candidate = Some(candidate.clone());
                Some(check(repair::retry(&rejection, candidate), snapshot, caller(run)))
            }
            Err(why) => {
                record.end = RepairEnd::Failed(why);
                None
            }
        };
        match &checked {
            Some(Ok(_)) => record.end = RepairEnd::Accepted,
            Some(Err(again)) => record.end = RepairEnd::Rejected(again.violations.clone()),
            None => {}
        }
        self.tell(&rejection, &record, run);
        match checked {
            Some(Ok(mut call)) => {
                call.provenance.matched = rejection.provenance.matched;
                call.provenance.repair = Some(Box::new(record));
                Ok(call)
            }
            _ => {
                rejection.provenance.repair = Some(Box::new(record));
                Err(rejection)
            }
        }
    }

    async fn ask(
        &self,
        options: &RepairOptions,
        request: &ModelRequest,
        run: &RunContext,
    ) -> Result<ModelResponse, ModelError> {
        let services = &self.options.services;
        let (started, cancel) = (services.clock.now(), run.cancel.child());
        let asking = services.model.complete(&options.model, request, &IgnoreModelEvents, &cancel);
        let answer = tokio::time::timeout(options.timeout, asking).await.unwrap_or_else(|_| {
            let limit = toolwright_core::duration::format(options.timeout);
            Err(ModelError::new(ModelErrorKind::Unavailable, format!("the model did not answer within {limit}")))
        });
        self.account_model(&run.session, &options.model, request, &answer, started);
        answer
    }

    fn tell(&self, rejection: &Rejection, record: &RepairRecord, run: &RunContext) {
        let Some(entry) = &rejection.entry else { return };
        let services = &self.options.services;
        services.events.emit(Event::CallRepair {
            session: run.session.id.clone(),
            call: rejection.call_id.clone(),
            tool: entry.id().clone(),
            record: Box::new(record.redacted(&*services.redactor)),
        });
    }

    /// A foreign schema that cannot be used leaves its tool usable; the operator should know.
    fn warn_of_schema(&self, call: &ValidCall) {
        if let Err(error) = call.entry.tool.schema() {
            let message = format!("the arguments of {} cannot be validated: {error}", call.entry.id());
            self.options.services.events.emit(Event::Warning { code: "schema_unusable".into(), message });
        }
    }
}

fn caller(run: &RunContext) -> Caller<'_> {
    Caller { principal: &run.session.principal, variables: run.variables.as_deref() }
}

/// Calls with their places in the plan.
pub(super) type Indexed<T> = Vec<(usize, T)>;

/// Puts the values that calls waited for in. Returns those that can go on, and those that still wait; with
/// nothing else under way, none does.
pub(super) fn landed(waiting: Indexed<ValidCall>, run: &RunContext) -> (Indexed<Planned>, Indexed<ValidCall>) {
    let variables = run.variables.as_deref();
    let try_all = |waiting: Indexed<ValidCall>, outlook: Outlook| {
        let (mut ready, mut rest) = (Vec::new(), Vec::new());
        for (index, call) in waiting {
            match land(call, variables, outlook) {
                Ok(Landing::Ready(call)) => ready.push((index, Planned::Run(Box::new(call)))),
                Ok(Landing::Waits(call)) => rest.push((index, call)),
                Err(rejection) => ready.push((index, Planned::Reject(rejection))),
            }
        }
        (ready, rest)
    };
    let (ready, rest) = try_all(waiting, Outlook::Open);
    if ready.is_empty() { try_all(rest, Outlook::Closed) } else { (ready, rest) }
}
