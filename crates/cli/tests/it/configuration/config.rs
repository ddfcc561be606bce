//! Broken and good configurations.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use toolwright::config::{Config, Server, Severity, json_schema};
use toolwright::mcp::client::{AsTools, McpTransport};
use toolwright::models::TimeoutOverrides;

use crate::support::Fixture;

/// The one problem of a configuration must have this line, field and severity, and say these words.
pub(crate) fn broken(text: &str, line: u32, field: &str, severity: Severity, words: &[&str]) {
    let fixture = Fixture::with(text);
    let config = fixture.load();
    let [problem] = &config.problems[..] else { panic!("{text}\nwants one problem, has {:#?}", config.problems) };
    assert_eq!(problem.file.as_deref(), Some(fixture.path("project/toolwright.yaml").as_path()), "{problem}");
    assert_eq!((problem.line, problem.field.as_str(), problem.severity), (Some(line), field, severity), "{problem}");
    assert!(!problem.remedy.is_empty(), "{problem}");
    for word in words {
        assert!(problem.to_string().contains(word), "{word:?} is not in: {problem}");
    }
}

#[test]
fn valid_configurations_cause_no_warning() {
    for text in [
        "mcpServers:\n  a: {command: x, autoApprove: [], alwaysAllow: []}\n",
        "mcpServers:\n  a: {command: '/opt/My App/bin/server'}\n",
        "{mcpServers: {a: {url: https://h/mcp}}}\n",
        "// mine\n{\"mcpServers\": {\"a\": {\"command\": \"x\"}}}\n",
    ] {
        let config = Fixture::with(text).load();
        assert!(config.problems.is_empty() && config.servers.len() == 1, "{text}: {:?}", config.problems);
    }
    let fixture = Fixture::new();
    fixture.write("project/.mcp.json", "{\n  // ours\n  \"mcpServers\": {\"a\": {\"command\": \"x\"}} /* all */\n}\n");
    let config = fixture.load();
    assert!(config.problems.is_empty() && config.servers.len() == 1, "{:?}", config.problems);
}

#[test]
fn problems_come_in_the_order_of_their_lines() {
    let config = Fixture::with("views:\n  fs: {allow: [x], dney: []}\nwbe: {}\nmcpServers:\n  a: {}\n").load();
    let lines: Vec<Option<u32>> = config.problems.iter().map(|problem| problem.line).collect();
    assert!(lines.len() > 1 && lines.is_sorted(), "{:?}", config.problems);
}

#[test]
fn one_failing_server_does_not_stop_others() {
    let fixture = Fixture::with(
        "mcpServers:\n  bad:\n    command: 7\n  good:\n    command: x\n    args: [-p, 8080, 1.10]\n  off:\n    command: y\n    disabled: true\n  odd:\n    url: ${U}\n",
    );
    let config = fixture.load();
    assert!(!config.is_unusable());
    let names: Vec<_> = config.servers.iter().map(|server| server.entry.as_str()).collect();
    assert_eq!(names, ["good"]);
    let McpTransport::Stdio { args, .. } = &config.servers[0].config.transport else { panic!("stdio") };
    assert_eq!(args, &["-p", "8080", "1.10"], "numbers stay as they were written");
}

#[test]
fn a_pasted_client_block_works() {
    let fixture = Fixture::with(
        "{\n  \"mcpServers\": {\n    \"github\": {\n      \"type\": \"streamable-http\",\n      \"serverUrl\": \"https://h/mcp\",\n      \"headers\": {\"Authorization\": \"Bearer ${GH}\"}\n    },\n    \"time\": {\"command\": \"uvx\", \"args\": [\"mcp-server-time\"], \"transport\": \"stdio\"}\n  }\n}\n",
    )
    .set("GH", "ghp_0123456789");
    let config = fixture.load();
    assert!(config.problems.is_empty(), "{:?}", config.problems);
    assert_eq!(config.servers.len(), 2);
    assert_eq!(config.secrets, ["ghp_0123456789"]);
    assert!(!config.to_redacted_json().to_string().contains("ghp_"));
}

