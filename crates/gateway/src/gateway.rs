//! What all clients share: catalogue, executor, policy, and the count of running calls.

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
use toolwright_runtime::{Catalogue, Executor, ToolFinder};

use crate::mcp::call::BrokenOutputSchemas;
use crate::mcp::client::fallback_client::FallbackClient;
use crate::mcp::client::input_required::PausedCalls;
use crate::mcp::sources::capabilities::SourceMethods;
use crate::mcp::sources::lists::{MergedLists, ResourceLinks};
use crate::mcp::sources::log_levels::LogLevels;
use crate::mcp::sources::subscriptions::Subscribers;
use crate::mcp::tasks::Tasks;
use crate::mcp::tools::ToolLists;
use crate::view::{Expose, ListedSchemas, Scope, View, ViewOptions};

/// The longest tool name that is offered: some clients drop server and tool names over 60 together.
pub const DEFAULT_MAX_TOOL_NAME: usize = 48;
/// The largest message, in bytes.
const DEFAULT_MAX_MESSAGE: usize = 16 << 20;
/// Calls that run at once, over all clients; the executor's queues bound further.
const DEFAULT_MAX_CALLS: usize = 512;
/// How long running calls may go on after a shutdown was asked for.
const DEFAULT_GRACE: Duration = Duration::from_secs(2);
/// How long running calls get to end once they are cancelled.
const STOP_GRACE: Duration = Duration::from_secs(10);
/// How long after its start a gateway waits for sources of which nobody knows yet what they have: many a client asks for
/// its tools at once, and never again. Clients wait for the list with nothing on their screens: what is later is announced.
const FIRST_LISTS: Duration = Duration::from_secs(2);
/// How long a call may be silent towards a client that wants to hear of its progress. Half of the shortest limit known: 30 s.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(15);
/// How long calls may take to become jobs.
const HAND_OVER: Duration = Duration::from_secs(1);
/// How long calls that have ended may take to be answered.
pub(crate) const STOP_LIMIT: Duration = Duration::from_secs(3);

/// How the server names itself.
#[derive(Debug, Clone, Serialize)]
pub struct ServerInfo {
    /// For programs.
    pub name: String,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Its version.
    pub version: String,
}

/// Whether a client's own user is asked where policy asks, by elicitation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Elicitation {
    /// Those of the owner's clients that can be: they speak 2025-06-18 or later, have forms, and up to 2025-11-25 take
    /// events. Other principals do not approve their own calls.
    WherePossible {
        /// How long a question stands.
        expiry: Duration,
    },
    /// Nobody's.
    Never,
}

/// Parts and bounds of a gateway.
pub struct GatewayOptions {
    /// What is offered.
    pub catalogue: Arc<Catalogue>,
    /// What runs it.
    pub executor: Arc<Executor>,
    /// What may run; see [`Gateway::set_policy`].
    pub policy: Arc<Policy>,
    /// Answers where policy asks and the client is not asked.
    pub approver: Arc<dyn Approver>,
    /// Whether clients are asked.
    pub elicitation: Elicitation,
    /// Who answers what sources ask where a call's client cannot; `None`: nobody.
    pub fallback_client: Option<Arc<dyn FallbackClient>>,
    /// What sources are told of folders outside of calls: the client at standard input and output is asked for its own,
    /// and they are told those. Give each such connection a gateway of its own where there are several.
    pub roots: Option<Arc<Roots>>,
    /// Workspace root of every session.
    pub root: PathBuf,
    /// How the server names itself.
    pub info: ServerInfo,
    /// What clients tell their model about the whole catalogue.
    pub instructions: Option<String>,
    /// How tools are put before a client that does not say: over stdio, and at addresses without `expose`.
    pub expose: Expose,
    /// Parts of the catalogue with addresses of their own; see [`Gateway::set_views`]. A view and a provider may not
    /// have one name; see [`Gateway::clash`].
    pub views: Vec<ViewOptions>,
    /// Tools that [`Expose::Search`] lists too, as globs on ids and wire names.
    pub pinned: Vec<String>,
    /// Who finds tools for [`Expose::Search`].
    pub finder: ToolFinder,
    /// In which form input schemas are listed.
    pub schemas: ListedSchemas,
    /// How often a client that wants to hear of a call's progress is told that it goes on, where the tool says nothing
    /// itself.
    pub heartbeat: Duration,
    /// Longest tool name offered at `/mcp`, in characters.
    pub max_tool_name: usize,
    /// Largest message taken from a client, in bytes.
    pub max_message: usize,
    /// Calls that run at once; more are refused.
    pub max_calls: usize,
    /// How long running calls may go on once a shutdown was asked for.
    pub grace: Duration,
}

impl GatewayOptions {
    /// The given parts with the default bounds; all tools are listed, and searches go by words.
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
            schemas: ListedSchemas::default(),
            heartbeat: DEFAULT_HEARTBEAT,
            max_tool_name: DEFAULT_MAX_TOOL_NAME,
            max_message: DEFAULT_MAX_MESSAGE,
            max_calls: DEFAULT_MAX_CALLS,
            grace: DEFAULT_GRACE,
        }
    }
}

fn shared(views: &[ViewOptions]) -> Arc<[Arc<ViewOptions>]> {
    views.iter().cloned().map(Arc::new).collect()
}

/// The gateway. Shared by `Arc` between all transports.
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
    /// As results say it.
    pub(crate) server_info: Value,
    pub(crate) running: TaskTracker,
    pub(crate) call_permits: Arc<Semaphore>,
    /// Until when first lists are waited for.
    pub(crate) first_lists: Instant,
    policies: RwLock<Policies>,
    /// Counts changes of `policies` that may shut somebody out.
    views_changed: watch::Sender<u64>,
}

