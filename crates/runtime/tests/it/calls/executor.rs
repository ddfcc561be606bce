use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::Notify;
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::call::ValidCall;
use toolwright_core::event::{Event, Partial};
use toolwright_core::store::{LedgerStore as _, RunStore as _};
use toolwright_core::{CallId, CancelCause, ErrorKind, Policy, Profile, ToolError};
use toolwright_runtime::executor::{GuardBinding, GuardContext, GuardVerdict, InputGuard};
use toolwright_runtime::{QueueConfig, Queues};
use toolwright_testkit::{FakeApprover, FakeCallClient, FakeRedactor};

use crate::fixture::{call, fixture};

fn kinds(outcomes: &[toolwright_core::Outcome]) -> Vec<(String, String)> {
    outcomes
        .iter()
        .map(|outcome| {
            let kind = outcome.error.as_ref().map_or("ok", |error| error.kind().as_str());
            (outcome.call_id.to_string(), kind.to_owned())
        })
        .collect()
}

#[tokio::test]
async fn every_call_gets_one_outcome_in_order() {
    let fixture = fixture(|options| options.defaults.tool_timeout = Duration::from_secs(1)).await;
    let outcomes = fixture
        .all(vec![
            call("a", "slow", json!({"n": 50})),
            call("b", "nope", json!({})),
            call("c", "echo", json!({"n": "x"})),
            call("d", "panic", json!({})),
            call("e", "deaf", json!({})),
            call("f", "fails", json!({})),
            call("g", "echo", json!({"n": 7})),
        ])
        .await;
    let expect = [
        ("a", "ok"),
        ("b", "unknown_tool"),
        ("c", "invalid_parameters"),
        ("d", "internal_error"),
        ("e", "timeout"),
        ("f", "execution_error"),
        ("g", "ok"),
    ];
    assert_eq!(kinds(&outcomes), expect.map(|(id, kind)| (id.to_owned(), kind.to_owned())));
    assert_eq!(outcomes[6].text(), "echo 7");
    assert!(outcomes[4].text().contains("(tool failed: timeout after 1s)"), "{}", outcomes[4].text());
    assert_eq!(outcomes[5].text(), "it did not work", "a tool's own words are its content");
    fixture.store.flush().await.expect("flush");
    let totals = fixture.store.totals().await.expect("totals");
    assert_eq!((totals.tool_calls, totals.tool_failures, totals.model_calls), (7, 5, 0));
}

#[tokio::test]
async fn calls_run_in_parallel_within_their_queue() {
    let config = QueueConfig { concurrent: 3, ..QueueConfig::default() };
    let fixture =
        fixture(|options| options.queues = Queues::new(BTreeMap::from([("default".to_owned(), config)]))).await;
    let calls = (0..9).map(|n| call(&n.to_string(), "slow", json!({"n": 20}))).collect();
    let outcomes = fixture.all(calls).await;
    assert!(outcomes.iter().all(|outcome| outcome.ok));
    assert_eq!(fixture.counts.most.load(Ordering::SeqCst), 3);
}

/// A client that answers once it is let.
fn waiting_client() -> (Arc<FakeCallClient>, Arc<Notify>) {
    let may_answer = Arc::new(Notify::new());
    let told = Arc::clone(&may_answer);
    let client = FakeCallClient::with_future(move |_| {
        let told = Arc::clone(&told);
        Box::pin(async move {
            told.notified().await;
            json!({})
        })
    });
    (Arc::new(client), may_answer)
}

#[tokio::test]
async fn waiting_for_the_client_pauses_timeouts() {
    let mut fixture = fixture(|options| {
        options.defaults.tool_timeout = Duration::from_millis(100);
        options.defaults.idle_timeout = Some(Duration::from_millis(60));
    })
    .await;
    let (client, may_answer) = waiting_client();
    fixture.run.client = client;
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(400)).await;
        may_answer.notify_one();
    });
    let outcomes = fixture.all(vec![call("a", "asks", json!({}))]).await;
    assert_eq!(outcomes[0].text(), "answered 1");
    let outcomes = fixture.all(vec![call("b", "deaf", json!({}))]).await;
    assert_eq!(kinds(&outcomes)[0].1, "timeout", "all else is");
}

