//! `doctor`: what is wrong, and how to mend it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use toolwright::House;
use toolwright::config::{Config, Problem, ServerLink, Severity};
use toolwright::core::Snapshot;
use toolwright::core::sandbox::{Enforcement, SandboxProfile, enforcement};
use toolwright::providers::process::sandbox::means;

use super::args::Global;
use super::exit::{Done, Exit};
use super::screen::{BAD, DIM, GOOD, WARN, harmless, print_json, say, styled};
use super::{config, open};

/// Server and tool name together that some clients still take.
const CLIENT_LIMIT: usize = 60;
/// The name under which clients know this server, when they follow the README.
const SERVER_NAME: &str = "toolwright";
/// Measurements of tools that have changed which are named.
const MAX_STALE: usize = 20;
/// A start that people notice.
const SLOW: Duration = Duration::from_secs(5);
/// How long whoever has the port of `serve` may take to say that it is a Toolwright.
const HEALTH_WAIT: Duration = Duration::from_millis(300);
/// Bytes of its answer that are read.
const MAX_HEALTH: u64 = 4096;

/// What a probe of one provider found.
struct Probe {
    name: String,
    kind: Value,
    tools: usize,
    error: Option<String>,
    took: Duration,
}

pub(crate) async fn command(global: &Global) -> Done {
    let settings = config::read(global)?;
    let problems = settings.problems.clone();
    if settings.is_unusable() {
        return report(global, &settings, &problems, &[], &[]);
    }
    let house = open(global, settings).await?;
    if !house.config().compat.written.tools.is_empty() {
        // Of tools that were measured it is told whether they have changed.
        house.offer_llm_tools().await;
    }
    let probes = probe(&house).await;
    let snapshot = house.catalogue().snapshot();
    house.shut_down().await;
    let settings = house.config();
    let mut findings = findings(&settings, &snapshot);
    findings.extend(taken_port(&settings.written.server.http).await);
    report(global, &settings, &problems, &probes, &findings)
}

/// Lists each provider, some at once.
async fn probe(house: &House) -> Vec<Probe> {
    let providers = house.catalogue().providers().await;
    let concurrency = house.config().written.defaults.mcp_init_concurrency;
    let timed: Vec<(String, Duration)> =
        futures_util::stream::iter(providers.iter().map(|provider| provider.name().to_owned()))
            .map(|name| async move {
                let started = Instant::now();
                house.catalogue().refresh(&name).await;
                (name, started.elapsed())
            })
            .buffered(concurrency)
            .collect()
            .await;
    let snapshot = house.catalogue().snapshot();
    let status = |name: &str| snapshot.providers().iter().find(|provider| provider.name == name).cloned();
    timed
        .into_iter()
        .filter_map(|(name, took)| {
            let status = status(&name)?;
            Some(Probe { name, kind: json!(status.kind), tools: status.tools, error: status.error, took })
        })
        .collect()
}

/// Faults of the catalogue as a whole: each is a sentence with its remedy.
fn findings(settings: &Config, snapshot: &Snapshot) -> Vec<String> {
    let mut all: Vec<String> =
        snapshot.issues().iter().map(|issue| format!("{}: {}", issue.provider, issue.message)).collect();
    for entry in snapshot.list() {
        if let Err(error) = entry.tool.schema() {
            all.push(format!(
                "{}: its schema does not compile, so its arguments are not validated: {error}; tell its author",
                entry.wire_name
            ));
        }
    }
    let contract = |tool: &str| snapshot.get(tool).map(|entry| entry.tool.hash().to_hex());
    for (tool, model) in settings.compat.written.stale(&contract).take(MAX_STALE) {
        all.push(format!(
            "{}: {tool} has changed since {model} was measured with it; `toolwright bench --models {model}` measures it anew",
            settings.compat.file.display()
        ));
    }
    let names = snapshot.names_within(settings.written.server.max_tool_name);
    let dropped: Vec<&str> = (0..snapshot.list().len())
        .map(|index| names.wire_name(index))
        .filter(|name| name.len() + SERVER_NAME.len() > CLIENT_LIMIT)
        .collect();
    if !dropped.is_empty() {
        all.push(format!(
            "clients that take {CLIENT_LIMIT} characters of server and tool name together (Cursor) would drop {}; set server.max_tool_name to {}",
            dropped.join(", "),
            CLIENT_LIMIT - SERVER_NAME.len()
        ));
    }
    all
}

