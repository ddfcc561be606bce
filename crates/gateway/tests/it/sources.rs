//! A source with everything the protocol has, behind a fake provider: what it was asked, and what it answers.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::sync::watch;
use toolwright_core::catalogue::{
    ListKind, Provider, ProviderCall, ProviderError, ProviderKind, RegisteredTool, SourceNotice, foreign_ids,
};
use toolwright_core::client::{CallClient, ClientRequest};
use toolwright_core::content::ContentBlock;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};
use toolwright_core::event::Partial;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::passthrough::METHOD_RESULT;
use toolwright_core::session::SessionId;
use toolwright_testkit::FakeProvider;

use crate::support::Fixture;

/// Those that have the same template.
const SHARING: [&str; 2] = ["zed", "abc"];
const TOOLS: [&str; 3] = ["ask", "log", "meta"];
const METHODS: [&str; 9] = [
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "resources/subscribe",
    "resources/unsubscribe",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
];

/// The source, as its provider and its state. Clones share both.
#[derive(Clone)]
pub(crate) struct Source {
    state: Arc<SourceState>,
    provider: Arc<FakeProvider>,
}

impl Deref for Source {
    type Target = SourceState;

    fn deref(&self) -> &SourceState {
        &self.state
    }
}

/// Two sources, `alpha` and `beta`, at one gateway.
pub(crate) async fn two_sources() -> (Fixture, [Source; 2]) {
    let fixture = Fixture::new().await;
    let sources = [Source::new("alpha"), Source::new("beta")];
    for source in &sources {
        fixture.add_listed(source.provider()).await;
    }
    (fixture, sources)
}

/// The state of a source. Its tool `ask` asks the call's client whatever its arguments say, round by round.
pub(crate) struct SourceState {
    name: &'static str,
    capabilities: Arc<Map<String, Value>>,
    /// What it was asked by methods, and by calls of tools.
    pub(crate) asked: Mutex<Vec<(String, Value)>>,
    /// Whether its lists and methods are not answered until it is not; its tools are.
    pub(crate) is_silent: watch::Sender<bool>,
    /// Whether they fail at once.
    pub(crate) is_failing: AtomicBool,
    /// The code of the server's own error that all but its lists end with; 0: they do not.
    pub(crate) own_error: AtomicI64,
    /// The messages of its prompt.
    pub(crate) prompt: Mutex<Value>,
    /// What its tool `meta` answers beside the `_meta` of the call.
    pub(crate) content: Mutex<Vec<ContentBlock>>,
    /// How long they take.
    pub(crate) delay: Mutex<Duration>,
    /// How many of them it is at.
    pub(crate) busy: AtomicUsize,
    /// Those that were given up.
    pub(crate) disconnected: Mutex<Vec<String>>,
    /// Whose call of a tool was the last.
    pub(crate) session: Mutex<Option<SessionId>>,
    /// How often it has told that its prompts and its resources are others.
    renewed: [AtomicUsize; 2],
}

impl Source {
    pub(crate) fn new(name: &'static str) -> Self {
        let capabilities = json!({
            "resources": {"subscribe": true, "listChanged": true}, "prompts": {"listChanged": true},
            "completions": {}, "logging": {}, "experimental": {"x": {}},
        });
        Self::with(name, capabilities)
    }

    pub(crate) fn with(name: &'static str, capabilities: Value) -> Self {
        let state = Arc::new(SourceState {
            name,
            capabilities: Arc::new(capabilities.as_object().cloned().expect("object")),
            asked: Mutex::default(),
            is_silent: watch::Sender::new(false),
            is_failing: AtomicBool::new(false),
            own_error: AtomicI64::new(0),
            prompt: Mutex::new(json!([])),
            content: Mutex::default(),
            delay: Mutex::default(),
            busy: AtomicUsize::new(0),
            disconnected: Mutex::default(),
            session: Mutex::default(),
            renewed: Default::default(),
        });
        let provider = Arc::new(provider(&state));
        Self { state, provider }
    }

    /// Its provider.
    pub(crate) fn provider(&self) -> Arc<dyn Provider> {
        Arc::clone(&self.provider) as _
    }

    /// Tells a notice; a list that it tells of is another one from then on.
    pub(crate) fn send_notice(&self, notice: SourceNotice) {
        match &notice {
            SourceNotice::PromptsChanged => self.renewed[0].fetch_add(1, Ordering::Relaxed),
            SourceNotice::ResourcesChanged => self.renewed[1].fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        self.provider.send_notice(notice);
    }
}

impl SourceState {
    /// Its list of this kind, as it is asked for it.
    async fn list_of(&self, kind: ListKind) -> Result<Vec<Value>, ProviderError> {
        if !self.capabilities.contains_key(kind.capability()) {
            return Ok(Vec::new());
        }
        self.noted(kind.method(), &json!({}));
        let (delay, mut is_silent) = (*self.delay.lock().expect("lock"), self.is_silent.subscribe());
        tokio::time::sleep(delay).await;
        let _ = is_silent.wait_for(|is_silent| !is_silent).await;
        if self.is_failing.load(Ordering::Relaxed) {
            return Err(ProviderError::new("it is broken"));
        }
        Ok(self.items(kind))
    }

