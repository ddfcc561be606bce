//! Does the work of one request: a run of the agent driver, or one request to a model. It stores what the next request
//! needs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt as _;
use serde::Deserialize as _;
use serde_json::{Value, json};
use toolwright_agent::{ClientRunOptions, Driver, DriverError, RunConfig, RunOptions, RunReport, RunState, Status};
use toolwright_core::Profile;
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, Approver, NoApprover};
use toolwright_core::cancel::Cancel;
use toolwright_core::model::{Message, ModelRequest, StopReason, Usage};
use toolwright_core::operation::Lineage;
use toolwright_core::session::{PeerProcess, Principal, Session, SessionId};
use toolwright_core::store::StoredObject;
use toolwright_models::served::{Fault, ResponseEnd, ResponsePiece, ServedApi, ServedRequest, input_system};
use toolwright_runtime::executor::{ModelAsk, ModelQuestion};

use super::continuation::{Continuation, decides, is_chained, refuse_decisions};
use super::continuation_lock::ContinuationLock;
use super::output::{Output, QUESTION};
use super::refusal::Refusal;
use super::start::ResumedRun;
use super::{Facade, RecordKind};
use crate::Gateway;
use crate::agents::{PreparedRun, RunRequest, RunTarget};
use crate::config::FacadeApprovals;
use crate::http::Connection;

/// How often a waiting question checks whether the server is shutting down.
const SHUTDOWN_CHECK: Duration = Duration::from_millis(100);
/// The client's tool that answers approval questions.
const APPROVE: &str = "approve_tool_call";

/// A request in progress.
pub(super) struct ResponseWork {
    pub(super) id: String,
    /// When it began, in seconds since the epoch.
    pub(super) created: u64,
    pub(super) api: ServedApi,
    pub(super) request: ServedRequest,
    /// The request's original body, if another process may resume it.
    pub(super) body: Bytes,
    pub(super) target: RunTarget,
    pub(super) principal: Principal,
    /// Decides if no policy rule matches.
    pub(super) profile: Profile,
    /// Ids of the tools that the request may use; `None` for all.
    pub(super) tools: Option<Vec<String>>,
    pub(super) approvals: FacadeApprovals,
    /// The client's connection. Its process is looked up, which takes time, only if the client approves calls.
    pub(super) connection: Connection,
    /// The session that the client named.
    pub(super) session: Option<String>,
    /// What the answer goes without, whatever the model is sent.
    pub(super) lost: Vec<&'static str>,
    /// Whether the work continues after the client disconnects.
    pub(super) survives_disconnect: bool,
    pub(super) cancel: Cancel,
    pub(super) output: Arc<Output>,
    /// Whether the store has it. If it is then missing there, it was deleted and is not stored again.
    pub(super) is_stored: AtomicBool,
    /// Keeps other requests from resuming it, once the store has it.
    pub(super) lock: Mutex<Option<ContinuationLock>>,
}

/// State that a request leaves for the next one.
struct SavedState {
    state: Option<RunState>,
    messages: Vec<Message>,
    session: String,
    /// The calls and questions that the client must answer: the run's own ids by the client's ids.
    open: BTreeMap<String, String>,
    end: ResponseEnd,
}

impl SavedState {
    fn to_json(&self, id: &str) -> Result<Value, Refusal> {
        let state = self.state.as_ref().map(RunState::to_json).transpose();
        let state = state.map_err(|error| Refusal::new(Fault::Internal, error.to_string()))?;
        let messages = if state.is_some() { Value::Null } else { json!(self.messages) };
        let mut saved = json!({"state": state, "session": self.session});
        if !messages.is_null() {
            saved["messages"] = messages;
        }
        if !self.open.is_empty() {
            (saved["calls"], saved["turn"]) = (json!(self.open), json!(id));
        }
        Ok(saved)
    }
}

impl Facade {
    /// Does a request's work. What the next request may refer to is stored before the answer ends.
    pub(super) async fn work(
        self: &Arc<Self>,
        work: &ResponseWork,
        mut earlier: Continuation,
        resumed: Option<ResumedRun>,
    ) -> Result<(), Refusal> {
        let locks = std::mem::take(&mut earlier.locks);
        let done = self.answer(work, earlier, resumed).await;
        // A client that has the answer may continue at once.
        for lock in locks {
            lock.release().await;
        }
        done.map(|send_end| send_end())
    }

