//! Triggers that fire on messages: those of channels, of a mailbox, and those that feed each other, also by files.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::Services;
use toolwright_core::agents::{AgentLimits, AgentTree as _, NewAgent};
use toolwright_core::session::{Principal, Session, SessionId};
use toolwright_core::store::channel::{ChannelConfig, ChannelScope, Channels};
use toolwright_core::store::group::Groups as _;
use toolwright_core::store::{
    Author, LogMessage, MAX_HOPS, MAX_WAITING as WAITING_MESSAGES, MessageKind, NewRow, SessionLog as _,
};
use toolwright_core::trigger::{Creator, Firing, FiringState, Target, TriggerRequest, Triggers as _};
use toolwright_runtime::SqliteStore;

use crate::background::jobs::LONG;
use crate::background::triggers::{Fixture, RecordingTarget, request};
use crate::fixture::fixture as executor_fixture;

#[tokio::test]
async fn channel_triggers_read_the_channel_of_the_tree() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
    let store = SqliteStore::open(&fixture.dir.path().join("state")).expect("store");
    for (id, parent) in [("root", None), ("child", Some("root"))] {
        let new = NewAgent {
            id: id.into(),
            parent: parent.map(Into::into),
            name: id.into(),
            limits: AgentLimits::default(),
            starts_task: true,
            time_left: None,
        };
        store.begin_agent(new).await.expect("begun");
    }
    let config = json!({"type": "channel", "prompt": "p", "channel": "reviews"});
    let owned = |creator| TriggerRequest { creator, ..request(fixture.dir.path(), config.clone()) };
    let refused = fixture.manager.install(owned(Creator::Configuration)).await.expect_err("nobody reaches it");
    assert!(refused.to_string().contains("channels: {reviews: {reach: shared}}"), "{refused}");
    fixture.manager.install(owned(Creator::Session(SessionId::new("child")))).await.expect("installed");
    let author = Author { session: Some(SessionId::new("root")), ..Author::default() };
    let session = Session { id: SessionId::new("root"), principal: Principal::owner(), root: "/".into(), agent: None };
    let to = ChannelConfig::default().mailbox("reviews", &session, &*store).await.expect("a mailbox");
    let message =
        LogMessage { kind: MessageKind::Channel, subject: "reviews".into(), text: "look".into(), data: Value::Null };
    store.append(NewRow::message(&to, "owner", author, message)).await.expect("written");
    fixture.step().await;
    fixture.step().await;
    assert_eq!(fixture.manager.firings(None, 9).await.expect("firings").len(), 1);
}

#[tokio::test]
async fn messages_of_other_agents_fire_a_trigger() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
    let store = SqliteStore::open(&fixture.dir.path().join("state")).expect("store");
    let config = json!({"type": "channel", "prompt": "Review it", "channel": "reviews", "from": "scout"});
    let owner = SessionId::new("mine");
    let request = TriggerRequest {
        target: Target::Session(owner.clone()),
        creator: Creator::Session(owner.clone()),
        ..request(fixture.dir.path(), config)
    };
    let write = async |agent: &str, session: &str, text: &str| {
        let author = Author { session: Some(SessionId::new(session)), agent: Some(agent.into()), call: None };
        let (kind, subject) = (MessageKind::Channel, "reviews".to_owned());
        let message = LogMessage { kind, subject, text: text.to_owned(), data: Value::Null };
        let to = SessionId::new("channel/session/mine/reviews");
        store.append(NewRow::message(&to, "owner", author, message)).await.expect("written");
    };
    write("scout", "other", "before").await;
    let trigger = fixture.manager.install(request).await.expect("installed").trigger;
    for (agent, session, text) in [("scout", "mine", "own"), ("cook", "other", "else"), ("scout", "other", "a.rs")] {
        write(agent, session, text).await;
    }
    for _ in 0..2 {
        fixture.step().await;
        fixture.runner.wait_until_idle().await;
    }
    let mail = store.messages(&owner, 0, 9).await.expect("mail");
    assert_eq!(mail.len(), 1, "{mail:?}");
    let message = mail[0].message().expect("a message");
    assert_eq!((message.kind, &message.subject), (MessageKind::Trigger, &trigger.id));
    assert!(message.text.starts_with("Review it") && message.text.ends_with("scout: a.rs"), "{}", message.text);
    assert_eq!(fixture.states().await, [FiringState::Done]);
}

