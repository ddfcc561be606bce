//! Finds the run that a request continues: a response, a conversation, or a run that waits for its client. Each call is
//! answered once: the first answer is stored before the run continues, and a repeated answer gets the same run.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_agent::{RunConfig, RunState};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::content::joined_text;
use toolwright_core::model::{CallResult, Message};
use toolwright_core::session::CallId;
use toolwright_core::tool_id::short_hash;
use toolwright_models::served::{Fault, ServedRequest};

use super::continuation_lock::ContinuationLock;
use super::output::{QUESTION, Refusal};
use super::response_work::ResponseWork;
use super::{Facade, RecordKind};

/// The most items of a conversation that are listed.
const MAX_ITEMS: usize = 10_000;
/// Length of an answer's hash, in digits.
const ANSWER_HASH: usize = 32;

/// State that an earlier request left.
#[derive(Default)]
pub(super) struct PreviousResponse {
    pub(super) state: Option<RunState>,
    pub(super) messages: Vec<Message>,
    pub(super) session: Option<String>,
    pub(super) items: Vec<Value>,
    /// System messages of earlier requests. `instructions` apply to one request only.
    pub(super) system: Vec<String>,
    /// The run's own ids of calls and questions, by the ids that the client knows.
    calls: BTreeMap<String, String>,
    /// The id of the turn that waits for this answer, if one does.
    turn: Option<String>,
    /// The stored turn, if this is the first answer to it.
    answers: Option<Value>,
    /// The run that an identical answer started before.
    pub(super) repeats: Option<String>,
    /// The result of that run, if it has ended.
    pub(super) came_to: Option<Value>,
    /// Reservations that keep other requests from continuing the same object.
    pub(super) busy: Vec<ContinuationLock>,
}

impl PreviousResponse {
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
        let text = |key: &str| saved[key].as_str().map(str::to_owned);
        let calls = saved["calls"].as_object().into_iter().flatten();
        let calls = calls.filter_map(|(known, own)| Some((known.clone(), own.as_str()?.to_owned()))).collect();
        let (session, turn) = (text("session"), text("turn"));
        let system = saved["system"].as_array().into_iter().flatten();
        let system = system.filter_map(|text| text.as_str().map(str::to_owned)).collect();
        Ok(Self { state, messages, session, items, system, calls, turn, ..Self::default() })
    }

    /// Returns whether the request answers waiting calls, so that a client may send it again.
    pub(super) fn is_answer(&self) -> bool {
        self.answers.is_some() || self.repeats.is_some()
    }

    /// Returns the results under the run's own ids of their calls.
    fn with_run_ids(&self, results: &[CallResult]) -> Vec<CallResult> {
        let own = |result: &CallResult| CallResult { call_id: self.own_id(&result.call_id), ..result.clone() };
        results.iter().map(own).collect()
    }

    /// Returns the system prompt of a request whose own part is `own`.
    pub(super) fn system(&self, own: &str) -> String {
        let own = Some(own).filter(|own| !own.is_empty());
        self.system.iter().map(String::as_str).chain(own).collect::<Vec<_>>().join("\n\n")
    }

    fn own_id(&self, known: &str) -> String {
        self.calls.get(known).cloned().unwrap_or_else(|| known.to_owned())
    }
}

