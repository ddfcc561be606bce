//! How the program puts its tools before a model, against the scripted model server, which checks the requests.

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Script, Turn, WireApi};

use crate::agents::agent::{configure, ended, report, start, with_model};
use crate::command_line::cli::stderr;
use crate::support::Fixture;

const THREE: [&str; 3] = ["tools__search", "tools__describe", "tools__call"];

fn letter() -> Value {
    json!({"path": "letter.txt", "content": "Dear reader"})
}

fn searching() -> Script {
    vec![
        Turn::calls(vec![("tools__search", json!({"query": "write a file"}))])
            .expecting("three tools are shown", |asked| asked.tool_names() == THREE)
            .expecting("the others are hinted at", |asked| {
                asked.system().contains("\nFurther tools can be found with tools__search: fs (")
            }),
        Turn::calls(vec![("tools__call", json!({"name": "fs__write", "arguments": letter()}))])
            .expecting("the tool is found", |asked| asked.last_result_text().contains("fs__write(path: string, "))
            .expecting("the list is the same", |asked| asked.tool_names() == THREE),
        Turn::text("Written."),
    ]
    .into()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_tools_do_a_task_over_every_api() {
    for api in WireApi::ALL {
        let fixture = Fixture::new();
        configure(&fixture, api);
        let (server, variables) = with_model(api, searching()).await;
        let arguments =
            ["run", "write a letter", "--policy", "workspace", "--exposure", "search", "--json", "--transcript", "t"];
        let output = ended(start(&fixture, &variables, &arguments)).await;
        assert!(output.status.success(), "{api:?}: {} {:?}", stderr(&output), server.failures());
        assert_eq!(server.failures(), Vec::<String>::new(), "{api:?}");
        let report = report(&output);
        assert_eq!((&report["exposure"], &report["calls"][1]["ran_with"]), (&json!("search"), &letter()), "{report}");
        assert!(report["calls"][1]["tool"].as_str().is_some_and(|tool| tool.starts_with("fs:write@")), "{report}");
        assert_eq!(fixture.read("project/letter.txt"), "Dear reader");
        let first = fixture.read("project/t");
        let first: Value = serde_json::from_str(first.lines().next().expect("a record")).expect("json");
        assert_eq!(first["exposure"], json!({"exposure": "search", "reason": "it was asked for"}));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_setting_beats_the_general_one() {
    let fixture = Fixture::with(
        "selection:\n  exposure: direct\n  pinned: ['fs:read']\nmodels:\n  anthropic:\n    exposure: deferred\n",
    );
    let script: Script = vec![
        Turn::calls(vec![("tools__search", json!({"query": "write a file", "limit": 1}))])
            .expecting("all are declared", |asked| asked.tool_names().contains(&"fs__write".to_owned()))
            .expecting("most are deferred", |asked| {
                let tools = asked.body["tools"].as_array().expect("tools");
                let shown = tools.iter().filter(|tool| tool["defer_loading"] != true);
                shown.map(|tool| tool["name"].as_str().expect("name")).eq(["tools__search", "fs__read"])
            }),
        Turn::calls(vec![("fs__write", letter())])
            .expecting("it is loaded", |asked| asked.body.to_string().contains(r#""tool_name":"fs__write""#)),
        Turn::text("Written."),
    ]
    .into();
    let (server, variables) = with_model(WireApi::Anthropic, script).await;
    let output =
        ended(start(&fixture, &variables, &["run", "write a letter", "--policy", "workspace", "--json"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(server.failures(), Vec::<String>::new());
    assert_eq!(
        (&report(&output)["exposure"], fixture.read("project/letter.txt")),
        (&json!("deferred"), "Dear reader".into())
    );
}