#[tokio::test]
async fn agents_below_a_session_do_not_wake_it() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
    let store = SqliteStore::open(&fixture.dir.path().join("state")).expect("store");
    let config = json!({"type": "channel", "prompt": "p", "channel": "reviews"});
    let creator = Creator::Session(SessionId::new("mine"));
    let request = TriggerRequest { creator, ..request(fixture.dir.path(), config) };
    let trigger = fixture.manager.install(request).await.expect("installed").trigger;
    let run = format!("trigger-{}-0123456789abcdef", trigger.id);
    let agents = [
        (&*run, None),
        ("scout_1", Some(&*run)),
        ("scout_2", Some("scout_1")),
        ("other", None),
        ("scout_3", Some("other")),
    ];
    for (id, parent) in agents {
        let (limits, parent) = (AgentLimits::default(), parent.map(Into::into));
        let new = NewAgent { id: id.into(), parent, name: id.into(), limits, starts_task: true, time_left: None };
        store.begin_agent(new).await.expect("begun");
    }
    let (channel, reader) = (SessionId::new("channel/session/mine/reviews"), SessionId::new(&*run));
    store.wire(&channel, &reader, true).await.expect("wired");
    for session in [&*run, "scout_1", "scout_2", "scout_3"] {
        let author = Author { session: Some(SessionId::new(session)), ..Author::default() };
        let (kind, subject) = (MessageKind::Channel, "reviews".to_owned());
        let message = LogMessage { kind, subject, text: "news".into(), data: Value::Null };
        store.append(NewRow::message(&channel, "owner", author, message)).await.expect("written");
    }
    for _ in 0..2 {
        fixture.step().await;
        fixture.runner.wait_until_idle().await;
    }
    assert_eq!(fixture.states().await, [FiringState::Done], "the messages of its own agents do not fire it");
    let begun = fixture.starts.begun.lock().expect("lock").clone();
    assert_eq!(begun[0].payload.as_deref(), Some("scout_3: news"));
    let woken = store.messages(&reader, 0, 9).await.expect("mail");
    let authors: Vec<_> = woken.iter().map(|row| row.author.name()).collect();
    assert_eq!(authors, ["scout_3"]);
}

/// The shared channel of this name, which others than the fixture write to.
fn shared(fixture: &Fixture, names: &[&str]) {
    let channel = ChannelConfig { reach: ChannelScope::Shared, ..ChannelConfig::default() };
    let channels = names.iter().map(|name| ((*name).to_owned(), channel.clone()));
    fixture.manager.use_channels(Channels(channels.collect()));
}

fn news(channel: &str, from: &str, text: &str) -> NewRow {
    let author = Author { session: Some(SessionId::new(from)), agent: Some(from.to_owned()), call: None };
    let (kind, subject) = (MessageKind::Channel, channel.to_owned());
    let message = LogMessage { kind, subject, text: text.to_owned(), data: Value::Null };
    NewRow::message(&SessionId::new(format!("channel/principal/owner/{channel}")), "owner", author, message)
}

