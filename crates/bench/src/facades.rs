//! The facades over a scripted model that answers at once: the time added to the first token, many streams at once, and
//! memory over many requests.

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use toolwright_testkit::model_server::{Script, ScriptedModel, Turn, WireApi};

use crate::Failure;
use crate::memory::rss_mb;
use crate::stats::{per_second, percentile_us};

const KEY: &str = "bench";
const PATH: &str = "/v1/chat/completions";
/// The words of an answer; each is an event.
const WORDS: usize = 200;
/// Concurrent requests while memory is measured.
const AT_ONCE: usize = 16;

#[derive(Serialize)]
pub(crate) struct Row {
    what: &'static str,
    requests: usize,
    /// The median time to the first event of a stream, or to the whole answer.
    p50_us: f64,
    p99_us: f64,
    /// The difference to the model alone with the same request, at the median.
    added_p50_us: Option<f64>,
    requests_per_s: f64,
    /// Incomplete answers.
    lost: usize,
    /// The server's resident memory at the end, in MiB.
    rss_mb: f64,
}

/// A request of Chat Completions and its server.
#[derive(Clone)]
struct Peer {
    addr: SocketAddr,
    body: Arc<Value>,
}

struct Timing {
    first: Duration,
    whole: bool,
}

impl Peer {
    fn of(addr: SocketAddr, model: &str) -> Self {
        let messages = json!([{"role": "user", "content": "Say something."}]);
        Self { addr, body: Arc::new(json!({"model": model, "messages": messages})) }
    }

    async fn ask(&self, stream: bool) -> Result<Timing, Failure> {
        let mut body = Value::clone(&self.body);
        body["stream"] = json!(stream);
        let body = body.to_string();
        let mut connection = TcpStream::connect(self.addr).await?;
        connection.set_nodelay(true)?;
        let head = format!(
            "POST {PATH} HTTP/1.0\r\nhost: localhost\r\nauthorization: Bearer {KEY}\r\ncontent-type: application/json\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n",
            body.len()
        );
        let started = Instant::now();
        connection.write_all((head + &body).as_bytes()).await?;
        let (mut answer, mut first) = (Vec::new(), None);
        while connection.read_buf(&mut answer).await? > 0 {
            if first.is_none() && answer.windows(6).any(|seen| seen == b"data: " || seen == b"\"choic") {
                first = Some(started.elapsed());
            }
            // Some servers keep the connection open after the stream.
            if stream && answer.windows(12).rev().take(64).any(|seen| seen == b"data: [DONE]") {
                break;
            }
        }
        let answer = String::from_utf8_lossy(&answer);
        let last = format!("w{} ", WORDS - 1);
        let whole = if stream {
            stream_text(&answer).ends_with(&last) && answer.contains("data: [DONE]")
        } else {
            answer.contains(&last)
        };
        Ok(Timing { first: first.unwrap_or_else(|| started.elapsed()), whole })
    }
}

/// Returns the text of a stream, whose events may be cut anywhere.
fn stream_text(stream: &str) -> String {
    let events = stream.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    events.filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect()
}

