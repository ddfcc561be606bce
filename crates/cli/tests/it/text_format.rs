//! Whole tasks with models that write their calls into their text.

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Script, ScriptedModel, Turn, WireApi};

use crate::cli::{program, stderr};
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

#[tokio::test(flavor = "multi_thread")]
async fn a_real_task_ends_well_in_text_formats() {
    for case in &CASES {
        let fixture = Fixture::new();
        fixture.write("project/a.rs", "// TODO one\n// TODO two\n");
        fixture.write("project/b.rs", "// TODO three\n");
        let server = ScriptedModel::start(script(case)).await.expect("the scripted model");
        let url = server.base_url(WireApi::OpenAi);
        fixture.write(
            "project/toolwright.yaml",
            &format!(
                "models:\n  default: mine/m\n  endpoints:\n    mine: {{api: openai_chat, base_url: '{url}', api_key: k}}\n  mine: \
                 {{tool_format: {}}}\n",
                case.format
            ),
        );
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
