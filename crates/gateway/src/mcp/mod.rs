//! The MCP server: one protocol core under two transports. This module defines the [`Gateway`] that all clients share:
//! the views and policies in force, and the drain at shutdown.
//!
//! A request comes in by a `transport`, whose `dispatch` answers it at once or starts work on it (`request`). Its
//! `response` ends it. `request::call` does the work of `tools/call`, `sources` that of all other methods of servers.
//! `client` represents the client that sent the request, so that a tool's source can ask it.
//!
//! The wire is written here rather than with `rmcp`'s server, because its typed results drop unknown fields and its
//! sessions end during long silent calls. A gateway must pass results through. Both generations are served side by
//! side, request by request: up to 2025-11-25 with `initialize` and sessions, and 2026-07-28 with a complete `_meta` in
//! each request.

pub(crate) mod client;
mod protocol;
pub(crate) mod request;
mod response;
mod session;
pub(crate) mod sources;
pub(crate) mod tools;
pub(crate) mod transport;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use toolwright_core::approval::{Approver, EXPIRY};
use toolwright_core::client::Roots;
use toolwright_core::policy::{Policy, Profile};
use toolwright_core::session::{Principal, Session, SessionId};
use toolwright_runtime::{Catalogue, Executor};
use toolwright_search::ToolFinder;

use self::client::fallback_client::FallbackClient;
use self::client::input_required::PausedCalls;
use self::request::call::BrokenOutputSchemas;
use self::request::tasks::Tasks;
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
/// How long after its start the gateway waits for the first lists of its sources. Many clients list tools once, right
/// after they connect. Notifications announce later lists.
const FIRST_LISTS: Duration = Duration::from_secs(2);
/// How often a silent call sends progress to a client that asked for it. Half of the shortest client timeout known: 30 s.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(15);
/// How long a shutdown may take to turn running calls into jobs.
const JOB_CONVERSION_TIMEOUT: Duration = Duration::from_secs(1);
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

/// Whether the gateway asks a client's own user by elicitation if policy requires approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elicitation {
    /// Asks the owner's clients that support it: 2025-06-18 or later, with forms, and up to 2025-11-25 with event
    /// streams. Other principals never approve their own calls.
    WherePossible {
        /// How long a question stays open.
        expiry: Duration,
    },
    /// Never asks a client.
    Never,
}

/// The parts and bounds of a gateway.
pub struct GatewayOptions {
    /// The catalogue that it serves.
    pub catalogue: Arc<Catalogue>,
    /// The executor that runs calls.
    pub executor: Arc<Executor>,
    /// Decides what may run; see [`Gateway::set_policy`].
    pub policy: Arc<Policy>,
    /// Answers if policy asks and the gateway does not ask the client.
    pub approver: Arc<dyn Approver>,
    /// Whether the gateway asks clients.
    pub elicitation: Elicitation,
    /// Answers requests of sources that a call's client cannot answer; `None`: they fail.
    pub fallback_client: Option<Arc<dyn FallbackClient>>,
    /// The roots that sources get outside of calls. The stdio client's own roots are stored here, so each of several
    /// stdio connections needs its own gateway.
    pub roots: Option<Arc<Roots>>,
    /// The workspace root of every session.
    pub root: PathBuf,
    /// The server's name and version.
    pub info: ServerInfo,
    /// Instructions about the whole catalogue that clients give to their model.
    pub instructions: Option<String>,
    /// How tools are exposed if the client does not choose: over stdio, and at addresses without `?expose`.
    pub expose: Expose,
    /// Parts of the catalogue with their own addresses; see [`Gateway::set_views`]. A view and a provider may not share a
    /// name; see [`Gateway::name_conflict`].
    pub views: Vec<ViewConfig>,
    /// Tools that [`Expose::Search`] also lists, as globs on ids and wire names.
    pub pinned: Vec<String>,
    /// Finds tools for [`Expose::Search`].
    pub finder: ToolFinder,
    /// The limits on listed names and schemas, and the grace period of running calls at a shutdown.
    pub server: ServerConfig,
    /// How often a silent call sends progress to a client that asked for progress.
    pub heartbeat: Duration,
    /// Largest message accepted from a client, in bytes.
    pub max_message: usize,
    /// Calls that run at once; further calls are refused.
    pub max_calls: usize,
}

impl GatewayOptions {
    /// Combines the given parts with default bounds. All tools are listed, and the search is lexical.
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
    pub(crate) log_levels: LogLevels,
    pub(crate) merged: MergedLists,
    pub(crate) resource_links: ResourceLinks,
    pub(crate) broken_output_schemas: BrokenOutputSchemas,
    pub(crate) subscribers: Subscribers,
    pub(crate) paused_calls: Arc<PausedCalls>,
    pub(crate) tasks: Arc<Tasks>,
    /// `options.info` as JSON, included in results.
    pub(crate) server_info: Value,
    pub(crate) running: TaskTracker,
    pub(crate) call_permits: Arc<Semaphore>,
    /// The time at which requests stop waiting for first lists.
    pub(crate) first_lists: Instant,
    policies: RwLock<Policies>,
    /// Counts changes of views, which may remove a principal's access.
    views_changed: watch::Sender<u64>,
}

