//! What becomes of jobs when their process is killed, or the store fails them.

use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use toolwright_core::call::ValidCall;
use toolwright_core::canonical::ContentHash;
use toolwright_core::inbox::{AnswerStatus, InboxStore as _, Question, QuestionState};
use toolwright_core::job::{JobRecord, JobScope, JobState, Jobs as _};
use toolwright_core::store::RunStore as _;
use toolwright_core::{ApprovalDecision, Policy, Profile, Session, SessionId, Snapshot};
use toolwright_runtime::executor::{GuardBinding, GuardVerdict};
use toolwright_runtime::{
    Inbox, InboxOptions, QueueConfig, Queues, RecoveryOptions, RunContext, SqliteStore, SystemClock,
};

use crate::background::jobs::{Fixture, LONG, fixture, fixture_with, id, session, terms, text};

const DIR: &str = "TOOLWRIGHT_TEST_RECOVERY_DIR";
/// The session in which everything is denied after the kill.
const STRICTER: &str = "stricter";

fn print_line(line: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).expect("told");
    out.flush().expect("told");
}

/// The process that is killed, which is this test alone: all its calls but the last wait for a person.
#[tokio::test]
async fn child() {
    let Ok(dir) = std::env::var(DIR) else { return };
    let dir = Path::new(&dir);
    let guarded = |call: &ValidCall| match call.arguments["n"].as_u64() {
        Some(2) => GuardVerdict::Ask("two is odd".into()),
        _ => GuardVerdict::Allow,
    };
    let fixture = fixture_with(dir, |options| options.guards.push(GuardBinding::new("g", Arc::new(guarded)))).await;
    let inbox = InboxOptions::new(SqliteStore::open(dir).expect("store"), Arc::new(SystemClock));
    let on_question = Arc::new(|asked: &Question| {
        print_line(&format!("asked {} {}", &asked.request.call_id.as_str()[1..], asked.id))
    });
    let approver = Arc::new(Inbox::new(InboxOptions { on_question, ..inbox }));
    for (n, of, profile) in [
        (1, "s", Profile::Ask),
        (2, "s", Profile::Trusted),
        (3, "s", Profile::Ask),
        (4, "s", Profile::Ask),
        (5, STRICTER, Profile::Ask),
        (6, STRICTER, Profile::Trusted),
    ] {
        let run = RunContext {
            session: Arc::new(session(of, dir)),
            policy: Arc::new(Policy::of(profile)),
            approver: Arc::clone(&approver) as _,
            ..fixture.run.clone()
        };
        let outcome = fixture
            .call_under(&run, &format!("c{n}"), "again", json!({"n": n, "ms": u64::from(n == 6) * 60_000}))
            .await;
        print_line(&format!("ack {n} {}", id(&outcome)));
    }
    while fixture.runs().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    print_line("ready");
    std::future::pending::<()>().await;
}