#[test]
fn literal_secrets_are_known_and_masked() {
    let fixture = Fixture::with(
        "mcpServers:\n  a:\n    command: x\n    env: {API_KEY: sk-literal-1, HOME_DIR: /tmp/x, CACHE: \"${HOME}\"}\n",
    );
    let config = fixture.load();
    assert_eq!(config.secrets, ["sk-literal-1"]);
    let shown = config.to_redacted_json().to_string();
    assert!(!shown.contains("sk-literal-1") && shown.contains("[secret]") && shown.contains("${HOME}"), "{shown}");
}

#[test]
fn views_are_read_and_tokens_hidden() {
    let fixture = Fixture::with(
        "views:\n  small: {allow: ['git__*'], deny: ['git__push'], expose: search, profile: ask, roles: [dev]}\nserver:\n  \
         tokens:\n    ci: {token: \"${CI}\", roles: [dev], views: [small]}\n    all: {token: sk-all}\n",
    )
    .set("CI", "sk-of-ci");
    let config = fixture.load();
    assert_eq!(config.problems, []);
    let tokens: Vec<_> =
        config.sections.server.tokens.values().map(|client| (client.token.expose(), client.views.is_some())).collect();
    assert_eq!(tokens, [("sk-of-ci", true), ("sk-all", false)]);
    assert_eq!((config.sections.views["small"].allowed.len(), &config.key_variables[..]), (1, &["CI".to_owned()][..]));
    let shown = config.to_redacted_json().to_string();
    assert!(!shown.contains("sk-"), "{shown}");
}

#[test]
fn literal_secrets_are_redacted_everywhere() {
    let fixture = Fixture::with(
        "mcpServers:\n  a:\n    command: x\n    args: [--api-key=sk-argument, --token, tok-argument, -y, --header, 'X-Thing: described', 'Authorization: Bearer bear-argument']\n    env: {DB: 'postgres://me:db-password@h/x', A_KEY: \"${UNSET:-sk-default}\"}\n  b:\n    url: https://me:url-password@h/mcp?mode=described&access_token=tok-query#described\n    headers: {X-Api-Key: sk-header, X-Region: described}\n",
    );
    let config = fixture.load();
    assert!(config.problems.is_empty(), "{:?}", config.problems);
    assert_eq!(
        config.secrets,
        [
            "sk-argument",
            "tok-argument",
            "bear-argument",
            "db-password",
            "sk-default",
            "url-password",
            "tok-query",
            "sk-header"
        ]
    );
    let shown = config.to_redacted_json().to_string();
    for secret in config.secrets.iter().map(String::as_str).chain(["described"]) {
        assert!(!shown.contains(secret), "{secret}: {shown}");
    }
}

#[test]
fn nearer_layers_win_key_by_key() {
    let fixture = Fixture::with(
        "mcpServers:\n  a:\n    command: near\ndefaults:\n  tool_timeout: 1s\npolicy:\n  rules:\n    - effect: deny\n      tool: x\n",
    );
    fixture.write("project/.mcp.json", "{\"mcpServers\": {\"b\": {\"command\": \"shared\"}}, \"other\": 1}");
    fixture.write(
        "home/.config/toolwright/toolwright.yaml",
        "mcpServers:\n  a:\n    command: far\n    cwd: /far\n  c:\n    command: far\ndefaults:\n  tool_timeout: 2s\n  calls_per_turn: 3\npolicy:\n  rules:\n    - effect: ask\n",
    );
    let config = fixture.load();
    let commands = |config: &Config| {
        let of = |server: &Server| match &server.config.transport {
            McpTransport::Stdio { command, .. } => (server.entry.clone(), command.clone()),
            _ => panic!("stdio"),
        };
        let all: Vec<_> = config.servers.iter().map(of).collect();
        all.iter().map(|(entry, command)| format!("{entry} {command}")).collect::<Vec<_>>()
    };
    assert_eq!(commands(&config), ["a near", "b shared", "c far"]);
    assert_eq!(config.sections.defaults.calls.tool_timeout.as_secs(), 1);
    assert_eq!(config.sections.defaults.calls.calls_per_turn, 3);
    assert_eq!(config.sections.policy.rules.len(), 2);
    assert_eq!(config.sections.policy.rules[0].selector.tool.as_deref(), Some("x"), "the nearer rules come first");
    assert_eq!(config.root, std::fs::canonicalize(fixture.project()).expect("root"));
    let given = fixture.write("given/extra.yaml", "mcpServers:\n  d:\n    command: given\n    cwd: sub\n");
    let alone = fixture.load_with(|options| options.config = Some(given.clone()));
    assert_eq!(
        (commands(&alone), alone.sections.policy.rules.len(), alone.problems.len()),
        (vec!["d given".to_owned()], 0, 0)
    );
    assert_eq!(alone.root, std::fs::canonicalize(fixture.path("given")).expect("root"));
    let McpTransport::Stdio { cwd, .. } = &alone.servers[0].config.transport else { panic!("stdio") };
    assert_eq!(cwd.as_deref(), Some(&*fixture.path("given/sub")));
    let [problem] = &config.problems[..] else { panic!("{:?}", config.problems) };
    assert!(problem.field == "other" && problem.severity == Severity::Warning, "{problem}");
}