#[tokio::test]
async fn a_channel_waits_for_its_trigger() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
    let store = SqliteStore::open(&fixture.dir.path().join("state")).expect("store");
    shared(&fixture, &["news"]);
    let config = json!({"type": "channel", "prompt": "p", "channel": "news", "from": "scout"});
    let trigger = fixture.install(config).await;
    for _ in 0..WAITING_MESSAGES {
        store.append(news("news", "cook", "x")).await.expect("there is room");
    }
    assert!(store.append(news("news", "cook", "x")).await.is_err(), "it has looked at none of them");
    while store.append(news("news", "cook", "x")).await.is_err() {
        fixture.step().await;
    }
    assert_eq!(fixture.states().await, []);
    fixture.manager.remove(&trigger.id, None).await.expect("removed");
    let reader = store.cursor(&SessionId::new("channel/principal/owner/news"), &trigger.id).await.expect("read");
    assert_eq!(reader, 0, "it is no reader any more");
}

#[tokio::test]
async fn triggers_that_fire_each_other_stop() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
    let store = SqliteStore::open(&fixture.dir.path().join("state")).expect("store");
    shared(&fixture, &["there", "back"]);
    for channel in ["there", "back"] {
        fixture.install(json!({"type": "channel", "prompt": "p", "channel": channel})).await;
    }
    let (mut sent, mut from, mut channels) = (0, "person".to_owned(), ["there", "back"].into_iter().cycle());
    // The run of each firing writes to the channel of the other trigger.
    while let Some(channel) = channels.next()
        && store.append(news(channel, &from, "go")).await.is_ok()
    {
        sent += 1;
        fixture.step().await;
        fixture.runner.wait_until_idle().await;
        from = fixture.starts.begun.lock().expect("lock").last().expect("it has fired").run_id();
    }
    assert_eq!(sent, MAX_HOPS);
    store.append(news("there", "person", "go")).await.expect("a person may write");
}

#[tokio::test]
async fn triggers_that_fire_by_files_stop() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
    let log = SqliteStore::open(&fixture.dir.path().join("state")).expect("store");
    let mut calls = executor_fixture(|options| {
        options.services = Arc::new(Services { log: log.clone(), ..(*options.services).clone() });
    })
    .await;
    let file = |name: &str| fixture.dir.path().canonicalize().expect("folder").join(name);
    let (there, back) = (file("there"), file("back"));
    for name in ["there", "back"] {
        fixture.install(json!({"type": "file", "prompt": "p", "globs": [name], "debounce": "10ms"})).await;
    }
    fixture.step().await;
    // The first look is taken in the background.
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::fs::write(&there, "mine").expect("file");
    let mut fired = 0;
    let last = loop {
        let last = next_firing(&mut fixture, fired).await;
        fired += 1;
        if last.state == FiringState::Failed {
            break last;
        }
        // The run of each firing writes the file of the other trigger.
        let other = if fired % 2 == 1 { &back } else { &there };
        calls.run.session = Arc::new(Session { id: SessionId::new(last.run_id()), ..(*calls.run.session).clone() });
        calls.run.hops = Arc::new(log.hops(&calls.run.session.id).await.expect("hops").into());
        assert!(calls.one("write", json!({"file": other, "n": fired})).await.ok);
    };
    assert_eq!(fired, MAX_HOPS as usize + 1);
    assert!(last.error.as_deref().is_some_and(|why| why.contains("it may be a loop")), "{last:?}");
    // The time of a file is exact to some milliseconds.
    tokio::time::sleep(Duration::from_millis(50)).await;
    std::fs::write(&there, "mine again").expect("file");
    assert_eq!(next_firing(&mut fixture, fired).await.state, FiringState::Done, "a person may write");
}

/// The firing that comes after so many, once it has ended.
async fn next_firing(fixture: &mut Fixture, after: usize) -> Firing {
    fixture.clock.pass(Duration::from_millis(1));
    tokio::time::timeout(LONG, async {
        loop {
            fixture.step().await;
            fixture.runner.wait_until_idle().await;
            let firings = fixture.manager.firings(None, 99).await.expect("firings");
            if firings.len() > after && matches!(firings[0].state, FiringState::Done | FiringState::Failed) {
                return firings[0].clone();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it fires")
}
