//! Triggers, with a real store, a clock that is set, and processes that are really killed.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use toolwright_core::agents::{AgentLimits, AgentTree as _, NewAgent, Rights};
use toolwright_core::session::{Principal, Session, SessionId};
use toolwright_core::store::channel::{ChannelConfig, Channels, Reach};
use toolwright_core::store::group::Groups as _;
use toolwright_core::store::{
    Author, LogMessage, MAX_HOPS, MAX_WAITING as WAITING_MESSAGES, MessageKind, NewRow, RunStore as _, SessionLog as _,
};
use toolwright_core::trigger::webhook::{SignedRequest, sign};
use toolwright_core::trigger::{
    Creator, Firing, FiringState, MAX_TRIGGERS, MAX_WAITING, Target, Trigger, TriggerConfig, TriggerRequest,
    Triggers as _,
};
use toolwright_core::{Cancel, CancelCause, Clock as _, Policy, Profile, Services};
use toolwright_runtime::triggers::{FiringEnd, FiringOffer, FiringSuspension, FiringTarget, WebhookError};
use toolwright_runtime::{SqliteStore, SystemClock, TriggerManager, TriggerRunner};
use toolwright_testkit::FakeClock;

use crate::fixture::fixture as executor_fixture;
use crate::jobs::LONG;

const HOUR: Duration = Duration::from_secs(3600);

fn rights(root: &Path) -> Rights {
    Rights {
        principal: Principal::owner(),
        policies: vec![Policy::of(Profile::Ask)],
        tools: None,
        limits: AgentLimits::default(),
        root: root.to_owned(),
    }
}

fn request(root: &Path, config: Value) -> TriggerRequest {
    let config: TriggerConfig = serde_json::from_value(config).expect("a trigger");
    TriggerRequest { id: None, config, target: Target::Run, rights: rights(root), creator: Creator::Owner }
}

/// Notes what it starts. A run lasts until it is let go on, if it is held.
#[derive(Default)]
struct Starts {
    begun: Mutex<Vec<Firing>>,
    held: Option<Semaphore>,
    parks: bool,
}

#[async_trait]
impl FiringTarget for Starts {
    async fn begin(&self, _trigger: &Trigger, firing: &Firing) -> Result<(), String> {
        self.begun.lock().expect("lock").push(firing.clone());
        Ok(())
    }

    async fn finish(
        &self,
        trigger: &Trigger,
        _firing: &Firing,
        suspension: FiringSuspension,
    ) -> Result<FiringEnd, String> {
        if self.parks {
            suspension.suspend().await;
        }
        if let Some(held) = &self.held {
            held.acquire().await.expect("open").forget();
        }
        if trigger.config.prompt == "fail" { Err("it failed".into()) } else { Ok(FiringEnd::Over) }
    }
}

struct Fixture {
    manager: Arc<TriggerManager>,
    runner: TriggerRunner,
    clock: Arc<FakeClock>,
    starts: Arc<Starts>,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new(now: &str, starts: Starts) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let now: jiff::Timestamp = now.parse().expect("a time");
        let clock = Arc::new(FakeClock::at(now.as_millisecond().cast_unsigned()));
        let store = SqliteStore::open(&dir.path().join("state")).expect("store");
        let manager = TriggerManager::new(store, Arc::clone(&clock) as _);
        let starts = Arc::new(starts);
        let runner = TriggerRunner::new(Arc::clone(&manager), dir.path().to_owned(), Arc::clone(&starts) as _);
        Self { manager, runner, clock, starts, dir }
    }

    async fn install(&self, config: Value) -> Trigger {
        self.manager.install(request(self.dir.path(), config)).await.expect("installed").trigger
    }

    async fn step(&mut self) {
        self.runner.step().await.expect("looked");
    }

    async fn states(&self) -> Vec<FiringState> {
        let firings = self.manager.firings(None, 99).await.expect("firings");
        firings.iter().rev().map(|firing| firing.state).collect()
    }

    async fn until(&self, what: impl AsyncFn() -> bool) {
        tokio::time::timeout(LONG, async {
            while !what().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await
        .expect("in time");
    }
}

#[tokio::test]
async fn a_daily_schedule_fires_once_at_clock_changes() {
    // Europe/Oslo puts its clock on and back at 01:00 UTC of these days.
    for (from, expect) in [
        ("2026-03-28T12:00:00Z", ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]),
        ("2026-10-24T12:00:00Z", ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]),
    ] {
        let mut fixture = Fixture::new(from, Starts::default());
        let daily = json!({"type": "schedule", "prompt": "p", "daily_at": "02:30", "time_zone": "Europe/Oslo"});
        fixture.install(daily).await;
        for _ in 0..38 * 4 {
            fixture.clock.pass(HOUR / 4);
            fixture.step().await;
            fixture.runner.settled().await;
        }
        let begun = fixture.starts.begun.lock().expect("lock").clone();
        let at =
            |firing: &Firing| firing.slot.parse::<i64>().ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
        let slots: Vec<String> = begun.iter().map(|firing| at(firing).expect("a time").to_string()).collect();
        assert_eq!(slots, expect);
    }
}

