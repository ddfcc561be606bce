//! Serves the tools of a program to MCP clients, over standard streams or HTTP.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::task::JoinHandle;
use toolwright_agent::tools::{NAMESPACE, batch_provider};
use toolwright_core::approval::{AnswerSource, Approver, NoApprover};
use toolwright_core::cancel::CancelCause;
use toolwright_core::inbox::{FormQuestion, Question};
use toolwright_core::{Cancel, Policy, Profile};
use toolwright_gateway::{
    ApiStores, Elicitation, Expose, Gateway, GatewayOptions, HttpOptions, Token, ViewConfig, serve_http, serve_stdio,
};
use toolwright_net::{AddressPolicy, Bounds, HttpClient, HttpOptions as ClientOptions, HttpRequest};
use toolwright_sandbox::peer_process;
use toolwright_search::ToolFinder;
use url::Url;

use crate::app::{
    DrivenGroups, Facades, GatewayFallback, Operations, ReloadChanges, RunningTriggers, Toolwright, watch,
};
use crate::config::Config;
use crate::error::Error;
use crate::private_file::{api_token, api_token_file};

/// Time limit of a server's answer with a link.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of that answer.
const MAX_LINK: usize = 16 << 10;

/// The remedy if policy asks and nobody answers.
const REMEDY: &str = "this server asks nobody: let it ask (`--ask`, or `ask` of `Serve`), or allow the tool by a rule under policy.rules";

/// The recipient of policy's questions about a client's calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ask {
    /// The client's own user, if the client can ask; else as [`Ask::Inbox`].
    #[default]
    Client,
    /// The approver of the builder; without one the inbox, which is answered by `toolwright approvals`, the HTTP API or
    /// [`Toolwright::inbox`]. The call waits as a job.
    Inbox,
    /// Nobody: such calls are denied.
    Nobody,
}

type OnQuestion = Arc<dyn Fn(&Question) + Send + Sync>;
type OnForm = Arc<dyn Fn(&FormQuestion) + Send + Sync>;
type OnReload = Arc<dyn Fn(&Result<ReloadChanges, Error>, ViewsChanged) + Send + Sync>;

/// Whether a reload changed what some views show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ViewsChanged(pub bool);

impl Toolwright {
    /// Configures how the tools are served to MCP clients. [`Serve::http`] or [`Serve::stdio`] starts it. Addresses,
    /// tokens, views and limits come from the sections `server` and `views` of the settings.
    pub fn serve(self: &Arc<Self>) -> Serve {
        Serve {
            app: Arc::clone(self),
            profile: None,
            ask: Ask::default(),
            expose: Expose::Direct,
            token: None,
            on_question: Arc::new(|_| ()),
            on_form: Arc::new(|_| ()),
            on_reload: None,
            shutdown: Cancel::new(),
        }
    }
}

/// How tools are served.
#[must_use = "nothing is served before `http` or `stdio`"]
pub struct Serve {
    app: Arc<Toolwright>,
    profile: Option<Profile>,
    ask: Ask,
    expose: Expose,
    token: Option<String>,
    on_question: OnQuestion,
    on_form: OnForm,
    on_reload: Option<OnReload>,
    shutdown: Cancel,
}

impl std::fmt::Debug for Serve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Serve").field("profile", &self.profile).field("ask", &self.ask).finish_non_exhaustive()
    }
}

/// The transport of clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Standard input and output: one client, which started this program.
    Stdio,
    /// HTTP: any client that can reach the address.
    Http,
}

impl Transport {
    /// Returns the default profile. Over HTTP any program on this machine may be the client; the client at standard
    /// input was started by its user, and has its own approval screen.
    fn default_profile(self) -> Profile {
        match self {
            Self::Stdio => Profile::Client,
            Self::Http => Profile::Ask,
        }
    }
}

impl Serve {
    /// Sets the profile that decides if no rule matches. Default: the profile of the settings, else [`Profile::Ask`]
    /// over HTTP, where any program on this machine may be the client, and [`Profile::Client`] over standard streams.
    pub fn policy(mut self, profile: Profile) -> Self {
        self.profile = Some(profile);
        self
    }

    /// Returns the profile of clients' calls over this transport, except in views with their own.
    #[must_use]
    pub fn profile(&self, transport: Transport) -> Profile {
        Self::policy_of(self.profile, transport, &self.app.config()).profile
    }

