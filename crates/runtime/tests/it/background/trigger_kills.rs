//! Triggers of processes that are really killed: each slot fires once.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::json;
use toolwright_core::Clock as _;
use toolwright_core::store::RunStore as _;
use toolwright_core::trigger::{Firing, FiringState, Trigger, Triggers as _};
use toolwright_runtime::triggers::{FiringEnd, FiringSuspension, FiringTarget};
use toolwright_runtime::{SqliteStore, SystemClock, TriggerManager, TriggerRunner};
use toolwright_testkit::FakeClock;

use crate::background::jobs::LONG;
use crate::background::triggers::{HOUR, request};
use crate::fixture::spawn_test;

const DIR: &str = "TOOLWRIGHT_TEST_TRIGGERS_DIR";

/// One line for each time that a run was driven.
const DRIVEN: &str = "driven";

const SLOTS: u32 = 1000;

const KILLS: usize = 4;

/// Firings that one process drives at once.
const AT_ONCE: usize = 8;

/// Makes the run of a firing as the application does, and notes each time that it is driven.
struct RunTarget(Arc<SqliteStore>);

#[async_trait]
impl FiringTarget for RunTarget {
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
    let runner = TriggerRunner::new(manager, dir.into(), Arc::new(RunTarget(store)));
    // It is killed at the end.
    runner.run(toolwright_core::Cancel::new()).await;
}

fn spawn(dir: &Path) -> Child {
    spawn_test("background::trigger_kills::child", DIR, dir)
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn killed_processes_fire_each_slot_once() {
    let dir = tempfile::tempdir().expect("dir");
    let store = SqliteStore::open(dir.path()).expect("store");
    // One slot an hour, the last of them half an hour ago.
    let since = HOUR * SLOTS + HOUR / 2;
    let clock = Arc::new(FakeClock::at(SystemClock.wall_ms()));
    clock.rewind(since);
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
