//! Triggers of the program: added by hand or by configuration, run by `serve`, and fired over real sockets.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use toolwright::core::trigger::webhook::{DELIVERY, SIGNATURE, TIMESTAMP, sign};
use toolwright_testkit::model_server::{Script, Turn, WireApi};

use crate::agents::agent::with_model;
use crate::command_line::cli::{fails, json_of, ok, run, stderr};
use crate::serving::gateway::Gateway;
use crate::support::{Fixture, until};

fn triggers(fixture: &Fixture) -> Vec<Value> {
    let listed = ok(fixture, &["triggers", "ls", "--json"]);
    serde_json::from_str::<Value>(&listed).expect("json").as_array().expect("an array").clone()
}

fn add(fixture: &Fixture, words: &[&str]) -> String {
    let added = ok(fixture, &[&["triggers", "add"], words, &["--json"]].concat());
    let added: Value = serde_json::from_str(&added).expect("json");
    added["id"].as_str().expect("an id").to_owned()
}

/// Waits until the latest firing of a trigger is in this state.
fn fires(fixture: &Fixture, id: &str, state: &str) {
    until(&format!("{id} is {state}"), || {
        let all = triggers(fixture);
        all.iter().any(|trigger| trigger["id"] == id && trigger["firings"][0]["state"] == state)
    });
}

async fn serve(fixture: &Fixture, script: Script, more: &[(&str, &str)]) -> (Gateway, impl Sized) {
    let (model, variables) = with_model(WireApi::OpenAi, script).await;
    let variables = variables.iter().map(|(name, value)| (*name, value.as_str())).chain(more.iter().copied());
    let variables: Vec<(&str, &str)> = variables.collect();
    (Gateway::start_with(fixture, &["--http", "127.0.0.1:0"], &variables), model)
}

