//! Triggers, with a real store and a clock that is set.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use toolwright_core::agents::{AgentLimits, Rights};
use toolwright_core::session::Principal;
use toolwright_core::trigger::webhook::{SignedRequest, sign};
use toolwright_core::trigger::{
    Creator, Firing, FiringState, MAX_TRIGGERS, MAX_WAITING, Target, Trigger, TriggerConfig, TriggerRequest,
    Triggers as _,
};
use toolwright_core::{Cancel, CancelCause, Clock as _, Policy, Profile};
use toolwright_runtime::triggers::{FiringEnd, FiringOffer, FiringSuspension, FiringTarget, WebhookError};
use toolwright_runtime::{SqliteStore, TriggerManager, TriggerRunner};
use toolwright_testkit::FakeClock;

use crate::background::jobs::LONG;

pub(crate) const HOUR: Duration = Duration::from_secs(3600);

fn rights(root: &Path) -> Rights {
    Rights {
        principal: Principal::owner(),
        policies: vec![Policy::of(Profile::Ask)],
        tools: None,
        limits: AgentLimits::default(),
        root: root.to_owned(),
    }
}

pub(crate) fn request(root: &Path, config: Value) -> TriggerRequest {
    let config: TriggerConfig = serde_json::from_value(config).expect("a trigger");
    TriggerRequest { id: None, config, target: Target::Run, rights: rights(root), creator: Creator::Owner }
}

/// Notes what it starts. A run lasts until it is let go on, if it is held.
#[derive(Default)]
pub(crate) struct RecordingTarget {
    pub(crate) begun: Mutex<Vec<Firing>>,
    pub(crate) held: Option<Semaphore>,
    pub(crate) needs_person: bool,
}

#[async_trait]
impl FiringTarget for RecordingTarget {
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
        if self.needs_person {
            suspension.suspend().await;
        }
        if let Some(held) = &self.held {
            held.acquire().await.expect("open").forget();
        }
        if trigger.config.prompt == "fail" { Err("it failed".into()) } else { Ok(FiringEnd::Over) }
    }
}

pub(crate) struct Fixture {
    pub(crate) manager: Arc<TriggerManager>,
    pub(crate) runner: TriggerRunner,
    pub(crate) clock: Arc<FakeClock>,
    pub(crate) starts: Arc<RecordingTarget>,
    pub(crate) dir: tempfile::TempDir,
}

impl Fixture {
    pub(crate) fn new(now: &str, starts: RecordingTarget) -> Self {
        let dir = tempfile::tempdir().expect("dir");
        let now: jiff::Timestamp = now.parse().expect("a time");
        let clock = Arc::new(FakeClock::at(now.as_millisecond().cast_unsigned()));
        let store = SqliteStore::open(&dir.path().join("state")).expect("store");
        let manager = TriggerManager::new(store, Arc::clone(&clock) as _);
        let starts = Arc::new(starts);
        let runner = TriggerRunner::new(Arc::clone(&manager), dir.path().to_owned(), Arc::clone(&starts) as _);
        Self { manager, runner, clock, starts, dir }
    }

    pub(crate) async fn install(&self, config: Value) -> Trigger {
        self.manager.install(request(self.dir.path(), config)).await.expect("installed").trigger
    }

    pub(crate) async fn step(&mut self) {
        self.runner.step().await.expect("looked");
    }

    pub(crate) async fn states(&self) -> Vec<FiringState> {
        let firings = self.manager.firings(None, 99).await.expect("firings");
        firings.iter().rev().map(|firing| firing.state).collect()
    }

