//! What other tool systems write and promise, through the program: their definitions load as they are and do the same.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Script, Turn, WireApi};

use crate::agents::agent::{ended, report, start, with_model};
use crate::command_line::cli::{json_of, ok, program, run, stderr};
use crate::serving::gateway::Gateway;
use crate::support::Fixture;

/// A tool of a catalogue whose tools ask models: templates, an example, a variant by provider, a second model.
const ASKS_A_MODEL: &str = "llmTools:
  tone:
    description: Tells the tone of a text.
    inputSchema:
      type: object
      properties: {text: {type: string}, language: {type: string, default: English}}
      required: [text]
    outputSchema: {type: object, properties: {tone: {type: string}}, required: [tone]}
    systemPrompt: You judge {{ language }} texts.
    userTemplate: 'Tone of: {{ text }}'
    outputFormat: json
    outputExample: {tone: calm}
    modelPreference: {preferredModel: openai/first, fallbackModels: [openai/second], maxTokens: 200, temperature: 0.2}
    recommendedThreshold: 90
    tags: [text]
    variants:
      - {id: careful, providerMatch: [second], systemPrompt: Take your time.}
      - {id: usual, isDefault: true}
";

#[tokio::test(flavor = "multi_thread")]
async fn a_declared_llm_tool_falls_back_and_varies() {
    let script: Script = vec![
        Turn::text("no idea")
            .expecting("the preferred model", |asked| asked.model() == "first" && asked.body["temperature"] == 0.2)
            .expecting("defaults are filled in", |asked| asked.system().contains("You judge English texts."))
            .expecting("the example is shown", |asked| asked.system().contains(r#""tone":"calm""#))
            .expecting("the template", |asked| asked.last_user_text() == "Tone of: Hi"),
        Turn::text("```json\n{\"tone\": \"warm\"}\n```").expecting("the variant of the second", |asked| {
            asked.model() == "second" && asked.system().contains("Take your time.")
        }),
    ]
    .into();
    let fixture = Fixture::with(ASKS_A_MODEL);
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let output = ended(start(&fixture, &variables, &["call", "llm__tone", "text=Hi", "--json"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    let outcome = report(&output);
    assert_eq!((&outcome["structured"], server.failures()), (&json!({"tone": "warm"}), Vec::new()), "{outcome}");
    assert_eq!(
        (&outcome["extras"]["model"], &outcome["extras"]["variant"]),
        (&json!("openai/second"), &json!("careful"))
    );
    let missing = run(&fixture, &["call", "llm__tone", "{}"]);
    assert!(stderr(&missing).contains("text"), "{}", stderr(&missing));
    // What each model was asked as, failed attempts too.
    let trace = ok(&fixture, &["trace", "last"]);
    assert!(trace.contains("variant usual") && trace.contains("variant careful"), "{trace}");
}

#[test]
fn unsafe_tools_are_picked_where_that_is_asked() {
    let tool = |name: &str, description: &str, safe: bool| {
        format!("  {name}: {{description: {description}, url: 'https://api.example/{name}', safe: {safe}}}\n")
    };
    let fixture = Fixture::with(&format!(
        "restTools:\n{}{}{}",
        tool("get_weather", "Fetch current weather for the given location.", true),
        tool("get_temperature", "Get the current temperature for a city", true),
        tool("delete_database", "Delete the database.", false),
    ));
    let picked = |arguments: &[&str]| -> Vec<String> {
        let all = ok(&fixture, &[&["pick", "--json"], arguments].concat());
        let all: Value = serde_json::from_str(&all).expect("json");
        let picks = all["picks"].as_array().expect("picks");
        assert!(picks.iter().all(|pick| (0.0..=1.0).contains(&pick["score"].as_f64().expect("a score"))), "{all}");
        picks.iter().map(|pick| pick["wire_name"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(picked(&["weather for this location", "--max", "1"]), ["rest__get_weather"]);
    let unsafe_tool = "rest__delete_database";
    assert!(!picked(&["delete the database"]).iter().any(|name| name == unsafe_tool));
    assert_eq!(picked(&["delete the database", "--allow-unsafe"])[0], unsafe_tool);
    assert_eq!(picked(&["xyzzy"]), [""; 0]);
}

#[test]
fn tools_install_triggers_explain_themselves_or_stay_virtual() {
    let fixture = Fixture::with(
        "tools:\n  add_timer: {type: trigger, class: timer}\n  watch_channel: {type: trigger, class: channel}\n  \
         add_schedule: {type: trigger, class: schedule}\nnative_tools: {image_gen: {}}\n",
    );
    let listed = ok(&fixture, &["tools", "ls"]);
    for name in ["trigger__add_timer", "trigger__watch_channel", "trigger__add_schedule", "media__image_gen"] {
        assert!(listed.contains(name), "{name}: {listed}");
    }
    ok(&fixture, &["call", "trigger__add_timer", "interval=1h", "prompt=Look"]);
    assert!(ok(&fixture, &["triggers", "ls"]).contains("Look"));
    // A manual on demand.
    assert!(ok(&fixture, &["call", "job__info", "name=fs__edit"]).contains("matched_with"));
    let refused = run(&fixture, &["call", "media__image_gen", "{}"]);
    assert!(stderr(&refused).contains("run by the model's own provider"), "{}", stderr(&refused));
}

/// The names of a listing.
fn names(listed: &Value) -> Vec<&str> {
    listed.as_array().expect("tools").iter().map(|tool| tool["wire_name"].as_str().expect("a name")).collect()
}

/// Servers, queues and limits as another system's JSON file has them, but for the program.
#[test]
fn server_json_files_import_as_documented() {
    const TOKEN: &str = "ghp-4f0c9e7a51b2";
    let server = toolwright_testkit::bin("misbehaving-mcp");
    let file = json!({
        "defaults": {"toolTimeout": 30000, "toolResponseMaxBytes": 100_000, "traceMCP": true},
        "queues": {"github-queue": {"concurrent": 5}, "slow-api": {"concurrent": 1}},
        "mcpServers": {
            "github": {
                "type": "stdio", "command": server, "args": [], "env": {"GITHUB_TOKEN": "${GITHUB_TOKEN}"},
                "toolsAllowed": ["echo", "flood"], "toolsDenied": ["flood"], "cache": 300_000, "queue": "github-queue",
                "requestTimeoutMs": 30000,
            },
            "slow-service": {"type": "stdio", "command": server, "queue": "slow-api", "enabled": false},
        },
    });
    let fixture = Fixture::with(&file.to_string());
    let ran =
        |arguments: &[&str]| program(&fixture).env("GITHUB_TOKEN", TOKEN).args(arguments).output().expect("it runs");
    let listed = ran(&["tools", "ls", "--json", "--prefix", "github:"]);
    assert_eq!(names(&json_of(&listed)), ["github__echo"], "{}", stderr(&listed));
    assert_eq!(json_of(&ran(&["tools", "ls", "--json", "--prefix", "slow-service:"])), json!([]));
    // Every message of the server, with its time and direction.
    let called = ran(&["call", "github__echo", &format!("text={TOKEN}")]);
    let traced = stderr(&called);
    for frame in [r#"Z github -> {"jsonrpc":"2.0""#, r#""method":"tools/call""#, r#"Z github <- {"jsonrpc":"2.0""#] {
        assert!(traced.contains(frame), "{frame}: {traced}");
    }
    assert!(called.status.success() && !traced.contains(TOKEN), "{traced}");
}

#[test]
fn single_tools_have_queue_mode_and_limits() {
    let server = toolwright_testkit::bin("misbehaving-mcp");
    let fixture = Fixture::with(&format!(
        "queues: {{one: {{concurrent: 1}}}}\nmcpServers:\n  odd:\n    command: {}\n    tools:\n      hang: {{timeout: 100ms}}\n      \
         flood: {{max_output: 600}}\n      echo: {{mode: background, queue: one}}\nopenapi:\n  shop:\n    document: ./api.yaml\n    \
         operations:\n      listOrders: {{mode: background, queue: one, timeout: 5s, max_output: 500}}\n",
        server.display()
    ));
    fixture.write(
        "project/api.yaml",
        "openapi: 3.0.3\ninfo: {title: T, version: '1'}\nservers: [{url: 'https://shop.example'}]\npaths:\n  /o: {get: \
         {operationId: listOrders, summary: Lists orders.}}\n",
    );
    let shown = json_of(&run(&fixture, &["tools", "show", "shop__listOrders", "--json"]));
    let own = ["mode", "queue", "timeout", "max_output"].map(|key| shown["definition"][key].clone());
    assert_eq!(own, [json!("background"), json!("one"), json!("5s"), json!(500)], "{shown}");
    let mut gateway = Gateway::start(&fixture, &["--stdio", "--policy", "trusted"]);
    gateway.handshake();
    gateway.has_tool("odd__echo", true);
    let mut said = |name: &str, arguments: Value| {
        let result = gateway.ask("tools/call", json!({"name": name, "arguments": arguments}))["result"].take();
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{name}: {result}")).to_owned()
    };
    assert_eq!(said("odd__hang", json!({})), "(tool failed: timeout after 100ms)");
    let flood = said("odd__flood", json!({}));
    assert!(flood.len() < 2000 && flood.contains("Handle: "), "{flood}");
    let job = said("odd__echo", json!({"text": "hi"}));
    assert!(job.contains("continues as background job"), "{job}");
}

/// Takes the next request of an endpoint, and answers it when it is told to.
fn request(endpoint: &TcpListener) -> impl FnOnce() + use<> {
    let (stream, _) = endpoint.accept().expect("a connection");
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        assert!(reader.read_line(&mut line).expect("a request") > 0, "the request ends early");
    }
    let mut stream: TcpStream = reader.into_inner();
    move || {
        let answer =
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 4\r\nconnection: close\r\n\r\ndone";
        stream.write_all(answer.as_bytes()).expect("answered");
    }
}

#[test]
fn a_slow_endpoint_delays_no_other() {
    let [slow, fast] = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let tool = |name: &str, endpoint: &TcpListener| {
        let address = endpoint.local_addr().expect("an address");
        format!("  {name}: {{description: Answers., url: 'http://{address}/x', allow_private: true}}\n")
    };
    let tools = [tool("slow", &slow), tool("fast", &fast)].concat();
    let fixture = Fixture::with(&format!("queues: {{default: {{concurrent: 1}}}}\nrestTools:\n{tools}"));
    let mut gateway = Gateway::start(&fixture, &["--stdio", "--policy", "trusted"]);
    gateway.handshake();
    let call = |name: &str| json!({"name": name, "arguments": {}});
    let waits = [(), ()].map(|()| gateway.send("tools/call", call("rest__slow")));
    let first = request(&slow);
    let answering = std::thread::spawn(move || request(&fast)());
    let done = gateway.ask("tools/call", call("rest__fast"));
    assert_eq!(done["result"]["content"][0]["text"], "done", "{done}");
    answering.join().expect("answered");
    // One call to the slow one waits for the other.
    slow.set_nonblocking(true).expect("a listener");
    assert!(slow.accept().is_err());
    slow.set_nonblocking(false).expect("a listener");
    first();
    request(&slow)();
    let answers = gateway.answers(2);
    assert!(waits.iter().all(|wait| answers[wait]["result"]["content"][0]["text"] == "done"), "{answers:?}");
}

#[test]
fn tools_are_found_by_namespace_tag_and_model() {
    let fixture = Fixture::with(
        "restTools:\n  get_weather: {description: Weather., url: 'https://a.example/w', tags: [weather]}\n  get_temperature: \
         {description: Degrees., url: 'https://a.example/t'}\nmodels:\n  openai/m: {toolCompat: {'rest:get_weather@1.0.0': \
         0.9, 'rest:get_temperature@1.0.0': 0.7}}\n",
    );
    let both = &["rest__get_weather", "rest__get_temperature"][..];
    for (filter, expect) in [
        (&["--namespace", "rest"][..], both),
        (&["--prefix", "rest:get_w"], &both[..1]),
        (&["--tag", "weather"], &both[..1]),
        (&["--model", "openai/m"], &both[..1]),
        (&["--model", "openai/m", "--min-score", "0.5"], both),
    ] {
        let listed = json_of(&run(&fixture, &[&["tools", "ls", "--json"], filter].concat()));
        assert_eq!(names(&listed), expect, "{filter:?}");
    }
    let shown = json_of(&run(&fixture, &["tools", "show", "rest__get_weather", "--json"]));
    assert_eq!(shown["models_for"], json!(["openai/m"]));
}

#[test]
fn calls_are_logged_as_request_and_response() {
    let fixture = Fixture::new();
    fixture.write("project/a.txt", "hello\n");
    let request = "[VRB] tool request -> fs__read ";
    for (path, response, status) in [
        ("path=a.txt", "[VRB] tool response <- fs__read ", " status=ok"),
        ("path=none.txt", "[WRN] tool response <- fs__read ", " status=failed kind=execution_error "),
    ] {
        let said = stderr(&run(&fixture, &["-v", "call", "fs__read", path]));
        for words in [request, " parameters={\"path\":", response, " latency=", status] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}
