//! Arranges operations as a tree: session or run, turns, operations inside operations.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::Serialize;

use crate::event::operation::{OpId, OpKind};
use crate::model::exposure::ExposureRecord;
use crate::model::{Route, Usage};
use crate::output::provenance::Provenance;
use crate::store::{LedgerEntry, LedgerStore, StoreError, TraceSummary, TraceSums};

/// Number of operations that [`read`] reads of one run or session.
pub const MAX_OPERATIONS: usize = 10_000;
/// Maximal nesting in the tree; deeper operations are placed at this depth.
const MAX_DEPTH: usize = 32;

/// A run, or a session outside of runs, with all its known operations.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Trace {
    /// The run, if an agent made them.
    pub run: Option<Arc<str>>,
    /// Session.
    pub session: String,
    /// Milliseconds since the epoch at the start of the first.
    pub started_ms: u64,
    /// Milliseconds from there to the end of the last.
    pub latency_ms: u64,
    /// Whether it is active.
    pub live: bool,
    /// Sums over all of them.
    pub totals: TraceSums,
    /// Operations that are not among the turns: only the last are read of very many.
    pub left_out: u64,
    /// The turns, in order. Outside of runs there is a single turn 0.
    pub turns: Vec<TraceTurn>,
}

/// A turn.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceTurn {
    /// Its number, from 1; 0 outside of runs.
    pub turn: u32,
    /// Its operations that are part of no other, in the order of their start.
    pub ops: Vec<TraceOp>,
}

/// An operation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceOp {
    /// Its place.
    pub op: OpId,
    /// Its trace id, for exports.
    pub trace: String,
    /// Its parent operation, even if unknown here.
    pub parent: Option<OpId>,
    /// Kind.
    pub kind: OpKind,
    /// Tool id or `provider/model`.
    pub name: String,
    /// Call id or job id.
    pub call: Option<String>,
    /// `ok`, the error kind, `running` while it has no end, or `unknown` when its process ended before it.
    pub status: String,
    /// Milliseconds since the epoch at its start.
    pub started_ms: u64,
    /// Milliseconds, including waits except those for people.
    pub latency_ms: f64,
    /// Milliseconds of the latency spent waiting for slot and lock.
    pub wait_ms: f64,
    /// Further milliseconds spent waiting for people.
    pub person_ms: f64,
    /// Number of attempts; 0 if it never ran.
    pub attempts: u32,
    /// Whether the result came from the response cache.
    pub cached: bool,
    /// Characters of input.
    pub characters_in: u64,
    /// Characters of output.
    pub characters_out: u64,
    /// Tokens, for a model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// Its cost in US dollars, if the price is known; `null` for a model without one.
    pub cost_usd: Option<f64>,
    /// Parts of the request that the model's API cannot express.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
    /// Who ran it, if not its own tool.
    #[serde(skip_serializing_if = "Route::is_tool")]
    pub route: Route,
    /// What decided that it may run.
    pub decided_by: String,
    /// The person's decision, if one was asked.
    pub approval: Option<String>,
    /// Why it failed, or why a request shows these tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<Arc<str>>,
    /// For a tool: changes made to name and arguments.
    #[serde(skip_serializing_if = "Provenance::is_plain")]
    pub provenance: Provenance,
    /// The tools shown in a request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<ExposureRecord>,
    /// The run of an agent that the call began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<TraceAgent>,
    /// Its child operations, in start order.
    pub children: Vec<TraceOp>,
}

/// The run of an agent inside a call.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceAgent {
    /// The run.
    pub run: Arc<str>,
    /// Totals of its operations and those of its child agents.
    pub totals: TraceSums,
}

impl Trace {
    /// Builds the tree of a run or session and its child runs: see
    /// [`trace_tree`](crate::store::LedgerStore::trace_tree).
    #[must_use]
    pub fn of_tree(tree: &[TraceSummary], entries: &[LedgerEntry]) -> Option<Self> {
        let (first, below) = tree.split_first()?;
        let mut summary = first.clone();
        for child in below {
            summary.sums.add_all(&child.sums);
            summary.ended_ms = summary.ended_ms.max(child.ended_ms);
        }
        Some(Self::of(&summary, entries))
    }

