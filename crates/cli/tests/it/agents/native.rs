//! Tools that a model's provider runs: from the configuration to the bytes sent, and back.

use serde_json::{Value, json};
use toolwright_testkit::model_server::{RecordedRequest, Script, Turn, WireApi};

use crate::agents::agent::{ended, report, start, with_model};
use crate::command_line::cli::{program, stderr};
use crate::support::Fixture;

const TOOLS: &str = "native_tools:\n  web_search: {price: 0.01, anthropic: {max_uses: 2}}\n  code_execution: {price: 0}\n  \
                     image_gen: {price: 0.04}\n";
const PRICES: &str = "native_tools: true, prices: {input: 0, output: 0}";

fn letter() -> (&'static str, Value) {
    ("fs__write", json!({"path": "letter.txt", "content": "Dear reader"}))
}

fn declared(asked: &RecordedRequest) -> Vec<&Value> {
    let tools = asked.body["tools"].as_array().into_iter().flatten();
    tools.filter(|tool| !tool["type"].is_null() && tool["type"] != "function").collect()
}

/// Runs the script in a project with `config`; its report and what it said.
async fn run(config: &str, api: WireApi, script: Script) -> (Value, String, Fixture) {
    let fixture = Fixture::with(config);
    let (server, variables) = with_model(api, script).await;
    let output = ended(start(&fixture, &variables, &["run", "write a letter", "--policy", "trusted", "--json"])).await;
    let said = stderr(&output);
    assert!(output.status.success(), "{said} {:?}", server.failures());
    assert_eq!(server.failures(), Vec::<String>::new());
    (report(&output), said, fixture)
}

/// Whether a file of the state has these bytes.
fn is_stored(fixture: &Fixture, bytes: &[u8]) -> bool {
    let mut folders = vec![fixture.state_dir()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path if std::fs::read(&path).is_ok_and(|held| held == bytes) => return true,
                _ => {}
            }
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread")]
async fn anthropics_tools_are_declared_priced_and_sent_back() {
    let blocks = vec![
        json!({"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "tide"}}),
        json!({"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [{
            "type": "web_search_result", "title": "Tide", "url": "https://tide.example", "encrypted_content": "ZW5j",
        }]}),
        json!({"type": "server_tool_use", "id": "srvtoolu_2", "name": "bash_code_execution", "input": {"command": "plot"}}),
        json!({"type": "bash_code_execution_tool_result", "tool_use_id": "srvtoolu_2", "content": {
            "type": "bash_code_execution_result", "stdout": "", "stderr": "", "return_code": 0,
            "content": [{"type": "bash_code_execution_output", "file_id": "file_1"}],
        }}),
    ];
    let expect = Value::Array(blocks.clone());
    let script: Script = vec![
        Turn::native(blocks, "Tides.", vec![letter()])
            .expecting("its API's declarations", |asked| {
                let search = json!({"type": "web_search_20250305", "name": "web_search", "max_uses": 2});
                let code = json!({"type": "code_execution_20250825", "name": "code_execution"});
                declared(asked) == [&search, &code]
            })
            .expecting("the prompt speaks of them", |asked| asked.system().contains("Search the web where")),
        Turn::text("Written.").expecting("all comes back unchanged", move |asked| {
            let said = asked.body["messages"][1]["content"].as_array().cloned().unwrap_or_default();
            said.iter().take(4).cloned().collect::<Value>() == expect
        }),
    ]
    .into();
    let config = format!("{TOOLS}models:\n  anthropic: {{{PRICES}}}\n");
    let (report, said, fixture) = run(&config, WireApi::Anthropic, script).await;
    let ran: Vec<&Value> = report["calls"].as_array().expect("calls").iter().map(|call| &call["tool"]).collect();
    assert_eq!(ran[..2], ["native:web_search@1.0.0", "native:code_execution@1.0.0"], "{report}");
    assert_eq!(report["cost_usd"], 0.01, "{report}");
    let file = &report["files"][0];
    assert_eq!((&file["media_type"], &file["bytes"]), (&json!("text/csv"), &json!(8)), "{report} {said}");
    assert!(file["handle"].is_string() && is_stored(&fixture, b"a,b\n1,2\n"), "{report}");
    assert!(said.contains("media__image_gen is not declared: its API (anthropic) has no such tool"), "{said}");
    let refused = program(&fixture).args(["call", "native__web_search", "{}"]).output().expect("it runs");
    assert!(stderr(&refused).contains("run by the model's own provider"), "{}", stderr(&refused));
}

#[tokio::test(flavor = "multi_thread")]
async fn openais_tools_leave_images_files_and_sources() {
    let items = vec![
        json!({"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "tide"}}),
        json!({"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "iVBORw0KGgo="}),
        json!({"type": "message", "id": "msg_0", "role": "assistant", "status": "completed", "content": [{
            "type": "output_text", "text": "High water is at 14:02.", "logprobs": [], "annotations": [
                {"type": "url_citation", "start_index": 0, "end_index": 4, "url": "https://tide.example", "title": "Tide"},
                {"type": "container_file_citation", "container_id": "cntr_1", "file_id": "cfile_1",
                 "filename": "plot.csv", "start_index": 0, "end_index": 4},
            ],
        }]}),
    ];
    let expect = items[..2].to_vec();
    let script: Script = vec![
        Turn::native(items, "", vec![letter()]).expecting("its API's declarations", |asked| {
            let kinds: Vec<&Value> = declared(asked).into_iter().map(|tool| &tool["type"]).collect();
            kinds == ["web_search", "code_interpreter", "image_generation"]
        }),
        Turn::text("Written.").expecting("all comes back unchanged", move |asked| {
            let sent = asked.body["input"].as_array().cloned().unwrap_or_default();
            expect.iter().all(|item| sent.contains(item))
        }),
    ]
    .into();
    let config = format!(
        "{TOOLS}models:\n  default: mine/m\n  mine: {{{PRICES}}}\n  endpoints:\n    mine: {{api: openai_responses, base_url: \
         '${{RESPONSES_URL}}', api_key: '${{RESPONSES_KEY}}'}}\n"
    );
    let (report, said, fixture) = run(&config, WireApi::Responses, script).await;
    assert_eq!(report["sources"], json!([{"title": "Tide", "url": "https://tide.example"}]), "{report}");
    assert_eq!(report["cost_usd"], 0.05, "{report}");
    let (image, table) = (&report["files"][0], &report["files"][1]);
    assert_eq!((&image["media_type"], &table["name"]), (&json!("image/png"), &json!("plot.csv")), "{report} {said}");
    assert!(is_stored(&fixture, b"\x89PNG\r\n\x1a\n") && is_stored(&fixture, b"a,b\n1,2\n"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn models_without_such_tools_do_without() {
    let script: Script =
        vec![Turn::text("Done.").expecting("no such tools", |asked| !asked.body.to_string().contains("web_search"))]
            .into();
    let (_, said, _) = run(TOOLS, WireApi::OpenAi, script).await;
    assert!(said.contains("native__web_search is not declared: its API (openai_chat) has no such tool"), "{said}");
}
