//! What `doctor` has to say of settings that do nothing, or not what they were meant to.

use std::io::Write as _;

use serde_json::{Value, json};

use crate::command_line::cli::{json_of, program, run};
use crate::support::Fixture;

/// A document beside the configuration, and a server whose tools are fine but for one that is not offered.
fn fixture(more: &str) -> Fixture {
    let server = toolwright_testkit::bin("misbehaving-mcp");
    let fixture = Fixture::with(&format!(
        "mcpServers:\n  odd:\n    command: {}\n    tools_denied: [uncompilable]\n{more}",
        server.display()
    ));
    let document = json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://shop.example"}],
        "components": {"securitySchemes": {"bearerAuth": {"type": "http", "scheme": "bearer"}}},
        "paths": {"/orders": {"get": {"operationId": "listOrders", "tags": ["orders"], "responses": {}}}}});
    fixture.write("project/shop.json", &document.to_string());
    fixture
}

fn doctor(fixture: &Fixture) -> (Option<i32>, Value) {
    let output = run(fixture, &["doctor", "--json"]);
    (output.status.code(), serde_json::from_slice(&output.stdout).expect("json"))
}

/// Whether doctor finds exactly one fault, which is told with these words.
fn check(more: &str, words: &[&str]) {
    let (code, report) = doctor(&fixture(more));
    let findings = report["findings"].as_array().expect("findings");
    let said: Vec<&str> = findings.iter().filter_map(Value::as_str).collect();
    assert_eq!((code, report["ok"].as_bool()), (Some(1), Some(false)), "{more}: {report}");
    let fault = said.iter().find(|finding| words.iter().all(|word| finding.contains(word)));
    assert!(fault.is_some(), "{more}: {words:?} is not in {said:?}");
    let others = said.iter().filter(|finding| !finding.contains("0 tools")).count();
    assert_eq!(others, 1, "{more}: {said:?}");
}

#[test]
fn fully_matching_settings_cause_no_warning() {
    let (code, report) = doctor(&fixture(
        "    tools_allowed: ['*']\n    tools: {echo: {title: Echo}}\n    tools_cache: {echo: 5m}\n    background: [slow]\n\
         openapi:\n  shop: {document: shop.json, auth: {bearerAuth: {token: x}}, tags: [ORDERS], methods: [get], operations: {listOrders: {title: All}, GET /orders: {}}}\n\
         defaults: {builtins_denied: ['shell__*']}\nselection: {pinned: ['fs:read', odd__echo]}\n\
         restTools:\n  issue: {description: x, url: 'https://api.example/${parameters.id}', parameters: {type: object, properties: {id: {type: string}}, required: [id]}, examples: [{id: a}]}\n\
         views:\n  a: {allow: ['odd__*', odd__resources_read, odd__uncompilable, 'shop__*'], deny: ['fs__*', 'agent__*']}\n\
         policy:\n  tools: [{tool: 'odd:hang', tags: [slow]}]\n  rules:\n  - {effect: deny, tool: 'shell__*'}\n  - {effect: ask, tag: orders}\n  - {effect: ask, tag: slow}\n  - {effect: ask, namespace: odd, role: nobody}\n  - {effect: deny, tool: 'client:sample'}\n  - {effect: allow, effects: {read_only: true}}\n",
    ));
    assert_eq!((code, &report["findings"]), (Some(0), &json!([])), "{report}");
}