/// A server process that is killed on drop.
struct ServerProcess(Child);

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(binary: &Path, config: &Value, dir: &Path) -> Result<(ServerProcess, SocketAddr), Failure> {
    let file = dir.join("toolwright.yaml");
    std::fs::write(&file, config.to_string())?;
    let mut child = Command::new(binary)
        .args(["serve", "--http", "127.0.0.1:0", "--config"])
        .arg(&file)
        .env("TOOLWRIGHT_STATE_DIR", dir.join("state"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{}: {error}; build it with cargo build --release", binary.display()))?;
    let mut lines = BufReader::new(child.stderr.take().ok_or("no stderr")?).lines().map_while(Result::ok);
    let served = ServerProcess(child);
    let addr = lines.find_map(|line| {
        let (_, rest) = line.split_once("toolwright: ready http://")?;
        rest.split('/').next()?.parse().ok()
    });
    let addr = addr.ok_or("it ended without saying that it was ready")?;
    // Reads the rest of standard error, so that the server never blocks on it.
    std::thread::spawn(move || lines.for_each(drop));
    Ok((served, addr))
}

fn row(what: &'static str, times: &[Timing], elapsed: Duration, base: Option<f64>, pid: u32) -> Row {
    let mut first: Vec<Duration> = times.iter().map(|timed| timed.first).collect();
    let p50_us = percentile_us(&mut first, 0.5);
    Row {
        what,
        requests: times.len(),
        p50_us,
        p99_us: percentile_us(&mut first, 0.99),
        added_p50_us: base.map(|base| (p50_us - base).round()),
        requests_per_s: per_second(times.len(), elapsed),
        lost: times.iter().filter(|timed| !timed.whole).count(),
        rss_mb: rss_mb(pid),
    }
}

/// Sends `count` requests, `at_once` of them at a time.
async fn many(peer: &Peer, count: usize, at_once: usize, stream: bool) -> Result<(Vec<Timing>, Duration), Failure> {
    let room = Arc::new(Semaphore::new(at_once));
    let started = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..count {
        let (permit, peer) = (Arc::clone(&room).acquire_owned().await?, peer.clone());
        tasks.spawn(async move {
            let asked = peer.ask(stream).await;
            drop(permit);
            asked
        });
    }
    let mut times = Vec::with_capacity(count);
    while let Some(done) = tasks.join_next().await {
        times.push(done??);
    }
    Ok((times, started.elapsed()))
}

pub(crate) fn run(binary: &Path, runs: usize, streams: usize, requests: usize) -> Result<Vec<Row>, Failure> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        let words: String = (0..WORDS).map(|n| format!("w{n} ")).collect();
        let model = ScriptedModel::start(Script::from(vec![Turn::text(words)]).repeating()).await?;
        let dir = tempfile::tempdir()?;
        let endpoint = json!({"api": "openai_chat", "base_url": model.base_url(WireApi::OpenAi), "api_key": KEY});
        let config = json!({
            "models": {
                "default": "scripted/m", "endpoints": {"scripted": endpoint},
                "scripted/m": {"queue": {"concurrent": 512}},
            },
            "server": {"token": KEY},
        });
        let (server, addr) = serve(binary, &config, dir.path())?;
        let pid = server.0.id();
        let direct = model.url().trim_start_matches("http://").trim_end_matches('/').parse()?;
        let (raw, agent) = (Peer::of(addr, "raw/scripted/m"), Peer::of(addr, "scripted/m"));
        agent.ask(true).await?;
        // An agent sends its prompt and tools to the model, so the comparison sends them to the model alone as well.
        let own = model.requests().pop().ok_or("the agent asks no model")?.body;
        let peers = [
            ("model alone", Peer::of(direct, "m"), None),
            ("raw model", raw.clone(), Some(0)),
            ("model alone, agent's request", Peer { addr: direct, body: Arc::new(own) }, None),
            ("default agent", agent.clone(), Some(2)),
        ];
        let mut times: [Vec<Timing>; 4] = Default::default();
        let mut spent = [Duration::ZERO; 4];
        // Targets take turns, so that other load on the machine affects all of them; the first twentieth warms up.
        for round in 0..runs + runs / 20 {
            for (at, (_, peer, _)) in peers.iter().enumerate() {
                let started = Instant::now();
                let timed = peer.ask(true).await?;
                if round >= runs / 20 {
                    spent[at] += started.elapsed();
                    times[at].push(timed);
                }
            }
        }
        let mut rows: Vec<Row> = Vec::new();
        for ((what, _, base), (times, spent)) in peers.iter().zip(times.iter().zip(spent)) {
            let base = base.and_then(|base: usize| rows.get(base)).map(|row| row.p50_us);
            rows.push(row(what, times, spent, base, pid));
        }
        let (times, elapsed) = many(&raw, streams, streams, true).await?;
        rows.push(row("raw streams at once", &times, elapsed, None, pid));
        let (times, elapsed) = many(&agent, streams, streams, true).await?;
        rows.push(row("agent streams at once", &times, elapsed, None, pid));
        for (what, count) in [("first tenth", requests / 10), ("all the rest", requests - requests / 10)] {
            let (times, elapsed) = many(&raw, count, AT_ONCE, false).await?;
            rows.push(row(what, &times, elapsed, None, pid));
        }
        Ok(rows)
    })
}
