//! The work of one request: a run of the ordinary driver, or one request to a model; what it leaves for the next request.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};
use toolwright_agent::{ClientTerms, Driver, RunOptions, RunReport, RunSpec, RunState, Status};
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, Approver, NoApprover};
use toolwright_core::cancel::Cancel;
use toolwright_core::content::joined_text;
use toolwright_core::model::{CallResult, Message, ModelRequest};
use toolwright_core::operation::Lineage;
use toolwright_core::session::{CallId, PeerProcess, Principal, Session, SessionId};
use toolwright_models::served::{End, Fault, Piece, ServedApi, ServedRequest};
use toolwright_runtime::executor::{Asked, ModelAsk};

use super::output::{Output, QUESTION, Refusal};
use super::reserve::Busy;
use super::start::Resumed;
use super::{Facade, Kind};
use crate::Gateway;
use crate::agents::{PreparedRun, RunOrder, Target};
use crate::config::FacadeApprovals;
use crate::http::Connection;

/// Items of a conversation that are listed; the model's window bounds what it reads of them.
const MAX_ITEMS: usize = 10_000;
/// How often it is looked whether the server ends, while a person is asked.
const SHUTDOWN_CHECK: Duration = Duration::from_millis(100);
/// The client's tool that answers questions of the policy.
const APPROVE: &str = "approve_tool_call";

/// One request that is worked on.
pub(super) struct Work {
    pub(super) id: String,
    pub(super) api: ServedApi,
    pub(super) request: ServedRequest,
    /// The request as it was sent, if its answer is kept.
    pub(super) body: Bytes,
    pub(super) target: Target,
    pub(super) principal: Principal,
    /// The tools that it may use, by id; empty for all.
    pub(super) tools: Vec<String>,
    pub(super) approvals: FacadeApprovals,
    /// The client's: who it is is looked up only where it approves calls, as that takes time.
    pub(super) connection: Connection,
    /// The session that the client named.
    pub(super) session: Option<String>,
    /// What the model's own API has no word for.
    pub(super) lost: Vec<&'static str>,
    /// Whether it goes on without its client.
    pub(super) goes_on: bool,
    pub(super) cancel: Cancel,
    pub(super) output: Arc<Output>,
    /// Whether the store has it: what was deleted there meanwhile is not kept again.
    pub(super) kept: AtomicBool,
    /// Keeps others from taking it up, if it can be fetched while it is worked on.
    pub(super) busy: Option<Busy>,
}

/// What an earlier request left.
#[derive(Default)]
struct Earlier {
    state: Option<RunState>,
    messages: Vec<Message>,
    session: Option<String>,
    items: Vec<Value>,
}

impl Earlier {
    fn read(saved: &Value) -> Result<Self, Refusal> {
        let damaged = |error: String| Refusal::new(Fault::Internal, format!("what was kept cannot be read: {error}"));
        let state = match saved.get("state").filter(|state| !state.is_null()) {
            Some(state) => Some(RunState::from_json(state.clone()).map_err(|error| damaged(error.to_string()))?),
            None => None,
        };
        let messages = match (&state, saved.get("messages")) {
            (Some(state), _) => state.messages().to_vec(),
            (None, Some(messages)) => {
                serde_json::from_value(messages.clone()).map_err(|error| damaged(error.to_string()))?
            }
            (None, None) => Vec::new(),
        };
        let items = saved.get("items").and_then(Value::as_array).cloned().unwrap_or_default();
        Ok(Self { state, messages, session: saved["session"].as_str().map(str::to_owned), items })
    }
}

/// What a request leaves to the next.
struct Left {
    state: Option<RunState>,
    messages: Vec<Message>,
    session: String,
    /// Ids of calls and questions that the client answers.
    open: Vec<String>,
    end: End,
}