    /// Answers, and stores what the next request may refer to. Returns a function that sends the end.
    async fn answer(
        self: &Arc<Self>,
        work: &ResponseWork,
        earlier: Continuation,
        resumed: Option<ResumedRun>,
    ) -> Result<impl FnOnce(), Refusal> {
        if let Some(answer) = &earlier.repeated_answer {
            work.output.replay(&answer["pieces"]);
            return Ok(work.output.end(end_of(answer)?));
        }
        let (items, is_repeat, is_answer) = (earlier.items.clone(), earlier.repeated_id.is_some(), earlier.is_answer());
        let is_raw = matches!(work.target, RunTarget::Raw(_));
        let mut system = earlier.system.clone();
        system.extend(input_system(&work.request.items)?);
        let answering = async {
            match &work.target {
                RunTarget::Raw(model) => self.ask(work, model, earlier).await,
                RunTarget::Agent(_) | RunTarget::Model(_) => self.run(work, earlier, resumed).await,
            }
        };
        // Boxed, because the futures around it would each have room for it.
        let answering = work.output.run_at_reader_pace(answering.boxed(), &work.cancel, work.survives_disconnect);
        // The model does not wait for this write. The first answer to a turn is recorded with the turn; see `begin`.
        let recording =
            async { if is_answer && !is_repeat && !is_raw { Ok(()) } else { self.record_start(work, None).await } };
        let (left, recorded) = tokio::join!(answering, recording);
        let mut left = left?;
        recorded?;
        // Some servers report their own stop token as the stop sequence.
        if matches!(&left.end.stop, StopReason::StopSequence(Some(text)) if !work.request.request.settings.stop.contains(text))
        {
            left.end.stop = StopReason::End;
        }
        let mut saved = left.to_json(&work.id)?;
        if !system.is_empty() {
            saved["system"] = json!(system);
        }
        let objects = self.source.objects();
        let owner = work.principal.id.as_str();
        let mut to_store = Vec::new();
        if !left.open.is_empty() {
            // An existing turn may already have its answer.
            if !(is_repeat && objects.object(owner, RecordKind::Turn.as_str(), &work.id).await?.is_some()) {
                let mut turn = saved.clone();
                turn["after"] = json!(work.request.previous_response);
                to_store.push(RecordKind::Turn.stored_object(&work.id, turn));
            }
            to_store.extend(left.open.keys().map(|call| RecordKind::Call.stored_object(call, json!(work.id))));
        }
        let end = &left.end;
        let answer = (is_answer && left.state.is_some()).then(|| {
            let created = work.created;
            json!({"pieces": work.output.pieces(), "stop": end.stop, "usage": end.usage, "created": created})
        });
        let send_end = work.output.end(left.end);
        if work.api == ServedApi::Responses {
            if let Some(id) = &work.request.conversation {
                let mut conversation =
                    objects.object(owner, RecordKind::Conversation.as_str(), id).await?.unwrap_or_default();
                // A repeated answer is already in the conversation.
                if conversation["last"] != work.id {
                    let body = work.output.body();
                    let mut all = items;
                    all.extend(work.input_items());
                    all.extend(body["output"].as_array().cloned().unwrap_or_default());
                    for key in ["state", "messages", "session", "calls", "turn"] {
                        conversation[key] = saved[key].clone();
                    }
                    (conversation["items"], conversation["last"]) = (Value::Array(all), json!(work.id));
                    // A conversation that was deleted meanwhile stays deleted.
                    to_store.push(StoredObject {
                        only_if_there: true,
                        ..RecordKind::Conversation.stored_object(id, conversation)
                    });
                }
            }
            to_store.extend(work.response(Some(saved)));
        }
        to_store.extend(work.stateless_answer(200, &work.output.body(), answer));
        to_store.extend(self.of_session(work, "finished").await?);
        self.keep(work, to_store).await?;
        Ok(send_end)
    }

