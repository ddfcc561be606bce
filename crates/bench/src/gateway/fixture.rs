//! Starts the measured programs: a server, or a gateway in front of servers, with a front that takes calls.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use serde_json::{Map, Value, json};

use super::call::{Call, EchoTool, LoadLimit};
use super::choice::Target;
use super::front::{BenchInterface, Mcp, Revision, free_addr};
use super::peers::Peers;
use super::pipe::Pipe;
use super::process::ProcessGroup;
use crate::Failure;
use crate::memory::rss_mb;

/// A gateway's transport for clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClientTransport {
    /// Its pipe.
    Stdio,
    /// Its HTTP address.
    Http,
}

/// The way to a server.
#[derive(Debug, Clone)]
pub(super) enum ServerAddress {
    /// A command and its arguments.
    Command(Vec<String>),
    /// Streamable HTTP at `/mcp`.
    Http(SocketAddr),
}

/// A server behind a gateway.
#[derive(Debug, Clone)]
pub(super) struct Server {
    pub(super) name: String,
    pub(super) reach: ServerAddress,
    /// Whether it starts at its first call; only Toolwright supports that.
    pub(super) lazy: bool,
}

impl Server {
    /// Creates a server that starts at once.
    pub(super) fn of(name: &str, reach: ServerAddress) -> Self {
        Self { name: name.to_owned(), reach, lazy: false }
    }

    fn entry(&self) -> Value {
        let mut entry = match &self.reach {
            ServerAddress::Command(words) => json!({"command": words[0], "args": words[1..]}),
            ServerAddress::Http(addr) => json!({"url": url(*addr)}),
        };
        if self.lazy {
            entry["lazy"] = json!(true);
        }
        entry
    }

    fn words(&self) -> Vec<String> {
        match &self.reach {
            ServerAddress::Command(words) => words.clone(),
            ServerAddress::Http(addr) => vec![url(*addr)],
        }
    }

    fn command(&self) -> Result<Command, Failure> {
        match &self.reach {
            ServerAddress::Command(words) => Ok(with_args(Command::new(&words[0]), &words[1..])),
            ServerAddress::Http(_) => Err("a server at an address is not started".into()),
        }
    }
}

/// A front that takes calls, with the processes that it needs.
pub(super) struct Lane {
    pub(super) front: BenchInterface,
    held: Option<ProcessGroup>,
}

impl Lane {
    /// Returns the process id of the gateway; on the direct way, of the server unless all targets share it.
    pub(super) fn id(&self) -> Option<u32> {
        match &self.front {
            BenchInterface::Pipe(pipe) => pipe.family().id(),
            BenchInterface::Http(_) | BenchInterface::Hub(_) => self.held.as_ref()?.id(),
        }
    }

    /// Returns the resident memory of that process in MiB.
    pub(super) fn rss_mb(&self) -> Option<f64> {
        self.id().map(rss_mb)
    }

    /// Returns the call of the lane's `echo`, once it is listed.
    pub(super) fn echo(&mut self, echo: EchoTool, server: &Server) -> Result<Call, Failure> {
        let tool = self.front.listed("echo", 1)?;
        Ok(match self.front {
            BenchInterface::Hub(_) => Call::hub(&server.name, echo),
            BenchInterface::Pipe(_) | BenchInterface::Http(_) => Call::mcp(&tool, echo),
        })
    }

    /// Makes one call.
    pub(super) fn call_once(&mut self, call: &Call) -> Result<(), Failure> {
        self.front.load(call, LoadLimit { calls: 1, time: Duration::from_secs(1) }, 1).map(drop)
    }
}

/// The shared parts of every measured lane.
pub(super) struct Fixture<'a> {
    /// The Toolwright binary.
    pub(super) binary: &'a Path,
    /// The programs of others.
    pub(super) peers: &'a Peers,
    /// The directory for files of the run.
    pub(super) dir: &'a Path,
    /// The receiver of Toolwright's spans.
    pub(super) collector: &'a Collector,
}

