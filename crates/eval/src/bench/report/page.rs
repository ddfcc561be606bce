//! The report as one self-contained HTML file, without scripts, fonts or external images. For each tool it plots
//! quality against cost: up is better, left is cheaper.

use std::fmt::Write as _;

use toolwright_core::output::html_escaped as escaped;

use super::{Report, columns, dollars, or_dash};
use crate::bench::check::clipped;
use crate::bench::summary::Row;

/// The most cases that are shown one by one; a larger run shows only its figures.
const MAX_CASES: usize = 200;
/// The most characters of a note.
const MAX_NOTE: usize = 120;

const STYLE: &str = include_str!("page.css");

/// The sizes of the picture, and of the plot area in it.
const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 46.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 352.0;
const RIGHT: f64 = 900.0;
/// The strip for models without a price.
const STRIP: f64 = 170.0;
/// The most characters of a name beside its point.
const MAX_LABEL: usize = 34;
/// The approximate width of such a character.
const CHARACTER: f64 = 7.2;
/// Height of a line of names.
const LINE: f64 = 14.0;
/// The most models that are drawn.
const MAX_DRAWN: usize = 60;
/// The most decades of cost that are drawn.
const MAX_DECADES: i32 = 12;

/// Returns the report as a file: for each tool a plot of quality against cost, the figures, and the cases.
#[must_use]
pub fn page(report: &Report) -> String {
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

/// A model in the picture.
struct Point<'a> {
    row: &'a Row,
    score: f64,
    /// US dollars of a call; `None` if unknown.
    cost: Option<f64>,
    x: f64,
    y: f64,
}

/// The scale of costs, in decades.
struct Scale {
    /// Decimal logarithms of the ends.
    from: i32,
    to: i32,
    right: f64,
    /// Whether free models have their own place, at the left edge.
    has_free: bool,
}

impl Scale {
    fn of(costs: &[f64], right: f64) -> Self {
        let paid = costs.iter().copied().filter(|cost| *cost > 0.0);
        let logs: Vec<f64> = paid.map(f64::log10).collect();
        let low = logs.iter().copied().min_by(f64::total_cmp).map_or(-4, |low| low.floor() as i32);
        let high = logs.iter().copied().max_by(f64::total_cmp).map_or(-3, |high| high.ceil() as i32);
        let to = high.max(low.saturating_add(1));
        Self { from: low.max(to - MAX_DECADES), to, right, has_free: costs.contains(&0.0) }
    }

    fn left(&self) -> f64 {
        if self.has_free { LEFT + 100.0 } else { LEFT + 12.0 }
    }

    fn x(&self, cost: f64) -> f64 {
        if cost <= 0.0 {
            return LEFT + 28.0;
        }
        let share = (cost.log10() - f64::from(self.from)) / f64::from(self.to - self.from);
        self.left() + share.clamp(0.0, 1.0) * (self.right - 12.0 - self.left())
    }
}

/// The scale of scores. Models are close together at the top, so it begins slightly below the worst of them.
#[derive(Clone, Copy)]
struct ScoreAxis {
    /// The score at the bottom, a multiple of the step.
    from: u8,
    /// The distance between two lines.
    step: u8,
}

impl ScoreAxis {
    fn of(lowest: f64) -> Self {
        match lowest {
            lowest if lowest >= 85.0 => Self { from: 75, step: 5 },
            lowest if lowest >= 60.0 => Self { from: 50, step: 10 },
            _ => Self { from: 0, step: 20 },
        }
    }

    fn y(self, score: f64) -> f64 {
        let from = f64::from(self.from);
        BOTTOM - (score.clamp(from, 100.0) - from) / (100.0 - from) * (BOTTOM - TOP)
    }
}

