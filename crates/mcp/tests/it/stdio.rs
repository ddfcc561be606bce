//! Servers on pipes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::{Health, Provider as _, ProviderKind, WithheldTool};
use toolwright_core::content::ContentBlock;
use toolwright_core::definition::Effects;
use toolwright_core::error::ErrorKind;
use toolwright_core::event::Partial;
use toolwright_core::passthrough::LISTED_FIELDS;
use toolwright_core::policy::HintTrust;
use toolwright_mcp::client::{Direction, FrameSink, McpServerOptions, McpTransport};

use super::{Fixture, eventually};
use crate::processes::pids_with;

/// The scripted server in this mode, and the file that takes what it reads.
pub(super) struct Script {
    log: tempfile::NamedTempFile,
    pub(super) transport: McpTransport,
}

pub(super) fn script(mode: &str) -> Script {
    scripted("peer::serve_when_asked", "MCP_PEER", mode)
}

/// The server that is the test called `entry` when `variable` is set.
pub(super) fn scripted(entry: &str, variable: &str, mode: &str) -> Script {
    let log = tempfile::NamedTempFile::new().expect("log");
    let env = [(variable, mode.to_owned()), ("MCP_PEER_LOG", log.path().display().to_string())];
    let transport = McpTransport::Stdio {
        command: std::env::current_exe().expect("this binary").display().to_string(),
        args: ["--exact", entry, "--nocapture"].map(str::to_owned).to_vec(),
        env: env.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        cwd: None,
    };
    Script { log, transport }
}

impl Script {
    pub(super) fn fixture(&self, change: impl FnOnce(&mut McpServerOptions)) -> Fixture {
        Fixture::new(self.transport.clone(), change)
    }

    /// Where it notes what it reads.
    pub(super) fn log_path(&self) -> std::path::PathBuf {
        self.log.path().to_owned()
    }

    /// What the server has read.
    pub(super) fn read(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.log.path()).expect("log");
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    pub(super) fn methods(&self) -> Vec<String> {
        let method = |message: Value| message.get("method").and_then(Value::as_str).map(str::to_owned);
        self.read().into_iter().filter_map(method).collect()
    }
}

pub(super) fn command(command: &str, args: &[&str]) -> McpTransport {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    McpTransport::Stdio { command: command.to_owned(), args, env: BTreeMap::new(), cwd: None }
}

#[tokio::test]
async fn a_list_is_paged_filtered_and_kept_whole() {
    let script = script("plain");
    let fixture = script.fixture(|options| {
        options.config.tools_denied = vec!["SECRET*".into()];
        options.config.request_timeout = Some(Duration::from_secs(9));
        options.config.cache.0 = Some(Duration::from_secs(60));
    });
    assert_eq!(fixture.provider.health(), Health::Starting);
    assert_eq!(fixture.provider.cached().await.map(|tools| tools.len()), None);
    let tools = fixture.provider.list().await.expect("listed");
    let definition = tools[0].definition();
    assert_eq!((tools[0].raw_name(), definition.id.as_str()), ("Echo.Args", "srv:echo_args@0.0.0"));
    assert_eq!(definition.meta[LISTED_FIELDS], json!({"later": {"x": 0.1}, "annotations": {"readOnlyHint": true}}));
    assert_eq!((definition.effects, definition.timeout), (Effects::FETCH, None));
    assert_eq!(fixture.provider.limits().timeout, Some(Duration::from_secs(9)));
    assert_eq!((tools[1].raw_name(), tools[1].definition().parameters.as_ref()), ("hang", None));
    assert_eq!((tools[1].definition().effects, tools[1].definition().cache_ttl), (Effects::UNKNOWN, None));
    let withheld = fixture.provider.withheld();
    assert!(withheld[0].name == "broken" && withheld[0].why.contains("inputSchema"), "{withheld:?}");
    assert_eq!(withheld[1], WithheldTool::new("secret_drop", "filtered by tools_denied"));
    assert_eq!((fixture.provider.health(), fixture.provider.kind()), (Health::Ready, ProviderKind::Mcp));
    assert_eq!(fixture.provider.instructions().as_deref(), Some("be kind"));
    assert_eq!(fixture.provider.trust(), HintTrust::Foreign);
    let methods = ["server/discover", "initialize", "notifications/initialized", "tools/list", "tools/list"];
    assert_eq!(script.methods(), methods);
    // A second process on the same state knows the tools before it has started the server.
    let again = Fixture::within(Arc::clone(&fixture.world), script.transport.clone(), |_| {});
    let cached = again.provider.cached().await.expect("cached");
    assert_eq!(cached.len(), 3);
    assert_eq!(cached[0].hash(), tools[0].hash());
    assert_eq!(again.provider.instructions().as_deref(), Some("be kind"));
    assert_eq!(again.provider.health(), Health::Starting);
    fixture.provider.shut_down().await;
}

