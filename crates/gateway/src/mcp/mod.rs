//! The MCP server: one protocol core under two transports. Here is the [`Gateway`], which all its clients share: the
//! views and policies in force, and how it drains.
//!
//! A request comes in by `stdio` or `http`; `dispatch` answers it at once or starts work on it (`request`), whose
//! `response` ends it. `request::call` is the work of `tools/call`, `sources` that of all other methods that servers have.
//! `client` is whoever sent the request, as a tool's source may ask it.
//!
//! The wire is written here rather than with `rmcp`'s server, whose typed results drop the fields it
//! does not know and whose sessions end during long silent calls: a gateway passes on what it was given.
//! Both generations are served side by side, request by request: up to 2025-11-25 with `initialize`
//! and sessions, and 2026-07-28 with a complete `_meta` in each request.

pub(crate) mod client;
mod dispatch;
pub(crate) mod http;
mod protocol;
pub(crate) mod request;
mod response;
mod session;
pub(crate) mod sources;
pub(crate) mod stdio;
mod stdio_streams;
pub(crate) mod tools;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use toolwright_core::approval::{Approver, EXPIRY};
use toolwright_core::policy::{Policy, Profile};
use toolwright_core::roots::Roots;
use toolwright_core::session::{Principal, Session, SessionId};
use toolwright_runtime::{Catalogue, Executor};
use toolwright_search::ToolFinder;

use self::client::fallback_client::FallbackClient;
use self::client::input_required::PausedCalls;
use self::request::call::BrokenOutputSchemas;
use self::request::tasks::Tasks;
use self::sources::capabilities::SourceMethods;
use self::sources::lists::{MergedLists, ResourceLinks};
use self::sources::log_levels::LogLevels;
use self::sources::subscriptions::Subscribers;
use self::tools::ToolLists;
use crate::config::ServerConfig;
use crate::view::{Expose, ListedSchemas, Scope, View, ViewConfig};

pub(crate) use toolwright_mcp::message;

/// The largest message, in bytes.
const DEFAULT_MAX_MESSAGE: usize = 16 << 20;
/// Calls that run at once, over all clients. The executor's queues bound them further.
const DEFAULT_MAX_CALLS: usize = 512;
/// How long cancelled calls may take to end.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// How long after its start the gateway waits for the first lists of its sources. Many clients ask for tools at once and
/// never again. Later lists are announced by notifications.
const FIRST_LISTS: Duration = Duration::from_secs(2);
/// How often a silent call sends progress to a client that asked for it. Half of the shortest client timeout known: 30 s.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(15);
/// How long it may take to turn running calls into jobs at a shutdown.
const HAND_OVER: Duration = Duration::from_secs(1);
/// How long the answers of ended calls may take to go out.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(3);

/// The server's name and version, as MCP's `Implementation`.
#[derive(Debug, Clone, Serialize)]
pub struct ServerInfo {
    /// Name for programs.
    pub name: String,
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Version.
    pub version: String,
}

/// Whether the gateway asks a client's own user by elicitation where policy asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elicitation {
    /// Ask the owner's clients that can be asked: they speak 2025-06-18 or later, offer forms, and up to 2025-11-25 accept
    /// event streams. Other principals never approve their own calls.
    WherePossible {
        /// How long a question may go unanswered.
        expiry: Duration,
    },
    /// Ask no client.
    Never,
}