    /// Serves until `shutdown` fires at the latest.
    pub fn until(mut self, shutdown: Cancel) -> Self {
        self.shutdown = shutdown;
        self
    }

    /// Sets who is asked if policy asks.
    pub fn ask(mut self, ask: Ask) -> Self {
        self.ask = ask;
        self
    }

    /// Sets how tools are exposed to clients that do not choose: all listed, or found by search.
    pub fn expose(mut self, expose: Expose) -> Self {
        self.expose = expose;
        self
    }

    /// Sets the bearer token that HTTP clients must send. Default: `server.token` of the settings. Addresses other than
    /// loopback need one.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Calls `see` with each question that is put into the inbox.
    pub fn on_question(mut self, see: impl Fn(&Question) + Send + Sync + 'static) -> Self {
        self.on_question = Arc::new(see);
        self
    }

    /// Calls `see` with each form of a server that is put into the inbox.
    pub fn on_form(mut self, see: impl Fn(&FormQuestion) + Send + Sync + 'static) -> Self {
        self.on_form = Arc::new(see);
        self
    }

    /// Reloads the configuration when its files change while it serves, and calls `see` after each reload.
    pub fn on_reload(
        mut self,
        see: impl Fn(&Result<ReloadChanges, Error>, ViewsChanged) + Send + Sync + 'static,
    ) -> Self {
        self.on_reload = Some(Arc::new(see));
        self
    }

    /// Listens at this address, `127.0.0.1:0` for any free port: MCP at `/mcp`, one source or view at `/mcp/{name}`,
    /// the HTTP API at `/api`. It serves until [`Serving::shut_down`], or until the [`Serving`] is dropped.
    ///
    /// # Errors
    /// [`Error::Usage`] for an invalid address, and for views with the name of a source; [`Error::Http`] for an address
    /// that is in use, or that is not loopback and has no token; [`Error::Io`] for the token of the API.
    pub async fn http(self, address: &str) -> Result<Serving, Error> {
        let address: SocketAddr = address.parse().map_err(|error| {
            Error::Usage(format!("`{address}` is not an address and port: {error}; write it like 127.0.0.1:7117"))
        })?;
        let (app, config) = (Arc::clone(&self.app), self.app.config());
        let gateway = self.prepare(Transport::Http).await?;
        let mut options = self.http_options(address, &config);
        let needs_token = options.token.is_some() || !options.server.tokens.is_empty();
        let mut token_file = None;
        if options.token.is_none() {
            let token = api_token(&config.state_dir).map_err(Error::io("the token of the HTTP API"))?;
            app.redactor().add([token.clone()]);
            options.api_token = Token::new(token);
            token_file = Some(api_token_file(&config.state_dir));
        }
        options.look_up_peer = peer_process;
        options.webhooks = Some(app.webhooks());
        options.agents = Some(Arc::new(Facades(Arc::clone(&app))));
        options.metrics = Some(app.metrics_source());
        options.operator = Some(Arc::new(Operations {
            app: Arc::clone(&app),
            profile: self.profile,
            usual: Transport::Http.default_profile(),
        }));
        options.events = Some(Arc::clone(app.events()));
        options.stores = ApiStores { inbox: app.inbox(), approvals: app.approvals() };
        // Dropping this server ends only its own work.
        let shutdown = self.shutdown.child();
        let server = serve_http(Arc::clone(&gateway), options, shutdown.clone()).await?;
        let task = Some(tokio::spawn(server.serving));
        Ok(Serving {
            addr: server.addr,
            console: server.console,
            needs_token,
            token_file,
            shutdown,
            task,
            _following: self.follow(&gateway, Transport::Http),
            _triggers: app.run_triggers().await,
        })
    }

    /// Serves the client at standard input and output, until it closes them. The program must write nothing else to
    /// standard output. `ready` is called once, just before the first message is read.
    ///
    /// # Errors
    /// [`Error::Usage`] for views with the name of a source; [`Error::Io`] if the streams fail.
    pub async fn stdio(self, ready: impl FnOnce()) -> Result<(), Error> {
        self.app.roots().expect_client();
        let gateway = self.prepare(Transport::Stdio).await?;
        let _following = self.follow(&gateway, Transport::Stdio);
        let _triggers = self.app.run_triggers().await;
        ready();
        // On a worker of the runtime, because a task on the main thread must be woken across threads for each message.
        let served = tokio::spawn(serve_stdio(gateway, self.shutdown.clone())).await;
        served
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(Error::io("the client's streams failed"))
    }

