//! Defines the trait `Provider`: a source of tools, which lists them and runs their calls.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::RegisteredTool;
use super::context::ToolContext;
use super::prompt_part::PromptPart;
use crate::content::TokenCounter;
use crate::definition::llm::LlmDefinition;
use crate::definition::{CallScope, McpPeer, ProviderKind};
use crate::error::ToolError;
use crate::identity::session::{CallId, Principal, Session, SessionId};
use crate::identity::tool_id::ToolId;
use crate::json::canonical::ContentHash;
use crate::model::ModelSettings;
use crate::output::outcome::ToolOutput;
use crate::pins::PinSource;
use crate::policy::HintTrust;
use crate::store::FileUse;

/// How a provider is doing. Health is the outcome of its last list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Health {
    /// Listed and callable.
    Ready,
    /// Not connected yet; its tools may be known from a cached manifest.
    Starting,
    /// Down.
    Failed {
        /// Why, and what would mend it.
        reason: String,
    },
}

/// Why a provider cannot list.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct ProviderError {
    /// Cause and remedy, for the operator.
    pub message: String,
    /// The cause.
    #[source]
    pub source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl ProviderError {
    /// An error in words.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), source: None }
    }
}

/// One call as a provider gets it: validated, approved, in its slot.
#[derive(Debug)]
pub struct ProviderCall<'a> {
    /// Canonical id.
    pub tool: &'a ToolId,
    /// The tool's name at its source.
    pub raw_name: &'a str,
    /// Which definition the call was checked and approved against, see [`RegisteredTool::source_hash`]: a source that
    /// has another one under that name by now must not run it instead.
    pub source_hash: ContentHash,
    /// Arguments, an object.
    pub arguments: Value,
    /// Goes along with every dispatched call; the same for a retry of the same call.
    pub idempotency_key: &'a str,
}

/// The limits of all calls of a provider. Those of a single tool come first; for `None` the executor's own apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallLimits {
    /// Absolute limit of one call.
    pub timeout: Option<Duration>,
    /// How long a call may go on without a report of progress.
    pub idle_timeout: Option<Duration>,
    /// How often a failed call is tried again where that is safe.
    pub retries: Option<u32>,
}

/// A notice of a source outside of calls, besides changes of its tools ([`ChangeNotifier`]).
#[derive(Debug, Clone, PartialEq)]
pub enum SourceNotice {
    /// Its lists of resources and resource templates have changed.
    ResourcesChanged,
    /// Its list of prompts has changed.
    PromptsChanged,
    /// A resource that was subscribed to has changed.
    ResourceUpdated {
        /// Its address.
        uri: String,
    },
    /// The user has finished at a page (MCP's elicitation in the mode `url`).
    ElicitationComplete {
        /// The name that it gave to that.
        id: String,
    },
    /// It logs (the parameters of `notifications/message`), and it is not known for which call.
    Log(Value),
    /// It logs on a connection that one session has for itself: for that one alone.
    SessionLog {
        /// The session.
        session: SessionId,
        /// The parameters of `notifications/message`.
        message: Value,
    },
}

/// Takes notices. Must not block.
pub type NoticeSink = Arc<dyn Fn(SourceNotice) + Send + Sync>;

/// Called by a provider whenever its tools or its health may have changed.
pub type ChangeNotifier = Arc<dyn Fn() + Send + Sync>;

/// How much a run of a tool may ask a model and be answered, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptSize {
    /// Tokens of the prompts.
    pub input: usize,
    /// Tokens that an answer is limited to, without what is thought for it.
    pub max_answer: Option<u32>,
    /// How the tool has the model answer; where it says nothing, what is configured of the model counts.
    pub settings: ModelSettings,
    /// How often the model may be asked once more, with its answer and what is wrong with it.
    pub asks_again: u32,
}

/// How much a tool would ask a model.
#[derive(Clone, Copy)]
pub struct PromptQuestion<'a> {
    /// The call's arguments.
    pub arguments: &'a Value,
    /// The model, `provider/model`.
    pub model: &'a str,
    /// The mode that the caller named.
    pub mode: Option<&'a str>,
    /// The counter of tokens.
    pub tokens: &'a dyn TokenCounter,
}