/// What a gateway is made of, and its bounds.
pub struct GatewayOptions {
    /// The catalogue that it serves.
    pub catalogue: Arc<Catalogue>,
    /// The executor that runs calls.
    pub executor: Arc<Executor>,
    /// Decides what may run; see [`Gateway::set_policy`].
    pub policy: Arc<Policy>,
    /// Answers where policy asks and the gateway does not ask the client.
    pub approver: Arc<dyn Approver>,
    /// Whether the gateway asks clients.
    pub elicitation: Elicitation,
    /// Answers what sources ask where a call's client cannot; `None`: nobody does.
    pub fallback_client: Option<Arc<dyn FallbackClient>>,
    /// The roots that sources get outside of calls. The stdio client is asked for its own roots, which are put here. Give
    /// each stdio connection its own gateway where there are several.
    pub roots: Option<Arc<Roots>>,
    /// The workspace root of every session.
    pub root: PathBuf,
    /// The server's name and version.
    pub info: ServerInfo,
    /// Instructions that clients give to their model about the whole catalogue.
    pub instructions: Option<String>,
    /// How tools are exposed where the client does not choose: over stdio, and at addresses without `?expose`.
    pub expose: Expose,
    /// Parts of the catalogue with their own addresses; see [`Gateway::set_views`]. A view and a provider may not share a
    /// name; see [`Gateway::clash`].
    pub views: Vec<ViewConfig>,
    /// Tools that [`Expose::Search`] lists as well, as globs on ids and wire names.
    pub pinned: Vec<String>,
    /// Finds tools for [`Expose::Search`].
    pub finder: ToolFinder,
    /// The longest name and the form of what is listed, and how long running calls may continue at a shutdown.
    pub server: ServerConfig,
    /// How often a silent call sends progress to a client that asked for progress.
    pub heartbeat: Duration,
    /// Largest message accepted from a client, in bytes.
    pub max_message: usize,
    /// Calls that run at once; further calls are refused.
    pub max_calls: usize,
}

impl GatewayOptions {
    /// The given parts with default bounds. All tools are listed, and the search is lexical.
    #[must_use]
    pub fn new(
        catalogue: Arc<Catalogue>,
        executor: Arc<Executor>,
        policy: Arc<Policy>,
        approver: Arc<dyn Approver>,
        root: PathBuf,
    ) -> Self {
        Self {
            catalogue,
            executor,
            policy,
            approver,
            elicitation: Elicitation::WherePossible { expiry: EXPIRY },
            fallback_client: None,
            roots: None,
            root,
            info: ServerInfo {
                name: "toolwright".into(),
                title: Some("Toolwright".into()),
                version: env!("CARGO_PKG_VERSION").into(),
            },
            instructions: None,
            expose: Expose::Direct,
            views: Vec::new(),
            pinned: Vec::new(),
            finder: ToolFinder::default(),
            server: ServerConfig::default(),
            heartbeat: DEFAULT_HEARTBEAT,
            max_message: DEFAULT_MAX_MESSAGE,
            max_calls: DEFAULT_MAX_CALLS,
        }
    }
}

fn shared(views: &[ViewConfig]) -> Arc<[Arc<ViewConfig>]> {
    views.iter().cloned().map(Arc::new).collect()
}

/// The gateway. All transports share it by `Arc`.
pub struct Gateway {
    pub(crate) options: GatewayOptions,
    pub(crate) lists: ToolLists,
    pub(crate) source_methods: SourceMethods,
    pub(crate) log_levels: LogLevels,
    pub(crate) merged: MergedLists,
    pub(crate) resource_links: ResourceLinks,
    pub(crate) broken_output_schemas: BrokenOutputSchemas,
    pub(crate) subscribers: Subscribers,
    pub(crate) paused_calls: Arc<PausedCalls>,
    pub(crate) tasks: Arc<Tasks>,
    /// `options.info` as JSON, for results.
    pub(crate) server_info: Value,
    pub(crate) running: TaskTracker,
    pub(crate) call_permits: Arc<Semaphore>,
    /// Until when requests wait for first lists.
    pub(crate) first_lists: Instant,
    policies: RwLock<Policies>,
    /// Counts changes of views, which may shut a principal out.
    views_changed: watch::Sender<u64>,
}

/// What may be replaced while the gateway serves: the views, the policy, and that policy under each profile of a view.
struct Policies {
    views: Arc<[Arc<ViewConfig>]>,
    base: Arc<Policy>,
    by_profile: Vec<(Profile, Arc<Policy>)>,
}

