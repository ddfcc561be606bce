//! The table.

use std::fmt::Write as _;

use super::Report;
use super::columns::columns;
use crate::check::clipped;

/// Characters of a name.
const MAX_NAME: usize = 60;
/// Characters of why something is missing.
const MAX_WHY: usize = 160;

/// The figures as aligned text: a line a tool and model, the best model of a tool first. `*` marks models that are
/// recommended.
#[must_use]
pub fn table(report: &Report) -> String {
    let judged = report.rows.iter().any(|row| row.judge_cost.is_some());
    let heads = ["tool", "model", ""].into_iter().chain(columns(&report.rows).map(|column| column.head));
    let mut lines: Vec<Vec<String>> = vec![heads.map(str::to_owned).collect()];
    lines.extend(report.rows.iter().map(|row| {
        let names = [clipped(&row.tool, MAX_NAME), clipped(&row.model, MAX_NAME)];
        let mark = if row.recommended { "*" } else { "" }.to_owned();
        let figures = columns(&report.rows).map(|column| (column.cell)(row));
        names.into_iter().chain([mark]).chain(figures).collect()
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
