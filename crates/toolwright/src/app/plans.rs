//! Checks, stores and runs plans: documents of calls whose arguments refer to each other's results.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolwright_agent::{
    AfterPlan, DriverError, RunConfig, RunOptions, RunReport, RunState, Status, correction_request, plan_request,
    read_plan, replan_request,
};
use toolwright_core::approval::Approver;
use toolwright_core::model::Usage;
use toolwright_core::outcome::value_of_text;
use toolwright_core::plan::{
    PlanApproval, PlanCall, PlanCheck, PlanContext, PlanDocument, call_id, check_per_input, unreadable,
};
use toolwright_core::policy::UserRequest;
use toolwright_core::run_input::MAX_INSTANCES;
use toolwright_core::variables::Variables as _;
use toolwright_core::{Cancel, Lineage, Outcome, Policy, Profile, RunInput, Session};
use toolwright_runtime::executor::ENDED_MS;
use toolwright_runtime::{RunContext, RunVariables};

use super::{ClientOptions, Toolwright};
use crate::error::{Error, PlanRefused};

/// Replaces the user's request in a plan that was written before.
const NO_REQUEST: &str = "Run this plan.";

/// Options of one run of a plan.
#[derive(Clone)]
pub struct PlanOptions {
    /// The profile for calls that no rule matches. Default: that of the configuration, else `ask`.
    pub profile: Option<Profile>,
    /// The values of `†input.x`, for all calls or by instance. A saved plan keeps them.
    pub input: RunInput,
    /// Answers if the policy asks about a call that no approval of the plan covers.
    pub approver: Arc<dyn Approver>,
    /// The most that its calls may cost, in US dollars, by the hints of their tools. Default: unlimited.
    pub max_cost: Option<f64>,
    /// Whether the whole plan is approved, as checked. A call about which the policy asks for another reason, or whose
    /// written arguments have changed, is asked about separately.
    pub approved: bool,
    /// Cancels the calls.
    pub cancel: Cancel,
}

impl std::fmt::Debug for PlanOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanOptions").field("profile", &self.profile).finish_non_exhaustive()
    }
}

/// The model that writes a plan.
#[derive(Debug, Clone, Default)]
pub struct PlanWriter {
    /// The model, `provider/model`.
    pub model: String,
    /// Globs on the tools that it may use; empty for all.
    pub tools: Vec<String>,
    /// The profile that the plan is checked under.
    pub profile: Option<Profile>,
    /// The values of `†input.x`.
    pub input: RunInput,
    /// The most that the calls of the plan may cost, in US dollars, by the hints of their tools. Default: unlimited.
    pub max_cost: Option<f64>,
}

/// A plan that a model wrote.
#[derive(Debug)]
pub struct WrittenPlan {
    /// The plan.
    pub document: PlanDocument,
    /// Its check. If it has errors, the model did not correct them.
    pub check: PlanCheck,
    /// A person's approval of it.
    pub(super) approval: PlanApproval,
    /// The usage of the model.
    pub usage: Usage,
}

/// A call of a plan that has run.
#[derive(Debug)]
pub struct PlannedOutcome {
    /// The call as it was written.
    pub call: PlanCall,
    /// Its outcome; `None` if it has not ended.
    pub outcome: Option<Outcome>,
}

/// A plan that has run, as far as it could.
#[derive(Debug)]
pub struct PlanReport {
    /// The name under which it is stored.
    pub id: String,
    /// How it ended.
    pub status: Status,
    /// Its calls, in written order, followed by those of replacement plans.
    pub calls: Vec<PlannedOutcome>,
    state: Value,
    instances: Map<String, Value>,
}

impl PlanReport {
    /// Appends the calls of further inputs.
    fn join(&mut self, next: Self) {
        if self.status != next.status {
            let either = |status| self.status == status || next.status == status;
            let first = [Status::Cancelled, Status::Suspended].into_iter().find(|status| either(*status));
            self.status = first.unwrap_or(Status::Partial);
        }
        self.calls.extend(next.calls);
        self.instances.extend(next.instances);
    }

    /// Returns the results that calls stored under their paths, for all instances.
    #[must_use]
    pub fn state(&self) -> &Value {
        &self.state
    }

    /// Returns the results that each instance of the input sees: its own, and the shared ones.
    #[must_use]
    pub fn instances(&self) -> &Map<String, Value> {
        &self.instances
    }

