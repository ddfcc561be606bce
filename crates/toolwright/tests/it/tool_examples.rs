//! The examples of tools that are schemas, by their titles: a definition without code and what a model makes of it, a request
//! whose schema is composed of tools and an output, and the meta-properties that say how a call runs.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use toolwright::core::RunInput;
use toolwright::core::model::Route;
use toolwright::core::plan::PlanDocument;
use toolwright::{Error, Profile, RequestAnswer, RequestConfig, RequestContext, Toolwright, tool};
use toolwright_testkit::model_server::{ScriptedModel, Turn};

use crate::support::{Add, approved, builder, calls, scripted, serve_json, with_server};

/// Multiplies two numbers.
#[tool(namespace = "math", effects(read_only, open_world = false))]
async fn multiply(a: i64, b: i64) -> String {
    (a * b).to_string()
}

/// Tools that these schemas declare, beside two that have code.
async fn declared(schemas: Value, turns: Vec<Turn>) -> (Arc<Toolwright>, ScriptedModel) {
    let builder = builder().tool(Add).tool(Multiply).policy(Profile::Trusted).settings(json!({"schemaTools": schemas}));
    let (builder, model) = scripted(builder.default_model("scripted/model"), turns).await;
    (builder.build().await.expect("builds"), model)
}

async fn sentiment_analysis() -> Arc<Toolwright> {
    let schema = json!({
        "type": "object",
        "description": "Analyzes text sentiment",
        "properties": {
            "_tool": {"type": "string", "const": "sentimentAnalysis"},
            "text": {"type": "string", "description": "Text to analyze"},
            "_output": {
                "type": "object",
                "properties": {"sentiment": {"type": "string"}, "confidence": {"type": "number"}},
            },
        },
    });
    declared(json!({"sentimentAnalysis": schema}), Vec::new()).await.0
}

#[tokio::test]
async fn tool_definition_of_sentiment_analysis() {
    let tw = sentiment_analysis().await;
    let snapshot = tw.catalogue().snapshot();
    let entry = snapshot.list().iter().find(|entry| entry.wire_name == "schema__sentimentAnalysis").expect("listed");
    assert_eq!(entry.definition().description, "Analyzes text sentiment");
    assert_eq!(
        entry.shown_schema(),
        json!({
            "type": "object",
            "properties": {
                "text": {"type": "string", "description": "Text to analyze"},
                "_output": {
                    "type": "object",
                    "properties": {"sentiment": {"type": "string"}, "confidence": {"type": "number"}},
                },
            },
            "required": ["_output"],
        })
    );
    tw.shut_down().await;
}

#[tokio::test]
async fn example_llm_output_of_sentiment_analysis() {
    let tw = sentiment_analysis().await;
    let written = json!({
        "_tool": "sentimentAnalysis",
        "text": "This is the best!",
        "_output": {"sentiment": "positive", "confidence": 0.99},
    });
    let outcome = tw.call("sentimentAnalysis", written).await.expect("accepted");
    assert_eq!(outcome.structured, Some(json!({"sentiment": "positive", "confidence": 0.99})));
    assert_eq!((&outcome.provenance.route, &outcome.extras["executed"]), (&Route::Latent, &json!(false)));
    tw.shut_down().await;
}

#[derive(Debug, PartialEq, Deserialize)]
struct Summary {
    summary: String,
}

/// What comes of these answers, written one after the other, and the bodies of the requests.
async fn asked(answers: Vec<Value>) -> (Result<RequestAnswer<Summary>, Error>, Vec<Value>) {
    let turns = answers.into_iter().map(|answer| Turn::text(answer.to_string())).collect();
    let (builder, model) = scripted(builder(), turns).await;
    let tw = builder.build().await.expect("builds");
    let config = RequestConfig { model: "scripted/model".into(), ..RequestConfig::default() };
    let output = json!({"type": "object", "properties": {"summary": {"type": "string"}}, "required": ["summary"]});
    let greet = json!({"type": "object", "properties": {"userName": {"type": "string"}}, "required": ["userName"]});
    let context = vec![
        RequestContext::Tool { name: "greetUser".into(), schema: greet },
        RequestContext::Text("some prompt here".into()),
    ];
    let answer = tw.request(&config, output, context).await;
    let bodies = model.requests().iter().map(|asked| asked.body.clone()).collect();
    tw.shut_down().await;
    (answer, bodies)
}

#[tokio::test]
async fn agent_configuration_makes_the_composed_schema() {
    let (answer, bodies) = asked(vec![json!({"output": {"summary": "short"}, "calls": []})]).await;
    answer.expect("an answer");
    let schema = &bodies[0]["response_format"]["json_schema"]["schema"];
    assert_eq!(schema["required"].as_array().map(Vec::len), Some(2), "{schema}");
    let text = schema.to_string();
    for part in ["\"output\"", "\"calls\"", "\"summary\"", "schema__greetUser", "\"userName\""] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(bodies[0].get("tools").is_none(), "{}", bodies[0]);
}

#[tokio::test]
async fn composed_answers_have_calls_output_or_both() {
    let greeting = json!({"_tool": "schema__greetUser", "_reasoningForCall": "to be polite", "userName": "Ada"});
    let summary = || json!({"summary": "short"});
    for (title, answer, expect) in [
        ("calls only", json!({"output": null, "calls": [greeting]}), (None, 1)),
        ("output only", json!({"output": summary(), "calls": []}), (Some(summary()), 0)),
        ("both", json!({"output": summary(), "calls": [greeting]}), (Some(summary()), 1)),
    ] {
        let answer = asked(vec![answer]).await.0.expect("an answer");
        let output = answer.output.map(|output| json!({"summary": output.summary}));
        assert_eq!((output, answer.calls.len()), expect, "{title}");
        for call in answer.calls {
            assert_eq!(call.expect("valid").arguments, json!({"userName": "Ada"}), "{title}");
        }
    }
}

