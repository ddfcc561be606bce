//! The instruments and their series.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hashbrown::hash_map::EntryRef;
use hashbrown::{Equivalent, HashMap};

use crate::semconv::{
    AGENT_NAME, ERROR_TYPE, MCP_METHOD, OPERATION, PROVIDER, REQUEST_MODEL, TOKEN_TYPE, TOOL_NAME, TOOL_TYPE,
};

/// Description of a metric.
#[derive(Debug, PartialEq)]
pub struct Instrument {
    /// Name, as OpenTelemetry writes it.
    pub name: &'static str,
    /// Description.
    pub help: &'static str,
    /// Unit, by UCUM: `s`, or an annotation like `{call}`.
    pub unit: &'static str,
    /// Kind of the instrument.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
}

/// Kind of an instrument.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only increases.
    Counter,
    /// Increases and decreases.
    Gauge,
    /// Counts values in buckets with these upper bounds, ascending, and one above them.
    Histogram(&'static [f64]),
}

/// An instrument with its series.
#[derive(Debug, Clone)]
pub struct Family {
    instrument: &'static Instrument,
    /// Points by label values; an empty value means no label.
    series: HashMap<Vec<Arc<str>>, Point>,
}

/// The values of a series' labels, to find it without allocation.
struct Labels<'a>(&'a [&'a str]);

impl Hash for Labels<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Equivalent<Vec<Arc<str>>> for Labels<'_> {
    fn equivalent(&self, known: &Vec<Arc<str>>) -> bool {
        self.0.iter().copied().eq(known.iter().map(|label| &**label))
    }
}

/// The count of one series.
#[derive(Debug, Clone, PartialEq)]
pub enum Point {
    /// Value of a counter or gauge.
    Number(i64),
    /// Value of a histogram.
    Histogram(Histogram),
}

/// Values in buckets.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    /// The number of values in each bucket and in no lower one: one bucket more than bounds.
    pub buckets: Vec<u64>,
    /// The number of values.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

impl Family {
    pub(crate) fn new(instrument: &'static Instrument) -> Self {
        Self { instrument, series: HashMap::new() }
    }

