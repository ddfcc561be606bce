//! One request: a typed output, calls, or both.

use serde::Deserialize;
use serde_json::{Value, json};
use toolwright::{Error, RequestAnswer, RequestConfig, RequestContext};
use toolwright_testkit::model_server::Turn;

use crate::support::{builder, scripted};

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

fn greeting() -> Value {
    json!({"_tool": "schema__greetUser", "_reasoningForCall": "to be polite", "userName": "Ada"})
}

#[tokio::test]
async fn greeting_and_summary_are_one_composed_schema() {
    let (answer, bodies) = asked(vec![json!({"output": {"summary": "short"}, "calls": []})]).await;
    let answer = answer.expect("an answer");
    assert_eq!((answer.output, answer.calls.len()), (Some(Summary { summary: "short".into() }), 0));
    let schema = &bodies[0]["response_format"]["json_schema"]["schema"];
    assert_eq!(schema["required"].as_array().map(Vec::len), Some(2), "{schema}");
    let text = schema.to_string();
    for part in ["\"output\"", "\"calls\"", "\"summary\"", "schema__greetUser", "\"userName\""] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(bodies[0].get("tools").is_none(), "{}", bodies[0]);
}

#[tokio::test]
async fn greetings_come_without_or_with_a_summary() {
    let (answer, _) = asked(vec![json!({"output": null, "calls": [greeting()]})]).await;
    let answer = answer.expect("an answer");
    let call = answer.calls[0].as_ref().expect("valid");
    assert_eq!((answer.output.is_none(), &call.arguments), (true, &json!({"userName": "Ada"})));
    let (answer, _) = asked(vec![json!({"output": {"summary": "both"}, "calls": [greeting()]})]).await;
    let answer = answer.expect("an answer");
    assert_eq!((answer.output.map(|output| output.summary), answer.calls.len()), (Some("both".into()), 1));
}

#[tokio::test]
async fn a_useless_answer_is_repaired_once() {
    let (none, wrong) = (json!({"output": null, "calls": []}), json!({"output": {"summary": 1}, "calls": []}));
    let right = json!({"output": {"summary": "now"}, "calls": []});
    let (answer, bodies) = asked(vec![wrong.clone(), right]).await;
    assert_eq!(answer.expect("an answer").output, Some(Summary { summary: "now".into() }));
    assert!(bodies[1].to_string().contains("does not fit"), "{}", bodies[1]);
    let (answer, bodies) = asked(vec![none, wrong]).await;
    assert!(matches!(answer, Err(Error::Answer(_))), "{answer:?}");
    assert_eq!(bodies.len(), 2);
}
