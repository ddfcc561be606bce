//! A gateway with small real tools, and clients that write the wire by hand.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use toolwright_core::approval::NoApprover;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::{ListKind, Provider, ProviderKind, RegisteredTool};
use toolwright_core::content::ContentBlock;
use toolwright_core::context::{NoRedaction, Services, ToolContext};
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::event::{NoEvents, Partial};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::output::is_output_tool;
use toolwright_core::policy::{Policy, Profile};
use toolwright_core::session::PeerProcess;
use toolwright_core::store::NoStore;
use toolwright_core::tool::{StaticProvider, Tool};
use toolwright_core::tool_id::ToolId;
use toolwright_gateway::{Gateway, GatewayOptions, HttpOptions, Token, serve_http};
use toolwright_providers::builtin::{self, BuiltinOptions};
use toolwright_runtime::{Catalogue, Executor, ExecutorOptions, JobManager, OutputFiles, SqliteStore, SystemClock};
use toolwright_testkit::{FakeList, FakeProvider};

/// Longer than anything here takes; a test that waits so long has failed.
pub(crate) const LONG: Duration = Duration::from_secs(10);

/// The token of the API, where nothing else is set.
pub(crate) const API_TOKEN: &str = "api-s3cret";

/// A policy that asks about every call.
pub(crate) fn asks_always() -> Arc<Policy> {
    let rules = json!({"rules": [{"effect": "ask", "reason": "one never knows"}]});
    Arc::new(serde_json::from_value(rules).expect("a policy"))
}

/// How the waiting tools fared, as the tests see it.
#[derive(Default)]
pub(crate) struct ToolWatch {
    pub(crate) started: Notify,
    pub(crate) cancelled: Notify,
    pub(crate) cause: Mutex<Option<CancelCause>>,
    pub(crate) traceparent: Mutex<Option<String>>,
}

struct TestTool {
    name: &'static str,
    watch: Arc<ToolWatch>,
}

#[async_trait]
impl Tool for TestTool {
    fn definition(&self) -> ToolDefinition {
        let id = ToolId::parse(&format!("test:{}@1.0.0", self.name)).expect("id");
        let schema = json!({
            "type": "object",
            "properties": {"text": {"type": "string"}},
            "required": if self.name == "echo" { json!(["text"]) } else { json!([]) },
        });
        let mut definition = ToolDefinition::new(id, format!("The tool {}.", self.name), Some(schema));
        definition.effects = Effects::READ;
        if self.name == "limited" {
            definition.allowed_roles = vec!["ops".into()];
        }
        if self.name == "rows" {
            let rows = json!({"type": "array", "items": {"type": "string"}});
            definition.output_schema = Some(json!({"type": "object", "properties": {"rows": rows}}));
        }
        definition.title = Some(format!("T {}", self.name));
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        match self.name {
            "echo" => {
                *self.watch.traceparent.lock().expect("lock") = context.traceparent.as_deref().map(Into::into);
                let mut output = ToolOutput::text(arguments["text"].as_str().unwrap_or_default());
                let link = json!({"type": "resource_link", "uri": "a:b", "name": "n", "later": [1]});
                output.content.push(serde_json::from_value::<ContentBlock>(link).expect("block"));
                output.structured = Some(json!({"n": 1.5}));
                output.meta.insert("vendor/key".into(), json!({"deep": [1, 2]}));
                Ok(output)
            }
            "fail" => Ok(ToolOutput::failure("it did not work")),
            "progress" => {
                for step in 0..3 {
                    let message = (step == 1).then(|| "half".to_owned());
                    context.partials.send(Partial::Progress {
                        progress: f64::from(step),
                        total: Some(2.0),
                        message,
                        more: serde_json::Map::new(),
                    });
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Ok(ToolOutput::text("done"))
            }
            "big" => {
                let mut output = ToolOutput::text("x".repeat(100_000));
                output.content.push(ContentBlock::image("A".repeat(40_000), "image/png"));
                let blob = json!({"uri": "a:b", "blob": "A".repeat(40_000)});
                output.content.push(ContentBlock::Resource { resource: blob, extra: serde_json::Map::new() });
                Ok(output)
            }
            "rows" => {
                let n = arguments["text"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0usize);
                let rows = json!({"rows": vec!["0123456789"; n]});
                Ok(ToolOutput { structured: Some(rows.clone()), ..ToolOutput::text(rows.to_string()) })
            }
            "sleep" => {
                let ms = arguments["text"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0);
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(ToolOutput::text("slept"))
            }
            _ => {
                self.watch.started.notify_one();
                let cause = context.cancel.cancelled().await;
                *self.watch.cause.lock().expect("lock") = Some(cause);
                self.watch.cancelled.notify_one();
                Err(ToolError::canceled(cause))
            }
        }
    }
}

/// A foreign source whose tools come and go.
pub(crate) struct ForeignSource(Arc<FakeProvider>);

impl ForeignSource {
    fn new() -> Self {
        let source = FakeProvider::new("remote", ProviderKind::Mcp, Vec::new())
            .answering(|call| ToolOutput::text(format!("{} ran", call.raw_name)));
        Self(Arc::new(source.with(|source| source.instructions = Some("Be gentle."))))
    }

