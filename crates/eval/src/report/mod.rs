//! Reports of a run: a table for a person, JSON for a program, one HTML file with the figures drawn.

mod columns;
mod html;
mod plot;
mod table;

use serde_json::{Value, json};

use super::summary::Row;

pub use html::html;
pub use table::{Table, table};

/// A run as its reports show it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Report {
    /// The figures.
    pub rows: Vec<Row>,
    /// Why the run is not whole, where it is not.
    pub partial: Option<String>,
    /// Who judged rubrics.
    pub judge: Option<String>,
    /// When it ended, as it is shown; pure code knows no clock.
    pub at: String,
}

/// What a program gets of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// `{tool, model, score, cost, latency_ms}`.
    Contract,
    /// Everything.
    Full,
}

/// The rows as JSON.
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

/// US dollars as people read them: three figures that say something.
fn dollars(cost: f64) -> String {
    if cost == 0.0 {
        return "0".to_owned();
    }
    // Costs are small; beyond these bounds a figure more or less does not matter.
    let places = (2 - cost.abs().log10().floor() as i32).clamp(2, 9);
    format!("{cost:.*}", usize::try_from(places).unwrap_or(2))
}

/// Milliseconds as people read them.
fn time(ms: f64) -> String {
    if ms < 1000.0 { format!("{ms:.0} ms") } else { format!("{:.1} s", ms / 1000.0) }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".to_owned())
}

#[cfg(test)]
mod tests;