#[tokio::test]
async fn a_firing_overlaps_as_configured() {
    use FiringState::{Done, Fired, Pending, Skipped};
    for (overlap, beside, after) in [
        ("skip", [Fired, Skipped], [Done, Skipped]),
        ("queue", [Fired, Pending], [Done, Done]),
        ("allow", [Fired, Fired], [Done, Done]),
    ] {
        let starts = Starts { held: Some(Semaphore::new(0)), ..Starts::default() };
        let mut fixture = Fixture::new("2026-01-01T00:00:00Z", starts);
        fixture.install(json!({"type": "timer", "prompt": "p", "interval": "1m", "overlap": overlap})).await;
        for _ in 0..2 {
            fixture.clock.pass(Duration::from_secs(60));
            fixture.step().await;
            fixture.until(async || !fixture.states().await.contains(&FiringState::Claimed)).await;
        }
        assert_eq!(fixture.states().await, beside, "{overlap}");
        fixture.starts.held.as_ref().expect("held").add_permits(9);
        fixture.runner.settled().await;
        fixture.step().await;
        fixture.runner.settled().await;
        assert_eq!(fixture.states().await, after, "{overlap}");
    }
}

#[tokio::test]
async fn a_waiting_firing_blocks_no_other() {
    let starts = Starts { held: Some(Semaphore::new(0)), parks: true, ..Starts::default() };
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", starts);
    fixture.install(json!({"type": "timer", "prompt": "p", "interval": "1m"})).await;
    for n in 1..=12 {
        fixture.clock.pass(Duration::from_secs(60));
        fixture.step().await;
        fixture.until(async || fixture.states().await == vec![FiringState::Waiting; n]).await;
    }
    fixture.starts.held.as_ref().expect("held").add_permits(99);
    fixture.runner.settled().await;
    assert_eq!(fixture.states().await, [FiringState::Done; 12]);
}

#[tokio::test]
async fn a_failure_is_kept_with_its_firing() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
    let trigger = fixture.install(json!({"type": "timer", "prompt": "fail", "interval": "1h"})).await;
    fixture.manager.fire(&trigger.id).await.expect("fired");
    fixture.step().await;
    fixture.runner.settled().await;
    let firings = fixture.manager.firings(Some(&trigger.id), 9).await.expect("firings");
    assert_eq!((firings[0].state, firings[0].error.as_deref()), (FiringState::Failed, Some("it failed")));
}

#[tokio::test]
async fn a_principal_has_a_bounded_number_of_triggers() {
    let fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
    let timer = || json!({"type": "timer", "prompt": "p", "interval": "1h"});
    for _ in 0..MAX_TRIGGERS {
        fixture.install(timer()).await;
    }
    let refused = fixture.manager.install(request(fixture.dir.path(), timer())).await.expect_err("too many");
    assert!(refused.message().contains("remove one first"), "{refused}");
    assert_eq!(fixture.manager.list(None).await.expect("list").len(), MAX_TRIGGERS);
}