/// Draws the plot of a tool's models; empty if none was measured.
fn plot(rows: &[Row]) -> String {
    let measured: Vec<(&Row, f64)> = rows.iter().filter_map(|row| Some((row, row.score?))).take(MAX_DRAWN).collect();
    let Some((first, _)) = measured.first() else { return String::new() };
    let scores = measured.iter().map(|(_, score)| *score);
    let height = ScoreAxis::of(scores.chain(first.threshold.map(f64::from)).fold(100.0, f64::min));
    let costs: Vec<f64> = measured.iter().filter_map(|(row, _)| row.cost_per_call()).collect();
    let has_strip = costs.len() < measured.len();
    let right = if has_strip { RIGHT - STRIP } else { RIGHT };
    let scale = Scale::of(&costs, right);
    let points: Vec<Point<'_>> = measured
        .iter()
        .map(|(row, score)| {
            let cost = row.cost_per_call();
            let x = cost.map_or(right + 22.0, |cost| scale.x(cost));
            Point { row, score: *score, cost, x, y: height.y(*score) }
        })
        .collect();
    let mut out = String::new();
    // Writing to a text cannot fail.
    let label = escaped(&format!("Score of {} against cost of a call", first.tool));
    let _ = writeln!(out, "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\">");
    axes(&mut out, &scale, height, PictureParts { strip: has_strip, costs: !costs.is_empty() });
    if let Some(threshold) = first.threshold {
        let at = height.y(f64::from(threshold));
        let _ = writeln!(
            out,
            "<line class=\"threshold\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\">\
             <title>recommended from {threshold} on</title></line>"
        );
    }
    front(&mut out, &points);
    for point in &points {
        dot(&mut out, point, height);
    }
    names(&mut out, &points, right);
    out.push_str("</svg>\n");
    out
}

/// The parts of the picture that are drawn.
struct PictureParts {
    /// The strip of unknown prices.
    strip: bool,
    /// The scale of costs.
    costs: bool,
}

fn axes(out: &mut String, scale: &Scale, height: ScoreAxis, drawn: PictureParts) {
    if drawn.strip {
        let _ = writeln!(
            out,
            "<rect class=\"strip\" x=\"{:.1}\" y=\"{TOP}\" width=\"{STRIP}\" height=\"{:.1}\"/>\n\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">price not known</text>",
            scale.right,
            BOTTOM - TOP,
            scale.right + STRIP / 2.0,
            BOTTOM + 18.0
        );
    }
    for score in (height.from..=100).step_by(usize::from(height.step)) {
        let at = height.y(f64::from(score));
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{at:.1}\" x2=\"{RIGHT}\" y2=\"{at:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{score}</text>",
            LEFT - 8.0,
            at + 4.0
        );
    }
    if !drawn.costs {
        return;
    }
    if scale.has_free {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">free</text>",
            scale.x(0.0),
            BOTTOM + 18.0
        );
    }
    for decade in scale.from..=scale.to {
        let cost = 10_f64.powi(decade);
        let at = scale.x(cost);
        let _ = writeln!(
            out,
            "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{BOTTOM}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">${}</text>",
            BOTTOM + 18.0,
            plain(cost, decade)
        );
    }
    let middle = (LEFT + scale.right) / 2.0;
    let _ = writeln!(
        out,
        "<text x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">US dollars a call</text>",
        BOTTOM + 38.0
    );
}

/// Writes a power of ten without an exponent.
fn plain(cost: f64, decade: i32) -> String {
    format!("{cost:.*}", usize::try_from(-decade).unwrap_or(0))
}