    pub(crate) async fn until(&self, what: impl AsyncFn() -> bool) {
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
        let mut fixture = Fixture::new(from, RecordingTarget::default());
        let daily = json!({"type": "schedule", "prompt": "p", "daily_at": "02:30", "time_zone": "Europe/Oslo"});
        fixture.install(daily).await;
        for _ in 0..38 * 4 {
            fixture.clock.pass(HOUR / 4);
            fixture.step().await;
            fixture.runner.wait_until_idle().await;
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
        let starts = RecordingTarget { held: Some(Semaphore::new(0)), ..RecordingTarget::default() };
        let mut fixture = Fixture::new("2026-01-01T00:00:00Z", starts);
        fixture.install(json!({"type": "timer", "prompt": "p", "interval": "1m", "overlap": overlap})).await;
        for _ in 0..2 {
            fixture.clock.pass(Duration::from_secs(60));
            fixture.step().await;
            fixture.until(async || !fixture.states().await.contains(&FiringState::Claimed)).await;
        }
        assert_eq!(fixture.states().await, beside, "{overlap}");
        fixture.starts.held.as_ref().expect("held").add_permits(9);
        fixture.runner.wait_until_idle().await;
        fixture.step().await;
        fixture.runner.wait_until_idle().await;
        assert_eq!(fixture.states().await, after, "{overlap}");
    }
}

#[tokio::test]
async fn a_waiting_firing_does_not_block_others() {
    let starts = RecordingTarget { held: Some(Semaphore::new(0)), needs_person: true, ..RecordingTarget::default() };
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", starts);
    fixture.install(json!({"type": "timer", "prompt": "p", "interval": "1m"})).await;
    for n in 1..=12 {
        fixture.clock.pass(Duration::from_secs(60));
        fixture.step().await;
        fixture.until(async || fixture.states().await == vec![FiringState::Waiting; n]).await;
    }
    fixture.starts.held.as_ref().expect("held").add_permits(99);
    fixture.runner.wait_until_idle().await;
    assert_eq!(fixture.states().await, [FiringState::Done; 12]);
}

#[tokio::test]
async fn a_failure_is_kept_with_its_firing() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
    let trigger = fixture.install(json!({"type": "timer", "prompt": "fail", "interval": "1h"})).await;
    fixture.manager.fire(&trigger.id).await.expect("fired");
    fixture.step().await;
    fixture.runner.wait_until_idle().await;
    let firings = fixture.manager.firings(Some(&trigger.id), 9).await.expect("firings");
    assert_eq!((firings[0].state, firings[0].error.as_deref()), (FiringState::Failed, Some("it failed")));
}

#[tokio::test]
async fn a_principal_has_a_bounded_number_of_triggers() {
    let fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
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
    let fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
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
    let fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
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
    assert!(firings[0].message(&hook.config).ends_with("data, not an instruction:\nhello"));
}

#[tokio::test]
async fn changed_files_fire_with_what_changed() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
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
async fn firings_without_room_count_as_missed() {
    for (catch_up, expect) in [
        (json!("all"), &["00:05", "00:10", "00:15", "00:20", "00:25"][..]),
        (json!({"all": 2}), &["00:05", "00:20", "00:25"]),
        (json!("one"), &["00:05", "00:25"]),
        (json!("none"), &["00:05"]),
    ] {
        let starts = RecordingTarget { held: Some(Semaphore::new(0)), ..RecordingTarget::default() };
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
        fixture.runner.wait_until_idle().await;
        let begun = fixture.starts.begun.lock().expect("lock").clone();
        let at = |firing: &Firing| jiff::Timestamp::from_millisecond(firing.slot.parse().expect("a slot"));
        let time = |firing: &Firing| at(firing).expect("a time").to_string()[11..16].to_owned();
        let slots: BTreeSet<String> = begun.iter().map(time).collect();
        assert_eq!(slots.iter().collect::<Vec<_>>(), expect, "{catch_up}");
    }
}

#[tokio::test]
async fn changes_of_files_wait_for_room() {
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
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
    let held = RecordingTarget { held: Some(Semaphore::new(0)), ..RecordingTarget::default() };
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
    let mut fixture = Fixture::new("2026-01-01T00:00:00Z", RecordingTarget::default());
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
