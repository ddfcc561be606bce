use super::*;
use serde_json::json;

fn row(model: &str, score: f64, cost: Option<f64>, latency_ms: f64) -> Row {
    Row {
        score: Some(score),
        cost,
        latency_ms: Some(latency_ms),
        calls: 2,
        done: 2,
        threshold: Some(90),
        recommended: score >= 90.0,
        contract: "one".to_owned(),
        ..Row::new("llm:score@1.0.0".to_owned(), model.to_owned())
    }
}

#[test]
fn the_cheapest_fit_model_is_recommended_first_over_several_runs() {
    let by_hand = r#"{"llm:score@1.0.0": {"recommended": ["hand/made"], "note": "kept"}}"#;
    let mut file = CompatFile::parse(by_hand).expect("parses");
    let partial = Row { done: 1, ..row("p/partial", 100.0, Some(0.0), 1.0) };
    let rows = [
        row("p/dear", 99.0, Some(2.0), 1.0),
        row("p/unknown", 95.0, None, 1.0),
        row("p/bad", 89.99, Some(0.1), 1.0),
        partial,
    ];
    assert_eq!(file.take(&rows), 3);
    let rows = [row("p/cheap", 90.0, Some(1.0), 9.0), row("p/quick", 91.0, Some(1.0), 3.0)];
    assert_eq!(file.take(&rows), 2);
    let again = CompatFile::parse(&file.write()).expect("parses");
    assert_eq!(again, file);
    let found = &again.tools["llm:score@1.0.0"];
    assert_eq!(found.recommended, ["p/quick", "p/cheap", "p/dear", "p/unknown", "hand/made"]);
    assert_eq!((found.scores["p/bad"], found.scores["p/dear"], &found.others["note"]), (0.899, 0.99, &json!("kept")));
    assert_eq!(found.measured["p/dear"].cost_usd, Some(2.0));
    let worse = [row("p/quick", 10.0, Some(1.0), 3.0)];
    assert_eq!((file.take(&worse), &file.tools["llm:score@1.0.0"].recommended[0]), (1, &"p/cheap".to_owned()));
}

#[test]
fn the_operator_s_word_counts_before_what_was_measured() {
    let mut file = CompatFile::default();
    file.take(&[row("p/a", 95.0, Some(2.0), 1.0), row("p/b", 95.0, Some(1.0), 1.0), row("p/c", 50.0, Some(0.0), 1.0)]);
    let id = "llm:score@1.0.0";
    let plain = file.compat(&[]);
    assert_eq!(plain.recommended(id), ["p/b", "p/a"]);
    assert_eq!(plain.models_for(id, FIT).collect::<Vec<_>>(), ["p/b", "p/a"]);
    assert_eq!(plain.models_for(id, 0.4).collect::<Vec<_>>(), ["p/b", "p/a", "p/c"]);
    let said = |model: &str, score| (model.to_owned(), id.to_owned(), score);
    let compat = file.compat(&[said("p/b", 0.1), said("p/c", 0.9), said("p/new", 1.0)]);
    assert_eq!(compat.recommended(id), ["p/a"]);
    assert_eq!(compat.models_for(id, FIT).collect::<Vec<_>>(), ["p/a", "p/c", "p/new"]);
    assert!(compat.recommended("llm:other@1.0.0").is_empty());
}

#[test]
fn a_recording_is_never_recommended() {
    let id = "llm:score@1.0.0";
    let mut file = CompatFile::default();
    assert_eq!(file.take(&[row("replay:a/b.jsonl", 99.0, None, 1.0), row("p/a", 95.0, None, 1.0)]), 1);
    assert_eq!(file.tools[id].recommended, ["p/a"]);
    let written = r#"{"llm:score@1.0.0": {"recommended": ["replay:r.jsonl", "p/a"], "scores": {"replay:s": 1.0}}}"#;
    let compat = CompatFile::parse(written).expect("read").compat(&[]);
    assert_eq!(compat.recommended(id), ["p/a"]);
    assert_eq!(compat.models_for(id, 0.0).collect::<Vec<_>>(), ["p/a"]);
}

#[test]
fn what_was_measured_of_another_contract_is_found() {
    let mut file = CompatFile::default();
    file.take(&[row("p/a", 95.0, None, 1.0)]);
    let stale = |now: Option<&str>| {
        let now = now.map(str::to_owned);
        file.stale(&move |_| now.clone()).map(|(_, model)| model.to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(stale(Some("two")), ["p/a"]);
    assert_eq!((stale(Some("one")), stale(None)), (Vec::new(), Vec::new()));
}

#[test]
fn what_is_no_compat_file_is_refused() {
    for (text, expect) in [
        ("", ""),
        ("{}", ""),
        (r#"{"llm:score@1.0.0": {}}"#, ""),
        ("[]", "line 1"),
        ("{\n\"llm:score@1.0.0\": 3", "line 2"),
    ] {
        match CompatFile::parse(text) {
            Ok(_) => assert_eq!(expect, "", "{text}"),
            Err(error) => assert!(!expect.is_empty() && error.to_string().contains(expect), "{text}: {error}"),
        }
    }
    assert!(matches!(CompatFile::parse(&" ".repeat(MAX_COMPAT_BYTES + 1)), Err(CompatError::TooLarge(_))));
}

#[test]
fn an_entry_that_is_wrong_takes_nothing_from_the_others() {
    let good = r#""llm:score@1.0.0": {"recommended": ["p/a"]}"#;
    for (wrong, expect) in [
        (r#""summarize": {"recommended": []}"#, "no tool id"),
        (r#""llm:classify@1.0.0": {"scores": {"p/a": 95}}"#, "not within 0 and 1"),
        (r#""llm:classify@1.0.0": {"recommended": 3}"#, "llm:classify@1.0.0: "),
        (r#""llm:classify@1.0.0": 3"#, "llm:classify@1.0.0: "),
    ] {
        let file = CompatFile::parse(&format!("{{{wrong}, {good}}}")).expect("parses");
        assert_eq!(file.compat(&[]).recommended("llm:score@1.0.0"), ["p/a"], "{wrong}");
        assert!(file.unused.len() == 1 && file.unused[0].why.to_string().contains(expect), "{:?}", file.unused);
        assert_eq!(CompatFile::parse(&file.write()).expect("parses"), file, "nothing of it is lost");
    }
}

#[test]
fn what_somebody_recommends_by_hand_stays() {
    let by_hand = r#"{"llm:score@1.0.0": {"recommended": ["hand/made", "p/old"],
        "scores": {"hand/made": 0.5, "p/old": 0.9}, "measured": {"p/old": {"calls": 1}}}}"#;
    let mut file = CompatFile::parse(by_hand).expect("parses");
    assert_eq!(file.compat(&[]).models_for("llm:score@1.0.0", FIT).collect::<Vec<_>>(), ["p/old"]);
    file.take(&[row("p/old", 10.0, Some(1.0), 1.0), row("p/new", 99.999_999_999_999_99, Some(1.0), 1.0)]);
    let found = &file.tools["llm:score@1.0.0"];
    assert_eq!((found.recommended.join(" "), found.scores["p/new"]), ("p/new hand/made".to_owned(), 1.0));
    let minimal = CompatFile::parse(r#"{"llm:score@1.0.0": {"recommended": ["p/a"]}}"#).expect("parses");
    assert_eq!(minimal.compat(&[]).models_for("llm:score@1.0.0", FIT).collect::<Vec<_>>(), ["p/a"]);
}