impl Policies {
    fn of(base: Arc<Policy>, views: Arc<[Arc<ViewConfig>]>) -> Self {
        let mut by_profile: Vec<(Profile, Arc<Policy>)> = Vec::new();
        for profile in views.iter().filter_map(|view| view.profile) {
            if !by_profile.iter().any(|(other, _)| *other == profile) {
                by_profile.push((profile, Arc::new(Policy { profile, ..Policy::clone(&base) })));
            }
        }
        Self { views, base, by_profile }
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

impl Gateway {
    /// Makes a gateway. From now on its catalogue keeps lists of prompts and resources too, for which it needs a tokio runtime.
    #[must_use]
    pub fn new(options: GatewayOptions) -> Arc<Self> {
        options.catalogue.keep_lists();
        let server_info = serde_json::to_value(&options.info).unwrap_or_default();
        Arc::new(Self {
            lists: ToolLists::default(),
            source_methods: SourceMethods::default(),
            log_levels: LogLevels::default(),
            merged: MergedLists::default(),
            resource_links: ResourceLinks::default(),
            broken_output_schemas: BrokenOutputSchemas::default(),
            subscribers: Subscribers::default(),
            paused_calls: PausedCalls::new(server_info.clone()),
            tasks: Arc::default(),
            server_info,
            running: TaskTracker::new(),
            call_permits: Arc::new(Semaphore::new(options.max_calls)),
            first_lists: Instant::now() + FIRST_LISTS,
            policies: RwLock::new(Policies::of(Arc::clone(&options.policy), shared(&options.views))),
            views_changed: watch::Sender::new(0),
            options,
        })
    }

    /// The policy for the next call.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policies.read().unwrap_or_else(PoisonError::into_inner).base)
    }

    /// Replaces the policy. Running calls keep their policy.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        *policies = Policies::of(policy, Arc::clone(&policies.views));
    }

    /// Replaces the views, and returns whether they differ. Clients are notified where their lists change. Streams of
    /// principals that may no longer use a view end. Running calls continue. Sessions continue and keep how tools are
    /// exposed to them ([`ViewConfig::expose`]); requests and subscriptions without a session use the new setting.
    pub fn set_views(&self, views: &[ViewConfig]) -> bool {
        {
            let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
            if policies.views.iter().map(|view| &**view).eq(views) {
                return false;
            }
            *policies = Policies::of(Arc::clone(&policies.base), shared(views));
        }
        self.lists.forget();
        self.views_changed.send_modify(|count| *count += 1);
        self.options.catalogue.notify_watchers();
        true
    }

    /// The views in force.
    pub(crate) fn views(&self) -> Arc<[Arc<ViewConfig>]> {
        Arc::clone(&self.policies.read().unwrap_or_else(PoisonError::into_inner).views)
    }