    pub(crate) fn set(&self, raw_names: &[&str]) {
        let ids = toolwright_core::catalogue::foreign_ids("remote", raw_names).expect("ids");
        let tool = |(id, raw): (ToolId, &&str)| {
            let schema = json!({"$schema": "x", "type": "object", "x-later": {"b": 1, "a": 2}});
            let mut definition = ToolDefinition::new(id, "Foreign.", Some(schema));
            let extra = json!({"annotations": {"readOnlyHint": true, "later": 1}, "_meta": {"k": [1]}, "icons": []});
            definition.meta.insert("mcp".into(), extra);
            RegisteredTool::foreign(definition, *raw)
        };
        self.0.lists(FakeList::Tools(ids.into_iter().zip(raw_names).map(tool).collect()));
        self.0.notify_change();
    }
}

/// A gateway with its parts.
pub(crate) struct Fixture {
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) foreign: ForeignSource,
    pub(crate) watch: Arc<ToolWatch>,
    pub(crate) shutdown: Cancel,
    _outputs: tempfile::TempDir,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        Self::with(|_| {}).await
    }

    /// With a server over HTTP, and a session at `/mcp`.
    pub(crate) async fn with_session() -> (Self, Http, String) {
        let fixture = Self::new().await;
        let http = fixture.http().await;
        let (session, _) = http.initialize("/mcp").await;
        (fixture, http, session)
    }

    pub(crate) async fn with(change: impl FnOnce(&mut GatewayOptions)) -> Self {
        Self::build(|_, _| {}, |options, ()| change(options)).await.0
    }

    /// Whose executor passes on so many bytes whole, and no more.
    pub(crate) async fn with_max_whole(max_whole: usize) -> Self {
        Self::build(|options, _| options.defaults.whole_result_max_bytes = max_whole, |_, ()| {}).await.0
    }

    /// With jobs, in a store of their own.
    pub(crate) async fn with_jobs(
        change: impl FnOnce(&mut GatewayOptions, &Arc<SqliteStore>),
    ) -> (Self, Arc<SqliteStore>) {
        let keep = |options: &mut ExecutorOptions, dir: &Path| {
            let store = SqliteStore::open(dir).expect("store");
            options.jobs = Some(JobManager::new(Arc::clone(&store), dir));
            (options.ledger, options.approvals) = (Arc::clone(&store) as _, Arc::clone(&store) as _);
            store
        };
        Self::build(keep, change).await
    }

    pub(crate) async fn build<S>(
        keep: impl FnOnce(&mut ExecutorOptions, &Path) -> S,
        change: impl FnOnce(&mut GatewayOptions, &S),
    ) -> (Self, S) {
        let watch = Arc::new(ToolWatch::default());
        let tools = ["echo", "fail", "progress", "big", "sleep", "wait", "limited", "rows"]
            .into_iter()
            .map(|name| Arc::new(TestTool { name, watch: Arc::clone(&watch) }) as Arc<dyn Tool>)
            .collect();
        let foreign = ForeignSource::new();
        foreign.set(&["Get.Thing", "other"]);
        let catalogue = Catalogue::new(Arc::new(NoEvents), Arc::new(NoRedaction), LONG);
        let own = StaticProvider::new("test", ProviderKind::Native, tools).expect("tools");
        catalogue.add_provider(Arc::new(own)).await.expect("added");
        catalogue.add_provider(Arc::clone(&foreign.0) as _).await.expect("added");
        let mut readers = builtin::tools(&BuiltinOptions::default());
        readers.retain(|tool| is_output_tool(&tool.definition().id));
        let readers = StaticProvider::new("builtin", ProviderKind::Builtin, readers).expect("tools");
        catalogue.add_provider(Arc::new(readers)).await.expect("added");
        catalogue.refresh_all(2).await;
        let outputs = tempfile::tempdir().expect("dir");
        let mut services = Services::none(Arc::new(SystemClock));
        services.outputs = OutputFiles::new(outputs.path().to_owned());
        let services = Arc::new(services);
        let mut parts = ExecutorOptions::new(services, Arc::new(NoStore), Arc::new(NoStore));
        let kept = keep(&mut parts, outputs.path());
        let executor = Executor::new(parts);
        catalogue.offer_extraction(executor.can_extract()).await;
        let approver = Arc::new(NoApprover { remedy: "nobody to ask".into() });
        let policy = Arc::new(Policy::of(Profile::Client));
        let mut options = GatewayOptions::new(Arc::clone(&catalogue), executor, policy, approver, std::env::temp_dir());
        options.instructions = Some("Use the tools.".into());
        options.server.shutdown_grace = Duration::from_millis(100);
        change(&mut options, &kept);
        let gateway = Gateway::new(options);
        (Self { gateway, catalogue, foreign, watch, shutdown: Cancel::new(), _outputs: outputs }, kept)
    }

    /// Adds a source, listed.
    pub(crate) async fn add(&self, source: Arc<dyn Provider>) {
        let name = source.name().to_owned();
        self.catalogue.add_provider(source).await.expect("added");
        self.catalogue.refresh(&name).await;
    }

    /// The same, once its prompts and resources are known too.
    pub(crate) async fn add_listed(&self, source: Arc<dyn Provider>) {
        self.add(source).await;
        let mut changes = self.catalogue.changes();
        let listed = async {
            while self
                .catalogue
                .lists()
                .iter()
                .any(|lists| ListKind::ALL.into_iter().any(|kind| lists.is_awaited(kind)))
            {
                changes.changed().await.expect("the catalogue is there");
            }
        };
        tokio::time::timeout(LONG, listed).await.expect("lists in time");
    }

    pub(crate) async fn http(&self) -> Http {
        self.http_with(|_| {}).await
    }

    pub(crate) async fn http_with(&self, change: impl FnOnce(&mut HttpOptions)) -> Http {
        let mut options = HttpOptions::new(SocketAddr::from(([127, 0, 0, 1], 0)));
        options.api_token = Token::new(API_TOKEN);
        options.look_up_peer = |_, _| PeerProcess::Owners;
        change(&mut options);
        let token = options.token.is_none().then_some(API_TOKEN);
        let server = serve_http(Arc::clone(&self.gateway), options, self.shutdown.clone()).await.expect("bound");
        // Another test may have installed it already.
        rustls::crypto::ring::default_provider().install_default().ok();
        let client = reqwest::Client::builder().no_proxy().build().expect("client");
        Http { addr: server.addr, serving: tokio::spawn(server.serving), client, token }
    }
}

