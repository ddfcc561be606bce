//! Calls that outlive one request: as tasks, or by a signed `requestState`.
//!
//! Tasks exist in both generations: those of 2025-11-25, and the extension `io.modelcontextprotocol/tasks` of
//! 2026-07-28 (SEP-2663). A `requestState` (2026-07-28, "Multi Round-Trip Requests") is sent back by a client with its
//! answers; it is signed, so that it cannot be changed.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Map, Value, json};
use sha2::Sha256;
use toolwright_core::canonical::ContentHash;

use crate::protocol::message::RpcError;
use crate::protocol::revision::Era;

/// The extension's name.
pub const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// `_meta` key of the task that a message belongs to (2025-11-25).
pub const RELATED: &str = "io.modelcontextprotocol/related-task";
/// Maximal lifetime of a task, whatever its client requests.
pub const MAX_TTL: Duration = Duration::from_secs(3600);
/// Minimal lifetime of a task: a client must be able to ask for it.
pub const MIN_TTL: Duration = Duration::from_secs(1);
/// Poll interval suggested to clients.
const POLL: Duration = Duration::from_secs(1);

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It runs.
    Working,
    /// It waits for its client.
    InputRequired,
    /// It has a result.
    Completed,
    /// It has an error; in 2025-11-25 also a result with `isError`.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl Status {
    /// Returns its wire form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Working => "working",
            Self::InputRequired => "input_required",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Description of a task for clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskDescription {
    /// Its id.
    pub id: String,
    /// Its state.
    pub status: Status,
    /// More on that, for people.
    pub message: Option<String>,
    /// Creation time in ISO 8601.
    pub created: String,
    /// Time of the last change in ISO 8601.
    pub updated: String,
    /// Lifetime from creation.
    pub ttl: Duration,
}

impl TaskDescription {
    /// The fields of `Task` in a generation.
    #[must_use]
    pub fn fields(&self, era: Era) -> Map<String, Value> {
        let (ttl, poll) = match era {
            Era::Legacy => ("ttl", "pollInterval"),
            Era::Modern => ("ttlMs", "pollIntervalMs"),
        };
        let mut fields = Map::from_iter([
            ("taskId".to_owned(), self.id.as_str().into()),
            ("status".to_owned(), self.status.as_str().into()),
            ("createdAt".to_owned(), self.created.as_str().into()),
            ("lastUpdatedAt".to_owned(), self.updated.as_str().into()),
            (ttl.to_owned(), millis(self.ttl)),
            (poll.to_owned(), millis(POLL)),
        ]);
        if let Some(message) = &self.message {
            fields.insert("statusMessage".into(), message.as_str().into());
        }
        fields
    }
}

fn millis(time: Duration) -> Value {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into()
}

/// Returns the lifetime of a requested task (2025-11-25, `task`).
///
/// # Errors
/// When it is no `TaskMetadata`.
pub fn ttl(task: &Value) -> Result<Duration, RpcError> {
    let refuse = || RpcError::invalid_params("`task` is an object, whose `ttl` is a number of milliseconds");
    let wished = match task.as_object().ok_or_else(refuse)?.get("ttl") {
        None | Some(Value::Null) => return Ok(MAX_TTL),
        Some(ttl) => ttl.as_f64().filter(|ttl| *ttl >= 0.0).ok_or_else(refuse)?,
    };
    let wished = Duration::try_from_secs_f64(wished / 1000.0).unwrap_or(MAX_TTL);
    Ok(wished.clamp(MIN_TTL, MAX_TTL))
}

/// Whether a client's capabilities include the extension.
#[must_use]
pub fn announced(capabilities: &Map<String, Value>) -> bool {
    capabilities.get("extensions").and_then(|extensions| extensions.get(EXTENSION)).is_some_and(Value::is_object)
}

