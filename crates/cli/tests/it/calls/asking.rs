//! What the source of a tool asks back of `call` and of Toolwright: a model, a person, the workspace. Against a real
//! server on pipes and a real model API.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use toolwright::Toolwright;
use toolwright::app::{CallOptions, ClientOptions, FormAnswer, GatewayFallback, PageAnswer, Person};
use toolwright::async_trait;
use toolwright::config::LoadOptions;
use toolwright::core::approval::{AnswerSource, NoApprover};
use toolwright::core::client::{AskingCall, CallClient, ClientRequest};
use toolwright::core::session::{Principal, Session};
use toolwright::core::{ApprovalDecision, Approver, CallId, Cancel, Profile, RawArguments, ToolCall, ToolId};
use toolwright::gateway::{FallbackClient as _, FallbackContext};
use toolwright::mcp::elicitation::{Form, Page};
use toolwright_testkit::FakeApprover;
use toolwright_testkit::model_server::{Script, Turn, WireApi};

use crate::agents::agent::{ended, start, with_model};
use crate::command_line::cli::{ok, run, stderr};
use crate::serving::gateway::{Gateway, posted, posted_to};
use crate::support::Fixture;

fn server() -> String {
    format!("mcpServers:\n  fx:\n    command: {}\n", toolwright_testkit::bin("conformance-fixture").display())
}

fn fixture(more: &str) -> Fixture {
    Fixture::with(&format!("{}{more}", server()))
}

const ALLOWED: &str =
    "policy:\n  rules:\n    - {effect: allow, tool: 'client:sample', when: 'args.source == \"fx:test_sampling\"'}\n";
const CALL: [&str; 4] = ["call", "fx__test_sampling", "prompt=What is the capital of Norway?", "--json"];

/// What `call` prints where the model would say this.
async fn sampled(fixture: &Fixture) -> (Value, Vec<Value>) {
    let script: Script = vec![Turn::text("Oslo")].into();
    let (_model, variables) = with_model(WireApi::OpenAi, script).await;
    let variables: Vec<_> = variables.into_iter().collect();
    let output = ended(start(fixture, &variables, &CALL)).await;
    let printed = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let trace: Value = serde_json::from_str(&ok(fixture, &["trace", "last", "--json"])).expect("json");
    let mut rows = Vec::new();
    collect(&trace, &mut rows);
    (printed, rows)
}

/// Every object of a tree that has a kind.
fn collect(value: &Value, rows: &mut Vec<Value>) {
    match value {
        Value::Object(members) => {
            if members.contains_key("kind") {
                rows.push(value.clone());
            }
            members.values().for_each(|value| collect(value, rows));
        }
        Value::Array(items) => items.iter().for_each(|value| collect(value, rows)),
        _ => {}
    }
}

#[tokio::test]
async fn sampling_follows_policy_and_budget() {
    let fixture = fixture(&format!("models: {{default: openai/m}}\n{ALLOWED}"));
    let (printed, rows) = sampled(&fixture).await;
    assert_eq!(printed["text"], "LLM response: Oslo", "{printed}");
    assert_eq!(printed["extras"]["usage"]["input_tokens"], 10, "{printed}");
    let kinds: Vec<String> = rows.iter().map(|row| row["kind"].to_string()).collect();
    let text = json!(rows).to_string();
    assert!(text.contains("client:sample") && text.contains("openai/m"), "{kinds:?} {text}");
}

#[tokio::test]
async fn sampling_shows_in_its_runs_report() {
    let fixture = fixture(&format!("models: {{default: openai/m}}\n{ALLOWED}"));
    let script: Script = vec![
        Turn::calls(vec![("fx__test_sampling", json!({"prompt": "What is the capital of Norway?"}))]),
        Turn::text("Oslo"),
        Turn::text("It is Oslo."),
    ]
    .into();
    let (model, variables) = with_model(WireApi::OpenAi, script).await;
    let run = ["run", "ask the server", "--policy", "trusted", "--json"];
    let output = ended(start(&fixture, &variables, &run)).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!((model.requests().len(), &report["answer"]), (3, &json!("It is Oslo.")), "{report}");
    assert_eq!(report["usage"]["input_tokens"], 30, "{report}");
}