/// A running HTTP server and a client to it.
pub(crate) struct Http {
    pub(crate) addr: SocketAddr,
    pub(crate) serving: JoinHandle<std::io::Result<()>>,
    pub(crate) client: reqwest::Client,
    /// Sent with requests to the API.
    pub(crate) token: Option<&'static str>,
}

/// What clients of everything are told first.
pub(crate) const WHOSE_TOOLS: &str = "Toolwright has the tools of several sources; a tool's name begins with its source, \
                                      as in source__tool. How many each has:";
/// What clients of everything are told of the foreign source's instructions.
pub(crate) const REMOTE_SAYS: &str = "remote says of its tools, which are called remote__... here:\n> Be gentle.";
pub(crate) const LEGACY: &str = "2025-11-25";
pub(crate) const MODERN: &str = "2026-07-28";

impl Http {
    /// Sends this token with each request.
    pub(crate) fn with_token(self, token: &str) -> Self {
        let mut headers = reqwest::header::HeaderMap::new();
        headers.insert("authorization", format!("Bearer {token}").parse().expect("a value"));
        let client = reqwest::Client::builder().no_proxy().default_headers(headers).build().expect("client");
        Self { client, token: None, ..self }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self
            .client
            .request(method, format!("http://{}{path}", self.addr))
            .header("accept", "application/json, text/event-stream")
            .timeout(LONG);
        match self.token.filter(|_| path.starts_with("/api")) {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> RequestBuilder {
        self.request(Method::POST, path).header("content-type", "application/json").body(body.to_string())
    }

    /// A legacy session: `(session id, result of initialize)`.
    pub(crate) async fn initialize(&self, path: &str) -> (String, Value) {
        self.initialize_with(path, json!({})).await
    }

    /// The same, of a client that offers this.
    pub(crate) async fn initialize_with(&self, path: &str, capabilities: Value) -> (String, Value) {
        let info = json!({"name": "t", "version": "1"});
        let params = json!({"protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": info});
        let response = self.post(path, &rpc(0, "initialize", params)).send().await.expect("response");
        assert_eq!(response.status(), 200);
        let session = response.headers()["mcp-session-id"].to_str().expect("text").to_owned();
        let body: Value = response.json().await.expect("json");
        let done = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
        assert_eq!(self.in_session(&session, path, &done).send().await.expect("response").status(), 202);
        (session, body["result"].clone())
    }

    pub(crate) fn in_session(&self, session: &str, path: &str, body: &Value) -> RequestBuilder {
        self.post(path, body).header("mcp-session-id", session).header("mcp-protocol-version", LEGACY)
    }

    /// A modern request with everything it must carry.
    pub(crate) fn modern(&self, path: &str, id: Value, method: &str, mut params: Value) -> RequestBuilder {
        let meta = &mut params["_meta"];
        meta["io.modelcontextprotocol/protocolVersion"] = json!(MODERN);
        if meta["io.modelcontextprotocol/clientCapabilities"].is_null() {
            meta["io.modelcontextprotocol/clientCapabilities"] = json!({});
        }
        let name = params["name"].as_str().or(params["uri"].as_str()).or(params["taskId"].as_str()).map(str::to_owned);
        let mut request = self
            .post(path, &json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}))
            .header("mcp-protocol-version", MODERN)
            .header("mcp-method", method);
        if let Some(name) = name {
            request = request.header("mcp-name", name);
        }
        request
    }
}

