//! Finds the run that a request continues: a response, a conversation, or a run that waits for its client. Each call is
//! answered once: the first answer is stored before the run continues, and a repeated answer gets the same run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_agent::{RunConfig, RunState, TransitionError};
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::content::{ContentBlock, joined_text};
use toolwright_core::model::{CallResult, Message};
use toolwright_core::session::CallId;
use toolwright_core::tool_id::short_hash;
use toolwright_models::served::{Fault, ServedRequest};

use super::continuation_lock::ContinuationLock;
use super::output::QUESTION;
use super::refusal::Refusal;
use super::response_work::ResponseWork;
use super::{Facade, RecordKind};

/// The most items of a conversation that are listed.
const MAX_ITEMS: usize = 10_000;
/// Length of an answer's hash, in digits.
const ANSWER_HASH: usize = 32;

/// The state of what a request continues, left by an earlier request.
#[derive(Default)]
pub(super) struct Continuation {
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
    answered_turn: Option<Value>,
    /// The id of the run that an identical answer started before.
    pub(super) repeated_id: Option<String>,
    /// The result of that run, if it has ended.
    pub(super) repeated_answer: Option<Value>,
    /// Whether its calls named it, so that the request repeats the messages before its answer.
    by_calls: bool,
    /// Reservations that keep other requests from continuing the same object.
    pub(super) locks: Vec<ContinuationLock>,
}

impl Continuation {
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

    /// Returns the turn that a request found by its calls, with the reservations made so far.
    fn of_turn(self, left: &Value) -> Result<Self, Refusal> {
        Ok(Self { by_calls: true, locks: self.locks, ..Self::read(left)? })
    }

    /// Returns whether the request answers waiting calls, so that a client may send it again.
    pub(super) fn is_answer(&self) -> bool {
        self.answered_turn.is_some() || self.repeated_id.is_some()
    }

    /// Returns the system prompt of a request whose own part is `own`.
    pub(super) fn system(&self, own: &str) -> String {
        let own = Some(own).filter(|own| !own.is_empty());
        self.system.iter().map(String::as_str).chain(own).collect::<Vec<_>>().join("\n\n")
    }
}

