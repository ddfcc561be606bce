//! `bench`: what it costs, what it keeps, and where.

use std::net::TcpListener;
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_testkit::model_server::{Answer, Fault, RecordedRequest, Reply, Script, Tokens, Turn};

use crate::agents::agent::{ended, report, start};
use crate::command_line::cli::{program, stderr};
use crate::develop::bench::{BenchFixture, PRICED, RUBRIC, answer, cases, classified, script};

/// As a server that says nothing of what was used.
fn silent(_: &RecordedRequest) -> Reply {
    let Reply::Answer(answer) = classified(0) else { panic!("no answer") };
    let tokens = Tokens { input: 0, output: 0, ..Tokens::default() };
    Reply::Answer(Answer { tokens, ..answer })
}

fn charged(setup: &BenchFixture) -> Vec<f64> {
    let lines = setup.lines();
    let of = |line: &String| serde_json::from_str::<Value>(line).expect("json")["charged_usd"].as_f64();
    lines.iter().skip(1).filter_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn unreported_usage_is_charged_by_estimate() {
    let setup = BenchFixture::new(PRICED, Script::from(vec![Turn::computed(silent)]).repeating(), &cases(9, "")).await;
    let capped = ["--models", "openai/good", "--max-cost", "90", "--concurrency", "1", "--json", "--full"];
    let output = setup.run(&capped).await;
    let row = &report(&output)[0];
    let done = row["done"].as_u64().expect("a count");
    assert_eq!((output.status.code(), &row["cost"]), (Some(1), &Value::Null), "{row} {}", stderr(&output));
    assert!(done > 0 && done < 9 && charged(&setup).iter().all(|cost| *cost > 5.0), "{row} {:?}", charged(&setup));
    setup.run(&capped).await;
    assert_eq!(setup.asked("good") as u64, done, "it counts in the next run, too");
}

#[tokio::test(flavor = "multi_thread")]
async fn implausible_figures_keep_their_report_lines() {
    let boasts = |_: &RecordedRequest| {
        let Reply::Answer(answer) = classified(0) else { panic!("no answer") };
        Reply::Answer(Answer { tokens: Tokens { input: 1 << 62, output: 2 << 40, ..Tokens::default() }, ..answer })
    };
    let setup = BenchFixture::new("", Script::from(vec![Turn::computed(boasts)]).repeating(), &cases(2, "")).await;
    for _ in 0..2 {
        let output = setup.run(&["--models", "openai/good", "--max-requests", "9"]).await;
        assert_eq!((output.status.code(), setup.asked("good")), (Some(0), 2), "{}", stderr(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_answer_is_charged() {
    let cut = Turn::computed(answer).with_fault(Fault::CutAfter(2));
    let setup = BenchFixture::new(PRICED, Script::from(vec![cut]).repeating(), &cases(9, "")).await;
    let capped = ["--models", "openai/good", "--max-cost", "90", "--concurrency", "1"];
    let output = setup.run(&capped).await;
    assert!(stderr(&output).contains("the bound is reached"), "{}", stderr(&output));
    let made = setup.asked("good");
    assert!(made > 0 && made < 4 && charged(&setup).len() == made, "{made} {:?}", charged(&setup));
    setup.run(&capped).await;
    assert_eq!(setup.asked("good"), made);
}

/// A port at which nobody listens.
fn closed() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

#[tokio::test(flavor = "multi_thread")]
async fn unsent_requests_cost_nothing() {
    let dead = format!("{{api: openai_chat, base_url: 'http://127.0.0.1:{}/v1', api_key: sk-0123456789}}", closed());
    let prices = "prices: {input: 100000, output: 0}, retry: {attempts: 2}";
    let config = |dead_prices: &str| {
        format!(
            "models:\n  endpoints: {{dead: {dead}}}\n  dead: {{retry: {{attempts: 2}}, {dead_prices}}}\n  openai: \
             {{{prices}}}\n  openai/judge: {{prices: {{input: 50000, output: 0}}}}\n"
        )
    };
    // The model is dead, with a price and without one; then its judge is.
    for (dead_prices, models, judge, free) in [
        ("prices: {input: 100000, output: 0}", "dead/m", "openai/judge", true),
        ("", "dead/m", "openai/judge", true),
        ("prices: {input: 100000, output: 0}", "openai/good", "dead/m", false),
    ] {
        let setup = BenchFixture::new(&config(dead_prices), script(), &cases(3, RUBRIC)).await;
        let arguments = ["--models", models, "--judge", judge, "--max-requests", "100", "--max-cost", "1000000"];
        let output = setup.run(&[&arguments[..], &["--json", "--full"]].concat()).await;
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let lines: Vec<Value> =
            setup.lines().iter().skip(1).map(|line| serde_json::from_str(line).expect("json")).collect();
        assert_eq!((lines.len(), charged(&setup).len()), (3, 3), "{lines:?}");
        for line in lines {
            let own = line["cost_usd"].as_f64().expect("known");
            assert!(line["charged_usd"].as_f64() == Some(own) && (own == 0.0) == free, "{models} {judge}: {line}");
        }
        assert_eq!(setup.asked("judge"), 0, "{models} {judge}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_attempt_that_may_be_billed_is_charged() {
    let mut charges = Vec::new();
    for failures in 0..3 {
        let mut turns: Vec<Turn> = (0..failures).map(|_| Turn::error(503, "later")).collect();
        turns.push(Turn::computed(answer));
        let config = "models: {openai: {prices: {input: 100000, output: 0}, retry: {attempts: 3}}}\n";
        let setup = BenchFixture::new(config, Script::from(turns), &cases(1, "")).await;
        let output = setup.run(&["--models", "openai/good", "--max-cost", "1000"]).await;
        assert_eq!((output.status.code(), setup.asked("good")), (Some(0), failures + 1), "{}", stderr(&output));
        charges.push(charged(&setup)[0]);
    }
    let [known, once, twice] = charges[..] else { panic!("three runs: {charges:?}") };
    assert!(known > 0.0 && once > known && ((twice - once) - (once - known)).abs() < 1e-6, "{charges:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_requests_keep_within_their_bound() {
    let setup = BenchFixture::new("models: {openai: {retry: {attempts: 2}}}\n", script(), &cases(9, "")).await;
    let output = setup.run(&["--models", "openai/down", "--max-requests", "7"]).await;
    assert_eq!((output.status.code(), setup.asked("down")), (Some(1), 7), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_allowed_requests_are_used() {
    // Each call may take four attempts, and takes one.
    for (bound, concurrency) in [("1", "4"), ("3", "1"), ("6", "4")] {
        let setup = BenchFixture::new("", script(), &cases(9, "")).await;
        let output =
            setup.run(&["--models", "openai/good", "--max-requests", bound, "--concurrency", concurrency]).await;
        assert_eq!(
            (output.status.code(), setup.asked("good").to_string()),
            (Some(1), bound.to_owned()),
            "{}",
            stderr(&output)
        );
        let done = format!("{bound}/9");
        assert!(String::from_utf8_lossy(&output.stdout).contains(&done), "{bound}: {output:?}");
    }
    // One that would need more than is left is not measured, and nobody is to blame: the next run begins with it.
    let turns =
        Script::from(vec![Turn::computed(answer), Turn::error(503, "later"), Turn::computed(answer)]).repeating();
    let setup = BenchFixture::new("models: {openai: {retry: {attempts: 2}}}\n", turns, &cases(2, "")).await;
    let arguments = ["--models", "openai/good", "--max-requests", "2", "--concurrency", "1"];
    let output = setup.run(&arguments).await;
    assert_eq!((output.status.code(), setup.asked("good")), (Some(1), 2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("a call needed more requests than were left; see --max-requests"),
        "{}",
        stderr(&output)
    );
    let output = setup.run(&["--models", "openai/good", "--max-requests", "3"]).await;
    assert_eq!((output.status.code(), setup.asked("good")), (Some(0), 3), "{}", stderr(&output));
}

/// Two that end at once, over and over: each takes in what the other found.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_compat_writers_lose_nothing() {
    let setup = BenchFixture::new(PRICED, script(), &cases(2, "")).await;
    let models = ["good", "great", "fine", "fair"];
    let children = models.map(|model| {
        let (name, out) = (format!("openai/{model}"), format!("{model}.jsonl"));
        let arguments = ["bench", "--cases", "cases.yaml", "--max-cost", "1000", "--compat", "shared.json"];
        start(&setup.fixture, &setup.variables, &[&arguments[..], &["--models", &name, "--out", &out]].concat())
    });
    for child in children {
        let output = ended(child).await;
        assert!(output.status.success(), "{}", stderr(&output));
    }
    let found: Value = serde_json::from_str(&setup.fixture.read("project/shared.json")).expect("json");
    let found = &found["llm:classify@1.0.0"];
    for model in models {
        let name = format!("openai/{model}");
        assert!(found["scores"].get(&name).is_some(), "{found}");
        assert!(found["recommended"].as_array().is_some_and(|all| all.contains(&json!(name))), "{found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unwritable_reports_keep_the_measurements() {
    let setup = BenchFixture::new(PRICED, script(), &cases(2, "")).await;
    // A file stands where a folder would have to be.
    setup.fixture.write("project/file", "mine");
    let arguments = ["--models", "openai/good", "--max-cost", "1000", "--json"];
    let output = setup.run(&[&arguments[..], &["--compat", "file/c.json", "--html", "file/p.html"]].concat()).await;
    let stderr_text = stderr(&output);
    assert_eq!((output.status.code(), report(&output)[0]["score"].as_f64()), (Some(1), Some(100.0)), "{stderr_text}");
    assert!(
        stderr_text.contains("file/c.json is not written: ") && stderr_text.contains("file/p.html is not written: "),
        "{stderr_text}"
    );
    let output = setup.run(&[&arguments[..], &["--compat", "c.json"]].concat()).await;
    assert_eq!((output.status.code(), setup.asked("good")), (Some(0), 2), "{}", stderr(&output));
    assert!(setup.fixture.read("project/c.json").contains("openai/good"));
    assert_eq!(setup.fixture.read("project/file"), "mine");
}

/// A limit on the size of files does what a full disk does: a write fails, in the midst of a line.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_leaves_whole_lines() {
    const LIMIT: usize = 16 << 20;
    let setup = BenchFixture::new(PRICED, script(), &cases(6, "")).await;
    let before =
        setup.run(&["--models", "openai/good", "--max-cost", "1000", "--out", "m.jsonl", "--repeat", "1"]).await;
    assert!(before.status.success(), "{}", stderr(&before));
    // As if much else had been measured: the next line does not fit, but its beginning does.
    let own = setup.fixture.read("project/m.jsonl");
    let line = own.lines().nth(1).expect("a line");
    let key = serde_json::from_str::<Value>(line).expect("json")["key"].as_str().expect("a key").to_owned();
    let other = line.replace(&key, &"0".repeat(key.len()));
    let mut full = own.clone();
    while full.len() + other.len() + 1 + 50 < LIMIT {
        full.push_str(&other);
        full.push('\n');
    }
    setup.fixture.write("project/m.jsonl", &full);
    let mut shell = std::process::Command::new("sh");
    let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", LIMIT / 512);
    let inside = program(&setup.fixture);
    shell.arg("-c").arg(script).arg(inside.get_program()).current_dir(setup.fixture.project()).env_clear();
    shell.envs(inside.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.envs(setup.variables.iter().map(|(name, value)| (*name, value)));
    shell.args([
        "bench",
        "--cases",
        "cases.yaml",
        "--models",
        "openai/great",
        "--max-cost",
        "1000",
        "--out",
        "m.jsonl",
    ]);
    shell.args(["--concurrency", "1", "--json"]);
    let output = tokio::task::spawn_blocking(move || shell.output().expect("runs")).await.expect("ends");
    let stderr_text = stderr(&output);
    assert!(
        stderr_text.contains("m.jsonl cannot be written: ") && output.status.code() == Some(1),
        "{stderr_text} {output:?}"
    );
    assert!(setup.asked("great") < 6, "nothing more is begun");
    assert!(report(&output)[0]["cost"].as_f64() > Some(0.0), "what was measured is reported: {output:?}");
    let now = setup.fixture.read("project/m.jsonl");
    assert!(now.starts_with(&full) && now.ends_with('\n'), "{}", &now[full.len().min(now.len())..]);
    assert!(now.lines().skip(1).all(|line| serde_json::from_str::<Value>(line).is_ok()));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_report_has_a_secret() {
    let secret = format!("ghp_{}", "aB3dE5fG7h".repeat(4).get(..36).expect("long enough"));
    let reported = secret.clone();
    let answer = move |asked: &RecordedRequest| match asked.model() {
        // Where it is cut differs from report to report.
        model if model.ends_with("down") => Reply::error(400, format!("{} {reported}", "x".repeat(100))),
        _ => Reply::text(format!("no JSON but {reported}")),
    };
    let script = || Script::from(vec![Turn::computed(answer.clone())]).repeating();
    let text = cases(1, "").replace("id: c0", &format!("id: 'case {secret}'"));
    let models = ["--models", "openai/down,openai/good", "--max-cost", "1000", "--html", "page.html"];
    for more in [&[][..], &["--json"], &["--json", "--full"]] {
        let setup = BenchFixture::new(PRICED, script(), &text).await;
        let output = setup.run(&[&models[..], more].concat()).await;
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let (lines, page) = (setup.lines().join("\n"), setup.fixture.read("project/page.html"));
        for (what, text) in [("out", &out), ("err", &stderr(&output)), ("lines", &lines), ("page", &page)] {
            assert!(!text.contains("ghp_") && !text.contains("aB3dE5fG7h"), "{more:?} {what}: {text}");
        }
        assert!(out.contains("openai/down") && out.contains("openai/good"), "{out}");
        if more.len() == 2 {
            assert!(out.contains("[secret]"), "{out}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unaffordable_call_delays_no_other() {
    let large = "wants 1 ".repeat(1000);
    let large = format!("  - input: {{request: '{large}', suggestions: [a, b]}}\n    checks: []\n");
    let text = cases(2, "").replace("cases:\n", &format!("cases:\n{large}"));
    let setup = BenchFixture::new(PRICED, script(), &text).await;
    let output = setup.run(&["--models", "openai/good", "--max-cost", "150", "--concurrency", "1"]).await;
    assert_eq!((output.status.code(), setup.asked("good")), (Some(1), 2), "{}", stderr(&output));
    assert!(stderr(&output).contains("do not fit within it: 1; "), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_judge_is_abandoned() {
    let judged = cases(12, RUBRIC);
    let plain = cases(12, "").replace("id: c", "id: p").replace("'case ", "'plain ");
    // One of each in turn.
    let items = |text: &str| text.split("  - id").skip(1).map(|item| format!("  - id{item}")).collect::<Vec<_>>();
    let mixed: String = items(&judged).into_iter().zip(items(&plain)).map(|(a, b)| a + &b).collect();
    let setup = BenchFixture::new(PRICED, script(), &format!("tool: llm:classify\ncases:\n{mixed}")).await;
    let arguments =
        ["--models", "openai/good", "--judge", "openai/down", "--max-cost", "1000000", "--concurrency", "1"];
    let output = setup.run(&arguments).await;
    assert_eq!((output.status.code(), setup.asked("down")), (Some(1), 5), "{}", stderr(&output));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_written_with_and_without_listeners() {
    let slow = Script::from(vec![Turn::computed(answer).with_delay(Duration::from_millis(200))]).repeating();
    let setup = BenchFixture::new(PRICED, slow, &cases(2, "")).await;
    let arguments = ["bench", "--cases", "cases.yaml", "--models", "openai/good", "--max-cost", "1000"];
    let files = ["--html", "page.html", "--compat", "compat.json"];
    let mut child = start(&setup.fixture, &setup.variables, &[&arguments[..], &files].concat());
    drop(child.stdout.take());
    child.wait().expect("ends");
    assert!(setup.fixture.read("project/page.html").contains("<svg"));
    assert!(setup.fixture.read("project/compat.json").contains("openai/good"));
}

#[tokio::test(flavor = "multi_thread")]
async fn measurements_count_again_for_equal_calls() {
    let setup = BenchFixture::new(PRICED, script(), &cases(3, "")).await;
    let models = ["--models", "openai/good", "--max-cost", "1000"];
    let output = setup.run(&models).await;
    assert!(output.status.success() && stderr(&output).contains("go into no compat file"), "{}", stderr(&output));
    assert!(!setup.fixture.path("home/.local/state/toolwright/models/compat.json").exists());
    setup.fixture.write("project/cases.yaml", &cases(3, "").replace("case 1: wants", "another: wants"));
    setup.run(&models).await;
    assert_eq!(setup.asked("good"), 4, "only what was edited is measured");
    let before = setup.lines();
    setup.fixture.write("project/toolwright.yaml", "llm: {compat: mine.json}\n");
    let output = setup.run(&[&models[..], &["--fresh"]].concat()).await;
    assert_eq!(
        (output.status.code(), setup.lines()),
        (Some(2), before.clone()),
        "prices are wanted, and nothing is lost"
    );
    setup.fixture.write("project/toolwright.yaml", &format!("llm: {{compat: mine.json}}\n{PRICED}"));
    let output = setup.run(&[&models[..], &["--fresh"]].concat()).await;
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!((setup.asked("good"), &setup.lines()[..before.len()]), (7, &before[..]));
    assert!(setup.fixture.read("project/mine.json").contains("openai/good"));
    let read = ["bench", "--compat", "mine.json"];
    for more in ["--fresh", "--self-judge", "--repeat=2"] {
        let output = program(&setup.fixture).args([&read[..], &[more]].concat()).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{more}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_do_not_stay_in_notes() {
    let secret = format!("ghp_{}", "aB3dE5fG7h".repeat(4).get(..36).expect("long enough"));
    let reported = secret.clone();
    let answer = move |_: &RecordedRequest| {
        let reasoning = format!("{} {reported}", "x".repeat(60));
        Reply::text(json!({"reasoning": reasoning, "selected_index": 0, "confidence": 0.9}).to_string())
    };
    let check = "      - exact: {path: /reasoning, equals: nothing}\n";
    let setup =
        BenchFixture::new(PRICED, Script::from(vec![Turn::computed(answer)]).repeating(), &cases(1, check)).await;
    let arguments = ["bench", "--cases", "cases.yaml", "--models", "openai/good", "--max-cost", "1000"];
    let output =
        ended(start(&setup.fixture, &setup.variables, &[&arguments[..], &["--html", "page.html"]].concat())).await;
    assert!(output.status.success(), "{}", stderr(&output));
    let (lines, page) = (setup.lines().join("\n"), setup.fixture.read("project/page.html"));
    assert!(lines.contains("not \\\"nothing\\\""), "{lines}");
    assert!(!lines.contains("ghp_") && !page.contains("ghp_"), "{lines}");
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_thinking_counts_in_the_bound() {
    // A thousand tokens out are a dollar; high effort may think for 24,576 of them. Its API is told no number of tokens.
    for (effort, asked) in [("", 1), (", effort: high", 0), (", thinking_tokens: 20000", 1)] {
        let config = format!("models: {{openai/good: {{prices: {{input: 0, output: 1000}}{effort}}}}}\n");
        let setup = BenchFixture::new(&config, script(), &cases(1, "")).await;
        let output = setup.run(&["--models", "openai/good", "--max-cost", "19"]).await;
        assert_eq!(setup.asked("good"), asked, "{effort}: {}", stderr(&output));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_local_server_with_headers_is_not_free() {
    // The server here wants a key, so that who may ask it is refused by it alone.
    for (headers, needs_price) in [("", false), (", headers: {x-key: paid}", true)] {
        let setup = BenchFixture::new("", script(), &cases(1, "")).await;
        let url = &setup.variables.iter().find(|(name, _)| *name == "OPENAI_BASE_URL").expect("a server").1;
        let endpoint = format!("{{api: openai_chat, base_url: '{url}'{headers}}}");
        setup.fixture.write("project/toolwright.yaml", &format!("models: {{endpoints: {{here: {endpoint}}}}}\n"));
        let output = setup.run(&["--models", "here/good", "--max-cost", "1"]).await;
        assert_eq!(output.status.code() == Some(2), needs_price, "{headers}: {}", stderr(&output));
        assert_eq!(stderr(&output).contains("the price of here/good is not known"), needs_price);
        assert_eq!(stderr(&output).contains("HTTP 401"), !needs_price, "{}", stderr(&output));
    }
}
