//! The ways to the same server: each a process, or several, with a front that takes calls.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::front::{Front, Mcp, Pipe, Process, call_params, free_addr};
use super::peers::Peers;
use crate::Failure;

/// The tool that is called, and what it says back.
const TOOL: &str = "echo";

/// What stands at the two ends of a way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// A pipe to a pipe.
    Stdio,
    /// HTTP to a pipe, for peers that take calls over HTTP only.
    HttpToStdio,
    /// HTTP to HTTP.
    Http,
}

impl Target {
    /// As it is called in a row.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::HttpToStdio => "http to stdio",
            Self::Http => "http",
        }
    }
}

/// One way.
pub(super) struct Lane {
    /// What is in the middle.
    pub(super) path: &'static str,
    /// What takes calls.
    pub(super) front: Front,
    /// Parameters of a call.
    pub(super) params: String,
    /// The process in the middle.
    pub(super) pid: u32,
    /// Processes that live as long as the lane.
    _held: Vec<Process>,
}

/// What lanes are made of.
pub(super) struct Yard<'a> {
    /// Toolwright.
    pub(super) binary: &'a Path,
    /// Programs of others.
    pub(super) peers: &'a Peers,
    /// Files of the run.
    pub(super) dir: &'a Path,
    /// The reference server over HTTP.
    pub(super) upstream: SocketAddr,
    /// Takes Toolwright's spans.
    pub(super) collector: SocketAddr,
}

/// Starts a program and what it needs; `None` where it is not installed.
type Made = Result<Option<Lane>, Failure>;

