//! A scripted MCP server on stdio: this test binary again, started with `MCP_PEER` set.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is a server on standard streams")]

use std::cell::{Cell, OnceCell};
use std::io::{BufRead as _, Write as _};

use serde_json::{Value, json};

/// Does nothing in a test run; as a child process it is the server and does not return.
///
/// The harness prints a few lines before it: a client must skip them.
#[test]
fn serve_when_asked() {
    let Ok(mode) = std::env::var("MCP_PEER") else { return };
    Peer { mode, log: std::env::var("MCP_PEER_LOG").ok(), subscription: OnceCell::new(), lines: Cell::new(0) }.serve();
    std::process::exit(0);
}

struct Peer {
    mode: String,
    log: Option<String>,
    /// Id of the request that listens for changes (2026-07-28).
    subscription: OnceCell<Value>,
    /// How many this process has read.
    lines: Cell<u32>,
}

impl Peer {
    fn is(&self, mode: &str) -> bool {
        self.mode == mode
    }

    fn serve(&self) {
        if self.is("exits") {
            eprintln!("cannot open the database");
            std::process::exit(7);
        }
        if self.mode.ends_with("slow to start") {
            std::thread::sleep(std::time::Duration::from_secs(3));
        }
        for line in std::io::stdin().lock().lines() {
            let Ok(line) = line else { return };
            self.lines.set(self.lines.get() + 1);
            if let Some(log) = &self.log {
                let mut log = std::fs::OpenOptions::new().create(true).append(true).open(log).expect("log");
                writeln!(log, "{line}").expect("log");
            }
            let message: Value = serde_json::from_str(&line).expect("the client sends JSON");
            if message.get("method").is_some() && !self.is("silent") {
                self.handle(&message);
            }
            if self.is("deaf after news") && message["method"] == "server/discover" {
                std::thread::park();
            }
        }
    }

    fn handle(&self, message: &Value) {
        let Some(id) = message.get("id") else { return };
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "initialize" if self.mode.starts_with("modern") => error(id, -32601, "no such method"),
            "initialize" if self.is("refuses news and ends") && self.lines.get() > 1 => std::process::exit(1),
            "initialize" => result(
                id,
                json!({
                    "protocolVersion": "2024-11-05", "capabilities": {"tools": {"listChanged": true}},
                    "serverInfo": {"name": "peer", "version": "1"}, "instructions": "be kind",
                }),
            ),
            "server/discover" if self.is("deaf to news") || self.is("deaf after news") => {}
            "server/discover" if self.is("ends on news") => std::process::exit(1),
            "server/discover" if self.mode.starts_with("modern") || self.mode.starts_with("both") => result(
                id,
                json!({
                    "resultType": "complete", "supportedVersions": ["2026-07-28"],
                    "capabilities": {"tools": {"listChanged": true}}, "ttlMs": 0, "cacheScope": "private",
                }),
            ),
            "subscriptions/listen" if self.mode.starts_with("modern") || self.mode.starts_with("both") => {
                let _ = self.subscription.set(id.clone());
                let accepted = json!({"toolsListChanged": true});
                self.announce("notifications/subscriptions/acknowledged", &json!({"notifications": accepted}));
            }
            "ping" if self.is("stubborn") || self.is("deaf at first") => {}
            "ping" => result(id, json!({})),
            "tools/list" if self.is_slow_to_list() || self.is("stuck") => {}
            "tools/list" if self.is("nulls") => {
                send(&format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":null,"error":{{"code":-32603,"message":"no database"}}}}"#
                ));
            }
            "tools/list" if self.is("nothing") => result(id, Value::Null),
            "tools/list" if self.is("cut") => send(&format!(
                r#"{{"result":{{"tools":[{{"name":"x","description":"cut \ud83d"}}]}},"jsonrpc":"2.0","id":{id}}}"#
            )),
            "tools/list" if self.is("deep") => {
                let deep = "[".repeat(200) + &"]".repeat(200);
                send(&format!(r#"{{"result":{{"tools":{deep}}},"jsonrpc":"2.0","id":{id}}}"#));
            }
            "tools/list" => self.list(id, params),
            "tools/call" => self.call(id, params),
            _ => error(id, -32601, "no such method"),
        }
    }

    /// A notification, of the subscription if there is one.
    fn announce(&self, method: &str, params: &Value) {
        let mut params = params.clone();
        if let Some(id) = self.subscription.get() {
            params["_meta"] = json!({"io.modelcontextprotocol/subscriptionId": id});
        }
        send(&json!({"jsonrpc": "2.0", "method": method, "params": params}).to_string());
    }

    /// The first process of its kind does not list at all, the first list of another is not answered.
    fn is_slow_to_list(&self) -> bool {
        let log = self.log.as_deref().map(|log| std::fs::read_to_string(log).expect("log")).unwrap_or_default();
        let lists = log.matches("\"tools/list\"").count();
        (self.is("deaf at first") || self.is("slow at first")) && lists == 1
    }

    fn list(&self, id: &Value, params: &Value) {
        if params.get("cursor").is_none() {
            let tools = json!([
                {"name": "Echo.Args", "description": "echoes", "inputSchema": {"type": "object"}, "later": {"x": 0.1},
                 "annotations": {"readOnlyHint": true}},
                {"name": "broken", "inputSchema": 5},
            ]);
            return result(id, json!({"tools": tools, "nextCursor": "two"}));
        }
        // The circle must not be followed.
        let next = if self.is("circle") { json!("two") } else { Value::Null };
        result(id, json!({"tools": [{"name": "hang"}, {"name": "secret_drop"}], "nextCursor": next}));
    }