/// The finding that another program has the port of `serve`. A Toolwright that runs there is none.
async fn taken_port(http: &str) -> Option<String> {
    let error = std::net::TcpListener::bind(http).err()?;
    if error.kind() != std::io::ErrorKind::AddrInUse || answers_health(http.parse().ok()?).await {
        return None;
    }
    Some(format!("{http} is taken by another program: set server.http, or start `serve` with --http 127.0.0.1:PORT"))
}

/// Whether a Toolwright listens there.
async fn answers_health(mut address: SocketAddr) -> bool {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(MAX_HEALTH).read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(HEALTH_WAIT, ask).await;
    answer.is_ok_and(|answer| {
        answer.is_ok_and(|answer| answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("\r\n\r\nok"))
    })
}

fn report(global: &Global, settings: &Config, problems: &[Problem], probes: &[Probe], findings: &[String]) -> Done {
    let well = problems.iter().all(|problem| problem.severity == Severity::Warning)
        && probes.iter().all(|probe| probe.error.is_none())
        && findings.is_empty()
        && !(settings.written.sandbox.strict && sandboxes(settings).any(|(_, sandbox)| sandbox.gaps().is_some()));
    let exit = match well {
        true => Exit::Ok,
        false => Exit::Failed,
    };
    if global.json {
        let probes: Vec<Value> = probes
            .iter()
            .map(|probe| {
                json!({"name": probe.name, "kind": probe.kind, "tools": probe.tools, "ok": probe.error.is_none(), "error": probe.error, "milliseconds": millis(probe.took)})
            })
            .collect();
        let sandboxes: Vec<Value> = sandboxes(settings)
            .map(|(whose, sandbox)| {
                let mut report = sandbox.to_json();
                report["of"] = json!(whose);
                report
            })
            .collect();
        print_json(
            &json!({"ok": well, "files": settings.files, "root": settings.root, "state_dir": settings.state_dir, "problems": problems, "providers": probes, "sandboxes": sandboxes, "findings": findings}),
        )?;
        return Ok(exit);
    }
    match &settings.files[..] {
        [] => say("no configuration file: the built-in tools only (`toolwright init` writes one)"),
        files => files.iter().for_each(|file| say(format_args!("read {}", file.display()))),
    }
    say(format_args!("workspace root {}, state in {}", settings.root.display(), settings.state_dir.display()));
    for problem in problems {
        let style = if problem.severity == Severity::Warning { WARN } else { BAD };
        say(styled(style, harmless(&problem.to_string())));
    }
    for probe in probes {
        let took = styled(DIM, format_args!("{} ms", millis(probe.took)));
        match &probe.error {
            Some(error) => say(format_args!("{} {}: {} {took}", styled(BAD, "✗"), probe.name, harmless(error))),
            None => say(format_args!("{} {}: {} tools {took}", styled(GOOD, "✓"), probe.name, probe.tools)),
        }
        if probe.error.is_none() && probe.took > SLOW {
            say(styled(
                WARN,
                "  it starts slowly; install it instead of fetching it at each start (npx, uvx), and its list is shown from the cache meanwhile",
            ));
        }
    }
    for (whose, sandbox) in sandboxes(settings) {
        say(format_args!("sandbox of {whose}: {}", sandbox.profile));
        if let Some(gaps) = sandbox.gaps() {
            match settings.written.sandbox.strict {
                true => say(styled(BAD, format_args!("  it is refused, since sandbox.strict is set: {gaps}"))),
                false => say(styled(DIM, format_args!("  {gaps}"))),
            }
        }
    }
    for finding in findings {
        say(styled(WARN, harmless(finding)));
    }
    say(match (well, problems.is_empty()) {
        (true, true) => styled(GOOD, "all is well"),
        // Nothing is lost by a warning, and something is not as it was meant.
        (true, false) => styled(WARN, "all works, but for the warnings above"),
        (false, _) => styled(BAD, "see above for what to mend"),
    });
    Ok(exit)
}

/// Whose processes run behind which walls, as far as they are told to run behind any.
fn sandboxes(settings: &Config) -> impl Iterator<Item = (String, Enforcement)> {
    let section = &settings.written.sandbox;
    let tools = [("shell__bash".to_owned(), section.bash), ("shell__python".to_owned(), section.python)];
    let servers = settings.servers.iter().filter_map(|server| match &server.settings.link {
        ServerLink::Stdio { sandbox, .. } => Some((format!("server {}", server.entry), *sandbox)),
        ServerLink::Http { .. } => None,
    });
    let restricted = tools.into_iter().chain(servers).filter(|(_, profile)| *profile != SandboxProfile::Full);
    restricted.map(|(whose, profile)| (whose, enforcement(profile, means())))
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
