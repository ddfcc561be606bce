//! The files in `examples/config`: each loads without a problem, and decides as its comments promise.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Value, json};
use toolwright::config::file::TraceMcp;
use toolwright::config::{Config, LlmEntry, LoadOptions, load};
use toolwright::core::catalogue::CallScope;
use toolwright::core::policy::{Effect, HintTrust, PolicyQuery, UserRequest};
use toolwright::core::{Effects, Policy, Principal, Profile, ToolDefinition, ToolId};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/config")
}

/// Loads one, with a value for each variable that it names.
fn config(name: &str) -> Config {
    let state = tempfile::tempdir().expect("folder");
    let options = LoadOptions {
        config: Some(folder().join(name)),
        state_dir: Some(state.path().to_owned()),
        cwd: folder(),
        ..LoadOptions::default()
    };
    let named = |name: &str| name.ends_with("_TOKEN") || name.ends_with("_URL");
    let config = load(&options, &|name| named(name).then(|| format!("value-of-{name}")));
    let problems: Vec<String> = config.problems.iter().map(ToString::to_string).collect();
    assert!(problems.is_empty(), "{name}: {problems:?}");
    config
}

/// A call of a tool that nobody but the configuration says anything of, unless it is a built-in one.
struct Call<'a> {
    tool: &'a str,
    arguments: Value,
    said: &'a str,
    roles: &'a [&'a str],
}

fn call(tool: &str, arguments: Value) -> Call<'_> {
    Call { tool, arguments, said: "", roles: &[] }
}

fn decide(policy: &Policy, call: &Call<'_>) -> Effect {
    let (namespace, name) = call.tool.split_once(':').expect("an id");
    let effects = match (namespace, name) {
        ("fs", "write") => Effects { read_only: false, open_world: false, ..Effects::UNKNOWN },
        ("fs", _) => Effects { read_only: true, destructive: false, idempotent: true, open_world: false },
        ("web", _) => Effects { read_only: true, destructive: false, idempotent: true, open_world: true },
        _ => Effects::UNKNOWN,
    };
    let id = ToolId::foreign(namespace, name).or_else(|_| ToolId::format(namespace, name, "1.0.0")).expect("an id");
    let definition = ToolDefinition { effects, ..ToolDefinition::new(id, "", None) };
    let roles = call.roles.iter().map(ToString::to_string).collect();
    let principal = Principal { roles, ..Principal::owner() };
    let request = (!call.said.is_empty()).then(|| Arc::new(UserRequest::new([call.said])));
    let is_own = matches!(namespace, "fs" | "web" | "shell");
    policy
        .decide(&PolicyQuery {
            definition: &definition,
            trust: if is_own { HintTrust::Trusted } else { HintTrust::Foreign },
            principal: &principal,
            root: Path::new("/work"),
            scope: if namespace == "fs" { CallScope::Workspace } else { CallScope::Anywhere },
            unvalidated: None,
            arguments: &call.arguments,
            request: request.as_ref(),
            tainted: &[],
        })
        .effect
}