#[tokio::test]
async fn without_a_persons_word_no_model_is_asked() {
    let fixture = fixture("models: {default: openai/m}\n");
    let (printed, rows) = sampled(&fixture).await;
    assert!(!printed["text"].as_str().unwrap_or_default().contains("Oslo"), "{printed}");
    assert!(printed.to_string().contains("lacks a capability"), "{printed}");
    assert!(!json!(rows).to_string().contains("client:sample"), "nobody was asked in vain: {rows:?}");
}

#[tokio::test]
async fn sampling_failures_reach_the_caller_only() {
    let fixture = fixture(&format!("models: {{default: openai/m}}\n{ALLOWED}"));
    let (_model, variables) = with_model(WireApi::OpenAi, vec![Turn::error(401, "no such key")].into()).await;
    let output = ended(start(&fixture, &variables, &CALL)).await;
    let (said, printed) = (stderr(&output), String::from_utf8_lossy(&output.stdout).into_owned());
    assert!(said.contains("openai/m did not answer: ") && said.contains("no such key"), "{said}");
    assert!(printed.contains("the model did not answer") && !printed.contains("no such key"), "{printed}");
}

#[tokio::test]
async fn sampling_is_declared_only_where_allowed() {
    for (rules, asks_somebody, declared) in [
        ("", false, false),
        ("", true, true),
        ("policy: {profile: trusted}\n", false, true),
        (ALLOWED, false, true),
        ("policy: {rules: [{effect: deny, tool: 'client:*'}]}\n", true, false),
        ("policy: {profile: trusted, rules: [{effect: ask, tool: 'client:sample'}]}\n", false, false),
    ] {
        let fixture = fixture(&format!("models: {{default: openai/m}}\n{rules}"));
        let config = fixture.load();
        let options = LoadOptions { cwd: fixture.project(), ..LoadOptions::default() };
        let key = |name: &str| (name == "OPENAI_API_KEY").then(|| "k".to_owned());
        let app = Toolwright::open(options, config, Box::new(key)).await.expect("opens");
        let nobody: Arc<dyn Approver> = Arc::new(NoApprover { remedy: "nobody is there".into() });
        let approver = if asks_somebody { Arc::new(app.ask_inbox(AnswerSource::Here, |_| ())) } else { nobody };
        let policy = Arc::new(app.config().policy(None, Profile::Ask));
        let session = app.call_session();
        let terms = ClientOptions {
            session: Arc::clone(&session),
            policy,
            approver: Arc::clone(&approver),
            person: None,
            model: None,
        };
        let capabilities = app.client(terms).capabilities();
        assert_eq!(capabilities.contains_key("sampling"), declared, "{rules} {asks_somebody}");
        let gateway = GatewayFallback::new(Arc::clone(&app), None, Arc::clone(&approver));
        let offered = gateway.offers(&FallbackContext { session, profile: None, approver });
        assert_eq!(offered.contains_key("sampling"), declared, "{rules} {asks_somebody}");
        app.shut_down().await;
    }
}

#[tokio::test]
async fn only_owner_calls_send_forms_to_inbox() {
    let fixture = Fixture::new();
    let app = app(&fixture).await;
    let nobody: Arc<dyn Approver> = Arc::new(NoApprover { remedy: "nobody is there".into() });
    let plain = || GatewayFallback::new(Arc::clone(&app), None, Arc::clone(&nobody));
    let forms = || plain().with_forms(app.ask_forms(|_| ()));
    let guest = Principal { id: "guest".into(), roles: Vec::new(), owner: false };
    for (gateway, principal, offered) in
        [(forms(), Principal::owner(), true), (forms(), guest, false), (plain(), Principal::owner(), false)]
    {
        let session = app.call_session();
        let session = Session { id: session.id.clone(), principal, root: session.root.clone(), agent: None };
        let terms = FallbackContext { session: Arc::new(session), profile: None, approver: Arc::clone(&nobody) };
        assert_eq!(gateway.offers(&terms).contains_key("elicitation"), offered);
        assert_eq!(gateway.client(&terms).capabilities().contains_key("elicitation"), offered);
    }
    app.shut_down().await;
}

