//! Calls that wait for a client to come back with answers (2026-07-28, "Multi Round-Trip Requests"). The call goes on
//! where it was: nothing is called twice.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use tokio::sync::oneshot;
use toolwright_core::canonical::ContentHash;
use toolwright_core::client::ClientRequest;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_mcp::state::{RequestState, StateError, StateKey};

use super::line::{Attached, Line};
use super::message::{Params, RpcError, to_json};
use super::protocol::SERVER_INFO;

/// Calls that wait at once, over all clients.
const MAX_PARKED: usize = 256;

/// The calls that wait.
pub(crate) struct Parked {
    key: StateKey,
    server_info: Value,
    waiting: Mutex<HashMap<u128, Waiting>>,
}

/// One that does.
struct Waiting {
    round: u32,
    expires: u64,
    binding: ContentHash,
    asked: Asked,
    line: Arc<Line>,
    answered: oneshot::Sender<Vec<Value>>,
}

/// What makes a request the same as a call's first one.
pub(crate) struct Bound {
    pub(crate) principal: String,
    /// Where it was made.
    pub(crate) place: String,
    pub(crate) method: String,
    pub(crate) params: Option<Box<RawValue>>,
}

impl Bound {
    fn hash(&self) -> ContentHash {
        let mut params: Map<String, Value> =
            self.params.as_deref().and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default();
        for own in ["_meta", "inputResponses", "requestState"] {
            params.remove(own);
        }
        ContentHash::of_value(&json!([self.principal, self.place, self.method, params]))
    }
}

/// What a client is asked, and what it has answered so far.
pub(crate) struct Asked {
    questions: Vec<(String, Value, Option<Value>)>,
}

impl Asked {
    /// These, under the keys that their source has for them; what is `given` under such a key answers it.
    pub(crate) fn new(requests: Vec<ClientRequest>, given: &mut HashMap<String, Value>) -> Self {
        let mut questions: Vec<(String, Value, Option<Value>)> = Vec::with_capacity(requests.len());
        for ClientRequest { key, method, params } in requests {
            let taken = |key: &str| questions.iter().any(|(other, ..)| other == key);
            let mut name = key.unwrap_or_else(|| method.replace('/', "-"));
            let plain = name.clone();
            let mut n = 1;
            while taken(&name) {
                n += 1;
                name = format!("{plain}-{n}");
            }
            let answer = given.remove(&name);
            questions.push((name, json!({"method": method, "params": params}), answer));
        }
        Self { questions }
    }

    /// Takes answers. Others than those that were asked for are not looked at.
    pub(crate) fn take(&mut self, mut answers: Map<String, Value>) {
        for (key, _, answer) in &mut self.questions {
            if let Some(given) = answers.remove(key) {
                *answer = Some(given);
            }
        }
    }

    pub(crate) fn is_answered(&self) -> bool {
        self.questions.iter().all(|(.., answer)| answer.is_some())
    }

    pub(crate) fn answers(self) -> Vec<Value> {
        self.questions.into_iter().filter_map(|(.., answer)| answer).collect()
    }

    /// What is still to be answered, as the protocol's `inputRequests`.
    pub(crate) fn open(&self) -> Map<String, Value> {
        let open = self.questions.iter().filter(|(.., answer)| answer.is_none());
        open.map(|(key, question, _)| (key.clone(), question.clone())).collect()
    }
}

/// A place among the calls that wait; it is given up with the guard.
struct Place<'a> {
    parked: &'a Parked,
    call: u128,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.parked.lock().remove(&self.call);
    }
}

impl Parked {
    /// Nothing waits; states are signed with a key that only this process has.
    pub(crate) fn new(server_info: Value) -> Arc<Self> {
        let mut key = [0; 32];
        key[..16].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        key[16..].copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        Arc::new(Self { key: StateKey::new(key), server_info, waiting: Mutex::default() })
    }

