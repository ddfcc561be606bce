//! `bench`: what it costs, what it keeps, and where.

use std::time::Duration;

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Answer, Asked, Fault, Reply, Script, Tokens, Turn};

use crate::agent::{ended, report, start};
use crate::bench::{Lab, PRICED, RUBRIC, answer, cases, classified, script};
use crate::cli::{program, stderr};

/// As a server that says nothing of what was used.
fn silent(_: &Asked) -> Reply {
    let Reply::Answer(answer) = classified(0) else { panic!("no answer") };
    let tokens = Tokens { input: 0, output: 0, ..Tokens::default() };
    Reply::Answer(Answer { tokens, ..answer })
}

fn charged(lab: &Lab) -> Vec<f64> {
    let lines = lab.lines();
    let of = |line: &String| serde_json::from_str::<Value>(line).expect("json")["charged_usd"].as_f64();
    lines.iter().skip(1).filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_does_not_report_is_charged_by_its_estimate() {
    let lab = Lab::new(PRICED, Script::from(vec![Turn::computed(silent)]).repeating(), &cases(9, "")).await;
    let capped = ["--models", "openai/good", "--max-cost", "90", "--concurrency", "1", "--json", "--full"];
    let output = lab.run(&capped).await;
    let row = &report(&output)[0];
    let done = row["done"].as_u64().expect("a count");
    assert_eq!((output.status.code(), &row["cost"]), (Some(1), &Value::Null), "{row} {}", stderr(&output));
    assert!(done > 0 && done < 9 && charged(&lab).iter().all(|cost| *cost > 5.0), "{row} {:?}", charged(&lab));
    lab.run(&capped).await;
    assert_eq!(lab.asked("good") as u64, done, "it counts in the next run, too");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_breaks_off_on_its_way_back_is_charged() {
    let cut = Turn::computed(answer).with_fault(Fault::CutAfter(2));
    let lab = Lab::new(PRICED, Script::from(vec![cut]).repeating(), &cases(9, "")).await;
    let capped = ["--models", "openai/good", "--max-cost", "90", "--concurrency", "1"];
    let output = lab.run(&capped).await;
    assert!(stderr(&output).contains("the bound is reached"), "{}", stderr(&output));
    let made = lab.asked("good");
    assert!(made > 0 && made < 4 && charged(&lab).len() == made, "{made} {:?}", charged(&lab));
    lab.run(&capped).await;
    assert_eq!(lab.asked("good"), made);
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_requests_keep_within_their_bound() {
    let lab = Lab::new("models: {openai: {retry: {attempts: 2}}}\n", script(), &cases(9, "")).await;
    let output = lab.run(&["--models", "openai/down", "--max-requests", "9"]).await;
    assert_eq!((output.status.code(), lab.asked("down")), (Some(1), 6), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_does_not_hold_up_the_others() {
    let large = "wants 1 ".repeat(1000);
    let large = format!("  - input: {{request: '{large}', suggestions: [a, b]}}\n    checks: []\n");
    let text = cases(2, "").replace("cases:\n", &format!("cases:\n{large}"));
    let lab = Lab::new(PRICED, script(), &text).await;
    let output = lab.run(&["--models", "openai/good", "--max-cost", "150", "--concurrency", "1"]).await;
    assert_eq!((output.status.code(), lab.asked("good")), (Some(1), 2), "{}", stderr(&output));
    assert!(stderr(&output).contains("do not fit within it: 1; "), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_judge_that_fails_is_given_up_whatever_else_succeeds() {
    let judged = cases(12, RUBRIC);
    let plain = cases(12, "").replace("id: c", "id: p").replace("'case ", "'plain ");
    // One of each in turn.
    let items = |text: &str| text.split("  - id").skip(1).map(|item| format!("  - id{item}")).collect::<Vec<_>>();
    let mixed: String = items(&judged).into_iter().zip(items(&plain)).map(|(a, b)| a + &b).collect();
    let lab = Lab::new(PRICED, script(), &format!("tool: llm:classify\ncases:\n{mixed}")).await;
    let arguments =
        ["--models", "openai/good", "--judge", "openai/down", "--max-cost", "1000000", "--concurrency", "1"];
    let output = lab.run(&arguments).await;
    assert_eq!((output.status.code(), lab.asked("down")), (Some(1), 5), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_for_whoever_listens_or_not() {
    let slow = Script::from(vec![Turn::computed(answer).with_delay(Duration::from_millis(200))]).repeating();
    let lab = Lab::new(PRICED, slow, &cases(2, "")).await;
    let arguments = ["bench", "--cases", "cases.yaml", "--models", "openai/good", "--max-cost", "1000"];
    let files = ["--html", "page.html", "--compat", "compat.json"];
    let mut child = start(&lab.place, &lab.variables, &[&arguments[..], &files].concat());
    drop(child.stdout.take());
    child.wait().expect("ends");
    assert!(lab.place.read("project/page.html").contains("<svg"));
    assert!(lab.place.read("project/compat.json").contains("openai/good"));
}

#[tokio::test(flavor = "multi_thread")]
async fn measurements_stay_and_count_for_what_is_the_same() {
    let lab = Lab::new(PRICED, script(), &cases(3, "")).await;
    let models = ["--models", "openai/good", "--max-cost", "1000"];
    let output = lab.run(&models).await;
    assert!(output.status.success() && stderr(&output).contains("no compat file is written"), "{}", stderr(&output));
    assert!(!lab.place.path("home/.local/state/toolwright/compat.json").exists());
    lab.place.write("project/cases.yaml", &cases(3, "").replace("case 1: wants", "another: wants"));
    lab.run(&models).await;
    assert_eq!(lab.asked("good"), 4, "only what was edited is measured");
    let before = lab.lines();
    lab.place.write("project/toolwright.yaml", "llm: {compat: mine.json}\n");
    let output = lab.run(&[&models[..], &["--fresh"]].concat()).await;
    assert_eq!(
        (output.status.code(), lab.lines()),
        (Some(2), before.clone()),
        "prices are wanted, and nothing is lost"
    );
    lab.place.write("project/toolwright.yaml", &format!("llm: {{compat: mine.json}}\n{PRICED}"));
    let output = lab.run(&[&models[..], &["--fresh"]].concat()).await;
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!((lab.asked("good"), &lab.lines()[..before.len()]), (7, &before[..]));
    assert!(lab.place.read("project/mine.json").contains("openai/good"));
    let read = ["bench", "--compat", "mine.json"];
    for more in ["--fresh", "--self-judge", "--repeat=2"] {
        let output = program(&lab.place).args([&read[..], &[more]].concat()).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{more}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_do_not_stay_in_notes() {
    let secret = format!("ghp_{}", "aB3dE5fG7h".repeat(4).get(..36).expect("long enough"));
    let told = secret.clone();
    let tell = move |_: &Asked| {
        let reasoning = format!("{} {told}", "x".repeat(60));
        Reply::text(json!({"reasoning": reasoning, "selected_index": 0, "confidence": 0.9}).to_string())
    };
    let check = "      - exact: {path: /reasoning, equals: nothing}\n";
    let lab = Lab::new(PRICED, Script::from(vec![Turn::computed(tell)]).repeating(), &cases(1, check)).await;
    let arguments = ["bench", "--cases", "cases.yaml", "--models", "openai/good", "--max-cost", "1000"];
    let output = ended(start(&lab.place, &lab.variables, &[&arguments[..], &["--html", "page.html"]].concat())).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let (lines, page) = (lab.lines().join("\n"), lab.place.read("project/page.html"));
    assert!(lines.contains("not \\\"nothing\\\""), "{lines}");
    assert!(!lines.contains("ghp_") && !page.contains("ghp_"), "{lines}");
}
