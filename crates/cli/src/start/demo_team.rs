//! `demo --serve`: a team of agents at work, for the web console. The model is a script; executor, policy, loop and
//! console are real. It reads no configuration and leaves no files.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use toolwright::app::CallOptions;
use toolwright::core::canonical::ContentHash;
use toolwright::core::model::{Message, ModelClient, ModelError, ModelEvents, ModelRequest, ModelResponse};
use toolwright::core::pins::PinUpdate;
use toolwright::core::store::{PinDecision, PinWrite};
use toolwright::core::{ApprovalDecision, ApprovalRequest, Approver, CallId, Cancel, Profile, RawArguments, ToolCall};
use toolwright::{Ask, Error, Toolwright};

use super::demo::{Answer, PROVIDER, open_sample, result, text, written};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::console::{OnSignal, watch};
use crate::terminal::screen::{BOLD, open_page, say, styled};

/// The pause between two tasks.
const REST: Duration = Duration::from_secs(15);
/// The duration of a model's text, so that progress is visible.
const THINKS: Duration = Duration::from_millis(120);
/// Settings in addition to the servers: agents, a policy, triggers, a channel, and a token with a budget. TOKEN is new
/// at each start.
const SECTIONS: &str = r#"
defaults:
  tool_response_max_bytes: 2048
  builtins_denied: ["llm__*"]
  agent_tools: [todo]
  groups: true
models:
  default: demo/scripted
  demo/scripted: {prices: {input: 1.25, output: 10.0}}
agents:
  planner:
    description: Plans an outing, and has its colleagues do the work.
    prompt: You are the planner. Ask the scout what to expect and the buyer to order what is missing.
    limits: {turns: 12, tokens: 200000, cost: 1.00}
  scout:
    description: Finds out about weather and notes.
    prompt: You are the scout. You look things up and report.
    tools: ["weather__*", "notes__search", "channel__send"]
    limits: {turns: 6}
  buyer:
    description: Orders in the shop.
    prompt: You are the buyer. You find articles and order them.
    tools: ["shop__*"]
    limits: {turns: 6, cost: 0.20}
channels:
  outings: {reach: shared, description: what the scout found out}
  wishes: {reach: shared, description: what people want to do}
triggers:
  saturday: {type: schedule, cron: "30 7 * * 6", time_zone: Europe/Oslo, agent: planner, prompt: Plan a picnic for today.}
  weather: {type: timer, interval: 6h, agent: scout, prompt: Look at the weather again.}
  wish: {type: channel, channel: wishes, agent: scout, prompt: Find out whether the weather will do for this wish.}
server:
  tokens:
    phone: {token: TOKEN, views: [], budget: {requests: 500, tokens: 2000000, cost_usd: 5.00}}
policy:
  rules:
    # Colleagues may be asked; what they do is decided by itself.
    - effect: allow
      namespace: agent
    - effect: allow
      namespace: channel
    - effect: allow
      namespace: memory
    - effect: deny
      tool: shop:order
      when: args.quantity > 20
      reason: Nobody drinks that much lemonade.
    - effect: ask
      tool: shop:order
      reason: An order is paid at once.
"#;

/// Serves the console of a team of agents until a signal ends it.
pub(super) async fn serve(address: SocketAddr, show: bool) -> CommandResult {
    let folder = tempfile::tempdir().map_err(|error| Failure::failed(format!("no temporary folder: {error}")))?;
    let token = uuid::Uuid::new_v4().simple().to_string();
    let app = open_sample(folder.path(), &SECTIONS.replace("TOKEN", &token)).await?;
    app.models().answer_by(PROVIDER, Arc::new(TeamModel));
    let shutdown = Cancel::new();
    watch(shutdown.clone(), OnSignal::ShutDown);
    let server =
        app.serve().ask(Ask::Inbox).until(shutdown.clone()).http(&address.to_string()).await.map_err(Failure::usage)?;
    say(styled(BOLD, "A team of agents at work. The model is a script, and no language model is asked."));
    say("It needs no key and no network. What it does goes through the real executor and policy.");
    say(format_args!("toolwright: ready {}", server.url()));
    let console = server.console();
    say(format_args!("toolwright: console: {console}"));
    if show && !console.parse().is_ok_and(|url| open_page(&url)) {
        say("toolwright: no browser could be opened; open the address yourself, it works once");
    }
    let team = tokio::spawn(work(Arc::clone(&app), shutdown.clone()));
    server.wait().await.map_err(Failure::failed)?;
    team.abort();
    app.shut_down().await;
    Ok(Exit::Ok)
}

