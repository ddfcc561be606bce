//! The table.

use super::Report;
use super::columns::columns;
use crate::check::clipped;

/// Characters of a name.
const MAX_NAME: usize = 60;
/// Characters of why something is missing.
const MAX_WHY: usize = 160;

/// A report as cells; whoever shows them lays them out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// The heads of the columns: tool and model, then figures.
    pub head: Vec<&'static str>,
    /// A row a tool and model, the best model of a tool first. `*` marks models that are recommended.
    pub rows: Vec<Vec<String>>,
    /// What is said below.
    pub notes: Vec<String>,
}

/// The figures as a table.
#[must_use]
pub fn table(report: &Report) -> Table {
    let rows = report.rows.iter().map(|row| {
        let mark = if row.recommended { " *" } else { "" };
        let names = [clipped(&row.tool, MAX_NAME), clipped(&row.model, MAX_NAME) + mark];
        names.into_iter().chain(columns(&report.rows).map(|column| (column.cell)(row))).collect()
    });
    let missing = report.rows.iter().filter(|row| !row.is_whole()).map(|row| {
        let why = row.missing.as_deref().map_or(String::new(), |why| format!(": {}", clipped(why, MAX_WHY)));
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