impl Facade {
    /// Finds and reserves the object that the request continues.
    ///
    /// # Errors
    /// [`Fault::NotFound`] if it does not exist; [`Fault::Conflict`] while another request continues it, or if its
    /// calls already have a different answer.
    pub(super) async fn find_continuation(
        self: &Arc<Self>,
        owner: &str,
        request: &ServedRequest,
    ) -> Result<Continuation, Refusal> {
        let objects = self.source.objects();
        let (answered, repeats_calls) = match first_answer(request) {
            Some((call, repeats)) => (objects.object(owner, RecordKind::Call.as_str(), &call).await?, repeats),
            None => (None, false),
        };
        let answered = answered.as_ref().and_then(Value::as_str).map(str::to_owned);
        let mut earlier = if let Some(id) = &request.previous_response {
            let found = objects.object(owner, RecordKind::Response.as_str(), id).await?;
            // It has begun, and is not in the store yet.
            let found = found.or_else(|| self.live(owner, id).map(|_| json!({})));
            let missing = || Refusal::new(Fault::NotFound, format!("there is no response `{id}`"));
            let found = found.ok_or_else(|| missing().with_field("previous_response_id"))?;
            if found.get("session").is_none() {
                let why = format!("response `{id}` is not complete");
                return Err(Refusal::new(Fault::Conflict, why).with_field("previous_response_id"));
            }
            Continuation::read(&found)?
        } else if let Some(id) = &request.conversation {
            self.conversation_so_far(owner, id).await?
        } else {
            Continuation::default()
        };
        let turn = if request.conversation.is_some() {
            // After a conversation has continued, the answer to its last calls may be sent once more.
            answered.or(earlier.turn.clone())
        } else {
            earlier.turn.clone().or(answered.filter(|_| repeats_calls))
        };
        let Some(turn) = turn else { return Ok(earlier) };
        earlier.locks.push(self.reserve(owner, RecordKind::Turn, &turn).await?);
        let left = objects.object(owner, RecordKind::Turn.as_str(), &turn).await?;
        let is_own_turn = earlier.turn.as_ref() == Some(&turn);
        let left = match left {
            Some(left) => left,
            None if is_own_turn => json!({}),
            None => return Ok(earlier),
        };
        // A response that was not stored is continued by its calls, after the one that it continued.
        let by_calls = !is_chained(request)
            || (!is_own_turn && request.conversation.is_none() && left["after"] == json!(request.previous_response));
        if !is_own_turn && !by_calls && request.conversation.is_none() {
            return Ok(earlier);
        }
        let answered = &left["answered"];
        match answered["by"].as_str() {
            Some(by) if answered["with"] == hash_of_answer(request) => {
                if answered["kept"] == true && objects.object(owner, RecordKind::Response.as_str(), by).await?.is_none()
                {
                    let why = format!("the response `{by}`, which answered these calls, was deleted");
                    return Err(Refusal::new(Fault::NotFound, why));
                }
                let answer = objects.object(owner, RecordKind::Answer.as_str(), by).await?;
                let repeated_answer = answer.map(|mut answer| answer["said"].take()).filter(Value::is_object);
                if by_calls {
                    earlier = earlier.of_turn(&left)?;
                }
                (earlier.repeated_id, earlier.repeated_answer) = (Some(by.to_owned()), repeated_answer);
            }
            // A client that sends the calls with their results may continue differently, for example after an
            // interruption.
            Some(_) if !is_own_turn && repeats_calls && !decides(request) => drop(earlier.locks.pop()),
            Some(by) => {
                let why = format!(
                    "the calls that waited were answered by request `{by}`: each takes one answer. Continue what that came to"
                );
                return Err(Refusal::new(Fault::Conflict, why));
            }
            None if is_own_turn || by_calls => {
                if by_calls {
                    earlier = earlier.of_turn(&left)?;
                }
                (earlier.turn, earlier.answered_turn) = (Some(turn), Some(left));
            }
            // The results belong to calls that this conversation does not wait for.
            None => {}
        }
        Ok(earlier)
    }

    async fn conversation_so_far(self: &Arc<Self>, owner: &str, id: &str) -> Result<Continuation, Refusal> {
        let about = |fault, why: String| Refusal::new(fault, why).with_field("conversation");
        let lock = self.reserve(owner, RecordKind::Conversation, id).await?;
        let found = self.source.objects().object(owner, RecordKind::Conversation.as_str(), id).await?;
        let found = found.ok_or_else(|| about(Fault::NotFound, format!("there is no conversation `{id}`")))?;
        let mut earlier = Continuation::read(&found)?;
        if earlier.items.len() >= MAX_ITEMS {
            let why = format!("a conversation has at most {MAX_ITEMS} items: begin another");
            return Err(about(Fault::Conflict, why));
        }
        if earlier.state.is_none() && earlier.messages.is_empty() {
            earlier.messages = toolwright_models::served::input_messages(&earlier.items)?;
        }
        earlier.system = toolwright_models::served::input_system(&earlier.items)?;
        earlier.locks.push(lock);
        Ok(earlier)
    }

    /// Returns the state of the run: a new one, or the waiting one. Records that this request answers the waiting turn.
    ///
    /// # Errors
    /// [`Fault::Invalid`] and [`Fault::Conflict`] for results of calls that do not wait, and failures of the store.
    pub(super) async fn begin(
        self: &Arc<Self>,
        work: &ResponseWork,
        mut earlier: Continuation,
        config: RunConfig,
    ) -> Result<RunState, Refusal> {
        let answered_turn = earlier.answered_turn.take().zip(earlier.turn.take());
        let state = begin(work, earlier, config)?;
        if let Some((mut left, turn)) = answered_turn {
            // With `kept`, the response is stored in the same step: if it is missing later, it was deleted.
            let with = hash_of_answer(&work.request);
            left["answered"] = json!({"by": work.id, "with": with, "kept": work.is_kept()});
            self.record_start(work, Some(RecordKind::Turn.stored_object(&turn, left))).await?;
        }
        Ok(state)
    }
}