    /// Its list of this kind; one more item where it has told that it is another.
    fn items(&self, kind: ListKind) -> Vec<Value> {
        let name = self.name;
        let (mut items, renewed) = match kind {
            ListKind::Prompts => (vec![json!({"name": "hello", "description": name})], &self.renewed[0]),
            ListKind::Resources => (
                vec![
                    json!({"uri": "both://same", "name": name}),
                    json!({"uri": format!("{name}://one"), "name": "1", "later": [1]}),
                    json!({"uri": format!("{name}://two"), "name": "2"}),
                ],
                &self.renewed[1],
            ),
            ListKind::Templates if SHARING.contains(&name) => {
                return vec![json!({"uriTemplate": "both://{id}/data", "name": "t"})];
            }
            ListKind::Templates => return vec![json!({"uriTemplate": format!("{name}://{{id}}/data"), "name": "t"})],
        };
        let count = renewed.load(Ordering::Relaxed);
        if count > 0 {
            items.push(json!({kind.item_key(): format!("{name}://new{count}"), "name": format!("new{count}")}));
        }
        items
    }

    /// How often it was asked this.
    pub(crate) fn times(&self, method: &str) -> usize {
        self.asked.lock().expect("lock").iter().filter(|(asked, _)| asked == method).count()
    }

    /// What was asked since the last look, but for the times that a list was.
    pub(crate) fn taken(&self) -> Vec<(String, Value)> {
        let mut asked = std::mem::take(&mut *self.asked.lock().expect("lock"));
        asked.retain(|(method, _)| !method.ends_with("/list"));
        asked
    }

    fn noted(&self, what: &str, arguments: &Value) {
        self.asked.lock().expect("lock").push((what.to_owned(), arguments.clone()));
    }

    async fn run(&self, tool: &str, arguments: &Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        self.noted(tool, arguments);
        let code = self.own_error.load(Ordering::Relaxed);
        if code != 0 {
            let error = ProtocolError { code, message: "not for you".into(), data: Some(json!({"limit": 3})) };
            return Err(ToolError::new(ErrorKind::ExecutionError, "no").with_protocol(error));
        }
        *self.session.lock().expect("lock") = Some(context.session.id.clone());
        let client = &context.client;
        match tool {
            "ask" => {
                if arguments["rounds"].is_null() {
                    return race(client.as_ref()).await;
                }
                let mut all = Vec::new();
                for round in arguments["rounds"].as_array().into_iter().flatten() {
                    let request = |asked: &Value| ClientRequest {
                        key: asked["key"].as_str().map(Into::into),
                        method: asked["method"].as_str().unwrap_or_default().into(),
                        params: asked["params"].clone(),
                    };
                    let answers = client.ask(round.as_array().into_iter().flatten().map(request).collect()).await?;
                    for answer in answers {
                        all.push(answer.map_err(|refused| {
                            ToolError::new(ErrorKind::ExecutionError, refused.message.clone()).with_protocol(refused)
                        })?);
                    }
                }
                if arguments["speaks"] == true {
                    let more = Map::from_iter([("_meta".to_owned(), json!({"k": 1}))]);
                    context.partials.send(Partial::Progress { progress: 1.0, total: None, message: None, more });
                    client.log(json!({"level": "info", "data": "heard"}));
                }
                Ok(ToolOutput::text(Value::Array(all).to_string()))
            }
            "log" => {
                for level in ["debug", "warning", "alert"] {
                    client.log(json!({"level": level, "data": level}));
                }
                Ok(ToolOutput::text(client.log_level().unwrap_or_default()))
            }
            _ => {
                let mut output = ToolOutput::text(Value::Object(client.meta()).to_string());
                output.content.extend(self.content.lock().expect("lock").iter().cloned());
                Ok(output)
            }
        }
    }