#[tokio::test]
async fn the_configuration_replaces_its_own_triggers() {
    let fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
    let own = fixture.install(json!({"type": "timer", "prompt": "mine", "interval": "1h"})).await;
    let timer = |interval: &str| {
        let config = json!({"type": "timer", "prompt": "p", "interval": interval});
        serde_json::from_value::<TriggerConfig>(config).expect("a trigger")
    };
    let rights = rights(fixture.dir.path());
    let configure = async |named: &[(&str, &str)]| {
        let named = named.iter().map(|(name, interval)| ((*name).to_owned(), timer(interval)));
        fixture.manager.configure(&rights, named).await.expect("configured")
    };
    assert!(configure(&[("a", "1h"), ("b", "1h")]).await.is_empty());
    fixture.clock.pass(HOUR);
    let refused = configure(&[("a", "1h"), ("c", "1ms")]).await;
    assert!(refused[0].0 == "c" && refused[0].1.message().contains("at least 1s"), "{refused:?}");
    let left = fixture.manager.list(None).await.expect("list");
    let names: Vec<_> = left.iter().map(|trigger| trigger.id.split('_').next().unwrap_or_default()).collect();
    assert_eq!(names, ["a", "timer"]);
    assert_eq!(left[0].created_ms, own.created_ms, "what stays as it is keeps its times");
}

#[tokio::test]
async fn a_webhook_fires_once_for_each_delivery() {
    const SECRET: &str = "a secret of many bytes";
    let fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
    let hook = fixture.install(json!({"type": "webhook", "prompt": "p", "secret_env": ["NEW", "OLD"]})).await;
    let seconds = fixture.clock.wall_ms() / 1000;
    let secret = |name: &str| (name == "OLD").then(|| SECRET.to_owned());
    let timestamp = seconds.to_string();
    let signed = |delivery| sign(SECRET.as_bytes(), seconds, delivery, b"hello");
    let send = async |signature: &str, delivery: Option<&str>| {
        let (signature, timestamp) = (Some(signature), Some(&*timestamp));
        let request = SignedRequest { signature, timestamp, delivery, body: b"hello" };
        fixture.manager.receive(&hook.id, request, secret).await
    };
    assert_eq!(send(&signed(Some("d")), Some("d")).await.expect("taken"), FiringOffer::New);
    assert_eq!(send(&signed(Some("d")), Some("d")).await.expect("taken"), FiringOffer::Known);
    assert_eq!(send(&signed(None), None).await.expect("taken"), FiringOffer::New);
    assert!(matches!(send("sha256=00", None).await, Err(WebhookError::Unsigned(_))));
    let request = SignedRequest { signature: None, timestamp: None, delivery: None, body: b"" };
    let unset = fixture.manager.receive(&hook.id, request, |_| None).await.expect_err("no secret");
    assert!(unset.to_string().contains("set NEW or OLD"), "{unset}");
    let firings = fixture.manager.firings(Some(&hook.id), 9).await.expect("firings");
    assert_eq!(firings.len(), 2);
    assert!(firings[0].message(&hook.config).ends_with("data and no instruction:\nhello"));
}

#[tokio::test]
async fn changed_files_fire_with_what_changed() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
    let file = |name: &str| fixture.dir.path().join(name);
    std::fs::create_dir(file("src")).expect("folder");
    std::fs::write(file("src/a.rs"), "a").expect("file");
    let config = json!({"type": "file", "prompt": "p", "globs": ["src/*.rs"], "debounce": "40ms", "overlap": "queue"});
    fixture.install(config).await;
    let changes: [(&dyn Fn(), &str); 4] = [
        (&|| std::fs::write(file("src/b.rs"), "b").expect("file"), "created src/b.rs"),
        (&|| std::fs::write(file("src/a.rs"), "longer").expect("file"), "modified src/a.rs"),
        (&|| std::fs::rename(file("src/b.rs"), file("src/c.rs")).expect("file"), "renamed src/b.rs to src/c.rs"),
        (&|| std::fs::remove_file(file("src/a.rs")).expect("file"), "removed src/a.rs"),
    ];
    fixture.runner.step().await.expect("looked");
    // The first look is taken in the background.
    tokio::time::sleep(Duration::from_millis(100)).await;
    for (n, (change, expect)) in changes.into_iter().enumerate() {
        std::fs::write(file("src/else.txt"), n.to_string()).expect("file");
        change();
        tokio::time::timeout(LONG, async {
            while fixture.starts.begun.lock().expect("lock").len() <= n {
                fixture.runner.step().await.expect("looked");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .expect("it fires");
        let begun = fixture.starts.begun.lock().expect("lock").clone();
        assert_eq!(begun[n].payload.as_deref(), Some(expect));
        fixture.clock.pass(Duration::from_millis(1));
    }
}

/// The database of a fixture, in which a trigger has this many firings that wait for long.
fn with_waiting(fixture: &Fixture, trigger: &Trigger, count: usize) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(fixture.dir.path().join("state/toolwright.sqlite3")).expect("database");
    let sql = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count}) \
         INSERT INTO firings (trigger_id, slot, due_ms, state, created_ms) \
         SELECT ?1, 'waits ' || i, 9000000000000, 'pending', 0 FROM n"
    );
    db.execute(&sql, [&trigger.id]).expect("filled");
    db
}