pub(super) fn is_chained(request: &ServedRequest) -> bool {
    request.previous_response.is_some() || request.conversation.is_some()
}

/// Returns the id of a call or question that the request answers, and whether the request repeats its call.
fn first_answer(request: &ServedRequest) -> Option<(String, bool)> {
    let results = request.messages_from_end().filter_map(|message| match message {
        Message::Tool { results } => Some(results),
        Message::User { .. } | Message::Assistant { .. } => None,
    });
    let results: Vec<&CallResult> = results.flatten().collect();
    match results.iter().find(|result| !has_call(result)).or(results.first()) {
        Some(result) => Some((result.call_id.clone(), has_call(result))),
        None => decisions(request).next().map(|decision| (decision.id.to_owned(), true)),
    }
}

/// Returns whether the call of a result stands in the same request: the reader of requests knows its name.
fn has_call(result: &CallResult) -> bool {
    !result.name.is_empty()
}

/// Returns whether the request answers approval questions.
pub(super) fn decides(request: &ServedRequest) -> bool {
    let is_question = |message: &Message| match message {
        Message::Tool { results } => results.iter().any(|result| result.call_id.starts_with(QUESTION)),
        Message::User { .. } | Message::Assistant { .. } => false,
    };
    decisions(request).next().is_some() || request.messages_from_end().any(is_question)
}

/// Hashes the messages that may answer calls, and the approvals.
fn hash_of_answer(request: &ServedRequest) -> String {
    let messages: Vec<&Message> = request.messages_from_end().collect();
    let decisions: Vec<_> = decisions(request).map(|given| (given.id, given.approve, given.reason)).collect();
    short_hash(&json!([messages, decisions]).to_string(), ANSWER_HASH)
}

/// An item that decides about a call.
struct Decision<'r> {
    id: &'r str,
    approve: bool,
    reason: &'r str,
    place: usize,
    /// Whether a part of an answer follows it.
    is_past: bool,
}

impl Decision<'_> {
    /// Returns the path of the question's id.
    fn field(&self) -> String {
        format!("input[{}].approval_request_id", self.place)
    }
}

/// Returns the decisions that may answer questions. As with messages, a client that holds its conversation puts new ones
/// after the model's last answer.
fn decisions(request: &ServedRequest) -> impl Iterator<Item = Decision<'_>> {
    let is_output = |item: &Value| match item["type"].as_str().unwrap_or("message") {
        "message" => item["role"] == "assistant",
        kind => matches!(kind, "function_call" | "custom_tool_call" | "mcp_call"),
    };
    let last_output = request.items.iter().rposition(is_output);
    let places = places_of(request, &["mcp_approval_response"]);
    let decisions = places.zip(&request.approvals).map(move |(place, (id, approve, reason))| Decision {
        id,
        approve: *approve,
        reason,
        place,
        is_past: last_output > Some(place),
    });
    decisions.filter(move |decision| is_chained(request) || !decision.is_past)
}

fn begin(work: &ResponseWork, earlier: Continuation, config: RunConfig) -> Result<RunState, Refusal> {
    let RequestInput { history, results, decisions } = earlier.sort(&work.request)?;
    let Some(mut state) = earlier.state else {
        return Ok(RunState::new(config, [earlier.messages, history].concat()));
    };
    let wrong = |error: TransitionError| Refusal::new(Fault::Conflict, error.to_string());
    state.replace_config(config);
    if !state.is_over() {
        state.add_messages(history).map_err(wrong)?;
        if !decisions.is_empty() {
            state.on_approvals(decisions).map_err(wrong)?;
        }
        if !state.client_calls().is_empty() {
            state.answer_client(results).map_err(wrong)?;
        }
        return Ok(state);
    }
    match user_content(&history) {
        Some(content) => state.continue_with(content).map_err(wrong)?,
        None => state = RunState::new(state.config().clone(), [state.messages(), &history].concat()),
    }
    Ok(state)
}