    /// Builds the tree of these operations. An operation without a known parent is at the top of its turn; so is one
    /// that is its own ancestor, which only a corrupt ledger has.
    #[must_use]
    pub fn of(summary: &TraceSummary, entries: &[LedgerEntry]) -> Self {
        let positions: HashMap<OpId, usize> = entries.iter().enumerate().map(|(at, entry)| (entry.op.id, at)).collect();
        let parent = |at: usize| entries[at].op.lineage.parent.and_then(|parent| positions.get(&parent)).copied();
        let mut children: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut tops = Vec::new();
        for at in 0..entries.len() {
            match parent(at).filter(|_| reaches_root(at, &parent)) {
                Some(parent) => children.entry(parent).or_default().push(at),
                None => tops.push(at),
            }
        }
        let start = |at: &usize| entries[*at].started_us();
        children.values_mut().for_each(|siblings| siblings.sort_by_key(start));
        tops.sort_by_key(|at| (entries[*at].op.lineage.turn, start(at)));
        let mut turns: Vec<TraceTurn> = Vec::new();
        for at in tops {
            let turn = entries[at].op.lineage.turn;
            let op = build(at, entries, &children, 1);
            match turns.last_mut() {
                Some(last) if last.turn == turn => last.ops.push(op),
                _ => turns.push(TraceTurn { turn, ops: vec![op] }),
            }
        }
        let sums = summary.sums;
        let counted = sums.tool_calls + sums.model_calls + sums.jobs;
        let listed_count = entries.iter().filter(|entry| entry.kind != OpKind::Guard).count() as u64;
        Self {
            run: summary.run.clone(),
            session: summary.session.to_string(),
            started_ms: summary.started_ms,
            latency_ms: summary.ended_ms.saturating_sub(summary.started_ms),
            live: summary.live,
            totals: sums,
            left_out: counted.saturating_sub(listed_count),
            turns,
        }
    }
}

/// Returns the trees for `name` ([`LedgerStore::find_traces`]), newest first; empty if there is none. Reads the
/// `last` operations of each run, and [`MAX_OPERATIONS`] in total.
///
/// # Errors
/// Those of the store.
pub async fn read(store: &dyn LedgerStore, name: &str, last: usize) -> Result<Vec<Trace>, StoreError> {
    let mut traces = Vec::new();
    for summary in &store.find_traces(name).await? {
        let tree = store.trace_tree(summary).await?;
        let mut entries = Vec::new();
        for of in &tree {
            entries.extend(store.operations(of, last.min(MAX_OPERATIONS.saturating_sub(entries.len()))).await?);
        }
        traces.extend(Trace::of_tree(&tree, &entries));
    }
    Ok(traces)
}

fn reaches_root(mut at: usize, parent: &impl Fn(usize) -> Option<usize>) -> bool {
    let mut passed = HashSet::new();
    while let Some(next) = parent(at) {
        if !passed.insert(at) {
            return false;
        }
        at = next;
    }
    true
}

fn build(at: usize, entries: &[LedgerEntry], children: &HashMap<usize, Vec<usize>>, depth: usize) -> TraceOp {
    let entry = &entries[at];
    let mut op = TraceOp {
        op: entry.op.id,
        trace: entry.op.lineage.trace.to_string(),
        parent: entry.op.lineage.parent,
        kind: entry.kind,
        name: entry.name.to_string(),
        call: entry.call.as_ref().map(ToString::to_string),
        status: entry.status.to_string(),
        started_ms: entry.started_us() / 1000,
        latency_ms: milliseconds(entry.latency_us),
        wait_ms: milliseconds(entry.wait_us),
        person_ms: milliseconds(entry.person_us),
        attempts: entry.attempts,
        cached: entry.cached,
        characters_in: entry.characters_in,
        characters_out: entry.characters_out,
        usage: (entry.kind == OpKind::Model).then_some(entry.usage),
        cost_usd: entry.cost_usd,
        lost: entry.lost.iter().map(ToString::to_string).collect(),
        route: entry.provenance.route.clone(),
        decided_by: entry.decided_by.to_string(),
        approval: entry.approval.as_ref().map(ToString::to_string),
        note: entry.note.clone(),
        provenance: entry.provenance.clone(),
        tools: entry.tools,
        agent: agent(at, entries, children),
        children: Vec::new(),
    };
    // Deeper ones follow their parent at its depth.
    for &child in children.get(&at).into_iter().flatten() {
        let mut child = build_bounded(child, entries, children, depth + 1);
        op.children.append(&mut child);
    }
    op
}

/// Returns the child run directly inside this operation, if an operation of another session belongs to it.
fn agent(at: usize, entries: &[LedgerEntry], children: &HashMap<usize, Vec<usize>>) -> Option<TraceAgent> {
    let of = |at: usize| children.get(&at).into_iter().flatten().copied();
    let run = of(at).map(|child| &entries[child]).find(|child| child.session != entries[at].session)?;
    let run = Arc::clone(run.op.lineage.run.as_ref()?);
    let mut totals = TraceSums::default();
    let mut open: Vec<usize> = of(at).collect();
    while let Some(next) = open.pop() {
        totals.add(&entries[next]);
        open.extend(of(next));
    }
    Some(TraceAgent { run, totals })
}