    /// Records that work has begun, together with the turn that it answered, so that its owner finds it at once and after a
    /// kill. Work whose answer nobody can fetch is not recorded.
    pub(super) async fn record_start(
        self: &Arc<Self>,
        work: &ResponseWork,
        answered: Option<StoredObject>,
    ) -> Result<(), Refusal> {
        let mut objects = Vec::from_iter(answered);
        let is_recorded = work.lock().is_some();
        if (work.is_kept() || work.is_left()) && !is_recorded {
            let kind = if work.is_kept() { RecordKind::Response } else { RecordKind::Answer };
            let lock = self.reserve(&work.principal.id, kind, &work.id).await?;
            *work.lock() = Some(lock);
            objects.extend(self.of_session(work, "last").await?);
            objects.extend(work.response(None).or_else(|| work.started()));
        }
        self.keep(work, objects).await
    }

    /// Notes the work as the `last` or the last `finished` answer of its client's session, if it can be fetched by that.
    async fn of_session(&self, work: &ResponseWork, key: &str) -> Result<Option<StoredObject>, Refusal> {
        let Some(session) = work.session.as_ref().filter(|_| work.is_left()) else { return Ok(None) };
        let (objects, kind) = (self.source.objects(), RecordKind::Answer);
        let noted = objects.object(&work.principal.id, kind.as_str(), session).await?;
        let mut noted = noted.unwrap_or_else(|| json!({}));
        noted[key] = json!(work.id);
        Ok(Some(kind.stored_object(session, noted)))
    }

    /// Keeps what a request leaves, in one step: nobody finds a part of it. Of a response that its owner deleted nothing is
    /// kept.
    pub(super) async fn keep(
        &self,
        work: &ResponseWork,
        objects: impl IntoIterator<Item = StoredObject>,
    ) -> Result<(), Refusal> {
        let is_deleted = || work.output.deleted.load(Ordering::Relaxed);
        // The turn that it answered keeps that.
        let is_of_response = |object: &StoredObject| {
            object.kind != RecordKind::Conversation.as_str()
                && (object.kind != RecordKind::Turn.as_str() || object.id == work.id)
        };
        let remaining: Vec<_> =
            objects.into_iter().filter(|object| !(is_deleted() && is_of_response(object))).collect();
        if remaining.is_empty() {
            return Ok(());
        }
        let owner = work.principal.id.as_str();
        self.source.objects().put_objects(owner, &remaining).await?;
        if is_deleted() {
            self.remove_response(owner, &work.id).await?;
        }
        Ok(())
    }

    /// Sends one request to a model, without an agent.
    async fn ask(&self, work: &ResponseWork, model: &str, earlier: Continuation) -> Result<SavedState, Refusal> {
        refuse_decisions(&work.request)?;
        let executor = &self.gateway.options.executor;
        let session = earlier.session.or_else(|| work.session.clone()).unwrap_or_else(|| work.id.clone());
        // A stateless client sends the whole conversation.
        let mut messages = if is_chained(&work.request) { earlier.messages } else { Vec::new() };
        messages.extend(work.request.request.messages.iter().cloned());
        let model_request = ModelRequest { messages: messages.clone(), ..work.request.request.clone() };
        let owner = Session {
            id: SessionId::new(session.as_str()),
            principal: work.principal.clone(),
            root: self.gateway.options.root.clone(),
            agent: None,
        };
        let op = executor.begin(&Lineage::named(&work.id));
        let ask = ModelAsk {
            op,
            session: &owner,
            model,
            question: ModelQuestion::Answer(&model_request),
            tools: None,
            lost: work.lost.clone(),
            note: None,
        };
        let record = executor.models().open_record(ask);
        let answer = record.complete(&*executor.services().model, &model_request, &*work.output, &work.cancel).await;
        record.end(&answer);
        let response = answer.map_err(|error| Refusal::of_model(&error))?;
        let (mut calls, opaque) = (response.calls, response.opaque);
        calls.iter_mut().for_each(|call| work.output.name(call));
        messages.push(Message::Assistant { text: response.text, calls, opaque });
        let end = ResponseEnd { stop: response.stop, usage: response.usage, pending: false };
        Ok(SavedState { state: None, messages, session, open: BTreeMap::new(), end })
    }