/// Runs one call of a tool with these meta-properties in its schema, and compares what it came to.
async fn check(title: &str, (name, fields): (&str, Value), meta: Value, expect: Value) {
    let mut schema = json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}});
    schema["properties"].as_object_mut().expect("object").extend(fields.as_object().expect("object").clone());
    let report = json!({"status": "success", "format": "json", "content_json": {"sum": 44}});
    let (tw, _model) = declared(json!({name: schema}), vec![calls("agent__final_report", report)]).await;
    let mut call = json!({"_tool": format!("schema__{name}"), "a": 2, "b": 40});
    call.as_object_mut().expect("object").extend(meta.as_object().expect("object").clone());
    let input = if meta.get("_instance").is_some() { json!([{}, {}]) } else { json!({}) };
    let options = approved(RunInput::of_value(input).expect("an input"));
    let plan = PlanDocument::of_value(json!([call])).expect("a plan");
    let ran = tw.run_plan(&plan, options).await.map_err(|error| format!("{title}: {error}"));
    let ran = ran.expect("it runs").to_json();
    for (member, expect) in expect.as_object().expect("object") {
        let of = if ran.get(member).is_some() { &ran } else { &ran["calls"][0] };
        assert_eq!(&of[member], expect, "{title}: {ran}");
    }
    tw.shut_down().await;
}

#[tokio::test]
async fn meta_properties_control_how_calls_run() {
    let add = || json!({"const": "math__add"});
    let engines = || json!({"_activity": {"enum": ["math__add", "math__multiply"]}});
    let latent = || json!({"_activity": {"const": ""}, "_output": {"type": "integer"}});
    let delegated = || json!({"_delegate": {"const": "anonymous"}, "_output": {"type": "object", "required": ["sum"]}});
    let stateful = || json!({"_activity": add(), "_outputPath": {"const": "total"}});
    for (title, tool, meta, expect) in [
        ("_activity: explicit execution", ("sum", json!({"_activity": add()})), json!({}), json!({"output": 42})),
        ("an activity of the same name", ("add", json!({})), json!({}), json!({"output": 42})),
        ("one engine", ("work", engines()), json!({"_activity": "math__add"}), json!({"output": 42})),
        ("another engine", ("work", engines()), json!({"_activity": "math__multiply"}), json!({"output": 80})),
        ("latent execution", ("add", latent()), json!({"_output": 43}), json!({"output": 43})),
        ("_delegate", ("sum", delegated()), json!({}), json!({"output": {"sum": 44}})),
        ("_outputPath", ("sum", stateful()), json!({}), json!({"output": 42, "state": {"total": 42}})),
        (
            "_instance",
            ("sum", stateful()),
            json!({"_instance": "②"}),
            json!({"state": {}, "instances": {"①": {}, "②": {"total": 42}}}),
        ),
        (
            "_reasoningForCall",
            ("sum", json!({"_activity": add(), "_reasoningForCall": {"type": "string"}})),
            json!({"_reasoningForCall": "to know it"}),
            json!({"output": 42, "arguments": {"a": 2, "b": 40}}),
        ),
    ] {
        check(title, tool, meta, expect).await;
    }
}

#[tokio::test]
async fn activities_come_from_servers_endpoints_and_models() {
    let address = serve_json(json!([{"name": "Rex"}])).await;
    let by = |activity: &str, field: &str| json!({"type": "object", "properties": {field: {"type": "string"}, "_activity": {"const": activity}}});
    let settings = json!({
        "schemaTools": {
            "say": by("odd__echo", "text"), "list": by("rest__pets", "unused"), "shorten": by("llm__summarize", "content"),
        },
        "web": {"allowed_hosts": [address.to_string()]},
    });
    let endpoint = json!({"url": format!("http://{address}/pets"), "description": "Lists pets"});
    let builder = with_server(builder().builtins(["llm__summarize"]), &[])
        .rest("pets", endpoint)
        .settings(settings)
        .policy(Profile::Trusted);
    let answer = Turn::text(r#"{"summary": "Short.", "key_points": []}"#);
    let (builder, _model) = scripted(builder.default_model("scripted/model"), vec![answer]).await;
    let tw = builder.build().await.expect("builds");
    tw.offer_llm_tools().await;
    tw.connect().await.expect("connects");
    for (tool, arguments, expect) in [
        ("schema__say", json!({"text": "hello"}), "hello"),
        ("schema__list", json!({}), "Rex"),
        ("schema__shorten", json!({"content": "A long text."}), "Short."),
    ] {
        let outcome = tw.call(tool, arguments).await.unwrap_or_else(|error| panic!("{tool}: {error}"));
        assert!(outcome.text().contains(expect), "{tool}: {outcome:?}");
        assert!(matches!(outcome.provenance.route, Route::Activity(_)), "{tool}: {outcome:?}");
    }
    tw.shut_down().await;
}

#[tokio::test]
async fn an_unusable_answer_is_repaired_once() {
    let (none, wrong) = (json!({"output": null, "calls": []}), json!({"output": {"summary": 1}, "calls": []}));
    let right = json!({"output": {"summary": "now"}, "calls": []});
    let (answer, bodies) = asked(vec![wrong.clone(), right]).await;
    assert_eq!(answer.expect("an answer").output, Some(Summary { summary: "now".into() }));
    assert!(bodies[1].to_string().contains("does not fit"), "{}", bodies[1]);
    let (answer, bodies) = asked(vec![none, wrong]).await;
    assert!(matches!(answer, Err(Error::Answer(_))), "{answer:?}");
    assert_eq!(bodies.len(), 2);
}
