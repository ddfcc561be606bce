//! Whole tasks with models that write their calls into their text.

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Script, ScriptedModel, Turn, WireApi};

use crate::command_line::cli::{program, stderr};
use crate::support::Fixture;

/// One task in one format: what the model writes, turn by turn.
struct Case {
    /// `tool_format` in the configuration.
    format: &'static str,
    /// The calls that look.
    look: &'static str,
    /// The call that writes.
    write: &'static str,
    /// How the prompt shows a call.
    shown: &'static str,
}

const CASES: [Case; 3] = [
    Case {
        format: "hermes",
        look: "Looking.\n<tool_call>\n{\"name\": \"fs__grep\", \"arguments\": {\"pattern\": \"TODO\"}}\n</tool_call>\n\
               <tool_call>\n{\"name\": \"fs__glob\", \"arguments\": {\"pattern\": \"*.rs\"}}\n</tool_call>",
        write: "<tool_call>\n{\"name\": \"fs__write\", \"arguments\": {\"path\": \"report.md\", \"content\": \"a: 2\\n\
                b: 1\\n\"}}\n</tool_call>",
        shown: "<tool_call>",
    },
    Case {
        format: "qwen3-coder",
        look: "Looking.\n<tool_call>\n<function=fs__grep>\n<parameter=pattern>\nTODO\n</parameter>\n</function>\n\
               </tool_call>\n<tool_call>\n<function=fs__glob>\n<parameter=pattern>\n*.rs\n</parameter>\n</function>\n\
               </tool_call>",
        write: "<tool_call>\n<function=fs__write>\n<parameter=path>\nreport.md\n</parameter>\n<parameter=content>\n\
                a: 2\nb: 1\n\n</parameter>\n</function>\n</tool_call>",
        shown: "<function=",
    },
    Case {
        format: "bracket",
        look: "Looking.\n[/fs__grep]\n@@pattern=TODO\n[fs__grep/]\n[/fs__glob]\n@@pattern=*.rs\n[fs__glob/]",
        write: "[/fs__write]\n@@path=report.md\na: 2\nb: 1\n[fs__write/]",
        shown: "@@",
    },
];

fn script(case: &'static Case) -> Script {
    vec![
        Turn::text(case.look)
            .expecting("no tools of the API's own", |asked| asked.tool_names().is_empty())
            .expecting("the prompt lists the tools", |asked| asked.system().contains("fs__grep"))
            .expecting("the prompt shows the form", |asked| asked.system().contains(case.shown)),
        Turn::text(case.write)
            .expecting("the calls are replayed as text", |asked| asked.body.to_string().contains("Looking."))
            .expecting("no calls of the API's own", |asked| !asked.body.to_string().contains("tool_calls"))
            .expecting("both results are there", |asked| {
                let text = asked.last_user_text();
                text.contains("TODO one") && text.contains("b.rs")
            }),
        Turn::text("Three TODOs; see report.md."),
    ]
    .into()
}

/// A project whose model is asked in a format.
fn configure(fixture: &Fixture, server: &ScriptedModel, format: &str) {
    let url = server.base_url(WireApi::OpenAi);
    fixture.write(
        "project/toolwright.yaml",
        &format!(
            "models:\n  default: mine/m\n  endpoints:\n    mine: {{api: openai_chat, base_url: '{url}', api_key: k}}\n  mine: \
             {{tool_format: {format}}}\n"
        ),
    );
}

async fn printed(fixture: &Fixture, arguments: &[&str]) -> Value {
    let mut command = program(fixture);
    command.args(arguments);
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("joins").expect("runs");
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_slice(&output.stdout).expect("json")
}

fn composed(output: Value, tool: &str, arguments: Value) -> Turn {
    let mut call = json!({"_tool": tool, "_reasoningForCall": "why"});
    call.as_object_mut().expect("an object").extend(arguments.as_object().expect("arguments").clone());
    Turn::text(json!({"output": output, "calls": [call]}).to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn composed_calls_run_before_the_answer_counts() {
    let fixture = Fixture::new();
    fixture.write("project/a.rs", "// TODO one\n");
    let script: Script = vec![
        composed(Value::Null, "fs__grep", json!({"pattern": "TODO"}))
            .expecting("no tools of the API's own", |asked| asked.tool_names().is_empty())
            .expecting("one schema", |asked| asked.body["response_format"].to_string().contains("fs__grep")),
        composed(json!("One TODO."), "fs__write", json!({"path": "report.md", "content": "a: 1"}))
            .expecting("the result is there", |asked| asked.last_user_text().contains("TODO one")),
    ]
    .into();
    let server = ScriptedModel::start(script).await.expect("the scripted model");
    configure(&fixture, &server, "composed");
    let report = printed(&fixture, &["run", "count the TODOs", "--policy", "workspace", "--json"]).await;
    assert_eq!((&report["status"], &report["answer"]), (&json!("success"), &json!("One TODO.")), "{report}");
    assert_eq!(report["calls"].as_array().map(Vec::len), Some(2), "{report}");
    assert_eq!(fixture.read("project/report.md"), "a: 1");
    assert_eq!(server.failures(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_is_written_in_the_composed_form() {
    let fixture = Fixture::new();
    let script: Script =
        vec![composed(Value::Null, "fs__glob", json!({"pattern": "*.rs", "_outputPath": "found"}))].into();
    let server = ScriptedModel::start(script).await.expect("the scripted model");
    configure(&fixture, &server, "composed");
    let plan = printed(&fixture, &["plan", "make", "find the code", "--tools", "fs__*"]).await;
    assert_eq!(plan[0]["_outputPath"], "found", "{plan}");
    assert_eq!((&plan[0]["_tool"], &plan[0]["pattern"]), (&json!("fs__glob"), &json!("*.rs")), "{plan}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_task_ends_well_in_text_formats() {
    for case in &CASES {
        let fixture = Fixture::new();
        fixture.write("project/a.rs", "// TODO one\n// TODO two\n");
        fixture.write("project/b.rs", "// TODO three\n");
        let server = ScriptedModel::start(script(case)).await.expect("the scripted model");
        configure(&fixture, &server, case.format);
        let mut command = program(&fixture);
        command.args(["run", "count the TODOs", "--policy", "workspace", "--json"]);
        let output = tokio::task::spawn_blocking(move || command.output()).await.expect("joins").expect("runs");
        assert!(output.status.success(), "{}: {} {:?}", case.format, stderr(&output), server.failures());
        let report: Value = serde_json::from_slice(&output.stdout).expect("json");
        assert_eq!(report["answer"], json!("Three TODOs; see report.md."), "{}", case.format);
        assert_eq!(report["calls"].as_array().map(Vec::len), Some(3), "{}: {report}", case.format);
        assert_eq!(fixture.read("project/report.md").trim_end(), "a: 2\nb: 1", "{}", case.format);
        assert_eq!(server.failures(), Vec::<String>::new(), "{}", case.format);
    }
}
