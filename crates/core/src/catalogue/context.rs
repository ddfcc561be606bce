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
use crate::identity::taint::{Taint, Tainted};
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
    /// Fires when the call is to stop; a tool that ignores it is abandoned after a grace period.
    pub cancel: Cancel,
    /// When the call times out, if it does.
    pub deadline: Option<Instant>,
    /// The time limit that was set for the call, waits excluded: `deadline` in words, for messages.
    pub limit: Option<Duration>,
    /// The client of the call, which answers questions.
    pub client: Arc<dyn CallClient>,
    /// Takes progress and partial results; each one also resets the idle timeout.
    pub partials: Arc<dyn PartialSink>,
    /// W3C trace context (`traceparent`) to pass on.
    pub traceparent: Option<Arc<str>>,
    /// Cap on the text of the result, in bytes: what is over it is stored.
    pub max_output: usize,
    /// The untrusted tools that the arguments came out of.
    pub taint: Taint,
    /// What the `_scopes` of the call show that the tool answers as an activity, by their names without the mark.
    pub granted: Arc<Map<String, Value>>,
    /// Makes further calls, for a tool that [awaits others](crate::Tool::awaits_others).
    pub calls: Arc<dyn InnerCalls>,
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
    /// The context of a call that nobody else knows of: it may touch anything; no deadline, no further calls, progress ignored.
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

    /// A relative path from the session's root, an absolute one as it is. Not a permission check.
    #[must_use]
    pub fn resolve_path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.session.root.join(path)
    }
}

/// The services of the application. The default has none, and says so when asked.
#[derive(Clone)]
pub struct Services {
    /// Model client; `Unsupported` where there is none. In a tool for which a model was chosen its requests are
    /// accounted for as part of the call.
    pub model: Arc<dyn ModelClient>,
    /// The model chosen for an LLM-backed tool, `provider/model`.
    pub model_id: Option<String>,
    /// The mode of asking that the caller named, for LLM-backed tools with variants.
    pub model_mode: Option<Arc<str>>,
    /// The effort that the caller named, for LLM-backed tools; before that of the tool.
    pub model_effort: Option<Effort>,
    /// Counts tokens.
    pub tokens: Arc<dyn TokenCounter>,
    /// Records what a tool's own model requests used that do not go through `model`.
    pub usage: Arc<dyn UsageRecorder>,
    /// Triggers.
    pub triggers: Arc<dyn Triggers>,
    /// The files that the session has read, for read-before-write.
    pub files: Arc<dyn FileState>,
    /// Jobs.
    pub jobs: Arc<dyn Jobs>,
    /// Which manuals of tools the session has read.
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
    /// Takes secrets out of text before any sink sees it.
    pub redactor: Arc<dyn Redactor>,
    /// Extracts from stored outputs by a model, where that is set up.
    pub extractor: Option<Arc<dyn Extractor>>,
    /// Answers calls in requests of their own, where that is set up.
    pub delegates: Option<Arc<dyn Delegates>>,
}

impl Services {
    /// No services: every trait answers `unsupported`, `clock` gives the time of day.
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

/// Calls that a running call makes: they pass the same executor under the same terms, as operations inside
/// the call's own.
#[async_trait]
pub trait InnerCalls: Any + Send + Sync {
    /// The meaning of names in such calls: the catalogue of the call's own turn. `None` where it cannot make any.
    fn snapshot(&self) -> Option<&Snapshot>;
    /// Runs calls beside each other. One outcome a call, in call order.
    ///
    /// # Errors
    /// [`Unsupported`] where the call cannot make others: its tool did not say that it awaits them.
    async fn run(&self, calls: Vec<ToolCall>) -> Result<Vec<Outcome>, Unsupported>;
    /// The model of the run that the call belongs to, `provider/model`; `None` outside of one.
    fn model(&self) -> Option<&str> {
        None
    }
    /// The rights of such calls, for work that starts later; `None` where it cannot make any.
    fn rights(&self) -> Option<Rights> {
        None
    }
    /// Whether the run that the call belongs to reads its mailbox when it has answered, like a chat or a member of a group.
    fn reads_mailbox(&self) -> bool {
        false
    }
    /// Asks `model`. The request ends with the call's token, and is told and accounted for like any other.
    ///
    /// # Errors
    /// [`ModelError`]; `Unsupported` where the call cannot make requests.
    async fn ask(&self, model: &str, _request: &ModelRequest) -> Result<ModelResponse, ModelError> {
        Err(ModelError::new(ModelErrorKind::Unsupported, format!("this call cannot ask {model}")))
    }
}

/// Makes no calls.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoCalls;

impl NoCalls {
    /// One for all.
    #[must_use]
    pub fn shared() -> Arc<dyn InnerCalls> {
        static SHARED: LazyLock<Arc<dyn InnerCalls>> = LazyLock::new(|| Arc::new(NoCalls));
        Arc::clone(&SHARED)
    }
}

#[async_trait]
impl InnerCalls for NoCalls {
    fn snapshot(&self) -> Option<&Snapshot> {
        None
    }

