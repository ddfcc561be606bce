//! Defines the trait `Provider`, a source of tools, which lists them and runs their calls; and what tools add to the system
//! prompts of runs that may use them: skills, channels.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::RegisteredTool;
use super::context::ToolContext;
use crate::content::TokenCounter;
use crate::definition::llm::LlmDefinition;
use crate::definition::{CallScope, McpPeer, ProviderKind};
use crate::error::ToolError;
use crate::identity::session::{CallId, Principal, Session, SessionId};
use crate::identity::tool_id::ToolId;
use crate::json::canonical::ContentHash;
use crate::model::RequestSettings;
use crate::output::outcome::ToolOutput;
use crate::pins::PinSource;
use crate::policy::HintTrust;
use crate::store::FileUse;

/// The health of a provider, from its last list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Health {
    /// Listed and callable.
    Ready,
    /// Not connected yet; its tools may be known from a cached manifest.
    Starting,
    /// Down.
    Failed {
        /// The cause, and the remedy.
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

/// A call as a provider gets it: validated, approved, in its slot.
#[derive(Debug)]
pub struct ProviderCall<'a> {
    /// Canonical id.
    pub tool: &'a ToolId,
    /// The tool's name at its source.
    pub raw_name: &'a str,
    /// Source hash of the definition that the call was checked and approved against, see
    /// [`RegisteredTool::source_hash`]: a
    /// source whose tool has changed since must not run it.
    pub source_hash: ContentHash,
    /// Arguments, an object.
    pub arguments: Value,
    /// Sent with every dispatched call; equal for retries of the same call.
    pub idempotency_key: &'a str,
}

/// Limits of a provider's calls. A tool's own limits come first; for `None` the executor's limits apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallLimits {
    /// Absolute limit of one call.
    pub timeout: Option<Duration>,
    /// Time limit between progress reports of a call.
    pub idle_timeout: Option<Duration>,
    /// Number of retries of a failed call, if a retry is safe.
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
        /// The id that the source gave to it.
        id: String,
    },
    /// A log message (the parameters of `notifications/message`) of an unknown call.
    Log(Value),
    /// It logs on a connection that one session has for itself: for that one alone.
    SessionLog {
        /// The session.
        session: SessionId,
        /// The parameters of `notifications/message`.
        message: Value,
    },
}

/// Receives notices. Must not block.
pub type NoticeSink = Arc<dyn Fn(SourceNotice) + Send + Sync>;

/// Called by a provider whenever its tools or its health may have changed.
pub type ChangeNotifier = Arc<dyn Fn() + Send + Sync>;

/// Size of a tool's request to a model and of the answer, as far as known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PromptSize {
    /// Tokens of the prompts.
    pub input: usize,
    /// Token limit of the answer, without reasoning.
    pub max_answer: Option<u32>,
    /// The tool's model settings; missing ones come from the model's configuration.
    pub settings: RequestSettings,
    /// Number of times the model may be asked again, with its answer and the fault.
    pub asks_again: u32,
}