/// What may be replaced while it serves: the views, the policy, and what that comes to with the profiles of views.
struct Policies {
    views: Arc<[Arc<ViewOptions>]>,
    own: Arc<Policy>,
    with: Vec<(Profile, Arc<Policy>)>,
}

impl Policies {
    fn of(own: Arc<Policy>, views: Arc<[Arc<ViewOptions>]>) -> Self {
        let mut with: Vec<(Profile, Arc<Policy>)> = Vec::new();
        for profile in views.iter().filter_map(|view| view.profile) {
            if !with.iter().any(|(other, _)| *other == profile) {
                with.push((profile, Arc::new(Policy { profile, ..Policy::clone(&own) })));
            }
        }
        Self { views, own, with }
    }
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("running", &self.running.len()).finish_non_exhaustive()
    }
}

impl Gateway {
    /// A gateway. Its catalogue lists prompts and resources too from now on, so that it is made within a runtime.
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

    /// The policy that the next call is asked under.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.policies.read().unwrap_or_else(PoisonError::into_inner).own)
    }

    /// Replaces the policy. Running calls keep theirs.
    pub fn set_policy(&self, policy: Arc<Policy>) {
        let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
        *policies = Policies::of(policy, Arc::clone(&policies.views));
    }

    /// Replaces the views; whether they are others. Their clients are told where that changes their lists, and streams
    /// of those who may not use a view any more end. Running calls go on, and so do sessions, which keep how tools are
    /// put before their clients ([`ViewOptions::expose`]); requests and subscriptions without one have that in force.
    pub fn set_views(&self, views: &[ViewOptions]) -> bool {
        {
            let mut policies = self.policies.write().unwrap_or_else(PoisonError::into_inner);
            if policies.views.iter().map(|view| &**view).eq(views) {
                return false;
            }
            *policies = Policies::of(Arc::clone(&policies.own), shared(views));
        }
        self.lists.forget();
        self.views_changed.send_modify(|count| *count += 1);
        self.options.catalogue.notify_watchers();
        true
    }

    /// The views in force.
    pub(crate) fn views(&self) -> Arc<[Arc<ViewOptions>]> {
        Arc::clone(&self.policies.read().unwrap_or_else(PoisonError::into_inner).views)
    }

    /// Waits until this principal may not use this part of the catalogue any more.
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
        let with = profile.and_then(|profile| policies.with.iter().find(|(other, _)| *other == profile));
        Arc::clone(with.map_or(&policies.own, |(_, policy)| policy))
    }

    /// The profile of a view that has one of its own.
    pub(crate) fn profile_at(&self, view: &View) -> Option<Profile> {
        self.view_at(&view.scope).and_then(|view| view.profile)
    }

    /// How tools are put before a client of this part of the catalogue that does not say.
    pub(crate) fn usual_expose(&self, scope: &Scope) -> Expose {
        self.view_at(scope).and_then(|view| view.expose).unwrap_or(self.options.expose)
    }

    /// In which form input schemas of this part of the catalogue are listed.
    pub(crate) fn listed_schemas(&self, scope: &Scope) -> ListedSchemas {
        self.view_at(scope).and_then(|view| view.schemas).unwrap_or(self.options.schemas)
    }

    fn view_at(&self, scope: &Scope) -> Option<Arc<ViewOptions>> {
        match scope {
            Scope::View(name) => self.view(name),
            Scope::Whole | Scope::Provider(_) => None,
        }
    }

    /// Whether a source of this part of the catalogue is waited for, because it has only just been started and nobody knows
    /// yet what it has.
    pub(crate) fn awaits_lists(&self, scope: &Scope) -> bool {
        let unlisted = self.options.catalogue.unlisted();
        self.awaits_first_lists() && unlisted.iter().any(|provider| scope.may_have(&**provider))
    }

    /// Whether sources are waited for of which nobody knows yet what they have.
    pub(crate) fn awaits_first_lists(&self) -> bool {
        Instant::now() < self.first_lists
    }

    /// Waits for such sources, until two seconds after the start of the gateway at the most.
    pub(crate) async fn listed(&self, scope: &Scope) {
        let listed = self.options.catalogue.listed(|provider| scope.may_have(provider));
        if tokio::time::timeout_at(self.first_lists, listed).await.is_err() {
            tracing::debug!("a list goes out before every server has said what it has");
        }
    }

    /// The configured view of this name.
    pub(crate) fn view(&self, name: &str) -> Option<Arc<ViewOptions>> {
        self.views().iter().find(|view| view.name == name).cloned()
    }

    /// A view that has the name of a provider, if there is one: they share the addresses `/mcp/{name}`.
    #[must_use]
    pub fn clash(&self) -> Option<String> {
        let sources = self.options.catalogue.sources();
        let views = self.views();
        let clashing = views.iter().find(|view| sources.iter().any(|provider| provider.name() == view.name));
        clashing.map(|view| view.name.clone())
    }

    /// Refuses new calls, fails those that wait for their turn, lets running ones go on for the grace period, and jobs
    /// that no other process may run again. Then it makes jobs of the calls that one may, has the executor end the others
    /// and waits until they are answered, but not for ever. Returns at once when nothing of that runs; may be called
    /// more than once.
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
        if tokio::time::timeout(self.options.grace, all_ended).await.is_ok() {
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

    /// Whether new calls are refused because the server is shutting down.
    pub(crate) fn is_draining(&self) -> bool {
        self.running.is_closed()
    }

    pub(crate) fn session(&self, id: impl Into<Arc<str>>, principal: Principal) -> Arc<Session> {
        Arc::new(Session { id: SessionId::new(id), principal, root: self.options.root.clone(), agent: None })
    }
}