fn check(policy: &Policy, cases: &[(Call<'_>, Effect)]) {
    for (call, expect) in cases {
        assert_eq!(decide(policy, call), *expect, "{} {}", call.tool, call.arguments);
    }
}

#[test]
fn every_file_loads_without_a_problem() {
    let names: BTreeSet<String> = std::fs::read_dir(folder())
        .expect("folder")
        .map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(names.len() >= 5, "{names:?}");
    for name in names {
        config(&name);
    }
}

#[test]
fn gateways_read_without_changing_the_database() {
    let config = config("github-and-postgres.yaml");
    let sql = |text: &str| call("db:query", json!({ "sql": text }));
    check(
        &config.policy(None, Profile::Ask),
        &[
            (call("github:get_issue", json!({})), Effect::Allow),
            (call("github:search_code", json!({})), Effect::Allow),
            (call("github:create_issue", json!({})), Effect::Ask),
            (call("github:merge_pull_request", json!({})), Effect::Deny),
            (sql("SELECT * FROM users"), Effect::Allow),
            (sql("delete from users"), Effect::Deny),
            (sql("select 1; drop table users"), Effect::Deny),
            (call("db:anything_else", json!({})), Effect::Deny),
        ],
    );
    assert!(!config.sections.defaults.builtins && config.queues.contains_key("db"));
}

#[test]
fn the_agent_in_ci_only_reads() {
    let config = config("read-only-ci.yaml");
    check(
        &config.policy(None, Profile::Ask),
        &[
            (call("fs:read", json!({"path": "src/main.rs"})), Effect::Allow),
            (call("fs:read", json!({"path": ".env"})), Effect::Deny),
            (call("fs:write", json!({"path": "x"})), Effect::Deny),
            (call("shell:bash", json!({"command": "ls"})), Effect::Deny),
        ],
    );
    let shown = &config.sections.defaults.builtins_allowed;
    assert!(!shown.iter().any(|glob| glob.starts_with("web") || glob.starts_with("shell")), "{shown:?}");
}

#[test]
fn the_assistant_asks_before_unknown_senders() {
    let config = config("personal-assistant.yaml");
    let mail = |said| Call { said, ..call("mail:send", json!({"to": "ann@example.com"})) };
    check(
        &config.policy(None, Profile::Ask),
        &[
            (call("mail:read_inbox", json!({})), Effect::Allow),
            (call("calendar:list_events", json!({})), Effect::Allow),
            (call("time:get_current_time", json!({})), Effect::Allow),
            (mail("Write to ann@example.com that I am late."), Effect::Allow),
            (mail("Answer my mail."), Effect::Ask),
            (call("calendar:create_event", json!({})), Effect::Ask),
            (call("calendar:delete_event", json!({})), Effect::Deny),
        ],
    );
}

#[test]
fn the_local_setup_stays_on_this_machine() {
    let config = config("local-only.yaml");
    check(
        &config.policy(None, Profile::Ask),
        &[
            (call("fs:read", json!({"path": "x"})), Effect::Allow),
            (call("fs:write", json!({"path": "x"})), Effect::Allow),
            (call("shell:bash", json!({"command": "ls"})), Effect::Ask),
            (call("web:fetch", json!({"url": "https://example.com"})), Effect::Deny),
        ],
    );
    let address = &config.model_endpoints[0].base_url;
    assert!(address.starts_with("http://127.0.0.1:"), "{address}");
}

#[test]
fn the_team_has_tokens_views_and_roles() {
    let config = config("team-server.yaml");
    let clients: Vec<_> =
        config.sections.server.tokens.iter().map(|(name, token)| (&**name, token.views.clone())).collect();
    let of = |view: &str| Some(vec![view.to_owned()]);
    assert_eq!(clients, [("ci", of("reading")), ("support", of("support"))]);
    for view in ["reading", "support"] {
        let profile = config.sections.views[view].profile;
        assert_eq!(profile, Some(Profile::Ask), "{view}");
    }
    let of_support = |tool| Call { roles: &["support"], ..call(tool, json!({})) };
    check(
        &config.policy(None, Profile::Ask),
        &[
            (call("github:list_issues", json!({})), Effect::Allow),
            (call("github:create_issue", json!({})), Effect::Ask),
            (of_support("tickets:get_ticket"), Effect::Allow),
            (of_support("tickets:answer"), Effect::Allow),
            (of_support("tickets:assign"), Effect::Ask),
            (of_support("tickets:close"), Effect::Deny),
        ],
    );
}

/// What other tool systems write, key for key, loads here.
#[test]
fn tool_terms_of_other_systems_are_recognised() {
    let text = r#"
defaults: {toolTimeout: 30000, toolResponseMaxBytes: 100000, traceMCP: true, mcpInitConcurrency: 4}
queues:
  forge: {concurrent: 3}
  slow-api: {concurrent: 1}
mcpServers:
  forge:
    type: stdio
    command: npx
    args: ["-y", "@mcp/forge"]
    env: {FORGE_TOKEN: "${FORGE_TOKEN}"}
    toolsAllowed: [search_code, get_file]
    toolsDenied: [delete_repo]
    cache: 300000
    requestTimeoutMs: 5000
    queue: forge
restTools:
  weather:
    description: Tells the weather of a city.
    method: GET
    url: "https://api.weather.example/v1/${parameters.city}"
    headers: {Authorization: "Bearer ${WEATHER_TOKEN}"}
    parametersSchema:
      type: object
      properties: {city: {type: string, description: City name}}
      required: [city]
    queue: slow-api
llmTools:
  judge:
    description: Judges a text.
    inputSchema: {type: object, properties: {text: {type: string}}, required: [text]}
    outputSchema: {type: array, items: {type: string}}
    systemPrompt: You judge texts.
    userTemplate: "Judge: {{ text }}"
    outputFormat: json
    outputExample: [good]
    onOutputMismatch: warn
    modelPreference: {preferredModel: openai/gpt-5-mini, fallbackModels: [openai/gpt-5], maxTokens: 200}
    recommendedThreshold: 90
    variants:
      - {id: short, isDefault: true, userTemplate: "{{ text }}"}
"#;
    let folder = tempfile::tempdir().expect("folder");
    let file = folder.path().join("toolwright.yaml");
    std::fs::write(&file, text).expect("file");
    let options = LoadOptions {
        config: Some(file),
        state_dir: Some(folder.path().join("state")),
        cwd: folder.path().to_owned(),
        ..LoadOptions::default()
    };
    let config = load(&options, &|name| name.ends_with("_TOKEN").then(|| "a-value".to_owned()));
    let problems: Vec<String> = config.problems.iter().map(ToString::to_string).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let server = &config.servers[0].config;
    assert_eq!(server.request_timeout, Some(std::time::Duration::from_secs(5)));
    assert_eq!(
        (&server.tools_allowed[..], server.queue.as_deref()),
        (&["search_code".to_owned(), "get_file".to_owned()][..], Some("forge"))
    );
    assert_eq!(config.sections.defaults.trace_mcp, TraceMcp::Switch(true));
    assert_eq!(config.rest_tools[0].1.parameters.as_ref().expect("a schema")["required"], json!(["city"]));
    let [LlmEntry::Llm(judge)] = &config.llm_tools[..] else { panic!("{:?}", config.llm_tools) };
    assert_eq!((judge.system.as_str(), judge.user.as_str()), ("You judge texts.", "Judge: {{ text }}"));
    let tool = judge.tool();
    assert_eq!(tool.output_schema.expect("a schema")["properties"]["items"]["type"], "array");
    assert_eq!(
        (judge.example.clone(), json!(tool.on_output_mismatch)),
        (Some(json!({"items": ["good"]})), json!("warn"))
    );
}