impl Left {
    fn to_json(&self) -> Result<Value, Refusal> {
        let state = self.state.as_ref().map(RunState::to_json).transpose();
        let state = state.map_err(|error| Refusal::new(Fault::Internal, error.to_string()))?;
        let messages = if state.is_some() { Value::Null } else { json!(self.messages) };
        let mut saved = json!({"state": state, "session": self.session});
        if !messages.is_null() {
            saved["messages"] = messages;
        }
        Ok(saved)
    }
}

impl Facade {
    /// Works on a request, and keeps what the next may refer to before the answer ends.
    pub(super) async fn work(self: &Arc<Self>, work: &Work, resumed: Option<Resumed>) -> Result<(), Refusal> {
        let (earlier, busy) = self.earlier(work).await?;
        let done = self.answer(work, earlier, resumed).await;
        // Who has the answer may continue at once.
        if let Some(busy) = busy {
            busy.release().await;
        }
        done.map(|send_end| send_end())
    }

    /// Answers, and keeps what the next request may refer to. Returns what sends the end.
    async fn answer(&self, work: &Work, earlier: Earlier, resumed: Option<Resumed>) -> Result<impl FnOnce(), Refusal> {
        let items = earlier.items.clone();
        let answering = async {
            match &work.target {
                Target::Raw(model) => self.ask(work, model, earlier).await,
                Target::Agent(_) | Target::Model(_) => self.run(work, earlier, resumed).await,
            }
        };
        let left = work.output.paced(answering, &work.cancel, work.goes_on).await?;
        let saved = left.to_json()?;
        let objects = self.source.objects();
        let owner = work.principal.id.as_str();
        let is_deleted = || work.output.deleted.load(Ordering::Relaxed);
        if !left.open.is_empty() && !is_deleted() {
            objects.put_object(owner, Kind::Turn.as_str(), &work.id, &saved).await?;
            for call in &left.open {
                objects.put_object(owner, Kind::Call.as_str(), call, &json!(work.id)).await?;
            }
        }
        let send_end = work.output.end(left.end);
        if work.api == ServedApi::Responses {
            if let Some(id) = &work.request.conversation {
                let mut kept = objects.object(owner, Kind::Conversation.as_str(), id).await?.unwrap_or_default();
                let body = work.output.body();
                let mut all = items;
                all.extend(work.input_items());
                all.extend(body["output"].as_array().cloned().unwrap_or_default());
                for key in ["state", "messages", "session"] {
                    kept[key] = saved[key].clone();
                }
                kept["items"] = Value::Array(all);
                // One that was deleted meanwhile stays so.
                objects.replace_object(owner, Kind::Conversation.as_str(), id, &kept).await?;
            }
            self.keep(work, Some(&saved)).await?;
        }
        Ok(send_end)
    }

    /// Keeps a response as it is now.
    pub(super) async fn keep(&self, work: &Work, saved: Option<&Value>) -> Result<(), Refusal> {
        let is_deleted = || work.output.deleted.load(Ordering::Relaxed);
        if work.api != ServedApi::Responses || !work.request.store || is_deleted() {
            return Ok(());
        }
        let mut kept = saved.cloned().unwrap_or_else(|| json!({}));
        kept["response"] = work.output.body();
        if kept["response"]["status"] == "in_progress" {
            kept["request"] = json!(String::from_utf8_lossy(&work.body));
            kept["of_session"] = json!(work.session);
        }
        if saved.is_none() && work.cancel.cause().is_some() {
            (kept["response"]["status"], kept["response"]["error"]) = (json!("cancelled"), Value::Null);
        }
        kept["input"] = Value::Array(work.input_items());
        let (objects, kind) = (self.source.objects(), Kind::Response.as_str());
        let (owner, id) = (work.principal.id.as_str(), work.id.as_str());
        if work.kept.swap(true, Ordering::Relaxed) {
            objects.replace_object(owner, kind, id, &kept).await?;
        } else {
            objects.put_object(owner, kind, id, &kept).await?;
        }
        if is_deleted() {
            objects.remove_object(owner, kind, id).await?;
        }
        Ok(())
    }