    /// `{plan, status, calls: [{index, tool, arguments, ok, output | error, started_ms, ended_ms}], state}`, with times
    /// from the start of the plan. Adds `instances: {name: state}` if the input has any, and `instance` to calls for
    /// one.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let start =
            self.calls.iter().filter_map(|call| Some(span(call.outcome.as_ref()?)?.0)).min().unwrap_or_default();
        let calls: Vec<Value> = self.calls.iter().enumerate().map(|(index, call)| call.to_json(index, start)).collect();
        let mut report = json!({"plan": self.id, "status": self.status, "calls": calls, "state": self.state});
        if !self.instances.is_empty() {
            report["instances"] = self.instances.clone().into();
        }
        report
    }
}

impl PlannedOutcome {
    fn to_json(&self, index: usize, start: i64) -> Value {
        let mut value = self.ended(index, start);
        if let Some(instance) = &self.call.meta.instance {
            value["instance"] = instance.as_str().into();
        }
        value
    }

    fn ended(&self, index: usize, start: i64) -> Value {
        let Self { call, outcome } = self;
        let written = || Value::Object(call.arguments.clone());
        let Some(outcome) = outcome else {
            return json!({"index": index, "tool": call.tool, "arguments": written(), "ok": false,
                "error": {"kind": "not_run", "message": "it waits for a person, or for a call that does"}});
        };
        let mut value = json!({
            "index": index,
            "tool": call.tool,
            "arguments": outcome.ran_with.clone().unwrap_or_else(written),
            "ok": outcome.ok,
        });
        if let Some((started, ended)) = span(outcome) {
            value["started_ms"] = (started - start).into();
            value["ended_ms"] = (ended - start).into();
        }
        match &outcome.error {
            Some(error) => value["error"] = json!({"kind": error.kind(), "message": error.message()}),
            None => value["output"] = outcome.structured.clone().unwrap_or_else(|| value_of_text(outcome.text())),
        }
        value
    }
}

/// Returns when a call of a plan started and ended, in milliseconds since 1970.
fn span(outcome: &Outcome) -> Option<(i64, i64)> {
    let ended = outcome.extras.get(ENDED_MS)?.as_i64()?;
    let person = outcome.extras.get("person_ms").and_then(Value::as_i64).unwrap_or_default();
    let took = i64::try_from(outcome.latency.as_millis()).unwrap_or_default().saturating_add(person);
    Some((ended.saturating_sub(took), ended))
}

impl Toolwright {
    /// Checks a plan against the present catalogue and policy. Nothing runs. With many inputs, a plan that names no
    /// instance is checked for each of them.
    #[must_use]
    pub fn check_plan(
        &self,
        plan: &PlanDocument,
        profile: Option<Profile>,
        input: &RunInput,
        max_cost: Option<f64>,
    ) -> PlanCheck {
        let policy = self.config().policy(profile, Profile::Ask);
        let values = RunVariables::in_memory(for_all_tools(input));
        self.checked((plan, 0), None, (&self.call_session(), &policy, &values), max_cost).0
    }

    /// Checks a plan for the inputs after the first `before` of its array, and returns what an approval of it covers.
    fn checked(
        &self,
        (plan, before): (&PlanDocument, usize),
        request: Option<&Arc<UserRequest>>,
        (session, policy, values): (&Session, &Policy, &RunVariables),
        max_cost: Option<f64>,
    ) -> (PlanCheck, PlanApproval) {
        let context = PlanContext {
            snapshot: &self.catalogue.snapshot(),
            session,
            policy: Some(policy),
            request,
            variables: Some(values),
            max_cost,
        };
        let redactor = &*self.executor.services().redactor;
        let mut approval = None;
        let check = check_per_input(plan, (&values.given(), before), &context, |plan, check| {
            // One run has the inputs of one batch.
            approval.get_or_insert_with(|| PlanApproval::of(plan, check, redactor));
        });
        let approval = approval.unwrap_or_else(|| PlanApproval::of(plan, &check, redactor));
        (check, approval)
    }