#[tokio::test]
async fn pages_in_a_circle_end() {
    let fixture = script("circle").fixture(|_| {});
    assert_eq!(fixture.names().await, ["Echo.Args", "hang", "secret_drop"]);
    assert!(fixture.warnings().contains(&"mcp_list_cut".to_owned()));
}

#[tokio::test]
async fn calls_carry_arguments_and_return_all_content() {
    let script = script("plain");
    let fixture = script.fixture(|_| {});
    let output = fixture.call("Echo.Args", json!({"z": 1, "a": {"b": 0.1}})).await.expect("output");
    let got = output.structured.expect("structured");
    let got = &got["got"];
    assert_eq!(got["arguments"].to_string(), r#"{"z":1,"a":{"b":0.1}}"#);
    assert_eq!(got["_meta"]["traceparent"], "00-aa-bb-01");
    assert_eq!(got["_meta"]["io.github.toolwright/idempotency-key"], "key-1");
    assert!(got["_meta"]["progressToken"].is_number());
    let ContentBlock::Text { text, extra } = &output.content[0] else { panic!("{:?}", output.content) };
    assert_eq!((text.as_str(), &extra["later"]), ("ok", &json!(1)));
    assert!(output.content[1].as_text().expect("stand-in").contains("`video`"));
    assert_eq!((&output.meta["k"], &output.extras["mcp_result"]), (&json!(0.1), &json!({"unknown": [1]})));
    let partials = fixture.world.partials.lock().expect("partials").clone();
    let expect = |n: f64| Partial::Progress {
        progress: n,
        total: Some(3.0),
        message: Some("so far".into()),
        more: serde_json::Map::from_iter([("_meta".to_owned(), json!({"step": n as u32}))]),
    };
    assert_eq!(partials, [expect(1.0), expect(2.0), expect(3.0)], "in order, and before the result");
    // The harness of the peer wrote to its standard output; that costs one warning.
    assert_eq!(fixture.warnings(), ["mcp_garbage"]);
}

#[tokio::test]
async fn tool_failures_differ_from_request_failures() {
    let fixture = script("plain").fixture(|options| options.config.max_message_bytes = 100_000);
    let output = fixture.call("fail", json!({})).await.expect("a failed tool has an output");
    assert!(output.is_error && output.content[0].as_text() == Some("no such file"));
    for (tool, kind, fragment) in [
        ("nothing", ErrorKind::ExecutionError, "Unknown tool"),
        ("huge", ErrorKind::TransportError, "message over max_message_bytes"),
        ("nonsense", ErrorKind::TransportError, "not a valid message"),
    ] {
        let error = fixture.call(tool, json!({})).await.expect_err(tool);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.message().contains(fragment) && !error.is_retryable(), "{error}");
    }
    fixture.call("Echo.Args", json!({})).await.expect("the server is still there");
}

#[tokio::test]
async fn invalid_text_is_replaced_broken_json_fails() {
    let fixture = script("plain").fixture(|_| {});
    let output = fixture.call("cut text", json!({})).await.expect("read");
    assert_eq!(output.content[0].as_text(), Some("cut \u{fffd}"));
    let error = fixture.call("cut error", json!({})).await.expect_err("refused");
    let own = error.protocol().expect("the server's own");
    assert_eq!((own.code, &*own.message, &own.data), (-32002, "cut \u{fffd}", &Some(json!({"x": "\u{fffd}"}))));
    fixture.call("cut progress", json!({})).await.expect("output");
    let reported = fixture.world.partials.lock().expect("partials").clone();
    assert!(
        matches!(&*reported, [Partial::Progress { message: Some(message), .. }] if message == "\u{fffd}"),
        "{reported:?}"
    );
    let (unread, broken) = ("the server's answer cannot be read", "the server's answer is not a valid message");
    for (tool, expect) in [("deep", unread), ("vast", unread), ("half nonsense", broken)] {
        let began = Instant::now();
        let error = fixture.call(tool, json!({})).await.expect_err(tool);
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, false), "{error}");
        assert!(error.message().contains(expect), "{error}");
        assert!(began.elapsed() < Duration::from_secs(10), "{tool}");
    }
    fixture.call("Echo.Args", json!({})).await.expect("the server is still there");
    assert_eq!(script("cut").fixture(|_| {}).names().await, ["x"]);
    let script = script("deep");
    let fixture = script.fixture(|_| {});
    let listed = tokio::time::timeout(Duration::from_secs(20), fixture.provider.list()).await.expect("at once");
    assert!(listed.is_err());
    // Its answer shows that it lives: it is not started again.
    fixture.call("Echo.Args", json!({})).await.expect("the server is still there");
    assert_eq!(script.methods().iter().filter(|method| *method == "initialize").count(), 1);
}