    /// What the request continues, reserved for it.
    async fn earlier(self: &Arc<Self>, work: &Work) -> Result<(Earlier, Option<Busy>), Refusal> {
        let objects = self.source.objects();
        let (owner, request) = (work.principal.id.as_str(), &work.request);
        if let Some(id) = &request.previous_response {
            let found = objects.object(owner, Kind::Response.as_str(), id).await?;
            let missing = || Refusal::new(Fault::NotFound, format!("there is no response `{id}`"));
            let found = found.ok_or_else(|| missing().about("previous_response_id"))?;
            if found.get("session").is_none() {
                let why = format!("response `{id}` is not complete");
                return Err(Refusal::new(Fault::Conflict, why).about("previous_response_id"));
            }
            return Ok((Earlier::read(&found)?, None));
        }
        if let Some(id) = &request.conversation {
            let about = |fault, why: String| Refusal::new(fault, why).about("conversation");
            let busy = self.reserve(owner, Kind::Conversation, id).await?;
            let found = objects.object(owner, Kind::Conversation.as_str(), id).await?;
            let found = found.ok_or_else(|| about(Fault::NotFound, format!("there is no conversation `{id}`")))?;
            let mut earlier = Earlier::read(&found)?;
            if earlier.items.len() >= MAX_ITEMS {
                let why = format!("a conversation has at most {MAX_ITEMS} items: begin another");
                return Err(about(Fault::Conflict, why));
            }
            if earlier.state.is_none() && earlier.messages.is_empty() {
                earlier.messages = toolwright_models::served::input_messages(&earlier.items)?;
            }
            return Ok((earlier, Some(busy)));
        }
        // A client without state gives the results of calls at the end of its conversation.
        let last = request.messages_from_end().find_map(|message| match message {
            Message::Tool { results } => results.first().map(|result| result.call_id.clone()),
            Message::User { .. } | Message::Assistant { .. } => None,
        });
        let nothing = || Ok((Earlier::default(), None));
        let Some(call) = last else { return nothing() };
        let Some(turn) = objects.object(owner, Kind::Call.as_str(), &call).await? else { return nothing() };
        let turn = turn.as_str().unwrap_or_default();
        let busy = self.reserve(owner, Kind::Turn, turn).await?;
        match objects.object(owner, Kind::Turn.as_str(), turn).await? {
            Some(saved) => Ok((Earlier::read(&saved)?, Some(busy))),
            None => nothing(),
        }
    }