/// Ends so many of the firings that wait.
fn make_room(db: &rusqlite::Connection, count: usize) {
    let sql = format!(
        "UPDATE firings SET state = 'done', ended_ms = 1 WHERE rowid IN \
         (SELECT rowid FROM firings WHERE slot LIKE 'waits %' AND ended_ms IS NULL LIMIT {count})"
    );
    assert_eq!(db.execute(&sql, []).expect("ended"), count);
}

#[tokio::test]
async fn slots_without_room_are_missed_slots() {
    for (catch_up, expect) in [
        (json!("all"), &["00:05", "00:10", "00:15", "00:20", "00:25"][..]),
        (json!({"all": 2}), &["00:05", "00:20", "00:25"]),
        (json!("one"), &["00:05", "00:25"]),
        (json!("none"), &["00:05"]),
    ] {
        let starts = Starts { held: Some(Semaphore::new(0)), ..Starts::default() };
        let mut fixture = Fixture::new("2026-01-01T00:00:00Z", starts);
        let config =
            json!({"type": "timer", "prompt": "p", "interval": "5m", "overlap": "allow", "catch_up": catch_up});
        let trigger = fixture.install(config).await;
        let db = with_waiting(&fixture, &trigger, MAX_WAITING - 1);
        for _ in 0..5 {
            fixture.clock.pass(Duration::from_secs(300));
            fixture.step().await;
        }
        fixture.clock.pass(Duration::from_secs(120));
        make_room(&db, 9);
        fixture.step().await;
        fixture.starts.held.as_ref().expect("held").add_permits(9);
        fixture.runner.settled().await;
        let begun = fixture.starts.begun.lock().expect("lock").clone();
        let at = |firing: &Firing| jiff::Timestamp::from_millisecond(firing.slot.parse().expect("a slot"));
        let time = |firing: &Firing| at(firing).expect("a time").to_string()[11..16].to_owned();
        let slots: BTreeSet<String> = begun.iter().map(time).collect();
        assert_eq!(slots.iter().collect::<Vec<_>>(), expect, "{catch_up}");
    }
}

#[tokio::test]
async fn changes_of_files_wait_for_room() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
    let file = fixture.dir.path().join("a.rs");
    std::fs::write(&file, "a").expect("file");
    let config = json!({"type": "file", "prompt": "p", "globs": ["*.rs"], "debounce": "20ms"});
    let trigger = fixture.install(config).await;
    let db = with_waiting(&fixture, &trigger, MAX_WAITING);
    let kept = "SELECT count(*) FROM triggers WHERE id = ?1 AND seen IS NOT NULL";
    fixture.step().await;
    fixture.until(async || db.query_row(kept, [&trigger.id], |row| row.get::<_, u32>(0)).expect("read") == 1).await;
    std::fs::write(&file, "longer").expect("file");
    // The watch finds it meanwhile, and no room.
    tokio::time::sleep(Duration::from_millis(200)).await;
    let firings = async || fixture.manager.firings(None, 2 * MAX_WAITING).await.expect("firings");
    assert_eq!(firings().await.len(), MAX_WAITING);
    make_room(&db, 1);
    let changed = async || firings().await.into_iter().find_map(|firing| firing.payload);
    fixture.until(async || changed().await.is_some()).await;
    assert_eq!(changed().await.as_deref(), Some("modified a.rs"));
}

