//! Defines the context of a running tool: the caller, the deadline, progress reports, and the services of the
//! application as traits.

use std::any::Any;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::client::{CallClient, NoClient};
use super::{Entry, Snapshot};
use crate::cancel::Cancel;
use crate::definition::CallScope;
use crate::error::{ErrorKind, ToolError, Unsupported};
use crate::event::job::{Jobs, NoJobs, NoTurns, Turns};
use crate::event::{EventSink, NoEvents, Partial};
use crate::identity::session::{CallId, Session, SessionId};
use crate::identity::taint::{Taint, TaintedArgument};
use crate::json::canonical::ContentHash;
use crate::model::{
    CallMeta, Effort, ModelClient, ModelError, ModelErrorKind, ModelRequest, ModelResponse, NoModel, Usage,
};
use crate::output::outcome::{Outcome, ToolOutput};
use crate::output::provenance::ToolCall;
use crate::output::{ExtractError, ExtractRequest};
use crate::policy::Rights;
use crate::store::group::{Groups, NoGroups};
use crate::store::{Memory, NoMemory, NoSessionLog, NoStore, OutputStore, SessionLog};
use crate::trigger::{NoTriggers, Triggers};

pub use crate::content::{EstimatedTokens, Exactness, TokenCounter};
pub use crate::secret::{NoRedaction, Redactor};

/// The context of one running call. Cheap to clone.
#[derive(Clone)]
pub struct ToolContext {
    /// The call.
    pub call_id: CallId,
    /// Session, principal, agent and workspace root.
    pub session: Arc<Session>,
    /// The resources that policy saw the call touch. A tool that would touch more by now must not run.
    pub scope: CallScope,
    /// Fires when the call must stop; a tool that ignores it is abandoned after a grace period.
    pub cancel: Cancel,
    /// The deadline of the call, if any.
    pub deadline: Option<Instant>,
    /// The time limit that was set for the call, waits excluded: `deadline` in words, for messages.
    pub limit: Option<Duration>,
    /// The client of the call, which answers questions.
    pub client: Arc<dyn CallClient>,
    /// Receives progress and partial results; each one also resets the idle timeout.
    pub partials: Arc<dyn PartialSink>,
    /// W3C trace context (`traceparent`) to pass on.
    pub traceparent: Option<Arc<str>>,
    /// Cap on the text of the result, in bytes; text beyond it is stored.
    pub max_output: usize,
    /// The untrusted tools behind the arguments.
    pub taint: Taint,
    /// Values of the `_scopes` of the call that the tool answers as an activity, keyed by name without the mark.
    pub granted: Arc<Map<String, Value>>,
    /// Makes further calls, for a tool that [awaits others](crate::Tool::awaits_others).
    pub calls: Arc<dyn NestedCalls>,
    /// Hands out partial results of a stateful call and waits to be continued.
    pub turns: Arc<dyn Turns>,
    /// The services of the application.
    pub services: Arc<Services>,
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext")
            .field("call_id", &self.call_id)
            .field("session", &self.session.id)
            .finish_non_exhaustive()
    }
}

impl ToolContext {
    /// The context of a call outside any run: unrestricted, without deadline or inner calls; progress is ignored.
    #[must_use]
    pub fn detached(call_id: CallId, session: Arc<Session>, services: Arc<Services>) -> Self {
        Self {
            call_id,
            session,
            scope: CallScope::Configuration,
            cancel: Cancel::new(),
            deadline: None,
            limit: None,
            client: Arc::new(NoClient),
            partials: Arc::new(NoPartials),
            traceparent: None,
            max_output: crate::output::DEFAULT_MAX_BYTES,
            taint: Taint::default(),
            granted: Arc::default(),
            calls: Arc::new(NoCalls),
            turns: Arc::new(NoTurns),
            services,
        }
    }

    /// Resolves a relative path against the session's root. Not a permission check.
    #[must_use]
    pub fn resolve_path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.session.root.join(path)
    }
}