    /// Checks a plan and stores it, to be run later by [`Toolwright::resume_plan`]. Returns the name under which it is
    /// stored.
    ///
    /// With many inputs, a plan that names no instance is repeated for each of them, in a run for each hundred.
    ///
    /// # Errors
    /// [`Error::Plan`]: the check, if it finds errors; or errors of the store.
    pub async fn save_plan(self: &Arc<Self>, plan: &PlanDocument, options: &PlanOptions) -> Result<String, Error> {
        let id = format!("plan-{}", uuid::Uuid::new_v4());
        let repeats = plan.repeats(&options.input);
        // All inputs are checked before anything is stored, and again, with the state of their run, before it starts.
        let run = self.plan_run(&id, options);
        let values = RunVariables::in_memory(for_all_tools(&options.input));
        let (check, mut approval) =
            self.checked((plan, 0), None, (&run.session, &run.policy, &values), options.max_cost);
        if !check.is_valid() {
            return Err(PlanRefused::Check(Box::new(check)).into());
        }
        let batches = if repeats { options.input.batches() } else { vec![options.input.clone()] };
        for (batch, input) in batches.iter().enumerate() {
            let run = self.plan_run(&batch_id(&id, batch), options);
            if batch > 0 && options.approved {
                let values = RunVariables::in_memory(for_all_tools(input));
                approval = self.checked((plan, 0), None, (&run.session, &run.policy, &values), None).1;
            }
            let driver = self.driver();
            let config = RunConfig { input: for_all_tools(input), ..RunConfig::new("", "") };
            let mut state = driver.of_plan(config, NO_REQUEST.to_owned(), &plan.over(input), AfterPlan::End, &run);
            if options.approved {
                state.approve_plan(approval.clone());
            }
            driver.keep(&state, &run).await?;
        }
        Ok(id)
    }

    /// Returns the plan stored under `id`, as written, with its input.
    ///
    /// # Errors
    /// [`Error::Plan`] with [`PlanRefused::NotFound`], or errors of the store.
    pub async fn saved_plan(&self, id: &str) -> Result<(PlanDocument, RunInput), Error> {
        let state = self.saved_state(id).await?.0;
        let (plan, mut input) = (plan_of(id, &state)?, state.config().input.clone());
        let Some(once) = plan.repeated().filter(|once| once.over(&input) == plan) else { return Ok((plan, input)) };
        for batch in 1.. {
            match self.saved_state(&batch_id(id, batch)).await {
                Ok((state, _)) => input.instances.extend(state.config().input.instances.clone()),
                Err(Error::Plan(PlanRefused::NotFound(_))) => break,
                Err(error) => return Err(error),
            }
        }
        Ok((once, input))
    }

    async fn saved_state(&self, id: &str) -> Result<(RunState, Vec<Outcome>), Error> {
        let saved = self
            .runs()
            .run(id)
            .await
            .map_err(PlanRefused::Store)?
            .ok_or_else(|| PlanRefused::NotFound(id.to_owned()))?;
        let outcomes = saved.calls.into_iter().filter_map(|(_, outcome)| outcome).collect();
        Ok((RunState::from_json(saved.state).map_err(DriverError::from)?, outcomes))
    }