    /// Runs an agent.
    async fn run(
        self: &Arc<Self>,
        work: &ResponseWork,
        earlier: Continuation,
        resumed: Option<ResumedRun>,
    ) -> Result<SavedState, Refusal> {
        let session = earlier.session.clone().or_else(|| work.session.clone()).unwrap_or_else(|| work.id.clone());
        // A resumed run continues its counters, so this request reports only its own part.
        let before = earlier.state.as_ref().filter(|state| !state.is_over()).map(RunState::usage).unwrap_or_default();
        let ResumedRun { driver, options, mut state } = match resumed {
            Some(resumed) => resumed,
            None => {
                if decides(&work.request) && work.connection.process().await == PeerProcess::Nested {
                    return Err(Refusal::new(Fault::Forbidden, NESTED));
                }
                let (driver, options, config) = self.prepare(work, session.clone()).await?;
                let again = match earlier.repeated_id {
                    Some(_) => reopen_run(&driver, &options, &config).await?,
                    None => None,
                };
                let state = match again {
                    Some(state) => state,
                    None => self.begin(work, earlier, config).await?,
                };
                ResumedRun { driver, options, state }
            }
        };
        let driven = driver.run(&mut state, &options).await;
        let mut report = driven.map_err(|error| Refusal::new(Fault::Internal, error.to_string()))?;
        report.usage = report.usage.saturating_sub(before);
        self.ended(work, state, session, &report)
    }

    /// Prepares a run.
    pub(super) async fn prepare(
        &self,
        work: &ResponseWork,
        session: String,
    ) -> Result<(Driver, RunOptions, RunConfig), Refusal> {
        let PreparedRun { driver, mut options, mut config } = self
            .source
            .prepare(RunRequest {
                target: work.target.clone(),
                run: work.id.clone(),
                session,
                principal: work.principal.clone(),
                profile: work.profile,
                tools: work.tools.clone(),
                system: work.request.request.system.clone(),
                approver: self.approver(work),
                cancel: work.cancel.clone(),
            })
            .await
            .map_err(|message| Refusal::new(Fault::Invalid, message))?;
        let model_request = &work.request.request;
        config.client = ClientRunOptions {
            tools: model_request.tools.to_vec(),
            tool_choice: model_request.tool_choice.clone(),
            parallel_calls: model_request.parallel_calls,
            output: model_request.output.clone(),
        };
        config.max_tokens = model_request.max_tokens.or(config.max_tokens);
        config.temperature = model_request.temperature.or(config.temperature);
        config.settings = model_request.settings.clone().or(&config.settings);
        config.limits.calls = config.limits.calls.into_iter().chain(work.request.max_calls).min();
        options.watcher = Some(Arc::clone(&work.output) as _);
        options.lost = work.lost.clone().into();
        Ok((driver, options, config))
    }

    /// Writes a run's answer, or its open calls and questions, and returns what the run leaves.
    fn ended(
        &self,
        work: &ResponseWork,
        state: RunState,
        session: String,
        report: &RunReport,
    ) -> Result<SavedState, Refusal> {
        let output = &work.output;
        let mut open = BTreeMap::new();
        match report.status {
            Status::Suspended if work.approvals == FacadeApprovals::Inbox && !report.pending.is_empty() => {
                let why = "the server is shutting down; the next one asks again once the response is fetched";
                return Err(Refusal::new(Fault::Overloaded, why));
            }
            Status::Suspended => {
                for mut call in state.client_calls() {
                    let listed_id = output.id_of_call(&call.id);
                    let own = std::mem::replace(&mut call.id, listed_id);
                    open.insert(call.id.clone(), own);
                    output.piece(&ResponsePiece::Call(call));
                }
                for request in &report.pending {
                    let name = name_of_tool(&self.gateway, request);
                    open.insert(question(work, request, &name), format!("{QUESTION}{}", request.call_id.as_str()));
                }
            }
            Status::Cancelled => {
                let why = report.reason.as_deref().unwrap_or("it was cancelled");
                return Err(Refusal::new(Fault::Internal, why));
            }
            Status::Failure if output.refusal().is_some() => {
                return Err(output.refusal().unwrap_or_else(|| Refusal::new(Fault::Internal, "the model failed")));
            }
            _ => match &report.final_report {
                Some(final_report) => output.answer(&final_report.text()),
                None => output.answer(&report.answer),
            },
        }
        let end = ResponseEnd { stop: output.stop(), usage: report.usage, pending: false };
        Ok(SavedState { state: Some(state), messages: Vec::new(), session, open, end })
    }

