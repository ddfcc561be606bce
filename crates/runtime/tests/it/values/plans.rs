//! Plans: calls that start as soon as the calls that they wait for have ended.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::canonical::canonical_json;
use toolwright_core::catalogue::{ProviderKind, Snapshot};
use toolwright_core::error::ErrorKind;
use toolwright_core::outcome::STANDS_IN;
use toolwright_core::plan::{ExclusionReason, PlanDocument};
use toolwright_core::{CallId, Effects, Outcome, RunInput, ToolDefinition, ToolError, ToolOutput};
use toolwright_runtime::{RunContext, RunVariables};
use toolwright_testkit::{FakeProvider, definition, own};

use crate::fixture::{Fixture, fixture};

/// The values of a plan, and in which order its calls began and ended.
struct PlanTrace {
    values: Arc<RunVariables>,
    steps: Mutex<Vec<String>>,
}

/// Numbers from a seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Runs a plan of calls of `t__step`, whose `n` is their place: each takes as long as `delays` says, fails where it says
/// `fails`, and else answers with its arguments.
async fn run(fixture: &Fixture, plan: &Value, delays: Vec<u64>) -> (Vec<Outcome>, Arc<PlanTrace>) {
    run_excluding(fixture, plan, delays, Vec::new()).await
}

/// [`run`], where some of the calls are not to run.
async fn run_excluding(
    fixture: &Fixture,
    plan: &Value,
    delays: Vec<u64>,
    excluded: Vec<(CallId, ExclusionReason)>,
) -> (Vec<Outcome>, Arc<PlanTrace>) {
    let plan = PlanDocument::of_value(plan.clone()).expect("a plan");
    let instances = [("①".to_owned(), json!({})), ("②".to_owned(), json!({}))].into_iter().collect();
    let values = RunVariables::in_memory(RunInput { foreign: true, instances, ..RunInput::default() });
    let kept = Arc::new(PlanTrace { values: Arc::clone(&values), steps: Mutex::default() });
    let (log, metas) = (Arc::clone(&kept), plan.calls.iter().map(|call| call.meta.clone()).collect::<Vec<_>>());
    // Tools that only read wait for no store: with the clock paused, a wait for a thread would end at once.
    let step = ToolDefinition { effects: Effects::READ, ..definition("t:step@1.0.0") };
    let provider = FakeProvider::new("steps", ProviderKind::Native, vec![own(step)]);
    let provider = provider.with_future(move |call, _| {
        let n = usize::try_from(call.arguments["n"].as_u64().expect("its place")).expect("small");
        let (log, meta, delay) = (Arc::clone(&log), metas[n].clone(), delays.get(n).copied().unwrap_or_default());
        Box::pin(async move {
            log.steps.lock().expect("steps").push(format!("begin {n}"));
            tokio::time::sleep(Duration::from_millis(delay)).await;
            log.steps.lock().expect("steps").push(format!("end {n}"));
            if call.arguments["fails"] == true {
                return Err(ToolError::new(ErrorKind::ExecutionError, "it broke"));
            }
            let mut output = call.arguments.clone();
            if let Some(taken) = output.get_mut("take") {
                // Not all of it: values grow by what they are made of.
                *taken = json!(canonical_json(taken).len());
            }
            if meta.output_path.is_some() && n % 3 == 2 {
                output = json!([n]);
            }
            let output = ToolOutput::text(output.to_string());
            Ok(if call.arguments["elsewhere"] == true { output.with_extra(STANDS_IN, "job") } else { output })
        })
    });
    let run = RunContext {
        variables: Some(values),
        excluded: excluded.into(),
        ..fixture.on(Snapshot::build(&[Arc::new(provider).listing()]))
    };
    (fixture.executor.run_calls(plan.tool_calls(), &run).await, kept)
}

/// State and outcomes, byte for byte.
fn seen(outcomes: &[Outcome], kept: &PlanTrace) -> String {
    let texts: Vec<_> = outcomes.iter().map(|outcome| (outcome.call_id.as_str(), outcome.ok, outcome.text())).collect();
    let states: Vec<Value> = [None, Some("①"), Some("②")].map(|instance| kept.values.state(instance)).into();
    format!("{states:?} {texts:?}")
}

async fn fixture_of_plans() -> Fixture {
    fixture(|options| options.defaults.calls_per_turn = 200).await
}