#[tokio::test]
async fn a_call_awaiting_its_client_holds_no_slot() {
    let config = QueueConfig { concurrent: 1, ..QueueConfig::default() };
    let mut fixture =
        fixture(|options| options.queues = Queues::new(BTreeMap::from([("default".to_owned(), config)]))).await;
    let (client, may_answer) = waiting_client();
    fixture.run.client = client;
    let asking = tokio::spawn({
        let (executor, run) = (Arc::clone(&fixture.executor), fixture.run.clone());
        async move { executor.run_calls(vec![call("a", "asks", json!({}))], &run).await }
    });
    while fixture.counts.ran.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let between = tokio::time::timeout(Duration::from_secs(5), fixture.all(vec![call("b", "echo", json!({}))])).await;
    assert!(between.expect("the place is free")[0].ok);
    // Answered while another call has the place, it waits for its turn again.
    let slow = tokio::spawn({
        let (executor, run) = (Arc::clone(&fixture.executor), fixture.run.clone());
        async move { executor.run_calls(vec![call("c", "slow", json!({"n": 200}))], &run).await }
    });
    while fixture.counts.now.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    may_answer.notify_one();
    let answered = asking.await.expect("ended");
    assert_eq!(answered[0].text(), "answered 1");
    assert_eq!(fixture.counts.now.load(Ordering::SeqCst), 0, "the slow call had ended");
    assert!(slow.await.expect("ended")[0].ok);
}

#[tokio::test]
async fn a_call_retakes_its_slot_after_withdrawal() {
    let config = QueueConfig { concurrent: 1, ..QueueConfig::default() };
    let mut fixture =
        fixture(|options| options.queues = Queues::new(BTreeMap::from([("default".to_owned(), config)]))).await;
    fixture.run.client = waiting_client().0;
    let both = fixture.all(vec![call("a", "withdraws", json!({"n": 50})), call("b", "slow", json!({"n": 300}))]);
    let outcomes = tokio::time::timeout(Duration::from_secs(5), both).await.expect("in time");
    assert_eq!((outcomes[0].text(), outcomes[1].ok), ("withdrawn".into(), true));
    assert_eq!(fixture.counts.most.load(Ordering::SeqCst), 1, "the queue has one place");
}