    /// One request to a model, as it is.
    async fn ask(&self, work: &Work, model: &str, earlier: Earlier) -> Result<Left, Refusal> {
        let executor = &self.gateway.options.executor;
        let session = earlier.session.or_else(|| work.session.clone()).unwrap_or_else(|| work.id.clone());
        // A client without state gives the whole conversation.
        let is_chained = work.request.previous_response.is_some() || work.request.conversation.is_some();
        let mut messages = if is_chained { earlier.messages } else { Vec::new() };
        messages.extend(work.request.request.messages.iter().cloned());
        let asked = ModelRequest { messages: messages.clone(), ..work.request.request.clone() };
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
            asked: Asked::Answer(&asked),
            tools: None,
            lost: work.lost.clone(),
            note: None,
        };
        let record = executor.models().open_record(ask);
        let events = record.watch(&*work.output);
        let client = self.within_budget(Arc::clone(&executor.services().model), &work.principal);
        let answer = tokio::select! {
            biased;
            cause = work.cancel.cancelled() => {
                return Err(Refusal::new(Fault::Internal, format!("cancelled {}", cause.describe())));
            }
            answer = client.complete(model, &asked, &events, &work.cancel) => answer,
        };
        record.end(&answer);
        let response = answer.map_err(|error| Refusal::of_model(&error))?;
        let (calls, opaque) = (response.calls, response.opaque);
        messages.push(Message::Assistant { text: response.text, calls, opaque });
        let end = End { stop: response.stop, usage: response.usage, pending: false };
        Ok(Left { state: None, messages, session, open: Vec::new(), end })
    }

    /// A run of an agent.
    async fn run(&self, work: &Work, earlier: Earlier, resumed: Option<Resumed>) -> Result<Left, Refusal> {
        let session = earlier.session.clone().or_else(|| work.session.clone()).unwrap_or_else(|| work.id.clone());
        let Resumed { driver, options, mut state } = match resumed {
            Some(resumed) => resumed,
            None => {
                if work.decides() && work.connection.process().await == PeerProcess::Nested {
                    return Err(Refusal::new(Fault::Forbidden, NESTED));
                }
                let (driver, options, spec) = self.prepare(work, session.clone()).await?;
                Resumed { driver, options, state: begin(work, earlier, spec)? }
            }
        };
        let driven = driver.run(&mut state, &options).await;
        let report = driven.map_err(|error| Refusal::new(Fault::Internal, error.to_string()))?;
        self.ended(work, state, session, &report)
    }

    /// A run before it begins.
    pub(super) async fn prepare(&self, work: &Work, session: String) -> Result<(Driver, RunOptions, RunSpec), Refusal> {
        let PreparedRun { driver, mut options, mut spec } = self
            .source
            .prepare(RunOrder {
                target: work.target.clone(),
                run: work.id.clone(),
                session,
                principal: work.principal.clone(),
                profile: self.gateway.policy().profile,
                tools: work.tools.clone(),
                system: work.request.request.system.clone(),
                approver: self.approver(work),
                cancel: work.cancel.clone(),
            })
            .await
            .map_err(|message| Refusal::new(Fault::Invalid, message))?;
        let asked = &work.request.request;
        spec.client = ClientTerms {
            tools: asked.tools.to_vec(),
            tool_choice: asked.tool_choice.clone(),
            parallel_calls: asked.parallel_calls,
            output: asked.output.clone(),
        };
        spec.max_tokens = asked.max_tokens.or(spec.max_tokens);
        spec.temperature = asked.temperature.or(spec.temperature);
        spec.settings = asked.settings.clone().or(&spec.settings);
        spec.limits.calls = spec.limits.calls.into_iter().chain(work.request.max_calls).min();
        options.watcher = Some(Arc::clone(&work.output) as _);
        let model = Arc::clone(&self.gateway.options.executor.services().model);
        Ok((driver.with_model(self.within_budget(model, &work.principal)), options, spec))
    }

    /// What a run came to.
    fn ended(&self, work: &Work, state: RunState, session: String, report: &RunReport) -> Result<Left, Refusal> {
        let output = &work.output;
        let mut open = Vec::new();
        match report.status {
            Status::Suspended if work.approvals == FacadeApprovals::Inbox && !report.pending.is_empty() => {
                let why = "the server is shutting down; the next one asks again once the response is fetched";
                return Err(Refusal::new(Fault::Overloaded, why));
            }
            Status::Suspended => {
                for call in state.client_calls() {
                    open.push(call.id.clone());
                    output.piece(&Piece::Call(call));
                }
                let snapshot = self.gateway.options.catalogue.snapshot();
                for request in &report.pending {
                    let name = snapshot.get(request.tool.as_str()).map(|entry| entry.wire_name.clone());
                    let name = name.unwrap_or_else(|| request.tool.to_string());
                    open.push(question(work, request, &name));
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
                Some(given) => output.answer(&given.text()),
                None => output.answer(&report.answer),
            },
        }
        let end = End { stop: output.stop(), usage: report.usage, pending: false };
        Ok(Left { state: Some(state), messages: Vec::new(), session, open, end })
    }

    fn approver(&self, work: &Work) -> Arc<dyn Approver> {
        let takes_items = work.api == ServedApi::Responses;
        match work.approvals {
            FacadeApprovals::Inbox => {
                let output = takes_items.then(|| Arc::clone(&work.output));
                Arc::new(InInbox { gateway: Arc::clone(&self.gateway), inbox: self.source.inbox(), output })
            }
            FacadeApprovals::Tool if takes_items || work.brings(APPROVE) => Arc::new(Later(work.connection.clone())),
            FacadeApprovals::Tool => Arc::new(NoApprover { remedy: format!("send the tool `{APPROVE}`") }),
            FacadeApprovals::Deny => Arc::new(NoApprover {
                remedy: "set `approvals` of server.facades or of the token, or allow the tool by a rule".into(),
            }),
        }
    }
}

