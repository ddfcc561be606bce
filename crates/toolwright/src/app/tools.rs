//! Calls, lists and finds the tools of an instance.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use toolwright_core::approval::{Approver, NoApprover};
use toolwright_core::catalogue::Provider;
use toolwright_core::client::{CallClient, NoClient};
use toolwright_core::context::NoUsage;
use toolwright_core::name_table::Resolution;
use toolwright_core::session::{CallId, Principal, Session, SessionId};
use toolwright_core::tool_id::short_hash;
use toolwright_core::{Cancel, Entry, ErrorKind, Lineage, Outcome, Profile, RawArguments, ToolCall, ToolError};
use toolwright_runtime::RunContext;
use toolwright_runtime::executor::LlmOptions;
use toolwright_search::{Pick, SearchFilter, SearchHit, search_or_similar};

use super::{ClientOptions, Toolwright};
use crate::error::Error;

/// How long to wait for sources that have not listed their tools yet. Slower ones continue in the background.
pub(crate) const LIST_WAIT: Duration = Duration::from_secs(30);
/// How long a bare name is looked for in providers that have not listed.
const SEARCH: Duration = Duration::from_secs(3);

/// The remedy if policy asks and nobody answers.
const REMEDY: &str = "nobody is there to ask: give `.approver(..)`, allow the tool by `.rule(..)`, or choose a wider profile \
                      by `.policy(..)`";

/// A tool that was picked for a task.
#[derive(Debug, Clone)]
pub struct PickedTool {
    /// The tool.
    pub tool: Arc<Entry>,
    /// The score, from 0 to 1.
    pub score: f32,
    /// The reason, as text.
    pub reason: String,
}

/// Options of a call by the owner.
#[derive(Clone)]
pub struct CallOptions {
    /// The policy profile for calls that no rule matches.
    pub profile: Profile,
    /// Cancels the call.
    pub cancel: Cancel,
    /// The time limit. Default: that of the tool or its server.
    pub timeout: Option<Duration>,
    /// How long the caller waits before the call continues as a job; zero starts it as a job.
    /// Default: that of the tool, its server or `defaults`.
    pub background_after: Option<Duration>,
    /// Maximum bytes of the result's text; overrides the tool's own limit and `defaults.tool_response_max_bytes`.
    pub max_output: Option<usize>,
    /// Answers requests of the tool's source.
    pub client: Arc<dyn CallClient>,
    /// The model and the mode of an LLM-backed tool.
    pub llm: LlmOptions,
}

impl CallOptions {
    /// Creates options with this profile, the usual limits, and nobody to ask.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self {
            profile,
            cancel: Cancel::new(),
            timeout: None,
            background_after: None,
            max_output: None,
            client: Arc::new(NoClient),
            llm: LlmOptions::default(),
        }
    }
}

impl std::fmt::Debug for CallOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallOptions").field("profile", &self.profile).field("llm", &self.llm).finish_non_exhaustive()
    }
}

impl Toolwright {
    /// Calls a tool by the name that models use (`math__add`) or its id, as the owner. If its source has not listed its
    /// tools yet, it is connected first.
    ///
    /// Arguments are checked against the tool's schema, and policy decides. Unless
    /// [`Builder::policy`](crate::Builder::policy) names a profile, the call is the owner's own action: only a rule can
    /// deny it, and nobody is asked.
    ///
    /// # Errors
    /// [`Error::Call`] if the tool is unknown, refused or fails; it contains the outcome. For outcomes as values and
    /// more control, see [`Toolwright::call_with`].
    pub async fn call(self: &Arc<Self>, tool: &str, arguments: Value) -> Result<Outcome, Error> {
        if !self.resolves(tool) {
            self.list_for(tool, LIST_WAIT).await;
        }
        let policy = Arc::new(self.config().policy(None, Profile::Owner));
        let (session, approver) = (self.call_session(), self.approver());
        let client = self.client(ClientOptions {
            session: Arc::clone(&session),
            // The program allows the tool, but not requests of the tool's source to a model.
            policy: Arc::new(self.config().policy(None, Profile::Ask)),
            approver: Arc::clone(&approver),
            person: None,
            model: None,
        });
        let run = RunContext { client, ..RunContext::new(session, self.catalogue.snapshot(), policy, approver) };
        let call = ToolCall::new(CallId::new("call"), tool.to_owned(), RawArguments::Value(arguments));
        let outcome = self.run_call(call, run).await;
        if outcome.ok { Ok(outcome) } else { Err(Error::Call(Box::new(outcome))) }
    }

