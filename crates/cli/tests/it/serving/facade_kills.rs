//! `serve` is killed while it answers a client of a model API, and the next server goes on: nothing is lost, and nothing is
//! there twice.

use std::io::Read as _;

use serde_json::{Value, json};
use toolwright::core::approval::ApprovalDecision;
use toolwright::core::inbox::{InboxStore as _, Question, QuestionState};
use toolwright::core::store::ObjectStore as _;
use toolwright::runtime::SqliteStore;
use toolwright_testkit::model_server::{Fault, RecordedRequest, Reply, Script, ScriptedModel, Turn, WireApi};

use crate::agents::agent::with_model;
use crate::calls::kill_points::Stop;
use crate::serving::gateway::{Gateway, api_token, get_response, got, posted_to, sent_to};
use crate::support::{Fixture, signal, until};

const CONFIG: &str = "agents:\n  worker: {description: Works., prompt: You work.}\n";
const RESPONSES: &str = "/v1/responses";

/// A fixture with a model, and its servers.
struct Case {
    fixture: Fixture,
    _model: ScriptedModel,
    variables: [(&'static str, String); 3],
    policy: &'static str,
}

impl Case {
    async fn of(policy: &'static str, answer: fn(&RecordedRequest) -> Reply) -> Self {
        Self::with(CONFIG, policy, Script::from(vec![Turn::computed(answer)]).repeating()).await
    }

    async fn with(config: &str, policy: &'static str, script: Script) -> Self {
        let fixture = Fixture::with(config);
        let (model, variables) = with_model(WireApi::OpenAi, script).await;
        Self { fixture, _model: model, variables, policy }
    }

    fn serve(&self) -> Gateway {
        let variables: Vec<_> = self.variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        Gateway::start_with(&self.fixture, &["--http", "127.0.0.1:0", "--policy", self.policy], &variables)
    }

    fn key(&self) -> String {
        format!("authorization: Bearer {}\r\n", api_token(&self.fixture))
    }

    fn post(&self, server: &Gateway, path: &str, body: &Value) -> Value {
        posted_to(&server.address(), path, &self.key(), body)
    }

    fn response(&self, server: &Gateway, id: &str) -> Value {
        got(&self.fixture, &server.address(), &format!("{RESPONSES}/{id}"))
    }

    /// How often the command of [`command`] ran.
    fn commands(&self) -> String {
        std::fs::read_to_string(self.fixture.path("project/count")).unwrap_or_default()
    }
}

fn command() -> Reply {
    Reply::calls(vec![("shell__bash", json!({"command": "echo once >> count"}))])
}

fn kill(mut server: Gateway) {
    server.child.kill().expect("killed");
    server.child.wait().expect("gone");
}

async fn questions(store: &SqliteStore, state: Option<QuestionState>) -> Vec<Question> {
    store.questions(state, 9).await.expect("questions")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_servers_question_is_asked_once() {
    for is_answered in [false, true] {
        let case = Case::of("ask", |asked| match asked.last_results().is_empty() {
            true => command(),
            false => Reply::text("It is done."),
        })
        .await;
        let server = case.serve();
        let pending = case.post(&server, RESPONSES, &json!({"model": "worker", "input": "go"}));
        assert_eq!(pending["status"], "in_progress", "{pending}");
        let id = pending["id"].as_str().expect("an id");
        let store = SqliteStore::open(&case.fixture.state_dir()).expect("the store");
        let first = questions(&store, Some(QuestionState::Pending)).await.remove(0);
        if is_answered {
            signal(server.child.id(), "STOP");
            store.answer(&first.id, &ApprovalDecision::Approve, "ann").await.expect("answered");
        }
        kill(server);
        let server = case.serve();
        case.response(&server, id);
        if !is_answered {
            let anew = loop {
                let all = questions(&store, Some(QuestionState::Pending)).await;
                if all.iter().any(|one| one.id != first.id) {
                    assert_eq!(all.len(), 1, "{all:?}");
                    break all[0].id.clone();
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            };
            assert_eq!(case.commands(), "", "nobody has approved it");
            store.answer(&anew, &ApprovalDecision::Approve, "ann").await.expect("answered");
        }
        until("it is over", || case.response(&server, id)["status"] == "completed");
        assert_eq!(case.commands(), "once\n");
        let all = questions(&store, None).await;
        let approved = all.iter().filter(|one| one.settled_by() == Some("ann")).count();
        assert_eq!((all.len(), approved), (if is_answered { 1 } else { 2 }, 1), "{all:?}");
    }
}

/// A call of the client's tool, then a command, then the answer.
fn look_and_work(asked: &RecordedRequest) -> Reply {
    let messages = asked.body["messages"].as_array().into_iter().flatten();
    match messages.filter(|message| message["role"] == "tool").count() {
        0 => Reply::calls(vec![("look", json!({}))]),
        1 => command(),
        _ => Reply::text("It is done."),
    }
}

/// Kills the server at its `nth` write of what the next request refers to, while it answers the result of a client's call.
/// Returns whether there is such a write.
async fn kill_at(nth: u32) -> bool {
    let case = Case::of("trusted", look_and_work).await;
    let server = case.serve();
    let conversation = case.post(&server, "/v1/conversations", &json!({}))["id"].clone();
    let tools = json!([{"type": "function", "name": "look", "parameters": {"type": "object"}}]);
    let mut body = json!({"model": "worker", "conversation": conversation, "tools": tools, "input": "go"});
    let asked = case.post(&server, RESPONSES, &body);
    let call = asked["output"].as_array().into_iter().flatten().find(|item| item["type"] == "function_call");
    let call = call.expect("a call of the client")["call_id"].clone();
    body["input"] = json!([{"type": "function_call_output", "call_id": call, "output": "seen"}]);
    let stop = Stop::before(&case.fixture, nth, &["objects"]).await;
    let answering = sent_to(&server.address(), RESPONSES, &case.key(), &body);
    answering.set_nonblocking(true).expect("set");
    let is_stopped = stop.reached(|| answering.peek(&mut [0]).is_ok_and(|read| read > 0)).await;
    kill(server);
    stop.clear();
    let server = case.serve();
    let answer = case.post(&server, RESPONSES, &body);
    assert_eq!(answer["status"], "completed", "{nth}: {answer}");
    assert_eq!(case.commands(), "once\n", "{nth}");
    let said = answer["output"].as_array().expect("items");
    assert!(said.iter().any(|item| item.to_string().contains("It is done.")), "{nth}: {answer}");
    assert_eq!(case.post(&server, RESPONSES, &body)["output"], answer["output"], "{nth}: it is the same again");
    let id = answer["id"].as_str().expect("an id");
    assert_eq!(case.response(&server, id)["output"], answer["output"], "{nth}: as it is kept");
    let path = format!("/v1/conversations/{}/items?order=asc", conversation.as_str().expect("an id"));
    let items = got(&case.fixture, &server.address(), &path)["data"].clone();
    let items = items.as_array().expect("items");
    let at = items.iter().position(|item| item["type"] == "function_call_output").expect("the result");
    assert_eq!(&items[at + 1..], said, "{nth}: as the conversation has it");
    is_stopped
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_answer_is_stored_whole() {
    let mut nth = 1;
    while kill_at(nth).await {
        nth += 1;
    }
    assert!(nth > 3, "it is stopped {nth} times");
}

fn on_disconnect(does: &str) -> String {
    format!("{CONFIG}server: {{facades: {{on_disconnect: {does}}}}}\n")
}

fn hangs() -> Turn {
    Turn::text("half an answer").with_fault(Fault::HangAfter(2))
}

/// Waits until the store has this object.
async fn stored(case: &Case, kind: &str, id: &str) {
    let store = SqliteStore::open(&case.fixture.state_dir()).expect("the store");
    while store.object("owner", kind, id).await.expect("read").is_none() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_of_a_killed_server_are_found() {
    for does in ["cancel", "continue"] {
        let case = Case::with(&on_disconnect(does), "ask", Script::from(vec![hangs(), Turn::text("done")])).await;
        let server = case.serve();
        let body = json!({"model": "worker", "input": "go", "stream": true});
        let mut stream = sent_to(&server.address(), RESPONSES, &case.key(), &body);
        let (mut read, mut piece) = (String::new(), [0; 4096]);
        let id = loop {
            let got = stream.read(&mut piece).expect("read");
            read.push_str(&String::from_utf8_lossy(&piece[..got]));
            if let Some((_, rest)) = read.split_once("\"id\":\"resp_") {
                break format!("resp_{}", rest.split('"').next().expect("its end"));
            }
        };
        assert_eq!(case.response(&server, &id)["status"], "in_progress");
        stored(&case, "response", &id).await;
        kill(server);
        let server = case.serve();
        if does == "continue" {
            until("it is over", || case.response(&server, &id)["status"] == "completed");
            assert!(case.response(&server, &id)["output"].to_string().contains("done"));
            continue;
        }
        let found = case.response(&server, &id);
        assert_eq!(found["status"], "failed", "{found}");
        assert!(found["error"].to_string().contains("the server ended while it worked"), "{found}");
        let items = got(&case.fixture, &server.address(), &format!("{RESPONSES}/{id}/input_items"));
        assert_eq!(items["data"][0]["content"][0]["text"], "go", "{items}");
        let next = json!({"model": "worker", "input": "x", "previous_response_id": id});
        let refused = case.post(&server, RESPONSES, &next);
        assert!(refused["error"]["message"].to_string().contains("is not complete"), "{refused}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_outlive_a_killed_server() {
    let path = "/v1/chat/completions";
    for model in ["worker", "raw/openai/m"] {
        let script = Script::from(vec![Turn::text("first"), hangs(), Turn::text("second")]);
        let case = Case::with(&on_disconnect("continue"), "ask", script).await;
        let server = case.serve();
        let mut body = json!({"model": model, "user": "mine", "messages": [{"role": "user", "content": "go"}]});
        let first = case.post(&server, path, &body);
        assert!(first.to_string().contains("first"), "{first}");
        body["stream"] = json!(true);
        let mut stream = sent_to(&server.address(), path, &case.key(), &body);
        stream.read_exact(&mut [0]).expect("it has begun");
        drop(stream);
        let by_session = |server: &Gateway| got(&case.fixture, &server.address(), &format!("{path}/mine"));
        let second = by_session(&server);
        assert_eq!(second["status"], "in_progress", "{second}");
        let id = second["id"].as_str().expect("an id");
        stored(&case, "answer", id).await;
        kill(server);
        let server = case.serve();
        if model == "worker" {
            until("it goes on", || by_session(&server)["id"] == id && by_session(&server)["choices"].is_array());
            assert!(by_session(&server).to_string().contains("second"));
            continue;
        }
        assert_eq!(by_session(&server), first, "the finished one stays");
        let lost = get_response(&case.fixture, &server.address(), &format!("{path}/{id}"));
        assert!(lost.starts_with("HTTP/1.1 500"), "{lost}");
        assert!(lost.contains("the server ended while it worked"), "{lost}");
    }
}