/// Returns the content of messages that are all the user's.
fn user_content(messages: &[Message]) -> Option<Vec<ContentBlock>> {
    let content = messages.iter().map(|message| match message {
        Message::User { content } => Some(content.clone()),
        Message::Assistant { .. } | Message::Tool { .. } => None,
    });
    Some(content.collect::<Option<Vec<_>>>()?.concat()).filter(|content| !content.is_empty())
}

/// The input of a request, under the run's own ids.
#[derive(Debug, Default)]
struct RequestInput {
    /// Messages that answer nothing.
    history: Vec<Message>,
    /// Results of the calls that wait.
    results: Vec<CallResult>,
    /// Decisions about the questions that wait.
    decisions: Vec<(CallId, ApprovalDecision)>,
}

impl Continuation {
    /// Sorts a request's input by what waits for it.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an answer to a call or question that does not wait, for a second one to the same, and for
    /// answers to only some of those that wait.
    fn sort(&self, request: &ServedRequest) -> Result<RequestInput, Refusal> {
        let messages = &request.request.messages;
        let is_assistant = |message: &Message| matches!(message, Message::Assistant { .. });
        let tail = messages.iter().rposition(is_assistant).map_or(0, |at| at + 1);
        // The run has what comes before its answer.
        let begin = if self.by_calls { tail } else { 0 };
        let (mut input, mut answered, mut number) = (RequestInput::default(), BTreeSet::new(), 0);
        for (at, message) in messages.iter().enumerate() {
            match message {
                Message::Tool { results } => {
                    let mut others = Vec::new();
                    for result in results {
                        let place = || result_field(request, number);
                        let id = result.call_id.as_str();
                        match self.calls.get(id) {
                            _ if at < begin => {}
                            Some(own) => {
                                take(&mut answered, id).map_err(|refusal| refusal.with_field(place()))?;
                                if let Some(call) = own.strip_prefix(QUESTION) {
                                    let text = joined_text(&result.content);
                                    let yes = !result.is_error && approves(&text);
                                    input.decisions.push(decision(call, yes, text));
                                } else {
                                    input.results.push(CallResult { call_id: own.clone(), ..result.clone() });
                                }
                            }
                            None if id.starts_with(QUESTION) && at >= tail => {
                                return Err(no_question(id).with_field(place()));
                            }
                            None if has_call(result) || self.state.is_none() => others.push(result.clone()),
                            None => {
                                let why = format!("no call `{id}` waits for a result");
                                return Err(Refusal::new(Fault::Invalid, why).with_field(place()));
                            }
                        }
                        number += 1;
                    }
                    if !others.is_empty() {
                        input.history.push(Message::Tool { results: others });
                    }
                }
                _ if at < begin => {}
                Message::Assistant { calls, .. } if calls.iter().any(|call| self.calls.contains_key(&call.id)) => {
                    // The run has the answer whose calls wait.
                    let others = calls.iter().filter(|call| !self.calls.contains_key(&call.id));
                    let calls: Vec<_> = others.cloned().collect();
                    if !calls.is_empty() {
                        input.history.push(Message::Assistant { text: String::new(), calls, opaque: Vec::new() });
                    }
                }
                Message::User { .. } | Message::Assistant { .. } => input.history.push(message.clone()),
            }
        }
        for given_decision in decisions(request) {
            match self.calls.get(given_decision.id).and_then(|own| own.strip_prefix(QUESTION)) {
                Some(call) => {
                    take(&mut answered, given_decision.id)
                        .map_err(|refusal| refusal.with_field(given_decision.field()))?;
                    input.decisions.push(decision(call, given_decision.approve, given_decision.reason.to_owned()));
                }
                None if given_decision.is_past => {}
                None => return Err(no_question(given_decision.id).with_field(given_decision.field())),
            }
        }
        let missing = self.calls.keys().filter(|id| !answered.contains(id.as_str()));
        let missing: Vec<_> = missing.map(|id| format!("`{id}`")).collect();
        if !answered.is_empty() && !missing.is_empty() {
            let why = format!(
                "nothing answers {}: send the results and decisions for all calls of an answer in one request",
                missing.join(", ")
            );
            let field = if request.items.is_empty() { "messages" } else { "input" };
            return Err(Refusal::new(Fault::Invalid, why).with_field(field));
        }
        Ok(input)
    }
}