/// The ids of the jobs and questions that a killed process left, by number.
fn left_by_a_kill(dir: &Path) -> [HashMap<u64, String>; 2] {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "background::recovery::child", "--nocapture"])
        .env(DIR, dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("spawned");
    let numbered = |line: &str, word| {
        let (n, id) = line.split_once(word)?.1.split_once(' ')?;
        Some((n.parse().expect("a number"), id.to_owned()))
    };
    let (mut ids, mut asked, mut ready) = (HashMap::new(), HashMap::new(), false);
    for line in BufReader::new(child.stdout.take().expect("piped")).lines().map_while(Result::ok) {
        ids.extend(numbered(&line, "ack "));
        asked.extend(numbered(&line, "asked "));
        ready |= line.contains("ready");
        if ready && asked.len() == 5 {
            break;
        }
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert_eq!((ids.len(), asked.len(), ready), (6, 5, true));
    // Nobody waits in a test for a lease to end.
    sql(dir, "UPDATE job_owners SET lease_ms = 0");
    [ids, asked]
}

fn sql(dir: &Path, sql: &str) {
    let store = SqliteStore::open(dir).expect("store");
    let db = rusqlite::Connection::open(store.path()).expect("open");
    db.busy_timeout(LONG).expect("patience");
    db.execute_batch(sql).expect(sql);
}

/// Everything runs by now that is not denied.
fn permissive_context(session: Session, snapshot: Arc<Snapshot>) -> RunContext {
    let denies = json!({"rules": [{"effect": "deny", "reason": "no more"}]});
    let denies = if session.id.as_str() == STRICTER { denies } else { json!({"profile": "trusted"}) };
    RunContext { policy: Arc::new(serde_json::from_value(denies).expect("a policy")), ..terms(session, snapshot) }
}

fn recover(fixture: &Fixture, session: Option<SessionId>) {
    let catalogue = Arc::clone(&fixture.catalogue);
    let root = fixture.run.session.root.clone();
    fixture.executor.recover_jobs(RecoveryOptions { catalogue, root, session, context: Arc::new(permissive_context) });
}

async fn over(fixture: &Fixture, id: &str) -> JobRecord {
    let job = fixture.jobs.wait(JobScope::All, id, LONG).await.expect("known");
    assert!(job.state.is_over(), "{job:?}");
    job
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_awaited_approval_survives_a_kill() {
    let dir = tempfile::tempdir().expect("dir");
    let path = dir.path().to_owned();
    let [ids, asked] = tokio::task::spawn_blocking(move || left_by_a_kill(&path)).await.expect("killed");
    let store = SqliteStore::open(dir.path()).expect("store");
    let answer = async |n: u64, decision: ApprovalDecision| {
        assert_eq!(store.answer(&asked[&n], &decision, "ann").await.expect("answer"), AnswerStatus::Accepted);
    };
    // What a person says while nobody runs counts.
    answer(3, ApprovalDecision::Deny { reason: "not this one".into() }).await;
    answer(4, ApprovalDecision::Approve).await;
    let fixture = fixture(dir.path()).await;
    recover(&fixture, None);
    assert_eq!(text(&over(&fixture, &ids[&4]).await), "result 4");
    for (n, why) in [(3, "not this one"), (5, "no more"), (6, "no more")] {
        let job = over(&fixture, &ids[&n]).await;
        assert!(job.state == JobState::Error && format!("{job:?}").contains(why), "{n}: {job:?}");
    }
    // The killed process began 6, which had leave; the others waited.
    assert_eq!(fixture.runs(), HashMap::from([(4, 1), (6, 1)]));
    let withdrawn = store.question(&asked[&5]).await.expect("read").expect("known").state;
    assert_eq!(withdrawn, QuestionState::Withdrawn, "nobody is asked for what is denied");
    for n in [1, 2] {
        let job = fixture.jobs.get(JobScope::All, &ids[&n]).await.expect("known");
        assert_eq!((job.state, job.attempts), (JobState::Pending, 0), "it waits for a person: {job:?}");
        answer(n, ApprovalDecision::Approve).await;
        assert_eq!(text(&over(&fixture, &ids[&n]).await), format!("result {n}"));
    }
    assert_eq!(store.questions(None, 10).await.expect("questions").len(), 5, "nothing was asked twice");
}

/// One call at a time.
async fn narrow(dir: &Path) -> Fixture {
    let config = QueueConfig { concurrent: 1, ..QueueConfig::default() };
    fixture_with(dir, |options| options.queues = Queues::new([("default".to_owned(), config)].into())).await
}

#[tokio::test]
async fn a_promoted_call_keeps_its_journal_end() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = narrow(dir.path()).await;
    let first = id(&fixture.call("a", "once", json!({"n": 1, "ms": 60_000})).await);
    while fixture.runs().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let store = SqliteStore::open(dir.path()).expect("store");
    store.save_run("r", &json!({})).await.expect("saved");
    let run = RunContext {
        journal: Some((Arc::clone(&store) as _, "r".into())),
        background_after: Some(Duration::from_millis(50)),
        ..fixture.run.clone()
    };
    let second = id(&fixture.call_under(&run, "b", "direct", json!({"n": 2})).await);
    fixture.jobs.stop(JobScope::All, &first).await.expect("stopped");
    assert_eq!(text(&over(&fixture, &second).await), "result 2");
    let saved = store.run("r").await.expect("read").expect("saved");
    let [(call, Some(outcome))] = &*saved.calls else { panic!("{:?}", saved.calls) };
    assert_eq!((call.as_str(), id(outcome)), ("b", second));
}

#[tokio::test]
async fn a_released_jobs_first_step_is_not_awaited() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = narrow(dir.path()).await;
    // It is no job, and has the one slot.
    let busy = fixture.call("a", "direct", json!({"n": 1, "ms": 60_000}));
    let step = async {
        while fixture.runs().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fixture.call("b", "talk", json!({})).await
    };
    let end = async {
        while fixture.jobs.count() < 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fixture.jobs.shut_down(LONG).await;
    };
    let reported = tokio::select! {
        (reported, ()) = async { tokio::join!(step, end) } => reported,
        _ = busy => panic!("it takes a minute"),
    };
    let job = fixture.jobs.get(JobScope::All, &id(&reported)).await.expect("known");
    assert_eq!((job.state, job.owner), (JobState::Pending, None));
}

