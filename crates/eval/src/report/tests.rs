use super::*;
use crate::summary::CaseRow;

fn row(tool: &str, model: &str, score: Option<f64>, cost: Option<f64>) -> Row {
    Row {
        score,
        cost,
        failed: Some(0),
        latency_ms: score.map(|score| 40.0 * score),
        calls: 10,
        done: if score.is_some() { 10 } else { 0 },
        sd: score.map(|_| 8.0),
        min: score.map(|score| score - 10.0),
        p50_ms: score.map(|_| 900.0),
        p95_ms: score.map(|_| 12_345.6),
        input_tokens: 1000,
        output_tokens: 200,
        threshold: Some(90),
        recommended: score.is_some_and(|score| score >= 90.0),
        contract: "c0ffee".to_owned(),
        cases: vec![
            CaseRow { case: "first".to_owned(), score, note: None },
            CaseRow {
                case: "<b>second</b>".to_owned(),
                score: score.map(|_| 30.0),
                note: Some("\"x\" & 'y'".to_owned()),
            },
        ],
        ..Row::new(tool.to_owned(), model.to_owned())
    }
}

fn report() -> Report {
    let mut judged = row("llm:classify@1.0.0", "acme/large", Some(96.25), Some(0.0421));
    judged.judge_cost = Some(0.002);
    let mut broken = row("llm:classify@1.0.0", "evil/<script>alert(1)</script>", Some(55.5), None);
    (broken.done, broken.missing) = (7, Some("rate_limit: too\nmany <requests>".to_owned()));
    let free = row("llm:classify@1.0.0", "ollama/qwen3:8b", Some(91.0), Some(0.0));
    let mini = row("llm:classify@1.0.0", "acme/mini", Some(90.5), Some(0.0038));
    let nothing = row("llm:classify@1.0.0", "acme/none", None, None);
    let other = row("llm:score@1.0.0", "acme/large", Some(100.0), Some(12.5));
    Report {
        rows: vec![judged, free, mini, broken, nothing, other],
        partial: Some("the cap of $1.00 is reached".to_owned()),
        judge: Some("acme/judge & co".to_owned()),
        at: "2026-03-01 12:00 UTC".to_owned(),
    }
}

/// The text must be that of the file. With `UPDATE_GOLDEN` set, the file is written instead.
fn is_golden(name: &str, text: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/report/golden").join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, text).expect("written");
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == text, "{} is another; UPDATE_GOLDEN=1 writes it. It is now:\n{text}", path.display());
}

#[test]
fn reports_look_as_they_did() {
    let Table { head, rows, notes } = table(&report());
    let rows = rows.iter().map(|row| row.join(" | "));
    let lines: Vec<String> = std::iter::once(head.join(" | ")).chain(rows).chain(notes).collect();
    is_golden("table.txt", &format!("{}\n", lines.join("\n")));
    is_golden("report.html", &html(&report()));
    is_golden("report.json", &format!("{:#}\n", json(&report(), Detail::Contract)));
    is_golden("full.json", &format!("{:#}\n", json(&report(), Detail::Full)));
}

#[test]
fn a_program_gets_five_members_and_no_more() {
    let rows = json(&report(), Detail::Contract);
    for row in rows.as_array().expect("a list") {
        let members: Vec<&str> = row.as_object().expect("an object").keys().map(String::as_str).collect();
        assert_eq!(members, ["tool", "model", "score", "cost", "latency_ms"]);
    }
}

#[test]
fn nothing_foreign_gets_into_the_page() {
    let page = html(&report());
    for bad in ["<script", "<b>second", "too\nmany", "http://", "https://", "src=", "@import", "url("] {
        assert!(!page.contains(bad), "{bad}");
    }
    assert!(page.contains("&lt;script&gt;") && page.contains("prefers-color-scheme: dark"));
    assert_eq!(html(&Report::default()).matches("<section>").count(), 0);
}

#[test]
fn pictures_hold_whatever_is_drawn() {
    let costs = [0.0, 1e-12, 1e-7, 0.02, 3.0, 1e9];
    let rows: Vec<Row> =
        costs.iter().map(|cost| row("x:t@1.0.0", &format!("p/{cost}"), Some(50.0), Some(*cost))).collect();
    for rows in [&rows[..], &rows[..1], &rows[3..4], &[row("x:t@1.0.0", "p/q", Some(120.0), None)]] {
        let picture = plot::plot(rows);
        for (name, most) in [("x", 920.0), ("cx", 920.0), ("y", 400.0), ("cy", 400.0), ("y1", 400.0), ("y2", 400.0)] {
            for part in picture.split(&format!(" {name}=\"")).skip(1) {
                let number: f64 = part.split('"').next().and_then(|number| number.parse().ok()).expect("a number");
                assert!((0.0..=most).contains(&number), "{name}={number} in {picture}");
            }
        }
    }
    assert_eq!(plot::plot(&[row("x:t@1.0.0", "p/q", None, None)]), "");
}

#[test]
fn figures_are_short() {
    let texts: Vec<String> = [0.0, 12.345, 0.5, 0.0123456, 0.00001234, 1e-12].map(dollars).to_vec();
    assert_eq!(texts, ["0", "12.35", "0.500", "0.0123", "0.0000123", "0.000000000"]);
    assert_eq!([999.4, 1000.0, 65_432.1].map(time), ["999 ms", "1.0 s", "65.4 s"]);
}