#[tokio::test]
async fn an_unreadable_answer_fails_every_call_in_flight() {
    let script = script("plain");
    let fixture = script.fixture(|_| {});
    fixture.provider.warm_up().await.expect("connected");
    let (hanging, unread) = tokio::join!(fixture.call("hang", json!({})), async {
        eventually("a call hangs", || script.methods().contains(&"tools/call".to_owned())).await;
        fixture.call("nonsense", json!({})).await
    });
    for error in [hanging.expect_err("hang"), unread.expect_err("nonsense")] {
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, false), "{error}");
        let text = "the server's answer is not a valid message, or that to another request in flight: ";
        assert!(error.message().contains(text), "{error}");
    }
    fixture.call("Echo.Args", json!({})).await.expect("the server is still there");
    assert_eq!(script.methods().iter().filter(|method| *method == "initialize").count(), 1);
}

#[tokio::test]
async fn noise_and_server_requests_are_ignored() {
    let script = script("plain");
    let fixture = script.fixture(|_| {});
    fixture.call("flood", json!({})).await.expect("output");
    fixture.call("batch", json!({})).await.expect("output");
    assert!(fixture.warnings().len() <= 5, "{:?}", fixture.warnings());
    fixture.call("ask_us", json!({})).await.expect("output");
    let answer = |id: &str| script.read().into_iter().find(|message| message["id"] == id);
    eventually("both questions are answered", || answer("q1").is_some() && answer("q2").is_some()).await;
    assert_eq!(answer("q1").expect("roots")["error"]["code"], -32601, "its call's client has none");
    assert_eq!(answer("q2").expect("ping")["result"], json!({}));
}

#[tokio::test]
async fn a_server_that_only_prints_is_stopped() {
    let flood = command("yes", &["chatter"]);
    {
        let fixture = Fixture::new(flood, |options| options.config.connect_timeout = Duration::from_secs(60));
        // It is found out long before that time is over.
        let error =
            tokio::time::timeout(Duration::from_secs(30), fixture.provider.list()).await.expect("it is not waited for");
        let error = error.expect_err("no server").to_string();
        for part in ["was stopped", "lines that are no messages, the first `chatter`", "standard output"] {
            assert!(error.contains(part), "{error}");
        }
    }
    let script = script("plain");
    let fixture = script.fixture(|_| {});
    let error = fixture.call("endless", json!({})).await.expect_err("it never answers");
    assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::TransportError, false), "{error}");
    assert!(error.message().contains("the first"), "{error}");
    fixture.provider.warm_up().await.expect("it is started again");
    fixture.call("Echo.Args", json!({})).await.expect("output");
}

#[tokio::test]
async fn cancels_are_passed_on_without_waiting() {
    let script = script("plain");
    let fixture = script.fixture(|_| {});
    fixture.provider.warm_up().await.expect("connected");
    let (error, ()) = tokio::join!(fixture.call("hang", json!({})), async {
        eventually("the call has arrived", || script.methods().contains(&"tools/call".to_owned())).await;
        fixture.cancel.cancel(CancelCause::User);
    });
    let error = error.expect_err("canceled");
    assert_eq!((error.kind(), error.cancel_cause()), (ErrorKind::Canceled, Some(CancelCause::User)));
    eventually("the server hears of it", || script.methods().contains(&"notifications/cancelled".to_owned())).await;
    let read = script.read();
    let sent = |method: &str| read.iter().find(|message| message["method"] == method).expect(method);
    assert_eq!(sent("notifications/cancelled")["params"]["requestId"], sent("tools/call")["id"]);
}

