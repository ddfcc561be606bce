//! Checks calls before the other stages, and lets a model repair each repairable call once.

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, join_all};
use serde_json::Value;
use toolwright_core::call::{Caller, RawArguments, Rejection, ToolCall, ValidCall, check};
use toolwright_core::catalogue::Snapshot;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Event;
use toolwright_core::indirect_call::wrapped_call;
use toolwright_core::model::{ModelRequest, ModelResponse, Usage};
use toolwright_core::model_repair::{self, RepairOutcome, RepairRecord};
use toolwright_core::policy::{Decision, Effect};
use toolwright_core::redact::{learn_secrets, learn_written};
use toolwright_core::session::CallId;
use toolwright_core::taint::as_whole;
use toolwright_core::variables::ExceptPaths;

use super::context::mark;
use super::pipeline::catch_panic_sync;
use super::{Executor, RepairOptions, RunContext};

/// A call after the check.
type CheckResult = Result<ValidCall, Box<Rejection>>;

/// The calls of a turn after the check.
#[derive(Debug)]
pub struct CheckedCalls {
    /// The calls in call order, each valid or rejected with the reason.
    pub calls: Vec<Result<ValidCall, Box<Rejection>>>,
    /// Usage of the repairs.
    pub usage: Usage,
}

impl CheckedCalls {
    /// Returns the calls that a model has repaired. With these records [`Executor::check_calls`] checks the same
    /// candidates again without another request.
    #[must_use]
    pub fn model_repairs(&self) -> Vec<(CallId, RepairRecord)> {
        let record = |call: &ValidCall| Some((call.id.clone(), (**call.provenance.repair.as_ref()?).clone()));
        self.calls.iter().flatten().filter_map(record).collect()
    }
}

impl Executor {
    /// Returns the call if it may start before its turn is complete: it is valid under a schema without a model's help
    /// (coercion and the JSON repairer count as valid), has no references, and policy allows it without a question. Has
    /// no side effects: no guard runs, no event is emitted. Run other calls with the rest of their turn.
    #[must_use]
    pub fn startable(&self, call: ToolCall, run: &RunContext) -> Option<ValidCall> {
        let call = check(call, &run.snapshot, caller(run)).ok()?;
        // Later calls may refer to its result before it is known to have ended.
        let refers = !call.pending.is_empty() || !call.provenance.resolved.is_empty() || call.meta.writes().is_some();
        // The approver of its inner calls is available only after the turn is complete.
        let awaits = call.awaits_others() || !run.read_taint.is_empty();
        if refers || awaits || call.unvalidated.is_some() {
            return None;
        }
        let is_allowed = catch_panic_sync(|| {
            let scope = call.entry.provider.scope(call.entry.id(), &call.arguments, &run.session);
            run.policy.decide(&run.query(&call, scope)).effect == Effect::Allow
        });
        // A panic here recurs in the call's turn, and ends that call then.
        is_allowed.unwrap_or(false).then_some(call)
    }

    /// Returns the current decision of check and policy about a call, and about the call inside an activity. No guard
    /// runs.
    ///
    /// # Errors
    /// The reason why the check rejects it.
    pub fn verdict(&self, call: ToolCall, run: &RunContext) -> Result<Decision, ToolError> {
        let mut call = check(call, &run.snapshot, caller(run)).map_err(|rejection| rejection.error)?;
        mark(&mut call, &run.read_taint);
        let decide = |call: &ValidCall| {
            let scope = call.entry.provider.scope(call.entry.id(), &call.arguments, &run.session);
            run.policy.decide(&run.query(call, scope))
        };
        let judged = catch_panic_sync(|| call.judge(&run.snapshot, caller(run), decide));
        let judged = judged.map_err(|_| ToolError::new(ErrorKind::InternalError, "it cannot be judged"))?;
        judged.map_err(|rejection| rejection.error)
    }

    /// Checks the calls of one turn, in order, for [`Executor::run_checked`]. Calls that are rejected for their
    /// arguments are repaired if a repair model is configured, up to the turn's limit of calls. A call with a record in
    /// `mended` is checked with that candidate in place of its arguments.
    pub async fn check_calls(
        &self,
        calls: Vec<ToolCall>,
        mended: &[(CallId, RepairRecord)],
        run: &RunContext,
    ) -> CheckedCalls {
        let snapshot = &*run.snapshot;
        let mut left = self.options.defaults.calls_per_turn;
        // All calls are checked before the first repair, so that `left` counts in call order.
        let (mut checked, mut asks) = (Vec::with_capacity(calls.len()), Vec::new());
        let mut written: Vec<(String, Option<String>)> = Vec::new();
        for call in calls {
            // A value that an earlier call of the turn writes does not exist yet.
            let except = run.variables.as_deref().filter(|_| !written.is_empty());
            let places = written.iter().map(|(path, instance)| (path.as_str(), instance.as_deref()));
            let except = except.map(|variables| ExceptPaths::new(variables, places));
            let mut caller = caller(run);
            if let Some(except) = &except {
                caller.variables = Some(except);
            }
            let is_excluded = run.excluded.iter().any(|(id, _)| *id == call.id);
            let record = mended.iter().find(|(id, _)| *id == call.id).map(|(_, record)| record);
            learn_written(&call, snapshot, &*self.options.services.redactor);
            let ended = match record.and_then(|record| Some((record, record.candidate.clone()?))) {
                Some((record, candidate)) => check_mended(call, record, candidate, snapshot, caller),
                None => check(call, snapshot, caller),
            };
            let meta = match &ended {
                Ok(call) => &call.meta,
                Err(rejection) => &rejection.meta,
            };
            written.extend(meta.writes().map(|(path, instance)| (path.to_owned(), instance.map(str::to_owned))));
            if let Some(options) = self.options.repair.as_ref().filter(|_| left > 0 && !is_excluded)
                && let Some(request) = ended.as_ref().err().and_then(|rejection| model_repair::request(rejection))
            {
                left -= 1;
                asks.push((checked.len(), options, request));
            }
            checked.push(ended);
        }
        let usage = if asks.is_empty() { Usage::default() } else { self.repair_calls(&mut checked, asks, run).await };
        checked.iter().flatten().for_each(|call| self.warn_of_schema(call));
        checked.iter_mut().flatten().for_each(|call| mark(call, &run.read_taint));
        if let Some(outer) = &run.inner {
            checked.iter_mut().flatten().for_each(|call| outer.mark(call));
        }
        CheckedCalls { calls: checked, usage }
    }

