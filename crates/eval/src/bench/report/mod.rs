//! Reports of a run: a table for a person and JSON for a program. `page` has the HTML file.

pub(super) mod page;

use serde_json::{Value, json};
use toolwright_core::Redactor;

use super::check::clipped;
use super::summary::Row;

/// The most characters of a name.
const MAX_NAME: usize = 60;
/// The most characters of a reason.
const MAX_REASON_CHARACTERS: usize = 160;

/// A run, for reports.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The results.
    pub rows: Vec<Row>,
    /// The reason why the run is incomplete, if so.
    pub partial: Option<String>,
    /// The judge of rubrics.
    pub judge: Option<String>,
    /// The time of its end, as shown. It is a parameter, because this code does not read a clock.
    pub at: String,
}

impl Report {
    /// Returns the report without secrets, before any of it is cut or reformatted.
    #[must_use]
    pub fn redacted(mut self, redactor: &dyn Redactor) -> Self {
        let clean = |text: &mut String| *text = redactor.redact(text).into_owned();
        self.partial.iter_mut().chain(&mut self.judge).for_each(clean);
        for row in &mut self.rows {
            [&mut row.tool, &mut row.model].into_iter().chain(&mut row.missing).for_each(clean);
            for case in &mut row.cases {
                std::iter::once(&mut case.case).chain(&mut case.note).for_each(clean);
            }
        }
        self
    }
}

/// The detail of a row in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// `{tool, model, score, cost, latency_ms}`.
    Contract,
    /// All fields.
    Full,
}

/// Returns the rows as JSON.
#[must_use]
pub fn json(report: &Report, detail: Detail) -> Value {
    let row = |row: &Row| match detail {
        Detail::Contract => json!({
            "tool": row.tool,
            "model": row.model,
            "score": row.score.map(|score| rounded(score, 2)),
            "cost": row.cost.map(|cost| rounded(cost, 9)),
            "latency_ms": row.latency_ms.map(|latency| rounded(latency, 1)),
        }),
        Detail::Full => {
            let mut value = serde_json::to_value(row).unwrap_or_default();
            value["cost_per_call"] = json!(row.cost_per_call());
            value["partial"] = (!row.is_whole()).into();
            value["judge"] = json!(report.judge);
            value
        }
    };
    report.rows.iter().map(row).collect()
}

fn rounded(number: f64, places: i32) -> f64 {
    let unit = 10_f64.powi(places);
    (number * unit).round() / unit
}

/// Formats US dollars for people, with three significant digits.
pub(super) fn dollars(cost: f64) -> String {
    if cost == 0.0 {
        return "0".to_owned();
    }
    // Costs are small; beyond these limits a digit does not matter.
    let places = (2 - cost.abs().log10().floor() as i32).clamp(2, 9);
    format!("{cost:.*}", usize::try_from(places).unwrap_or(2))
}

/// Formats milliseconds for people.
fn time(ms: f64) -> String {
    if ms < 1000.0 { format!("{ms:.0} ms") } else { format!("{:.1} s", ms / 1000.0) }
}

pub(super) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}

/// A column with a figure of models.
pub(super) struct Column {
    /// Its head.
    pub(super) head: &'static str,
    /// Whether it has a value for this row. A column without any value is left out.
    pub(super) is_shown: fn(&Row) -> bool,
    /// Returns the figure.
    pub(super) cell: fn(&Row) -> String,
}

/// Returns the columns for these rows, in order.
pub(super) fn columns(rows: &[Row]) -> impl Iterator<Item = &'static Column> {
    COLUMNS.iter().filter(|column| rows.iter().any(column.is_shown))
}

