//! What is loaded: a server at the end of a pipe or behind a URL, and how calls to it are timed.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::http::Http;
use crate::Failure;

/// How long a server may take until it listens or lists a tool.
const PATIENCE: Duration = Duration::from_secs(60);
const HELLO: &str = r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"0"}}"#;

/// A running process. Dropping it ends it.
pub(super) struct Process(Child);

impl Process {
    /// Starts it with its own output thrown away.
    pub(super) fn start(command: &mut Command) -> Result<Self, Failure> {
        Ok(Self(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?))
    }

    /// Its id.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The part of an answer that is looked at. The rest is left unread, so that the load costs little.
#[derive(Deserialize)]
struct Reply {
    id: Option<u64>,
    error: Option<Value>,
    result: Option<CallResult>,
}

#[derive(Deserialize)]
struct CallResult {
    #[serde(default, rename = "isError")]
    is_error: bool,
}

impl Reply {
    fn check(self) -> Result<Option<u64>, Failure> {
        match (self.error, self.result) {
            (Some(error), _) => Err(error.to_string().into()),
            (None, Some(CallResult { is_error: true })) => Err("the tool failed".into()),
            _ => Ok(self.id),
        }
    }
}

/// What takes calls.
pub(super) enum Front {
    /// MCP on a pipe.
    Pipe(Pipe),
    /// MCP at a URL.
    Http(Mcp),
    /// JSON at a URL that is no MCP: the whole body of a call.
    Rest(SocketAddr, &'static str, String),
}

/// What was measured.
#[derive(Default)]
pub(super) struct Times {
    pub(super) each: Vec<Duration>,
    pub(super) elapsed: Duration,
}

impl Front {
    /// The listed tool whose name ends so.
    pub(super) fn tool(&mut self, ending: &str) -> Result<String, Failure> {
        let started = Instant::now();
        while started.elapsed() < PATIENCE {
            let listed = match self {
                Self::Pipe(pipe) => pipe.request("tools/list", "{}")?,
                Self::Http(mcp) => mcp.request("tools/list", "{}")?,
                Self::Rest(..) => return Ok(ending.to_owned()),
            };
            let names = listed["tools"].as_array().into_iter().flatten().filter_map(|tool| tool["name"].as_str());
            if let Some(name) = names.into_iter().find(|name| name.ends_with(ending)) {
                return Ok(name.to_owned());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Err(format!("`{ending}` was never listed").into())
    }

    /// How many tools are listed now.
    pub(super) fn tools(&mut self) -> Result<usize, Failure> {
        let listed = match self {
            Self::Pipe(pipe) => pipe.request("tools/list", "{}")?,
            Self::Http(mcp) => mcp.request("tools/list", "{}")?,
            Self::Rest(..) => Value::Null,
        };
        Ok(listed["tools"].as_array().map_or(0, Vec::len))
    }

    /// Times so many calls, always `in_flight` of them under way.
    pub(super) fn load(&mut self, params: &str, calls: usize, in_flight: usize) -> Result<Times, Failure> {
        match self {
            Self::Pipe(pipe) => pipe.load(params, calls, in_flight),
            Self::Http(mcp) => {
                let call = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#);
                let connect = || Http::connect(mcp.addr, mcp.path, &mcp.headers);
                over_http(connect, &call, calls, in_flight)
            }
            Self::Rest(addr, path, body) => over_http(|| Http::connect(*addr, path, ""), body, calls, in_flight),
        }
    }
}

/// MCP on a child's pipes.
pub(super) struct Pipe {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    next: u64,
    line: String,
}

impl Pipe {
    /// Starts the command and says hello.
    pub(super) fn open(command: &mut Command) -> Result<Self, Failure> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let stdin = child.stdin.take().ok_or("no stdin")?;
        let stdout = BufReader::with_capacity(64 << 10, child.stdout.take().ok_or("no stdout")?);
        let mut pipe = Self { child, stdin, stdout, next: 0, line: String::new() };
        pipe.request("initialize", HELLO)?;
        pipe.stdin.write_all(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}\n")?;
        Ok(pipe)
    }

    /// The child's id.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    fn send(&mut self, method: &str, params: &str) -> Result<(), Failure> {
        self.next += 1;
        let id = self.next;
        let line = format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"{method}\",\"params\":{params}}}\n");
        Ok(self.stdin.write_all(line.as_bytes())?)
    }

    fn receive(&mut self) -> Result<(), Failure> {
        self.line.clear();
        match self.stdout.read_line(&mut self.line)? {
            0 => Err("the server ended".into()),
            _ => Ok(()),
        }
    }