    /// Runs a stored plan. Each call starts as soon as the results that it refers to are available; after an
    /// interruption, the calls that have not ended run. A dispatched call with an unknown end runs again only if its
    /// tool is read-only or idempotent. References are replaced for tools of every origin.
    ///
    /// # Errors
    /// [`Error::Plan`] with [`PlanRefused::NotFound`]; the check of a plan that did not begin, if the catalogue has
    /// changed; or errors of the store.
    pub async fn resume_plan(self: &Arc<Self>, id: &str, options: PlanOptions) -> Result<PlanReport, Error> {
        let mut whole = self.resume_batch(id, 0, &options).await?;
        for batch in 1.. {
            if options.cancel.is_cancelled() {
                break;
            }
            match self.resume_batch(id, batch, &options).await {
                Ok(next) => whole.join(next),
                Err(Error::Plan(PlanRefused::NotFound(_))) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(whole)
    }

    /// Runs the plan of one batch of inputs, or of one input.
    async fn resume_batch(
        self: &Arc<Self>,
        id: &str,
        batch: usize,
        options: &PlanOptions,
    ) -> Result<PlanReport, Error> {
        let id = batch_id(id, batch);
        let id = id.as_str();
        let (mut state, _) = self.saved_state(id).await?;
        let plan = plan_of(id, &state)?;
        let run = self.plan_run(id, options);
        let input = state.config().input.clone();
        let values = self.plan_values(&run, &input).await?;
        let driver = self.driver();
        let is_new = state.is_held();
        if is_new {
            let written = plan.repeated().filter(|once| once.over(&input) == plan).unwrap_or(plan);
            let written = (&written, batch * MAX_INSTANCES);
            let (check, approval) = self.checked(written, None, (&run.session, &run.policy, &values), options.max_cost);
            if !check.is_valid() {
                return Err(PlanRefused::Check(Box::new(check)).into());
            }
            state = driver.load(&run).await?;
            if options.approved && state.plan().is_some_and(|plan| plan.approval().is_none()) {
                state.approve_plan(approval);
            }
        } else {
            state = driver.load(&run).await?;
        }
        state.dispatch();
        let report = driver.run(&mut state, &run).await?;
        self.plan_report(id, &report, &values).await
    }

    /// Checks and runs a plan: [`Toolwright::save_plan`], then [`Toolwright::resume_plan`].
    ///
    /// # Errors
    /// As for these two. If the check finds errors, nothing has run.
    pub async fn run_plan(self: &Arc<Self>, plan: &PlanDocument, options: PlanOptions) -> Result<PlanReport, Error> {
        let id = self.save_plan(plan, &options).await?;
        self.resume_plan(&id, options).await
    }

    /// Lets a model write a new plan for the failed part of a plan that has run, and runs it. The approval of the first
    /// plan does not cover it: if the policy asks, the approver is asked.
    ///
    /// # Errors
    /// As [`Toolwright::write_plan`] and [`Toolwright::resume_plan`].
    pub async fn repair_plan(
        self: &Arc<Self>,
        ended: &PlanReport,
        writer: &PlanWriter,
        options: PlanOptions,
    ) -> Result<PlanReport, Error> {
        let id = ended.id.as_str();
        let run = self.plan_run(id, &options);
        let (state, _) = self.saved_state(id).await?;
        let input = state.config().input.clone();
        if ended.calls.len() > plan_of(id, &state)?.calls.len() {
            let why = format!(
                "a plan over more than {MAX_INSTANCES} inputs is not repaired: run it again for the inputs whose \
                 calls failed"
            );
            return Err(PlanRefused::Unreadable(why).into());
        }
        let values = self.plan_values(&run, &input).await?;
        let calls: Vec<Value> = ended.calls.iter().map(PlannedOutcome::summary).collect();
        let request = replan_request(&calls, &values.state(None));
        let written = self.write(&request, writer, (&run, &values, None)).await?;
        if !written.check.is_valid() {
            return Err(PlanRefused::Check(Box::new(written.check)).into());
        }
        let driver = self.driver();
        let mut state = driver.load(&run).await?;
        driver.replan(&mut state, &written.document.over(&input), &run).map_err(DriverError::from)?;
        state.on_planned(written.usage);
        state.dispatch();
        let report = driver.run(&mut state, &run).await?;
        self.plan_report(id, &report, &values).await
    }

    /// Lets a model write a plan for a request. If its check finds errors, the model may correct it once.
    ///
    /// # Errors
    /// [`Error::Plan`] with [`PlanRefused::Model`] or [`PlanRefused::Unreadable`]. A readable but invalid plan is not an
    /// error; its check reports it.
    pub async fn write_plan(self: &Arc<Self>, request: &str, writer: &PlanWriter) -> Result<WrittenPlan, Error> {
        let options = PlanOptions {
            profile: writer.profile,
            input: writer.input.clone(),
            approver: self.approver(),
            approved: false,
            max_cost: writer.max_cost,
            cancel: Cancel::new(),
        };
        let run = self.plan_run(&format!("plan-{}", uuid::Uuid::new_v4()), &options);
        let values = RunVariables::in_memory(for_all_tools(&writer.input));
        let words = Arc::new(UserRequest::new([request]));
        self.write(request, writer, (&run, &values, Some(&words))).await
    }

    pub(super) async fn write(
        &self,
        request: &str,
        writer: &PlanWriter,
        (run, values, words): (&RunOptions, &RunVariables, Option<&Arc<UserRequest>>),
    ) -> Result<WrittenPlan, Error> {
        let snapshot = self.catalogue.snapshot();
        let context = RunContext::in_trace(
            Lineage::named(&run.run_id),
            Arc::clone(&run.session),
            Arc::clone(&snapshot),
            Arc::clone(&run.policy),
            Arc::clone(&run.approver),
        );
        let mut model_request =
            plan_request(request, &snapshot, &writer.tools, &run.session.principal, &values.given());
        let mut usage = Usage::default();
        let mut is_last = false;
        loop {
            let answer = self.executor.ask_model(&writer.model, &model_request, None, &context).await;
            let answer = answer.map_err(PlanRefused::Model)?;
            usage.add(answer.usage);
            let faults = match read_plan(&answer) {
                Ok(document) => {
                    let (check, approval) =
                        self.checked((&document, 0), words, (&run.session, &run.policy, values), writer.max_cost);
                    if is_last || check.is_valid() {
                        return Ok(WrittenPlan { document, check, approval, usage });
                    }
                    check.errors
                }
                Err(faults) if is_last => {
                    let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                    return Err(PlanRefused::Unreadable(faults.join("; ")).into());
                }
                Err(faults) => faults,
            };
            model_request = correction_request(&model_request, answer, &faults);
            is_last = true;
        }
    }

    /// Returns the options of the run that executes a plan.
    fn plan_run(self: &Arc<Self>, id: &str, options: &PlanOptions) -> RunOptions {
        let session = self.session(id);
        let policy = Arc::new(self.config().policy(options.profile, Profile::Ask));
        let client = self.client(ClientOptions {
            session: Arc::clone(&session),
            policy: Arc::clone(&policy),
            approver: Arc::clone(&options.approver),
            person: None,
            model: None,
        });
        let approver = Arc::clone(&options.approver);
        RunOptions::new(Arc::from(id), session, policy, approver, client, options.cancel.clone())
    }

    async fn plan_values(&self, run: &RunOptions, input: &RunInput) -> Result<Arc<RunVariables>, Error> {
        let services = self.executor.services();
        let opened = RunVariables::open(&*services.log, &*services.outputs, &run.session.id, for_all_tools(input));
        Ok(opened.await.map_err(PlanRefused::Store)?)
    }

    /// Returns the report of a plan, from its journal.
    async fn plan_report(&self, id: &str, ran: &RunReport, values: &RunVariables) -> Result<PlanReport, Error> {
        let (state, outcomes) = self.saved_state(id).await?;
        let calls = plan_of(id, &state)?.calls.into_iter().enumerate().map(|(index, call)| {
            let id = call_id(index);
            let outcome = outcomes.iter().find(|outcome| outcome.call_id == id).cloned();
            PlannedOutcome { call, outcome: outcome.or_else(|| state.failure_of(id.as_str())) }
        });
        let calls = calls.collect();
        let state = |instance: Option<&str>| match values.state(instance) {
            Value::Null => Value::Object(Map::new()),
            state => state,
        };
        let instances = values.instances().iter().map(|name| (name.clone(), state(Some(name)))).collect();
        Ok(PlanReport { id: id.to_owned(), status: ran.status, calls, state: state(None), instances })
    }
}

impl PlannedOutcome {
    /// Returns the call in the form for a model: with its error, without its result.
    fn summary(&self) -> Value {
        let mut summary = self.call.to_value();
        let error = self.outcome.as_ref().map(|outcome| outcome.error.as_ref().map(|error| error.message().to_owned()));
        summary["became"] = match error {
            None => "not run".into(),
            Some(None) => "done".into(),
            Some(Some(error)) => format!("failed: {error}").into(),
        };
        summary
    }
}

/// Returns the plan of a saved run.
fn plan_of(id: &str, state: &RunState) -> Result<PlanDocument, Error> {
    let document = state.plan().ok_or_else(|| PlanRefused::NotFound(id.to_owned()))?.document.clone();
    Ok(PlanDocument::from_saved(document).map_err(|faults| PlanRefused::Unreadable(unreadable(&faults).to_string()))?)
}

/// Returns the name of the run for a batch of inputs of the plan stored under `id`.
fn batch_id(id: &str, batch: usize) -> String {
    if batch == 0 { id.to_owned() } else { format!("{id}-{}", batch + 1) }
}

/// Enables references of a plan for tools of every origin.
fn for_all_tools(input: &RunInput) -> RunInput {
    RunInput { foreign: true, ..input.clone() }
}