#[tokio::test]
async fn approving_sampling_covers_one_server_only() {
    let fixture = Fixture::with("models: {default: openai/m}\n");
    let script: Script = [(); 4].map(|()| Turn::text("Oslo")).into_iter().collect::<Vec<_>>().into();
    let (_model, variables) = with_model(WireApi::OpenAi, script).await;
    let variables: HashMap<String, String> =
        variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    let options = LoadOptions { cwd: fixture.project(), ..LoadOptions::default() };
    let app = Toolwright::open(options, fixture.load(), Box::new(move |name| variables.get(name).cloned())).await;
    let app = app.expect("opens");
    let always = Arc::new(FakeApprover::saying(ApprovalDecision::Always));
    let policy = Arc::new(app.config().policy(None, Profile::Ask));
    let approver: Arc<dyn Approver> = Arc::clone(&always) as _;
    let client = app.client(ClientOptions { session: app.call_session(), policy, approver, person: None, model: None });
    let params = json!({"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 9});
    for (tool, askers) in
        [("one:a", &["one"][..]), ("one:b", &["one"]), ("two:a", &["one", "two"]), ("two:a", &["one", "two"])]
    {
        let asking = AskingCall {
            tool: ToolId::parse(&format!("{tool}@0.0.0")).expect("id"),
            traceparent: "00-aa-bb-01".into(),
            cancel: Cancel::new(),
            usage: None,
        };
        let client = client.for_call(&asking).expect("a client of the call");
        let question = ClientRequest { key: None, method: "sampling/createMessage".into(), params: params.clone() };
        let answer = client.ask(vec![question]).await.expect("answered").remove(0).expect("let through");
        assert_eq!(answer["content"]["text"], "Oslo");
        let asked: Vec<_> = always.requests().into_iter().filter_map(|one| one.asker).collect();
        assert_eq!(asked, askers, "{tool}");
    }
    let standing = app.approvals().list_standing(10).await.expect("standing");
    let mut askers: Vec<_> = standing.into_iter().filter_map(|row| row.asker).collect();
    askers.sort();
    assert_eq!(askers, ["one", "two"]);
    app.shut_down().await;
}

#[tokio::test]
async fn sampling_costs_are_bounded() {
    let bound = format!("models: {{default: openai/m}}\nsampling: {{max_total_tokens: 50}}\n{ALLOWED}");
    let (printed, _) = sampled(&fixture(&bound)).await;
    assert!(printed.to_string().contains("max_total_tokens"), "{printed}");
    // Money: what a model without prices costs is not known, and one with prices must fit.
    for (prices, allowed, says) in [
        ("", 1.0, "prices"),
        ("openai: {prices: {input: 1000, output: 1000}}", 0.01, "sampling.max_cost"),
        ("openai: {prices: {input: 1, output: 1}}", 1.0, "Oslo"),
    ] {
        let models = format!("models: {{default: openai/m, {prices}}}").replace(", }", "}");
        let (printed, rows) =
            sampled(&fixture(&format!("{models}\nsampling: {{max_cost: {allowed}}}\n{ALLOWED}"))).await;
        assert!(printed.to_string().contains(says), "{models}: {printed}");
        let asked = json!(rows).to_string().contains("\"openai/m\"");
        assert_eq!(asked, says == "Oslo", "{models}: {rows:?}");
    }
    // What the model is configured to think counts, though the question does not say it.
    for (effort, says) in [("", "Oslo"), (", openai/m: {effort: high}", "max_total_tokens")] {
        let models = format!("models: {{default: openai/m{effort}}}\nsampling: {{max_total_tokens: 20000}}\n{ALLOWED}");
        let (printed, _) = sampled(&fixture(&models)).await;
        assert!(printed.to_string().contains(says), "{models}: {printed}");
    }
    let off = format!("models: {{default: openai/m}}\nsampling: {{enabled: false}}\n{ALLOWED}");
    let (printed, _) = sampled(&fixture(&off)).await;
    assert!(!printed.to_string().contains("Oslo"), "{printed}");
}

/// Fills in what it is asked for, and remembers who asked.
struct FormFiller(FormAnswer);

#[async_trait]
impl Person for FormFiller {
    async fn fill_in(&self, source: &str, form: &Form) -> FormAnswer {
        assert_eq!((source, &*form.message), ("fx:test_elicitation", "Who are you?"));
        assert_eq!(form.fields.len(), 2);
        self.0.clone()
    }

    async fn visit(&self, source: &str, page: &Page) -> PageAnswer {
        assert_eq!((source, &*page.message, page.host()), ("a tool", "Log in.", "bank.example"));
        match self.0 {
            FormAnswer::Accepted(_) => PageAnswer::Opened,
            FormAnswer::Declined => PageAnswer::Declined,
            FormAnswer::Cancelled => PageAnswer::Cancelled,
        }
    }
}

async fn app(fixture: &Fixture) -> Arc<Toolwright> {
    let config = fixture.load();
    let options = LoadOptions { cwd: fixture.project(), ..LoadOptions::default() };
    Toolwright::open(options, config, Box::new(|_| None)).await.expect("opens")
}

fn client(app: &Toolwright, person: Option<Arc<dyn Person>>) -> Arc<dyn CallClient> {
    let policy = Arc::new(app.config().policy(None, Profile::Ask));
    let approver = Arc::new(NoApprover { remedy: "nobody is there".into() });
    app.client(ClientOptions { session: app.call_session(), policy, approver, person, model: None })
}

#[tokio::test]
async fn forms_are_accepted_declined_or_cancelled() {
    let fixture = fixture("");
    let app = app(&fixture).await;
    app.list_for("fx__test_elicitation", Duration::from_secs(30)).await;
    let content = json!({"username": "ann", "email": "ann@example.org"});
    let accepted = FormAnswer::Accepted(content.as_object().expect("object").clone());
    for (filled, says) in [
        (Some(accepted), "action=accept, content={\"username\":\"ann\",\"email\":\"ann@example.org\"}"),
        (Some(FormAnswer::Declined), "action=decline"),
        (Some(FormAnswer::Cancelled), "action=cancel"),
        (None, ""),
    ] {
        let person = filled.clone().map(|filled| Arc::new(FormFiller(filled)) as Arc<dyn Person>);
        let arguments = RawArguments::Value(json!({"message": "Who are you?"}));
        let call = ToolCall::new(CallId::new("c"), "fx__test_elicitation", arguments);
        let options = CallOptions { client: client(&app, person), ..CallOptions::new(Profile::Owner) };
        let outcome = app.call_with(call, options).await;
        assert!(outcome.text().contains(says), "{filled:?}: {}", outcome.text());
        assert_eq!(outcome.text().contains("action="), filled.is_some(), "{}", outcome.text());
    }
    app.shut_down().await;
}

#[tokio::test]
async fn a_page_is_opened_by_a_person_only() {
    let fixture = Fixture::new();
    let app = app(&fixture).await;
    let ask = async |person: Option<FormAnswer>, url: &str| {
        let person = person.map(|filled| Arc::new(FormFiller(filled)) as Arc<dyn Person>);
        let params = json!({"mode": "url", "message": "Log in.", "url": url, "elicitationId": "e1"});
        let asked = ClientRequest { key: None, method: "elicitation/create".into(), params };
        client(&app, person).ask(vec![asked]).await.expect("answered").remove(0)
    };
    let page = "https://bank.example/login?for=1";
    for (filled, action) in [
        (FormAnswer::Accepted(Map::new()), "accept"),
        (FormAnswer::Declined, "decline"),
        (FormAnswer::Cancelled, "cancel"),
    ] {
        assert_eq!(ask(Some(filled), page).await, Ok(json!({"action": action})));
    }
    assert_eq!(ask(None, page).await.expect_err("nobody is there").code, -32601);
    let hidden = ask(Some(FormAnswer::Declined), "https://bank.example@evil.example/").await.expect_err("refused");
    assert_eq!(hidden.code, -32602, "{hidden:?}");
    let ann: Arc<dyn Person> = Arc::new(FormFiller(FormAnswer::Declined));
    assert_eq!(client(&app, Some(ann)).capabilities()["elicitation"], json!({"form": {}, "url": {}}));
    app.shut_down().await;
}

#[tokio::test]
async fn the_workspace_is_the_one_root() {
    let fixture = Fixture::new();
    let app = app(&fixture).await;
    let client = client(&app, None);
    let asked = ClientRequest { key: None, method: "roots/list".into(), params: json!({}) };
    let answers = client.ask(vec![asked]).await.expect("answered");
    let root = answers[0].clone().expect("roots")["roots"][0].clone();
    let path = app.config().root.to_string_lossy().into_owned();
    assert_eq!((root["uri"].clone(), root["name"].clone()), (json!(format!("file://{path}")), json!("project")));
    assert_eq!(client.capabilities().keys().collect::<Vec<_>>(), ["roots"]);
    app.shut_down().await;
}

#[test]
fn an_unknown_name_ignores_hanging_servers() {
    let fixture = Fixture::with("mcpServers:\n  mute: {command: sleep, args: ['60']}\n");
    for arguments in [
        &["tools", "show", "nothing__there"][..],
        &["tools", "show", "nothing"],
        &["call", "nothing__there"],
        &["call", "fs__raed", "path=a"],
        &["call", "nothing"],
    ] {
        let began = Instant::now();
        let output = run(&fixture, arguments);
        assert_eq!(output.status.code(), Some(3), "{arguments:?} {}", stderr(&output));
        // A search for a bare name is bounded by 3 s; on top of that comes the end of the server.
        assert!(began.elapsed() < Duration::from_secs(20), "{arguments:?} took {:?}", began.elapsed());
        if arguments.contains(&"nothing") {
            assert!(stderr(&output).contains("mute: still starting"), "{}", stderr(&output));
        }
    }
}

/// A call of a client of 2026-07-28 that offers this; its answer.
fn called(address: &str, capabilities: &Value) -> Value {
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": capabilities,
    });
    let arguments = json!({"prompt": "What is the capital of Norway?"});
    let params = json!({"name": "test_sampling", "arguments": arguments, "_meta": meta});
    let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params});
    let headers = "accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: \
                   tools/call\r\nmcp-name: test_sampling\r\n";
    posted_to(address, "/mcp/fx", headers, &request)
}

