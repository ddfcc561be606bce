//! Sends calls to a target: a server at the end of a pipe or behind a URL.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::call::{Call, LoadLimit, Times};
use super::http::Http;
use super::pipe::Pipe;
use super::process::poll;
use crate::Failure;

/// The time for a server to listen, list its tools, or answer the first request.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// The time limit of an answer to a call.
pub(super) const ANSWER: Duration = Duration::from_secs(15);
pub(super) const HELLO: &str =
    r#"{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"0"}}"#;

/// The interface that takes calls.
pub(super) enum BenchInterface {
    /// MCP on a pipe.
    Pipe(Pipe),
    /// MCP at a URL.
    Http(Mcp),
    /// The interface of `mcp-hub` at an address.
    Hub(SocketAddr),
}

impl BenchInterface {
    /// Returns the names of all tools listed now.
    pub(super) fn names(&mut self) -> Result<Vec<String>, Failure> {
        let lists = match self {
            Self::Pipe(pipe) => vec![pipe.request("tools/list", "{}")?],
            Self::Http(mcp) => vec![mcp.request("tools/list", "{}")?],
            Self::Hub(addr) => {
                let answer = Http::connect(*addr, "/api/servers", "")?.get()?;
                // It listens before it has servers, and fails until then.
                let mut listed = if answer.status == 500 { Value::Null } else { answer.json()? };
                let servers = listed["servers"].as_array_mut().map(std::mem::take).unwrap_or_default();
                servers.into_iter().map(|mut server| server["capabilities"].take()).collect()
            }
        };
        let tools = lists.iter().filter_map(|list| list["tools"].as_array()).flatten();
        Ok(tools.filter_map(|tool| tool["name"].as_str().map(str::to_owned)).collect())
    }

    /// Waits until `count` tools with `part` in their names are listed, and returns the first of them.
    pub(super) fn listed(&mut self, part: &str, count: usize) -> Result<String, Failure> {
        poll(TIMEOUT, &format!("{count} tools `{part}` were not listed"), || {
            let mut found: Vec<_> = self.names()?.into_iter().filter(|name| name.contains(part)).collect();
            Ok(if found.len() >= count { Some(found.swap_remove(0)) } else { None })
        })
    }

    /// Times calls, always `in_flight` of them at once.
    pub(super) fn load(&mut self, call: &Call, limit: LoadLimit, in_flight: usize) -> Result<Times, Failure> {
        match self {
            Self::Pipe(pipe) => pipe.load(call, limit, in_flight),
            Self::Http(mcp) => over_http(|| Http::connect(mcp.addr, mcp.path, &mcp.headers), call, limit, in_flight),
            Self::Hub(addr) => over_http(|| Http::connect(*addr, "/api/servers/tools", ""), call, limit, in_flight),
        }
    }
}

/// Whether requests after the first state the protocol revision, as the specification requires.
#[derive(Debug, Clone, Copy)]
pub(super) enum Revision {
    Sent,
    Omitted,
}

/// MCP over streamable HTTP, in one session.
pub(super) struct Mcp {
    addr: SocketAddr,
    path: &'static str,
    headers: String,
    kept: Http,
}

impl Mcp {
    /// Opens the session.
    pub(super) fn open(addr: SocketAddr, path: &'static str, revision: Revision) -> Result<Self, Failure> {
        let hello = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{HELLO}}}"#);
        let answer = Http::connect(addr, path, "")?.post(&hello)?;
        answer.message()?;
        let session = answer.session.map(|id| format!("Mcp-Session-Id: {id}\r\n")).unwrap_or_default();
        let headers = match revision {
            Revision::Sent => format!("MCP-Protocol-Version: 2025-11-25\r\n{session}"),
            Revision::Omitted => session,
        };
        let mut kept = Http::connect(addr, path, &headers)?;
        kept.post(r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#)?;
        Ok(Self { addr, path, headers, kept })
    }

    fn request(&mut self, method: &str, params: &str) -> Result<Value, Failure> {
        let body = format!(r#"{{"jsonrpc":"2.0","id":2,"method":"{method}","params":{params}}}"#);
        result(method, self.kept.post(&body)?.json()?)
    }
}

/// Returns the result of a response, or its error.
pub(super) fn result(method: &str, mut message: Value) -> Result<Value, Failure> {
    match message.get("error") {
        Some(error) => Err(format!("{method}: {error}").into()),
        None => Ok(message["result"].take()),
    }
}

/// Returns a loopback address that is free now.
pub(super) fn free_addr() -> Result<SocketAddr, Failure> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Makes calls over HTTP with a thread and a connection for each concurrent call.
fn over_http(
    connect: impl Fn() -> Result<Http, Failure>,
    call: &Call,
    limit: LoadLimit,
    in_flight: usize,
) -> Result<Times, Failure> {
    let mut connections = (0..in_flight).map(|_| connect()).collect::<Result<Vec<_>, _>>()?;
    let (made, ready) = (&AtomicUsize::new(0), &Barrier::new(in_flight + 1));
    let (loads, started) = std::thread::scope(|scope| {
        let one = |connection: &mut Http| {
            ready.wait();
            let started = Instant::now();
            let mut times = Vec::with_capacity(limit.calls / in_flight + 1);
            loop {
                let number = made.fetch_add(1, Ordering::Relaxed);
                if !limit.continues(number, started) {
                    return Ok::<_, Failure>(times);
                }
                let body = call.text(number as u64 + 1);
                let at = Instant::now();
                let answer = connection.post(&body)?;
                times.push(at.elapsed());
                let said = call.answered(answer.message()?)?;
                if said != Some(number as u64 + 1) {
                    return Err(format!("the answer to call {} is that to {said:?}", number + 1).into());
                }
            }
        };
        let loads: Vec<_> = connections.iter_mut().map(|connection| scope.spawn(move || one(connection))).collect();
        ready.wait();
        let started = Instant::now();
        let ended = loads.into_iter().map(|load| load.join().map_err(|_| "a thread of the load panicked")?);
        (ended.collect::<Result<Vec<_>, Failure>>(), started)
    });
    Ok(Times { each: loads?.concat(), elapsed: started.elapsed() })
}