impl Fixture<'_> {
    /// Starts a target in front of the servers. It keeps its files in the folder `home`, which an earlier target may
    /// have used.
    pub(super) fn open(
        &self,
        target: Target,
        transport: ClientTransport,
        servers: &[Server],
        home: &str,
    ) -> Result<Lane, Failure> {
        let home = self.dir.join(home);
        std::fs::create_dir_all(&home)?;
        let one = servers.first().ok_or("no server")?;
        let at = free_addr()?;
        let command = match target {
            Target::Direct | Target::DirectUnversioned => match one.reach {
                ServerAddress::Http(addr) => {
                    let revision = if target == Target::Direct { Revision::Sent } else { Revision::Omitted };
                    return Ok(Lane { front: BenchInterface::Http(Mcp::open(addr, "/mcp", revision)?), held: None });
                }
                ServerAddress::Command(_) => one.command()?,
            },
            Target::TwoCats => {
                let commands = vec![Command::new("cat"), one.command()?, Command::new("cat")];
                let front = BenchInterface::Pipe(Pipe::open(commands, &home.join("log"))?);
                return Ok(Lane { front, held: None });
            }
            Target::Toolwright => self.toolwright(transport, at, servers, &home)?,
            Target::NaiveProxy => naive(transport, at, one)?,
            Target::CrateProxy => self.crate_proxy(at, servers, &home)?,
            Target::PyProxy => self.py_proxy(at, one)?,
            Target::FastMcp => self.fastmcp(transport, at, servers, &home)?,
            Target::McpHub => self.hub(at, servers, &home)?,
        };
        let log = home.join("log");
        if target == Target::Direct || transport == ClientTransport::Stdio {
            return Ok(Lane { front: BenchInterface::Pipe(Pipe::open(vec![command], &log)?), held: None });
        }
        let mut held = ProcessGroup::start(command, &log)?;
        let front = held.listens(at).and_then(|()| {
            Ok(match target {
                Target::McpHub => BenchInterface::Hub(at),
                Target::CrateProxy => BenchInterface::Http(Mcp::open(at, "/", Revision::Sent)?),
                _ => BenchInterface::Http(Mcp::open(at, "/mcp", Revision::Sent)?),
            })
        });
        Ok(Lane { front: front.map_err(|error| held.explained(&error))?, held: Some(held) })
    }

    /// Returns the command of Toolwright with every feature on: validation, policy, pins, cap, ledger, events and
    /// spans. Its queue is as wide as the default one at its widest, because on a machine with few cores the default
    /// would hold back calls that the direct way makes at once.
    fn toolwright(
        &self,
        transport: ClientTransport,
        at: SocketAddr,
        servers: &[Server],
        home: &Path,
    ) -> Result<Command, Failure> {
        let config = json!({
            "mcpServers": entries(servers),
            "policy": {"rules": [
                {"effect": "deny", "tool": "*:delete_*", "reason": "nothing is deleted here"},
                {"effect": "allow", "tool": "*:echo"},
            ]},
            "pins": {"first_use": "pin", "drift": "withhold"},
            "queues": {"default": {"concurrent": 64}},
            "telemetry": {"endpoint": self.collector.url(), "traces": true, "metrics": true, "sample_ratio": 1.0},
        });
        let file = home.join("toolwright.yaml");
        std::fs::write(&file, config.to_string())?;
        let mut command = Command::new(self.binary);
        command.arg("serve");
        match transport {
            ClientTransport::Stdio => command.arg("--stdio"),
            ClientTransport::Http => command.arg("--http").arg(at.to_string()).args(["--policy", "client"]),
        };
        command.arg("--config").arg(file).env("TOOLWRIGHT_STATE_DIR", state_dir(home));
        // Excludes the user's own configuration.
        command.env("XDG_CONFIG_HOME", home).env_remove("RUST_LOG").current_dir(home);
        Ok(command)
    }

    fn crate_proxy(&self, at: SocketAddr, servers: &[Server], home: &Path) -> Result<Command, Failure> {
        let mut config = format!(
            "[proxy]\nname = \"p\"\nseparator = \"/\"\n[proxy.listen]\nhost = \"127.0.0.1\"\nport = {}\n",
            at.port()
        );
        for server in servers {
            // A JSON string is also a TOML string.
            let reach = match &server.reach {
                ServerAddress::Command(words) => {
                    format!("transport = \"stdio\"\ncommand = {}\nargs = {}\n", json!(words[0]), json!(words[1..]))
                }
                ServerAddress::Http(addr) => format!("transport = \"http\"\nurl = {}\n", json!(url(*addr))),
            };
            config.push_str(&format!("[[backends]]\nname = {}\n{reach}", json!(server.name)));
        }
        let file = home.join("mcp-proxy.toml");
        std::fs::write(&file, config)?;
        let mut command = self.peers.command(Target::CrateProxy)?;
        command.arg("--config").arg(file);
        Ok(command)
    }

    fn py_proxy(&self, at: SocketAddr, server: &Server) -> Result<Command, Failure> {
        let mut command = self.peers.command(Target::PyProxy)?;
        command.args(["--port", &at.port().to_string(), "--pass-environment", "--log-level", "ERROR", "--"]);
        Ok(with_args(command, &server.words()))
    }

    fn fastmcp(
        &self,
        transport: ClientTransport,
        at: SocketAddr,
        servers: &[Server],
        home: &Path,
    ) -> Result<Command, Failure> {
        let file = write_servers(servers, home)?;
        let run = match transport {
            ClientTransport::Stdio => "transport='stdio'".to_owned(),
            ClientTransport::Http => format!("transport='http', host='127.0.0.1', port={}", at.port()),
        };
        let script = format!(
            "import json, sys\nfrom fastmcp.server import create_proxy\n\
             create_proxy(json.load(open(sys.argv[1]))).run({run}, show_banner=False)\n"
        );
        let mut command = self.peers.command(Target::FastMcp)?;
        command.args(["-c", &script]).arg(file).env("FASTMCP_LOG_LEVEL", "ERROR").current_dir(home);
        Ok(command)
    }

    /// Returns the command of `mcp-hub`, which is called through its own interface: its MCP uses only the transport of
    /// 2024-11-05, which needs two connections.
    fn hub(&self, at: SocketAddr, servers: &[Server], home: &Path) -> Result<Command, Failure> {
        let mut command = self.peers.command(Target::McpHub)?;
        command.args(["--port", &at.port().to_string(), "--config"]).arg(write_servers(servers, home)?);
        command.env("XDG_STATE_HOME", home).env("XDG_DATA_HOME", home).env("XDG_CONFIG_HOME", home);
        Ok(command)
    }

    /// Returns the folder of the ledger of a Toolwright lane with this home.
    pub(super) fn state(&self, home: &str) -> PathBuf {
        state_dir(&self.dir.join(home))
    }
}