    /// Runs one call of the owner on the present catalogue. If policy asks, the call is denied, because nobody can
    /// answer. All such calls on one workspace root share the session [`Toolwright::call_session`].
    pub async fn call_with(&self, call: ToolCall, options: CallOptions) -> Outcome {
        let CallOptions { profile, cancel, timeout, background_after, max_output, client, llm } = options;
        let policy = Arc::new(self.config().policy(Some(profile), profile));
        let approver = Arc::new(NoApprover { remedy: "nobody is there to ask".into() });
        let run = RunContext {
            cancel,
            client,
            timeout,
            max_output,
            background_after,
            llm,
            ..RunContext::new(self.call_session(), self.catalogue.snapshot(), policy, approver)
        };
        self.run_call(call, run).await
    }

    async fn run_call(&self, mut call: ToolCall, run: RunContext) -> Outcome {
        // Idempotency keys consist of session and call id, and the session is shared, so each call needs a unique id.
        let id = std::mem::replace(&mut call.id, CallId::new(format!("call-{}", uuid::Uuid::new_v4())));
        let run = RunContext {
            lineage: Lineage::named(call.id.as_str()),
            // With a recorder, the outcome contains the usage of its requests to models.
            usage: Some(Arc::new(NoUsage)),
            ..run
        };
        match self.executor.run_calls(vec![call], &run).await.pop() {
            Some(outcome) => Outcome { call_id: id, ..outcome },
            None => Outcome::failed(id, ToolError::new(ErrorKind::InternalError, "the executor gave no outcome")),
        }
    }

    /// Creates a session of the owner on the workspace root.
    #[must_use]
    pub fn session(&self, id: impl Into<Arc<str>>) -> Arc<Session> {
        Arc::new(Session {
            id: SessionId::new(id),
            principal: Principal::owner(),
            root: self.config().root.clone(),
            agent: None,
        })
    }

    /// Returns the session of single calls on this workspace root: a later call, even of another process, can read the
    /// outputs that an earlier one stored.
    #[must_use]
    pub fn call_session(&self) -> Arc<Session> {
        self.session(format!("call-{}", short_hash(&self.config().root.to_string_lossy(), 32)))
    }

    /// Returns the approver that the builder named, if any.
    pub(crate) fn own_approver(&self) -> Option<Arc<dyn Approver>> {
        self.approver.clone()
    }

    /// Returns the approver for calls that name none.
    pub(crate) fn approver(&self) -> Arc<dyn Approver> {
        self.own_approver().unwrap_or_else(|| Arc::new(NoApprover { remedy: REMEDY.into() }))
    }

    /// Returns all tools, in a fixed order. Waits up to half a minute for sources that have not listed theirs.
    pub async fn tools(self: &Arc<Self>) -> Vec<Arc<Entry>> {
        self.list_unknown(LIST_WAIT).await;
        self.catalogue.snapshot().list().to_vec()
    }

    /// Returns at most `limit` tools that match these words by name, tag and description, best first.
    pub async fn search(self: &Arc<Self>, words: &str, limit: usize) -> Vec<SearchHit> {
        self.list_unknown(LIST_WAIT).await;
        search_or_similar(&self.catalogue.snapshot(), words, limit, &SearchFilter::default())
    }