#[tokio::test]
async fn gateway_samples_for_clients_without_models() {
    for (rules, allowed) in [(ALLOWED, true), ("", false)] {
        let fixture = fixture(&format!("models: {{default: openai/m}}\n{rules}"));
        let script: Script = [(); 3].map(|()| Turn::text("Oslo")).into_iter().collect::<Vec<_>>().into();
        let (model, variables) = with_model(WireApi::OpenAi, script).await;
        let says = move |result: &Value| {
            let text = result.to_string();
            // In the words of the fixture, by whichever generation it was asked.
            let expect =
                if allowed { ["LLM response: Oslo"; 2] } else { ["does not support sampling", "lacks a capability"] };
            assert!(expect.iter().any(|expect| text.contains(expect)), "{text}");
        };
        let checks = move || {
            let variables: Vec<_> = variables.iter().map(|(name, value)| (&**name, &**value)).collect();
            let mut pipe = Gateway::start_with(&fixture, &["--stdio", "--ask", "nobody"], &variables);
            pipe.handshake();
            pipe.has_tool("fx__test_sampling", true);
            let arguments = json!({"prompt": "What is the capital of Norway?"});
            says(&pipe.ask("tools/call", json!({"name": "fx__test_sampling", "arguments": arguments})));
            // It knows the tools from the list of the one before.
            let http = Gateway::start_with(
                &fixture,
                &["--http", "127.0.0.1:0", "--policy", "client", "--ask", "nobody"],
                &variables,
            );
            let address = http.address();
            says(&called(&address, &json!({})));
            says(&posted(
                &fixture,
                &address,
                &json!({"tool": "fx__test_sampling", "arguments": {"prompt": "Where is it?"}}),
            ));
            let asked = called(&address, &json!({"sampling": {}}))["result"].take();
            assert_eq!(asked["resultType"], "input_required", "{asked}");
            assert!(asked["inputRequests"].to_string().contains("sampling/createMessage"), "{asked}");
        };
        tokio::task::spawn_blocking(checks).await.expect("checked");
        assert_eq!(model.requests().len(), if allowed { 3 } else { 0 });
    }
}