/// Adds tasks to a server's capabilities.
pub fn announce(capabilities: &mut Map<String, Value>, era: Era) {
    match era {
        Era::Legacy => {
            let all = json!({"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}});
            capabilities.insert("tasks".into(), all);
        }
        Era::Modern => {
            if let Value::Object(extensions) = capabilities.entry("extensions").or_insert_with(|| json!({})) {
                extensions.insert(EXTENSION.into(), json!({}));
            }
        }
    }
}

/// The error for a client that uses tasks without having announced them (2026-07-28).
#[must_use]
pub fn not_announced() -> RpcError {
    let data = json!({"requiredCapabilities": {"extensions": {EXTENSION: {}}}});
    let error = RpcError::new(RpcError::MISSING_CAPABILITY, "the request does not announce the extension for tasks");
    RpcError { data: Some(Box::new(data)), ..error }
}

/// Converts a tool's `execution` for our clients: tasks that its server requires are made here if the client makes
/// none, so tasks are never required (2025-11-25, `taskSupport`).
#[must_use]
pub fn execution(of_server: &Value) -> Value {
    let mut execution = of_server.clone();
    if supports(&execution)
        && let Some(fields) = execution.as_object_mut()
    {
        fields.insert("taskSupport".into(), "optional".into());
    }
    execution
}

/// Whether a tool with this `execution` can be a task.
#[must_use]
pub fn supports(execution: &Value) -> bool {
    matches!(execution.get("taskSupport").and_then(Value::as_str), Some("optional" | "required"))
}

/// Version of the format below; change it with the format.
const FORM: u8 = 1;
/// Form, call, round, expiry, binding.
const BODY: usize = 1 + 16 + 4 + 8 + 32;
const TAG: usize = 32;

/// Signs states. The key allows making them.
#[derive(Clone)]
pub struct StateKey([u8; 32]);

impl std::fmt::Debug for StateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StateKey(…)")
    }
}

/// The question that a client answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestState {
    /// The call that waits.
    pub call: u128,
    /// Number of the question, from 0. An answer to an earlier one is void.
    pub round: u32,
    /// Expiry, in seconds since the Unix epoch.
    pub expires: u64,
    /// Hash of the data that the request must repeat: principal, address, method, parameters.
    pub binding: ContentHash,
}

/// Why a state is refused. Clients get it as it is: it reveals nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Not signed by us, or changed.
    #[error("this requestState was not made by this server, or was changed")]
    Forged,
    /// Too late.
    #[error(
        "too late: the call of this requestState has ended, or went on without the answers; it may have had effects"
    )]
    Expired,
    /// The state of another request.
    #[error("this requestState belongs to another request")]
    Foreign,
}

impl StateKey {
    /// A key of these bytes, which must be random and secret.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The state as text.
    #[must_use]
    pub fn sign(&self, state: &RequestState) -> String {
        let mut bytes = Vec::with_capacity(BODY + TAG);
        bytes.push(FORM);
        bytes.extend_from_slice(&state.call.to_be_bytes());
        bytes.extend_from_slice(&state.round.to_be_bytes());
        bytes.extend_from_slice(&state.expires.to_be_bytes());
        bytes.extend_from_slice(state.binding.as_bytes());
        if let Some(mut mac) = self.mac() {
            mac.update(&bytes);
            bytes.extend_from_slice(&mac.finalize().into_bytes());
        }
        BASE64.encode(bytes)
    }

    /// Returns the call and round of a text that [`StateKey::sign`] made for this request, at `now` in seconds since
    /// the Unix epoch.
    ///
    /// # Errors
    /// [`StateError`]; a text with a wrong signature is not parsed.
    pub fn open(&self, text: &str, binding: ContentHash, now: u64) -> Result<(u128, u32), StateError> {
        let bytes = BASE64.decode(text).map_err(|_| StateError::Forged)?;
        let (body, tag) = bytes.split_at_checked(BODY).ok_or(StateError::Forged)?;
        let mut mac = self.mac().ok_or(StateError::Forged)?;
        mac.update(body);
        // Compared in constant time.
        mac.verify_slice(tag).map_err(|_| StateError::Forged)?;
        let mut rest = body;
        let [FORM] = take::<1>(&mut rest)? else { return Err(StateError::Forged) };
        let call = u128::from_be_bytes(take(&mut rest)?);
        let round = u32::from_be_bytes(take(&mut rest)?);
        let expires = u64::from_be_bytes(take(&mut rest)?);
        if rest != binding.as_bytes() {
            return Err(StateError::Foreign);
        }
        if expires <= now {
            return Err(StateError::Expired);
        }
        Ok((call, round))
    }