    /// Answers the request that waits for the call with what is asked, and waits until another one brings the answers.
    pub(crate) async fn ask(
        &self,
        asked: Asked,
        line: &Arc<Line>,
        bound: &Bound,
        expiry: Duration,
    ) -> Result<Vec<Value>, ToolError> {
        if asked.is_answered() {
            return Ok(asked.answers());
        }
        let failed = |kind, message: &str| ToolError::new(kind, message);
        let (answered, answers) = oneshot::channel();
        let call = uuid::Uuid::new_v4().as_u128();
        let expires = now().saturating_add(expiry.as_secs());
        let waiting = Waiting { round: 0, expires, binding: bound.hash(), asked, line: Arc::clone(line), answered };
        let question = {
            let mut all = self.lock();
            if all.len() >= MAX_PARKED {
                let why = format!("{MAX_PARKED} calls wait for their callers' answers already, which is the limit");
                return Err(failed(ErrorKind::LimitExceeded, &why));
            }
            let question = self.question(call, &waiting);
            all.insert(call, waiting);
            question
        };
        let _place = Place { parked: self, call };
        line.end(Ok(question)).await;
        match tokio::time::timeout(expiry, answers).await {
            Ok(Ok(answers)) => Ok(answers),
            Ok(Err(_)) | Err(_) => Err(failed(
                ErrorKind::ExecutionError,
                "the tool asked its caller something, and nobody answered in time",
            )),
        }
    }

    /// Takes a request that brings answers to the call that waits for them. The call's line is the request's from
    /// then on.
    ///
    /// # Errors
    /// The JSON-RPC error to answer with; the call waits on then.
    pub(crate) fn resume(
        &self,
        bound: &Bound,
        params: &mut Params,
        state: &str,
        attached: impl FnOnce(&Line) -> Result<Attached, RpcError>,
    ) -> Result<Resumed, RpcError> {
        let void = |error: StateError| RpcError::invalid_params(error.to_string());
        let (call, round) = self.key.open(state, bound.hash(), now()).map_err(void)?;
        let answers = given_answers(params)?;
        let mut all = self.lock();
        let Entry::Occupied(mut place) = all.entry(call) else { return Err(void(StateError::Expired)) };
        let waiting = place.get_mut();
        if waiting.round != round {
            return Err(RpcError::invalid_params("this requestState was used already; use the latest one"));
        }
        waiting.asked.take(answers);
        if !waiting.asked.is_answered() {
            waiting.round += 1;
            return Ok(Resumed::AskedAgain(self.question(call, waiting)));
        }
        let line = Arc::clone(&waiting.line);
        line.attach(attached(&line)?);
        let Waiting { asked, answered, .. } = place.remove();
        drop(all);
        // A call that ended meanwhile has no use for them, and ends its line itself.
        let _ = answered.send(asked.answers());
        Ok(Resumed::Going(line))
    }

    fn question(&self, call: u128, waiting: &Waiting) -> Vec<u8> {
        let Waiting { round, expires, binding, asked, .. } = waiting;
        let state = RequestState { call, round: *round, expires: *expires, binding: *binding };
        to_json(&json!({
            "resultType": "input_required",
            "inputRequests": asked.open(),
            "requestState": self.key.seal(&state),
            "_meta": {SERVER_INFO: self.server_info},
        }))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u128, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What became of a request with answers.
pub(crate) enum Resumed {
    /// The call goes on.
    Going(Arc<Line>),
    /// Something is missing: the result that says so.
    AskedAgain(Vec<u8>),
}

/// The answers in a request, by their keys.
///
/// # Errors
/// When they are no answers.
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
    fn questions_keep_their_keys_and_no_two_have_the_same() {
        let mut given = HashMap::from([("b".to_owned(), json!({"roots": [1]}))]);
        let requests = [Some("a"), Some("b"), Some("a"), None, None].map(ask_for).to_vec();
        let mut asked = Asked::new(requests, &mut given);
        let open: Vec<String> = asked.open().keys().cloned().collect();
        assert_eq!(open, ["a", "a-2", "roots-list", "roots-list-2"]);
        let answers = json!({"a": {"n": 1}, "a-2": {"n": 2}, "roots-list": {"n": 3}, "other": {}});
        asked.take(answers.as_object().cloned().expect("object"));
        assert!(!asked.is_answered());
        asked.take(json!({"roots-list-2": {"n": 4}}).as_object().cloned().expect("object"));
        let expect = [json!({"n": 1}), json!({"roots": [1]}), json!({"n": 2}), json!({"n": 3}), json!({"n": 4})];
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
    fn a_request_is_the_same_by_whose_where_what() {
        let bound = |principal: &str, params: Value| Bound {
            principal: principal.into(),
            place: "/mcp".into(),
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