/// A source of tools.
///
/// `call` is the executor's alone: nothing else may name it (a lint enforces it).
#[async_trait]
pub trait Provider: Send + Sync {
    /// Unique name.
    fn name(&self) -> &str;
    /// What tells it from providers of its name that others define, where definitions of both may be pinned in one store: the
    /// configuration file of its entry. The default says nothing: whoever has the name is the same source.
    fn defined_in(&self) -> &str {
        ""
    }
    /// Kind.
    fn kind(&self) -> ProviderKind;
    /// Its tools, now. May connect; the caller bounds the wait.
    ///
    /// # Errors
    /// [`ProviderError`] with cause and remedy; the provider's tools then leave the catalogue.
    async fn list(&self) -> Result<Vec<Arc<RegisteredTool>>, ProviderError>;
    /// Its whole list of prompts, resources or resource templates, now: each item as MCP has it, checked. May connect; the
    /// caller bounds the wait. The default lists nothing; only a provider with [`Provider::methods`] is asked.
    ///
    /// # Errors
    /// [`ProviderError`] with cause and remedy; the list that was there before stays.
    async fn list_of(&self, _kind: ListKind) -> Result<Arc<[Value]>, ProviderError> {
        Ok(Arc::default())
    }
    /// Runs one call.
    ///
    /// # Errors
    /// [`ToolError`] of an executed or a not executed kind; a call that may have reached its peer is
    /// never replayed.
    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError>;
    /// Whether it has code that runs the tool. Where it has none, an activity or a delegate runs the calls, or a model answers
    /// them itself: they never come to [`Provider::call`].
    fn implements(&self, _tool: &ToolId) -> bool {
        true
    }
    /// The resources that a call would touch. The default claims nothing.
    fn scope(&self, _tool: &ToolId, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Anywhere
    }
    /// Which files a call reads and writes; see [`crate::Tool::files`].
    fn files(&self, _tool: &ToolId, _arguments: &Value, _session: &Session) -> FileUse {
        FileUse::default()
    }
    /// The changes that a call would make, for a person who decides about it; see [`crate::Tool::changes`].
    fn changes(&self, _tool: &ToolId, _arguments: &Value, _session: &Session) -> Option<String> {
        None
    }
    /// Whether the tool makes or awaits other calls; see [`crate::Tool::awaits_others`].
    fn awaits_others(&self, _tool: &ToolId) -> bool {
        false
    }
    /// Whether a call of this tool that was interrupted goes on where it was when it is made again under the same id, and
    /// one that has ended only gives its result again. Such a call may be repeated after a crash.
    fn resumes(&self, _tool: &ToolId) -> bool {
        false
    }
    /// Whom calls of this tool go to, where the provider has several peers: calls without a queue of their own share one for
    /// each, so that a peer that is slow holds up no other.
    fn peer(&self, _tool: &ToolId) -> Option<&str> {
        None
    }
    /// Whether its calls do nothing but wait for their source: none occupies its thread for more than moments. They need
    /// no task of their own. The default says that they may.
    fn only_waits(&self) -> bool {
        false
    }
    /// The definition of an LLM-backed tool; see [`crate::Tool::llm`].
    fn llm(&self, _tool: &ToolId) -> Option<Arc<LlmDefinition>> {
        None
    }
    /// How much the tool would ask; see [`crate::Tool::prompt_size`].
    fn prompt_size(&self, _tool: &ToolId, _asked: PromptQuestion<'_>) -> PromptSize {
        PromptSize::default()
    }
    /// The part of the tool in system prompts; see [`crate::Tool::prompt_part`].
    fn prompt_part(&self, _tool: &ToolId) -> Option<PromptPart> {
        None
    }
    /// Limits of its calls. The default sets none.
    fn limits(&self) -> CallLimits {
        CallLimits::default()
    }
    /// What tells the credentials of a caller's calls from others', without holding any: results are never shared
    /// between two scopes. A provider whose credentials depend on the caller must give each its own. The default
    /// has none.
    fn credential_scope(&self, _principal: &Principal) -> Option<ContentHash> {
        None
    }
    /// Tells the source that a call is not wanted any more. The default relies on the call's token.
    async fn cancel(&self, _call: &CallId) {}
    /// Told that a client's session is over: what is kept for that one alone may go with its last call. The default keeps
    /// nothing.
    fn session_ended(&self, _session: &SessionId) {}
    /// Connects ahead of the first call.
    ///
    /// # Errors
    /// As [`Provider::list`].
    async fn warm_up(&self) -> Result<(), ProviderError> {
        Ok(())
    }
    /// Ends connections and child processes, within the caller's bound.
    async fn shut_down(&self) {}
    /// Whether it is up.
    fn health(&self) -> Health;
    /// The instructions of its source to a model about its tools. Data, not to be trusted.
    fn instructions(&self) -> Option<String> {
        None
    }
    /// The server behind it, for an MCP server.
    fn mcp_peer(&self) -> Option<McpPeer> {
        None
    }
    /// What else its source can be asked, besides calling tools: a provider whose tools are the methods of the
    /// protocol (raw name `resources/read`, id `{namespace}__resources-read`, …). They are not in the catalogue, but
    /// run through the executor like all calls. Its list is ready at once. A result is the source's own, untouched, in
    /// [`METHOD_RESULT`](crate::definition::passthrough::METHOD_RESULT) of the output's extras.
    fn methods(&self) -> Option<Arc<dyn Provider>> {
        None
    }
    /// Whether its tools are methods of the protocol, see [`Provider::methods`]: their raw names are the methods' own.
    fn is_of_methods(&self) -> bool {
        false
    }
    /// The capabilities that its source announced, as MCP's `ServerCapabilities`; `None` while not known, and for
    /// other sources.
    fn capabilities(&self) -> Option<Arc<Map<String, Value>>> {
        None
    }
    /// Takes the sink of what its source tells outside of calls, once. The default tells nothing.
    fn on_notice(&self, _notify: NoticeSink) {}
    /// Whether its hints may loosen policy.
    fn trust(&self) -> HintTrust {
        HintTrust::Trusted
    }
    /// Takes the catalogue's notifier, once, when the provider is added. The default never changes.
    fn on_change(&self, _notify: ChangeNotifier) {}
    /// Whether tools of this namespace may be its, as far as is known before it lists. The default fills one, which is
    /// called as it is.
    fn may_fill(&self, namespace: &str) -> bool {
        namespace == self.name()
    }
    /// Names it has but does not offer, each with the reason (`filtered by tools_denied`).
    fn withheld(&self) -> Vec<Withheld> {
        Vec::new()
    }
    /// What its operator should mend though it lists, one sentence with its remedy each: settings that name what its
    /// source has not, …
    fn issues(&self) -> Vec<String> {
        Vec::new()
    }
    /// Cached tools for use until the first list has arrived.
    async fn cached(&self) -> Option<Vec<Arc<RegisteredTool>>> {
        None
    }
}

