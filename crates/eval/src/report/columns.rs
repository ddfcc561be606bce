//! The figures of a row, one list of them for all reports that are tables.

use super::{dollars, or_dash, time};
use crate::summary::Row;

/// One figure of a model.
pub(super) struct Column {
    /// What it is called.
    pub(super) head: &'static str,
    /// Whether it says something of this row; a column that says nothing of any is left out.
    pub(super) is_told: fn(&Row) -> bool,
    /// The figure.
    pub(super) cell: fn(&Row) -> String,
}

/// The figures that these rows are shown by, in order.
pub(super) fn columns(rows: &[Row]) -> impl Iterator<Item = &'static Column> {
    COLUMNS.iter().filter(|column| rows.iter().any(column.is_told))
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
        is_told: |row| row.judge_cost.is_some(),
        cell: |row| or_dash(row.judge_cost.map(dollars)),
    },
    always("latency", |row| or_dash(row.latency_ms.map(time))),
    always("p95", |row| or_dash(row.p95_ms.map(time))),
];

const fn always(head: &'static str, cell: fn(&Row) -> String) -> Column {
    Column { head, is_told: |_| true, cell }
}

fn tenths(value: Option<f64>) -> String {
    or_dash(value.map(|value| format!("{value:.1}")))
}