pub(crate) fn rpc(id: i64, method: &str, params: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
}

pub(crate) fn call(id: i64, name: &str, arguments: Value) -> Value {
    rpc(id, "tools/call", json!({"name": name, "arguments": arguments}))
}

/// The JSON body of a response with this status.
pub(crate) async fn body(request: RequestBuilder, status: u16) -> Value {
    let response = request.send().await.expect("response");
    let found = response.status();
    let text = response.text().await.expect("body");
    assert_eq!(found, status, "{text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// The messages of an event stream, as they come.
pub(crate) struct Events {
    bytes: futures_util::stream::BoxStream<'static, reqwest::Result<bytes::Bytes>>,
    text: String,
    /// The id of the last event that had one.
    pub(crate) last_id: Option<String>,
}

impl Events {
    pub(crate) async fn of(request: RequestBuilder) -> Self {
        let response: Response = request.send().await.expect("response");
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { bytes: response.bytes_stream().boxed(), text: String::new(), last_id: None }
    }

    /// The next message; `None` at the end. Comments are left out.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
                let message = field("data: ").map(|data| serde_json::from_str(data).expect("json"));
                self.last_id = field("id: ").map(str::to_owned).or(self.last_id.take());
                self.text = rest.to_owned();
                match message {
                    Some(message) => return Some(message),
                    None => continue,
                }
            }
            let next = tokio::time::timeout(LONG, self.bytes.next()).await.expect("an event in time");
            self.text.push_str(std::str::from_utf8(&next?.ok()?).expect("text"));
        }
    }

    /// Waits for the id of the first event.
    pub(crate) async fn id(&mut self) -> String {
        while self.last_id.is_none() {
            let next = tokio::time::timeout(LONG, self.bytes.next()).await.expect("an event in time");
            self.text.push_str(std::str::from_utf8(&next.expect("an event").expect("bytes")).expect("text"));
            self.last_id = self.text.lines().find_map(|line| line.strip_prefix("id: ")).map(str::to_owned);
        }
        self.last_id.clone().expect("an id")
    }

    pub(crate) async fn rest(mut self) -> Vec<Value> {
        let mut all = Vec::new();
        while let Some(message) = self.next().await {
            all.push(message);
        }
        all
    }
}

/// Waits for a sign, but not for ever.
pub(crate) async fn soon(sign: &Notify) {
    tokio::time::timeout(LONG, sign.notified()).await.expect("in time");
}

/// All messages of a response, in whichever form it comes.
pub(crate) async fn messages(request: RequestBuilder) -> Vec<Value> {
    let response = request.send().await.expect("response");
    let is_stream = response.headers()["content-type"] == "text/event-stream";
    let text = response.text().await.expect("body");
    let parse = |text: &str| serde_json::from_str(text).expect("json");
    match is_stream {
        true => text.lines().filter_map(|line| line.strip_prefix("data: ")).map(parse).collect(),
        false => vec![parse(&text)],
    }
}