#[tokio::test]
async fn a_process_that_ends_leaves_its_firing() {
    let held = Starts { held: Some(Semaphore::new(0)), ..Starts::default() };
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", held);
    fixture.install(json!({"type": "timer", "prompt": "p", "interval": "1h", "immediate": true})).await;
    let target = Arc::clone(&fixture.starts) as _;
    let first = TriggerRunner::new(Arc::clone(&fixture.manager), fixture.dir.path().to_owned(), target);
    let end = Cancel::new();
    let running = tokio::spawn(first.run(end.clone()));
    fixture.until(async || fixture.states().await == [FiringState::Fired]).await;
    end.cancel(CancelCause::Shutdown);
    running.await.expect("it ends");
    fixture.starts.held.as_ref().expect("held").add_permits(1);
    tokio::time::timeout(LONG, async {
        while fixture.states().await != [FiringState::Done] {
            fixture.runner.step().await.expect("looked");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("another goes on with it");
    assert_eq!(fixture.starts.begun.lock().expect("lock").len(), 2);
}

#[tokio::test]
async fn changes_between_two_watches_fire() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
    let file = fixture.dir.path().join("a.rs");
    std::fs::write(&file, "a").expect("file");
    let runner = |fixture: &Fixture| {
        let target = Arc::clone(&fixture.starts) as _;
        TriggerRunner::new(Arc::clone(&fixture.manager), fixture.dir.path().to_owned(), target)
    };
    let trigger = fixture.install(json!({"type": "file", "prompt": "p", "globs": ["*.rs"], "debounce": "1h"})).await;
    fixture.step().await;
    let db = rusqlite::Connection::open(fixture.dir.path().join("state/toolwright.sqlite3")).expect("database");
    let kept = async || {
        let kept: Option<String> =
            db.query_row("SELECT seen FROM triggers WHERE id = ?1", [&trigger.id], |row| row.get(0)).expect("read");
        kept.is_some()
    };
    fixture.until(kept).await;
    // Another process goes on with the watch; in this one it would have to be quiet for an hour.
    fixture.runner = runner(&fixture);
    std::fs::write(&file, "longer").expect("file");
    fixture.step().await;
    fixture.until(async || !fixture.manager.firings(None, 9).await.expect("firings").is_empty()).await;
    let firing = fixture.manager.firings(None, 9).await.expect("firings").remove(0);
    assert_eq!(firing.payload.as_deref(), Some("modified a.rs"));
}

#[tokio::test]
async fn channel_triggers_read_the_channel_of_the_tree() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
    let store = SqliteStore::open(&fixture.dir.path().join("state")).expect("store");
    for (id, parent) in [("root", None), ("child", Some("root"))] {
        let new = NewAgent {
            id: id.into(),
            parent: parent.map(Into::into),
            name: id.into(),
            limits: AgentLimits::default(),
            fresh: true,
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
async fn a_message_of_another_fires_a_trigger() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
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
        fixture.runner.settled().await;
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
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
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
        let new = NewAgent { id: id.into(), parent, name: id.into(), limits, fresh: true, time_left: None };
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
        fixture.runner.settled().await;
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
    let channel = ChannelConfig { reach: Reach::Shared, ..ChannelConfig::default() };
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
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
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
async fn triggers_that_feed_each_other_stop() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
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
        fixture.runner.settled().await;
        from = fixture.starts.begun.lock().expect("lock").last().expect("it has fired").run_id();
    }
    assert_eq!(sent, MAX_HOPS);
    store.append(news("there", "person", "go")).await.expect("a person may write");
}

#[tokio::test]
async fn triggers_that_feed_each_other_by_files_stop() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", Starts::default());
    let log = SqliteStore::open(&fixture.dir.path().join("state")).expect("store");
    let mut calls = executor_fixture(|options| {
        options.services = Arc::new(Services { log, ..(*options.services).clone() });
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
            fixture.runner.settled().await;
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

const DIR: &str = "TOOLWRIGHT_TEST_TRIGGERS_DIR";
/// One line for each time that a run was driven.
const DRIVEN: &str = "driven";
const SLOTS: u32 = 1000;
const KILLS: usize = 4;
/// Firings that one process drives at once.
const AT_ONCE: usize = 8;

/// Makes the run of a firing as the application does, and notes each time that it is driven.
struct Runs(Arc<SqliteStore>);

#[async_trait]
impl FiringTarget for Runs {
    async fn begin(&self, _trigger: &Trigger, firing: &Firing) -> Result<(), String> {
        let run = firing.run_id();
        if self.0.run(&run).await.map_err(|error| error.to_string())?.is_none() {
            self.0.save_run(&run, &json!({"slot": firing.slot})).await.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    async fn finish(
        &self,
        _trigger: &Trigger,
        firing: &Firing,
        _suspension: FiringSuspension,
    ) -> Result<FiringEnd, String> {
        let dir = std::env::var(DIR).map_err(|error| error.to_string())?;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(Path::new(&dir).join(DRIVEN));
        let line = format!("{}\n", firing.run_id());
        file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(|error| error.to_string())?;
        tokio::time::sleep(Duration::from_millis(1)).await;
        Ok(FiringEnd::Over)
    }
}

/// One of the processes that run triggers, which is this test alone.
#[tokio::test]
async fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let store = SqliteStore::open(Path::new(&dir)).expect("store");
    let manager = TriggerManager::new(Arc::clone(&store), Arc::new(SystemClock));
    let runner = TriggerRunner::new(manager, dir.into(), Arc::new(Runs(store)));
    // It is killed at the end.
    runner.run(toolwright_core::Cancel::new()).await;
}

fn spawn(dir: &Path) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "triggers::child"])
        .env(DIR, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawned")
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn killed_processes_fire_each_slot_once() {
    let dir = tempfile::tempdir().expect("dir");
    let store = SqliteStore::open(dir.path()).expect("store");
    // One slot an hour, the last of them half an hour ago.
    let since = HOUR * SLOTS + HOUR / 2;
    let clock = Arc::new(FakeClock::at(SystemClock.wall_ms()));
    clock.set_back(since);
    let past = TriggerManager::new(Arc::clone(&store), clock);
    let config =
        json!({"type": "timer", "prompt": "p", "interval": "1h", "catch_up": {"all": SLOTS}, "overlap": "allow"});
    let trigger = past.install(request(dir.path(), config)).await.expect("installed").trigger;
    let mut children = [spawn(dir.path()), spawn(dir.path())];
    let mut killed = 0;
    let seed = std::env::var("PROPTEST_RNG_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1_u64);
    let random = |n: usize| seed.wrapping_mul(6_364_136_223_846_793_005).to_le_bytes()[n] as usize;
    let after: Vec<usize> = (0..KILLS).map(|n| 200 * n + random(n) % 200).collect();
    let fired = tokio::time::timeout(LONG, async {
        loop {
            tokio::time::sleep(Duration::from_millis(130)).await;
            let firings = past.firings(Some(&trigger.id), usize::MAX).await.expect("firings");
            let is_over = firings.iter().filter(|firing| firing.state == FiringState::Done).count();
            if killed < KILLS && is_over > after[killed] {
                let child = &mut children[killed % 2];
                child.kill().expect("killed");
                child.wait().expect("ended");
                *child = spawn(dir.path());
                killed += 1;
            }
            if killed == KILLS && is_over >= SLOTS as usize {
                return firings;
            }
        }
    })
    .await
    .expect("all fire");
    for child in &mut children {
        child.kill().expect("killed");
        child.wait().expect("ended");
    }
    let runs: BTreeSet<String> = fired.iter().map(Firing::run_id).collect();
    assert_eq!((fired.len(), runs.len()), (SLOTS as usize, SLOTS as usize));
    for run in &runs {
        assert!(store.run(run).await.expect("read").is_some(), "{run}");
    }
    let driven = std::fs::read_to_string(dir.path().join(DRIVEN)).expect("driven");
    let driven: Vec<&str> = driven.lines().collect();
    assert_eq!(driven.iter().map(|run| (*run).to_owned()).collect::<BTreeSet<_>>(), runs);
    let again = driven.len() - runs.len();
    assert!(again <= KILLS * AT_ONCE, "{again} runs were driven again, and only those of killed processes may be");
}
