//! Tools that a model answers, through the program, over each model API.

use serde_json::{Value, json};
use toolwright::Toolwright;
use toolwright::config::LoadOptions;
use toolwright::core::llm::JSON_RULE;
use toolwright_testkit::model_server::{Answer, RecordedRequest, Reply, Script, Stop, Turn, WireApi};

use crate::agents::agent::{configure, ended, report, start, with_model};
use crate::command_line::cli::{ok, run, stderr};
use crate::support::Fixture;

fn model(api: WireApi) -> &'static str {
    match api {
        WireApi::OpenAi => "openai/m",
        WireApi::Anthropic => "anthropic/m",
        WireApi::Gemini => "gemini/m",
        WireApi::Responses => "mine/m",
        WireApi::Ollama => "ollama/m",
    }
}

/// The schema that a request demands of the answer, wherever its API puts it.
fn demanded(asked: &RecordedRequest) -> &Value {
    let body = &asked.body;
    match asked.api {
        WireApi::OpenAi => &body["response_format"]["json_schema"]["schema"],
        WireApi::Responses => &body["text"]["format"]["schema"],
        WireApi::Anthropic => &body["output_config"]["format"]["schema"],
        WireApi::Gemini => &body["generationConfig"]["responseJsonSchema"],
        WireApi::Ollama => &body["format"],
    }
}

/// Whether the model is held to that schema while it writes, as far as its API has a word for it.
fn is_held(asked: &RecordedRequest) -> bool {
    match asked.api {
        WireApi::OpenAi => asked.body["response_format"]["json_schema"]["strict"] == true,
        WireApi::Responses => asked.body["text"]["format"]["strict"] == true,
        WireApi::Anthropic | WireApi::Gemini | WireApi::Ollama => true,
    }
}

