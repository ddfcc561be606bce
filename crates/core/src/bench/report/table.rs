//! The table.

use std::fmt::Write as _;

use super::{Report, dollars, or_dash, time};
use crate::bench::check::clipped;
use crate::bench::summary::Row;

/// Characters of a name.
const MAX_NAME: usize = 60;
/// Characters of why something is missing.
const MAX_WHY: usize = 160;

/// The figures as aligned text: a line a tool and model, the best model of a tool first. `*` marks models that are
/// recommended.
#[must_use]
pub fn table(report: &Report) -> String {
    let head = ["tool", "model", "", "score", "sd", "min", "calls", "failed", "USD", "USD/call", "latency", "p95"];
    let judged = report.rows.iter().any(|row| row.judge_cost.is_some());
    let mut lines: Vec<Vec<String>> = vec![head.iter().map(|cell| (*cell).to_owned()).collect()];
    if judged {
        lines[0].push("judge USD".to_owned());
    }
    lines.extend(report.rows.iter().map(|row| {
        let mut cells = cells(row);
        if judged {
            cells.push(or_dash(row.judge_cost.map(dollars)));
        }
        cells
    }));
    let columns = lines[0].len();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for (column, cell) in line.iter().enumerate() {
            let gap = " ".repeat(widths[column].saturating_sub(cell.chars().count()));
            // Names stand to the left, figures to the right.
            let padded = if column < 3 { format!("{cell}{gap}") } else { format!("{gap}{cell}") };
            text.push_str(&padded);
            text.push_str(if column + 1 == columns { "" } else { "  " });
        }
        // Writing to a text cannot fail.
        let _ = writeln!(out, "{}", text.trim_end());
    }
    for row in report.rows.iter().filter(|row| !row.is_whole()) {
        let why = row.missing.as_deref().map_or(String::new(), |why| format!(": {}", clipped(why, MAX_WHY)));
        let missing = row.calls - row.done;
        let _ = writeln!(out, "{} by {}: {missing} of {} calls were not measured{why}", row.tool, row.model, row.calls);
    }
    if let Some(why) = &report.partial {
        let _ = writeln!(out, "partial: {why}");
    }
    if let Some(judge) = report.judge.as_deref().filter(|_| judged) {
        let _ = writeln!(out, "rubrics were judged by {judge}");
    }
    out
}

fn cells(row: &Row) -> Vec<String> {
    let figure = |value: Option<f64>| or_dash(value.map(|value| format!("{value:.1}")));
    let calls = if row.is_whole() { row.calls.to_string() } else { format!("{}/{}", row.done, row.calls) };
    vec![
        clipped(&row.tool, MAX_NAME),
        clipped(&row.model, MAX_NAME),
        if row.recommended { "*" } else { "" }.to_owned(),
        figure(row.score),
        figure(row.sd),
        figure(row.min),
        calls,
        row.failed.to_string(),
        or_dash(row.cost.map(dollars)),
        or_dash(row.cost_per_call().map(dollars)),
        or_dash(row.latency_ms.map(time)),
        or_dash(row.p95_ms.map(time)),
    ]
}
