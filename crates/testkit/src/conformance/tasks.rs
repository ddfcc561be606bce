//! The extension `io.modelcontextprotocol/tasks` (SEP-2663): the server decides that a call becomes a task, the client
//! polls it, answers what it asks, and cancels it. For clients without the extension the work runs within their call;
//! tools that run only as tasks refuse them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use toolwright_core::duration;

use super::{dialogue, questions};
use crate::wire::{Answer, Change, Era, Exchange, Listeners, META, Request, RpcError, lock, text_result};

/// The most tasks kept; while none of them has expired, new ones are refused.
const MAX_TASKS: usize = 1024;
const LIFETIME: Duration = Duration::from_secs(600);
const POLL_MS: u64 = 100;
const MAX_SECONDS: u64 = 600;
/// The working time of tools that only serve as examples.
const WORK_TIME: Duration = Duration::from_millis(300);

/// Work that runs as a task or within a call.
enum Work {
    Compute { pause: Duration, label: String },
    Fail,
    Crash,
    Delete { file: String },
    Forms,
    Greet { name: String },
}

impl Work {
    fn of(request: &Request) -> Option<Self> {
        let text = |key: &str| request.argument(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Some(match request.text("name") {
            "slow_compute" => {
                let seconds = request.argument("seconds").and_then(Value::as_u64).unwrap_or(1).min(MAX_SECONDS);
                Self::Compute { pause: Duration::from_secs(seconds), label: text("label") }
            }
            "failing_job" => Self::Fail,
            "protocol_error_job" => Self::Crash,
            "confirm_delete" => Self::Delete { file: text("filename") },
            "multi_input" => Self::Forms,
            "test_tool_with_task" => Self::Greet { name: String::new() },
            _ => return None,
        })
    }

    /// Whether it runs only as a task.
    fn is_task_only(&self) -> bool {
        matches!(self, Self::Fail | Self::Greet { .. })
    }

    /// Runs the part of the work that asks nothing.
    async fn quiet(&self) -> Result<Value, RpcError> {
        match self {
            Self::Compute { pause, label } => {
                tokio::time::sleep(*pause).await;
                Ok(text_result(format!("Computed {label:?} in {} s", pause.as_secs())))
            }
            Self::Fail => {
                tokio::time::sleep(WORK_TIME).await;
                let mut result = text_result("This job always fails");
                result["isError"] = json!(true);
                Ok(result)
            }
            Self::Crash => {
                tokio::time::sleep(WORK_TIME).await;
                Err(RpcError::new(RpcError::INTERNAL, "this job always breaks the protocol"))
            }
            Self::Greet { name } => {
                tokio::time::sleep(WORK_TIME).await;
                Ok(text_result(format!("Hello, {name}!")))
            }
            Self::Delete { .. } | Self::Forms => Ok(text_result("Nothing was asked")),
        }
    }
}

struct Task {
    id: String,
    created: SystemTime,
    state: Mutex<State>,
    cancel: CancellationToken,
    answered: Notify,
}

struct State {
    status: &'static str,
    updated: SystemTime,
    /// The questions without an answer.
    open: Map<String, Value>,
    answers: Map<String, Value>,
    outcome: Option<Result<Value, RpcError>>,
}

impl Task {
    fn set(&self, status: &'static str) {
        let mut state = lock(&self.state);
        state.status = status;
        state.updated = SystemTime::now();
    }

    fn summary(&self) -> Value {
        let state = lock(&self.state);
        json!({
            "taskId": self.id,
            "status": state.status,
            "createdAt": iso(self.created),
            "lastUpdatedAt": iso(state.updated),
            "ttlMs": u64::try_from(LIFETIME.as_millis()).unwrap_or(u64::MAX),
            "pollIntervalMs": POLL_MS,
        })
    }

    fn details(&self) -> Value {
        let mut details = self.summary();
        let state = lock(&self.state);
        match &state.outcome {
            Some(Ok(result)) => details["result"] = result.clone(),
            Some(Err(error)) => details["error"] = error.to_value(),
            None if !state.open.is_empty() => details["inputRequests"] = json!(state.open),
            None => {}
        }
        details
    }

    /// Asks with these forms and waits until all are answered.
    async fn ask<const N: usize>(&self, tasks: &Tasks, forms: [(&str, Value); N]) -> Map<String, Value> {
        lock(&self.state).open = forms.into_iter().map(|(key, form)| (key.to_owned(), form)).collect();
        self.set("input_required");
        tasks.notify(self).await;
        while !lock(&self.state).open.is_empty() {
            self.answered.notified().await;
        }
        self.set("working");
        tasks.notify(self).await;
        lock(&self.state).answers.clone()
    }
}

#[derive(Default)]
pub(super) struct Tasks {
    all: Mutex<HashMap<String, Arc<Task>>>,
    listeners: OnceLock<Arc<Listeners>>,
}

impl Tasks {
    pub(super) fn meet(&self, listeners: &Arc<Listeners>) {
        self.listeners.get_or_init(|| Arc::clone(listeners));
    }

    async fn notify(&self, task: &Task) {
        if let Some(listeners) = self.listeners.get() {
            listeners.announce(&Change::Task(task.details())).await;
        }
    }

