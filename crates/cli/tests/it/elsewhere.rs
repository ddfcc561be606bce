//! What other tool systems write and promise, through the program: their definitions load as they are and do the same.

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Script, Turn, WireApi};

use crate::agent::{ended, report, start, with_model};
use crate::cli::{ok, run, stderr};
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