/// Notes that a request answers the call or question `id`.
fn take<'r>(answered: &mut BTreeSet<&'r str>, id: &'r str) -> Result<(), Refusal> {
    let why = || format!("`{id}` is answered twice in this request: each call and question takes one answer");
    if answered.insert(id) { Ok(()) } else { Err(Refusal::new(Fault::Invalid, why())) }
}

fn no_question(id: &str) -> Refusal {
    Refusal::new(Fault::Invalid, format!("no question `{id}` waits for a decision"))
}

fn decision(call: &str, yes: bool, reason: String) -> (CallId, ApprovalDecision) {
    (CallId::new(call), if yes { ApprovalDecision::Approve } else { ApprovalDecision::Deny { reason } })
}

/// Refuses decisions where no call waits for one, as with a model without an agent.
///
/// # Errors
/// [`Fault::Invalid`], naming the first decision.
pub(super) fn refuse_decisions(request: &ServedRequest) -> Result<(), Refusal> {
    match decisions(request).find(|given| !given.is_past) {
        Some(given) => Err(no_question(given.id).with_field(given.field())),
        None => Ok(()),
    }
}

/// Returns the path of the result with this number. Only Responses has items.
fn result_field(request: &ServedRequest, number: usize) -> String {
    let place = places_of(request, &["function_call_output", "custom_tool_call_output"]).nth(number);
    place.map_or_else(|| "messages".to_owned(), |at| format!("input[{at}].call_id"))
}

