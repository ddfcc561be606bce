//! Paused calls: calls that wait until a client resumes them with answers (2026-07-28, "Multi Round-Trip Requests").
//! The call itself continues; it is not made again.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use toolwright_core::cancel::CancelCause;
use toolwright_core::canonical::ContentHash;
use toolwright_core::client::ClientRequest;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_mcp::tasks::{RequestState, StateError, StateKey};

use crate::mcp::message::{self, Params, RpcError, to_json};
use crate::mcp::protocol::SERVER_INFO;
use crate::mcp::response::{AttachedRequest, ResponseChannel};

/// The most calls that are paused at once, over all clients.
const MAX_PAUSED: usize = 256;
/// The most calls of one principal that are paused at once.
const MAX_PAUSED_OF_ONE: usize = 64;
/// How long, in seconds, the result of an ended call is kept for a client that answers late.
const KEPT: u64 = 600;
/// The most results that are kept at once; the oldest is dropped first.
const MAX_KEPT: usize = 64;
/// The largest result that is kept, in bytes.
const MAX_KEPT_BYTES: usize = 1 << 20;

/// The paused calls.
pub(crate) struct PausedCalls {
    key: StateKey,
    server_info: Value,
    calls: Mutex<HashMap<u128, TrackedCall>>,
}

/// A call that has asked its client a question.
enum TrackedCall {
    /// The call runs, and may be waiting.
    Paused(PausedCall),
    /// The call ended while no request was attached.
    Ended { result: Result<Vec<u8>, RpcError>, until: u64 },
}

/// A call that has asked a question and has not ended.
struct PausedCall {
    /// The round of the latest state. States of other rounds are invalid.
    round: u32,
    expires: u64,
    binding: ContentHash,
    principal: String,
    channel: Arc<ResponseChannel>,
    /// A call may ask several things concurrently.
    open: OpenQuestions,
}

/// Values that a resuming request must match.
pub(crate) struct RequestBinding {
    pub(crate) principal: String,
    /// The path of its address.
    pub(crate) path: String,
    pub(crate) method: String,
    pub(crate) params: Option<Box<RawValue>>,
}

impl RequestBinding {
    fn hash(&self) -> ContentHash {
        let mut params: Map<String, Value> =
            self.params.as_deref().and_then(|raw| message::read(raw).ok()).unwrap_or_default();
        for own in ["_meta", "inputResponses", "requestState"] {
            params.remove(own);
        }
        ContentHash::of_value(&json!([self.principal, self.path, self.method, params]))
    }
}

/// Questions that were asked together, with the answers received so far.
pub(crate) struct QuestionSet {
    questions: Vec<(String, Value, Option<Value>)>,
}

impl QuestionSet {
    /// Creates questions under the keys of their source. Takes answers with the same keys from `answers`.
    pub(crate) fn new(requests: Vec<ClientRequest>, answers: &mut HashMap<String, Value>) -> Self {
        Self::with_taken(requests, answers, |_| false)
    }

    /// Like [`QuestionSet::new`], but avoids keys in use.
    fn with_taken(
        requests: Vec<ClientRequest>,
        answers: &mut HashMap<String, Value>,
        taken: impl Fn(&str) -> bool,
    ) -> Self {
        let mut questions: Vec<(String, Value, Option<Value>)> = Vec::with_capacity(requests.len());
        for ClientRequest { key, method, params } in requests {
            let taken = |key: &str| taken(key) || questions.iter().any(|(other, ..)| other == key);
            let mut name = key.unwrap_or_else(|| method.replace('/', "-"));
            let plain = name.clone();
            let mut n = 1;
            while taken(&name) {
                n += 1;
                name = format!("{plain}-{n}");
            }
            let answer = answers.remove(&name);
            questions.push((name, json!({"method": method, "params": params}), answer));
        }
        Self { questions }
    }

    fn has(&self, key: &str) -> bool {
        self.questions.iter().any(|(other, ..)| other == key)
    }

