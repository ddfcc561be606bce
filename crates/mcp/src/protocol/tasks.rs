//! Calls that are kept as tasks, as both generations write them: the tasks of 2025-11-25, and the extension
//! `io.modelcontextprotocol/tasks` of 2026-07-28 (SEP-2663).

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::protocol::message::RpcError;
use crate::protocol::revision::Era;

/// The extension's name.
pub const EXTENSION: &str = "io.modelcontextprotocol/tasks";
/// Key of `_meta` that says which task a message belongs to (2025-11-25).
pub const RELATED: &str = "io.modelcontextprotocol/related-task";
/// A task is kept no longer, whatever its client wishes.
pub const MAX_TTL: Duration = Duration::from_secs(3600);
/// A task is kept at least so long: a client must be able to ask for it.
pub const MIN_TTL: Duration = Duration::from_secs(1);
/// How often a client is told to look.
const POLL: Duration = Duration::from_secs(1);

/// How a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It runs.
    Working,
    /// It waits for its client.
    InputRequired,
    /// It has a result.
    Completed,
    /// It has an error; in 2025-11-25 also: its result is one of failure.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl Status {
    /// The protocol's word.
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

/// What is said of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Described {
    /// Its id.
    pub id: String,
    /// How it stands.
    pub status: Status,
    /// More on that, for people.
    pub message: Option<String>,
    /// When it was made, as ISO 8601.
    pub created: String,
    /// When it last changed, as ISO 8601.
    pub updated: String,
    /// How long it is kept from when it was made.
    pub ttl: Duration,
}

impl Described {
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

/// How long a task is kept whose request says this of it (2025-11-25, `task`).
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

/// Whether a client announces the extension among its capabilities.
#[must_use]
pub fn announced(capabilities: &Map<String, Value>) -> bool {
    capabilities.get("extensions").and_then(|extensions| extensions.get(EXTENSION)).is_some_and(Value::is_object)
}

/// Says among a server's capabilities that it has tasks.
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

/// What a tool's `execution` says to our clients: tasks that its server wants are made here where a client does not,
/// so that it requires none (2025-11-25, `taskSupport`).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_is_kept_as_long_as_wished_within_bounds() {
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
    fn each_generation_has_its_own_words_for_times() {
        let task = Described {
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
    fn a_tool_that_needs_a_task_upstream_may_be_one_here() {
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
}