    fn approver(&self, work: &ResponseWork) -> Arc<dyn Approver> {
        let takes_items = work.api == ServedApi::Responses;
        match work.approvals {
            FacadeApprovals::Inbox => {
                let output = takes_items.then(|| Arc::clone(&work.output));
                Arc::new(InboxApprover { gateway: Arc::clone(&self.gateway), inbox: self.source.inbox(), output })
            }
            FacadeApprovals::Tool if takes_items || work.client_offers(APPROVE) => {
                Arc::new(NextRequestApprover(work.connection.clone()))
            }
            FacadeApprovals::Tool => Arc::new(NoApprover { remedy: format!("send the tool `{APPROVE}`") }),
            FacadeApprovals::Deny => Arc::new(NoApprover {
                remedy: "set `approvals` of server.facades or of the token, or allow the tool by a rule".into(),
            }),
        }
    }
}

impl ResponseWork {
    pub(super) fn lock(&self) -> MutexGuard<'_, Option<ContinuationLock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the current body. That of cancelled work says so before the work has ended.
    pub(super) fn current_body(&self) -> Value {
        let mut body = self.output.body();
        if self.cancel.cause().is_some() && body["status"] == "in_progress" {
            body["status"] = json!("cancelled");
        }
        body
    }

    /// Returns whether it is a response that is stored.
    pub(super) fn is_kept(&self) -> bool {
        self.api == ServedApi::Responses && self.request.store
    }

    /// Returns whether it continues without its client, who can fetch the answer by its id or session.
    pub(super) fn is_left(&self) -> bool {
        self.survives_disconnect && self.api != ServedApi::Responses
    }

    /// The response as it is now, if it is kept: with what the next request goes on from, once it is `saved`.
    pub(super) fn response(&self, saved: Option<Value>) -> Option<StoredObject> {
        if !self.is_kept() {
            return None;
        }
        let is_saved = saved.is_some();
        let mut record = saved.unwrap_or_else(|| json!({}));
        record["response"] = self.output.body();
        if !is_saved && self.cancel.cause().is_some() {
            (record["response"]["status"], record["response"]["error"]) = (json!("cancelled"), Value::Null);
        }
        if record["response"]["status"] == "in_progress" {
            self.add_progress(&mut record);
        }
        record["input"] = Value::Array(self.input_items());
        let only_if_there = self.is_stored.swap(true, Ordering::Relaxed);
        Some(StoredObject { only_if_there, ..RecordKind::Response.stored_object(&self.id, record) })
    }

    /// The answer of an API without state, while it is in progress, if it goes on without its client.
    fn started(&self) -> Option<StoredObject> {
        let mut record = json!({});
        self.add_progress(&mut record);
        self.is_left().then(|| RecordKind::Answer.stored_object(&self.id, record))
    }

    /// Marks a record as in progress. Adds what another process needs to resume the work, if it may go on without its
    /// client.
    fn add_progress(&self, record: &mut Value) {
        (record["in_progress"], record["created"]) = (json!(true), json!(self.created));
        if self.survives_disconnect || self.output.has_question() {
            record["request"] = json!(String::from_utf8_lossy(&self.body));
            record["of_session"] = json!(self.session);
            record["pieces"] = self.output.pieces();
        }
    }

    /// The answer of an API without state, if it goes on without its client; and its stored `answer`, if the request may
    /// be sent again.
    pub(super) fn stateless_answer(&self, status: u16, body: &Value, answer: Option<Value>) -> Option<StoredObject> {
        let mut record = if self.is_left() { json!({"status": status, "body": body}) } else { Value::Null };
        if let Some(answer) = answer {
            record["said"] = answer;
        }
        (!record.is_null()).then(|| RecordKind::Answer.stored_object(&self.id, record))
    }