    /// Takes the answers to these questions, and ignores others.
    pub(crate) fn take(&mut self, mut answers: Map<String, Value>) {
        for (key, _, answer) in &mut self.questions {
            if let Some(value) = answers.remove(key) {
                *answer = Some(value);
            }
        }
    }

    fn is_answered(&self) -> bool {
        self.questions.iter().all(|(.., answer)| answer.is_some())
    }

    fn answers(self) -> Vec<Value> {
        self.questions.into_iter().filter_map(|(.., answer)| answer).collect()
    }

    /// Returns the unanswered questions, as the protocol's `inputRequests`.
    fn open(&self) -> impl Iterator<Item = (String, Value)> {
        let open = self.questions.iter().filter(|(.., answer)| answer.is_none());
        open.map(|(key, question, _)| (key.clone(), question.clone()))
    }
}

/// The open questions of a call: one round for each time it asked.
#[derive(Default)]
pub(crate) struct OpenQuestions {
    rounds: Vec<QuestionRound>,
    /// The number of the next round.
    begun: u64,
}

/// Questions that were asked together.
struct QuestionRound {
    number: u64,
    questions: QuestionSet,
    answered: oneshot::Sender<Vec<Value>>,
}

impl OpenQuestions {
    /// Adds a round. Returns its number, and a receiver of its answers once all have arrived.
    pub(crate) fn add(&mut self, questions: QuestionSet) -> (u64, oneshot::Receiver<Vec<Value>>) {
        let (answered, answers) = oneshot::channel();
        let number = self.begun;
        self.begun += 1;
        self.rounds.push(QuestionRound { number, questions, answered });
        (number, answers)
    }

    /// Removes a round.
    pub(crate) fn remove(&mut self, number: u64) {
        self.rounds.retain(|round| round.number != number);
    }

    /// Takes the answers to open questions, and ignores others.
    pub(crate) fn take(&mut self, answers: &Map<String, Value>) {
        self.rounds.iter_mut().for_each(|round| round.questions.take(answers.clone()));
    }

    /// Sends the answers of complete rounds.
    pub(crate) fn send_complete_rounds(&mut self) {
        for round in self.rounds.extract_if(.., |round| round.questions.is_answered()) {
            // The call may no longer wait for them.
            let _ = round.answered.send(round.questions.answers());
        }
    }

    /// Returns the unanswered questions, as the protocol's `inputRequests`.
    pub(crate) fn requests(&self) -> Map<String, Value> {
        self.rounds.iter().flat_map(|round| round.questions.open()).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }

    fn has(&self, key: &str) -> bool {
        self.rounds.iter().any(|round| round.questions.has(key))
    }
}

/// A round of a paused call; removed when the guard is dropped.
struct OpenRound<'a> {
    paused_calls: &'a PausedCalls,
    call: u128,
    number: u64,
}

impl Drop for OpenRound<'_> {
    fn drop(&mut self) {
        if let Some(TrackedCall::Paused(paused)) = self.paused_calls.lock().get_mut(&self.call) {
            paused.open.remove(self.number);
        }
    }
}

/// The call that asks, and the answers of its first request.
pub(crate) struct QuestionContext<'a> {
    /// The number of the call.
    pub(crate) call: u128,
    pub(crate) channel: &'a Arc<ResponseChannel>,
    pub(crate) binding: &'a RequestBinding,
    /// Answers in the first request, by key; each is used once.
    pub(crate) given_answers: &'a Mutex<HashMap<String, Value>>,
}

impl PausedCalls {
    /// Creates an empty set, with a new key that signs states.
    pub(crate) fn new(server_info: Value) -> Arc<Self> {
        let mut key = [0; 32];
        key[..16].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        key[16..].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        Arc::new(Self { key: StateKey::new(key), server_info, calls: Mutex::default() })
    }