    /// Returns the policy of clients' calls by these settings.
    fn policy_of(profile: Option<Profile>, transport: Transport, config: &Config) -> Policy {
        config.policy(profile, transport.default_profile())
    }

    async fn prepare(&self, transport: Transport) -> Result<Arc<Gateway>, Error> {
        let app = &self.app;
        let config = app.config();
        if config.sections.server.batch && !app.catalogue().sources().iter().any(|source| source.name() == NAMESPACE) {
            app.catalogue().add_provider(batch_provider()?).await?;
            app.catalogue().refresh(NAMESPACE).await;
        }
        let gateway = self.gateway(transport, &config);
        if let Some(name) = gateway.name_conflict() {
            let message =
                format!("views.{name}: a provider has this name, and both are at /mcp/{name}; rename the view");
            return Err(Error::Usage(message));
        }
        if self.ask != Ask::Nobody {
            // Under any profile a question may have to wait as a job, and many clients list tools only once.
            app.catalogue().offer_jobs().await;
        }
        app.recover_jobs();
        app.follow_pins();
        Ok(gateway)
    }

    /// Returns the approver for questions that the client is not asked.
    fn approver(&self, answers: AnswerSource) -> Arc<dyn Approver> {
        match self.ask {
            Ask::Client | Ask::Inbox => self.app.own_approver().unwrap_or_else(|| {
                let on_question = Arc::clone(&self.on_question);
                Arc::new(self.app.ask_inbox(answers, move |question| on_question(question)))
            }),
            Ask::Nobody => Arc::new(NoApprover { remedy: REMEDY.into() }),
        }
    }

    fn gateway(&self, transport: Transport, config: &Config) -> Arc<Gateway> {
        let app = &self.app;
        // A source waits for the model's answer within its call, which cannot continue as a job.
        let mut fallback_client =
            GatewayFallback::new(Arc::clone(app), self.profile, self.approver(AnswerSource::Here));
        if self.ask == Ask::Inbox {
            let on_form = Arc::clone(&self.on_form);
            fallback_client = fallback_client.with_forms(app.ask_forms(move |form| on_form(form)));
        }
        let selection = &config.sections.selection;
        let parts = GatewayOptions::new(
            Arc::clone(app.catalogue()),
            Arc::clone(app.executor()),
            Arc::new(Self::policy_of(self.profile, transport, config)),
            self.approver(AnswerSource::Elsewhere),
            config.root.clone(),
        );
        Gateway::new(GatewayOptions {
            elicitation: match self.ask {
                Ask::Client => parts.elicitation,
                Ask::Inbox | Ask::Nobody => Elicitation::Never,
            },
            fallback_client: Some(Arc::new(fallback_client)),
            roots: (transport == Transport::Stdio).then(|| Arc::clone(app.roots())),
            expose: self.expose,
            views: views(config),
            pinned: selection.pinned.clone(),
            server: config.sections.server.clone(),
            finder: ToolFinder::new(Arc::clone(app.selector()), selection.pick_options()),
            ..parts
        })
    }

    fn http_options(&self, address: SocketAddr, config: &Config) -> HttpOptions {
        let section = &config.sections.server;
        let token = self.token.clone().or_else(|| section.token.as_ref().map(|token| token.expose().to_owned()));
        let mut options = HttpOptions::new(address);
        options.token = token.and_then(Token::new);
        options.server = section.clone();
        options
    }

    /// Watches the configuration, if its changes are followed, and drives members of groups, if there are groups.
    fn follow(&self, gateway: &Arc<Gateway>, transport: Transport) -> BackgroundTasks {
        let groups = self.app.config().sections.defaults.groups.then(|| self.app.drive_groups());
        let Some(on_reload) = self.on_reload.clone() else {
            return BackgroundTasks { watching: None, _groups: groups };
        };
        let (app, gateway, profile) = (Arc::clone(&self.app), Arc::clone(gateway), self.profile);
        let watching = Some(tokio::spawn(async move {
            let watched = Arc::clone(&app);
            let watching = watch(watched, move |reloaded| {
                let mut changed = ViewsChanged(false);
                if reloaded.is_ok() {
                    let config = app.config();
                    gateway.set_policy(Arc::new(Self::policy_of(profile, transport, &config)));
                    changed = ViewsChanged(gateway.set_views(&views(&config)));
                }
                on_reload(&reloaded, changed);
            });
            if let Err(error) = watching.await {
                tracing::warn!("the configuration is not watched for changes: {error}");
            }
        }));
        BackgroundTasks { watching, _groups: groups }
    }
}