#[tokio::test]
async fn an_unsaved_job_end_is_retried() {
    let dir = tempfile::tempdir().expect("dir");
    let fixture = fixture(dir.path()).await;
    // It makes its tables when it is first used.
    fixture.jobs.settle().await.expect("settled");
    sql(
        dir.path(),
        "CREATE TRIGGER full BEFORE UPDATE ON jobs WHEN NEW.ended_ms IS NOT NULL BEGIN SELECT RAISE(FAIL, 'full'); END",
    );
    let job = id(&fixture.call("a", "again", json!({"n": 1})).await);
    while fixture.runs().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let still = fixture.jobs.get(JobScope::All, &job).await.expect("known");
    assert_eq!((still.state, fixture.jobs.count()), (JobState::Running, 1));
    sql(dir.path(), "DROP TRIGGER full");
    assert_eq!(text(&over(&fixture, &job).await), "result 1");
    fixture.jobs.all_ended().await;
}

#[tokio::test]
async fn jobs_that_cannot_start_block_no_others() {
    let dir = tempfile::tempdir().expect("dir");
    let first = narrow(dir.path()).await;
    first.call("a", "once", json!({"n": 1, "ms": 60_000})).await;
    while first.runs().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mine = id(&first.call("b", "again", json!({"n": 2, "ms": 100})).await);
    let other = RunContext { session: Arc::new(session("other", dir.path())), ..first.run.clone() };
    let others = id(&first.call_under(&other, "c", "again", json!({"n": 3, "ms": 100})).await);
    first.jobs.shut_down(LONG).await;
    let another = serde_json::to_value(ContentHash::of_bytes(b"another")).expect("JSON");
    let columns = "arguments, state, session, principal, call, attempts, created_ms, resumable";
    sql(
        dir.path(),
        &format!(
            "UPDATE jobs SET attempts = 0 WHERE ended_ms IS NULL; \
             INSERT INTO jobs (id, tool, {columns}, plan) SELECT 'bad_1', tool, {columns}, '{{\"definition\": ' \
             FROM jobs WHERE id = '{mine}'; \
             INSERT INTO jobs (id, tool, {columns}, plan) SELECT 'bad_2', tool, {columns}, \
             json_set(plan, '$.principal', 5) FROM jobs WHERE id = '{mine}'; \
             INSERT INTO jobs (id, tool, {columns}, plan) SELECT 'elsewhere_1', tool, {columns}, \
             json_set(plan, '$.source', '/b/toolwright.yaml') FROM jobs WHERE id = '{mine}'; \
             INSERT INTO jobs (id, tool, {columns}, plan) SELECT 'elsewhere_2', tool, {columns}, \
             json_set(plan, '$.source', '/b/toolwright.yaml', '$.definition', '{}') FROM jobs WHERE id = '{mine}'; \
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 600) \
             INSERT INTO jobs (id, tool, {columns}, plan) SELECT 'absent_' || i, 'x:absent@1.0.0', {columns}, plan \
             FROM jobs, n WHERE id = '{mine}'; \
             UPDATE jobs SET rowid = rowid + 10000 WHERE id IN ('{mine}', '{others}')",
            another.as_str().expect("text")
        ),
    );
    let second = fixture(dir.path()).await;
    recover(&second, Some(SessionId::new("s")));
    assert_eq!(text(&over(&second, &mine).await), "result 2");
    for bad in ["bad_1", "bad_2"] {
        let job = over(&second, bad).await;
        assert!(job.state == JobState::Error && format!("{job:?}").contains("cannot be read"), "{job:?}");
    }
    let state = async |id: &str| second.jobs.get(JobScope::All, id).await.expect("known").state;
    assert_eq!((state("absent_1").await, state(&others).await), (JobState::Pending, JobState::Pending));
    recover(&second, None);
    assert_eq!(text(&over(&second, &others).await), "result 3");
    for id in ["elsewhere_1", "elsewhere_2"] {
        assert_eq!(state(id).await, JobState::Pending, "it is for a process that has its source");
    }
}