#[tokio::test(flavor = "multi_thread")]
async fn serve_runs_what_triggers_start() {
    let fixture = Fixture::with("triggers:\n  nightly: {type: schedule, daily_at: '03:00', prompt: Sweep}\n");
    let script =
        vec![Turn::text("It is done.").expecting("the prompt is there", |asked| asked.last_user_text() == "Look")];
    let (_gateway, _model) = serve(&fixture, script.into(), &[]).await;
    let id = add(&fixture, &["timer", "interval=1h", "immediate=true", "prompt=Look"]);
    fires(&fixture, &id, "done");
    until("the configured one is there", || triggers(&fixture).iter().all(|trigger| trigger["installed"] == true));
    let all = triggers(&fixture);
    let timer = all.iter().find(|trigger| trigger["id"] == *id).expect("the timer");
    let run = timer["firings"][0]["run"].as_str().expect("a run").to_owned();
    assert!(ok(&fixture, &["trace", &run]).contains("gpt") || ok(&fixture, &["trace", &run]).contains("/m"));
    let next = json_of(&crate::command_line::cli::run(&fixture, &["triggers", "next", &id, "--count", "2", "--json"]));
    assert_eq!(next[0]["next"].as_array().map(Vec::len), Some(2));
    ok(&fixture, &["triggers", "rm", &id]);
    assert_eq!(triggers(&fixture).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_firing_that_needs_approval_waits() {
    let fixture = Fixture::new();
    let script = vec![
        Turn::calls(vec![("fs__write", json!({"path": "a.txt", "content": "x"}))]),
        Turn::text("I wait for the approval."),
        Turn::text("Nothing else is blocked."),
        Turn::text("It is written."),
    ];
    let (_gateway, _model) = serve(&fixture, script.into(), &[]).await;
    let writes = add(&fixture, &["timer", "interval=1d", "immediate=true", "prompt=Write"]);
    fires(&fixture, &writes, "waiting");
    until("it waits in its run", || ok(&fixture, &["approvals", "ls", "--json"]).contains("fs:write"));
    let other = add(&fixture, &["timer", "interval=1d", "immediate=true", "prompt=Read"]);
    fires(&fixture, &other, "done");
    assert!(!fixture.path("project/a.txt").exists());
    let asked: Value = serde_json::from_str(&ok(&fixture, &["approvals", "ls", "--json"])).expect("json");
    let question = asked[0]["id"].as_str().expect("an id").to_owned();
    ok(&fixture, &["approvals", "approve", &question]);
    fires(&fixture, &writes, "done");
    assert_eq!(fixture.read("project/a.txt"), "x");
}

/// The status and the body of a request to a webhook.
fn post(address: &str, trigger: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("connects");
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    write!(
        stream,
        "POST /webhooks/{trigger} HTTP/1.1\r\nhost: {address}\r\ncontent-length: {length}\r\nconnection: \
         close\r\n{headers}\r\n{body}"
    )
    .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    (answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status"), answer)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_takes_only_fresh_signed_requests() {
    const SECRET: &str = "0123456789abcdef";
    let fixture = Fixture::new();
    let script = vec![
        Turn::text("Deployed.").expecting("the body is there", |asked| asked.last_user_text().ends_with("\nversion 2")),
    ];
    let (gateway, _model) = serve(&fixture, script.into(), &[("HOOK", SECRET)]).await;
    let id = add(&fixture, &["webhook", "secret_env=HOOK", "prompt=Tell"]);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("now").as_secs();
    let send = |trigger: &str, secret: &str, seconds: u64, body: &str| {
        let (signature, seconds) = (sign(secret.as_bytes(), seconds, Some("d1"), body.as_bytes()), seconds.to_string());
        let headers = [(SIGNATURE, &*signature), (TIMESTAMP, &*seconds), (DELIVERY, "d1")];
        post(&gateway.address(), trigger, &headers, body).0
    };
    assert_eq!(send(&id, "another secret, longer", now, "version 2"), 401);
    assert_eq!(send(&id, SECRET, now - 3600, "version 2"), 401);
    assert_eq!(send("webhook_00000000", SECRET, now, "version 2"), 404);
    assert_eq!(post(&gateway.address(), &id, &[], "version 2").0, 401);
    assert_eq!(send(&id, SECRET, now, "version 2"), 202);
    assert_eq!(send(&id, SECRET, now, "version 2"), 200, "the same delivery fires nothing");
    fires(&fixture, &id, "done");
    assert_eq!(triggers(&fixture)[0]["firings"].as_array().map(Vec::len), Some(1));
}

#[test]
fn unusable_triggers_are_refused_by_the_program() {
    let fixture = Fixture::with("agents: {clerk: {description: Counts.}}\ndefaults: {triggers: true}\n");
    let check = |words: &[&str], says: &str| fails(&fixture, &[&["triggers", "add"], words].concat(), 2, &[says]);
    check(&["schedule", "cron=0 0 30 2 *", "prompt=p"], "never fires");
    check(&["schedule", "hourly_at=3", "time_zone=Europe/Olso", "prompt=p"], "like Europe/Oslo");
    check(&["webhook", "prompt=p"], "needs a secret");
    check(&["timer", "interval=1h"], "needs a `prompt`");
    check(&["daily", "prompt=p"], "one of timer, schedule");
    check(&["file", "globs=[", "prompt=p"], "`[` is no glob");
    check(&["file", "globs=!x", "prompt=p"], "`!x` takes nothing out");
    check(&["timer", "interval=1h", "prompt=p", "catch_up={\"all\": \"x\"}"], "`catch_up`: it is `none`");
    check(&["timer", "interval=1h", "prompt=p", "catch_up={\"all\": 0}"], "1 to 1000");
    check(&["timer", "interval=1h", "prompt=p", "overlap=zz"], "`overlap`: unknown variant `zz`");
    check(&["timer", "interval=1h", "prompt=p", "model=zz/m"], "zz");
    fails(&fixture, &["triggers", "rm", "timer_00000000"], 3, &["was not found", "`toolwright triggers ls --all`"]);
    let unknown = "there is no agent `clrk`; did you mean `clerk`?";
    let timer = ["interval=1h", "prompt=p", "agent=clrk"];
    fails(&fixture, &[&["triggers", "add", "timer"], &timer[..]].concat(), 3, &[unknown]);
    let called = run(&fixture, &[&["call", "trigger__timer"], &timer[..]].concat());
    assert!(String::from_utf8_lossy(&called.stdout).contains(unknown), "{called:?}");
    assert!(triggers(&fixture).is_empty());
}

#[test]
fn webhooks_without_their_secret_are_reported() {
    let fixture = Fixture::with("triggers: {hook: {type: webhook, secret_env: [HOOK_C], prompt: p}}\n");
    let doctor = run(&fixture, &["doctor"]);
    let stderr_text = stderr(&doctor) + &String::from_utf8_lossy(&doctor.stdout);
    let expect = "admits no request: no secret is set here: set HOOK_C to at least 16 bytes";
    assert!(stderr_text.contains(expect), "{stderr_text}");
    let checked = json_of(&run(&fixture, &["validate"]));
    let problem = &checked["problems"][0];
    assert_eq!((&checked["valid"], &problem["field"]), (&json!(true), &json!("triggers.hook")), "{checked}");
    assert!(problem["remedy"].as_str().is_some_and(|remedy| remedy.contains("set HOOK_C to")), "{checked}");
    Gateway::start(&fixture, &["--http", "127.0.0.1:0"]).says(expect);
    let added = run(&fixture, &["triggers", "add", "webhook", "secret_env=HOOK_A,HOOK_B", "prompt=p"]);
    assert!(
        added.status.success() && stderr(&added).contains("set HOOK_A or HOOK_B to at least 16 bytes"),
        "{added:?}"
    );
}

#[test]
fn configured_triggers_are_listed_and_kept() {
    let fixture = Fixture::with(
        "triggers: {nightly: {type: schedule, daily_at: '03:00', prompt: Sweep}}
agents: {clerk: {description: d, triggers: [{type: timer, interval: 1h, prompt: Count}]}}
",
    );
    let own = add(&fixture, &["timer", "interval=1h", "prompt=p"]);
    let all = triggers(&fixture);
    let found: Vec<_> = all.iter().map(|trigger| (&trigger["creator"], &trigger["installed"])).collect();
    let (owner, written) = (json!("owner"), json!("configuration"));
    assert_eq!(found, [(&owner, &json!(true)), (&written, &json!(false)), (&written, &json!(false))]);
    let nightly = all[1]["id"].as_str().expect("an id");
    assert!(stderr(&run(&fixture, &["triggers", "ls"])).contains(&format!("trigger {nightly} is not installed yet")));
    assert!(ok(&fixture, &["triggers", "next", nightly]).contains("daily at 03:00"));
    fails(&fixture, &["triggers", "fire", nightly], 1, &["is not installed yet"]);
    fails(&fixture, &["triggers", "rm", &own, nightly], 2, &["is defined in the configuration"]);
    let near = format!("trigger nightly was not found; did you mean `{nightly}`?");
    for command in ["rm", "fire", "next"] {
        fails(&fixture, &["triggers", command, "nightly"], 3, &[&near]);
    }
    assert_eq!(triggers(&fixture).len(), 3, "nothing is removed");
}

#[test]
fn doctor_reports_triggers_that_nothing_runs() {
    let fixture = Fixture::new();
    let reported = |fixture: &Fixture| {
        stderr(&run(fixture, &["doctor"])) + &String::from_utf8_lossy(&run(fixture, &["doctor"]).stdout)
    };
    assert!(!reported(&fixture).contains("no process runs them"));
    add(&fixture, &["timer", "interval=1h", "prompt=p"]);
    assert!(reported(&fixture).contains("there is a trigger, and no process runs them"), "{}", reported(&fixture));
}

#[test]
fn triggers_of_lost_tokens_are_reported() {
    let fixture = Fixture::new();
    let id = add(&fixture, &["timer", "interval=1h", "prompt=p"]);
    let db = rusqlite::Connection::open(fixture.state_dir().join("toolwright.sqlite3")).expect("database");
    let guest = json!({"id": "guest", "roles": [], "owner": false}).to_string();
    let sql = "UPDATE triggers SET rights = json_set(rights, '$.principal', json(?1))";
    assert_eq!(db.execute(sql, [guest]).expect("changed"), 1);
    let why = "it would run for `guest`, and `server.tokens` has no such token any more";
    assert!(triggers(&fixture)[0]["issue"].as_str().is_some_and(|issue| issue.starts_with(why)));
    for command in [&["triggers", "ls"][..], &["doctor"]] {
        let output = run(&fixture, command);
        let stderr_text = stderr(&output) + &String::from_utf8_lossy(&output.stdout);
        assert!(stderr_text.contains(&format!("trigger {id} fires nothing: {why}")), "{stderr_text}");
    }
}

#[test]
fn a_configured_tool_installs_triggers() {
    let fixture = Fixture::with(
        "tools:\n  nightly: {type: trigger, class: schedule, set: {daily_at: '03:00', time_zone: UTC, overlap: skip}}\n",
    );
    let called = ok(&fixture, &["call", "trigger__nightly", "prompt=Sweep", "--json"]);
    let called: Value = serde_json::from_str(&called).expect("json");
    assert!(called.to_string().contains("daily at 03:00 UTC"), "{called}");
    let all = triggers(&fixture);
    assert_eq!((&all[0]["config"]["overlap"], &all[0]["config"]["prompt"]), (&json!("skip"), &json!("Sweep")));
    let shown: Value =
        serde_json::from_str(&ok(&fixture, &["tools", "show", "trigger__nightly", "--json"])).expect("json");
    assert!(!shown["parameters"]["properties"].to_string().contains("daily_at"), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_of_agents_start_those_agents() {
    let fixture = Fixture::with(
        "triggers:\n  by_name: {type: timer, interval: 1d, immediate: true, prompt: Count, agent: clerk}\n",
    );
    fixture.write(
        "project/agents/clerk.md",
        "---\nname: clerk\ndescription: Counts.\ntools: fs__read\nmaxTurns: 3\n\
         triggers: [{type: timer, interval: 1d, immediate: true, prompt: Sort}]\n---\nYou are the clerk.",
    );
    fixture.approve();
    let is_clerk = |asked: &toolwright_testkit::model_server::RecordedRequest| {
        asked.system().contains("You are the clerk.") && !asked.tool_names().iter().any(|name| name == "fs__write")
    };
    let done = || Turn::text("Done.").expecting("the agent is there", is_clerk);
    let (_gateway, model) = serve(&fixture, vec![done(), done()].into(), &[]).await;
    until("both have fired", || {
        let all = triggers(&fixture);
        all.len() == 2 && all.iter().all(|trigger| trigger["firings"][0]["state"] == "done")
    });
    let mut names: Vec<Value> = triggers(&fixture).iter().map(|trigger| trigger["config"]["prompt"].clone()).collect();
    names.sort_by_key(Value::to_string);
    assert_eq!(names, ["Count", "Sort"]);
    assert!(triggers(&fixture).iter().all(|trigger| trigger["config"]["agent"] == "clerk"));
    let _ = model;
}