    /// Returns at most `limit` tools that fit a task, best first. `selection` configures the scoring, which is by words
    /// unless there are embeddings.
    pub async fn pick(self: &Arc<Self>, task: &str, limit: usize) -> Vec<PickedTool> {
        self.list_unknown(LIST_WAIT).await;
        let snapshot = self.catalogue.snapshot();
        let mut options = self.config().sections.selection.pick_options();
        options.config.max_candidates = limit;
        let picked = self.selector().pick(task, &snapshot, &options).await;
        let tool = |Pick { position, score, reason, .. }: Pick| {
            Some(PickedTool { tool: Arc::clone(snapshot.list().get(position)?), score, reason })
        };
        picked.picks.into_iter().filter_map(tool).collect()
    }

    /// Connects every source and lists its tools. This is optional, for programs that check at the start whether all
    /// sources are available.
    ///
    /// # Errors
    /// [`Error::Sources`] with the sources that cannot be listed. The others are usable.
    pub async fn connect(self: &Arc<Self>) -> Result<(), Error> {
        self.list_all(LIST_WAIT).await;
        let snapshot = self.catalogue.snapshot();
        let failed =
            snapshot.providers().iter().filter_map(|status| Some((status.name.clone(), status.error.clone()?)));
        let unlisted = self.catalogue.unlisted();
        let unlisted =
            unlisted.iter().map(|provider| (provider.name().to_owned(), "it has not answered yet".to_owned()));
        let missing: Vec<_> = failed.chain(unlisted).collect();
        if missing.is_empty() { Ok(()) } else { Err(Error::Sources(missing)) }
    }

    /// Lists all sources if one of them has never listed its tools, and waits for the new ones.
    pub(crate) async fn list_unknown(self: &Arc<Self>, wait: Duration) {
        if self.catalogue.unlisted().is_empty() {
            return;
        }
        tokio::select! {
            // First, so that the lists are begun.
            biased;
            () = self.list_all(wait) => {}
            () = self.catalogue.listed(|_| true) => {}
        }
    }

    /// Connects and lists every provider, with the concurrency of `mcp_init_concurrency`, and waits at most `wait`.
    /// Slower providers continue in the background.
    pub async fn list_all(self: &Arc<Self>, wait: Duration) {
        let concurrency = self.config().sections.defaults.mcp_init_concurrency;
        let catalogue = Arc::clone(&self.catalogue);
        let listing = tokio::spawn(async move { catalogue.refresh_all(concurrency).await });
        // A time-out leaves the task running.
        let _ = tokio::time::timeout(wait, listing).await;
    }

    /// Lists the providers that may have the tool of this name, by its namespace, within `wait`. A name without a
    /// namespace is waited for only if it may be a bare name, until it is found and for a few seconds at most, so that
    /// a server that hangs delays only its own tools.
    pub async fn list_for(self: &Arc<Self>, tool: &str, wait: Duration) {
        let namespace = tool.split_once("__").or_else(|| tool.split_once(':')).map(|(namespace, _)| namespace.trim());
        match namespace {
            Some(namespace) => {
                let sources = self.catalogue.sources();
                let able = sources.iter().filter(|source| may_fill(&***source, namespace));
                let names: Vec<String> = able.map(|source| source.name().to_owned()).collect();
                let lists = join_all(names.iter().map(|name| self.catalogue.refresh(name)));
                let _ = tokio::time::timeout(wait, lists).await;
            }
            // Built-in and REST tools were listed when Toolwright opened.
            None if self.resolves(tool) => {}
            None => {
                let mut changes = self.catalogue.changes();
                let found = async { while !self.resolves(tool) && changes.changed().await.is_ok() {} };
                tokio::select! {
                    () = found => {}
                    () = self.list_all(wait.min(SEARCH)) => {}
                }
            }
        }
    }

    fn resolves(&self, tool: &str) -> bool {
        matches!(self.catalogue.snapshot().resolve(tool), Resolution::Found(..))
    }
}

/// Returns whether a source may have tools whose names begin so. A wire name begins with `_` if its namespace begins
/// with a digit.
fn may_fill(source: &dyn Provider, written: &str) -> bool {
    let digit = written.strip_prefix('_').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    source.may_fill(written) || digit.is_some_and(|namespace| source.may_fill(namespace))
}