    async fn run_method(&self, call: ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let _at_it = CountGuard::new(&self.busy);
        let mut is_silent = self.is_silent.subscribe();
        let delay = *self.delay.lock().expect("lock");
        let done = async {
            tokio::time::sleep(delay).await;
            let _ = is_silent.wait_for(|is_silent| !is_silent).await;
        };
        tokio::select! {
            cause = context.cancel.cancelled() => {
                self.disconnected.lock().expect("lock").push(call.raw_name.to_owned());
                return Err(ToolError::canceled(cause));
            }
            () = done => {}
        }
        if self.is_failing.load(Ordering::Relaxed) {
            let error = ProtocolError { code: -32603, message: "it is broken".into(), data: None };
            return Err(ToolError::new(ErrorKind::ExecutionError, "no").with_protocol(error));
        }
        let code = self.own_error.load(Ordering::Relaxed);
        if code != 0 && !call.raw_name.ends_with("/list") {
            let error = ProtocolError { code, message: "not for you".into(), data: Some(json!({"limit": 3})) };
            return Err(ToolError::new(ErrorKind::ExecutionError, "no").with_protocol(error));
        }
        let result = self.answer(call.raw_name, &call.arguments)?;
        if call.raw_name == "resources/subscribe" {
            // Long enough for others to come along with the same wish.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(ToolOutput::default().with_extra(METHOD_RESULT, result))
    }

    fn answer(&self, method: &str, arguments: &Value) -> Result<Value, ToolError> {
        self.noted(method, arguments);
        let name = self.name;
        Ok(match method {
            "resources/read" if arguments["uri"].as_str().is_some_and(|uri| uri.contains("missing")) => {
                let error = ProtocolError { code: -32002, message: "no such resource".into(), data: None };
                return Err(ToolError::new(ErrorKind::ExecutionError, "no").with_protocol(error));
            }
            // Its user must open a page first.
            "resources/read" if arguments["uri"].as_str().is_some_and(|uri| uri.ends_with("://page/data")) => {
                let page =
                    json!({"mode": "url", "elicitationId": "e1", "url": "https://login.example/", "message": "m"});
                let data = Some(json!({"elicitations": [page]}));
                let error = ProtocolError { code: -32042, message: "log in".into(), data };
                return Err(ToolError::new(ErrorKind::ExecutionError, "no").with_protocol(error));
            }
            "resources/read" => json!({"contents": [{"uri": arguments["uri"], "text": name}]}),
            "prompts/get" => {
                let messages = self.prompt.lock().expect("lock").clone();
                json!({"messages": messages, "description": format!("{} of {name}", arguments["name"]), "later": 1})
            }
            "completion/complete" => {
                json!({"completion": {"values": [name, arguments["ref"]["name"], arguments["ref"]["uri"]]}})
            }
            _ => json!({}),
        })
    }
}

/// Asks two things at the same time, and needs one answer only.
async fn race(client: &dyn CallClient) -> Result<ToolOutput, ToolError> {
    let ask = |key: &str| {
        let params = json!({"message": key});
        client.ask(vec![ClientRequest { key: Some(key.into()), method: "elicitation/create".into(), params }])
    };
    let answers = tokio::select! {
        biased;
        answers = ask("one") => answers?,
        answers = ask("other") => answers?,
    };
    let answers: Vec<Value> = answers.into_iter().filter_map(Result::ok).collect();
    Ok(ToolOutput::text(Value::Array(answers).to_string()))
}

fn tools(namespace: &str, names: &[&str], effects: Effects) -> Vec<Arc<RegisteredTool>> {
    let ids = foreign_ids(namespace, names).expect("ids");
    let tool = |(id, raw): (_, &&str)| {
        let mut definition = ToolDefinition::new(id, (*raw).to_owned(), Some(json!({"type": "object"})));
        definition.effects = effects;
        RegisteredTool::foreign(definition, *raw)
    };
    ids.into_iter().zip(names).map(tool).collect()
}

/// The provider of a source.
fn provider(state: &Arc<SourceState>) -> FakeProvider {
    let name = state.name;
    let (of_calls, of_lists, of_methods) = (Arc::clone(state), Arc::clone(state), Arc::clone(state));
    FakeProvider::new(name, ProviderKind::Mcp, tools(name, &TOOLS, Effects::READ))
        .with(|fake| fake.capabilities = Some(Arc::clone(&state.capabilities)))
        .with_future(move |call, context| {
            let state = Arc::clone(&of_calls);
            Box::pin(async move { state.run(call.raw_name, &call.arguments, context).await })
        })
        .with_lists(move |kind| {
            let state = Arc::clone(&of_lists);
            Box::pin(async move { state.list_of(kind).await })
        })
        .with_methods(move || Arc::new(methods(Arc::clone(&of_methods))))
}

/// Its methods, as a provider.
fn methods(source: Arc<SourceState>) -> FakeProvider {
    let listed = tools(source.name, &METHODS, Effects::FETCH);
    FakeProvider::new(source.name, ProviderKind::Mcp, listed).with(|fake| fake.lists_methods = true).with_future(
        move |call, context| {
            let source = Arc::clone(&source);
            Box::pin(async move { source.run_method(call, context).await })
        },
    )
}

/// Something that is counted as long as this is there.
struct CountGuard<'a>(&'a AtomicUsize);

impl<'a> CountGuard<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for CountGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
