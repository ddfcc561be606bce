//! One HTML file that needs nothing else: no script, no font, no picture from elsewhere.

use std::fmt::Write as _;

use super::columns::columns;
use super::plot::plot;
use super::{Report, or_dash};
use crate::check::clipped;
use crate::summary::Row;

/// Cases that are shown one by one; a larger run shows its figures only.
const MAX_CASES: usize = 200;
/// Characters of a note.
const MAX_NOTE: usize = 120;

const STYLE: &str = include_str!("report.css");

/// Text that HTML shows as it is.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// The report as a file: for each tool a plot of quality against cost, the figures, and case by case.
#[must_use]
pub fn html(report: &Report) -> String {
    let mut out = String::new();
    // Writing to a text cannot fail.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Toolwright bench</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>Models measured with tools</h1>\n"
    );
    let mut about = Vec::new();
    if !report.at.is_empty() {
        about.push(escaped(&report.at));
    }
    if let Some(judge) = &report.judge {
        about.push(format!("rubrics judged by {}", escaped(judge)));
    }
    if !about.is_empty() {
        let _ = writeln!(out, "<p class=\"about\">{}</p>", about.join(" · "));
    }
    if let Some(why) = &report.partial {
        let _ = writeln!(out, "<p class=\"partial\"><strong>Partial.</strong> {}</p>", escaped(why));
    }
    let mut from = 0;
    while let Some(first) = report.rows.get(from) {
        let rows = &report.rows[from..];
        let count = rows.iter().take_while(|row| row.tool == first.tool).count();
        section(&mut out, &rows[..count]);
        from += count;
    }
    out.push_str("</body>\n</html>\n");
    out
}

fn section(out: &mut String, rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    let _ = writeln!(out, "<section>\n<h2>{}</h2>", escaped(&first.tool));
    let picture = plot(rows);
    if !picture.is_empty() {
        let from = first.threshold.map_or(String::new(), |from| format!("Dashed: recommended from {from} on. "));
        let _ = writeln!(
            out,
            "{picture}<p class=\"about\">{from}Joined: no model is both cheaper and better than these. Thin: one standard \
             deviation.</p>"
        );
    }
    figures(out, rows);
    if first.cases.len() <= MAX_CASES {
        cases(out, rows);
    }
    out.push_str("</section>\n");
}

fn figures(out: &mut String, rows: &[Row]) {
    let span = 1 + columns(rows).count();
    out.push_str("<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">model</th>");
    for column in columns(rows) {
        let _ = write!(out, "<th scope=\"col\" class=\"n\">{}</th>", column.head);
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        let mark = if row.recommended { " <span class=\"good\">recommended</span>" } else { "" };
        let _ = write!(out, "<tr><th scope=\"row\">{}{mark}</th>", escaped(&row.model));
        for column in columns(rows) {
            let _ = write!(out, "<td class=\"n\">{}</td>", (column.cell)(row));
        }
        out.push_str("</tr>\n");
        if let Some(why) = &row.missing {
            let why = escaped(&clipped(why, MAX_NOTE));
            let _ = writeln!(out, "<tr class=\"why\"><td colspan=\"{span}\">not all was measured: {why}</td></tr>");
        }
    }
    out.push_str("</tbody></table></div>\n");
}

fn cases(out: &mut String, rows: &[Row]) {
    let Some(first) = rows.first() else { return };
    out.push_str(
        "<details><summary>Case by case</summary>\n<div class=\"wide\"><table>\n<thead><tr><th scope=\"col\">case</th>",
    );
    for row in rows {
        let _ = write!(out, "<th scope=\"col\" class=\"n\">{}</th>", escaped(&row.model));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for (index, case) in first.cases.iter().enumerate() {
        let _ = write!(out, "<tr><th scope=\"row\">{}</th>", escaped(&case.case));
        for row in rows {
            let Some(case) = row.cases.get(index) else { continue };
            let note = case
                .note
                .as_ref()
                .map_or(String::new(), |note| format!(" title=\"{}\"", escaped(&clipped(note, MAX_NOTE))));
            let score = or_dash(case.score.map(|score| format!("{score:.0}")));
            let class = if case.score.is_some_and(|score| score < 50.0) { "n bad" } else { "n" };
            let _ = write!(out, "<td class=\"{class}\"{note}>{score}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div></details>\n");
}
