//! Prompt caches of providers: each request of a run begins like the one before, in every API.

use serde_json::{Value, json};
use toolwright_agent::{AgentTools, Format, Limits, ReportConfig, RunConfig};
use toolwright_core::model::{Effort, ModelSettings};
use toolwright_models::Api;
use toolwright_testkit::model_server::{Answer, Reply, Turn};

use crate::faults::{APIS, FaultFixture};
use crate::fixture::{begin_with, options, run_config};

/// Three turns with calls, thoughts and a failure among them, and an end.
fn turns() -> Vec<Turn> {
    let calling = |thinking: &str, text: &str, calls: Vec<(&str, Value)>| {
        let calls = calls.into_iter().map(|(name, arguments)| (name.to_owned(), arguments)).collect();
        Turn::from(Reply::Answer(Answer { thinking: thinking.into(), text: text.into(), calls, ..Answer::default() }))
    };
    vec![
        calling("Two at once.", "Let me see.", vec![("t__count", json!({"n": 1})), ("t__count", json!({"n": 2}))]),
        calling("", "", vec![("t__nothing", json!({}))]),
        calling("Once more.", "", vec![("t__count", json!({"n": "three"}))]),
        Turn::text("Done."),
    ]
}

/// A value without cache marks.
fn bare(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, _)| *key != "cache_control");
            kept.map(|(key, value)| (key.clone(), bare(value))).collect()
        }
        Value::Array(items) => items.iter().map(bare).collect(),
        other => other.clone(),
    }
}

/// The tools and the system prompt as bytes, and the messages as bytes without the end of their list.
fn prompt(api: Api, body: &Value) -> (String, String) {
    let body = bare(body);
    let (system, messages) = match api {
        Api::OpenAiChat | Api::Ollama => ("", "messages"),
        Api::OpenAiResponses => ("instructions", "input"),
        Api::Anthropic => ("system", "messages"),
        Api::Gemini => ("systemInstruction", "contents"),
    };
    let messages = body[messages].to_string();
    let before = format!("{}{}", body["tools"], body.get(system).unwrap_or(&Value::Null));
    (before, messages.trim_end_matches(']').to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_request_begins_like_the_one_before() {
    for api in APIS {
        let bench = FaultFixture::new(api, turns()).await;
        let effort = Some(Effort::Medium);
        let settings = ModelSettings { effort, ..ModelSettings::default() }.into();
        let agent_tools = AgentTools { task_status: true, batch: true, ..AgentTools::default() };
        let mut state = begin_with(RunConfig { settings, agent_tools, ..run_config(Limits::default()) });
        bench.driver.run(&mut state, &options()).await.unwrap();
        let sent = bench.server.requests();
        assert_eq!((sent.len(), bench.server.failures()), (4, Vec::new()), "{}", api.0);
        for pair in sent.windows(2) {
            let (earlier, later) = (prompt(api.0, &pair[0].body), prompt(api.0, &pair[1].body));
            assert_eq!(earlier.0, later.0, "{}: tools and system prompt", api.0);
            assert!(later.1.starts_with(&earlier.1), "{}:\n{}\n{}", api.0, earlier.1, later.1);
            let thinking = |body: &Value| {
                ["thinking", "reasoning_effort", "reasoning", "think", "output_config"].map(|key| body[key].clone())
            };
            assert_eq!(thinking(&pair[0].body), thinking(&pair[1].body), "{}: thinking is told alike", api.0);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropic_caches_the_prompt_until_the_last_turn() {
    let report = json!({"status": "success", "format": "text", "content": "Done."});
    let turns = vec![
        Turn::calls(vec![("t__count", json!({"n": 1}))]),
        Turn::calls(vec![("t__count", json!({"n": 2}))]),
        Turn::calls(vec![("agent__final_report", report)]),
    ];
    let bench = FaultFixture::new(APIS[2], turns).await;
    let agent_tools = AgentTools { report: Some(ReportConfig::in_format(Format::Text)), ..AgentTools::default() };
    let limits = Limits { turns: 3, ..Limits::default() };
    bench.driver.run(&mut begin_with(RunConfig { agent_tools, ..run_config(limits) }), &options()).await.unwrap();
    // The last turn is shown the report alone, so that nothing of it was kept, or will be asked again.
    let marks = bench
        .server
        .requests()
        .iter()
        .map(|sent| sent.body.to_string().matches("cache_control").count())
        .collect::<Vec<_>>();
    assert_eq!((APIS[2].0, marks), (Api::Anthropic, vec![3, 4, 0]));
}