impl Facade {
    /// Finds and reserves the object that the request continues.
    ///
    /// # Errors
    /// [`Fault::NotFound`] if it does not exist; [`Fault::Conflict`] while another request continues it, or if its
    /// calls already have a different answer.
    pub(super) async fn earlier(
        self: &Arc<Self>,
        owner: &str,
        request: &ServedRequest,
    ) -> Result<PreviousResponse, Refusal> {
        let objects = self.source.objects();
        let answered = match first_answer(request) {
            Some(call) => objects.object(owner, RecordKind::Call.as_str(), &call).await?,
            None => None,
        };
        let answered = answered.as_ref().and_then(Value::as_str).map(str::to_owned);
        let mut earlier = if let Some(id) = &request.previous_response {
            let found = objects.object(owner, RecordKind::Response.as_str(), id).await?;
            // It has begun, and is not in the store yet.
            let found = found.or_else(|| self.live(owner, id).map(|_| json!({})));
            let missing = || Refusal::new(Fault::NotFound, format!("there is no response `{id}`"));
            let found = found.ok_or_else(|| missing().about("previous_response_id"))?;
            if found.get("session").is_none() {
                let why = format!("response `{id}` is not complete");
                return Err(Refusal::new(Fault::Conflict, why).about("previous_response_id"));
            }
            PreviousResponse::read(&found)?
        } else if let Some(id) = &request.conversation {
            self.conversation_so_far(owner, id).await?
        } else {
            PreviousResponse { turn: answered.clone(), ..PreviousResponse::default() }
        };
        let is_chained = is_chained(request);
        // After a conversation has continued, the answer to its last calls may be sent once more.
        let turn =
            if request.conversation.is_some() { answered.or(earlier.turn.clone()) } else { earlier.turn.clone() };
        let Some(turn) = turn else { return Ok(earlier) };
        earlier.busy.push(self.reserve(owner, RecordKind::Turn, &turn).await?);
        let left = match objects.object(owner, RecordKind::Turn.as_str(), &turn).await? {
            Some(left) => left,
            None if is_chained => json!({}),
            None => return Ok(earlier),
        };
        if !is_chained {
            earlier = PreviousResponse { busy: earlier.busy, ..PreviousResponse::read(&left)? };
        }
        match left["answered"]["by"].as_str() {
            Some(by) if left["answered"]["with"] == hash_of_answer(request) => {
                if left["answered"]["kept"] == true
                    && objects.object(owner, RecordKind::Response.as_str(), by).await?.is_none()
                {
                    let why = format!("the response `{by}`, which answered these calls, was deleted");
                    return Err(Refusal::new(Fault::NotFound, why));
                }
                let answer = objects.object(owner, RecordKind::Answer.as_str(), by).await?;
                earlier.came_to = answer.map(|mut answer| answer["said"].take()).filter(Value::is_object);
                earlier.repeats = Some(by.to_owned());
            }
            // A client that holds the whole conversation may continue it differently, for example after an
            // interruption.
            Some(_) if !is_chained && !decides(request) => return Ok(PreviousResponse::default()),
            Some(by) => {
                let why = format!(
                    "the calls that waited were answered by request `{by}`: each takes one answer. Continue what that came to"
                );
                return Err(Refusal::new(Fault::Conflict, why));
            }
            None if earlier.turn.as_ref().is_none_or(|left| *left == turn) => {
                earlier.turn = Some(turn);
                earlier.answers = Some(left);
            }
            // The results belong to calls that this conversation does not wait for.
            None => {}
        }
        Ok(earlier)
    }

    async fn conversation_so_far(self: &Arc<Self>, owner: &str, id: &str) -> Result<PreviousResponse, Refusal> {
        let about = |fault, why: String| Refusal::new(fault, why).about("conversation");
        let busy = self.reserve(owner, RecordKind::Conversation, id).await?;
        let found = self.source.objects().object(owner, RecordKind::Conversation.as_str(), id).await?;
        let found = found.ok_or_else(|| about(Fault::NotFound, format!("there is no conversation `{id}`")))?;
        let mut earlier = PreviousResponse::read(&found)?;
        if earlier.items.len() >= MAX_ITEMS {
            let why = format!("a conversation has at most {MAX_ITEMS} items: begin another");
            return Err(about(Fault::Conflict, why));
        }
        if earlier.state.is_none() && earlier.messages.is_empty() {
            earlier.messages = toolwright_models::served::input_messages(&earlier.items)?;
        }
        earlier.system = toolwright_models::served::input_system(&earlier.items)?;
        earlier.busy.push(busy);
        Ok(earlier)
    }

    /// Returns the state of the run: a new one, or the waiting one. Records that this request answers the waiting turn.
    ///
    /// # Errors
    /// [`Fault::Invalid`] and [`Fault::Conflict`] for results of calls that do not wait, and failures of the store.
    pub(super) async fn begin(
        self: &Arc<Self>,
        work: &ResponseWork,
        mut earlier: PreviousResponse,
        spec: RunConfig,
    ) -> Result<RunState, Refusal> {
        let answers = earlier.answers.take().zip(earlier.turn.take());
        let state = begin(work, earlier, spec)?;
        if let Some((mut left, turn)) = answers {
            // With `kept`, the response is stored in the same step: if it is missing later, it was deleted.
            let with = hash_of_answer(&work.request);
            left["answered"] = json!({"by": work.id, "with": with, "kept": work.is_kept()});
            self.record_start(work, Some(RecordKind::Turn.kept(&turn, left))).await?;
        }
        Ok(state)
    }
}

pub(super) fn is_chained(request: &ServedRequest) -> bool {
    request.previous_response.is_some() || request.conversation.is_some()
}

/// Returns the id of a call or question that the request answers.
fn first_answer(request: &ServedRequest) -> Option<String> {
    // A stateless client gives the results of calls at the end of its conversation.
    let of_result = request.messages_from_end().find_map(|message| match message {
        Message::Tool { results } => results.first().map(|result| result.call_id.clone()),
        Message::User { .. } | Message::Assistant { .. } => None,
    });
    of_result.or_else(|| request.approvals.first().map(|(id, ..)| id.clone()))
}