#[test]
fn type_and_address_choose_the_transport() {
    let fixture = Fixture::new();
    for (entry, expect) in [
        ("url: http://h/mcp", "http"),
        ("type: http\n    url: https://h/mcp", "http"),
        ("transport: streamable-http\n    url: https://h/mcp", "http"),
        ("type: sse\n    url: https://h/sse", "sse"),
        ("url: wss://h/mcp", "ws"),
        ("type: websocket\n    url: ws://h/mcp", "ws"),
    ] {
        fixture.write("project/toolwright.yaml", &format!("mcpServers:\n  a:\n    {entry}\n"));
        let config = fixture.load();
        let spoken = match &config.servers[0].config.transport {
            McpTransport::Stdio { .. } => "stdio",
            McpTransport::Http { .. } => "http",
            McpTransport::Sse { .. } => "sse",
            McpTransport::WebSocket { .. } => "ws",
        };
        assert_eq!(spoken, expect, "{entry}");
        assert!(config.problems.is_empty(), "{entry}: {:?}", config.problems);
    }
}

#[test]
fn no_configuration_is_no_error() {
    let fixture = Fixture::new();
    let config = fixture.load();
    assert!(config.problems.is_empty() && config.files.is_empty());
    assert_eq!(config.root, std::fs::canonicalize(fixture.project()).expect("root"));
    assert_eq!(config.state_dir, fixture.path("home/.local/state/toolwright"));
    let named = fixture.load_with(|options| options.config = Some("missing.yaml".into()));
    assert!(named.is_unusable() && named.problems[0].to_string().contains("missing.yaml"), "{:?}", named.problems);
}

#[test]
fn empty_sections_are_sections_not_given() {
    let config = Fixture::with("mcpServers:\n#  a:\n#    command: x\ndefaults:\npolicy:\n  rules:\n").load();
    assert!(config.problems.is_empty(), "{:?}", config.problems);
}

#[test]
fn queues_bind_and_clashing_namespaces_differ() {
    let fixture = Fixture::with(
        "queues:\n  slow: {concurrent: 1, wait_timeout: 2s}\nmcpServers:\n  mcp-memory: {command: x, queue: slow}\n  memory: {command: y}\n",
    );
    let config = fixture.load();
    assert_eq!(config.queues["slow"].concurrent, 1);
    let namespaces: Vec<_> = config.servers.iter().map(|server| server.namespace.as_str()).collect();
    assert_eq!(namespaces[0], "mcp-memory");
    assert!(namespaces[1].starts_with("mcp-memory-"), "{namespaces:?}");
}