    /// Answers the attached request with the questions, and waits until another request brings the answers. If the
    /// client has open questions already, these are added to them.
    pub(crate) async fn ask(
        &self,
        requests: Vec<ClientRequest>,
        asking: QuestionContext<'_>,
        expiry: Duration,
    ) -> Result<Vec<Value>, ToolError> {
        let QuestionContext { call, channel, binding, given_answers: given } = asking;
        let (question, answers, _round) = {
            let mut calls = self.lock();
            let questions = QuestionSet::with_taken(
                requests,
                &mut given.lock().unwrap_or_else(PoisonError::into_inner),
                |key| matches!(calls.get(&call), Some(TrackedCall::Paused(paused)) if paused.open.has(key)),
            );
            if questions.is_answered() {
                return Ok(questions.answers());
            }
            let paused = Self::call_entry(&mut calls, call, channel, binding)?;
            paused.expires = now().saturating_add(expiry.as_secs()).saturating_add(KEPT);
            let (number, answers) = paused.open.add(questions);
            (self.question(call, paused), answers, OpenRound { paused_calls: self, call, number })
        };
        // Without an attached request, the client learns of these questions when it answers the others.
        channel.end(Ok(question)).await;
        match tokio::time::timeout(expiry, answers).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(_)) | Err(_) => Err(ToolError::new(
                ErrorKind::ExecutionError,
                "the tool asked its caller something, and nobody answered in time",
            )),
        }
    }

    /// Returns the entry of a call, if one more call may be paused.
    fn call_entry<'a>(
        calls: &'a mut HashMap<u128, TrackedCall>,
        call: u128,
        channel: &Arc<ResponseChannel>,
        binding: &RequestBinding,
    ) -> Result<&'a mut PausedCall, ToolError> {
        let waits = |of: &TrackedCall| matches!(of, TrackedCall::Paused(paused) if !paused.open.is_empty());
        let full = |count: usize, max: usize, whose: &str| {
            let why = || format!("{max} calls {whose}wait for their callers' answers already, which is the limit");
            if count >= max { Err(ToolError::new(ErrorKind::LimitExceeded, why())) } else { Ok(()) }
        };
        if !calls.get(&call).is_some_and(waits) {
            full(calls.values().filter(|of| waits(of)).count(), MAX_PAUSED, "")?;
            let is_of_principal =
                |of: &&TrackedCall| matches!(of, TrackedCall::Paused(paused) if paused.principal == binding.principal);
            let waiting_of_principal = calls.values().filter(is_of_principal).filter(|of| waits(of)).count();
            full(waiting_of_principal, MAX_PAUSED_OF_ONE, "of this principal ")?;
        }
        let over = || ToolError::new(ErrorKind::ExecutionError, "the call has ended, so nobody can be asked for it");
        let place = match calls.entry(call) {
            Entry::Occupied(place) => place.into_mut(),
            Entry::Vacant(_) if !channel.is_attached() => return Err(over()),
            Entry::Vacant(place) => place.insert(TrackedCall::Paused(PausedCall {
                round: 0,
                expires: 0,
                binding: binding.hash(),
                principal: binding.principal.clone(),
                channel: Arc::clone(channel),
                open: OpenQuestions::default(),
            })),
        };
        match place {
            TrackedCall::Paused(paused) => Ok(paused),
            TrackedCall::Ended { .. } => Err(over()),
        }
    }

    /// Resumes a paused call with the answers of a request, which is attached to it from then on.
    ///
    /// # Errors
    /// The JSON-RPC error to answer with. The call stays paused.
    pub(crate) fn resume(
        &self,
        binding: &RequestBinding,
        params: &mut Params,
        state: &str,
        attached: impl FnOnce(&ResponseChannel) -> Result<AttachedRequest, RpcError>,
    ) -> Result<ResumeOutcome, RpcError> {
        let void = |error: StateError| RpcError::invalid_params(error.to_string());
        let (call, round) = self.key.open(state, binding.hash(), now()).map_err(void)?;
        let answers = given_answers(params)?;
        let mut calls = self.lock();
        let paused = match calls.get_mut(&call) {
            Some(TrackedCall::Paused(paused)) => paused,
            Some(TrackedCall::Ended { .. }) => match calls.remove(&call) {
                Some(TrackedCall::Ended { result, .. }) => return Ok(ResumeOutcome::Ended(result)),
                _ => return Err(spent()),
            },
            None => return Err(spent()),
        };
        if paused.round != round {
            return Err(RpcError::invalid_params("this requestState was used already; use the latest one"));
        }
        paused.open.take(&answers);
        if paused.open.requests().is_empty() {
            paused.channel.attach(attached(&paused.channel)?);
        }
        paused.round += 1;
        paused.open.send_complete_rounds();
        if paused.open.is_empty() {
            return Ok(ResumeOutcome::Continues(Arc::clone(&paused.channel)));
        }
        Ok(ResumeOutcome::InputRequired(self.question(call, paused)))
    }

    fn question(&self, call: u128, paused: &PausedCall) -> Vec<u8> {
        let PausedCall { round, expires, binding, .. } = paused;
        let state = RequestState { call, round: *round, expires: *expires, binding: *binding };
        to_json(&json!({
            "resultType": "input_required",
            "inputRequests": paused.open.requests(),
            "requestState": self.key.sign(&state),
            "_meta": {SERVER_INFO: self.server_info},
        }))
    }

    /// Ends a call. Returns the result if an attached request takes it; otherwise keeps it for the next request.
    fn end(&self, call: u128, result: Result<Vec<u8>, RpcError>) -> Option<Result<Vec<u8>, RpcError>> {
        let mut calls = self.lock();
        let Some(TrackedCall::Paused(paused)) = calls.remove(&call) else { return Some(result) };
        if paused.channel.is_attached() || paused.channel.cancel.cause() == Some(CancelCause::User) {
            return Some(result);
        }
        let now = now();
        calls.retain(|_, call| !matches!(call, TrackedCall::Ended { until, .. } if *until <= now));
        let ended = |(number, call): (&u128, &TrackedCall)| match call {
            TrackedCall::Ended { until, .. } => Some((*until, *number)),
            TrackedCall::Paused(_) => None,
        };
        if calls.iter().filter_map(ended).count() >= MAX_KEPT
            && let Some((_, oldest)) = calls.iter().filter_map(ended).min()
        {
            calls.remove(&oldest);
        }
        let result = match result {
            Ok(result) if result.len() > MAX_KEPT_BYTES => Err(RpcError::new(
                RpcError::INTERNAL,
                "the call has ended, and its result was too large to keep until the answers came",
            )),
            result => result,
        };
        calls.insert(call, TrackedCall::Ended { result, until: now.saturating_add(KEPT) });
        None
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u128, TrackedCall>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the error for a state whose call is unknown. The call has run, so the error does not suggest to repeat it.
fn spent() -> RpcError {
    RpcError::invalid_params(StateError::Expired.to_string())
}

/// A running call that may be paused. Its entry is removed when this is dropped.
pub(crate) struct PausableCall {
    paused_calls: Arc<PausedCalls>,
    call: u128,
    channel: Arc<ResponseChannel>,
}

impl PausableCall {
    pub(crate) fn new(paused_calls: &Arc<PausedCalls>, channel: &Arc<ResponseChannel>) -> Self {
        let call = uuid::Uuid::new_v4().as_u128();
        Self { paused_calls: Arc::clone(paused_calls), call, channel: Arc::clone(channel) }
    }

    /// The number of the call. It cannot be guessed.
    pub(crate) fn number(&self) -> u128 {
        self.call
    }

    /// Ends the call with its result.
    pub(crate) async fn end(self, result: Result<Vec<u8>, RpcError>) {
        if let Some(result) = self.paused_calls.end(self.call, result) {
            self.channel.end(result).await;
        }
    }
}

impl Drop for PausableCall {
    fn drop(&mut self) {
        let mut calls = self.paused_calls.lock();
        let left =
            if matches!(calls.get(&self.call), Some(TrackedCall::Paused(_))) { calls.remove(&self.call) } else { None };
        drop(calls);
        // Its channel may be the last, which ends the response.
        drop(left);
    }
}

/// The effect of a request that resumes a call.
pub(crate) enum ResumeOutcome {
    /// The call continues.
    Continues(Arc<ResponseChannel>),
    /// Some answers are missing; contains the result with the open questions.
    InputRequired(Vec<u8>),
    /// The call has ended; contains its result.
    Ended(Result<Vec<u8>, RpcError>),
}

/// Returns the answers in a request, by key.
///
/// # Errors
/// `inputResponses` is malformed.
pub(crate) fn given_answers(params: &mut Params) -> Result<Map<String, Value>, RpcError> {
    let refuse = || RpcError::invalid_params("`inputResponses` is an object of results, which are objects");
    match params.input_responses.take() {
        None => Ok(Map::new()),
        Some(Value::Object(answers)) if answers.values().all(Value::is_object) => Ok(answers),
        Some(_) => Err(refuse()),
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask_for(key: Option<&str>) -> ClientRequest {
        ClientRequest { key: key.map(Into::into), method: "roots/list".into(), params: json!({}) }
    }

    #[test]
    fn questions_keep_their_keys_unless_they_clash() {
        let mut given = HashMap::from([("b".to_owned(), json!({"roots": [1]}))]);
        let requests = [Some("a"), Some("b"), Some("a"), None, None, Some("c")].map(ask_for).to_vec();
        let mut asked = QuestionSet::with_taken(requests, &mut given, |key| key == "c");
        let open: Vec<String> = asked.open().map(|(key, _)| key).collect();
        assert_eq!(open, ["a", "a-2", "roots-list", "roots-list-2", "c-2"]);
        let mut take = |answers: Value| asked.take(answers.as_object().cloned().expect("object"));
        take(json!({"a": {"n": 1}, "a-2": {"n": 2}, "roots-list": {"n": 3}, "other": {}, "c-2": {}}));
        assert!(!asked.is_answered());
        asked.take(json!({"roots-list-2": {"n": 4}}).as_object().cloned().expect("object"));
        let expect =
            [json!({"n": 1}), json!({"roots": [1]}), json!({"n": 2}), json!({"n": 3}), json!({"n": 4}), json!({})];
        assert_eq!(asked.answers(), expect);
    }

    #[test]
    fn answers_are_objects_of_objects() {
        for (written, expect) in [
            (json!(null), true),
            (json!({}), true),
            (json!({"a": {}}), true),
            (json!({"a": 5}), false),
            (json!([]), false),
        ] {
            let mut params =
                Params { input_responses: Some(written.clone()).filter(|v| !v.is_null()), ..Params::default() };
            assert_eq!(given_answers(&mut params).is_ok(), expect, "{written}");
        }
    }

    #[test]
    fn a_binding_covers_principal_path_method_and_arguments() {
        let bound = |principal: &str, params: Value| RequestBinding {
            principal: principal.into(),
            path: "/mcp".into(),
            method: "tools/call".into(),
            params: serde_json::value::to_raw_value(&params).ok(),
        };
        let first =
            bound("a", json!({"name": "t", "arguments": {"x": 1, "y": 2}, "_meta": {"progressToken": 1}})).hash();
        let again = json!({"arguments": {"y": 2, "x": 1}, "name": "t", "requestState": "s", "inputResponses": {}});
        assert_eq!(first, bound("a", again.clone()).hash());
        assert_ne!(first, bound("b", again).hash());
        assert_ne!(first, bound("a", json!({"name": "t", "arguments": {"x": 1}})).hash());
    }
}