/// Pins a less destructive definition of a tool, as if from an earlier start, so that the present one waits for
/// approval.
async fn withhold(app: &Toolwright) -> Result<(), Error> {
    let pins = app.pins_in_force().await?;
    let Some(pin) = pins.iter().find(|pin| pin.source.provider == "notes" && pin.tool == "write") else {
        return Ok(());
    };
    let contracts = app.pins().pin_contracts(&pin.source, std::slice::from_ref(&pin.tool)).await?;
    let Some(mut contract) = contracts.into_iter().find_map(|contracts| contracts.approved) else { return Ok(()) };
    contract["description"] = "Write a new note; notes that are there stay as they are".into();
    contract["effects"]["destructive"] = false.into();
    let (tool, id, hash) = (pin.tool.clone(), pin.id.clone(), ContentHash::of_value(&contract));
    app.pins().decide_pin(&pin.source, &tool, PinDecision::Forget, "demo").await?;
    let note = PinWrite { tool, renamed: None, id, note: PinUpdate::Pin, hash, contract };
    app.pins().note_pins(&pin.source, vec![note]).await?;
    app.catalogue().recheck_pins().await;
    Ok(())
}

/// Runs two complete outings, and then one after the other, each of which waits for approval of its order.
async fn work(app: Arc<Toolwright>, shutdown: Cancel) {
    app.list_all(Duration::from_secs(20)).await;
    if let Err(error) = withhold(&app).await {
        say(format_args!("toolwright: no definition could be withheld: {error}"));
    }
    let approve = Arc::new(|_: &ApprovalRequest| ApprovalDecision::Approve) as Arc<dyn Approver>;
    let deny = |_: &ApprovalRequest| ApprovalDecision::Deny { reason: "there is lemonade at home".into() };
    let inbox = || Arc::new(app.ask_inbox(toolwright::core::approval::AnswerSource::Here, |_| ())) as Arc<dyn Approver>;
    let mut approvers: Vec<Arc<dyn Approver>> = vec![inbox(), Arc::new(deny), approve];
    for city in ["Oslo", "Bergen", "Rome", "Lisbon", "Porto", "Nice"].into_iter().cycle() {
        if shutdown.is_cancelled() {
            return;
        }
        let approver = approvers.pop();
        let task = format!("Plan our picnic on Saturday in {city}, and order the lemonade that my notes ask for.");
        let run = async {
            let agent = app.agent_named("planner")?.task(task).policy(Profile::Ask);
            agent.shared_approver(approver.unwrap_or_else(inbox)).cancel(shutdown.child()).run().await
        };
        if let Err(error) = run.await {
            say(format_args!("toolwright: the team stopped: {error}"));
            return;
        }
        match approvers.len() {
            0 => tokio::time::sleep(REST).await,
            1 => mail(&app).await,
            _ => {}
        }
    }
}

/// Adds an idle member of a group with mail, a channel message that starts a run, and a job.
async fn mail(app: &Arc<Toolwright>) {
    let message = |text: &str| json!({"name": "keeper", "message": text});
    let wish = json!({"channel": "wishes", "message": "Could we go to the lake in Bergen on Sunday?"});
    let keeper = json!({"name": "keeper", "agent": "scout", "instructions": "You keep the list of what we own."});
    for (tool, arguments) in [
        ("group__add_agent", keeper),
        ("group__send", message("The blanket came back from the cleaner.")),
        ("group__send", message("Ada borrowed the big basket until Sunday.")),
        ("channel__send", wish),
        ("weather__forecast", json!({"city": "Bergen", "days": 7})),
    ] {
        let background_after = tool.starts_with("weather").then_some(Duration::ZERO);
        let call = ToolCall::new(CallId::new("call"), tool.to_owned(), RawArguments::Value(arguments));
        let outcome = app.call_with(call, CallOptions { background_after, ..CallOptions::new(Profile::Owner) }).await;
        if let Some(error) = outcome.error {
            say(format_args!("toolwright: {tool} failed: {error}"));
        }
    }
}

/// The scripted model of the team. The system prompt names the agent.
struct TeamModel;

#[async_trait]
impl ModelClient for TeamModel {
    async fn complete(
        &self,
        _model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        _cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        tokio::time::sleep(THINKS).await;
        let since = request.messages.iter().rposition(|message| matches!(message, Message::User { .. })).unwrap_or(0);
        let answered = |message: &&Message| matches!(message, Message::Assistant { .. });
        let turn = request.messages[since..].iter().filter(answered).count();
        Ok(written(answer(turn, request), request, events))
    }
}

