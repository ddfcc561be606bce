//! A connection to one server, whose tools are called through the executor.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use toolwright_core::approval::NoApprover;
use toolwright_core::catalogue::{Listing, Provider, Snapshot};
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_core::{
    CallId, Outcome, Policy, Principal, Profile, RawArguments, Services, Session as CoreSession, SessionId, ToolCall,
};
use toolwright_mcp::client::{McpOptions, McpProvider, McpServerConfig, McpServerOptions, McpTransport};
use toolwright_net::HttpOptions;
use toolwright_oauth::{CredentialStore, OAuth, OAuthOptions};
use toolwright_runtime::{EventHub, Executor, ExecutorOptions, RunContext, SqliteStore, SystemClock};
use url::Url;

use super::person::{Browser, accepting_client};
use super::report;
use super::scenario::Scenario;

/// The time limit of one attempt to connect. Under load, a shorter one would take the server for an older one before
/// the suite itself gives up after thirty seconds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(90);
/// The name of the server.
const SERVER: &str = "suite";

/// A connection to the suite's server.
pub(crate) struct Session {
    provider: Arc<McpProvider>,
    executor: Arc<Executor>,
    run: RunContext,
    /// The run for calls of protocol methods that are not tools.
    methods: Option<RunContext>,
    _dir: tempfile::TempDir,
}

impl Session {
    /// Connects and lists the tools.
    pub(crate) async fn open(url: &str, scenario: &Scenario) -> Result<Self, Box<dyn Error>> {
        let dir = tempfile::tempdir()?;
        let store = SqliteStore::open(&dir.path().join("state"))?;
        let events = Arc::new(EventHub::default());
        let oauth = OAuth::new(OAuthOptions {
            server: SERVER.to_owned(),
            url: Url::parse(url)?,
            settings: scenario.oauth()?,
            store: CredentialStore::memory(),
            http: HttpOptions::default(),
            consent: Some(Arc::new(Browser)),
            secrets: None,
        });
        let transport = McpTransport::Http { url: url.to_owned(), headers: Default::default() };
        let config = McpServerConfig { connect_timeout: CONNECT_TIMEOUT, ..transport.into() };
        let options = McpServerOptions { authorizer: Some(Arc::new(oauth)), ..McpServerOptions::new(SERVER, config) };
        let deps =
            McpOptions { manifests: Arc::clone(&store) as _, events: Arc::clone(&events) as _, roots: Arc::default() };
        let provider = McpProvider::new(options, deps);
        let mut services = Services::none(Arc::new(SystemClock));
        services.events = events as _;
        let executor = Executor::new(ExecutorOptions::new(Arc::new(services), Arc::clone(&store) as _, store as _));
        let session = CoreSession {
            id: SessionId::new("suite"),
            principal: Principal::owner(),
            root: dir.path().into(),
            agent: None,
        };
        let session = Arc::new(session);
        let run = |snapshot: Snapshot| RunContext {
            client: Arc::new(accepting_client()),
            ..RunContext::new(
                Arc::clone(&session),
                Arc::new(snapshot),
                Arc::new(Policy::of(Profile::Trusted)),
                Arc::new(NoApprover { remedy: String::new() }),
            )
        };
        let tools = run(listed(Arc::clone(&provider) as _).await?);
        let methods = match provider.methods() {
            Some(methods) => Some(run(listed(methods).await?)),
            None => None,
        };
        Ok(Self { provider, executor, run: tools, methods, _dir: dir })
    }

    /// Returns the tools by the server's own names, with their schemas.
    pub(crate) fn tools(&self) -> Vec<(String, Value)> {
        let entries = self.run.snapshot.list().iter();
        let tool = |entry: &Arc<toolwright_core::catalogue::Entry>| {
            (entry.tool.raw_name().to_owned(), entry.definition().parameters.clone().unwrap_or_default())
        };
        entries.map(tool).collect()
    }

    /// Calls a tool.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Result<(), Box<dyn Error>> {
        let outcome = self.outcome(&self.run, tool, arguments).await?;
        match &outcome.error {
            Some(error) => Err(format!("{tool}: {error}").into()),
            None => Ok(()),
        }
    }

    /// Calls a method of the protocol and returns its result.
    pub(crate) async fn method(&self, method: &str, params: Value) -> Result<Value, Box<dyn Error>> {
        let run = self.methods.as_ref().ok_or("the provider has no methods")?;
        let outcome = self.outcome(run, method, params).await?;
        if let Some(error) = &outcome.error {
            return Err(format!("{method}: {error}").into());
        }
        Ok(outcome.extras.get(METHOD_RESULT).cloned().unwrap_or_default())
    }

    async fn outcome(&self, run: &RunContext, raw: &str, arguments: Value) -> Result<Outcome, Box<dyn Error>> {
        let entry = run.snapshot.list().iter().find(|entry| entry.tool.raw_name() == raw);
        let entry = entry.ok_or_else(|| format!("the server offers no {raw}"))?;
        let call = ToolCall::new(CallId::new(raw), entry.wire_name.clone(), RawArguments::Value(arguments));
        report(&format!("calling {raw}"));
        self.executor.run_calls(vec![call], run).await.pop().ok_or_else(|| "a call without an outcome".into())
    }

    /// Ends the connection.
    pub(crate) async fn close(&self) {
        self.provider.shut_down().await;
    }
}

async fn listed(provider: Arc<dyn Provider>) -> Result<Snapshot, Box<dyn Error>> {
    let tools = provider.list().await?;
    Ok(Snapshot::build(&[Listing { provider, tools, error: None, withheld: Vec::new() }]))
}