#[tokio::test(start_paused = true)]
async fn calls_start_when_their_inputs_are_there() {
    let fixture = fixture_of_plans().await;
    let plan = json!([
        {"_tool": "t__step", "n": 0, "_outputPath": "slow"},
        {"_tool": "t__step", "n": 1, "_outputPath": "fast"},
        {"_tool": "t__step", "n": 2, "of": "†state.fast.n"},
        {"_tool": "t__step", "n": 3, "of": "†state.slow.n"},
    ]);
    let (outcomes, kept) = run(&fixture, &plan, vec![100, 10, 20, 5]).await;
    assert!(outcomes.iter().all(|outcome| outcome.ok), "{outcomes:?}");
    assert_eq!(outcomes[3].text(), r#"{"n":3,"of":0}"#);
    let steps = kept.steps.lock().expect("steps").join(", ");
    assert_eq!(steps, "begin 0, begin 1, end 1, begin 2, end 2, end 0, begin 3, end 3");
}

#[tokio::test(start_paused = true)]
async fn a_failed_call_blocks_only_what_needs_it() {
    let fixture = fixture_of_plans().await;
    let plan = json!([
        {"_tool": "t__step", "n": 0, "_outputPath": "bad", "fails": true},
        {"_tool": "t__step", "n": 1, "_outputPath": "after", "of": "†state.bad.n"},
        {"_tool": "t__step", "n": 2, "of": "†state.after.n"},
        {"_tool": "t__step", "n": 3, "of": "†state.bad.n || 7"},
        {"_tool": "t__step", "n": 4},
        {"_tool": "t__step", "n": 5, "_outputPath": "bad"},
    ]);
    let (outcomes, _) = run(&fixture, &plan, vec![10]).await;
    let ok: Vec<bool> = outcomes.iter().map(|outcome| outcome.ok).collect();
    assert_eq!(ok, [false, false, false, true, true, true]);
    assert_eq!(outcomes[1].text(), "(tool failed: not run: it needs the result of call_0 (t__step), which failed)");
    assert!(outcomes[2].text().contains("call_1 (t__step)"), "{}", outcomes[2].text());
    assert_eq!(outcomes[3].text(), r#"{"n":3,"of":7}"#);
}

#[tokio::test(start_paused = true)]
async fn a_call_without_a_value_fails_its_readers() {
    let fixture = fixture_of_plans().await;
    let plan = json!([
        {"_tool": "t__step", "n": 0, "_outputPath": "job", "elsewhere": true},
        {"_tool": "t__step", "n": 1, "of": "†state.job.n"},
        {"_tool": "t__step", "n": 2, "of": "†state.job.n || 7"},
    ]);
    let (outcomes, _) = run(&fixture, &plan, vec![10]).await;
    assert!(outcomes[1].text().contains("call_0 (t__step), which goes on as a job"), "{}", outcomes[1].text());
    assert_eq!(outcomes[2].text(), r#"{"n":2,"of":7}"#);
}

#[tokio::test(start_paused = true)]
async fn calls_that_do_not_run_count_for_others() {
    let fixture = fixture_of_plans().await;
    let plan = json!([
        {"_tool": "t__step", "n": 0, "_outputPath": "held"},
        {"_tool": "t__step", "n": 1, "_outputPath": "lost"},
        {"_tool": "t__step", "n": 2, "of": "†state.held.n"},
        {"_tool": "t__step", "n": 3, "of": "†state.lost.n"},
        {"_tool": "t__step", "n": 4, "_outputPath": "held"},
        {"_tool": "t__step", "n": 5},
    ]);
    let excluded = vec![
        (CallId::new("call_0"), ExclusionReason::Held),
        (CallId::new("call_1"), ExclusionReason::Lost("which was denied".into())),
    ];
    let (outcomes, kept) = run_excluding(&fixture, &plan, Vec::new(), excluded).await;
    let ended: Vec<&str> = outcomes.iter().map(|outcome| outcome.call_id.as_str()).collect();
    assert_eq!(ended, ["call_3", "call_5"], "the others wait for the held call");
    assert!(outcomes[0].text().contains("call_1 (t__step), which was denied"), "{}", outcomes[0].text());
    assert_eq!(kept.steps.lock().expect("steps").join(", "), "begin 5, end 5");
}

#[tokio::test(start_paused = true)]
async fn writers_of_one_path_keep_plan_order() {
    let fixture = fixture_of_plans().await;
    let plan = json!([
        {"_tool": "t__step", "n": 0, "_outputPath": "x"},
        {"_tool": "t__step", "n": 1, "of": "†state.x.n"},
        {"_tool": "t__step", "n": 2, "_outputPath": "x", "_outputMethod": "merge"},
        {"_tool": "t__step", "n": 3, "of": "†state.x"},
    ]);
    let (outcomes, _) = run(&fixture, &plan, vec![50, 40, 0, 1, 1]).await;
    let texts: Vec<String> = outcomes.iter().map(Outcome::text).collect();
    assert_eq!(texts[1], r#"{"n":1,"of":0}"#);
    assert_eq!(texts[3], r#"{"n":3,"of":[2]}"#);
}

/// A random plan of up to ten calls: they write, add and read, and some fail.
fn random(numbers: &mut Numbers) -> Value {
    let paths = ["a", "a.b", "a.c", "d", "e.f"];
    let methods = ["set", "merge", "push", "assign", "concat"];
    let pick = |numbers: &mut Numbers, from: &[&'static str]| from[numbers.below(from.len() as u64) as usize];
    let count = 2 + numbers.below(9);
    let call = |n: u64, numbers: &mut Numbers| {
        let mut call = json!({"_tool": "t__step", "n": n});
        if numbers.below(3) > 0 {
            call["_outputPath"] = json!(pick(numbers, &paths));
            call["_outputMethod"] = json!(pick(numbers, &methods));
        }
        if numbers.below(3) == 0 {
            call["_instance"] = json!(pick(numbers, &["①", "②"]));
        }
        if numbers.below(2) > 0 {
            let fallback = if numbers.below(2) > 0 { " || 0" } else { "" };
            let gate =
                if numbers.below(4) == 0 { format!("†state.{} && ", pick(numbers, &paths)) } else { String::new() };
            call["take"] = json!(format!("{gate}†state.{}{fallback}", pick(numbers, &paths)));
        }
        if numbers.below(8) == 0 {
            call["fails"] = json!(true);
        }
        call
    };
    (0..count).map(|n| call(n, numbers)).collect()
}

#[tokio::test(start_paused = true)]
async fn any_schedule_leaves_the_same_state() {
    let fixture = fixture_of_plans().await;
    let mut numbers = Numbers(0x5eed);
    for _ in 0..100 {
        let plan = random(&mut numbers);
        let (outcomes, kept) = run(&fixture, &plan, Vec::new()).await;
        let expect = seen(&outcomes, &kept);
        for _ in 0..10 {
            let delays: Vec<u64> = (0..10).map(|_| numbers.below(50)).collect();
            let (outcomes, kept) = run(&fixture, &plan, delays.clone()).await;
            assert_eq!(seen(&outcomes, &kept), expect, "{plan} {delays:?}");
        }
    }
}