/// The application's services. By default each answers `unsupported`.
#[derive(Clone)]
pub struct Services {
    /// Model client; `Unsupported` if there is none. If a model was chosen for the tool, its requests are part of the
    /// call's record.
    pub model: Arc<dyn ModelClient>,
    /// The model chosen for an LLM-backed tool, `provider/model`.
    pub model_id: Option<String>,
    /// The mode of asking that the caller named, for LLM-backed tools with variants.
    pub model_mode: Option<Arc<str>>,
    /// The effort for LLM-backed tools chosen by the caller, else by the tool.
    pub model_effort: Option<Effort>,
    /// Counts tokens.
    pub tokens: Arc<dyn TokenCounter>,
    /// Records usage of a tool's own model requests that bypass `model`.
    pub usage: Arc<dyn UsageRecorder>,
    /// Triggers.
    pub triggers: Arc<dyn Triggers>,
    /// The files that the session has read, for read-before-write.
    pub files: Arc<dyn FileState>,
    /// Jobs.
    pub jobs: Arc<dyn Jobs>,
    /// Records which manuals the session has read.
    pub manuals: Arc<dyn Manuals>,
    /// The values of sessions, and the messages to their conversations.
    pub log: Arc<dyn SessionLog>,
    /// Searches that, and the saved runs.
    pub memory: Arc<dyn Memory>,
    /// The members of groups.
    pub groups: Arc<dyn Groups>,
    /// Stored outputs.
    pub outputs: Arc<dyn OutputStore>,
    /// Events.
    pub events: Arc<dyn EventSink>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Redacts text before any sink gets it.
    pub redactor: Arc<dyn Redactor>,
    /// Extracts from stored outputs with a model, if configured.
    pub extractor: Option<Arc<dyn Extractor>>,
    /// Answers calls in separate requests, if configured.
    pub delegates: Option<Arc<dyn Delegates>>,
}

impl Services {
    /// No services: every trait answers `unsupported`; `clock` gives the time.
    #[must_use]
    pub fn none(clock: Arc<dyn Clock>) -> Self {
        Self {
            model: Arc::new(NoModel),
            model_id: None,
            model_mode: None,
            model_effort: None,
            tokens: Arc::new(EstimatedTokens),
            usage: Arc::new(NoUsage),
            files: Arc::new(NoFileState),
            jobs: Arc::new(NoJobs),
            triggers: Arc::new(NoTriggers),
            manuals: Arc::new(NoManuals),
            log: Arc::new(NoSessionLog),
            groups: Arc::new(NoGroups),
            memory: Arc::new(NoMemory),
            outputs: Arc::new(NoStore),
            events: Arc::new(NoEvents),
            clock,
            redactor: Arc::new(NoRedaction),
            extractor: None,
            delegates: None,
        }
    }
}

impl fmt::Debug for Services {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Services").field("model_id", &self.model_id).finish_non_exhaustive()
    }
}

/// Makes calls for a running call: they pass the same executor with the same rights, as child operations of
/// the call.
#[async_trait]
pub trait NestedCalls: Any + Send + Sync {
    /// The catalogue of the call's own turn, which resolves names; `None` if the call cannot make others.
    fn snapshot(&self) -> Option<&Snapshot>;
    /// Runs calls concurrently. Returns one outcome a call, in call order.
    ///
    /// # Errors
    /// [`Unsupported`] if the call's tool did not declare that it awaits other calls.
    async fn run(&self, calls: Vec<ToolCall>) -> Result<Vec<Outcome>, Unsupported>;
    /// The model of the call's run, `provider/model`; `None` outside a run.
    fn model(&self) -> Option<&str> {
        None
    }
    /// The rights of such calls, for work that starts later; `None` if the call cannot make others.
    fn rights(&self) -> Option<Rights> {
        None
    }
    /// Whether the call's run reads its mailbox after it has answered, like a chat or a member of a group.
    fn reads_mailbox(&self) -> bool {
        false
    }
    /// Asks `model`. The call's token cancels the request, which is reported and counted like any other.
    ///
    /// # Errors
    /// [`ModelError`]; `Unsupported` if the call cannot make requests.
    async fn ask(&self, model: &str, _request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        Err(ModelError::new(ModelErrorKind::Unsupported, format!("this call cannot ask {model}")))
    }
}

/// Makes no calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCalls;

impl NoCalls {
    /// A shared instance.
    #[must_use]
    pub fn shared() -> Arc<dyn NestedCalls> {
        static SHARED: LazyLock<Arc<dyn NestedCalls>> = LazyLock::new(|| Arc::new(NoCalls));
        Arc::clone(&SHARED)
    }
}

#[async_trait]
impl NestedCalls for NoCalls {
    fn snapshot(&self) -> Option<&Snapshot> {
        None
    }

    async fn run(&self, _calls: Vec<ToolCall>) -> Result<Vec<Outcome>, Unsupported> {
        Err(Unsupported("making further calls"))
    }
}

/// Receives progress and partial results of one call. Must not block.
pub trait PartialSink: Send + Sync {
    /// Sends a partial result.
    fn send(&self, partial: Partial);

    /// Whether it takes text at once and unredacted, as a job's log does. Otherwise text is redacted first, and a
    /// possible start of a secret is held back.
    fn accepts_unredacted(&self) -> bool {
        false
    }
}