    /// Repairs the given calls concurrently. Returns the usage.
    fn repair_calls<'a>(
        &'a self,
        checked: &'a mut [CheckResult],
        asks: Vec<(usize, &'a RepairOptions, ModelRequest)>,
        run: &'a RunContext,
    ) -> BoxFuture<'a, Usage> {
        async move {
            let mended = asks.into_iter().filter_map(|(index, options, request)| {
                let rejection = checked.get(index)?.as_ref().err()?.clone();
                Some(async move { (index, self.repair_with_model(rejection, options, request, run).await) })
            });
            let mut usage = Usage::default();
            for (index, (ended, used)) in join_all(mended.collect::<Vec<_>>()).await {
                usage.add(used);
                checked[index] = ended;
            }
            usage
        }
        .boxed()
    }

    async fn repair_with_model(
        &self,
        mut rejection: Box<Rejection>,
        options: &RepairOptions,
        request: ModelRequest,
        run: &RunContext,
    ) -> (CheckResult, Usage) {
        let mut record = RepairRecord::begin(options.model.as_str(), &rejection);
        // Arguments that could not be parsed before may be now, so their secrets are learnt before the answer is
        // recorded.
        let on_answer = |answer: &ModelResponse| {
            if let (Some(entry), Ok(candidate)) = (&rejection.entry, model_repair::read(answer)) {
                learn_secrets(entry, &candidate, &*self.options.services.redactor);
            }
        };
        let answer = self.ask_model_observed(&options.model, &request, Some(options.timeout), run, &on_answer).await;
        let usage = answer.as_ref().map_or_else(|error| error.usage, |answer| answer.usage);
        let answer = answer.map_err(|error| error.message);
        let checked = match answer.and_then(|answer| model_repair::read(&answer)) {
            Ok(candidate) => {
                record.candidate = Some(candidate.clone());
                Some(check(model_repair::retry(&rejection, candidate), &run.snapshot, caller(run)))
            }
            Err(why) => {
                record.end = RepairOutcome::Failed(why);
                None
            }
        };
        match &checked {
            Some(Ok(_)) => record.end = RepairOutcome::Accepted,
            Some(Err(again)) => record.end = RepairOutcome::Rejected(again.violations.clone()),
            None => {}
        }
        self.report_repair(&rejection, &record, run);
        let ended = match checked {
            Some(Ok(mut call)) => {
                call.provenance.matched = rejection.provenance.matched;
                call.provenance.tainted.extend(as_whole(&rejection.provenance.tainted));
                call.provenance.repair = Some(Box::new(record));
                Ok(call)
            }
            _ => {
                rejection.provenance.repair = Some(Box::new(record));
                Err(rejection)
            }
        };
        (ended, usage)
    }

    fn report_repair(&self, rejection: &Rejection, record: &RepairRecord, run: &RunContext) {
        let Some(entry) = &rejection.entry else { return };
        let services = &self.options.services;
        learn_secrets(entry, &rejection.arguments, &*services.redactor);
        services.events.emit(Event::CallRepair {
            session: run.session.id.clone(),
            call: rejection.call_id.clone(),
            tool: entry.id().clone(),
            record: Box::new(record.redacted(&*services.redactor)),
        });
    }

    /// Warns the operator of a third-party schema that cannot be used. Its tool stays usable.
    fn warn_of_schema(&self, call: &ValidCall) {
        if let Err(error) = call.entry.tool.schema() {
            let message = format!("the arguments of {} cannot be validated: {error}", call.entry.id());
            self.options.services.events.emit(Event::Warning { code: "schema_unusable".into(), message });
        }
    }
}

/// Checks a call that was repaired before. It counts as repaired whatever the result.
fn check_mended(
    call: ToolCall,
    record: &RepairRecord,
    candidate: Value,
    snapshot: &Snapshot,
    caller: Caller<'_>,
) -> Result<ValidCall, Box<Rejection>> {
    // The candidate is for the rejected tool: the inner one, if the call carries another.
    let name = wrapped_call(&call, snapshot).map_or(call.name, |inside| inside.name);
    let call = ToolCall::new(call.id, name, RawArguments::Value(candidate)).with_meta(call.meta);
    let mut checked = check(call, snapshot, caller);
    let provenance = match &mut checked {
        Ok(call) => &mut call.provenance,
        Err(rejection) => &mut rejection.provenance,
    };
    provenance.repair = Some(Box::new(record.clone()));
    checked
}

/// Returns the caller of the calls.
fn caller(run: &RunContext) -> Caller<'_> {
    Caller { principal: &run.session.principal, variables: run.variables.as_deref() }
}
