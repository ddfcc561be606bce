//! A scripted MCP server on stdio that asks back, makes tasks, and has resources and prompts, in either generation: this
//! test binary again, started with `MCP_ASKER` set to `legacy`, `modern`, `both`,
//! `both-mute`, `malformed`, or `rooted`: an older one that asks for folders as soon as it may, and whenever they change.

use std::io::{BufRead as _, Write as _};

use serde_json::{Value, json};

const TASKS: &str = "io.modelcontextprotocol/tasks";

/// Does nothing in a test run; as a child process it is the server and does not return.
#[test]
fn serve_when_asked() {
    let Ok(mode) = std::env::var("MCP_ASKER") else { return };
    let log = std::env::var("MCP_PEER_LOG").expect("log");
    let (is_modern, speaks_both) = (!["legacy", "rooted", "malformed"].contains(&&*mode), mode.starts_with("both"));
    let mut asker = Asker {
        is_modern,
        speaks_both,
        lists_malformed: mode == "malformed",
        is_mute: mode == "both-mute",
        asks_folders: mode == "rooted",
        folders: Value::Null,
        asking: None,
        delayed_call: None,
        open: 0,
        is_lossy: false,
        loses_answers: false,
        looks: 0,
        answers: Value::Null,
    };
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let mut log = std::fs::OpenOptions::new().create(true).append(true).open(&log).expect("log");
        writeln!(log, "{line}").expect("log");
        asker.take(&serde_json::from_str(&line).expect("the client sends JSON"));
    }
    std::process::exit(0);
}

struct Asker {
    /// What it speaks.
    is_modern: bool,
    /// It is older once it is asked to `initialize`.
    speaks_both: bool,
    /// It lists prompts in two pages and not as MCP has it, and has no resources.
    lists_malformed: bool,
    /// It answers no `logging/setLevel`.
    is_mute: bool,
    /// It asks for folders outside of calls, and tells in calls what it has.
    asks_folders: bool,
    folders: Value,
    /// The call that waits for the client's answer.
    asking: Option<Value>,
    /// A call that asks when the next one has come, whatever has become of it.
    delayed_call: Option<Value>,
    /// How many answers it waits for.
    open: u32,
    /// Whether the next look at the task is answered with rubbish, and the next answer to what it asks.
    is_lossy: bool,
    loses_answers: bool,
    /// How often the task was looked at.
    looks: u32,
    /// What the client answered for the task.
    answers: Value,
}