/// The tasks that watch the configuration and drive groups; they end when dropped.
#[derive(Debug)]
struct BackgroundTasks {
    watching: Option<JoinHandle<()>>,
    _groups: Option<DrivenGroups>,
}

impl Drop for BackgroundTasks {
    fn drop(&mut self) {
        if let Some(task) = self.watching.take() {
            task.abort();
        }
    }
}

/// A listening gateway. Dropping it stops it without waiting for running calls.
#[derive(Debug)]
pub struct Serving {
    addr: SocketAddr,
    console: String,
    needs_token: bool,
    token_file: Option<PathBuf>,
    shutdown: Cancel,
    task: Option<JoinHandle<std::io::Result<()>>>,
    _following: BackgroundTasks,
    _triggers: RunningTriggers,
}

impl Serving {
    /// Returns the address, with the real port.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the address for MCP clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }

    /// Returns the address that opens the web console once.
    #[must_use]
    pub fn console(&self) -> String {
        format!("http://{}{}", self.addr, self.console)
    }

    /// Returns whether clients must send a token.
    #[must_use]
    pub fn needs_token(&self) -> bool {
        self.needs_token
    }

    /// Returns the file with the token of the HTTP API, if that token is used.
    #[must_use]
    pub fn token_file(&self) -> Option<&Path> {
        self.token_file.as_deref()
    }

    /// Waits until it is shut down.
    ///
    /// # Errors
    /// [`Error::Io`] if the server stops by itself.
    pub async fn wait(mut self) -> Result<(), Error> {
        let Some(task) = &mut self.task else { return Ok(()) };
        let served = task.await;
        self.task = None;
        served.unwrap_or_else(|error| Err(std::io::Error::other(error))).map_err(Error::io("the server stopped"))
    }

    /// Refuses new calls, waits for running ones, and stops.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub async fn shut_down(self) -> Result<(), Error> {
        self.shutdown.cancel(CancelCause::Shutdown);
        self.wait().await
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.shutdown.cancel(CancelCause::Shutdown);
        if let Some(task) = self.task.take() {
            task.abort();
        }
    }
}

/// Asks the server at this address for an address that opens its web console once. `token` is the server's; the default
/// is that of the configuration, else that in the state directory.
///
/// # Errors
/// [`Error::Usage`] if no server answers, or it refuses the token; [`Error::Io`] for the token of the state directory.
pub async fn console_link(config: &Config, address: SocketAddr, token: Option<&str>) -> Result<String, Error> {
    let configured = token.or(config.sections.server.token.as_ref().map(|token| token.expose()));
    let token = match configured {
        Some(token) => token.to_owned(),
        None => api_token(&config.state_dir).map_err(Error::io("the token of the HTTP API"))?,
    };
    let base = format!("http://{address}");
    let wrong = |why: String| Error::Usage(format!("the server at {base} gives no console: {why}"));
    let url = Url::parse(&format!("{base}/api/console")).map_err(|error| wrong(error.to_string()))?;
    let mut request = HttpRequest::get(url);
    request.method = "POST".parse().unwrap_or_default();
    let header = format!("Bearer {token}").parse().map_err(|_| wrong("its token cannot be sent".into()))?;
    request.headers.insert("authorization", header);
    let client = HttpClient::new(AddressPolicy::open(), ClientOptions::default());
    let cancel = Cancel::new();
    let bounds = Bounds::new(&cancel, Some(std::time::Instant::now() + ASK_LIMIT));
    let response = client.send(request, bounds).await.map_err(|error| wrong(format!("{error}; is it running?")))?;
    let status = response.status();
    let body = response.read(MAX_LINK, bounds).await.map_err(|error| wrong(error.to_string()))?;
    let answer: Value = serde_json::from_slice(&body.bytes).unwrap_or_default();
    match answer["path"].as_str() {
        Some(path) => Ok(format!("{base}{path}")),
        None => Err(wrong(answer["error"]["message"].as_str().map_or_else(|| status.to_string(), ToOwned::to_owned))),
    }
}

/// Returns the views of the settings.
fn views(config: &Config) -> Vec<ViewConfig> {
    config.sections.views.values().cloned().collect()
}