    fn mac(&self) -> Option<Hmac<Sha256>> {
        // HMAC accepts a key of any length.
        Hmac::new_from_slice(&self.0).ok()
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], StateError> {
    let (taken, rest) = from.split_first_chunk::<N>().ok_or(StateError::Forged)?;
    *from = rest;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_lifetimes_are_kept_within_bounds() {
        for (task, expect) in [
            (json!({}), Some(3_600_000)),
            (json!({"ttl": null}), Some(3_600_000)),
            (json!({"ttl": 60000}), Some(60_000)),
            (json!({"ttl": 1500.5}), Some(1500)),
            (json!({"ttl": 0}), Some(1000)),
            (json!({"ttl": 1e300}), Some(3_600_000)),
            (json!({"ttl": -1}), None),
            (json!({"ttl": "1"}), None),
            (json!(true), None),
        ] {
            assert_eq!(ttl(&task).ok().map(|ttl| ttl.as_millis()), expect, "{task}");
        }
    }

    #[test]
    fn each_generation_has_its_own_timestamp_fields() {
        let task = TaskDescription {
            id: "t".into(),
            status: Status::InputRequired,
            message: None,
            created: "a".into(),
            updated: "b".into(),
            ttl: Duration::from_secs(2),
        };
        let common = |more: Value| {
            let mut all = json!({"taskId": "t", "status": "input_required", "createdAt": "a", "lastUpdatedAt": "b"});
            all.as_object_mut().expect("object").extend(more.as_object().cloned().expect("object"));
            all
        };
        let legacy = common(json!({"ttl": 2000, "pollInterval": 1000}));
        let modern = common(json!({"ttlMs": 2000, "pollIntervalMs": 1000}));
        assert_eq!(Value::Object(task.fields(Era::Legacy)), legacy);
        assert_eq!(Value::Object(task.fields(Era::Modern)), modern);
    }

    #[test]
    fn tools_requiring_tasks_may_be_tasks_here() {
        for (of_server, expect) in [
            (json!({"taskSupport": "required", "later": 1}), json!({"taskSupport": "optional", "later": 1})),
            (json!({"taskSupport": "optional"}), json!({"taskSupport": "optional"})),
            (json!({"taskSupport": "forbidden"}), json!({"taskSupport": "forbidden"})),
            (json!({}), json!({})),
            (json!(5), json!(5)),
        ] {
            assert_eq!(execution(&of_server), expect, "{of_server}");
        }
    }

    #[test]
    fn a_request_state_is_exact_or_refused() {
        let key = StateKey::new([7; 32]);
        let binding = ContentHash::of_bytes(b"mine");
        let state = RequestState { call: 1 << 100, round: 3, expires: 1000, binding };
        let text = key.sign(&state);
        let check = |key: &StateKey, text: &str, binding, now, expect| {
            assert_eq!(key.open(text, binding, now), expect, "{text} at {now}");
        };
        check(&key, &text, binding, 999, Ok((1 << 100, 3)));
        check(&key, &text, binding, 1000, Err(StateError::Expired));
        check(&key, &text, ContentHash::of_bytes(b"yours"), 999, Err(StateError::Foreign));
        check(&StateKey::new([8; 32]), &text, binding, 999, Err(StateError::Forged));
        check(&key, &format!("{text}-TAMPERED"), binding, 999, Err(StateError::Forged));
        check(&key, "", binding, 999, Err(StateError::Forged));
        check(&key, "ü", binding, 999, Err(StateError::Forged));
        let bytes = BASE64.decode(&text).expect("base64");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            check(&key, &BASE64.encode(&changed), binding, 999, Err(StateError::Forged));
            check(&key, &BASE64.encode(&bytes[..at]), binding, 999, Err(StateError::Forged));
        }
    }
}