#[tokio::test]
async fn exclusive_tools_never_overlap() {
    let fixture = fixture(|_| ()).await;
    let calls = (0..4).map(|n| call(&n.to_string(), "exclusive", json!({"n": 5}))).collect();
    assert!(fixture.all(calls).await.iter().all(|outcome| outcome.ok));
    assert_eq!(fixture.counts.most.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn calls_over_the_turns_limit_are_refused() {
    let fixture = fixture(|options| options.defaults.calls_per_turn = 2).await;
    let calls = (0..3).map(|n| call(&n.to_string(), "echo", json!({"n": n}))).collect();
    let outcomes = fixture.all(calls).await;
    assert_eq!(outcomes[2].error.as_ref().map(|e| e.kind()), Some(ErrorKind::LimitExceeded));
    assert_eq!(fixture.counts.ran.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn a_cancel_reaches_the_tool_with_its_cause() {
    for cause in [CancelCause::User, CancelCause::Sibling, CancelCause::Shutdown] {
        let fixture = fixture(|_| ()).await;
        let cancel = fixture.run.cancel.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            cancel.cancel(cause);
        });
        let started = Instant::now();
        let outcomes = fixture.all(vec![call("p", "polite", json!({})), call("d", "deaf", json!({}))]).await;
        assert!(started.elapsed() < Duration::from_secs(5), "a tool that ignores its cancel is abandoned");
        for outcome in &outcomes {
            assert_eq!(outcome.error.as_ref().and_then(|e| e.cancel_cause()), Some(cause));
        }
        assert_eq!(fixture.counts.saw_cancel.load(Ordering::SeqCst), 1);
        assert!(outcomes[0].text().contains("politely"), "the tool's own last words are kept");
        let after = fixture.one("echo", json!({})).await;
        assert_eq!(after.error.map(|e| e.kind()), Some(ErrorKind::Canceled), "nothing starts after a cancel");
    }
}

#[tokio::test]
async fn a_dropped_caller_cancels_its_tool() {
    let fixture = fixture(|_| ()).await;
    let call = fixture.one("polite", json!({}));
    assert!(tokio::time::timeout(Duration::from_millis(30), call).await.is_err());
    for _ in 0..100 {
        if fixture.counts.saw_cancel.load(Ordering::SeqCst) == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the tool never saw that its caller was gone");
}

#[tokio::test]
async fn a_large_output_reads_back_by_handle() {
    let fixture = fixture(|options| options.defaults.tool_response_max_bytes = Some(1000)).await;
    let outcome = fixture.one("big", json!({"n": 1000})).await;
    assert!(outcome.ok);
    let text = outcome.text();
    assert!(text.len() < 1200 && text.contains("output__read"), "{text}");
    let note = outcome.extras.get("tool_output").expect("note");
    assert_eq!((note["bytes"].as_u64(), note["lines"].as_u64()), (Some(11_000), Some(1000)));
    let handle = note["handle"].as_str().expect("handle");
    assert!(text.contains(handle));
    let slice =
        fixture.executor.services().outputs.read(&fixture.run.session.id, handle, 10_989, 100).await.expect("slice");
    assert_eq!((slice.text.as_str(), slice.next_offset), ("0123456789\n", 11_000));
    let small = fixture.one("big", json!({"n": 10})).await;
    assert_eq!(small.text().len(), 110);
}

#[tokio::test]
async fn policy_and_approval_decide_before_anything_runs() {
    let always = || ApprovalDecision::Always;
    let deny = ApprovalDecision::Deny { reason: "not today".into() };
    for (decision, ok, kind, ran, asked) in [
        (ApprovalDecision::Approve, true, None, 2, 2),
        (always(), true, None, 2, 1),
        (deny, false, Some(ErrorKind::Denied), 0, 2),
        (ApprovalDecision::Skip, true, None, 0, 2),
        (ApprovalDecision::Later, false, Some(ErrorKind::Denied), 0, 2),
    ] {
        let mut fixture = fixture(|_| ()).await;
        let approver = Arc::new(FakeApprover::saying(decision.clone()));
        fixture.run.policy = Arc::new(Policy::of(Profile::Ask));
        fixture.run.approver = Arc::clone(&approver) as _;
        assert!(fixture.one("echo", json!({})).await.ok, "a tool that only reads is not asked for");
        for _ in 0..2 {
            let outcome = fixture.one("write", json!({})).await;
            assert_eq!((outcome.ok, outcome.error.as_ref().map(|e| e.kind())), (ok, kind), "{decision:?}");
            assert_eq!(outcome.pending.is_some(), decision == ApprovalDecision::Later);
        }
        assert_eq!(fixture.counts.ran.load(Ordering::SeqCst), ran + 1, "{decision:?}");
        assert_eq!(approver.count(), asked, "{decision:?}");
    }
}

#[tokio::test]
async fn a_denial_without_approver_names_the_remedy() {
    let mut fixture = fixture(|_| ()).await;
    fixture.run.policy = Arc::new(Policy::of(Profile::Ask));
    let outcome = fixture.one("write", json!({})).await;
    let reported = outcome.error.as_ref().map(ToolError::message).unwrap_or_default();
    assert!(reported.contains("--policy trusted"), "{reported}");
    let short = "(tool failed: denied: the call needs a person's approval, and nobody can be asked)";
    assert_eq!(outcome.text(), short, "what a model cannot do is not told to it");
}

#[tokio::test]
async fn events_and_progress_reach_their_observers() {
    let redactor = Arc::new(FakeRedactor("hunter2"));
    let mut fixture = fixture(|options| Arc::make_mut(&mut options.services).redactor = redactor).await;
    let mut events = fixture.events.subscribe();
    let got: Arc<Mutex<Vec<Partial>>> = Arc::default();
    struct PartialLog(Arc<Mutex<Vec<Partial>>>);
    impl toolwright_core::context::PartialSink for PartialLog {
        fn send(&self, partial: Partial) {
            self.0.lock().expect("lock").push(partial);
        }
    }
    let sink = Arc::clone(&got);
    fixture.run.partials = Some(Arc::new(move |_: &CallId| Arc::new(PartialLog(Arc::clone(&sink))) as _));
    fixture.one("progress", json!({"says": ["a.rs:1: hun", "ter2 is it\n", "last"]})).await;
    let (mut names, mut seen) = (Vec::new(), String::new());
    while let Ok(event) = events.try_recv().map(Arc::unwrap_or_clone) {
        names.push(match event {
            Event::ToolStarted { .. } => "started",
            Event::ToolPartial { partial: Partial::Text(text), .. } => {
                seen.push_str(&text);
                continue;
            }
            Event::ToolPartial { .. } => "partial",
            Event::ToolFinished { ok: true, .. } => "finished",
            other => panic!("unexpected {other:?}"),
        });
    }
    assert_eq!(names, ["started", "partial", "finished"]);
    let got = got.lock().expect("lock");
    let text = |partial: &Partial| if let Partial::Text(text) = partial { Some(text.clone()) } else { None };
    let reported: String = got.iter().filter_map(text).collect();
    assert_eq!(
        (reported.as_str(), &seen),
        ("a.rs:1: [secret] is it\nlast", &reported),
        "a secret in two pieces is taken out"
    );
    assert_eq!(got.iter().filter(|partial| text(partial).is_none()).count(), 1);
}

#[tokio::test]
async fn the_journal_knows_every_dispatch_and_outcome() {
    let mut fixture = fixture(|_| ()).await;
    fixture.store.save_run("r", &json!({})).await.expect("save");
    fixture.run.journal = Some((Arc::clone(&fixture.store) as _, "r".into()));
    fixture.all(vec![call("a", "echo", json!({})), call("b", "nope", json!({}))]).await;
    let run = fixture.store.run("r").await.expect("run").expect("saved");
    let mut calls: Vec<_> = run.calls.iter().map(|(id, o)| (id.as_str(), o.as_ref().map(|o| o.ok))).collect();
    calls.sort_unstable();
    assert_eq!(calls, [("a", Some(true)), ("b", Some(false))]);
}

#[tokio::test]
async fn always_on_a_shell_covers_one_command() {
    let mut fixture = fixture(|_| ()).await;
    let approver = Arc::new(FakeApprover::saying(ApprovalDecision::Always));
    fixture.run.policy = Arc::new(Policy::of(Profile::Ask));
    fixture.run.approver = Arc::clone(&approver) as _;
    for (n, asked) in [(1, 1), (1, 1), (2, 2)] {
        assert!(fixture.one("shell", json!({"n": n})).await.ok);
        assert_eq!(approver.count(), asked, "{n}");
    }
}

#[tokio::test]
async fn always_approval_stays_within_its_scope() {
    for order in [[1, 9], [9, 1]] {
        let mut fixture = fixture(|_| ()).await;
        let approver = Arc::new(FakeApprover::saying(ApprovalDecision::Always));
        fixture.run.policy = Arc::new(Policy::of(Profile::Ask));
        fixture.run.approver = Arc::clone(&approver) as _;
        for (n, asked) in [(order[0], 1), (order[1], 2), (order[0], 2), (order[1], 2)] {
            assert!(fixture.one("write", json!({"n": n})).await.ok);
            assert_eq!(approver.count(), asked, "{n} of {order:?}");
        }
    }
}

#[tokio::test]
async fn a_dropped_call_holds_its_lock_until_ended() {
    let fixture = fixture(|_| ()).await;
    let dropped = fixture.one("exclusive", json!({"n": 100}));
    assert!(tokio::time::timeout(Duration::from_millis(30), dropped).await.is_err());
    assert!(fixture.one("exclusive", json!({"n": 1})).await.ok);
    assert_eq!(fixture.counts.most.load(Ordering::SeqCst), 1, "they never ran at once");
}

#[tokio::test]
async fn a_call_never_started_shows_its_arguments() {
    let mut fixture = fixture(|_| ()).await;
    fixture.run.policy = Arc::new(Policy::of(Profile::Ask));
    let mut events = fixture.events.subscribe();
    for (name, arguments, shown) in [
        ("nope", json!({"a": 1}), Some(("t__nope", json!({"a": 1})))),
        ("echo", json!({"n": "x"}), Some(("t__echo", json!({"n": "x"})))),
        ("write", json!({"n": 1}), Some(("t__write", json!({"n": 1})))),
        ("echo", json!({"n": 1}), None),
    ] {
        fixture.one(name, arguments).await;
        let refused =
            std::iter::from_fn(|| events.try_recv().ok().map(Arc::unwrap_or_clone)).find_map(|event| match event {
                Event::ToolFinished { refused, .. } => Some(refused),
                _ => None,
            });
        let refused = refused.expect("finished").map(|refused| (refused.name, refused.arguments));
        assert_eq!(refused, shown.map(|(name, arguments)| (name.to_owned(), arguments)));
    }
}

#[tokio::test]
async fn a_provider_counts_its_running_calls() {
    let fixture = fixture(|_| ()).await;
    let provider = Arc::clone(&fixture.run.snapshot.list()[0].provider);
    assert_eq!(fixture.executor.calls_on(&provider), 0);
    let call = fixture.one("slow", json!({"n": 50}));
    let look = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        fixture.executor.calls_on(&provider)
    };
    let (outcome, under_way) = tokio::join!(call, look);
    assert!(outcome.ok);
    assert_eq!((under_way, fixture.executor.calls_on(&provider)), (1, 0));
}

struct DenyingGuard;

#[async_trait]
impl InputGuard for DenyingGuard {
    async fn judge(&self, _call: &ValidCall, _context: &GuardContext<'_>) -> Result<GuardVerdict, String> {
        Ok(GuardVerdict::Deny("never".into()))
    }
}

#[tokio::test]
async fn a_later_guard_may_deny() {
    let fixture = fixture(|options| {
        options.guards.push(GuardBinding::new("numbers", Arc::new(Guard)));
        options.guards.push(GuardBinding::new("never", Arc::new(DenyingGuard)));
    })
    .await;
    let text = fixture.one("echo", json!({"n": 4})).await.text();
    assert!(text.contains("never"), "{text}");
}

struct Guard;

#[async_trait]
impl InputGuard for Guard {
    async fn judge(&self, call: &ValidCall, _context: &GuardContext<'_>) -> Result<GuardVerdict, String> {
        Ok(match call.arguments.get("n").and_then(Value::as_u64) {
            Some(1) => GuardVerdict::Deny("ones are bad".into()),
            Some(2) => GuardVerdict::Rewrite(json!({"n": 22})),
            Some(3) => GuardVerdict::Rewrite(json!({"n": "three"})),
            Some(4) => GuardVerdict::Ask("fours are odd".into()),
            _ => GuardVerdict::Allow,
        })
    }
}

#[tokio::test]
async fn guards_deny_ask_and_rewrite_before_policy() {
    let fixture = fixture(|options| options.guards.push(GuardBinding::new("numbers", Arc::new(Guard)))).await;
    for (n, expect) in [
        (0, "echo 0"),
        (1, "(tool failed: denied: ones are bad)"),
        (2, "echo 22"),
        (3, "something invalid"),
        (4, "(tool failed: denied: the call needs a person's approval, and nobody can be asked)"),
    ] {
        let text = fixture.one("echo", json!({"n": n})).await.text();
        assert!(text.contains(expect), "{n}: {text}");
    }
}

#[tokio::test]
async fn a_failure_is_redacted_before_it_is_cut() {
    let fixture =
        fixture(|options| Arc::make_mut(&mut options.services).redactor = Arc::new(FakeRedactor("hunter2"))).await;
    for before in 380..420 {
        let says = format!("{}hunter2{}", "x".repeat(before), "y".repeat(600));
        let failed = fixture.one("fails", json!({"says": says})).await;
        assert_eq!(failed.text(), says, "the model gets what the tool says");
        let error = failed.error.expect("an error");
        assert!(error.message().len() < 700 && !error.message().contains("hu"), "{}", error.message());
    }
}
