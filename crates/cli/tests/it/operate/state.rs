//! What runs and plans keep, what they are given, and where values came from.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Script, Turn, WireApi};

use crate::agents::agent::{ended, report, run_id, start, with_model};
use crate::command_line::cli::{ok, run, stderr};
use crate::support::{Fixture, until};

const RATE: &str = "\
schemaTools:
  rate:
    type: object
    description: Rates a text.
    properties:
      text: {type: string}
      _outputPath: {const: rated.first}
      _output: {type: object, properties: {note: {type: string}}, required: [note]}
    required: [text]
";

fn json(text: &str) -> Value {
    serde_json::from_str(text).expect("json")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_run_keeps_state_and_input() {
    let fixture = Fixture::with(RATE);
    let script: Script = vec![
        Turn::calls(vec![("schema__rate", json!({"text": "†input.text", "_output": {"note": "fine"}}))])
            .expecting("the input is told of", |asked| {
                asked.body.to_string().contains("{\\\"text\\\":\\\"the whole\\\"}")
            }),
        Turn::text("Too late.")
            .with_delay(Duration::from_secs(60))
            .expecting("the result was accepted", |asked| asked.last_result_text().contains("accepted")),
        Turn::calls(vec![
            ("fs__write", json!({"path": "note.txt", "content": "†state.rated.first.note"})),
            ("fs__write", json!({"path": "text.txt", "content": "†input.text"})),
            ("fs__write", json!({"path": "mark.txt", "content": "††input.text"})),
        ]),
        Turn::text("Done."),
    ]
    .into();
    let (server, variables) = with_model(WireApi::OpenAi, script).await;
    let arguments = ["run", "rate it", "--policy", "workspace", "--input", "{\"text\": \"the whole\"}"];
    let mut child = start(&fixture, &variables, &arguments);
    until("it was rated", || server.requests().len() == 2);
    child.kill().expect("kill");
    let id = run_id(&stderr(&ended(child).await));
    assert_eq!(ok(&fixture, &["state", "get", "rated.first.note", "--run", &id]), "fine\n");
    let output = ended(start(&fixture, &variables, &["run", "--resume", &id, "--policy", "workspace", "--json"])).await;
    assert!(output.status.success(), "{} {:?}", stderr(&output), server.failures());
    assert_eq!(report(&output)["answer"], "Done.");
    assert_eq!(server.failures(), Vec::<String>::new());
    let read = |name: &str| fixture.read(&format!("project/{name}"));
    assert_eq!((read("note.txt"), read("text.txt")), ("fine".into(), "the whole".into()));
    assert_eq!(read("mark.txt"), "†input.text");
    let rows = json(&ok(&fixture, &["state", "ls", "--json"]));
    assert_eq!((rows.as_array().map(Vec::len), &rows[0]["path"]), (Some(1), &json!("rated.first")));
    assert_eq!(json(&ok(&fixture, &["state", "get", "rated", "--json"])), json!({"first": {"note": "fine"}}));
}

#[test]
fn plans_keep_what_their_calls_return() {
    let fixture = Fixture::new();
    fixture.write("project/a.txt", "one\n");
    let plan = json!([
        {"_tool": "fs__read", "path": "†input.file", "_outputPath": "read.a"},
        {"_tool": "memory__scratchpad", "op": "set", "key": "kept", "value": "†state.read.a"},
    ]);
    fixture.write("project/plan.json", &plan.to_string());
    let ran = json(&ok(&fixture, &["plan", "run", "plan.json", "--input", "{\"file\": \"a.txt\"}", "--json"]));
    assert_eq!(ran["status"], "success", "{ran}");
    let kept = json(&ok(&fixture, &["state", "get", "read.a", "--json"]));
    assert!(kept.to_string().contains("one"), "{kept}");
    assert_eq!(ran["state"]["read"]["a"], kept);
}

#[test]
fn policy_test_takes_tainted_arguments() {
    let fixture = Fixture::new();
    let rule = "{effect: deny, tool: \"mail:*\", when: \"has(args.to) && args.to.tainted\"}";
    fixture.write("project/p.yaml", &format!("profile: trusted\nrules: [{rule}]\ntools: [{{tool: \"mail:*\"}}]\n"));
    for (tainted, expect) in [("to", "deny"), ("/to", "deny"), ("body", "allow")] {
        let arguments = [
            "policy",
            "test",
            "mail:send",
            "{\"to\": \"a@b.c\", \"body\": \"x\"}",
            "--policy",
            "p.yaml",
            "--tainted",
            tainted,
        ];
        assert_eq!(json(&ok(&fixture, &arguments))["effect"], expect, "{tainted}");
    }
}

#[test]
fn delegates_fetch_only_their_own_urls() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let served = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a request");
        let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
        let first = lines.next().expect("a line");
        lines.take_while(|line| !line.is_empty()).for_each(drop);
        write!(stream, "HTTP/1.1 302 Found\r\nLocation: /other.json\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            .expect("written");
        drop(stream);
        listener.set_nonblocking(true).expect("set");
        (first, listener)
    });
    let fixture = Fixture::with(&format!(
        "schemaTools:\n  judge:\n    type: object\n    properties:\n      text: {{type: string}}\n      \
         _delegate: {{const: \"http://{address}/d/judge.json\"}}\n\
         delegates: {{urls: [\"http://{address}/d/\"]}}\nweb: {{allow_private: true}}\n"
    ));
    let output = run(&fixture, &["call", "schema__judge", "{\"text\": \"x\"}"]);
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
    let (asked, listener) = served.join().expect("served");
    assert_eq!(asked, "GET /d/judge.json HTTP/1.1");
    assert!(!output.status.success() && said.contains("/other.json"), "{said}");
    assert!(listener.accept().is_err(), "the other document was asked for");
}