#[tokio::test]
async fn errors_beside_null_results_are_errors() {
    let script = script("plain");
    let fixture = script.fixture(|_| {});
    let error = fixture.call("nulls", json!({})).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::ExecutionError, "{error}");
    assert!(error.message().contains("no such row"), "{error}");
    // A list that is none takes no tools away.
    assert_eq!(fixture.names().await.len(), 3);
    let kept = fixture.world.manifests.lock().expect("manifests").clone();
    for (mode, expect) in [("nulls", "no database"), ("nothing", "has no list of tools")] {
        let other = scripted("peer::serve_when_asked", "MCP_PEER", mode);
        let fixture = Fixture::within(Arc::clone(&fixture.world), other.transport.clone(), |_| {});
        let error = fixture.provider.list().await.expect_err(mode).to_string();
        assert!(error.contains(expect), "{error}");
        assert_eq!(*fixture.world.manifests.lock().expect("manifests"), kept, "{mode}");
    }
}

#[tokio::test]
async fn many_announcements_of_a_change_are_one() {
    for (mode, subscribes) in [("plain", false), ("modern", true)] {
        let script = script(mode);
        let fixture = script.fixture(|_| {});
        let notified = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&notified);
        fixture.provider.on_change(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        fixture.provider.list().await.expect("listed");
        let subscribed = || script.methods().contains(&"subscriptions/listen".to_owned());
        if subscribes {
            eventually("it is subscribed to", subscribed).await;
        }
        assert_eq!(notified.load(Ordering::Relaxed), 0, "a list announces nothing to its own caller");
        fixture.call("change", json!({})).await.expect("output");
        eventually("it is announced", || notified.load(Ordering::Relaxed) == 1).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(notified.load(Ordering::Relaxed), 1, "{mode}");
        assert_eq!(subscribed(), subscribes);
    }
}

#[tokio::test]
async fn newest_generation_is_found_and_remembered() {
    for mode in ["modern", "both"] {
        newest_first(mode).await;
    }
}

async fn newest_first(mode: &str) {
    let script = script(mode);
    let fixture = script.fixture(|_| {});
    assert_eq!(fixture.names().await, ["Echo.Args", "hang", "secret_drop"]);
    assert_eq!(script.methods()[0], "server/discover");
    let list = script.read().into_iter().find(|message| message["method"] == "tools/list").expect("list");
    assert_eq!(list["params"]["_meta"]["io.modelcontextprotocol/protocolVersion"], "2026-07-28");
    fixture.call("Echo.Args", json!({})).await.expect("output");
    fixture.call("die", json!({})).await.expect_err("dies");
    assert_eq!(fixture.names().await.len(), 3);
    let handshakes = |kind: &str| script.methods().iter().filter(|method| *method == kind).count();
    assert_eq!((handshakes("server/discover"), handshakes("initialize")), (2, 0), "{mode}");
}

#[tokio::test]
async fn old_servers_are_found_once() {
    let in_time = |options: &mut McpServerOptions| options.config.connect_timeout = Duration::from_secs(9);
    let cases = [
        ("plain", &["server/discover", "initialize"][..], "initialize"),
        ("deaf to news", &["server/discover", "initialize"], "initialize"),
        // One process each: the first is not taken for a deaf one.
        ("slow to start", &["server/discover", "initialize"], "initialize"),
        ("both, slow to start", &["server/discover", "initialize"], "server/discover"),
        ("modern, slow to start", &["server/discover", "initialize"], "server/discover"),
        ("deaf after news", &["server/discover", "initialize"], "initialize"),
        ("ends on news", &["server/discover", "initialize"], "initialize"),
        ("refuses news and ends", &["server/discover", "initialize", "initialize"], "initialize"),
    ];
    // Each mostly waits.
    let started = cases.map(|(mode, handshakes, remembered)| async move {
        let script = script(mode);
        let fixture = script.fixture(in_time);
        assert_eq!(fixture.names().await.len(), 3, "{mode}");
        fixture.provider.shut_down().await;
        let shaken = |methods: &[String]| -> Vec<String> {
            let of = |method: &&String| ["initialize", "server/discover"].contains(&method.as_str());
            methods.iter().filter(of).cloned().collect()
        };
        assert_eq!(shaken(&script.methods()), handshakes, "{mode}");
        let before = script.methods().len();
        let again = Fixture::within(Arc::clone(&fixture.world), script.transport.clone(), in_time);
        assert_eq!(again.names().await.len(), 3, "{mode}");
        assert_eq!(shaken(&script.methods()[before..]), [remembered], "{mode}: another start need not find it again");
        again.provider.shut_down().await;
    });
    futures_util::future::join_all(started).await;
}