impl Asker {
    fn take(&mut self, message: &Value) {
        let Some(id) = message.get("id") else {
            let says = |method: &str| message["method"] == method;
            if self.asks_folders && (says("notifications/initialized") || says("notifications/roots/list_changed")) {
                send(&json!({"jsonrpc": "2.0", "id": "folders", "method": "roots/list"}));
            }
            return;
        };
        if id == "folders" {
            self.folders = message.get("result").or(message.get("error")).cloned().unwrap_or_default();
            return;
        }
        if let Some(call) =
            id.as_str().and_then(|id| id.strip_prefix("apart-")).and_then(|call| call.parse::<u64>().ok())
        {
            return text(&call.into(), &json!(message.get("result").or_else(|| message.get("error"))).to_string());
        }
        let Some(method) = message.get("method").and_then(Value::as_str) else {
            self.open -= 1;
            if self.open > 0 {
                return;
            }
            let call = self.asking.take().expect("a question is open");
            let answer = message.get("result").or_else(|| message.get("error"));
            return text(&call, &json!(answer).to_string());
        };
        let params = &message["params"];
        if method == "initialize" && self.speaks_both {
            self.is_modern = false;
        }
        match method {
            "initialize" if self.lists_malformed => result(
                id,
                json!({
                    "protocolVersion": "2025-11-25", "serverInfo": {"name": "asker", "version": "1"},
                    "capabilities": {"tools": {}, "prompts": {}},
                }),
            ),
            "initialize" if !self.is_modern => result(
                id,
                json!({
                    "protocolVersion": "2025-11-25", "serverInfo": {"name": "asker", "version": "1"},
                    "capabilities": {
                        "tools": {}, "prompts": {}, "resources": {"subscribe": true}, "logging": {},
                        "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}},
                    },
                }),
            ),
            "server/discover" if self.is_modern => result(
                id,
                json!({
                    "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                    "capabilities": {
                        "tools": {}, "prompts": {}, "resources": {"subscribe": true}, "extensions": {TASKS: {}},
                    },
                }),
            ),
            "tools/list" => {
                let job = json!({"name": "job", "execution": {"taskSupport": "required"}});
                let tools = json!([{"name": "ask"}, {"name": "tell"}, {"name": "hang"}, job]);
                result(id, json!({"tools": tools, "ttlMs": 1000, "cacheScope": "private"}));
            }
            "tools/call" if self.asks_folders => text(id, &self.folders.to_string()),
            "tools/call" => self.call(id, params),
            "resources/list" => result(
                id,
                json!({"resources": [{"uri": "a://1", "name": "one", "later": 1}], "nextCursor": "next", "later": 2}),
            ),
            "resources/templates/list" => {
                result(
                    id,
                    json!({"resourceTemplates": [{"uriTemplate": "a://{n}", "name": "all", "description": "d"}]}),
                );
            }
            "resources/read" if params["uri"] == "a://1" => {
                result(id, json!({"contents": [{"uri": "a://1", "text": "first", "later": 1}], "later": 2}));
            }
            "resources/read" => error(id, -32002, json!({"uri": params["uri"]})),
            "logging/setLevel" if self.is_mute => {}
            "logging/setLevel" if params["level"] == "loud" => error(id, -32602, Value::Null),
            "logging/setLevel" if !self.is_modern => result(id, json!({})),
            "resources/subscribe" => {
                result(id, json!({}));
                notify("notifications/resources/updated", json!({"uri": params["uri"]}));
            }
            "subscriptions/listen" => {
                let meta = json!({"io.modelcontextprotocol/subscriptionId": id});
                let accepted = json!({"resourceSubscriptions": params["notifications"]["resourceSubscriptions"]});
                let acknowledged = json!({"_meta": meta, "notifications": accepted});
                notify("notifications/subscriptions/acknowledged", acknowledged);
                for uri in params["notifications"]["resourceSubscriptions"].as_array().into_iter().flatten() {
                    notify("notifications/resources/updated", json!({"_meta": meta, "uri": uri}));
                }
            }
            "prompts/list" if self.lists_malformed && params["cursor"].is_null() => {
                let arguments = json!([{"name": "who", "required": null}, {}]);
                let prompts = json!([{"name": "greet", "title": null, "arguments": arguments}, {"title": "nameless"}]);
                result(id, json!({"prompts": prompts, "nextCursor": "2"}));
            }
            "prompts/list" if self.lists_malformed => {
                result(id, json!({"prompts": [{"name": "more", "description": "d"}], "nextCursor": ""}));
            }
            "prompts/list" => {
                let arguments = json!([{"name": "who", "required": true}]);
                result(id, json!({"prompts": [{"name": "greet", "description": "d", "arguments": arguments}]}));
            }
            "prompts/get" => {
                let content = json!({"type": "text", "text": format!("Hello {}", params["arguments"]["who"])});
                result(id, json!({"messages": [{"role": "user", "content": content}]}));
            }
            method if method.starts_with("tasks/") => self.task(id, method, params),
            _ => error(id, -32601, Value::Null),
        }
    }

    fn call(&mut self, id: &Value, params: &Value) {
        let question = json!({
            "method": "elicitation/create",
            "params": {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}},
        });
        let task = json!({
            "taskId": "t1", "status": "working", "statusMessage": "begun", "pollInterval": 20, "pollIntervalMs": 20,
            "createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": null, "ttlMs": null,
        });
        self.is_lossy = params["arguments"]["lossy"] == true;
        if let Some(call) = self.delayed_call.take() {
            let mut request = question.clone();
            request["jsonrpc"] = "2.0".into();
            request["id"] = format!("apart-{call}").into();
            send(&request);
        }
        self.loses_answers = self.is_lossy;
        match (params["name"].as_str().unwrap_or_default(), self.is_modern) {
            ("ask", false) if params["arguments"]["cut"] == true => {
                self.asking = Some(id.clone());
                self.open = 2;
                let deep = "[".repeat(200) + &"]".repeat(200);
                for (number, message) in [(1, r#""Who \ud83d""#), (2, deep.as_str())] {
                    line(&format!(
                        r#"{{"params":{{"message":{message}}},"method":"elicitation/create","jsonrpc":"2.0","id":"q{number}"}}"#
                    ));
                }
            }
            // Any number of calls may have asked so at once.
            ("ask", false) if params["arguments"]["apart"] == true => {
                let mut request = question.clone();
                request["jsonrpc"] = "2.0".into();
                request["id"] = format!("apart-{id}").into();
                send(&request);
            }
            // It asks when the next call has come.
            ("ask", false) if params["arguments"]["late"] == true => self.delayed_call = Some(id.clone()),
            // The same, though it has answered by then.
            ("ask", false) if params["arguments"]["after"] == true => {
                self.delayed_call = Some(id.clone());
                text(id, "done");
            }
            ("ask", false) => {
                self.asking = Some(id.clone());
                self.open = if params["arguments"]["twice"] == true { 2 } else { 1 };
                for number in 1..=self.open {
                    let mut request = question.clone();
                    request["jsonrpc"] = "2.0".into();
                    request["id"] = format!("q{number}").into();
                    send(&request);
                }
            }
            ("ask", true) if params.get("inputResponses").is_none() => result(
                id,
                json!({"resultType": "input_required", "inputRequests": {"who": question}, "requestState": "s1"}),
            ),
            ("ask", true) => text(id, &json!([params["inputResponses"], params["requestState"]]).to_string()),
            ("tell", _) => {
                notify("notifications/message", json!({"level": "info", "data": "hear"}));
                text(id, "told");
            }
            ("tell late", _) => {
                text(id, "told");
                // Long enough for the call to be over.
                std::thread::sleep(std::time::Duration::from_millis(300));
                notify("notifications/message", json!({"level": "info", "data": "hear"}));
            }
            ("job", false) if params.get("task").is_some() => result(id, json!({"task": task})),
            ("job", true)
                if params["_meta"]["io.modelcontextprotocol/clientCapabilities"]["extensions"][TASKS].is_object() =>
            {
                let mut task = task;
                task["resultType"] = "task".into();
                result(id, task);
            }
            ("hang", _) => {}
            // It wants its user somewhere else first, and may say when they are done there.
            ("page", _) => {
                self.looks += 1;
                if self.looks > params["arguments"]["refusals"].as_u64().unwrap_or(1) as u32 {
                    return text(id, "welcome");
                }
                let page = json!({
                    "mode": "url", "elicitationId": "e1", "url": "https://login.example/?for=1", "message": "Log in.",
                });
                error(id, -32042, json!({"elicitations": [page]}));
                if params["arguments"]["tells"] == true {
                    notify("notifications/elicitation/complete", json!({"elicitationId": "e1"}));
                }
            }
            ("announce", _) => {
                notify("notifications/prompts/list_changed", json!({}));
                text(id, "announced");
            }
            ("die", _) => std::process::exit(1),
            _ => error(id, -32601, Value::Null),
        }
    }

    fn task(&mut self, id: &Value, method: &str, params: &Value) {
        assert_eq!(params["taskId"], "t1");
        let task = |status: &str| json!({"resultType": "complete", "taskId": "t1", "status": status, "pollIntervalMs": 20, "pollInterval": 20});
        match method {
            "tasks/get" if std::mem::take(&mut self.is_lossy) => write_half_answer(id),
            "tasks/get" => {
                self.looks += 1;
                match (self.looks, self.is_modern) {
                    (1, _) => {
                        let mut task = task("working");
                        task["statusMessage"] = "half way".into();
                        result(id, task);
                    }
                    (_, false) => result(id, task("completed")),
                    (_, true) if self.answers.is_null() => {
                        let mut task = task("input_required");
                        task["inputRequests"] =
                            json!({"who": {"method": "elicitation/create", "params": {"message": "Who?"}}});
                        result(id, task);
                    }
                    (_, true) => {
                        let mut task = task("completed");
                        task["result"] = json!({"content": [{"type": "text", "text": self.answers.to_string()}]});
                        result(id, task);
                    }
                }
            }
            "tasks/update" if std::mem::take(&mut self.loses_answers) => {
                self.answers = params["inputResponses"].clone();
                write_half_answer(id);
            }
            // It asks nothing any more.
            "tasks/update" if !self.answers.is_null() => error(id, -32602, Value::Null),
            "tasks/update" => {
                self.answers = params["inputResponses"].clone();
                result(id, json!({"resultType": "complete"}));
            }
            "tasks/result" => text(id, "done"),
            _ => result(id, json!({})),
        }
    }
}

fn send(message: &Value) {
    line(&message.to_string());
}

fn line(text: &str) {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}").and_then(|()| stdout.flush()).expect("the client reads");
}

/// Half an answer.
fn write_half_answer(id: &Value) {
    line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"#));
}

fn notify(method: &str, params: Value) {
    send(&json!({"jsonrpc": "2.0", "method": method, "params": params}));
}

fn result(id: &Value, result: Value) {
    send(&json!({"jsonrpc": "2.0", "id": id, "result": result}));
}

fn text(id: &Value, text: &str) {
    result(id, json!({"content": [{"type": "text", "text": text}]}));
}

fn error(id: &Value, code: i32, data: Value) {
    send(&json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": "no", "data": data}}));
}