#[test]
fn doctor_names_schemas_changed_for_clients() {
    let rest = "restTools:\n  issue:\n    description: x\n    url: 'https://api.example/x'\n    parameters: {type: object, properties: {id: {type: string}, at: {type: string}}, anyOf: [{required: [id]}, {required: [at]}]}\n";
    let (code, report) = doctor(&fixture(rest));
    let named = |report: &Value| -> Vec<String> {
        let losses = report["schemas"].as_array().expect("a list").iter();
        let own = losses.filter(|loss| loss["tool"].as_str().is_some_and(|tool| tool.ends_with("__issue")));
        own.filter_map(|loss| loss["keyword"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!((code, named(&report)), (Some(0), vec!["anyOf".to_owned()]), "it is no fault: {report}");
    let mut tools = report["schemas"].as_array().expect("a list").iter().filter_map(|loss| loss["tool"].as_str());
    let tool = tools.find(|tool| tool.ends_with("__issue")).expect("its name").to_owned();
    let fixture = fixture(rest);
    let said = |args: &[&str]| String::from_utf8(run(&fixture, args).stdout).expect("text");
    let doctor_said = said(&["doctor"]);
    assert!(doctor_said.contains(&format!("{tool}: clients are listed its schema in a form")), "{doctor_said}");
    let shown = said(&["tools", "show", &tool]);
    assert!(shown.contains("the root: anyOf — not taken at the root"), "{shown}");
    let whole: Value = serde_json::from_str(&said(&["tools", "show", &tool, "--json"])).expect("json");
    assert_eq!(whole["listed"]["inputSchema"]["description"], "Needs at least one of these: `id`; or `at`.", "{whole}");
    assert_eq!(whole["definition"]["parameters"]["anyOf"][0]["required"][0], "id", "its own stays: {whole}");
    let (_, report) = doctor(&self::fixture(&format!("{rest}server: {{schemas: raw}}\n")));
    assert_eq!(report["schemas"], json!([]), "{report}");
}

#[test]
fn unmatched_patterns_get_suggestions() {
    for (more, words) in [
        (
            "    tools_allowed: [ecoh]\n",
            &["mcp_servers.odd.tools_allowed: `ecoh` matches none of its tools", "did you mean `echo`?"][..],
        ),
        ("    background: ['sl0w*']\n", &["mcp_servers.odd.background: `sl0w*`"]),
        ("    tools: {ecoh: {title: E}}\n", &["mcp_servers.odd.tools.ecoh", "did you mean `echo`?"]),
        ("    tools_cache: {Echo: 5m}\n", &["mcp_servers.odd.tools_cache.Echo", "did you mean `echo`?"]),
        ("defaults: {builtins_denied: ['shel__*']}\n", &["defaults.builtins_denied: `shel__*`"]),
        (
            "defaults: {builtin_tools: {shell__bahs: {mode: stateful}}}\n",
            &["defaults.builtin_tools: `shell__bahs`", "did you mean `shell__bash`?"],
        ),
        ("selection: {pinned: ['fs:raed']}\n", &["selection.pinned: `fs:raed`", "did you mean `fs:read`?"]),
        ("selection: {pinned: ['web:saerch']}\n", &["selection.pinned: `web:saerch`", "did you mean `web:search`?"]),
        ("views:\n  a: {allow: ['od__*']}\n", &["views.a.allow: `od__*` matches no tool", "did you mean `odd__*`?"]),
        ("views:\n  a: {deny: [odd__ecoh]}\n", &["views.a.deny: `odd__ecoh`", "did you mean `odd__echo`?"]),
        (
            "policy:\n  rules:\n  - {effect: deny, tool: 'od:*'}\n",
            &["policy.rules: rule 1", "`tool: od:*`", "did you mean `odd:*`?"],
        ),
        (
            "policy:\n  rules:\n  - {effect: allow}\n  - {effect: deny, namespace: od}\n",
            &["rule 2", "did you mean `odd`?"],
        ),
        (
            "policy:\n  rules:\n  - {effect: deny, tag: oders}\nopenapi:\n  shop: {document: shop.json}\n",
            &["`tag: oders`", "did you mean `orders`?"],
        ),
        (
            "policy:\n  tools: [{tool: 'odd:hnag', effects: {read_only: true}}]\n",
            &["policy.tools: entry 1", "did you mean `odd:hang`?"],
        ),
        (
            "openapi:\n  shop: {document: shop.json, auth: {bearerAth: {token: x}}}\n",
            &["shop: auth.bearerAth", "sent with no call", "did you mean `bearerAuth`?"],
        ),
        (
            "openapi:\n  shop: {document: shop.json, tags: [ordrs]}\n",
            &["shop: tags: `ordrs`", "did you mean `orders`?"],
        ),
        (
            "openapi:\n  shop: {document: shop.json, methods: [gett]}\n",
            &["shop: methods: `gett`", "did you mean `GET`?"],
        ),
        (
            "openapi:\n  shop: {document: shop.json, operations: {listOrder: {title: x}}}\n",
            &["shop: operations.listOrder", "did you mean `listOrders`?"],
        ),
        (
            "openapi:\n  shop: {document: shop.json, operations_denied: [nope]}\n",
            &["shop: operations_denied: `nope`", "it has listOrders"],
        ),
        (
            "restTools:\n  issue: {description: x, url: 'https://api.example/${parameters.id}', parameters: {type: object, properties: {id: {type: string}}}, examples: [{id: 7}]}\n",
            &["rest_tools.issue.examples: number 1", "/id"],
        ),
        (
            "restTools:\n  issue: {description: x, url: 'https://api.example/${parameters.repository}', parameters: {type: object, properties: {repository: {type: string}}, required: [repositry]}}\n",
            &["rest_tools.issue.parameters: `repositry` is required", "did you mean `repository`?"],
        ),
    ] {
        check(more, words);
    }
}

#[test]
fn a_source_without_tools_is_a_finding() {
    for (more, name, words) in [
        ("    tools_allowed: [none]\n", "odd", "filtered by tools_allowed"),
        ("openapi:\n  shop: {document: shop.json, tags: [none]}\n", "shop", "its tags are orders: filtered out"),
    ] {
        let (code, report) = doctor(&fixture(more));
        let providers = report["providers"].as_array().expect("providers");
        let provider = providers.iter().find(|provider| provider["name"] == name).expect("provider");
        assert_eq!((code, &provider["ok"], &provider["tools"]), (Some(1), &json!(false), &json!(0)), "{report}");
        let findings = report["findings"].to_string();
        assert!(findings.contains(&format!("{name}: 0 tools: none of its ")) && findings.contains(words), "{findings}");
    }
}

/// What would be there if its source were, or were switched on, is not called a mistake.
#[test]
fn patterns_of_missing_sources_are_not_judged() {
    let (code, report) = doctor(&fixture(
        "  gone: {command: no-such-program-anywhere}\n  off: {command: x, enabled: false}\n\
         views:\n  a: {allow: ['gone__*', off__x]}\npolicy:\n  rules:\n  - {effect: deny, tool: 'gone:*'}\n  - {effect: ask, namespace: off}\n",
    ));
    assert_eq!((code, &report["findings"]), (Some(1), &json!([])), "{report}");
}

#[test]
fn log_warnings_are_shown() {
    let text = json!({"openapi": "3.1.0", "info": {"title": "Shop", "version": "1"},
        "servers": [{"url": "https://shop.example"}], "security": [{"key": []}],
        "components": {"securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
        "paths": {"/orders": {"get": {"operationId": "listOrders", "responses": {}}}}});
    let fixture = fixture("openapi:\n  api: {document: api.json}\n");
    fixture.write("project/api.json", &text.to_string());
    let (code, report) = doctor(&fixture);
    assert_eq!((code, &report["findings"]), (Some(0), &json!([])), "{report}");
    assert!(
        report["warnings"].to_string().contains("openapi.api: no credentials are configured for `key`"),
        "{report}"
    );
    let output = run(&fixture, &["doctor"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("warning: openapi.api: no cred") && said.contains("but for the warnings above"), "{said}");
    assert!(output.stderr.is_empty(), "the report is what was asked for: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn an_unreadable_file_is_not_missing() {
    for text in ["a: 1\na: 2\n", "mcpServers: [\n"] {
        let fixture = Fixture::with(text);
        let output = run(&fixture, &["doctor"]);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(!said.contains("no configuration file"), "{said}");
        assert!(said.contains("could not read ") && said.contains("toolwright.yaml:"), "{said}");
    }
    let said = String::from_utf8_lossy(&run(&Fixture::new(), &["doctor"]).stdout).into_owned();
    assert!(said.contains("no configuration file"), "{said}");
}

#[test]
fn a_workspace_of_everything_is_warned_of() {
    let fixture = Fixture::new();
    let output = program(&fixture).current_dir("/").args(["doctor", "--json"]).output().expect("runs");
    let report: Value = serde_json::from_slice(&output.stdout).expect("json");
    let warnings = report["warnings"].to_string();
    assert!(warnings.contains("the workspace root is /") && warnings.contains("--root FOLDER"), "{report}");
    let (_, report) = doctor(&fixture);
    assert_eq!(report["warnings"], json!([]), "{report}");
}

#[test]
fn models_are_checked_without_being_asked() {
    use std::io::{BufRead as _, BufReader, Write as _};
    // A provider that refuses the key, and one that lists its models. What they are asked is kept.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("its address");
    let answers = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for (status, body) in [
            ("401 Unauthorized", r#"{"error": {"message": "Incorrect API key", "code": "invalid_api_key"}}"#),
            ("200 OK", r#"{"data": [{"id": "gpt-5-mini"}, {"id": "gpt-5"}]}"#),
        ] {
            let (mut stream, _) = listener.accept().expect("a request");
            let mut lines = BufReader::new(stream.try_clone().expect("a second handle")).lines().map_while(Result::ok);
            asked.extend(lines.next());
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            stream.write_all(format!("{head}{body}").as_bytes()).expect("written");
        }
        asked
    });
    let fixture = Fixture::new();
    let doctor = || {
        let url = format!("http://{address}/v1");
        let mut command = program(&fixture);
        command.args(["doctor", "--json"]).env("OPENAI_BASE_URL", url).env("OPENAI_API_KEY", "sk-refused");
        let output = command.env("OLLAMA_HOST", "").output().expect("the program runs");
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).expect("json"))
    };
    let (code, report) = doctor();
    assert_eq!(code, Some(1), "{report}");
    let finding = report["findings"].to_string();
    assert!(finding.contains("Incorrect API key") && finding.contains("set OPENAI_API_KEY"), "{report}");
    assert!(!report.to_string().contains("sk-refused"), "{report}");
    let (code, report) = doctor();
    assert_eq!(code, Some(0), "{report}");
    let of =
        |name: &str| report["models"].as_array().and_then(|all| all.iter().find(|one| one["name"] == name)).cloned();
    assert_eq!(of("openai").expect("openai")["models"], json!(["gpt-5-mini", "gpt-5"]));
    // Nobody set up an Ollama: that none runs is no fault.
    assert_eq!(of("ollama").expect("ollama")["configured"], json!(false));
    assert_eq!(answers.join().expect("answered"), ["GET /v1/models HTTP/1.1", "GET /v1/models HTTP/1.1"]);
}

#[test]
fn doctor_distinguishes_healthy_and_faulty_setups() {
    let fixture = Fixture::new();
    let well = json_of(&run(&fixture, &["doctor", "--json"]));
    assert_eq!(well["providers"][0]["name"], "builtin");
    fixture.write("project/toolwright.yaml", "mcpServers:\n  gone:\n    command: no-such-program-anywhere\n  unset:\n    command: x\n    env: {A: \"${NOT_SET}\"}\ncluster: {a: 1}\n");
    let output = run(&fixture, &["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let ill = json_of(&output);
    let gone = ill["providers"]
        .as_array()
        .expect("providers")
        .iter()
        .find(|provider| provider["name"] == "gone")
        .expect("gone");
    assert!(gone["error"].as_str().is_some_and(|error| error.contains("no-such-program-anywhere")), "{gone}");
    let problems = ill["problems"].to_string();
    assert!(problems.contains("NOT_SET") && problems.contains("not supported by this version"), "{problems}");
}

#[test]
fn doctor_recognises_its_own_server() {
    for (answer, well) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok", true),
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", false),
    ] {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("accept");
            let mut request = [0; 1024];
            let read = std::io::Read::read(&mut stream, &mut request).expect("request");
            assert!(request[..read].starts_with(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:"));
            stream.write_all(answer.as_bytes()).expect("answer");
            // It stays open: nobody may wait for the end.
            let _ = stream.shutdown(std::net::Shutdown::Write);
            std::thread::sleep(std::time::Duration::from_secs(20));
            drop(listener);
        });
        let fixture = Fixture::with(&format!("server:\n  http: {address}\n"));
        let report = json_of(&run(&fixture, &["doctor", "--json"]));
        assert_eq!(report["ok"], json!(well), "{report}");
        assert_eq!(report["findings"].to_string().contains("taken by another program"), !well, "{report}");
    }
}