    /// Answers a call of one of these tools; `None` for other tools.
    pub(super) async fn call(
        self: &Arc<Self>,
        request: &Request,
        exchange: &Exchange,
        seal: &super::seal::Seal,
    ) -> Option<Answer> {
        let work = Work::of(request)?;
        let extended = request.era == Era::Modern && exchange.client_extends(&format!("{META}tasks"));
        if request.era == Era::Modern && !extended && work.is_task_only() {
            return Some(missing_extension().into());
        }
        if let Work::Greet { .. } = work {
            return Some(self.greet(request, exchange, seal, extended).await);
        }
        if extended {
            return Some(self.begin(work));
        }
        if let Some(script) = questions::script(request.text("name")) {
            return Some(dialogue::hold(seal, request, exchange, script).await);
        }
        Some(within(exchange, &work).await)
    }

    /// Asks for a name within the call, then greets as a task.
    async fn greet(
        self: &Arc<Self>,
        request: &Request,
        exchange: &Exchange,
        seal: &super::seal::Seal,
        extended: bool,
    ) -> Answer {
        let asked = dialogue::hold(seal, request, exchange, |round| match round.form("user_name") {
            Some(dialogue::Form::Accepted(content)) => dialogue::Step::Done(Answer::Result(json!({"who": content}))),
            Some(dialogue::Form::Refused) => dialogue::Step::Done(Answer::Result(json!({"who": {}}))),
            None => dialogue::Step::ask([("user_name", questions::name_form())]),
        });
        match asked.await {
            Answer::Result(result) if result.get("who").is_some() => {
                let name = result["who"]["name"].as_str().unwrap_or("somebody").to_owned();
                if extended { self.begin(Work::Greet { name }) } else { within(exchange, &Work::Greet { name }).await }
            }
            answer => answer,
        }
    }

    /// Starts a task and returns its id; the task exists before the client learns the id.
    fn begin(self: &Arc<Self>, work: Work) -> Answer {
        let now = SystemTime::now();
        let state = State { status: "working", updated: now, open: Map::new(), answers: Map::new(), outcome: None };
        let task = Arc::new(Task {
            id: uuid::Uuid::new_v4().to_string(),
            created: now,
            state: Mutex::new(state),
            cancel: CancellationToken::new(),
            answered: Notify::new(),
        });
        {
            let mut all = lock(&self.all);
            all.retain(|_, task| task.created.elapsed().is_ok_and(|age| age < LIFETIME));
            if all.len() >= MAX_TASKS {
                return RpcError::new(RpcError::BUSY, "too many tasks").into();
            }
            all.insert(task.id.clone(), Arc::clone(&task));
        }
        let mut created = task.summary();
        created["resultType"] = json!("task");
        let tasks = Arc::clone(self);
        tokio::spawn(async move { tasks.run(&task, work).await });
        Answer::Result(created)
    }

    async fn run(&self, task: &Task, work: Work) {
        let outcome = tokio::select! {
            outcome = self.work(task, &work) => Some(outcome),
            () = task.cancel.cancelled() => None,
        };
        {
            let mut state = lock(&task.state);
            state.status = match &outcome {
                Some(Ok(_)) => "completed",
                Some(Err(_)) => "failed",
                None => "cancelled",
            };
            state.updated = SystemTime::now();
            state.open.clear();
            state.outcome = outcome;
        }
        self.notify(task).await;
    }

    async fn work(&self, task: &Task, work: &Work) -> Result<Value, RpcError> {
        match work {
            Work::Delete { file } => {
                let answers = task.ask(self, [("confirm", questions::deletion_form(file))]).await;
                Ok(text_result(questions::deletion_text(file, answers.get("confirm").and_then(|a| a.get("content")))))
            }
            Work::Forms => {
                let forms = [("first", questions::name_form()), ("second", questions::deletion_form("everything"))];
                let answers = task.ask(self, forms).await;
                Ok(text_result(format!("{} questions are answered", answers.len())))
            }
            _ => work.quiet().await,
        }
    }

    /// Handles `tasks/get`, `tasks/update` and `tasks/cancel`.
    pub(super) fn method(&self, request: &Request, exchange: &Exchange) -> Answer {
        if !exchange.client_extends(&format!("{META}tasks")) {
            return missing_extension().into();
        }
        let Some(task) = lock(&self.all).get(request.text("taskId")).cloned() else {
            return RpcError::invalid("no such task").into();
        };
        match request.method.as_str() {
            "tasks/get" => return Answer::Result(task.details()),
            "tasks/cancel" => task.cancel.cancel(),
            _ => {
                let Some(given) = request.params.get("inputResponses").and_then(Value::as_object) else {
                    return RpcError::invalid("inputResponses is an object").into();
                };
                let mut state = lock(&task.state);
                for (key, answer) in given {
                    if state.open.shift_remove(key).is_some() {
                        state.answers.insert(key.clone(), answer.clone());
                    }
                }
                drop(state);
                task.answered.notify_one();
            }
        }
        Answer::Result(json!({}))
    }
}

/// Runs the work while its caller waits.
async fn within(exchange: &Exchange, work: &Work) -> Answer {
    tokio::select! {
        outcome = work.quiet() => outcome.map_or_else(Answer::from, Answer::Result),
        () = exchange.cancelled() => Answer::Silence,
    }
}

fn missing_extension() -> RpcError {
    RpcError::missing_capability(json!({"extensions": {format!("{META}tasks"): {}}}))
}

/// Formats a time as ISO 8601 in UTC.
fn iso(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    duration::iso(u64::try_from(since.as_millis()).unwrap_or_default())
}