/// Returns whether the request answers approval questions.
pub(super) fn decides(request: &ServedRequest) -> bool {
    let is_question = |message: &Message| match message {
        Message::Tool { results } => results.iter().any(|result| result.call_id.starts_with(QUESTION)),
        Message::User { .. } | Message::Assistant { .. } => false,
    };
    !request.approvals.is_empty() || request.messages_from_end().any(is_question)
}

/// Hashes the messages after the model's last answer, and the approvals.
fn hash_of_answer(request: &ServedRequest) -> String {
    let said: Vec<&Message> = request.messages_from_end().collect();
    short_hash(&json!([said, request.approvals]).to_string(), ANSWER_HASH)
}

fn begin(work: &ResponseWork, earlier: PreviousResponse, spec: RunConfig) -> Result<RunState, Refusal> {
    let asked = &work.request.request.messages;
    let is_chained = is_chained(&work.request);
    // A stateless client puts its new messages after the model's last answer.
    let tail = asked.iter().rposition(|message| matches!(message, Message::Assistant { .. })).map_or(0, |at| at + 1);
    let (mut results, mut said) = (Vec::new(), Vec::new());
    for message in &asked[tail..] {
        match message {
            Message::Tool { results: given } => results.extend(earlier.with_run_ids(given)),
            Message::User { content } => said.extend(content.iter().cloned()),
            Message::Assistant { .. } => {}
        }
    }
    let approvals: Vec<_> =
        work.request.approvals.iter().map(|(id, yes, why)| (earlier.own_id(id), *yes, why)).collect();
    let Some(mut state) = earlier.state else {
        let mut messages = earlier.messages;
        messages.extend(asked.iter().cloned());
        return Ok(RunState::new(spec, messages));
    };
    let wrong = |error: &dyn std::fmt::Display| Refusal::new(Fault::Conflict, error.to_string());
    let waits = !state.is_over();
    if waits || is_chained {
        answered_once(&state, &results).map_err(|refusal| refusal.about(results_field(work)))?;
    }
    if waits && !(results.is_empty() && approvals.is_empty()) {
        all_answered(&state, &results, &earlier.calls)
            .map_err(|refusal| refusal.about(if work.request.items.is_empty() { "messages" } else { "input" }))?;
    }
    state.replace_config(spec);
    if waits {
        let mut decisions: Vec<(CallId, ApprovalDecision)> = Vec::new();
        let mut decide = |id: &str, approve: bool, reason: String| {
            if let Some(call) = id.strip_prefix(QUESTION) {
                let decision = if approve { ApprovalDecision::Approve } else { ApprovalDecision::Deny { reason } };
                decisions.push((CallId::new(call), decision));
            }
        };
        for (id, approve, reason) in approvals {
            decide(&id, approve, reason.clone());
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
        // The client's conversation differs from the stored one.
        let mut messages = if is_chained { state.messages().to_vec() } else { Vec::new() };
        messages.extend(asked.iter().cloned());
        return Ok(RunState::new(state.spec().clone(), messages));
    }
    state.continue_with(said).map_err(|error| wrong(&error))?;
    Ok(state)
}

/// Checks that each result answers a waiting call or question, and that no other result answers the same one.
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

/// Checks that every call that waits for the client has its result, because the model is asked next. `calls` maps the
/// ids that the client knows to the run's own.
fn all_answered(state: &RunState, results: &[CallResult], calls: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let waiting = state.client_calls();
    let Some(call) = waiting.iter().find(|call| results.iter().all(|result| result.call_id != call.id)) else {
        return Ok(());
    };
    let known = calls.iter().find(|(_, own)| **own == call.id).map_or(&call.id, |(known, _)| known);
    let why = format!("call `{known}` has no result: send the results of all calls of an answer in one request");
    Err(Refusal::new(Fault::Invalid, why))
}

/// Returns the name of the field in which a request gives results of calls.
fn results_field(work: &ResponseWork) -> String {
    let is_result = |item: &Value| item["type"].as_str().is_some_and(|kind| kind.ends_with("_call_output"));
    match work.request.items.iter().rposition(is_result) {
        Some(at) => format!("input[{at}].call_id"),
        None => "messages".to_owned(),
    }
}

/// Returns whether the result of the client's approval tool approves: `{"approved": true}`, `true`, `yes`, `approve` or
/// `approved`.
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

/// Iterates over the messages of a request from the last back to the model's last answer.
pub(super) trait MessagesFromEnd {
    fn messages_from_end(&self) -> impl Iterator<Item = &Message>;
}

impl MessagesFromEnd for ServedRequest {
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
