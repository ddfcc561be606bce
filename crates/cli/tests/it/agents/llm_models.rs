//! Which models LLM-backed tools ask and are listed for, and what a call says of the way to them.

use serde_json::{Value, json};
use toolwright_testkit::model_server::{RecordedRequest, Reply, Script, ScriptedModel, Turn, WireApi};

use crate::agents::agent::{ended, report, start};
use crate::command_line::cli::{program, run, stderr};
use crate::support::Fixture;

const CLASSIFY: &str = r#"{"request": "my money back", "suggestions": ["login", "refund"]}"#;

fn classified() -> Reply {
    Reply::text(r#"{"reasoning": "r", "selected_index": 1, "confidence": 0.9}"#)
}

/// Models that classify, but for `refused`, whose key is no good.
async fn server() -> ScriptedModel {
    let answer = |asked: &RecordedRequest| match asked.model() {
        "refused" => Reply::error(401, "no such key"),
        _ => classified(),
    };
    ScriptedModel::start(Script::from(vec![Turn::computed(answer)]).repeating()).await.expect("a port")
}

/// The provider `good` at this server, and further settings.
fn fixture(server: &ScriptedModel, more: &str) -> Fixture {
    let url = server.base_url(WireApi::OpenAi);
    Fixture::with(&format!(
        "models:\n  endpoints:\n    good: {{api: openai_chat, base_url: '{url}', api_key: sk-0123456789}}\n{more}"
    ))
}

fn recommend(fixture: &Fixture, tool: &str, models: &[&str]) {
    fixture.write("project/toolwright-compat.json", &json!({tool: {"recommended": models}}).to_string());
}

fn asked(server: &ScriptedModel) -> Vec<String> {
    server.requests().iter().filter_map(|asked| Some(asked.body["model"].as_str()?.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_use_recommended_models_by_default() {
    let (server, ollama) = (server().await, server().await);
    let fixture = fixture(&server, "");
    let nothing = [("OLLAMA_HOST", "127.0.0.1:1".to_owned())];
    let running = [("OLLAMA_HOST", ollama.url())];
    let call = ["call", "llm__classify", CLASSIFY, "--json"];
    // Nothing says a model: the one that runs here, if one does.
    let output = ended(start(&fixture, &nothing, &call)).await;
    assert!(output.status.code() == Some(2) && stderr(&output).contains("no model is configured"), "{output:?}");
    for way in ["models.default in the configuration", "models.endpoints", "--models"] {
        assert!(stderr(&output).contains(way), "{way}: {}", stderr(&output));
    }
    let output = ended(start(&fixture, &running, &call)).await;
    assert_eq!(report(&output)["extras"]["model"], "ollama/scripted:latest", "{}", stderr(&output));
    // A recommendation goes before it, whether one runs or not, and the next takes the place of one that fails.
    recommend(&fixture, "llm:classify@1.0.0", &["good/m"]);
    for variables in [&nothing, &running] {
        let output = ended(start(&fixture, variables, &call)).await;
        assert_eq!(report(&output)["extras"]["model"], "good/m", "{}", stderr(&output));
    }
    recommend(&fixture, "llm:classify@1.0.0", &["good/refused", "good/next"]);
    let output = ended(start(&fixture, &running, &call)).await;
    assert_eq!(report(&output)["extras"]["model"], "good/next", "{}", stderr(&output));
    assert_eq!(asked(&server), ["m", "m", "refused", "next"]);
    // Of another tool it says nothing.
    recommend(&fixture, "llm:score@1.0.0", &["good/m"]);
    let output = ended(start(&fixture, &running, &call)).await;
    assert_eq!(report(&output)["extras"]["model"], "ollama/scripted:latest", "{}", stderr(&output));
}

fn listed(fixture: &Fixture) -> Vec<String> {
    let output = program(fixture).args(["tools", "ls", "--json"]).output().expect("runs");
    let tools: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let names = tools.iter().filter_map(|tool| tool["wire_name"].as_str()?.strip_prefix("llm__"));
    names.map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn shipped_tools_need_a_known_model() {
    let server = server().await;
    let six = ["summarize", "classify", "score", "structure", "clarify", "fact-extract"];
    let check = |more: &str, recommended: &[(&str, &str)], expect: &[&str]| {
        let fixture = fixture(&server, more);
        let tools =
            recommended.iter().map(|(tool, model)| (format!("llm:{tool}@1.0.0"), json!({"recommended": [model]})));
        fixture.write("project/toolwright-compat.json", &Value::from_iter(tools).to_string());
        assert_eq!(listed(&fixture), expect, "{more} {recommended:?}");
    };
    check("", &[], &[]);
    check("llmTools: {classify: {modelPreference: {preferredModel: good/m}}}\n", &[], &["classify"]);
    check("llmTools: {score: {modelPreference: {fallbackModels: [nowhere/x, good/m]}}}\n", &[], &["score"]);
    check("llmTools: {score: {modelPreference: {preferredModel: nowhere/x}}}\n", &[], &[]);
    check("", &[("clarify", "good/m")], &["clarify"]);
    check("", &[("clarify", "nowhere/x")], &[]);
    check("  default: good/m\n", &[], &six);
    // What a tool names counts before the default, and alone.
    let names = "  default: good/m\nllmTools: {score: {modelPreference: {preferredModel: nowhere/x}}}\n";
    check(names, &[], &["summarize", "classify", "structure", "clarify", "fact-extract"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_reports_retries_and_fallbacks() {
    let script: Script =
        vec![Turn::error(503, "come back later"), Turn::error(401, "no such key"), Turn::computed(|_| classified())]
            .into();
    let server = ScriptedModel::start(script).await.expect("a port");
    let fixture = fixture(&server, "");
    recommend(&fixture, "llm:classify@1.0.0", &["good/first", "good/next"]);
    let output = ended(start(&fixture, &[], &["call", "llm__classify", CLASSIFY, "--json"])).await;
    assert_eq!(report(&output)["extras"]["model"], "good/next", "{}", stderr(&output));
    let said = stderr(&output);
    assert!(said.contains("good/first: again in ") && said.contains("come back later"), "{said}");
    assert!(
        said.contains("llm__classify: good/next in place of good/first: ") && said.contains("no such key"),
        "{said}"
    );
    assert!(!said.contains("→") && !said.contains("✓"), "{said}");
}

#[test]
fn an_unusable_model_is_a_usage_error() {
    let fixture = Fixture::new();
    for (model, why) in [
        ("openai/gpt-5", "set OPENAI_API_KEY, or name its server under models.endpoints.openai"),
        ("nowhere/x", "names the unknown provider `nowhere`: name its server under models.endpoints.nowhere"),
        ("bare", "write provider/model"),
    ] {
        for command in [&["call", "llm__classify", CLASSIFY][..], &["run", "x", "--policy", "ask"]] {
            let output = run(&fixture, &[command, &["--model", model]].concat());
            assert!(output.status.code() == Some(2) && stderr(&output).contains(why), "{command:?}: {output:?}");
        }
    }
}

#[test]
fn models_without_fitting_tools_are_reported() {
    let fixture = Fixture::with("models:\n  endpoints:\n    good: {api: ollama, base_url: 'http://127.0.0.1:1'}\n");
    for (model, why) in
        [("good/m", "`toolwright bench --models good/m` measures it"), ("nowhere/x", "unknown provider")]
    {
        let output = run(&fixture, &["tools", "ls", "--model", model]);
        assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_placeholder_key_is_not_redacted() {
    for (key, hidden) in [("none", false), ("ollama", false), ("sk-0123456789", true)] {
        let said = format!("none of the tests of ollama at {key}");
        let server = ScriptedModel::start(Script::from(vec![Turn::error(400, said.clone())])).await.expect("a port");
        let variables = [("OPENAI_BASE_URL", server.base_url(WireApi::OpenAi)), ("OPENAI_API_KEY", key.to_owned())];
        let fixture = Fixture::new();
        let output =
            ended(start(&fixture, &variables, &["call", "llm__classify", CLASSIFY, "--model", "openai/m"])).await;
        assert_eq!(stderr(&output).contains(&said), !hidden, "{key}: {}", stderr(&output));
        assert!(stderr(&output).contains("none of the tests of ollama"), "{key}: {}", stderr(&output));
        assert!(!hidden || !stderr(&output).contains(key), "{}", stderr(&output));
    }
}

#[test]
fn tool_files_are_relative_to_their_configuration() {
    let fixture = Fixture::with("llm_tools:\n  near: {file: near.yaml}\n");
    let tool = |says: &str| format!("description: Says.\nparameters: {{type: object}}\ntemplate: {says}\n");
    fixture.write("home/.config/toolwright/toolwright.yaml", "llm_tools:\n  far: {file: tools/far.yaml}\n");
    fixture.write("home/.config/toolwright/tools/far.yaml", &tool("from afar"));
    fixture.write("project/near.yaml", &tool("from here"));
    let elsewhere = fixture.write("elsewhere/own.yaml", "llm_tools:\n  far: {file: far.yaml}\n");
    fixture.write("elsewhere/far.yaml", &tool("from elsewhere"));
    for (arguments, expect) in [
        (&["call", "llm__near", "{}"][..], "from here"),
        (&["call", "llm__far", "{}"], "from afar"),
        (&["call", "llm__far", "{}", "--config", &elsewhere.to_string_lossy()], "from elsewhere"),
    ] {
        let output = run(&fixture, arguments);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), expect, "{arguments:?}: {}", stderr(&output));
    }
}