#[test]
fn limits_retries_rates_and_guards_are_read() {
    let config = Fixture::with(
        "defaults: {idle_timeout: 40s}\nqueues:\n  slow: {concurrent: 1, per_minute: 30}\nmcpServers:\n  a: {command: x, queue: slow, idle_timeout: 9s, retries: 0}\n  b: {command: y, queue: default}\nrestTools:\n  r: {description: x, url: 'https://h/now', idle_timeout: 2s, retries: 3}\npolicy:\n  guards:\n    - {name: money, model: m/judge, instructions: Never pay., tool: 'bank:*', when: 'args.amount > 100', timeout: 5s}\n",
    )
    .load();
    assert!(config.problems.is_empty(), "{:?}", config.problems);
    assert_eq!(config.sections.defaults.calls.idle_timeout.map(|span| span.as_secs()), Some(40));
    assert_eq!((config.queues["slow"].per_minute, config.queues["slow"].max_waiting), (Some(30), 1024));
    let (a, b) = (&config.servers[0].config, &config.servers[1].config);
    assert_eq!((a.idle_timeout.map(|limit| limit.as_secs()), a.retries), (Some(9), 0));
    assert_eq!((b.idle_timeout, b.retries), (None, 1));
    let limits = &config.rest_tools[0].1.limits;
    assert_eq!((limits.idle_timeout.map(|limit| limit.as_secs()), limits.retries), (Some(2), Some(3)));
    assert_eq!(format!("{:?}", config.guards()), r#"[GuardBinding { name: "money", timeout: 5s, .. }]"#);
}

#[test]
fn a_rest_tool_without_placeholders_needs_no_parameters() {
    let text = "restTools:\n  a:\n    description: x\n    url: https://h/now\n";
    let config = Fixture::with(text).load();
    assert!(config.problems.is_empty(), "{:?}", config.problems);
    let expect = serde_json::json!({"type": "object", "properties": {}, "additionalProperties": false});
    assert_eq!(config.rest_tools[0].1.parameters, Some(expect));
    let value: serde_json::Value = serde_saphyr::from_str(text).expect("yaml");
    assert!(jsonschema::is_valid(&json_schema(), &value), "the schema agrees");
}

#[test]
fn the_json_schema_matches_the_program() {
    let schema = json_schema();
    let validator = jsonschema::validator_for(&schema).expect("the schema compiles");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../toolwright.yaml");
    let text = std::fs::read_to_string(example).expect("the example");
    let value: serde_json::Value = serde_saphyr::from_str(&text).expect("yaml");
    let errors: Vec<String> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    for good in
        ["{\"mcpServers\": {\"a\": {\"command\": \"x\", \"args\": [1]}}}", "{\"defaults\": {\"toolTimeout\": \"3s\"}}"]
    {
        assert!(validator.is_valid(&serde_json::from_str(good).expect("json")), "{good}");
    }
    for bad in ["{\"defualts\": {}}", "{\"defaults\": {\"builtins\": 3}}", "{\"policy\": {\"profile\": \"x\"}}"] {
        assert!(!validator.is_valid(&serde_json::from_str(bad).expect("json")), "{bad}");
    }
    let fixture = Fixture::with(&text);
    assert!(fixture.load().problems.is_empty(), "{:?}", fixture.load().problems);
}

#[test]
fn variables_with_toolwright_keys_are_recognised() {
    let fixture = Fixture::with(
        "server:\n  token: ${GATE:-x}\nmodels:\n  endpoints:\n    mine:\n      api: openai_chat\n      \
         base_url: https://${MY_HOST}/v1\n      api_key: ${MINE}\n      headers: {X-User: \"${HOME}${TEAM}\"}\n",
    )
    .set("GATE", "g")
    .set("MY_HOST", "h")
    .set("MINE", "m")
    .set("TEAM", "t");
    let config = fixture.load();
    assert_eq!(config.problems, []);
    assert_eq!(config.key_variables, ["GATE", "MINE", "TEAM"]);
}

#[test]
fn servers_are_shared_with_tools_only() {
    for (written, expect) in [
        ("enabled: true", (true, false, false, false)),
        ("shared: false\n    lazy: true", (false, true, false, false)),
        ("resources: tools\n    prompts: tools", (true, false, true, true)),
    ] {
        let config = Fixture::with(&format!("mcpServers:\n  s:\n    command: x\n    {written}\n")).load();
        assert!(config.problems.is_empty(), "{written}: {:#?}", config.problems);
        let entry = &config.servers[0].config;
        let read = (entry.shared, entry.lazy, entry.resources == AsTools::Yes, entry.prompts == AsTools::Yes);
        assert_eq!(read, expect, "{written}");
    }
}

#[test]
fn server_entries_set_start_and_message_limits() {
    for (written, expect) in [
        ("enabled: true", Some((Duration::from_secs(30), 16 << 20))),
        ("connect_timeout: 2m", Some((Duration::from_secs(120), 16 << 20))),
        ("maxMessageBytes: 1048576", Some((Duration::from_secs(30), 1 << 20))),
        ("max_message_bytes: 1024", None),
        ("max_message_bytes: 99999999999", None),
    ] {
        let config = Fixture::with(&format!("mcpServers:\n  s:\n    command: x\n    {written}\n")).load();
        let read = config.servers.first().filter(|_| config.problems.is_empty());
        let read = read.map(|server| (server.config.connect_timeout, server.config.max_message_bytes));
        assert_eq!(read, expect, "{written}: {:#?}", config.problems);
    }
}

#[test]
fn ttl_is_a_duration_or_off() {
    use std::time::Duration;
    let minutes = |n: u64| Some(Duration::from_secs(60 * n));
    for (written, of_server, of_tool) in [
        ("cache: 300000", minutes(5), None),
        ("cache: 5m\n    toolsCache: {search: 1m, get: off}", minutes(5), Some(minutes(1))),
        ("cache: off\n    tools_cache: {search: 60000}", None, Some(minutes(1))),
        ("cache: false\n    tools_cache: {search: 'off'}", None, Some(None)),
    ] {
        let config = Fixture::with(&format!("mcpServers:\n  s:\n    command: x\n    {written}\n")).load();
        assert!(config.problems.is_empty(), "{written}: {:#?}", config.problems);
        let entry = &config.servers[0].config;
        assert_eq!(
            (entry.cache.0, entry.tools_cache.get("search").map(|ttl| ttl.0)),
            (of_server, of_tool),
            "{written}"
        );
    }
    for (written, ttl) in [("2h", minutes(120)), ("off", None)] {
        let text = format!("restTools:\n  t:\n    description: d\n    url: http://h/\n    cache: {written}\n");
        let config = Fixture::with(&text).load();
        assert_eq!((config.problems.len(), config.rest_tools[0].1.cache.0), (0, ttl), "{written}");
    }
    broken(
        "mcpServers:\n  s:\n    command: x\n    cache: often\n",
        4,
        "mcp_servers.s.cache",
        Severity::EntryDisabled,
        &["duration"],
    );
}

#[test]
fn a_faulty_document_leaves_out_its_entry() {
    let fixture = Fixture::with(
        r#"
openapi:
  shop:
    document: ./shop.yaml
    baseUrl: http://127.0.0.1/${STAGE}
    auth: { k: { token: "${KEY}" }, b: { username: u, password: "${KEY}" } }
    headers: { X-Tenant: "${STAGE}" }
    timeout: 20s
    operations: { list: { name: ls, select: /items/*/id, timeout: 1s } }
  remote: { document: "https://h.example/api.json", group_by: tag, prefix: far }
  off: { enabled: false, document: x }
  unset: { document: x, headers: { A: "${UNSET}" } }
  rest: { document: x }
  twice: { document: x, prefix: far }
  half: { document: x, auth: { k: { username: u } } }
  bad: { document: x, operations: { o: { select: items } } }
  none: {}
catalogues:
  shop: { url: "https://h.example/c.json", keys: [] }
"#,
    )
    .set("STAGE", "v2")
    .set("KEY", "s3cret-key");
    let config = fixture.load();
    let names: Vec<&str> = config.openapi.iter().map(|document| document.name.as_str()).collect();
    assert_eq!(names, ["shop", "far"], "{:?}", config.problems);
    let shop = &config.openapi[0];
    assert_eq!(shop.base_url.as_deref(), Some("http://127.0.0.1/v2"));
    assert_eq!(shop.headers["X-Tenant"], "v2");
    assert_eq!(shop.calls.limits.timeout, Some(std::time::Duration::from_secs(20)));
    assert_eq!(shop.operations["list"].calls.limits.timeout, Some(std::time::Duration::from_secs(1)));
    assert_eq!(shop.auth.len(), 2);
    assert!(config.secrets.iter().any(|secret| secret == "s3cret-key"));
    assert!(
        !config.to_redacted_json().to_string().contains("s3cret-key") && !format!("{shop:?}").contains("s3cret-key")
    );
    let mut left_out: Vec<&str> = config.problems.iter().map(|problem| problem.field.as_str()).collect();
    left_out.sort_unstable();
    assert_eq!(
        left_out,
        [
            "catalogues.shop",
            "catalogues.shop.keys",
            "openapi.bad.operations.o.select",
            "openapi.half.auth.k",
            "openapi.none.document",
            "openapi.rest",
            "openapi.twice",
            "openapi.unset.headers.A",
        ]
    );
    assert!(!config.is_unusable());
}

#[test]
fn models_inherit_their_providers_terms() {
    let fixture = Fixture::with(
        "models:\n  p: { window: 8000, queue: { requests_per_minute: 60 }, retry: { longest_wait: 90s }, timeouts: { first_byte: 20s, idle: 5s } }\n  \
         p/m: { max_output: 500, timeouts: { idle: 30s }, queue: { concurrent: 2, wait_timeout: 1m } }\n  \
         q: { strict_tools: true }\n",
    );
    let config = fixture.load();
    assert!(config.problems.is_empty(), "{:#?}", config.problems);
    let terms = |name: &str| config.model_traffic().get(name).cloned();
    let (p, m) = (terms("p").expect("terms"), terms("p/m").expect("terms"));
    let queue = p.queue.expect("a queue");
    assert_eq!((queue.concurrent, queue.requests_per_minute, queue.wait_timeout.as_secs()), (32, Some(60), 600));
    let retry = p.retry.expect("terms of retry");
    assert_eq!((retry.attempts, retry.longest_wait.as_secs()), (4, 90));
    let queue = m.queue.expect("a queue");
    assert_eq!((queue.concurrent, queue.requests_per_minute, queue.wait_timeout.as_secs()), (2, None, 60));
    assert_eq!((m.retry, terms("q")), (None, None));
    let overrides = |name: &str| config.model_overrides.iter().find(|(of, _)| of == name).expect("overrides").1.clone();
    let m = overrides("p/m");
    assert_eq!((m.window, m.max_output), (Some(8000), Some(500)), "the window is the provider's");
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!((m.timeouts.idle, m.timeouts.first_byte), (seconds(30), seconds(20)));
    assert_eq!(overrides("q").timeouts, TimeoutOverrides::default());
    for (text, line, field) in [
        ("models:\n  p:\n    retry: { attempts: 0 }\n", 3, "models.p.retry.attempts"),
        ("models:\n  p:\n    queue: { requests_per_minute: 0 }\n", 3, "models.p.queue.requests_per_minute"),
        ("models:\n  p:\n    max_output: 0\n", 3, "models.p.max_output"),
        ("models:\n  p:\n    top_k: 0\n", 3, "models.p.top_k"),
    ] {
        broken(text, line, field, Severity::Error, &["too small", "1 or more"]);
    }
}

#[test]
fn models_inherit_their_providers_settings() {
    let fixture = Fixture::with(
        "models:\n  p: { effort: low, top_p: 0.5, stop: [END], cache: 1h, temperature: 0.3, keep_alive: 2h }\n  \
         p/m: { thinking_tokens: 0, seed: 7, cache: off, keep_alive: 30s }\n",
    );
    let config = fixture.load();
    assert!(config.problems.is_empty(), "{:#?}", config.problems);
    let overrides = |name: &str| config.model_overrides.iter().find(|(of, _)| of == name).expect("overrides").1.clone();
    let (p, m) = (overrides("p"), overrides("p/m"));
    let said = |settings| serde_json::to_value(settings).expect("settings");
    assert_eq!(said(p.settings), json!({"effort": "low", "top_p": 0.5, "stop": ["END"], "cache": "1h"}));
    let expect = json!({"thinking_tokens": 0, "top_p": 0.5, "seed": 7, "stop": ["END"], "cache": "off"});
    assert_eq!(said(m.settings), expect, "to think for no time is a word on effort too");
    assert_eq!((m.temperature, m.keep_alive), (Some(0.3), Some(Duration::from_secs(30))));
    for (text, field, part) in [
        ("models:\n  p:\n    stop: [' ']\n", "models.p.stop", "blank"),
        ("models:\n  p:\n    stop: [a, b, c, d, e]\n", "models.p.stop", "more than 4"),
        ("models:\n  p:\n    effort: lots\n", "models.p.effort", "lots"),
    ] {
        let problems = Fixture::with(text).load().problems;
        let found = problems.iter().any(|problem| problem.field == field && problem.message.contains(part));
        assert!(found, "{text}: {problems:#?}");
    }
}