/// The parts that may be replaced while the gateway serves: the views, the policy, and the policy under each view's
/// profile.
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
    /// Creates a gateway. Its catalogue then also keeps lists of prompts and resources, so a tokio runtime is required.
    #[must_use]
    pub fn new(options: GatewayOptions) -> Arc<Self> {
        options.catalogue.keep_lists();
        let server_info = serde_json::to_value(&options.info).unwrap_or_default();
        Arc::new(Self {
            lists: ToolLists::default(),
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

    /// Returns the policy for the next call.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policies.read().unwrap_or_else(PoisonError::into_inner).base)
    }

    /// Replaces the policy. Running calls keep the old one.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        *policies = Policies::of(policy, Arc::clone(&policies.views));
    }

    /// Replaces the views, and returns whether they differ. Clients whose lists change are notified. Streams of
    /// principals that may no longer use a view end. Running calls and sessions continue. Sessions keep their exposure
    /// ([`ViewConfig::expose`]); requests and subscriptions without a session use the new one.
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

    /// Returns the views in force.
    pub(crate) fn views(&self) -> Arc<[Arc<ViewConfig>]> {
        Arc::clone(&self.policies.read().unwrap_or_else(PoisonError::into_inner).views)
    }

    /// Waits until this principal may no longer use this part of the catalogue.
    pub(crate) async fn wait_until_revoked(&self, scope: &Scope, principal: &Principal) {
        let Scope::View(name) = scope else { return std::future::pending().await };
        let mut changes = self.views_changed.subscribe();
        while self.view(name).is_some_and(|view| principal.may_use(&view.roles)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the policy of calls in a view.
    pub(crate) fn policy_at(&self, view: &View) -> Arc<Policy> {
        let profile = self.profile_at(view);
        let policies = self.policies.read().unwrap_or_else(PoisonError::into_inner);
        let own = profile.and_then(|profile| policies.by_profile.iter().find(|(other, _)| *other == profile));
        Arc::clone(own.map_or(&policies.base, |(_, policy)| policy))
    }

    /// Returns the profile that a view sets, if any.
    pub(crate) fn profile_at(&self, view: &View) -> Option<Profile> {
        self.view_at(&view.scope).and_then(|view| view.profile)
    }

    /// Returns how tools are exposed at this part of the catalogue by default.
    pub(crate) fn usual_expose(&self, scope: &Scope) -> Expose {
        self.view_at(scope).and_then(|view| view.expose).unwrap_or(self.options.expose)
    }

    /// Returns the form in which this part of the catalogue lists input schemas.
    pub(crate) fn listed_schemas(&self, scope: &Scope) -> ListedSchemas {
        self.view_at(scope).and_then(|view| view.schemas).unwrap_or(self.options.server.schemas)
    }

    fn view_at(&self, scope: &Scope) -> Option<Arc<ViewConfig>> {
        match scope {
            Scope::View(name) => self.view(name),
            Scope::Whole | Scope::Provider(_) => None,
        }
    }

    /// Returns whether requests wait for the first list of a source in this part of the catalogue.
    pub(crate) fn is_awaiting_lists(&self, scope: &Scope) -> bool {
        let unlisted = self.options.catalogue.unlisted();
        self.is_awaiting_first_lists() && unlisted.iter().any(|provider| scope.may_have(&**provider))
    }

    /// Returns whether requests still wait for any first list.
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

    /// Returns the configured view of this name.
    pub(crate) fn view(&self, name: &str) -> Option<Arc<ViewConfig>> {
        self.views().iter().find(|view| view.name == name).cloned()
    }

    /// Returns a name that a view and a provider share, if any. Both would be served at `/mcp/{name}`.
    #[must_use]
    pub fn name_conflict(&self) -> Option<String> {
        let sources = self.options.catalogue.sources();
        let views = self.views();
        let clashing = views.iter().find(|view| sources.iter().any(|provider| provider.name() == view.name));
        clashing.map(|view| view.name.clone())
    }

    /// Shuts down: refuses new calls, fails queued ones, and gives the grace period to running calls and to jobs that
    /// cannot be repeated. Then repeatable calls become jobs for the next process, the executor cancels the others, and
    /// their answers get a short time to go out. Returns at once if nothing runs. May be called more than once.
    pub async fn drain(&self) {
        self.running.close();
        let executor = &self.options.executor;
        executor.close();
        let jobs = executor.jobs();
        let all_ended = async {
            self.running.wait().await;
            // After the wait, because a call may have become a job.
            if let Some(jobs) = jobs {
                jobs.wait_until_safe_to_exit().await;
            }
        };
        if tokio::time::timeout(self.options.server.shutdown_grace, all_ended).await.is_ok() {
            return;
        }
        if let Some(jobs) = jobs {
            let handed_over = executor.convert_calls_to_jobs(JOB_CONVERSION_TIMEOUT).await;
            if handed_over > 0 {
                tracing::info!("{handed_over} running calls are left as jobs to the next process");
            }
            // A call that became a job is stopped as a job.
            jobs.shut_down(STOP_GRACE).await;
        }
        executor.shut_down(STOP_GRACE).await;
        if tokio::time::timeout(STOP_LIMIT, self.running.wait()).await.is_err() {
            tracing::warn!("{} calls did not stop when cancelled", self.running.len());
        }
    }

    /// Returns whether the gateway is shutting down and refuses new calls.
    pub(crate) fn is_draining(&self) -> bool {
        self.running.is_closed()
    }

    pub(crate) fn session(&self, id: impl Into<Arc<str>>, principal: Principal) -> Arc<Session> {
        Arc::new(Session { id: SessionId::new(id), principal, root: self.options.root.clone(), agent: None })
    }
}