/// Returns the places of the items of these types.
fn places_of(request: &ServedRequest, types: &'static [&'static str]) -> impl Iterator<Item = usize> {
    let items = request.items.iter().enumerate();
    items.filter(|(_, item)| item["type"].as_str().is_some_and(|kind| types.contains(&kind))).map(|(at, _)| at)
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

/// Iterates over the messages of a request that may answer calls, from the last back to the model's last answer: a
/// client that holds its conversation puts new messages after it. A stored conversation has all of that before.
pub(super) trait MessagesFromEnd {
    fn messages_from_end(&self) -> impl Iterator<Item = &Message>;
}

impl MessagesFromEnd for ServedRequest {
    fn messages_from_end(&self) -> impl Iterator<Item = &Message> {
        let is_new = |message: &&Message| is_chained(self) || !matches!(message, Message::Assistant { .. });
        self.request.messages.iter().rev().take_while(is_new)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use toolwright_agent::{RunConfig, RunState};
    use toolwright_core::approval::ApprovalDecision;
    use toolwright_core::content::joined_text;
    use toolwright_core::model::Message;
    use toolwright_models::served::{ServedApi, read_request};

    use super::{Continuation, RequestInput, approves};

    /// Writes sorted input as "history | results | decisions".
    fn written(input: &RequestInput) -> String {
        let history = input.history.iter().map(|message| match message {
            Message::User { content } => joined_text(content),
            Message::Assistant { calls, .. } => calls.iter().map(|call| format!("{}()", call.id)).collect(),
            Message::Tool { results } => results.iter().map(|result| format!("={}", result.call_id)).collect(),
        });
        let results = input.results.iter().map(|result| result.call_id.clone());
        let decisions = input.decisions.iter().map(|(id, decision)| {
            let word = if matches!(decision, ApprovalDecision::Approve) { "yes" } else { "no" };
            format!("{}:{word}", id.as_str())
        });
        let parts = [history.collect::<Vec<_>>(), results.collect(), decisions.collect()];
        parts.map(|part| part.join(" ")).join(" | ")
    }

    fn check(waiting: &[(&str, &str)], input: &Value, expect: &str) {
        let state = Some(RunState::new(RunConfig::new("p/m", ""), Vec::new()));
        let calls = waiting.iter().map(|(known, own)| ((*known).to_owned(), (*own).to_owned())).collect();
        let earlier = Continuation { state, calls, ..Continuation::default() };
        let body = json!({"model": "m", "previous_response_id": "resp_1", "input": input}).to_string();
        let request = read_request(ServedApi::Responses, body.as_bytes()).expect("a request");
        let sorted = match earlier.sort(&request) {
            Ok(input) => written(&input),
            Err(refusal) => format!("{}: {}", refusal.field.unwrap_or_default(), refusal.message),
        };
        assert!(sorted.starts_with(expect), "{input}: {sorted}");
    }

    #[test]
    fn input_is_history_results_or_decisions() {
        let call = |id: &str| json!({"type": "function_call", "call_id": id, "name": "look", "arguments": "{}"});
        let result = |id: &str| json!({"type": "function_call_output", "call_id": id, "output": "seen"});
        let decision =
            |id: &str, yes: bool| json!({"type": "mcp_approval_response", "approval_request_id": id, "approve": yes});
        let said = |text: &str| json!({"role": "user", "content": text});
        let (a, b, yes, no) = (result("a"), result("b"), decision("appr_q", true), decision("appr_q", false));
        let waiting = [("a", "1"), ("b", "2"), ("appr_q", "appr_3")];
        for (input, expect) in [
            (json!([a, b, yes]), " | 1 2 | 3:yes"),
            (json!([no, b, a]), " | 2 1 | 3:no"),
            (json!([said("wait")]), "wait |  | "),
            (json!([call("c"), result("c"), a, b, yes, said("hi")]), "c() =c hi | 1 2 | 3:yes"),
            (json!([a, call("c"), result("c"), b, yes]), "c() =c | 1 2 | 3:yes"),
            (json!([call("a"), call("b"), a, b, yes]), " | 1 2 | 3:yes"),
            (json!([call("a"), call("c"), a, result("c"), b, yes]), "c() =c | 1 2 | 3:yes"),
            (json!([a, b]), "input: nothing answers `appr_q`"),
            (json!([a, yes]), "input: nothing answers `b`"),
            (json!([yes]), "input: nothing answers `a`, `b`"),
            (json!([a, a, b, yes]), "input[1].call_id: `a` is answered twice"),
            (json!([result("z"), a, b, yes]), "input[0].call_id: no call `z` waits"),
            (json!([a, b, yes, no]), "input[3].approval_request_id: `appr_q` is answered twice"),
            (json!([said("hi"), decision("appr_z", true)]), "input[1].approval_request_id: no question `appr_z` waits"),
            (json!([decision("appr_z", true), call("c"), result("c"), a, b, yes]), "c() =c | 1 2 | 3:yes"),
            (json!([yes, call("c"), result("c"), a, b]), "c() =c | 1 2 | 3:yes"),
            (json!([decision("a", true)]), "input[0].approval_request_id: no question `a` waits"),
        ] {
            check(&waiting, &input, expect);
        }
        for (input, expect) in [
            (json!([call("c"), result("c"), said("hi")]), "c() =c hi |  | "),
            (json!([said("hi"), a]), "input[1].call_id: no call `a` waits"),
            (json!([yes]), "input[0].approval_request_id: no question `appr_q` waits"),
        ] {
            check(&[], &input, expect);
        }
    }

    #[test]
    fn only_an_explicit_yes_approves() {
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