/// Ignores partial results.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPartials;

impl PartialSink for NoPartials {
    fn send(&self, _partial: Partial) {}
}

/// Source of time, which tests can control.
pub trait Clock: Send + Sync {
    /// Monotonic time.
    fn now(&self) -> Instant;
    /// Time of day.
    fn system_time(&self) -> SystemTime;

    /// Milliseconds since the epoch.
    fn wall_ms(&self) -> u64 {
        let since = self.system_time().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Records model usage of a tool.
pub trait UsageRecorder: Send + Sync {
    /// Records the usage of one request.
    fn record(&self, model: &str, usage: Usage);

    /// Records the total usage of earlier requests, for work resumed after an interruption. A recorder that has already
    /// counted some adds only the rest. By default all are added.
    fn resumed(&self, model: &str, usage: Usage) {
        self.record(model, usage);
    }

    /// Returns a recorder for the job of a call while it runs; `None` if jobs are not recorded apart, which is the
    /// default.
    fn of_job(&self, _call: &CallId) -> Option<Arc<dyn UsageRecorder>> {
        None
    }
}

/// Records nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoUsage;

impl UsageRecorder for NoUsage {
    fn record(&self, _model: &str, _usage: Usage) {}
}

/// State of a file when the session last saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenFile {
    /// Hash of its bytes.
    pub hash: ContentHash,
    /// Modification time.
    pub modified: Option<SystemTime>,
}

/// The files that a session has read. Paths are canonical.
pub trait FileState: Send + Sync {
    /// Notes that the session knows the file in this state.
    fn record_seen(&self, _session: &SessionId, _path: &Path, _seen: SeenFile) {}
    /// Returns the file state that the session last saw. `Err` if read state is not kept.
    fn seen(&self, _session: &SessionId, _path: &Path) -> Result<Option<SeenFile>, Unsupported> {
        Err(Unsupported("file read state"))
    }
}

/// Keeps no read state.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoFileState;
impl FileState for NoFileState {}

/// Extracts from stored outputs by a model.
#[async_trait]
pub trait Extractor: Send + Sync {
    /// Extracts the answer, as text. Ends well before the call's deadline.
    ///
    /// # Errors
    /// [`ExtractError`]: there is no model, it failed, or a limit was reached.
    async fn extract(&self, request: ExtractRequest, context: &ToolContext) -> Result<String, ExtractError>;

    /// Whether there is a model for calls outside a run.
    fn has_model(&self) -> bool {
        true
    }
}

/// Answers calls in separate requests, which see nothing of the conversation.
#[async_trait]
pub trait Delegates: Send + Sync {
    /// Returns a value that fits the output schema, and its text.
    ///
    /// # Errors
    /// [`ToolError`]: the delegate does not exist, is not permitted, or gave no result.
    async fn run(&self, request: DelegateRequest<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError>;
}

/// A call for a delegate to answer.
#[derive(Debug, Clone, Copy)]
pub struct DelegateRequest<'c> {
    /// `anonymous`, a file or a URL.
    pub delegate: &'c str,
    /// The tool that is called.
    pub entry: &'c Entry,
    /// The call's arguments.
    pub arguments: &'c Value,
    /// Places of the arguments whose values came from untrusted tools.
    pub tainted: &'c [TaintedArgument],
    /// The meta fields: `scopes` are the places of values that its delegate may see (`input`,
    /// `state.user`, `scratch`).
    pub meta: &'c CallMeta,
}

/// Id of the tool that shows a manual. Some tools require it before their first call.
pub const INFO_ID: &str = "job:info@1.0.0";

/// The manuals that sessions have read. A manual is identified by its tool's contract: a changed one must be read
/// again.
pub trait Manuals: Send + Sync {
    /// A session reads a manual.
    fn read(&self, _session: &SessionId, _definition: ContentHash) {}
    /// Whether the session has read the manual. `true` if this is not kept.
    fn was_read(&self, _session: &SessionId, _definition: ContentHash) -> bool {
        true
    }
}

/// Keeps nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoManuals;

impl Manuals for NoManuals {}

/// A tool that is not to be called before its manual was read; the message has the remedy.
#[must_use]
pub fn unread(entry: &Entry, info: &Entry) -> ToolError {
    let (name, info) = (&entry.wire_name, &info.wire_name);
    let message = format!(
        "the manual of {name} must be read before its first call: call {info} with {{\"name\": \"{name}\"}}, then call {name} again"
    );
    ToolError::new(ErrorKind::NotPermitted, message)
}