/// Asks for the size of a tool's request to a model.
#[derive(Clone, Copy)]
pub struct PromptSizeQuery<'a> {
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
/// Only the executor may use `call` (a lint enforces it).
#[async_trait]
pub trait Provider: Send + Sync {
    /// Unique name.
    fn name(&self) -> &str;
    /// Distinguishes providers of equal name that are defined in different places but pinned in one store: the
    /// configuration file of its entry. By default equal names mean the same source.
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
    /// Lists all prompts, resources or resource templates: each item as in MCP, checked. May connect; the
    /// caller bounds the wait. Lists nothing by default; called only for a provider with [`Provider::methods`].
    ///
    /// # Errors
    /// [`ProviderError`] with cause and remedy; the earlier list stays.
    async fn list_of(&self, _kind: ListKind) -> Result<Arc<[Value]>, ProviderError> {
        Ok(Arc::default())
    }
    /// Runs one call.
    ///
    /// # Errors
    /// [`ToolError`] of an executed or a not executed kind; a call that may have reached its peer is
    /// never replayed.
    async fn call(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError>;
    /// Whether it has code that runs the tool. Otherwise an activity or a delegate runs the calls, or the calling model
    /// answers them, and they never come to [`Provider::call`].
    fn implements(&self, _tool: &ToolId) -> bool {
        true
    }
    /// Returns the resources that a call would touch. By default they are unknown.
    fn scope(&self, _tool: &ToolId, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Anywhere
    }
    /// Returns the files that a call reads and writes; see [`crate::Tool::files`].
    fn files(&self, _tool: &ToolId, _arguments: &Value, _session: &Session) -> FileUse {
        FileUse::default()
    }
    /// Returns the changes that a call would make, for the approver; see [`crate::Tool::changes`].
    fn changes(&self, _tool: &ToolId, _arguments: &Value, _session: &Session) -> Option<String> {
        None
    }
    /// Whether the tool makes or awaits other calls; see [`crate::Tool::awaits_others`].
    fn awaits_others(&self, _tool: &ToolId) -> bool {
        false
    }
    /// Whether an interrupted call of this tool resumes when it is made again under the same id, and
    /// a finished one only returns its result again. Such a call may be repeated after a crash.
    fn resumes(&self, _tool: &ToolId) -> bool {
        false
    }
    /// Returns the peer of calls of this tool, if the provider has several: calls without a queue share one per
    /// peer, so that a slow peer does not delay others.
    fn peer(&self, _tool: &ToolId) -> Option<&str> {
        None
    }
    /// Whether its calls only wait for their source and never occupy a thread for long, so they need
    /// no separate task. `false` by default.
    fn is_io_bound(&self) -> bool {
        false
    }
    /// The definition of an LLM-backed tool; see [`crate::Tool::llm`].
    fn llm(&self, _tool: &ToolId) -> Option<Arc<LlmDefinition>> {
        None
    }
    /// Returns the size of the tool's request; see [`crate::Tool::prompt_size`].
    fn prompt_size(&self, _tool: &ToolId, _asked: PromptSizeQuery<'_>) -> PromptSize {
        PromptSize::default()
    }
    /// Returns the tool's part of system prompts; see [`crate::Tool::prompt_part`].
    fn prompt_part(&self, _tool: &ToolId) -> Option<PromptPart> {
        None
    }
    /// Returns the limits of its calls; none by default.
    fn limits(&self) -> CallLimits {
        CallLimits::default()
    }
    /// Identifies the credentials of a caller's calls, without secrets: results are never shared
    /// between two scopes. A provider with per-caller credentials must return a scope for each caller. `None` by
    /// default.
    fn credential_scope(&self, _principal: &Principal) -> Option<ContentHash> {
        None
    }
    /// Tells the source that a call is cancelled. By default the call's token does that.
    async fn cancel(&self, _call: &CallId) {}
    /// Called when a client's session has ended, so that state kept for it alone can be dropped after its last call.
    /// Does nothing by default.
    fn session_ended(&self, _session: &SessionId) {}
    /// Connects before the first call.
    ///
    /// # Errors
    /// As [`Provider::list`].
    async fn warm_up(&self) -> Result<(), ProviderError> {
        Ok(())
    }
    /// Ends connections and child processes, within the caller's bound.
    async fn shut_down(&self) {}
    /// Returns its health.
    fn health(&self) -> Health;
    /// Returns the source's instructions for models about its tools. Untrusted data.
    fn instructions(&self) -> Option<String> {
        None
    }
    /// The server behind it, for an MCP server.
    fn mcp_peer(&self) -> Option<McpPeer> {
        None
    }
    /// Returns a provider of its source's other requests: its tools are the methods of the
    /// protocol (raw name `resources/read`, id `{namespace}__resources-read`, …). They are not in the catalogue, but
    /// run through the executor like all calls. Its list is ready at once. The source's unchanged result is in
    /// [`METHOD_RESULT`](crate::definition::passthrough::METHOD_RESULT) of the output's extras.
    fn methods(&self) -> Option<Arc<dyn Provider>> {
        None
    }
    /// Whether its tools are methods of the protocol, see [`Provider::methods`]: their raw names are the methods'
    /// names.
    fn lists_methods(&self) -> bool {
        false
    }
    /// Returns the capabilities that its source announced, as MCP's `ServerCapabilities`; `None` while unknown, and for
    /// sources other than MCP servers.
    fn capabilities(&self) -> Option<Arc<Map<String, Value>>> {
        None
    }
    /// Sets the receiver of notices from its source outside of calls, once. By default there are none.
    fn on_notice(&self, _notify: NoticeSink) {}
    /// Whether its hints may loosen policy.
    fn trust(&self) -> HintTrust {
        HintTrust::Trusted
    }
    /// Sets the catalogue's notifier, once, when the provider is added. By default its tools never change.
    fn on_change(&self, _notify: ChangeNotifier) {}
    /// Whether its tools may have this namespace, as far as known before it lists. By default only the provider's own
    /// name is accepted.
    fn may_fill(&self, namespace: &str) -> bool {
        namespace == self.name()
    }
    /// Names it has but does not offer, each with the reason (`filtered by tools_denied`).
    fn withheld(&self) -> Vec<WithheldTool> {
        Vec::new()
    }
    /// Returns problems that its operator should fix although it lists, such as settings that name missing tools: one
    /// sentence with the remedy each.
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
pub struct WithheldTool {
    /// The name at its source.
    pub name: String,
    /// Why, as a clause.
    pub why: String,
    /// Whether the tool is excluded because its definition is unusable, not by a setting.
    pub is_unreadable: bool,
}

impl WithheldTool {
    /// A name withheld by a setting, a rule or the operator.
    pub fn new(name: impl Into<String>, why: impl Into<String>) -> Self {
        Self { name: name.into(), why: why.into(), is_unreadable: false }
    }

    /// A name with an unusable definition.
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

/// A list of MCP other than `tools/list`.
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
    /// All kinds. The index of a kind is its number (`kind as usize`).
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

    /// Returns the kind that this method lists, if any.
    #[must_use]
    pub fn of_method(method: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.method() == method)
    }

    /// Returns the plural noun for messages.
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

    /// Returns the capability that announces such a list.
    #[must_use]
    pub fn capability(self) -> &'static str {
        match self {
            Self::Prompts => "prompts",
            Self::Resources | Self::Templates => "resources",
        }
    }
}

/// Id of the tool that loads a skill.
pub const SKILL_ID: &str = "agent:skill@1.0.0";
/// Characters of a skill's name.
pub const MAX_SKILL_NAME: usize = 64;
/// Characters of a skill's description.
pub const MAX_SKILL_DESCRIPTION: usize = 1024;
/// Bytes of a skill's text.
pub const MAX_SKILL_TEXT: usize = 64 << 10;

/// Instructions for one kind of work: a folder with a file `SKILL.md`. A prompt names it; its text is loaded when it is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// Its name: lower-case letters, digits and `-`.
    pub name: String,
    /// Purpose and when to load it, for models.
    pub description: String,
    /// The instructions.
    pub text: String,
    /// Its folder, absolute. Other files of the skill are read from there by the tools that read files.
    pub folder: PathBuf,
}

impl Skill {
    /// The skill as a model reads it.
    #[must_use]
    pub fn in_words(&self) -> String {
        format!("# Skill {}\n\nFolder: {}\n\n{}\n", self.name, self.folder.display(), self.text.trim())
    }
}

/// A tool's contribution to the system prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptPart {
    /// Skills that it loads.
    Skills(Arc<[Skill]>),
    /// Channels that it writes to, a line each.
    Channels(Arc<[String]>),
}