    fn request(&mut self, method: &str, params: &str) -> Result<Value, Failure> {
        self.send(method, params)?;
        loop {
            self.receive()?;
            let message: Value = serde_json::from_str(&self.line)?;
            if message["id"] == self.next && message.get("method").is_none() {
                return match message.get("error") {
                    Some(error) => Err(format!("{method}: {error}").into()),
                    None => Ok(message["result"].clone()),
                };
            }
        }
    }

    fn load(&mut self, params: &str, calls: usize, in_flight: usize) -> Result<Times, Failure> {
        let first = self.next + 1;
        let mut sent = Vec::with_capacity(calls);
        let mut times = Times { each: Vec::with_capacity(calls), elapsed: Duration::ZERO };
        let started = Instant::now();
        while sent.len() < calls.min(in_flight) {
            sent.push(Instant::now());
            self.send("tools/call", params)?;
        }
        while times.each.len() < calls {
            self.receive()?;
            let Some(id) = serde_json::from_str::<Reply>(&self.line)?.check()? else { continue };
            let index = usize::try_from(id.saturating_sub(first))?;
            let at: &Instant = sent.get(index).ok_or("an answer to no call")?;
            times.each.push(at.elapsed());
            if sent.len() < calls {
                sent.push(Instant::now());
                self.send("tools/call", params)?;
            }
        }
        times.elapsed = started.elapsed();
        Ok(times)
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        // The child may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// MCP over streamable HTTP, in one session.
pub(super) struct Mcp {
    addr: SocketAddr,
    path: &'static str,
    headers: String,
    kept: Http,
}

impl Mcp {
    /// Waits until the address listens, and says hello.
    pub(super) fn open(addr: SocketAddr, path: &'static str) -> Result<Self, Failure> {
        wait_for(addr)?;
        let hello = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{HELLO}}}"#);
        let answer = Http::connect(addr, path, "")?.post(&hello)?;
        if answer.status != 200 {
            return Err(format!("initialize: HTTP {}", answer.status).into());
        }
        let session = answer.session.map(|id| format!("Mcp-Session-Id: {id}\r\n")).unwrap_or_default();
        let headers = format!("MCP-Protocol-Version: 2025-11-25\r\n{session}");
        let mut kept = Http::connect(addr, path, &headers)?;
        kept.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)?;
        Ok(Self { addr, path, headers, kept })
    }

    fn request(&mut self, method: &str, params: &str) -> Result<Value, Failure> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":2,"method":"{method}","params":{params}}}"#);
        let answer = self.kept.post(&body)?;
        let message: Value = serde_json::from_slice(last_message(&answer.body))?;
        Ok(message["result"].clone())
    }
}

/// Waits until somebody listens.
pub(super) fn wait_for(addr: SocketAddr) -> Result<(), Failure> {
    let started = Instant::now();
    while std::net::TcpStream::connect(addr).is_err() {
        if started.elapsed() > PATIENCE {
            return Err(format!("nobody listens on {addr}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// An address that is free now.
pub(super) fn free_addr() -> Result<SocketAddr, Failure> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// The body itself, or the data of its last event.
fn last_message(body: &[u8]) -> &[u8] {
    let mut events = body.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
    events.rfind(|data| data.iter().any(|byte| !byte.is_ascii_whitespace())).unwrap_or(body)
}

fn over_http(
    connect: impl Fn() -> Result<Http, Failure> + Sync,
    call: &str,
    calls: usize,
    in_flight: usize,
) -> Result<Times, Failure> {
    let mut connections = (0..in_flight).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
    let started = Instant::now();
    let share = calls.div_ceil(in_flight);
    let each = std::thread::scope(|scope| {
        let loads = connections.iter_mut().map(|connection| {
            scope.spawn(move || {
                let mut times = Vec::with_capacity(share);
                for _ in 0..share {
                    let at = Instant::now();
                    let answer = connection.post(call)?;
                    times.push(at.elapsed());
                    if answer.status != 200 {
                        return Err(format!("HTTP {}", answer.status).into());
                    }
                    serde_json::from_slice::<Reply>(last_message(&answer.body))?.check()?;
                }
                Ok::<_, Failure>(times)
            })
        });
        let loads: Vec<_> = loads.collect();
        let ended = loads.into_iter().map(|load| load.join().map_err(|_| "a load thread panicked")?);
        ended.collect::<Result<Vec<_>, Failure>>()
    })?;
    Ok(Times { each: each.concat(), elapsed: started.elapsed() })
}

/// Parameters of a call of the tool.
pub(super) fn call_params(tool: &str, arguments: &Value) -> String {
    json!({"name": tool, "arguments": arguments}).to_string()
}
