//! Calls that may have an effect are in the ledger before they have one, and people's time is not their tools'.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::json;
use toolwright_core::approval::ApprovalDecision;
use toolwright_core::event::Event;
use toolwright_core::store::{LedgerMode, RUNNING};
use toolwright_core::{ErrorKind, Policy, Profile};
use toolwright_testkit::{FakeApprover, FakeCallClient, FakeLedger};

use crate::fixture::{Fixture, fixture};

async fn with(mode: LedgerMode, ledger: FakeLedger) -> (Fixture, Arc<FakeLedger>) {
    let ledger = Arc::new(ledger);
    let kept = Arc::clone(&ledger);
    let fixture = fixture(|options| (options.ledger, options.defaults.ledger) = (kept as _, mode)).await;
    (fixture, ledger)
}

#[tokio::test]
async fn calls_with_effect_are_recorded_before_they_run() {
    for (mode, tool, expect) in [
        (LedgerMode::BestEffort, "write", 1),
        (LedgerMode::BestEffort, "shell", 1),
        (LedgerMode::BestEffort, "echo", 0),
        (LedgerMode::Required, "echo", 1),
    ] {
        let (fixture, ledger) = with(mode, FakeLedger::default()).await;
        assert!(fixture.one(tool, json!({"n": 1})).await.ok);
        let (begun, ended) = (ledger.begun(), ledger.ended());
        assert_eq!((begun.len(), ended.len()), (expect, 1), "{tool}");
        for entry in &*begun {
            assert_eq!((&entry.op, &*entry.status, &entry.name), (&ended[0].op, RUNNING, &ended[0].name));
        }
    }
}

#[tokio::test]
async fn results_and_errors_are_recorded_once() {
    let (fixture, ledger) = with(LedgerMode::BestEffort, FakeLedger::default()).await;
    assert!(fixture.one("echo", json!({"n": 1})).await.ok);
    assert!(!fixture.one("fails", json!({})).await.ok);
    let ended = ledger.ended();
    let kept: Vec<_> = ended.iter().map(|entry| (entry.result.as_deref(), entry.note.as_deref())).collect();
    assert_eq!(kept, [(Some("echo 1"), None), (None, Some("it did not work"))]);
}

#[tokio::test]
async fn a_required_ledger_refuses_unrecorded_calls() {
    for (mode, ran) in [(LedgerMode::BestEffort, 1), (LedgerMode::Required, 0)] {
        let (fixture, ledger) = with(mode, FakeLedger::full()).await;
        let outcome = fixture.one("write", json!({"n": 1})).await;
        assert_eq!((fixture.counts.ran.load(Ordering::SeqCst), outcome.ok), (ran, ran == 1));
        assert_eq!(ledger.ended().len(), 1);
        let Some(error) = &outcome.error else { continue };
        assert_eq!((error.kind(), error.is_retryable()), (ErrorKind::LimitExceeded, true));
        for part in ["the disk is full", "/state/x", "defaults.ledger: required"] {
            assert!(error.message().contains(part), "{}", error.message());
        }
        let said = outcome.text();
        assert!(said.contains("cannot be recorded") && !said.contains("/state/x"), "{said}");
        let read = fixture.one("echo", json!({})).await;
        assert_eq!(read.error.map(|error| error.kind()), Some(ErrorKind::LimitExceeded), "reads are calls too");
    }
}

#[tokio::test]
async fn waits_for_people_are_no_tool_latency() {
    let took = Duration::from_millis(1500);
    let (mut fixture, ledger) = with(LedgerMode::BestEffort, FakeLedger::default()).await;
    fixture.run.policy = Arc::new(Policy::of(Profile::Ask));
    fixture.run.approver = Arc::new(FakeApprover::saying(ApprovalDecision::Approve).after(took));
    fixture.run.client = Arc::new(FakeCallClient::saying(json!({})).with(|client| client.delay = took));
    let mut events = fixture.events.subscribe();
    // One is asked about before it runs, the other asks while it does.
    for tool in ["write", "asks"] {
        let outcome = fixture.one(tool, json!({"n": 9})).await;
        assert!(outcome.ok && outcome.latency < took, "{tool}: {:?}", outcome.latency);
        assert!(outcome.extras["person_ms"].as_u64().is_some_and(|ms| ms >= 1400), "{:?}", outcome.extras);
        let entry = ledger.ended().pop().expect("entered");
        let (latency, person) = (Duration::from_micros(entry.latency_us), Duration::from_micros(entry.person_us));
        assert!(latency < took && person.as_millis() >= 1400, "{tool}: {latency:?}, {person:?}");
        let reported = loop {
            if let Event::ToolFinished { latency_us, person_us, run_us, .. } = &*events.recv().await.expect("an event")
            {
                break (*latency_us, *person_us, *run_us);
            }
        };
        assert_eq!((reported.0, reported.1), (entry.latency_us, entry.person_us), "{tool}");
        assert!(reported.2 <= reported.0, "{tool}: {reported:?}");
    }
    let plain = fixture.one("echo", json!({})).await;
    assert!(!plain.extras.contains_key("person_ms"));
}