/// A name that a source has and its provider does not offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Withheld {
    /// The name at its source.
    pub name: String,
    /// Why, as a clause.
    pub why: String,
    /// Whether nobody meant it: the provider cannot make a tool of what its source says.
    pub is_unreadable: bool,
}

impl Withheld {
    /// A name that a setting, a rule or the operator keeps back.
    pub fn new(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), why: why.into(), is_unreadable: false }
    }

    /// A name of which no tool can be made.
    pub fn unreadable(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { is_unreadable: true, ..Self::new(name, why) }
    }
}

impl PinSource {
    /// The source that a provider is.
    #[must_use]
    pub fn of(provider: &dyn Provider) -> Self {
        Self { provider: provider.name().to_owned(), scope: provider.defined_in().to_owned() }
    }
}

/// A list of MCP beside `tools/list`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ListKind {
    /// `prompts/list`.
    Prompts,
    /// `resources/list`.
    Resources,
    /// `resources/templates/list`.
    Templates,
}

impl ListKind {
    /// All kinds. A kind's place in it is its number (`kind as usize`).
    pub const ALL: [Self; 3] = [Self::Prompts, Self::Resources, Self::Templates];

    /// The method that lists it.
    #[must_use]
    pub fn method(self) -> &'static str {
        match self {
            Self::Prompts => "prompts/list",
            Self::Resources => "resources/list",
            Self::Templates => "resources/templates/list",
        }
    }

    /// The kind that this method lists, if it is one of the three.
    #[must_use]
    pub fn of_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// What is listed, in words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resource templates",
        }
    }

    /// The key of the list in the result.
    #[must_use]
    pub fn list_key(self) -> &'static str {
        match self {
            Self::Prompts => "prompts",
            Self::Resources => "resources",
            Self::Templates => "resourceTemplates",
        }
    }

    /// The key of an item's own name or address.
    #[must_use]
    pub fn item_key(self) -> &'static str {
        match self {
            Self::Prompts => "name",
            Self::Resources => "uri",
            Self::Templates => "uriTemplate",
        }
    }

    /// The capability by which a server announces that it has such a list.
    #[must_use]
    pub fn capability(self) -> &'static str {
        match self {
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
        }
    }
}