    fn client_offers(&self, tool: &str) -> bool {
        self.request.request.tools.iter().any(|shown| shown.name == tool)
    }

    pub(super) fn input_items(&self) -> Vec<Value> {
        let base = self.id.trim_start_matches("resp_");
        toolwright_models::served::input_items(&self.request.items, |at| format!("in_{base}_{at}"))
    }
}

/// Restores the end of a stored answer.
fn end_of(answer: &Value) -> Result<ResponseEnd, Refusal> {
    let damaged = |error: serde_json::Error| {
        Refusal::new(Fault::Internal, format!("the end of an answer that was kept cannot be read: {error}"))
    };
    let stop = StopReason::deserialize(&answer["stop"]).map_err(damaged)?;
    let usage = Usage::deserialize(&answer["usage"]).map_err(damaged)?;
    Ok(ResponseEnd { stop, usage, pending: false })
}

/// Loads the state of a started run, reopened if it was interrupted; `None` if it was not saved.
async fn reopen_run(driver: &Driver, options: &RunOptions, config: &RunConfig) -> Result<Option<RunState>, Refusal> {
    match driver.load(options).await {
        Ok(mut state) => {
            state.replace_config(config.clone());
            state.ask_again();
            Ok(Some(state))
        }
        Err(DriverError::NotFound(_)) => Ok(None),
        Err(error @ DriverError::Taken { .. }) => Err(Refusal::new(Fault::Conflict, error.to_string())),
        Err(error) => Err(Refusal::new(Fault::Internal, error.to_string())),
    }
}

/// Returns the name by which the model calls the tool that the question is about.
fn name_of_tool(gateway: &Gateway, request: &ApprovalRequest) -> String {
    let snapshot = gateway.options.catalogue.snapshot();
    let entry = snapshot.get(request.tool.as_str());
    entry.map_or_else(|| request.tool.to_string(), |entry| entry.wire_name.clone())
}

/// Asks the client about a call, by its approval tool or by an item. Returns the id of the question.
fn question(work: &ResponseWork, request: &ApprovalRequest, name: &str) -> String {
    let id = work.output.id_of_question(request.call_id.as_str());
    if work.client_offers(APPROVE) {
        let arguments = json!({"tool": name, "arguments": request.arguments, "reason": request.reason}).to_string();
        let call = toolwright_core::model::RawToolCall { id: id.clone(), name: APPROVE.into(), arguments };
        work.output.piece(&ResponsePiece::Call(call));
    } else {
        work.output.question(request, name);
    }
    id
}

/// The reason why a program that Toolwright started is never asked about a call.
const NESTED: &str = "a program that Toolwright started cannot approve its own calls";

/// Leaves every question for the client's next request.
struct NextRequestApprover(Connection);

#[async_trait]
impl Approver for NextRequestApprover {
    async fn ask(&self, _request: &ApprovalRequest) -> ApprovalDecision {
        match self.0.process().await {
            PeerProcess::Nested => ApprovalDecision::Deny { reason: NESTED.into() },
            _ => ApprovalDecision::Later,
        }
    }
}

/// Asks in the inbox, and shows the question in the answer if the API has items for questions. When the server ends,
/// the question stays open for the next process.
struct InboxApprover {
    gateway: Arc<Gateway>,
    inbox: Arc<dyn Approver>,
    output: Option<Arc<Output>>,
}

#[async_trait]
impl Approver for InboxApprover {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        if let Some(output) = &self.output {
            output.question(request, &name_of_tool(&self.gateway, request));
            // The run waits here. If the client decides in its next request, the answer ends with the question instead.
            output.person_needed.notify_one();
        }
        let ends = async {
            while !self.gateway.is_draining() {
                tokio::time::sleep(SHUTDOWN_CHECK).await;
            }
        };
        tokio::select! {
            decision = self.inbox.ask(request) => decision,
            () = ends => ApprovalDecision::Later,
        }
    }

    fn answer_timeout(&self) -> Duration {
        self.inbox.answer_timeout()
    }
}