fn state_dir(home: &Path) -> PathBuf {
    home.join("state")
}

fn naive(transport: ClientTransport, at: SocketAddr, server: &Server) -> Result<Command, Failure> {
    let mut command = Command::new(std::env::current_exe()?.with_file_name("naive-proxy"));
    if transport == ClientTransport::Http {
        command.arg("--port").arg(at.port().to_string());
    }
    Ok(with_args(command, &server.words()))
}

fn with_args(mut command: Command, args: &[String]) -> Command {
    command.args(args);
    command
}

fn entries(servers: &[Server]) -> Map<String, Value> {
    servers.iter().map(|server| (server.name.clone(), server.entry())).collect()
}

fn write_servers(servers: &[Server], home: &Path) -> Result<PathBuf, Failure> {
    let file = home.join("servers.json");
    std::fs::write(&file, json!({"mcpServers": entries(servers)}).to_string())?;
    Ok(file)
}

fn url(addr: SocketAddr) -> String {
    format!("http://{addr}/mcp")
}

/// Starts the reference server over HTTP on its own port.
pub(super) fn everything_over_http(peers: &Peers, dir: &Path) -> Result<(SocketAddr, ProcessGroup), Failure> {
    let at = free_addr()?;
    let words = peers.everything()?;
    let mut command = with_args(Command::new(&words[0]), &words[1..]);
    command.arg("streamableHttp").env("PORT", at.port().to_string());
    let mut family = ProcessGroup::start(command, &dir.join("everything.log"))?;
    family.listens(at).map_err(|error| format!("the reference server: {error}"))?;
    Ok((at, family))
}

/// A server of OTLP over HTTP on its own port, until the program ends.
pub(super) struct Collector {
    addr: SocketAddr,
    traces: Arc<AtomicUsize>,
}

impl Collector {
    /// Starts listening.
    pub(super) fn start() -> Result<Self, Failure> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let traces = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&traces);
        let app = axum::Router::new()
            .route(
                "/v1/traces",
                post(async move |body: Bytes| {
                    counted.fetch_add(usize::from(!body.is_empty()), Ordering::Relaxed);
                }),
            )
            .route("/v1/metrics", post(async |_: Bytes| ()))
            .layer(DefaultBodyLimit::disable());
        std::thread::spawn(move || {
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener)?;
                axum::serve(listener, app).await
            })
        });
        Ok(Self { addr, traces })
    }

    /// Returns the URL for spans.
    pub(super) fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Returns the number of batches received.
    pub(super) fn batches(&self) -> usize {
        self.traces.load(Ordering::Relaxed)
    }
}
