//! `serve` is killed while it answers a client of a model API, and the next server goes on: nothing is lost, and nothing is
//! there twice.

use serde_json::{Value, json};
use toolwright::core::approval::ApprovalDecision;
use toolwright::core::inbox::{InboxStore as _, Question, QuestionState};
use toolwright::runtime::SqliteStore;
use toolwright_testkit::model_server::{RecordedRequest, Reply, Script, ScriptedModel, Turn, WireApi};

use crate::agents::agent::with_model;
use crate::calls::stops::Stop;
use crate::serving::gateway::{Gateway, api_token, got, posted_to, sent_to};
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
        let fixture = Fixture::with(CONFIG);
        let script = Script::from(vec![Turn::computed(answer)]).repeating();
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
async fn a_killed_servers_question_stands_once() {
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
async fn an_answer_killed_anywhere_is_kept_whole() {
    let mut nth = 1;
    while kill_at(nth).await {
        nth += 1;
    }
    assert!(nth > 3, "it is stopped {nth} times");
}