    /// Waits until this principal may no longer use this part of the catalogue.
    pub(crate) async fn shut_out(&self, scope: &Scope, principal: &Principal) {
        let Scope::View(name) = scope else { return std::future::pending().await };
        let mut changes = self.views_changed.subscribe();
        while self.view(name).is_some_and(|view| principal.may_use(&view.roles)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// The policy of calls in a view.
    pub(crate) fn policy_at(&self, view: &View) -> Arc<Policy> {
        let profile = self.profile_at(view);
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        let own = profile.and_then(|profile| policies.by_profile.iter().find(|(other, _)| *other == profile));
        Arc::clone(own.map_or(&policies.base, |(_, policy)| policy))
    }

    /// The profile of a view that has one of its own.
    pub(crate) fn profile_at(&self, view: &View) -> Option<Profile> {
        self.view_at(&view.scope).and_then(|view| view.profile)
    }

    /// How tools are exposed at this part of the catalogue where the client does not choose.
    pub(crate) fn usual_expose(&self, scope: &Scope) -> Expose {
        self.view_at(scope).and_then(|view| view.expose).unwrap_or(self.options.expose)
    }

    /// The form in which input schemas of this part of the catalogue are listed.
    pub(crate) fn listed_schemas(&self, scope: &Scope) -> ListedSchemas {
        self.view_at(scope).and_then(|view| view.schemas).unwrap_or(self.options.server.schemas)
    }

    fn view_at(&self, scope: &Scope) -> Option<Arc<ViewConfig>> {
        match scope {
            Scope::View(name) => self.view(name),
            Scope::Whole | Scope::Provider(_) => None,
        }
    }

    /// Whether requests wait for the first list of a source of this part of the catalogue.
    pub(crate) fn is_awaiting_lists(&self, scope: &Scope) -> bool {
        let unlisted = self.options.catalogue.unlisted();
        self.is_awaiting_first_lists() && unlisted.iter().any(|provider| scope.may_have(&**provider))
    }

    /// Whether requests still wait for first lists at all.
    pub(crate) fn is_awaiting_first_lists(&self) -> bool {
        Instant::now() < self.first_lists
    }

    /// Waits for first lists, until [`FIRST_LISTS`] after the start of the gateway.
    pub(crate) async fn await_first_lists(&self, scope: &Scope) {
        let listed = self.options.catalogue.listed(|provider| scope.may_have(provider));
        if tokio::time::timeout_at(self.first_lists, listed).await.is_err() {
            tracing::debug!("a list goes out before every server has said what it has");
        }
    }

    /// The configured view of this name.
    pub(crate) fn view(&self, name: &str) -> Option<Arc<ViewConfig>> {
        self.views().iter().find(|view| view.name == name).cloned()
    }

    /// The name of a view that is also the name of a provider, if there is one. Both would be served at `/mcp/{name}`.
    #[must_use]
    pub fn clash(&self) -> Option<String> {
        let sources = self.options.catalogue.sources();
        let views = self.views();
        let clashing = views.iter().find(|view| sources.iter().any(|provider| provider.name() == view.name));
        clashing.map(|view| view.name.clone())
    }

    /// Shuts down: refuses new calls, fails queued ones, and lets running calls, and jobs that no other process may
    /// repeat, continue for the grace period. Then repeatable calls become jobs for the next process, the executor cancels
    /// the others, and their answers get a short time to go out. Returns at once when nothing runs. May be called more
    /// than once.
    pub async fn drain(&self) {
        self.running.close();
        let executor = &self.options.executor;
        executor.close();
        let jobs = executor.jobs();
        let all_ended = async {
            self.running.wait().await;
            // Only then: a call may have become one of them.
            if let Some(jobs) = jobs {
                jobs.none_at_stake().await;
            }
        };
        if tokio::time::timeout(self.options.server.shutdown_grace, all_ended).await.is_ok() {
            return;
        }
        if let Some(jobs) = jobs {
            let handed_over = executor.hand_over(HAND_OVER).await;
            if handed_over > 0 {
                tracing::info!("{handed_over} running calls are left as jobs to the next process");
            }
            // A call that became a job is told to stop as that.
            jobs.shut_down(STOP_GRACE).await;
        }
        executor.shut_down(STOP_GRACE).await;
        if tokio::time::timeout(STOP_LIMIT, self.running.wait()).await.is_err() {
            tracing::warn!("{} calls did not stop when cancelled", self.running.len());
        }
    }

    /// Whether the gateway is shutting down and refuses new calls.
    pub(crate) fn is_draining(&self) -> bool {
        self.running.is_closed()
    }

    pub(crate) fn session(&self, id: impl Into<Arc<str>>, principal: Principal) -> Arc<Session> {
        Arc::new(Session { id: SessionId::new(id), principal, root: self.options.root.clone(), agent: None })
    }
}