impl Work {
    fn brings(&self, tool: &str) -> bool {
        self.request.request.tools.iter().any(|shown| shown.name == tool)
    }

    /// Whether it answers questions about calls.
    fn decides(&self) -> bool {
        let is_question = |message: &Message| match message {
            Message::Tool { results } => results.iter().any(|result| result.call_id.starts_with(QUESTION)),
            Message::User { .. } | Message::Assistant { .. } => false,
        };
        !self.request.approvals.is_empty() || self.request.messages_from_end().any(is_question)
    }

    pub(super) fn input_items(&self) -> Vec<Value> {
        let base = self.id.trim_start_matches("resp_");
        toolwright_models::served::input_items(&self.request.items, |at| format!("in_{base}_{at}"))
    }
}

/// The state of the run: a new one, or the one that waits for this request.
fn begin(work: &Work, earlier: Earlier, spec: RunSpec) -> Result<RunState, Refusal> {
    let asked = &work.request.request.messages;
    let is_chained = work.request.previous_response.is_some() || work.request.conversation.is_some();
    let Some(mut state) = earlier.state else {
        let mut messages = earlier.messages;
        messages.extend(asked.iter().cloned());
        return Ok(RunState::new(spec, messages));
    };
    // Behind the last answer of the model a client without state says what is new.
    let tail = asked.iter().rposition(|message| matches!(message, Message::Assistant { .. })).map_or(0, |at| at + 1);
    let (mut results, mut said) = (Vec::new(), Vec::new());
    for message in &asked[tail..] {
        match message {
            Message::Tool { results: given } => results.extend(given.iter().cloned()),
            Message::User { content } => said.extend(content.iter().cloned()),
            Message::Assistant { .. } => {}
        }
    }
    let wrong = |error: &dyn std::fmt::Display| Refusal::new(Fault::Conflict, error.to_string());
    let waits = !state.is_over();
    if waits || is_chained {
        answered_once(&state, &results)?;
    }
    state.respecify(spec);
    if waits {
        let mut decisions: Vec<(CallId, ApprovalDecision)> = Vec::new();
        let mut decide = |id: &str, approve: bool, reason: String| {
            if let Some(call) = id.strip_prefix(QUESTION) {
                let decision = if approve { ApprovalDecision::Approve } else { ApprovalDecision::Deny { reason } };
                decisions.push((CallId::new(call), decision));
            }
        };
        for (id, approve, reason) in &work.request.approvals {
            decide(id, *approve, reason.clone());
        }
        for result in results.iter().filter(|result| result.call_id.starts_with(QUESTION)) {
            let text = joined_text(&result.content);
            decide(&result.call_id, !result.is_error && approves(&text), text);
        }
        if !decisions.is_empty() {
            state.on_approvals(decisions).map_err(|error| wrong(&error))?;
        }
        if !state.client_calls().is_empty() {
            state.answer_client(results, said).map_err(|error| wrong(&error))?;
        }
        return Ok(state);
    }
    if !is_chained || said.is_empty() {
        // The client has another conversation than the one that is kept.
        let mut messages = if is_chained { state.messages().to_vec() } else { Vec::new() };
        messages.extend(asked.iter().cloned());
        return Ok(RunState::new(state.spec().clone(), messages));
    }
    state.continue_with(said).map_err(|error| wrong(&error))?;
    Ok(state)
}

