//! Views at their addresses, replaced while a real `serve` runs by a change of its file.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::serving::gateway::Gateway;
use crate::support::{Fixture, until};

const FILE: &str = "project/toolwright.yaml";

/// A client of one session at one address.
pub(crate) struct Client<'a> {
    address: &'a str,
    path: &'static str,
    session: String,
}

impl<'a> Client<'a> {
    pub(crate) fn of(address: &'a str, path: &'static str) -> Self {
        let mut client = Self { address, path, session: String::new() };
        let introduction = json!({"protocolVersion": "2025-11-25", "capabilities": {}});
        let (status, head, _) = client.ask("initialize", &introduction);
        assert_eq!(status, 200, "{head}");
        let session = head.lines().find_map(|line| line.strip_prefix("mcp-session-id: ")).expect("a session");
        client.session = session.trim().to_owned();
        client
    }

    fn send(&self, method: &str, more: &str, body: &str) -> BufReader<TcpStream> {
        let Self { address, path, session } = self;
        let mut stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("set");
        let session = if session.is_empty() { String::new() } else { format!("Mcp-Session-Id: {session}\r\n") };
        write!(stream, "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{session}{more}\r\n{body}").expect("write");
        BufReader::new(stream)
    }

    /// The status, the head and the JSON of an answer.
    fn ask(&self, method: &str, params: &Value) -> (u16, String, Value) {
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
        let more = format!(
            "Content-Type: application/json\r\nAccept: application/json\r\nConnection: close\r\nContent-Length: {}\r\n",
            body.len()
        );
        let mut answer = String::new();
        self.send("POST", &more, &body).read_to_string(&mut answer).expect("read");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let status = head.split_whitespace().nth(1).and_then(|code| code.parse().ok()).expect("a status line");
        (status, head.to_owned(), serde_json::from_str(body).unwrap_or_default())
    }

    fn tools(&self) -> Vec<String> {
        let (status, _, listed) = self.ask("tools/list", &json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{status}: {listed}"));
        tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
    }

    fn listen(&self) -> BufReader<TcpStream> {
        self.send("GET", "Accept: text/event-stream\r\nConnection: close\r\n", "")
    }

    /// What a call comes to, as it stands on the wire.
    pub(crate) fn call(&self, name: &str, arguments: &Value) -> String {
        self.ask("tools/call", &json!({"name": name, "arguments": arguments})).2.to_string()
    }
}

/// Reads on until this comes; `false` at the end of the stream.
#[track_caller]
fn reads_until(stream: &mut BufReader<TcpStream>, words: &str) -> bool {
    // An open stream says that it is alive, again and again.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        assert!(Instant::now() < end, "{words} did not come");
        let mut line = String::new();
        match stream.read_line(&mut line).unwrap_or_else(|error| panic!("{words}: {error}")) {
            0 => return false,
            _ if line.contains(words) => return true,
            _ => {}
        }
    }
}

#[test]
fn changed_views_apply_to_open_sessions() {
    let fixture = Fixture::with("views:\n  files: {allow: [fs__read, fs__write]}\n  old: {allow: [fs__read]}\n");
    let gateway = Gateway::start(&fixture, &["--http", "127.0.0.1:0", "--policy", "client"]);
    let address = gateway.address();
    let files = Client::of(&address, "/mcp/files");
    assert_eq!(files.tools(), ["fs__read", "fs__write"]);
    assert!(files.call("fs__write", &json!({"path": "a.txt", "content": "1"})).contains("\"result\""));
    assert!(fixture.path("project/a.txt").exists());
    let old = Client::of(&address, "/mcp/old");
    let (mut reported, mut ended) = (files.listen(), old.listen());
    assert!(reads_until(&mut reported, "text/event-stream") && reads_until(&mut ended, "text/event-stream"));

    let denied = "views:\n  files: {allow: [fs__read, fs__glob], profile: ask}\n  new: {allow: [fs__read]}\n";
    fixture.write(FILE, denied);
    gateway.says("the views changed");
    assert!(reads_until(&mut reported, "notifications/tools/list_changed"), "{}", gateway.output_text());
    assert_eq!(files.tools(), ["fs__read", "fs__glob"]);
    let refused = files.call("fs__write", &json!({"path": "b.txt", "content": "1"}));
    assert!(refused.contains("error") && !fixture.path("project/b.txt").exists(), "{refused}");
    assert_eq!(Client::of(&address, "/mcp/new").tools(), ["fs__read"]);
    assert_eq!(old.ask("tools/list", &json!({})).0, 404, "it is no view any more");
    assert!(!reads_until(&mut ended, "nothing that is said"), "its stream ends");

    // A file that is broken, or whose views mean nothing, changes none; one that says the same is no news.
    fixture.write(FILE, "views:\n  files: {allow: fs__write}\n");
    gateway.says("the running configuration is kept");
    assert_eq!(files.tools(), ["fs__read", "fs__glob"]);
    fixture.write(FILE, &format!("{denied}defaults: {{calls_per_turn: 7}}\n"));
    until("it is read again", || gateway.output_text().matches("configuration reloaded").count() == 2);

    // The profile of a view is in force too.
    fixture.write(FILE, "views:\n  files: {allow: [fs__write], profile: ask}\n");
    until("it is read once more", || gateway.output_text().matches("configuration reloaded").count() == 3);
    until("it is in force", || files.tools() == ["fs__write"]);
    let asked = files.call("fs__write", &json!({"path": "c.txt", "content": "1"}));
    assert!(!fixture.path("project/c.txt").exists(), "{asked}");
    until("it is told", || gateway.output_text().matches("the views changed").count() == 2);
}