fn answer(turn: usize, request: &ModelRequest) -> Answer {
    let is = |name: &str| request.system.contains(&format!("You are the {name}"));
    match (is("planner"), is("scout"), is("buyer")) {
        (true, ..) => planner(turn, &city(request)),
        (_, true, _) => scout(turn, &city(request)),
        (.., true) => buyer(turn, request),
        _ => alone(turn, request),
    }
}

fn planner(turn: usize, city: &str) -> Answer {
    let item = |id: &str, text: &str, status: &str| json!({"id": id, "text": text, "status": status});
    match turn {
        0 => (
            "I write down what is to be done, and send the scout.".into(),
            vec![
                (
                    "agent__todo",
                    json!({"items": [
                        item("1", "Look at the weather and the notes", "in_progress"),
                        item("2", "Order what is missing", "pending"),
                        item("3", "Say when to leave", "pending"),
                    ]}),
                ),
                ("memory__scratchpad", json!({"op": "set", "key": "outing", "value": {"city": city, "people": 6}})),
                (
                    "agent__scout",
                    json!({"reason": "find out what to expect", "task": "Look at the forecast and at the notes about the picnic."}),
                ),
            ],
        ),
        1 => (
            "The weather will do. The buyer orders the lemonade.".into(),
            vec![
                (
                    "agent__todo",
                    json!({"items": [{"id": "1", "status": "done"}, {"id": "2", "status": "in_progress"}]}),
                ),
                (
                    "agent__buyer",
                    json!({"reason": "six bottles are missing", "task": "Order six bottles of lemonade."}),
                ),
            ],
        ),
        2 => (
            "That leaves the time.".into(),
            vec![("agent__todo", json!({"items": [{"id": "2", "status": "done"}, {"id": "3", "status": "done"}]}))],
        ),
        _ => ("Leave at one o'clock: the sky is clear by two, and the lemonade is taken care of.".into(), Vec::new()),
    }
}

fn scout(turn: usize, city: &str) -> Answer {
    match turn {
        // More days than the server has, as models request.
        0 => (
            "I ask for the forecast and look through the notes.".into(),
            vec![
                ("weather__forecast", json!({"city": city, "days": 9})),
                ("notes__search", json!({"query": "picnic"})),
            ],
        ),
        1 => (
            "Nine days are too many; three will do.".into(),
            vec![("weather__forecast", json!({"city": city, "days": 3})), ("weather__alerts", json!({"city": city}))],
        ),
        2 => (
            "I tell the others.".into(),
            vec![(
                "channel__send",
                json!({"channel": "outings", "message": format!("{city}: clear sky on Saturday from two o'clock.")}),
            )],
        ),
        _ => ("Clear sky on Saturday from two o'clock. The notes ask for six bottles of lemonade.".into(), Vec::new()),
    }
}

fn buyer(turn: usize, request: &ModelRequest) -> Answer {
    match turn {
        0 => ("I look for lemonade.".into(), vec![("shop__find", json!({"query": "lemonade"}))]),
        1 => (
            "There is lemonade for 2.40 EUR. I order six.".into(),
            vec![("shop__order", json!({"article": "lemonade", "quantity": 6}))],
        ),
        _ => (ordered(request), Vec::new()),
    }
}

/// Answers clients without an agent of the team.
fn alone(turn: usize, request: &ModelRequest) -> Answer {
    match turn {
        0 => (
            "I look at the notes and the shop.".into(),
            vec![("notes__search", json!({"query": "picnic"})), ("shop__find", json!({"query": "lemonade"}))],
        ),
        1 => (
            "The notes ask for six bottles of lemonade. I order them.".into(),
            vec![("shop__order", json!({"article": "lemonade", "quantity": 6}))],
        ),
        _ => (ordered(request), Vec::new()),
    }
}

fn ordered(request: &ModelRequest) -> String {
    match result(request, "shop__order") {
        Some(order) if !order.is_error => format!("Ordered: {}.", text(order)),
        _ => "Nothing was ordered, as you did not allow it.".into(),
    }
}

/// Returns the city of the conversation.
fn city(request: &ModelRequest) -> String {
    let sent = serde_json::to_string(&request.messages).unwrap_or_default();
    let known = ["Bergen", "Rome", "Lisbon", "Porto", "Nice"].into_iter().find(|city| sent.contains(city));
    known.unwrap_or("Oslo").to_owned()
}