/// Checks that each result is that of a call, or question, that waits for one, and the only one.
fn answered_once(state: &RunState, results: &[CallResult]) -> Result<(), Refusal> {
    let mut waiting: HashSet<String> = state.client_calls().into_iter().map(|call| call.id).collect();
    let mut questions = HashSet::new();
    for CallResult { call_id, .. } in results {
        let is_first = if call_id.starts_with(QUESTION) { questions.insert(call_id) } else { waiting.remove(call_id) };
        if !is_first {
            let why = format!("no call `{call_id}` waits for a result, or it has one: send one result for each call");
            return Err(Refusal::new(Fault::Invalid, why));
        }
    }
    Ok(())
}

/// Asks the client about a call: by its tool, or by an item. Returns the id of the question.
fn question(work: &Work, request: &ApprovalRequest, name: &str) -> String {
    let id = format!("{QUESTION}{}", request.call_id.as_str());
    if work.brings(APPROVE) {
        let arguments = json!({"tool": name, "arguments": request.arguments, "reason": request.reason}).to_string();
        let call = toolwright_core::model::WrittenCall { id: id.clone(), name: APPROVE.into(), arguments };
        work.output.piece(&Piece::Call(call));
    } else {
        work.output.question(request, name);
    }
    id
}

/// Whether the result of [`APPROVE`] says yes: `{"approved": true}`, `true`, `yes`, `approve` or `approved`.
fn approves(text: &str) -> bool {
    let text = text.trim();
    match serde_json::from_str::<Value>(text) {
        Ok(Value::Bool(yes)) => yes,
        Ok(Value::Object(said)) => ["approve", "approved"].iter().any(|key| said.get(*key) == Some(&Value::Bool(true))),
        Ok(Value::String(word)) => is_yes(&word),
        _ => is_yes(text),
    }
}

fn is_yes(word: &str) -> bool {
    ["yes", "approve", "approved"].iter().any(|yes| word.eq_ignore_ascii_case(yes))
}

/// Why a program that Toolwright started is asked about no call.
const NESTED: &str = "a program that Toolwright started cannot approve its own calls";

/// Leaves every question to the next request of the client.
struct Later(Connection);

#[async_trait]
impl Approver for Later {
    async fn ask(&self, _request: &ApprovalRequest) -> ApprovalDecision {
        match self.0.process().await {
            PeerProcess::Nested => ApprovalDecision::Deny { reason: NESTED.into() },
            _ => ApprovalDecision::Later,
        }
    }
}

/// Asks in the inbox, and shows the question in the answer where it has items for that. When the server ends, the question
/// is left to the next.
struct InInbox {
    gateway: Arc<Gateway>,
    inbox: Arc<dyn Approver>,
    output: Option<Arc<Output>>,
}

#[async_trait]
impl Approver for InInbox {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        if let Some(output) = &self.output {
            output.question(request, &request.tool.to_string());
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

/// The messages of a request, the last first, up to the model's last answer.
trait FromEnd {
    fn messages_from_end(&self) -> impl Iterator<Item = &Message>;
}

impl FromEnd for ServedRequest {
    fn messages_from_end(&self) -> impl Iterator<Item = &Message> {
        self.request.messages.iter().rev().take_while(|message| !matches!(message, Message::Assistant { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::approves;

    #[test]
    fn only_a_clear_yes_approves() {
        for (text, expect) in [
            ("yes", true),
            (" Approved ", true),
            ("{\"approved\": true}", true),
            ("{\"approve\": true}", true),
            ("true", true),
            ("\"approve\"", true),
            ("", false),
            ("no", false),
            ("{\"approved\": \"yes\"}", false),
            ("I would say yes", false),
        ] {
            assert_eq!(approves(text), expect, "{text}");
        }
    }
}