fn build_bounded(
    at: usize,
    entries: &[LedgerEntry],
    children: &HashMap<usize, Vec<usize>>,
    depth: usize,
) -> Vec<TraceOp> {
    if depth < MAX_DEPTH {
        return vec![build(at, entries, children, depth)];
    }
    let mut flat = Vec::new();
    let mut open = vec![at];
    while let Some(at) = open.pop() {
        flat.push(build(at, entries, &HashMap::new(), depth));
        open.extend(children.get(&at).into_iter().flatten().rev());
    }
    flat
}

fn milliseconds(micros: u64) -> f64 {
    // Precise to a microsecond; 2^53 of them are 285 years.
    micros as f64 / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::operation::Lineage;
    use crate::identity::session::SessionId;

    /// `(op, parent, turn, kind, at_ms, latency in ms)`
    type Row = (u64, Option<u64>, u32, OpKind, u64, u64);

    fn entry(&(op, parent, turn, kind, at_ms, latency): &Row) -> LedgerEntry {
        let lineage = Lineage { parent: parent.map(OpId::new), turn, ..Lineage::named("r") };
        LedgerEntry {
            latency_us: latency * 1000,
            ..LedgerEntry::new(
                lineage.begin(OpId::new(op)),
                at_ms,
                SessionId::new("s"),
                "owner".into(),
                kind,
                format!("op{op}").into(),
            )
        }
    }

    fn trace(rows: &[Row]) -> Trace {
        let entries: Vec<_> = rows.iter().map(entry).collect();
        let mut sums = TraceSums::default();
        entries.iter().for_each(|entry| sums.add(entry));
        let summary = TraceSummary {
            run: Some("r".into()),
            session: SessionId::new("s"),
            principal: "owner".into(),
            within: None,
            started_ms: 0,
            ended_ms: 100,
            live: false,
            turns: 2,
            sums,
        };
        Trace::of(&summary, &entries)
    }

    /// `1: a(b c) | 2: d`
    fn outline(trace: &Trace) -> String {
        fn written(op: &TraceOp) -> String {
            let inside: Vec<_> = op.children.iter().map(written).collect();
            let name = op.name.trim_start_matches("op");
            if inside.is_empty() { name.to_owned() } else { format!("{name}({})", inside.join(" ")) }
        }
        let turn =
            |turn: &TraceTurn| format!("{}: {}", turn.turn, turn.ops.iter().map(written).collect::<Vec<_>>().join(" "));
        trace.turns.iter().map(turn).collect::<Vec<_>>().join(" | ")
    }

    fn check(rows: &[Row], expect: &str) {
        assert_eq!(outline(&trace(rows)), expect, "{rows:?}");
    }

    #[test]
    fn trace_nests_operations_by_turn_and_parent() {
        use OpKind::{Job, Model, Tool};
        check(&[], "");
        check(
            &[
                (1, Some(99), 1, Model, 10, 10),
                (3, Some(2), 1, Tool, 30, 5),
                (4, Some(2), 1, Tool, 28, 15),
                (2, Some(99), 1, Tool, 40, 29),
                (5, Some(99), 2, Model, 60, 10),
                (6, Some(5), 2, Job, 70, 1),
            ],
            "1: 1 2(4 3) | 2: 5(6)",
        );
        check(&[(2, Some(1), 3, Tool, 1, 0), (1, None, 2, Tool, 2, 2)], "2: 1(2)");
    }

    #[test]
    fn cyclic_parents_make_a_finite_tree() {
        use OpKind::Tool;
        check(&[(1, Some(1), 0, Tool, 1, 0)], "0: 1");
        check(&[(1, Some(2), 0, Tool, 1, 0), (2, Some(1), 0, Tool, 2, 0), (3, Some(2), 0, Tool, 3, 0)], "0: 1 2 3");
        let deep: Vec<Row> = (1..=500).map(|n| (n, (n > 1).then(|| n - 1), 0, Tool, n, 0)).collect();
        let tree = trace(&deep);
        fn count(ops: &[TraceOp]) -> usize {
            ops.iter().map(|op| 1 + count(&op.children)).sum()
        }
        assert_eq!(count(&tree.turns[0].ops), 500);
        assert!(serde_json::to_string(&tree).expect("json").len() > 1000);
    }

    #[test]
    fn unread_trace_rows_are_counted() {
        let mut short = trace(&[(1, None, 0, OpKind::Tool, 1, 0)]);
        assert_eq!(short.left_out, 0);
        short.totals.tool_calls = 9;
        let summary = TraceSummary {
            run: None,
            session: SessionId::new("s"),
            principal: "owner".into(),
            within: None,
            started_ms: 0,
            ended_ms: 1,
            live: false,
            turns: 0,
            sums: short.totals,
        };
        assert_eq!(Trace::of(&summary, &[entry(&(1, None, 0, OpKind::Tool, 1, 0))]).left_out, 8);
    }
}
