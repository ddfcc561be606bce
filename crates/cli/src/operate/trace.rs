//! `trace`: shows the operations of runs and sessions as a tree.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use toolwright::core::OpKind;
use toolwright::core::arguments::Provenance;
use toolwright::core::model::Route;
use toolwright::core::model_repair::RepairOutcome;
use toolwright::core::store::{LedgerStore, RUNNING, TraceSummary, TraceSums, UNKNOWN_OUTCOME};
use toolwright::core::trace::{self, MAX_OPERATIONS, Trace, TraceOp};

use super::trace_html;
use crate::app::{GlobalOptions, usable};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::screen::{BAD, BOLD, DIM, GOOD, WARN, one_line, print_json, print_text, say, size, styled};
use crate::terminal::table::{Cell, Table, print_list};

/// The most characters of a name.
const NAME: usize = 48;
/// The most characters of an id in a list.
const ID: usize = 40;
/// The most characters of a note.
const NOTE: usize = 160;
/// The number of characters of a bar.
const BAR: usize = 20;
/// The polling interval of `--follow`.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The text of `--help` about the JSON form.
pub(crate) const JSON_FORM: &str = "\
With --json and a run, it prints {run, session, started_ms, latency_ms, totals: {tool_calls, model_calls, jobs, failures,
usage: {input_tokens, output_tokens, cached_tokens, cache_written_tokens and reasoning_tokens unless they are 0},
cost_usd, open_costs (model attempts whose cost is unknown) unless it is 0}, left_out,
turns: [{turn, ops: [{op, trace, parent,
kind: tool | model | job | guard, name, call, status: ok, the kind of failure, running, or unknown (its process ended
before it), started_ms, latency_ms, wait_ms, person_ms (time that people took to answer; not part of latency_ms),
attempts (of a model request: the number of this attempt, as each attempt is an op), note (why it failed, why
the first models of an LLM-backed tool gave no result, or why a request shows its tools),
provenance (how name and arguments were changed), tools (what a request showed: exposure, shown, deferred, excluded, tokens), cached, characters_in, characters_out, usage, cost_usd, decided_by, approval,
agent: {run, totals} of a call that started an agent, children: [...]}]}]}. The totals include the agents that the run started.
Without a run: [{run, session, principal, started_ms, ended_ms, turns, tool_calls, model_calls, jobs, failures,
usage, cost_usd, open_costs unless it is 0}], newest first.";

/// What to show.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// A run, session or trace id, the first characters of one, or `last`. Default: lists the newest.
    #[arg(value_name = "RUN")]
    run: Option<String>,
    /// How many to list.
    #[arg(long, default_value_t = 20, value_name = "N", conflicts_with = "run")]
    limit: usize,
    /// Shows new operations as they happen, until it is interrupted.
    #[arg(long, requires = "run")]
    follow: bool,
    /// Writes the tree with arguments and results to this file, as one self-contained HTML page.
    #[arg(long, requires = "run", conflicts_with = "follow", value_name = "FILE")]
    html: Option<PathBuf>,
}

