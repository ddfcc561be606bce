//! A process under test, spoken to in raw JSON lines, and one raw HTTP exchange.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

pub(crate) struct Peer {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
}

impl Peer {
    pub(crate) fn start(program: &str, args: &[&str]) -> Self {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { stdin: child.stdin.take(), stdout, child }
    }

    pub(crate) fn send(&mut self, message: &Value) {
        writeln!(self.stdin.as_mut().unwrap(), "{message}").unwrap();
    }

    /// Sends a request whose answer is not waited for.
    pub(crate) fn begin_call(&mut self, id: u64, tool: &str, arguments: &Value) {
        let params = json!({"name": tool, "arguments": arguments, "_meta": {"progressToken": id}});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
    }

    /// The next line, without its end.
    pub(crate) fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.stdout.read_until(b'\n', &mut line).unwrap();
        line.pop();
        line
    }

    /// The next line as JSON; `null` at the end of the output.
    pub(crate) fn message(&mut self) -> Value {
        let line = self.line();
        if line.is_empty() { Value::Null } else { serde_json::from_slice(&line).unwrap() }
    }

    /// Sends one request and returns the message that carries its id.
    pub(crate) fn request(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params}));
        self.answer(id)
    }

    pub(crate) fn answer(&mut self, id: u64) -> Value {
        loop {
            let message = self.message();
            if message.is_null() || message["id"] == id {
                return message;
            }
        }
    }

    /// The text of a tool's result.
    pub(crate) fn call(&mut self, id: u64, tool: &str, arguments: &Value) -> String {
        self.begin_call(id, tool, arguments);
        self.answer(id)["result"]["content"][0]["text"].as_str().unwrap_or_default().to_owned()
    }

    /// Closes standard input and waits.
    pub(crate) fn end(mut self) -> ExitStatus {
        self.stdin = None;
        self.child.wait().unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server on a free port of its own choice.
pub(crate) struct HttpPeer {
    child: Child,
    authority: String,
}

impl HttpPeer {
    pub(crate) fn start(program: &str, args: &[&str]) -> Self {
        let mut child = Command::new(program).args(args).args(["--http", "0"]).stderr(Stdio::piped()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut ready).unwrap();
        let authority = ready.split("http://").nth(1).and_then(|rest| rest.split('/').next()).unwrap().to_owned();
        Self { child, authority }
    }

    /// One exchange: status, headers and body as they came.
    pub(crate) fn post(&self, headers: &[(&str, &str)], body: &Value) -> String {
        self.exchange("POST", headers, &body.to_string())
    }

    pub(crate) fn get(&self, headers: &[(&str, &str)]) -> String {
        self.exchange("GET", headers, "")
    }

    fn exchange(&self, method: &str, headers: &[(&str, &str)], body: &str) -> String {
        let mut stream = TcpStream::connect(&self.authority).unwrap();
        write!(stream, "{method} /mcp HTTP/1.1\r\nconnection: close\r\ncontent-length: {}\r\n", body.len()).unwrap();
        if headers.iter().all(|(name, _)| *name != "host") {
            write!(stream, "host: {}\r\n", self.authority).unwrap();
        }
        for (name, value) in headers {
            write!(stream, "{name}: {value}\r\n").unwrap();
        }
        write!(stream, "\r\n{body}").unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        String::from_utf8_lossy(&response).into_owned()
    }
}

impl Drop for HttpPeer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