impl Yard<'_> {
    /// All lanes of a target, the direct one first. A peer that does not start is named and left out.
    pub(super) fn lanes(&self, target: Target) -> Result<Vec<Lane>, Failure> {
        let made: Vec<(&str, Made)> = match target {
            Target::Stdio => vec![
                ("direct", self.pipe("direct", self.everything()).map(Some)),
                ("two cats", self.pipe("two cats", self.two_cats()).map(Some)),
                ("toolwright", self.pipe("toolwright", self.toolwright("pipe", &["--stdio"])?).map(Some)),
                ("naive proxy", self.pipe("naive proxy", self.naive(None, false)).map(Some)),
                ("fastmcp", self.fastmcp(None, false)),
            ],
            Target::HttpToStdio => vec![
                ("direct", self.pipe("direct", self.everything()).map(Some)),
                ("toolwright", self.toolwright_http(false)),
                ("naive proxy", self.naive_http(false)),
                ("mcp-proxy (crate)", self.crate_proxy(false)),
                ("mcp-proxy (PyPI)", self.py_proxy()),
                ("fastmcp", self.fastmcp(Some(free_addr()?), false)),
                ("mcp-hub", self.hub(false)),
            ],
            Target::Http => vec![
                ("direct", self.http("direct", self.upstream, "/mcp", 0, Vec::new()).map(Some)),
                ("toolwright", self.toolwright_http(true)),
                ("naive proxy", self.naive_http(true)),
                ("mcp-proxy (crate)", self.crate_proxy(true)),
                ("fastmcp", self.fastmcp(Some(free_addr()?), true)),
                ("mcp-hub", self.hub(true)),
            ],
        };
        let mut lanes = Vec::new();
        for (path, lane) in made {
            match lane {
                Ok(Some(lane)) => lanes.push(lane),
                Ok(None) => eprintln!("toolwright-bench: {path} is not installed, and is left out"),
                Err(error) if matches!(path, "direct" | "toolwright") => return Err(format!("{path}: {error}").into()),
                Err(error) => eprintln!("toolwright-bench: {path} is left out: {error}"),
            }
        }
        Ok(lanes)
    }

    fn everything(&self) -> Command {
        let server = self.peers.everything();
        let mut command = Command::new(&server[0]);
        command.args(&server[1..]).arg("stdio");
        command
    }

    fn two_cats(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", "cat | \"$@\" | cat", "sh"]).args(self.peers.everything()).arg("stdio");
        command
    }

    /// With everything on: validation, policy, pins, cap, ledger, events and spans.
    fn toolwright(&self, name: &str, how: &[&str]) -> Result<Command, Failure> {
        let entry = self.entry(name == "http");
        let dir = self.dir.join(format!("toolwright-{name}-{}", how[0].trim_start_matches('-')));
        std::fs::create_dir_all(&dir)?;
        let config = json!({
            "mcpServers": {"everything": entry},
            "policy": {"rules": [
                {"effect": "deny", "tool": "*:delete_*"},
                {"effect": "allow", "namespace": "everything"},
            ]},
            "telemetry": {"endpoint": format!("http://{}", self.collector)},
        });
        std::fs::write(dir.join("toolwright.yaml"), config.to_string())?;
        let mut command = Command::new(self.binary);
        command.arg("serve").args(how).arg("--config").arg(dir.join("toolwright.yaml"));
        command.env("TOOLWRIGHT_STATE_DIR", dir.join("state")).current_dir(&dir);
        Ok(command)
    }

    fn toolwright_http(&self, upstream_is_http: bool) -> Made {
        let addr = free_addr()?;
        let name = if upstream_is_http { "http" } else { "stdio" };
        let process = Process::start(&mut self.toolwright(name, &["--http", &addr.to_string()])?)?;
        self.http("toolwright", addr, "/mcp", process.id(), vec![process]).map(Some)
    }

    fn naive(&self, port: Option<u16>, upstream_is_http: bool) -> Command {
        let beside = std::env::current_exe().unwrap_or_default().with_file_name("naive-proxy");
        let mut command = Command::new(beside);
        if let Some(port) = port {
            command.arg("--port").arg(port.to_string());
        }
        if upstream_is_http {
            command.arg(self.url());
        } else {
            command.args(self.peers.everything()).arg("stdio");
        }
        command
    }

    fn naive_http(&self, upstream_is_http: bool) -> Made {
        let addr = free_addr()?;
        let process = Process::start(&mut self.naive(Some(addr.port()), upstream_is_http))?;
        self.http("naive proxy", addr, "/mcp", process.id(), vec![process]).map(Some)
    }

    fn crate_proxy(&self, upstream_is_http: bool) -> Made {
        let Some(mut command) = self.peers.crate_mcp_proxy() else { return Ok(None) };
        let addr = free_addr()?;
        let server = self.peers.everything();
        let backend = if upstream_is_http {
            format!("transport = \"http\"\nurl = \"{}\"\n", self.url())
        } else {
            format!("transport = \"stdio\"\ncommand = \"{}\"\nargs = [\"{}\", \"stdio\"]\n", server[0], server[1])
        };
        let config = self.dir.join(format!("mcp-proxy-{}.toml", addr.port()));
        let head = format!(
            "[proxy]\nname = \"p\"\nseparator = \"/\"\n[proxy.listen]\nhost = \"127.0.0.1\"\nport = {}\n",
            addr.port()
        );
        std::fs::write(&config, format!("{head}[[backends]]\nname = \"everything\"\n{backend}"))?;
        let process = Process::start(command.arg("--config").arg(&config))?;
        self.http("mcp-proxy (crate)", addr, "/", process.id(), vec![process]).map(Some)
    }

    fn py_proxy(&self) -> Made {
        let Some(mut command) = self.peers.py_mcp_proxy() else { return Ok(None) };
        let addr = free_addr()?;
        command.args(["--port", &addr.port().to_string(), "--pass-environment", "--log-level", "ERROR", "--"]);
        let process = Process::start(command.args(self.peers.everything()).arg("stdio"))?;
        self.http("mcp-proxy (PyPI)", addr, "/mcp", process.id(), vec![process]).map(Some)
    }

    fn fastmcp(&self, listen: Option<SocketAddr>, upstream_is_http: bool) -> Made {
        let Some(mut command) = self.peers.fastmcp() else { return Ok(None) };
        let entry = self.entry(upstream_is_http);
        let target = json!({"mcpServers": {"everything": entry}});
        let run = listen.map_or_else(
            || "transport='stdio', show_banner=False".to_owned(),
            |addr| format!("transport='http', host='127.0.0.1', port={}, show_banner=False", addr.port()),
        );
        let script = format!(
            "import json\nfrom fastmcp.server import create_proxy\ncreate_proxy(json.loads('''{target}''')).run({run})\n"
        );
        command.args(["-c", &script]).env("FASTMCP_LOG_LEVEL", "ERROR").current_dir(self.dir);
        match listen {
            None => self.pipe("fastmcp", command).map(Some),
            Some(addr) => {
                let process = Process::start(&mut command)?;
                self.http("fastmcp", addr, "/mcp", process.id(), vec![process]).map(Some)
            }
        }
    }

    /// Through its own interface: it speaks MCP over the transport of 2024-11-05 only, which needs two connections.
    fn hub(&self, upstream_is_http: bool) -> Made {
        let Some(mut command) = self.peers.mcp_hub() else { return Ok(None) };
        let addr = free_addr()?;
        let entry = self.entry(upstream_is_http);
        let config = self.dir.join(format!("mcp-hub-{}.json", addr.port()));
        std::fs::write(&config, json!({"mcpServers": {"everything": entry}}).to_string())?;
        command.args(["--port", &addr.port().to_string(), "--config"]).arg(&config);
        let process = Process::start(command.env("XDG_STATE_HOME", self.dir).env("XDG_DATA_HOME", self.dir))?;
        super::front::wait_for(addr)?;
        let body = json!({"server_name": "everything", "tool": TOOL, "arguments": {"message": "hello"}}).to_string();
        let front = Front::Rest(addr, "/api/servers/tools", body);
        let mut lane = Lane { path: "mcp-hub", front, params: String::new(), pid: process.id(), _held: vec![process] };
        // It listens before its servers are connected.
        for _ in 0..100 {
            if lane.front.load("", 1, 1).is_ok() {
                return Ok(Some(lane));
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        Err("it never answered a call".into())
    }

    fn pipe(&self, path: &'static str, mut command: Command) -> Result<Lane, Failure> {
        let pipe = Pipe::open(&mut command)?;
        let pid = pipe.id();
        self.ready(path, Front::Pipe(pipe), pid, Vec::new())
    }

    fn http(
        &self,
        path: &'static str,
        addr: SocketAddr,
        at: &'static str,
        pid: u32,
        held: Vec<Process>,
    ) -> Result<Lane, Failure> {
        self.ready(path, Front::Http(Mcp::open(addr, at)?), pid, held)
    }

    fn ready(&self, path: &'static str, mut front: Front, pid: u32, held: Vec<Process>) -> Result<Lane, Failure> {
        let tool = front.tool(TOOL)?;
        let params = call_params(&tool, &json!({"message": "hello"}));
        Ok(Lane { path, front, params, pid, _held: held })
    }

    /// The reference server as an entry of `mcpServers`.
    fn entry(&self, upstream_is_http: bool) -> Value {
        let server = self.peers.everything();
        if upstream_is_http {
            json!({"url": self.url()})
        } else {
            json!({"command": server[0], "args": [&server[1], "stdio"]})
        }
    }

    fn url(&self) -> String {
        format!("http://{}/mcp", self.upstream)
    }
}