    /// The instrument.
    #[must_use]
    pub fn instrument(&self) -> &'static Instrument {
        self.instrument
    }

    /// Its series in the order of their labels: the labels that are not empty, and the count.
    pub fn series(&self) -> impl Iterator<Item = (Vec<(&'static str, &str)>, &Point)> {
        let mut series: Vec<_> = self.series.iter().collect();
        series.sort_unstable_by_key(|(values, _)| *values);
        series.into_iter().map(|(values, point)| {
            let labels = self.instrument.labels.iter().copied().zip(values.iter().map(|value| &**value));
            (labels.filter(|(_, value)| !value.is_empty()).collect(), point)
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.series.clear();
    }

    pub(crate) fn add(&mut self, labels: &[&str], count: u64) {
        self.change(labels, i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn change(&mut self, labels: &[&str], by: i64) {
        if let Point::Number(number) = self.point(labels) {
            *number = number.saturating_add(by);
        }
    }

    /// Sets a count from elsewhere. Zero creates no series.
    pub(crate) fn set(&mut self, count: u64) {
        if count > 0 || !self.is_empty() {
            *self.point(&[]) = Point::Number(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(crate) fn record(&mut self, labels: &[&str], value: f64) {
        let Kind::Histogram(bounds) = self.instrument.kind else { return };
        if let Point::Histogram(histogram) = self.point(labels) {
            histogram.buckets[bounds.partition_point(|bound| *bound < value)] += 1;
            histogram.count += 1;
            histogram.sum += value;
        }
    }

    /// Returns the point of the series with these labels, added if missing.
    fn point(&mut self, labels: &[&str]) -> &mut Point {
        debug_assert_eq!(labels.len(), self.instrument.labels.len(), "{}", self.instrument.name);
        match self.series.entry_ref(&Labels(labels)) {
            EntryRef::Occupied(known) => known.into_mut(),
            EntryRef::Vacant(vacant) => {
                let point = match self.instrument.kind {
                    Kind::Counter | Kind::Gauge => Point::Number(0),
                    Kind::Histogram(bounds) => {
                        Point::Histogram(Histogram { buckets: vec![0; bounds.len() + 1], ..Histogram::default() })
                    }
                };
                let key = labels.iter().map(|&label| label.into()).collect();
                vacant.insert_with_key(key, point)
            }
        }
    }
}

/// Buckets for model requests and tool calls.
const GEN_AI_SECONDS: Kind =
    Kind::Histogram(&[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]);
const TOKENS: Kind = Kind::Histogram(&[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1024.0,
    4096.0,
    16384.0,
    65536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
]);
/// Buckets for agent runs.
const RUN_SECONDS: Kind = Kind::Histogram(&[0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6]);
/// Buckets for MCP requests.
const MCP_SECONDS: Kind =
    Kind::Histogram(&[0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0]);
/// Buckets for our own metrics: calls of local tools and waits are often shorter.
const SHORT_SECONDS: Kind = Kind::Histogram(&[0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0]);

/// Buckets for people's answers.
const PERSON_SECONDS: Kind = Kind::Histogram(&[1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 21_600.0, 86_400.0]);

macro_rules! families {
    ($($field:ident: $name:literal, $unit:literal, $kind:expr, $labels:expr, $help:literal;)*) => {
        /// Every instrument with its series.
        #[derive(Debug)]
        pub(crate) struct Families {
            $(pub(crate) $field: Family,)*
        }

        impl Default for Families {
            fn default() -> Self {
                Self {
                    $($field: {
                        static INSTRUMENT: Instrument =
                            Instrument { name: $name, help: $help, unit: $unit, kind: $kind, labels: $labels };
                        Family::new(&INSTRUMENT)
                    },)*
                }
            }
        }

        impl Families {
            pub(crate) fn all(&self) -> Vec<&Family> {
                vec![$(&self.$field,)*]
            }
        }
    };
}

families! {
    model_seconds: "gen_ai.client.operation.duration", "s", GEN_AI_SECONDS,
        &[OPERATION, PROVIDER, REQUEST_MODEL, ERROR_TYPE], "Duration of requests to models.";
    tokens: "gen_ai.client.token.usage", "{token}", TOKENS,
        &[OPERATION, PROVIDER, REQUEST_MODEL, TOKEN_TYPE], "Tokens used by each request to a model.";
    execute_tool: "gen_ai.execute_tool.duration", "s", GEN_AI_SECONDS,
        &[TOOL_NAME, TOOL_TYPE, ERROR_TYPE], "Duration of tool calls.";
    invoke_agent: "gen_ai.invoke_agent.duration", "s", RUN_SECONDS,
        &[AGENT_NAME, ERROR_TYPE], "Duration of runs of agents.";
    mcp_client: "mcp.client.operation.duration", "s", MCP_SECONDS,
        &[MCP_METHOD, OPERATION, TOOL_NAME, ERROR_TYPE], "Duration of calls to MCP servers.";
    mcp_server: "mcp.server.operation.duration", "s", MCP_SECONDS,
        &[MCP_METHOD, OPERATION, TOOL_NAME, ERROR_TYPE], "Duration of calls that MCP clients made.";
    calls: "toolwright.tool.calls", "{call}", Kind::Counter,
        &["tool", "provider", "status"], "Tool calls by how they ended: ok, or the kind of error.";
    tool_seconds: "toolwright.tool.duration", "s", SHORT_SECONDS,
        &["tool", "provider"], "Duration of tool calls, waiting included but for people's answers.";
    person_seconds: "toolwright.person.wait", "s", PERSON_SECONDS,
        &["tool", "provider"], "How long calls waited for people: for approval, or for what a tool wanted to know.";
    queue_wait: "toolwright.queue.wait", "s", SHORT_SECONDS,
        &["queue"], "How long calls waited for a slot or a lock, those that had to wait.";
    waiting: "toolwright.queue.waiting", "{call}", Kind::Gauge, &["queue"], "Calls that wait for a slot or a lock.";
    running: "toolwright.tool.running", "{call}", Kind::Gauge, &[], "Calls that run.";
    cache_hits: "toolwright.cache.hits", "{call}", Kind::Counter, &["tool"], "Calls answered from the response cache.";
    jobs: "toolwright.jobs", "{job}", Kind::Gauge, &["state"], "Jobs that are not over, by state.";
    jobs_finished: "toolwright.jobs.finished", "{job}", Kind::Counter, &["state"], "Jobs that are over, by last state.";
    compactions: "toolwright.context.compactions", "{compaction}", Kind::Counter, &["layer"],
        "Times that room was made in a conversation.";
    approvals: "toolwright.approvals", "{decision}", Kind::Counter, &["decision"], "Answers to what policy asked.";
    ledger_failures: "toolwright.ledger.failures", "{write}", Kind::Counter, &[],
        "Writes of the ledger that failed, as on a full disk.";
    ledger_lost: "toolwright.ledger.lost", "{entry}", Kind::Counter, &[],
        "Entries of the ledger that are lost: they could not be written.";
    ledger_waiting: "toolwright.ledger.waiting", "{entry}", Kind::Gauge, &[],
        "Entries of the ledger that wait until it can be written.";
    events_lost: "toolwright.events.lost", "{event}", Kind::Counter, &[], "Events that metrics and spans missed.";
    spans_lost: "toolwright.spans.lost", "{span}", Kind::Counter,
        &["reason"], "Spans that no receiver got: dropped for want of room, or failed to be sent.";
}
