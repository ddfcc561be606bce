//! The gateway as tests run it: the program as `serve`, and requests to it.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::command_line::cli::program;
use crate::support::{Fixture, until};

/// A running gateway, what it said so far, and for `--stdio` its streams.
pub(crate) struct Gateway {
    pub(crate) child: Child,
    output: Arc<Mutex<String>>,
    pub(crate) streams: Option<(ChildStdin, BufReader<ChildStdout>)>,
    next: u64,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Gateway {
    pub(crate) fn start(fixture: &Fixture, arguments: &[&str]) -> Self {
        Self::start_with(fixture, arguments, &[])
    }

    pub(crate) fn start_with(fixture: &Fixture, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = program(fixture);
        command.envs(variables.iter().copied()).arg("serve").args(arguments);
        Self::of(command)
    }

    /// One that is started in another folder of the fixture.
    pub(crate) fn start_in(fixture: &Fixture, folder: &str, arguments: &[&str]) -> Self {
        let mut command = program(fixture);
        command.current_dir(fixture.path(folder)).arg("serve").args(arguments);
        Self::of(command)
    }

    /// What a command that serves says of itself.
    pub(crate) fn of(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program runs");
        let output = Arc::new(Mutex::new(String::new()));
        let (log, errors) = (Arc::clone(&output), BufReader::new(child.stderr.take().expect("stderr")));
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                let mut log = log.lock().expect("log");
                log.push_str(&line);
                log.push('\n');
            }
        });
        let streams = Some((child.stdin.take().expect("stdin"), BufReader::new(child.stdout.take().expect("stdout"))));
        let gateway = Self { child, output, streams, next: 0 };
        gateway.says("toolwright: ready");
        gateway
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> String {
        let output = self.output_text();
        let address = output.split("ready http://").nth(1).and_then(|rest| rest.split("/mcp").next());
        address.expect("the ready line").to_owned()
    }

    /// What it has said so far.
    pub(crate) fn output_text(&self) -> String {
        self.output.lock().expect("log").clone()
    }

    pub(crate) fn says(&self, words: &str) {
        until(&format!("it says {words:?}, not only: {}", self.output_text()), || self.output_text().contains(words));
    }

    /// One request over stdio.
    pub(crate) fn ask(&mut self, method: &str, params: Value) -> Value {
        let id = self.send(method, params);
        self.answer(id)
    }

    pub(crate) fn send(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        let id = self.next;
        let (input, _) = self.streams.as_mut().expect("streams");
        writeln!(input, "{}", json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})).expect("write");
        id
    }

    pub(crate) fn answer(&mut self, id: u64) -> Value {
        let (_, output) = self.streams.as_mut().expect("streams");
        loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).expect("read") > 0, "the gateway closed its output");
            let message: Value = serde_json::from_str(&line).expect("only JSON lines on standard output");
            if message["id"] == id {
                return message;
            }
        }
    }

    /// The next answers, by id, in whatever order they come.
    pub(crate) fn answers(&mut self, count: usize) -> HashMap<u64, Value> {
        let (_, output) = self.streams.as_mut().expect("streams");
        let messages = output.lines().map(|line| serde_json::from_str(&line.expect("read")).expect("JSON"));
        let answers = messages.filter_map(|message: Value| Some((message["id"].as_u64()?, message)));
        answers.take(count).collect()
    }

    pub(crate) fn handshake(&mut self) {
        let client = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}});
        assert!(self.ask("initialize", client)["result"]["serverInfo"]["name"].is_string());
        let (input, _) = self.streams.as_mut().expect("streams");
        writeln!(input, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).expect("write");
    }

    pub(crate) fn tool_names(&mut self) -> Vec<String> {
        let listed = self.ask("tools/list", json!({}));
        let tools = listed["result"]["tools"].as_array().unwrap_or_else(|| panic!("{listed}"));
        tools.iter().filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect()
    }

    pub(crate) fn has_tool(&mut self, name: &str, present: bool) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.tool_names().iter().any(|have| have == name) != present {
            assert!(Instant::now() < end, "{name} present: wanted {present}; {}", self.output_text());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// One request to the API over a connection of its own, with the token of this fixture; the body of the answer.
pub(crate) fn posted(fixture: &Fixture, address: &str, body: &Value) -> Value {
    json_body(&whole(sent(fixture, address, body)))
}

/// As [`posted`], to any path, with more headers.
pub(crate) fn posted_to(address: &str, path: &str, headers: &str, body: &Value) -> Value {
    json_body(&whole(sent_to(address, path, headers, body)))
}

/// The JSON body of the answer to a GET with the token of the API.
pub(crate) fn got(fixture: &Fixture, address: &str, path: &str) -> Value {
    json_body(&get_response(fixture, address, path))
}

/// The whole answer to a GET with the token of the API, with status line and headers.
pub(crate) fn get_response(fixture: &Fixture, address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connects");
    let token = api_token(fixture);
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\r\n"
    )
    .expect("sent");
    whole(stream)
}

/// As [`posted`], without waiting for the answer: it comes on this connection.
pub(crate) fn sent(fixture: &Fixture, address: &str, body: &Value) -> TcpStream {
    let token = format!("authorization: Bearer {}\r\n", api_token(fixture));
    sent_to(address, "/api/call", &token, body)
}

/// As [`sent`], to any path, with these headers.
pub(crate) fn sent_to(address: &str, path: &str, headers: &str, body: &Value) -> TcpStream {
    let body = body.to_string();
    let mut stream = TcpStream::connect(address).expect("connects");
    write!(
        stream,
        "POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: \
         close\r\n{headers}\r\n{body}",
        body.len()
    )
    .expect("sent");
    stream
}

fn whole(mut stream: TcpStream) -> String {
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn json_body(answer: &str) -> Value {
    let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

/// The token that a server of this fixture has made for its API.
pub(crate) fn api_token(fixture: &Fixture) -> String {
    fixture.read("home/.local/state/toolwright/api-token").trim().to_owned()
}