const COLUMNS: [Column; 10] = [
    always("score", |row| tenths(row.score)),
    always("sd", |row| tenths(row.sd)),
    always("min", |row| tenths(row.min)),
    always("calls", |row| if row.is_whole() { row.calls.to_string() } else { format!("{}/{}", row.done, row.calls) }),
    always("failed", |row| or_dash(row.failed.map(|count| count.to_string()))),
    always("USD", |row| or_dash(row.cost.map(dollars))),
    always("USD/call", |row| or_dash(row.cost_per_call().map(dollars))),
    Column {
        head: "judge USD",
        is_shown: |row| row.judge_cost.is_some(),
        cell: |row| or_dash(row.judge_cost.map(dollars)),
    },
    always("latency", |row| or_dash(row.latency_ms.map(time))),
    always("p95", |row| or_dash(row.p95_ms.map(time))),
];

const fn always(head: &'static str, cell: fn(&Row) -> String) -> Column {
    Column { head, is_shown: |_| true, cell }
}

fn tenths(value: Option<f64>) -> String {
    or_dash(value.map(|value| format!("{value:.1}")))
}

/// A report as cells without layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The heads of the columns: tool and model, followed by figures.
    pub head: Vec<&'static str>,
    /// A row per tool and model, the best model of a tool first. `*` marks recommended models.
    pub rows: Vec<Vec<String>>,
    /// Notes below the table.
    pub notes: Vec<String>,
}

/// Returns the results as a table.
#[must_use]
pub fn table(report: &Report) -> Table {
    let rows = report.rows.iter().map(|row| {
        let mark = if row.recommended { " *" } else { "" };
        let names = [clipped(&row.tool, MAX_NAME), clipped(&row.model, MAX_NAME) + mark];
        names.into_iter().chain(columns(&report.rows).map(|column| (column.cell)(row))).collect()
    });
    let missing = report.rows.iter().filter(|row| !row.is_whole()).map(|row| {
        let why =
            row.missing.as_deref().map_or(String::new(), |why| format!(": {}", clipped(why, MAX_REASON_CHARACTERS)));
        let missing = row.calls - row.done;
        format!("{} by {}: {missing} of {} calls were not measured{why}", row.tool, row.model, row.calls)
    });
    let is_judged = report.rows.iter().any(|row| row.judge_cost.is_some());
    let judge = report.judge.as_deref().filter(|_| is_judged);
    Table {
        head: ["tool", "model"].into_iter().chain(columns(&report.rows).map(|column| column.head)).collect(),
        rows: rows.collect(),
        notes: missing
            .chain(report.partial.as_ref().map(|why| format!("partial: {why}")))
            .chain(judge.map(|judge| format!("rubrics were judged by {judge}")))
            .collect(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::page;
    use crate::bench::summary::CaseRow;

    pub(in crate::bench) fn row(tool: &str, model: &str, score: Option<f64>, cost: Option<f64>) -> Row {
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

    pub(in crate::bench) fn report() -> Report {
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

    /// Checks that the text equals that of the file. With `UPDATE_GOLDEN` set, writes the file instead.
    fn check_golden_file(name: &str, text: &str) {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, text).expect("written");
        }
        let golden = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(golden == text, "{} is another; UPDATE_GOLDEN=1 writes it. It is now:\n{text}", path.display());
    }

    #[test]
    fn report_tables_match_the_golden() {
        let Table { head, rows, notes } = table(&report());
        let rows = rows.iter().map(|row| row.join(" | "));
        let lines: Vec<String> = std::iter::once(head.join(" | ")).chain(rows).chain(notes).collect();
        check_golden_file("table.txt", &format!("{}\n", lines.join("\n")));
        check_golden_file("report.html", &page(&report()));
        check_golden_file("report.json", &format!("{:#}\n", json(&report(), Detail::Contract)));
        check_golden_file("full.json", &format!("{:#}\n", json(&report(), Detail::Full)));
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
    fn figures_are_short() {
        let texts: Vec<String> = [0.0, 12.345, 0.5, 0.0123456, 0.00001234, 1e-12].map(dollars).to_vec();
        assert_eq!(texts, ["0", "12.35", "0.500", "0.0123", "0.0000123", "0.000000000"]);
        assert_eq!([999.4, 1000.0, 65_432.1].map(time), ["999 ms", "1.0 s", "65.4 s"]);
    }
}