pub(crate) async fn command(global: &GlobalOptions, args: &TraceArgs) -> CommandResult {
    let config = usable(global)?;
    let store = toolwright::runtime::SqliteStore::open(&config.state_dir).map_err(Failure::usage)?;
    let Some(name) = &args.run else {
        let traces = store.traces(args.limit).await?;
        let (rows, columns): (Vec<Value>, Vec<_>) = traces.iter().map(listed).unzip();
        return print_list(global.json, rows, &list(columns), "nothing was called yet");
    };
    if let Some(file) = &args.html {
        let trace = read(&*store, name).await?.remove(0);
        let mut entries = Vec::new();
        if let Some(of) = store.find_traces(name).await?.first() {
            for below in store.trace_tree(of).await? {
                entries.extend(store.operations(&below, trace::MAX_OPERATIONS.saturating_sub(entries.len())).await?);
            }
        }
        std::fs::write(file, trace_html::page(&trace, &entries))
            .map_err(|error| Failure::failed(format!("{} cannot be written: {error}", file.display())))?;
        say(format_args!("toolwright: the trace is in {}", file.display()));
        return Ok(Exit::Ok);
    }
    let mut drawn = String::new();
    loop {
        let traces = read(&*store, name).await?;
        let text = if global.json {
            traces.first().map(|trace| json!(trace).to_string()).unwrap_or_default()
        } else {
            traces.iter().map(draw).collect::<Vec<_>>().join("\n")
        };
        if text != drawn {
            if global.json {
                print_json(&json!(traces.first()))?;
            } else {
                print_text(text.trim_end())?;
            }
            drawn = text;
        }
        if !args.follow {
            return Ok(Exit::Ok);
        }
        tokio::select! {
            () = tokio::time::sleep(POLL_INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => return Ok(Exit::Ok),
        }
    }
}

/// Reads the trees that the name means, the newest first; JSON has only the newest.
async fn read(store: &dyn LedgerStore, name: &str) -> Result<Vec<Trace>, Failure> {
    let traces = trace::read(store, name, MAX_OPERATIONS).await?;
    if traces.is_empty() {
        let remedy = "`toolwright trace` lists the newest";
        return Err(Failure::not_found(format!(
            "no run or session is called, or begins with, only `{name}`; {remedy}"
        )));
    }
    Ok(traces)
}

/// Returns a line of the list as JSON, and as columns.
fn listed(trace: &TraceSummary) -> (Value, [String; 8]) {
    let id = trace.run.as_deref().unwrap_or(trace.session.as_str());
    let TraceSums { tool_calls, model_calls, failures, usage, cost_usd, open_costs, .. } = trace.sums;
    let columns = [
        one_line(id, ID),
        clock(trace.started_ms),
        trace.turns.to_string(),
        tool_calls.to_string(),
        model_calls.to_string(),
        failures.to_string(),
        usage.tokens().to_string(),
        cost_text(cost_usd, open_costs).unwrap_or_default(),
    ];
    (json!(trace), columns)
}

fn list(rows: Vec<[String; 8]>) -> Table {
    let head = ["run or session", "started (UTC)", "turns>", "calls>", "requests>", "failed>", "tokens>", "cost>"];
    let mut table = Table::new(head);
    rows.into_iter().for_each(|row| table.row(row.map(Cell::from)));
    table
}

/// Draws the tree, with a bar for each operation over the whole time.
fn draw(trace: &Trace) -> String {
    let mut out = String::new();
    let title = match &trace.run {
        Some(run) => format!("run {}", one_line(run, ID)),
        None => format!("session {}", one_line(&trace.session, ID)),
    };
    let _ = writeln!(out, "{}  {}", styled(BOLD, title), styled(DIM, clock(trace.started_ms)));
    if trace.left_out > 0 {
        let _ = writeln!(out, "{}", styled(WARN, format!("{} earlier operations are not shown", trace.left_out)));
    }
    let name_width = trace.turns.iter().flat_map(|turn| &turn.ops).map(|op| width(op, 1)).max().unwrap_or(0);
    for turn in &trace.turns {
        if turn.turn > 0 {
            let _ = writeln!(out, "turn {}", turn.turn);
        }
        for op in &turn.ops {
            lines(op, 1, trace, name_width, &mut out);
        }
    }
    let _ = writeln!(out, "{}", totals(trace));
    out
}

fn width(op: &TraceOp, depth: usize) -> usize {
    let own = depth * 2 + one_line(&op.name, NAME).chars().count() + 2;
    op.children.iter().map(|child| width(child, depth + 1)).chain([own]).max().unwrap_or(0)
}

fn lines(op: &TraceOp, depth: usize, trace: &Trace, name_width: usize, out: &mut String) {
    let (style, sign) = match (op.status.as_str(), op.kind) {
        ("ok" | "done", _) => (GOOD, "✓"),
        (_, OpKind::Guard) => (DIM, "·"),
        ("running" | "pending" | "waiting_input", _) => (WARN, "…"),
        _ => (BAD, "✗"),
    };
    let indent = depth * 2;
    let name = one_line(&op.name, NAME);
    let pad = name_width.saturating_sub(indent + name.chars().count() + 2);
    let offset = op.started_ms.saturating_sub(trace.started_ms);
    let _ = writeln!(
        out,
        "{:indent$}{} {name}{:pad$}  {}  {} {:>9}  {}",
        "",
        styled(style, sign),
        "",
        styled(DIM, format_args!("{:>9}", format!("+{}", time(milliseconds(offset))))),
        styled(DIM, bar(offset, op.latency_ms, trace.latency_ms)),
        time(op.latency_ms),
        facts(op),
    );
    for child in &op.children {
        lines(child, depth + 1, trace, name_width, out);
    }
}

/// Draws the time of the operation within the whole.
fn bar(offset_ms: u64, latency_ms: f64, whole_ms: u64) -> String {
    let cells = |ms: f64| {
        let share = ms / milliseconds(whole_ms.max(1)) * BAR as f64;
        // It is between 0 and the number of cells.
        share.clamp(0.0, BAR as f64).round() as usize
    };
    let from = cells(milliseconds(offset_ms)).min(BAR - 1);
    let length = cells(latency_ms).clamp(1, BAR - from);
    format!("{}{}{}", "·".repeat(from), "━".repeat(length), "·".repeat(BAR - from - length))
}

fn facts(op: &TraceOp) -> String {
    let mut facts = Vec::new();
    if !matches!(op.status.as_str(), "ok" | "done") {
        let style = match op.status.as_str() {
            _ if op.kind == OpKind::Guard => DIM,
            RUNNING => WARN,
            _ => BAD,
        };
        let status = match op.status.as_str() {
            UNKNOWN_OUTCOME if op.kind == OpKind::Tool => "unknown outcome: its process ended before it".to_owned(),
            status => one_line(status, NAME),
        };
        facts.push(styled(style, status));
    }
    match &op.route {
        Route::Tool => {}
        Route::Latent => facts.push("latent: not executed".to_owned()),
        Route::Activity(name) => facts.push(format!("by the activity {}", one_line(name, NAME))),
        Route::Delegate(name) => facts.push(format!("by the delegate {}", one_line(name, NAME))),
    }
    facts.extend(remarks(op));
    let sizes = |count: u64| size(usize::try_from(count).unwrap_or(usize::MAX));
    match &op.usage {
        Some(usage) => {
            let cache = [(usage.cached_tokens, "cached"), (usage.cache_written_tokens, "written to the cache")];
            let cache: Vec<String> = cache
                .into_iter()
                .filter(|(tokens, _)| *tokens > 0)
                .map(|(tokens, what)| format!("{tokens} {what}"))
                .collect();
            let cached = if cache.is_empty() { String::new() } else { format!(" ({})", cache.join(", ")) };
            let reasoning = match usage.reasoning_tokens {
                0 => String::new(),
                tokens => format!(" ({tokens} reasoning)"),
            };
            facts.push(format!("{}{cached} → {}{reasoning} tokens", usage.input_tokens, usage.output_tokens));
        }
        None if op.kind != OpKind::Guard => {
            facts.push(format!("{} → {}", sizes(op.characters_in), sizes(op.characters_out)));
        }
        None => {}
    }
    facts.extend(op.cost_usd.map(money));
    if let Some(agent) = &op.agent {
        let TraceSums { tool_calls, model_calls, usage, cost_usd, open_costs, .. } = agent.totals;
        let cost = cost_text(cost_usd, open_costs).map(|cost| format!(", {cost}")).unwrap_or_default();
        let sums = format!("{model_calls} requests, {tool_calls} calls, {} tokens{cost}", usage.tokens());
        facts.push(format!("run {}: {sums}", one_line(&agent.run, ID)));
    }
    if op.person_ms >= 1.0 {
        facts.push(format!("a person took {}", time(op.person_ms)));
    }
    if op.wait_ms >= 1.0 {
        facts.push(format!("waited {}", time(op.wait_ms)));
    }
    match op.kind {
        OpKind::Model if op.attempts > 1 => facts.push(format!("attempt {}", op.attempts)),
        _ if op.attempts > 1 => facts.push(format!("{} attempts", op.attempts)),
        _ => {}
    }
    if op.cached {
        facts.push("cached".to_owned());
    }
    if !op.decided_by.is_empty() {
        let approval = op.approval.as_ref().map(|approval| format!(": {approval}")).unwrap_or_default();
        facts.push(styled(DIM, one_line(&format!("{}{approval}", op.decided_by), NAME)));
    }
    facts.join(", ")
}

/// Returns notes on how a call was changed, what a request showed, and why it failed.
fn remarks(op: &TraceOp) -> Vec<String> {
    let mut remarks = Vec::new();
    let Provenance { repaired, unwrapped, coerced, cut, unvalidated, repair, .. } = &op.provenance;
    if let Some(mode) = unvalidated {
        let mode = json!(mode);
        remarks.push(styled(WARN, format!("not validated: {}", mode.as_str().unwrap_or_default())));
    }
    if *repaired || *unwrapped {
        remarks.push("arguments repaired".to_owned());
    }
    if let Some(record) = repair {
        let end = match &record.end {
            RepairOutcome::Accepted => "accepted",
            RepairOutcome::Rejected(_) => "rejected",
            RepairOutcome::Failed(_) => "failed",
        };
        remarks.push(format!("arguments repaired by {}: {end}", one_line(&record.model, NAME)));
    }
    if cut.is_some() {
        remarks.push("arguments were cut".to_owned());
    }
    if !coerced.is_empty() {
        remarks.push(format!("coerced {}", one_line(&coerced.join(" "), NAME)));
    }
    if let Some(tools) = &op.tools {
        remarks.push(format!("{} tools shown", tools.shown));
    }
    if let Some(note) = &op.note {
        remarks.push(styled(DIM, one_line(note, NOTE)));
    }
    remarks
}

pub(super) fn totals(trace: &Trace) -> String {
    let TraceSums { tool_calls, model_calls, jobs, failures, usage, cost_usd, open_costs } = trace.totals;
    let mut parts = vec![format!("{tool_calls} calls")];
    if model_calls > 0 {
        parts.push(format!("{model_calls} requests"));
        parts.push(format!("{} → {} tokens", usage.input_tokens, usage.output_tokens));
        parts.push(cost_text(cost_usd, open_costs).unwrap_or_else(|| "cost unknown".to_owned()));
    }
    if jobs > 0 {
        parts.push(format!("{jobs} jobs"));
    }
    parts.push(if failures > 0 { styled(BAD, format!("{failures} failed")) } else { "none failed".to_owned() });
    parts.push(time(milliseconds(trace.latency_ms)));
    format!("{} {}", styled(BOLD, "total"), parts.join(", "))
}

/// Returns the known part of a cost of which `open` parts are unknown; `None` if nothing is known. Requests that were
/// never sent do not count.
fn cost_text(usd: Option<f64>, open: u64) -> Option<String> {
    match (usd?, open) {
        (usd, 0) => Some(money(usd)),
        (0.0, _) => None,
        (usd, _) => Some(format!("at least {}", money(usd))),
    }
}

fn money(usd: f64) -> String {
    if usd < 0.01 { format!("${usd:.5}") } else { format!("${usd:.2}") }
}

fn milliseconds(ms: u64) -> f64 {
    ms as f64
}

fn time(ms: f64) -> String {
    match ms {
        _ if ms < 10.0 => format!("{ms:.1} ms"),
        _ if ms < 1000.0 => format!("{ms:.0} ms"),
        _ if ms < 60_000.0 => format!("{:.1} s", ms / 1000.0),
        _ => format!("{:.0} min", ms / 60_000.0),
    }
}

/// Returns date and time of day in UTC.
pub(super) fn clock(ms: u64) -> String {
    crate::terminal::logging::timestamp(ms)
}

#[cfg(test)]
mod tests {
    use toolwright::core::session::SessionId;
    use toolwright::core::store::LedgerEntry;
    use toolwright::core::{Lineage, OpId};

    use super::*;

    fn entry(op: u64, parent: Option<u64>, kind: OpKind, name: &str, at_ms: u64, latency_ms: u64) -> LedgerEntry {
        let lineage = Lineage { parent: parent.map(OpId::new), turn: 1, ..Lineage::named("r") };
        LedgerEntry {
            latency_us: latency_ms * 1000,
            characters_in: 20,
            characters_out: 2048,
            ..LedgerEntry::new(
                lineage.begin(OpId::new(op)),
                at_ms,
                SessionId::new("s"),
                "owner".into(),
                kind,
                name.into(),
            )
        }
    }

    fn summary_of(entries: &[LedgerEntry]) -> TraceSummary {
        let mut sums = TraceSums::default();
        entries.iter().for_each(|entry| sums.add(entry));
        TraceSummary {
            run: Some("r".into()),
            session: SessionId::new("s"),
            principal: "owner".into(),
            within: None,
            started_ms: 0,
            ended_ms: 1000,
            live: false,
            turns: 1,
            sums,
        }
    }

    #[test]
    fn a_run_is_drawn_as_a_tree() {
        let model = LedgerEntry {
            usage: toolwright::core::model::Usage {
                input_tokens: 900,
                output_tokens: 12,
                cached_tokens: 300,
                cache_written_tokens: 40,
                reasoning_tokens: 5,
            },
            cost_usd: Some(0.0123),
            ..entry(1, None, OpKind::Model, "p/m", 500, 500)
        };
        let outer = entry(2, None, OpKind::Tool, "agent:batch@1.0.0", 1000, 500);
        let inner = LedgerEntry {
            status: "timeout".into(),
            wait_us: 20_000,
            attempts: 2,
            decided_by: "rule 3".into(),
            approval: Some("approve".into()),
            ..entry(3, Some(2), OpKind::Tool, "x:\u{1b}[2Jevil\u{202e}@1.0.0", 900, 250)
        };
        let entries = [model, inner, outer];
        let summary = summary_of(&entries);
        let drawn = anstream::adapter::strip_str(&draw(&Trace::of(&summary, &entries))).to_string();
        assert_eq!(
            drawn,
            "run r  1970-01-01 00:00:00\n\
             turn 1\n\
             \u{20} ✓ p/m                           +0.0 ms  ━━━━━━━━━━··········    500 ms  900 (300 cached, 40 written to the cache) → 12 (5 reasoning) tokens, $0.01\n\
             \u{20} ✓ agent:batch@1.0.0             +500 ms  ··········━━━━━━━━━━    500 ms  20 B → 2.0 kB\n\
             \u{20}   ✗ x: [2Jevil\\u{202e}@1.0.0    +650 ms  ·············━━━━━··    250 ms  timeout, 20 B → 2.0 kB, waited 20 ms, 2 attempts, rule 3: approve\n\
             total 2 calls, 1 requests, 900 → 12 tokens, $0.01, 1 failed, 1.0 s\n"
        );
    }

    #[test]
    fn unsent_requests_leave_the_cost_unknown() {
        for (usd, open, expect) in [
            (None, 0, None),
            (None, 1, None),
            (Some(0.0), 0, Some("$0.00000")),
            (Some(0.0), 1, None),
            (Some(0.5), 1, Some("at least $0.50")),
        ] {
            assert_eq!(cost_text(usd, open).as_deref(), expect, "{usd:?} {open}");
        }
    }

    #[test]
    fn a_partly_known_cost_is_a_lower_bound() {
        let of = |status: &'static str, usage: u64, cost_usd: Option<f64>| LedgerEntry {
            status: status.into(),
            usage: toolwright::core::model::Usage { input_tokens: usage, ..Default::default() },
            cost_usd,
            ..entry(1, None, OpKind::Model, "p/m", 500, 500)
        };
        let paid = || of("ok", 9, Some(0.5));
        for (others, cost, tokens) in [
            (vec![], "$0.50", "9"),
            // Without a price, without usage, and without either.
            (vec![of("ok", 7, None)], "at least $0.50", "16"),
            (vec![of("ok", 0, None)], "at least $0.50", "9"),
            (vec![of("unavailable", 0, None)], "at least $0.50", "9"),
            (vec![of("rate_limit", 7, None)], "at least $0.50", "16"),
            // Refused and unsent requests cost nothing.
            (vec![of("rate_limit", 0, None), of("auth", 0, None)], "$0.50", "9"),
            (vec![LedgerEntry { attempts: 0, ..of("canceled", 0, None) }], "$0.50", "9"),
            (vec![entry(2, None, OpKind::Tool, "t:t@1.0.0", 500, 5)], "$0.50", "9"),
            (vec![of("ok", u64::MAX, Some(0.25))], "$0.75", "18446744073709551615"),
        ] {
            let entries: Vec<LedgerEntry> = others.into_iter().chain([paid()]).collect();
            let summary = summary_of(&entries);
            let (json, columns) = listed(&summary);
            assert_eq!((columns[6].as_str(), columns[7].as_str()), (tokens, cost), "{json}");
            let drawn = anstream::adapter::strip_str(&draw(&Trace::of(&summary, &entries))).to_string();
            assert!(drawn.contains(&format!(" tokens, {cost}, ")), "{drawn}");
        }
    }
}