#[test]
fn gateway_inbox_answers_forms_for_limited_clients() {
    for (ask, is_asked) in [("inbox", true), ("nobody", false)] {
        let fixture = fixture("");
        // From here on its tools are known before it answers.
        ok(&fixture, &["tools", "show", "fx__test_elicitation"]);
        let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0", "--policy", "client", "--ask", ask]);
        let address = gateway.address();
        let fixture = &fixture;
        let answered = std::thread::scope(|scope| {
            let calling = scope.spawn(move || {
                let arguments = json!({"message": "Who are you?"});
                posted(fixture, &address, &json!({"tool": "fx__test_elicitation", "arguments": arguments}))
            });
            if is_asked {
                let form = (0..200).find_map(|_| {
                    let listed: Value =
                        serde_json::from_str(&ok(fixture, &["approvals", "ls", "--json"])).expect("JSON");
                    let form = listed.get(0).cloned();
                    if form.is_none() {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    form
                });
                let form = form.expect("somebody is asked");
                let id = form["id"].as_str().expect("an id");
                ok(fixture, &["approvals", "answer", id, "username=ann", "email=ann@example.org"]);
            }
            calling.join().expect("called")
        });
        assert_eq!(answered.to_string().contains("ann@example.org"), is_asked, "{answered}");
        assert_eq!(answered["ok"].as_bool(), Some(is_asked), "{answered}");
    }
}

#[test]
fn api_and_command_answer_a_call_alike() {
    let fixture = Fixture::new();
    fixture.write("project/a.txt", "hello\n");
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0", "--policy", "client"]);
    let address = gateway.address();
    for (tool, arguments) in [
        ("fs__read", json!({"path": "a.txt"})),
        ("fs:read@1.0.0", json!({"path": "a.txt", "limit": "1"})),
        ("fs__read", json!({"path": "missing.txt"})),
        ("fs__read", json!({})),
        ("fs__raed", json!({"path": "a.txt"})),
        ("shell__bash", json!({"command": "exit 3"})),
    ] {
        let printed = run(&fixture, &["call", tool, &arguments.to_string(), "--json"]);
        let mut printed: Value = serde_json::from_slice(&printed.stdout).expect("json");
        let mut answered = posted(&fixture, &address, &json!({"tool": tool, "arguments": arguments}));
        for outcome in [&mut printed, &mut answered] {
            assert!(outcome["latency_ms"].take().is_u64(), "{outcome}");
        }
        assert_eq!(answered, printed, "{tool} {arguments}");
    }
}