    async fn run(&self, _calls: Vec<ToolCall>) -> Result<Vec<Outcome>, Unsupported> {
        Err(Unsupported("making further calls"))
    }
}

/// Takes the progress and partial results of one call. Must not block.
pub trait PartialSink: Send + Sync {
    /// One report.
    fn send(&self, partial: Partial);

    /// Whether it takes text at once and as the tool wrote it, as a job's log does. Others get it without secrets; what may be
    /// the beginning of one is held back until it is known to be none.
    fn takes_unredacted(&self) -> bool {
        false
    }
}

/// Ignores them.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoPartials;

impl PartialSink for NoPartials {
    fn send(&self, _partial: Partial) {}
}

/// The time, so that tests can hold it.
pub trait Clock: Send + Sync {
    /// Monotonic time.
    fn now(&self) -> Instant;
    /// Time of day.
    fn wall(&self) -> SystemTime;

    /// Milliseconds since the epoch.
    fn wall_ms(&self) -> u64 {
        let since = self.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Records model usage of a tool.
pub trait UsageRecorder: Send + Sync {
    /// One request's figures.
    fn record(&self, model: &str, usage: Usage);

    /// The figures of all earlier requests of work that goes on after an interruption. Who has counted some of them counts
    /// the rest. The default counts all.
    fn resumed(&self, model: &str, usage: Usage) {
        self.record(model, usage);
    }

    /// Records what the job of a call uses, for as long as it runs; `None`: as anything else. The default makes no
    /// difference.
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

/// A file as it was when the session last saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileSeen {
    /// Hash of its bytes.
    pub hash: ContentHash,
    /// Modification time.
    pub modified: Option<SystemTime>,
}

/// The files that a session has read. Paths are canonical.
pub trait FileState: Send + Sync {
    /// Notes that the session knows the file in this state.
    fn saw(&self, _session: &SessionId, _path: &Path, _seen: FileSeen) {}
    /// How the session last saw it. `Err` where read state is not kept at all.
    fn seen(&self, _session: &SessionId, _path: &Path) -> Result<Option<FileSeen>, Unsupported> {
        Err(Unsupported("file read state"))
    }
}

/// No read state.
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

    /// Whether there is a model for a call that no run makes, which would have one.
    fn has_model(&self) -> bool {
        true
    }
}

/// Answers calls in requests of their own, which see nothing of the conversation.
#[async_trait]
pub trait Delegates: Send + Sync {
    /// The result: a value that fits the output schema, and its text.
    ///
    /// # Errors
    /// [`ToolError`]: there is no such delegate, it may not be used, or it came to no result.
    async fn run(&self, request: DelegateRequest<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError>;
}

/// A call that a delegate is to answer.
#[derive(Debug, Clone, Copy)]
pub struct DelegateRequest<'c> {
    /// `anonymous`, a file or a URL.
    pub delegate: &'c str,
    /// The tool that is called.
    pub entry: &'c Entry,
    /// The call's arguments.
    pub arguments: &'c Value,
    /// The places of the arguments whose values came out of untrusted tools.
    pub tainted: &'c [Tainted],
    /// What it says beside its parameters: `scopes` are the places of values that its delegate may see (`input`,
    /// `state.user`, `scratch`).
    pub meta: &'c CallMeta,
}

/// The tool that shows a manual. Some tools demand that it is read before their first call.
pub const INFO_ID: &str = "job:info@1.0.0";

/// The manuals that sessions have read. A manual is named by its tool's contract: a changed one is to be read again.
pub trait Manuals: Send + Sync {
    /// A session reads a manual.
    fn read(&self, _session: &SessionId, _definition: ContentHash) {}
    /// Whether it has read it. Where that is not kept, every manual counts as read.
    fn was_read(&self, _session: &SessionId, _definition: ContentHash) -> bool {
        true
    }
}

/// Nothing is kept.
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