#[tokio::test]
async fn failed_starts_name_cause_and_remedy() {
    let short = Duration::from_secs(2);
    let chatters = command("sh", &["-c", "echo Listening on stdio; sleep 9"]);
    let says = ["within 2s", "`Listening on stdio`", "standard output"];
    for (transport, bound, fragments) in [
        (chatters, short, &says[..]),
        (command("/nonexistent/mcp-server", &[]), short, &["not found", "PATH"][..]),
        (script("exits").transport, Duration::from_secs(20), &["exit code 7", "cannot open the database", "by hand"]),
        (command("cat", &[]), Duration::from_secs(20), &["echoes what it receives", "MCP server"]),
        (script("silent").transport, short, &["did not answer `initialize` within 2s"]),
    ] {
        let began = Instant::now();
        let fixture = Fixture::new(transport, |options| options.config.connect_timeout = bound);
        let error = fixture.provider.list().await.expect_err("no server").to_string();
        // Three tries share the bound; each with one of its own would take three times as long.
        assert!(began.elapsed() < bound * 5 / 2, "{:?}: {error}", began.elapsed());
        assert!(error.starts_with("MCP server srv: ") && fragments.iter().all(|part| error.contains(part)), "{error}");
        assert!(matches!(fixture.provider.health(), Health::Failed { .. }));
        let again = fixture.provider.list().await.expect_err("no server").to_string();
        assert!(!again.contains("tried again in"), "a command that ends tries nothing again: {again}");
        let call = fixture.call("x", json!({})).await.expect_err("no server");
        assert_eq!((call.kind(), call.is_retryable()), (ErrorKind::TransportError, true), "{call}");
        fixture.provider.shut_down().await;
    }
}

#[tokio::test]
async fn unused_servers_are_stopped() {
    for ask_first in [true, false] {
        let script = script("plain");
        let marker = format!("--marker={}", script.log.path().display());
        let McpTransport::Stdio { command, mut args, env, cwd } = script.transport.clone() else { unreachable!() };
        // The harness leaves out tests that match what follows `--skip`: none; here it marks the process.
        args.extend(["--skip".to_owned(), marker.clone()]);
        let fixture = Fixture::new(McpTransport::Stdio { command, args, env, cwd }, |_| {});
        fixture.provider.warm_up().await.expect("connected");
        assert!(!pids_with(&marker).is_empty());
        if ask_first {
            fixture.provider.shut_down().await;
            assert_eq!(pids_with(&marker), Vec::<u32>::new());
            let error = fixture.call("Echo.Args", json!({})).await.expect_err("gone");
            assert!(error.message().contains("shut down"), "{error}");
        } else {
            drop(fixture);
            eventually("the process ends with its provider", || pids_with(&marker).is_empty()).await;
        }
    }
}

/// Keeps the messages that it is shown.
#[derive(Debug, Default)]
struct Frames(std::sync::Mutex<Vec<(Direction, Value)>>);

impl FrameSink for Frames {
    fn frame(&self, server: &str, direction: Direction, json: &[u8]) {
        assert_eq!(server, "srv");
        // The server is a test itself, whose harness prints lines of its own.
        let Ok(message) = serde_json::from_slice(json) else { return };
        self.0.lock().expect("lock").push((direction, message));
    }
}

#[tokio::test]
async fn every_message_is_passed_to_the_tracer() {
    let frames = Arc::new(Frames::default());
    let script = script("plain");
    let fixture = script.fixture(|options| options.frames = Some(Arc::clone(&frames) as _));
    fixture.names().await;
    let shown = frames.0.lock().expect("lock").clone();
    let sent: Vec<&Value> =
        shown.iter().filter(|(direction, _)| *direction == Direction::Sent).map(|(_, message)| message).collect();
    assert_eq!(sent, script.read().iter().collect::<Vec<_>>(), "all that the server reads");
    let list = sent.iter().find(|message| message["method"] == "tools/list").expect("the list");
    let is_answer = |(direction, message): &&(Direction, Value)| {
        *direction == Direction::Received && message["id"] == list["id"] && message["result"]["tools"].is_array()
    };
    assert!(shown.iter().any(|frame| is_answer(&frame)), "{shown:?}");
}