/// Connects the models that no other model beats in both cost and quality.
fn front(out: &mut String, points: &[Point<'_>]) {
    let mut priced: Vec<(&Point<'_>, f64)> = points.iter().filter_map(|point| Some((point, point.cost?))).collect();
    priced.sort_by(|(a, a_cost), (b, b_cost)| a_cost.total_cmp(b_cost).then(b.score.total_cmp(&a.score)));
    let mut best = f64::NEG_INFINITY;
    let mut path = String::new();
    let mut count = 0;
    for (point, _) in priced {
        if point.score > best {
            best = point.score;
            count += 1;
            let _ = write!(path, "{}{:.1},{:.1}", if path.is_empty() { "" } else { " " }, point.x, point.y);
        }
    }
    if count > 1 {
        let _ = writeln!(out, "<polyline class=\"front\" points=\"{path}\"/>");
    }
}

fn dot(out: &mut String, point: &Point<'_>, height: ScoreAxis) {
    let Point { row, score, cost, x, y: at } = point;
    if let Some(sd) = row.sd.filter(|sd| *sd > 0.0) {
        let (high, low) = (height.y(score + sd), height.y(score - sd));
        let _ = writeln!(out, "<line class=\"spread\" x1=\"{x:.1}\" y1=\"{high:.1}\" x2=\"{x:.1}\" y2=\"{low:.1}\"/>");
    }
    let class = if row.recommended { "dot best" } else { "dot" };
    let cost = cost.map_or_else(|| "price not known".to_owned(), |cost| format!("${} a call", dollars(cost)));
    let title = escaped(&format!("{}: {score:.1}, {cost}", row.model));
    let _ =
        writeln!(out, "<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{at:.1}\" r=\"5\"><title>{title}</title></circle>");
}

/// Writes names beside their points without overlap. A name that finds no room near its point is only in the table.
fn names(out: &mut String, points: &[Point<'_>], right: f64) {
    let mut taken: Vec<(f64, f64, f64)> = Vec::new();
    for point in points {
        let end = if point.cost.is_some() { right } else { WIDTH };
        // In the strip there is no room to the left of a name.
        let room = if point.cost.is_some() { MAX_LABEL } else { ((end - point.x - 9.0) / CHARACTER) as usize };
        let name = clipped(&point.row.model, room.saturating_sub(1).min(MAX_LABEL));
        let width = name.chars().count() as f64 * CHARACTER;
        let is_left = point.x + 9.0 + width > end && point.cost.is_some();
        let from = if is_left { point.x - 9.0 - width } else { point.x + 9.0 };
        let is_free = |line: f64| {
            (TOP + 4.0..=BOTTOM - 2.0).contains(&line)
                && taken.iter().all(|(a, b, at)| from + width < *a || *b < from || (line - at).abs() >= LINE)
        };
        let tries = [0.0, 1.0, -1.0, 2.0, -2.0, 3.0, -3.0];
        let Some(line) = tries.iter().map(|step| point.y + 4.0 + step * LINE).find(|line| is_free(*line)) else {
            continue;
        };
        taken.push((from, from + width, line));
        let (x, anchor) = if is_left { (point.x - 9.0, "end") } else { (point.x + 9.0, "start") };
        let name = escaped(&name);
        let _ =
            writeln!(out, "<text class=\"name\" x=\"{x:.1}\" y=\"{line:.1}\" text-anchor=\"{anchor}\">{name}</text>");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::report::tests::{report, row};

    #[test]
    fn report_pages_escape_foreign_text() {
        let shown = page(&report());
        for bad in ["<script", "<b>second", "too\nmany", "http://", "https://", "src=", "@import", "url("] {
            assert!(!shown.contains(bad), "{bad}");
        }
        assert!(shown.contains("&lt;script&gt;") && shown.contains("prefers-color-scheme: dark"));
        assert_eq!(page(&Report::default()).matches("<section>").count(), 0);
    }

    #[test]
    fn diagrams_escape_any_text() {
        let costs = [0.0, 1e-12, 1e-7, 0.02, 3.0, 1e9];
        let rows: Vec<Row> =
            costs.iter().map(|cost| row("x:t@1.0.0", &format!("p/{cost}"), Some(50.0), Some(*cost))).collect();
        for rows in [&rows[..], &rows[..1], &rows[3..4], &[row("x:t@1.0.0", "p/q", Some(120.0), None)]] {
            let picture = plot(rows);
            for (name, most) in [("x", 920.0), ("cx", 920.0), ("y", 400.0), ("cy", 400.0), ("y1", 400.0), ("y2", 400.0)]
            {
                for part in picture.split(&format!(" {name}=\"")).skip(1) {
                    let number: f64 = part.split('"').next().and_then(|number| number.parse().ok()).expect("a number");
                    assert!((0.0..=most).contains(&number), "{name}={number} in {picture}");
                }
            }
        }
        assert_eq!(plot(&[row("x:t@1.0.0", "p/q", None, None)]), "");
    }
}