    fn call(&self, id: &Value, params: &Value) {
        let progress = |n: u32| {
            let params = json!({"progressToken": params["_meta"]["progressToken"], "progress": n, "total": 3, "message": "so far", "_meta": {"step": n}});
            send(&json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).to_string());
        };
        match params["name"].as_str().unwrap_or_default() {
            "Echo.Args" => {
                (1..=3).for_each(progress);
                let block = json!({"type": "text", "text": "ok", "later": 1});
                let video = json!({"type": "video", "data": "x"});
                result(
                    id,
                    json!({
                        "content": [block, video], "structuredContent": {"got": params}, "_meta": {"k": 0.1}, "unknown": [1],
                    }),
                );
            }
            "batch" => {
                let answer = json!({"jsonrpc": "2.0", "id": id, "result": {"content": []}});
                let note = json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"});
                send(&json!([note, answer]).to_string());
            }
            "cut batch" => send(&format!(r#"[{{"jsonrpc":"2.0","id":{id},"result":{{"content":["#)),
            "odd batch" => {
                let mut stdout = std::io::stdout().lock();
                let head = format!(r#"[{{"jsonrpc":"2.0","id":{id},"result":{{"content":[{{"type":"text","text":""#);
                let whole = [head.as_bytes(), b"caf\xe9", b"\"}]}}]\n"].concat();
                stdout.write_all(&whole).and_then(|()| stdout.flush()).expect("the client reads");
            }
            "fail" => result(id, json!({"content": [{"type": "text", "text": "no such file"}], "isError": true})),
            "die" => {
                eprintln!("about to die");
                std::process::exit(3);
            }
            "half" => {
                print!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"resu");
                std::io::stdout().flush().expect("flush");
                std::process::exit(0);
            }
            "huge" => result(id, json!({"content": [{"type": "text", "text": "x".repeat(200_000)}]})),
            "deluge" => large_result(id, &params["arguments"]),
            "nonsense" => send(&format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{\"content\":[}}}}")),
            // As JavaScript writes a text that was cut inside a character, the id last.
            "cut text" => send(&format!(
                r#"{{"result":{{"content":[{{"type":"text","text":"cut \ud83d"}}]}},"jsonrpc":"2.0","id":{id}}}"#
            )),
            "cut error" => send(&format!(
                r#"{{"error":{{"code":-32002,"message":"cut \ud83d","data":{{"x":"\udc00"}}}},"jsonrpc":"2.0","id":{id}}}"#
            )),
            "cut progress" => {
                send(&format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":{},"progress":1,"message":"\ud83d"}}}}"#,
                    params["_meta"]["progressToken"]
                ));
                result(id, json!({"content": []}));
            }
            "deep" => {
                let deep = "[".repeat(200) + &"]".repeat(200);
                send(&format!(r#"{{"result":{{"content":{deep}}},"jsonrpc":"2.0","id":{id}}}"#));
            }
            "vast" => send(&format!(r#"{{"result":{{"structuredContent":1e400}},"jsonrpc":"2.0","id":{id}}}"#)),
            "half nonsense" => send(r#"{"jsonrpc":"2.0","result":{"content":[{"type":"te"#),
            "flood" => {
                (0..2000).for_each(|n| send(&format!("log line {n}")));
                result(id, json!({"content": []}));
            }
            "endless" => loop {
                send("debug: still here");
            },
            "change" => {
                (0..5).for_each(|_| self.announce("notifications/tools/list_changed", &json!({})));
                result(id, json!({"content": []}));
            }
            "ask_us" => {
                send(r#"{"jsonrpc":"2.0","id":"q1","method":"roots/list"}"#);
                send(r#"{"jsonrpc":"2.0","id":"q2","method":"ping"}"#);
                result(id, json!({"content": []}));
            }
            "nulls" => {
                send(&format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"result":null,"error":{{"code":-32602,"message":"no such row"}}}}"#
                ));
            }
            "hang" => {}
            _ => error(id, -32602, "Unknown tool"),
        }
    }
}

/// A result of as many bytes as are asked for, as one line, its id at either end.
fn large_result(id: &Value, arguments: &Value) {
    let bytes = arguments["bytes"].as_u64().expect("bytes");
    let (head, tail) = match arguments["id_last"].as_bool() {
        Some(true) => (String::new(), format!(",\"id\":{id}")),
        _ => (format!("\"id\":{id},"), String::new()),
    };
    let mut stdout = std::io::stdout().lock();
    let piece = vec![b'x'; 1 << 20];
    write!(stdout, "{{\"jsonrpc\":\"2.0\",{head}\"result\":{{\"content\":[{{\"type\":\"text\",\"text\":\"")
        .expect("head");
    for _ in 0..bytes >> 20 {
        stdout.write_all(&piece).expect("the client reads");
    }
    writeln!(stdout, "\"}}]}}{tail}}}").and_then(|()| stdout.flush()).expect("tail");
}

fn send(line: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{line}").and_then(|()| stdout.flush()).expect("the client reads");
}

fn result(id: &Value, result: Value) {
    send(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
}

fn error(id: &Value, code: i32, message: &str) {
    send(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}).to_string());
}