/// Each shipped tool: arguments, what a model says to them, and what the tool makes of it.
fn cases() -> Vec<(&'static str, Value, String, Value)> {
    let wish = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
        "additionalProperties": false});
    vec![
        (
            "summarize",
            json!({"content": "A long text.", "max_length": 40}),
            r#"{"summary": "Short.", "key_points": ["It is long."]}"#.to_owned(),
            json!({"summary": "Short.", "key_points": ["It is long."]}),
        ),
        (
            "classify",
            json!({"request": "my money back", "suggestions": ["login", "refund"]}),
            "```json\n{\"reasoning\": \"r\", \"selected_index\": 1, \"confidence\": 0.9}\n```".to_owned(),
            json!({"reasoning": "r", "selected_index": 1, "confidence": 0.9}),
        ),
        (
            "score",
            json!({"task": "t", "answer": "a", "criteria": ["wit", "length"]}),
            r#"{"feedback": "f", "breakdown": {"wit": 50, "length": 100}, "score": 99}"#.to_owned(),
            json!({"feedback": "f", "breakdown": {"wit": 50, "length": 100}, "score": 75.0}),
        ),
        (
            "structure",
            json!({"request": "to Rome", "schema": wish}),
            r#"Here you are: {"city": "Rome"}"#.to_owned(),
            json!({"city": "Rome"}),
        ),
        (
            "clarify",
            json!({"prompt": "Book a flight.", "requirements": ["says where to", "says when"]}),
            r#"{"missing": [1], "clarification_questions": ["When?"]}"#.to_owned(),
            json!({"satisfied": false, "missing_requirements": ["says when"], "clarification_questions": ["When?"]}),
        ),
        (
            "fact-extract",
            json!({"text": "Ada was born in 1815."}),
            json!({"facts": [{"key": "birth", "value": "1815", "category": "time", "quote": "born in 1815"}]})
                .to_string(),
            json!({"facts": [{"key": "birth", "value": "1815", "category": "time", "quote": "born in 1815"}]}),
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn shipped_tools_answer_over_every_api() {
    for api in WireApi::ALL {
        let turns = cases().into_iter().map(|(name, _, says, _)| {
            Turn::text(says)
                .expecting("the rule stands first", |asked| asked.system().starts_with(JSON_RULE))
                .expecting("the schema is demanded", |asked| {
                    demanded(asked)["properties"].as_object().is_some_and(|properties| !properties.is_empty())
                })
                .expecting("the model is held to it", is_held)
                .expecting("the schema is told once", |asked| asked.system().matches("this JSON Schema:").count() == 1)
                .expecting(name, move |asked| asked.last_user_text().contains('<') && asked.tool_names().is_empty())
        });
        let (server, variables) = with_model(api, Script::from(turns.collect::<Vec<Turn>>())).await;
        let fixture = Fixture::new();
        configure(&fixture, api);
        for (name, arguments, _, expect) in cases() {
            let (tool, arguments) = (format!("llm__{name}"), arguments.to_string());
            let child = start(&fixture, &variables, &["call", &tool, &arguments, "--model", model(api), "--json"]);
            let output = ended(child).await;
            assert!(output.status.success(), "{api:?} {name}: {} {:?}", stderr(&output), server.failures());
            let outcome = report(&output);
            assert_eq!((&outcome["ok"], &outcome["structured"]), (&json!(true), &expect), "{api:?} {name}: {outcome}");
            assert_eq!(outcome["extras"]["model"], model(api), "{api:?} {name}");
            assert!(outcome["extras"]["usage"]["input_tokens"].as_u64() > Some(0), "{api:?} {name}: {outcome}");
        }
        assert_eq!((server.failures(), server.requests().len()), (Vec::new(), 6), "{api:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_model_is_replaced() {
    let script: Script = vec![
        Turn::text("no JSON at all"),
        Turn::text(r#"{"summary": "S.", "key_points": []}"#)
            .expecting("the balanced mode", |asked| asked.system().contains("Retell the text")),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let fixture = Fixture::with(
        "llmTools:\n  summarize:\n    modelPreference: {preferredModel: nowhere/x, fallbackModels: [openai/a, openai/b]}\n",
    );
    let arguments = ["call", "llm__summarize", "content=text", "--mode", "balanced", "--json"];
    let output = ended(start(&fixture, &variables, &arguments)).await;
    let outcome = report(&output);
    assert_eq!(outcome["extras"]["model"], "openai/b", "{outcome} {}", stderr(&output));
    assert_eq!(outcome["extras"]["attempts"], 2);
    assert_eq!(server.failures(), Vec::<String>::new());
    let asked: Vec<Value> = server.requests().iter().map(|request| request.body["model"].clone()).collect();
    assert_eq!(asked, ["a", "b"]);
    let refused = ended(start(&fixture, &variables, &["call", "llm__summarize", "content=x", "--mode", "loud"])).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("strict, balanced"), "{}", stderr(&refused));
    let refused = ended(start(&fixture, &variables, &["call", "fs__glob", "pattern=*", "--model", "openai/a"])).await;
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("asks no model"), "{}", stderr(&refused));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unanswered_call_reports_its_usage() {
    let script: Script = vec![Turn::text("no JSON at all"), Turn::text("nor here"), Turn::error(401, "no")].into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let models = "preferredModel: openai/a, fallbackModels: [openai/b, openai/c]";
    let fixture = Fixture::with(&format!("llmTools:\n  summarize:\n    modelPreference: {{{models}}}\n"));
    let output = ended(start(&fixture, &variables, &["call", "llm__summarize", "content=text", "--json"])).await;
    let outcome = report(&output);
    assert_eq!((&outcome["ok"], server.requests().len()), (&json!(false), 3), "{outcome}");
    let usage = &outcome["extras"]["usage"];
    assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(20), &json!(10)), "{outcome}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_summary_comes_with_warning() {
    let long = json!({"summary": "word ".repeat(60), "key_points": []}).to_string();
    let (_server, variables) = with_model(WireApi::OpenAi, vec![Turn::text(long)].into()).await;
    let fixture = Fixture::new();
    let arguments = ["call", "llm__summarize", r#"{"content": "c", "max_length": 50}"#, "--json"];
    let output = ended(start(&fixture, &variables, &arguments)).await;
    let outcome = report(&output);
    assert_eq!(outcome["ok"], true, "{outcome}");
    assert_eq!(outcome["extras"]["warning"], "the summary has 60 words, and max_length is 50");
}

fn listed(fixture: &Fixture, variables: &[(&str, &str)]) -> Vec<String> {
    let mut command = crate::command_line::cli::program(fixture);
    let output = command.args(["tools", "ls", "--json"]).envs(variables.iter().copied()).output().expect("runs");
    let tools: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let names = tools.iter().filter_map(|tool| tool["wire_name"].as_str().map(str::to_owned));
    names.filter(|name| name.starts_with("llm__")).collect()
}

#[test]
fn shipped_tools_are_listed_with_a_model() {
    let six =
        ["summarize", "classify", "score", "structure", "clarify", "fact-extract"].map(|name| format!("llm__{name}"));
    let key = [("OPENAI_API_KEY", "sk-x")];
    assert_eq!(listed(&Fixture::new(), &[]), Vec::<String>::new());
    assert_eq!(listed(&Fixture::new(), &key), six);
    let without = Fixture::with("models: {default: nowhere/x}\n");
    assert_eq!(listed(&without, &[]), Vec::<String>::new());
    assert_eq!(listed(&Fixture::with("defaults: {builtins: false}\n"), &key), Vec::<String>::new());
    assert_eq!(listed(&Fixture::with("defaults: {builtins_allowed: ['llm__s*']}\n"), &key).len(), 3);
    let off = Fixture::with("llm_tools:\n  score: {enabled: false}\n");
    assert!(!listed(&off, &key).contains(&"llm__score".to_owned()));
    let output = run(&Fixture::new(), &["call", "llm__summarize", "content=x", "--model", "nowhere/x"]);
    assert!(stderr(&output).contains("nowhere/x"), "{}", stderr(&output));
}

#[test]
fn template_tools_need_no_model() {
    let fixture = Fixture::with(
        "llm_tools:\n  greet:\n    description: Greets.\n    parameters: {type: object, properties: {name: {type: string}}, \
         required: [name]}\n    prepare: {loud: 'name | upper'}\n    template: 'Dear {{ loud }},'\n  letter:\n    file: \
         letter.md\n  bad:\n    description: d\n    parameters: {type: object}\n    user: '{{ name'\n  empty: {description: \
         d}\n  lost: {file: nowhere.md}\n",
    );
    fixture.write(
        "project/letter.md",
        "---\nname: other\nkind: template\ndescription: Writes.\nparameters: {type: object, properties: {to: {type: object}}}\n\
         ---\nTo {{ to.name }}: {{ to }}\n",
    );
    assert_eq!(ok(&fixture, &["call", "llm__greet", "name=ada"]).trim(), "Dear ADA,");
    let letter = ok(&fixture, &["call", "llm__letter", r#"{"to": {"name": "Bo", "n": null}}"#]);
    assert_eq!(letter.trim(), r#"To Bo: {"name":"Bo","n":null}"#);
    let output = run(&fixture, &["call", "llm__letter", r#"{"to": {}}"#, "--json"]);
    assert_eq!(report(&output)["error"]["kind"], "invalid_parameters");
    let config = fixture.load();
    let problems: Vec<String> = config.problems.iter().map(ToString::to_string).collect();
    for part in ["llm_tools.bad.user", "llm_tools.empty.user", "llm_tools.lost.file"] {
        assert!(problems.iter().any(|problem| problem.contains(part)), "{part}: {problems:?}");
    }
    assert_eq!((problems.len(), config.named_files.len()), (3, 2), "{problems:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_tool_follows_its_file() {
    let script: Script = vec![
        Turn::text("[1, 2]")
            .expecting("the prompts", |asked| {
                asked.system().contains("You count.") && asked.last_user_text() == "Count 2: [\"a\",\"b\"]"
            })
            .expecting("the limit", |asked| {
                asked.body["max_completion_tokens"].as_u64().or(asked.body["max_tokens"].as_u64()) == Some(50)
            }),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let fixture = Fixture::with("llmTools:\n  count: {file: tools/count.md, tags: [own]}\n");
    let front = "description: Counts.\nparameters: {type: object, properties: {items: {type: array}}, required: [items]}\n\
                 output: json\nprepare: {n: items | length}\nmaxTokens: {base: 50, max: 50}\nvariants:\n  - {id: all, \
                 providerMatch: openai/}\n";
    let file =
        |system: &str| format!("---\n{front}---\n# System\n{system}\n# User\nCount {{{{ n }}}}: {{{{ items }}}}\n");
    fixture.write("project/tools/count.md", &file("You count."));
    let arguments = ["call", "llm__count", r#"{"items": ["a", "b"]}"#, "--json"];
    let output = ended(start(&fixture, &variables, &arguments)).await;
    let outcome = report(&output);
    assert_eq!((&outcome["text"], &outcome["extras"]["variant"]), (&json!("[1,2]"), &json!("all")), "{outcome}");
    assert_eq!(server.failures(), Vec::<String>::new());

    let options =
        LoadOptions { cwd: fixture.project(), state_dir: Some(fixture.path("state")), ..LoadOptions::default() };
    let app = Toolwright::open(options, fixture.load(), Box::new(|_| None)).await.expect("opens");
    let description = |app: &Toolwright| {
        let snapshot = app.catalogue().snapshot();
        let entry = snapshot.get("llm:count@1.0.0").cloned();
        entry.map(|entry| toolwright::core::llm_definition(&entry).expect("LLM-backed").system)
    };
    assert_eq!(description(&app).as_deref(), Some("You count."));
    fixture.write("project/tools/count.md", &file("You count anew."));
    let reloaded = app.reload().await.expect("reloads");
    assert!(reloaded.changed.contains(&"llm".to_owned()) && reloaded.problems.is_empty(), "{reloaded:?}");
    assert_eq!(description(&app).as_deref(), Some("You count anew."));
    fixture.write("project/toolwright.yaml", "");
    assert_eq!(app.reload().await.expect("reloads").removed, ["llm"]);
    app.shut_down().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn model_settings_merge_file_caller_configuration() {
    let file = "---\ndescription: Says it.\nparameters: {type: object}\nmodelPreference: {effort: medium, topP: 0.4, stop: \
                [END], maxTokens: 50}\nvariants:\n  - {id: usual, isDefault: true}\n  - {id: brief, mode: brief, modelPreference: {effort: minimal}}\n---\n\
                # System\nBe brief.\n# User\nSay it.\n";
    let check = async |more: &[&str], expect: Value| {
        let (server, variables) = with_model(WireApi::OpenAi, vec![Turn::text("said")].into()).await;
        let fixture = Fixture::with(
            "models:\n  openai: {seed: 7, effort: high, stop: [X]}\nllmTools:\n  say: {file: tools/say.md}\n",
        );
        fixture.write("project/tools/say.md", file);
        let arguments = [&["call", "llm__say", "{}", "--json", "--model", "openai/some-model"], more].concat();
        let output = ended(start(&fixture, &variables, &arguments)).await;
        assert_eq!(report(&output)["text"], json!("said"), "{output:?}");
        let sent = server.requests().remove(0).body;
        let keys = ["reasoning_effort", "top_p", "seed", "stop", "max_completion_tokens"];
        let said: Value = keys.iter().filter_map(|&key| Some((key.to_owned(), sent.get(key)?.clone()))).collect();
        assert_eq!(said, expect, "{more:?}");
    };
    let whole = |effort: &str, limit: u32| json!({"reasoning_effort": effort, "top_p": 0.4, "seed": 7, "stop": ["END"], "max_completion_tokens": limit});
    check(&[], whole("medium", 50 + 8192)).await;
    check(&["--effort", "none"], whole("none", 50)).await;
    let brief = json!({"reasoning_effort": "minimal", "seed": 7, "stop": ["X"]});
    check(&["--mode", "brief"], brief).await;
    let fixture = Fixture::new();
    let output = ended(start(&fixture, &[], &["call", "fs__read", "{}", "--effort", "low"])).await;
    assert!(stderr(&output).contains("--effort are for tools that do"), "{}", stderr(&output));
}

/// A model that thinks for so many tokens before it answers, as its API counts both.
fn thinks_for(tokens: u64, says: &str) -> Turn {
    let says = says.to_owned();
    Turn::computed(move |asked| {
        let body = &asked.body;
        let limit = body["max_completion_tokens"].as_u64().or(body["max_output_tokens"].as_u64());
        let limit = limit.or(body["options"]["num_predict"].as_u64()).or(body["max_tokens"].as_u64());
        let limit = limit.or(body["generationConfig"]["maxOutputTokens"].as_u64()).unwrap_or(u64::MAX);
        if limit > tokens {
            return Reply::text(says.clone());
        }
        Reply::Answer(Answer { stop: Stop::MaxTokens, ..Answer::default() })
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_models_have_room_to_answer() {
    let summary = r#"{"summary": "Short.", "key_points": []}"#;
    for (api, model) in [
        (WireApi::OpenAi, "openai/gpt-5-mini"),
        (WireApi::OpenAi, "openai/o4-mini"),
        (WireApi::Responses, "mine/gpt-5"),
        (WireApi::Gemini, "gemini/gemini-2.5-flash"),
        (WireApi::Gemini, "gemini/gemini-3-pro-preview"),
        (WireApi::Anthropic, "anthropic/claude-opus-5"),
        (WireApi::Ollama, "ollama/qwen3:8b"),
    ] {
        let script = Script::from(vec![thinks_for(1408, summary)]).repeating();
        let (server, variables) = with_model(api, script).await;
        let fixture = Fixture::new();
        configure(&fixture, api);
        let arguments = ["call", "llm__summarize", r#"{"content": "c", "max_length": 60}"#, "--model", model, "--json"];
        let outcome = report(&ended(start(&fixture, &variables, &arguments)).await);
        assert_eq!(outcome["structured"]["summary"], "Short.", "{model}: {outcome}");
        let arguments =
            ["call", "llm__classify", r#"{"request": "r", "suggestions": ["a"]}"#, "--model", model, "--json"];
        let outcome = report(&ended(start(&fixture, &variables, &arguments)).await);
        // It is cut no more: what it says is no classification.
        let error = outcome["error"]["message"].as_str().unwrap_or_default();
        assert!(error.contains("breaks its output schema"), "{model}: {outcome}");
        assert_eq!(server.requests().len(), 2, "{model}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_answer_names_effort() {
    let script = Script::from(vec![thinks_for(100_000, "{}")]).repeating();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let fixture = Fixture::new();
    let schema =
        json!({"request": "to Rome", "schema": {"type": "object", "properties": {"city": {"type": "string"}}}});
    let arguments = ["call", "llm__structure", &schema.to_string(), "--model", "openai/gpt-5-mini", "--json"];
    let outcome = report(&ended(start(&fixture, &variables, &arguments)).await);
    let error = outcome["error"]["message"].as_str().unwrap_or_default();
    assert!(error.contains("was cut at its token limit") && error.contains("`effort`"), "{outcome}");
    assert_eq!(server.requests().len(), 1, "the same is not asked again");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_overridden_limit_caps_the_shipped_rule() {
    let script = Script::from(vec![Turn::text(r#"{"reasoning": "r", "selected_index": 0, "confidence": 1}"#)]);
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let fixture = Fixture::with("llmTools:\n  classify:\n    modelPreference: {maxTokens: 120}\n");
    let arguments = ["call", "llm__classify", r#"{"request": "r", "suggestions": ["a"]}"#, "--model", "openai/m"];
    ended(start(&fixture, &variables, &arguments)).await;
    assert_eq!(server.requests()[0].body["max_completion_tokens"], 120);
    let problems = |config: &str| {
        let fixture = Fixture::with(config);
        fixture.load().problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let none = problems("llmTools:\n  classify:\n    modelPreference: {maxTokens: 0}\n");
    assert!(
        none.contains("llm_tools.classify.model_preference.max_tokens") && none.contains("write 1 or more"),
        "{none}"
    );
}

#[test]
fn a_file_may_disable_its_tool() {
    let front = |more: &str| format!("---\ndescription: d\nparameters: {{type: object}}\n{more}---\nSay it.\n");
    let check = |entry: &str, more: &str, listed_is: bool, problem: &str| {
        let fixture = Fixture::with(&format!("llmTools:\n  say: {entry}\n"));
        fixture.write("project/say.md", &front(more));
        let names = listed(&fixture, &[("OPENAI_API_KEY", "sk-x")]);
        assert_eq!(names.contains(&"llm__say".to_owned()), listed_is, "{entry} {more}: {names:?}");
        let problems: Vec<String> = fixture.load().problems.iter().map(ToString::to_string).collect();
        assert!(problems.is_empty() == problem.is_empty(), "{problems:?}");
        assert!(problems.iter().all(|said| said.contains(problem)), "{problems:?}");
    };
    check("{file: say.md}", "", true, "");
    check("{file: say.md}", "enabled: false\n", false, "");
    check("{file: say.md, enabled: true}", "enabled: false\n", true, "");
    check("{file: say.md}", "file: other.md\n", false, "it names a `file` of its own");
}
