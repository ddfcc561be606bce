//! Metrics of tool calls, the most frequent events: the series of a call is looked up once.

use std::time::Duration;

use hashbrown::HashMap;
use toolwright_core::ErrorKind;
use toolwright_core::event::Event;
use toolwright_core::operation::Origin;

use super::family::Place;
use super::instruments::Families;
use super::names::{Name, Names};
use crate::semconv;
use crate::spans::tool_name;

/// What calls have in common that count in the same series. Names are bounded, and so are these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Alike {
    tool: Name,
    /// The method of MCP that it is, where it is no call of a tool.
    method: Option<Name>,
    provider: Name,
    failure: Option<Failure>,
    /// It is a request of an MCP client.
    of_client: bool,
    /// It was a request to an MCP server.
    to_server: bool,
    /// A person was asked.
    asked: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Failure {
    kind: Option<ErrorKind>,
    /// The peer's own code.
    code: Option<Name>,
}

/// Where a call counts.
#[derive(Debug, Clone, Copy)]
struct Series {
    calls: Place,
    tool_seconds: Place,
    person_seconds: Option<Place>,
    execute_tool: Option<Place>,
    mcp_server: Option<Place>,
    mcp_client: Option<Place>,
}

/// The series of calls that were counted before.
#[derive(Debug, Default)]
pub(super) struct Calls {
    known: HashMap<Alike, Series>,
}

/// The names that calls are counted by.
pub(super) struct CallNames<'n> {
    pub(super) tools: &'n mut Names,
    pub(super) providers: &'n mut Names,
    pub(super) methods: &'n mut Names,
    pub(super) errors: &'n mut Names,
}

impl Calls {
    /// Counts the end of a call.
    pub(super) fn finished(&mut self, event: &Event, names: CallNames<'_>, families: &mut Families) {
        let Event::ToolFinished { tool, wire_name, provider, mcp, method, origin, attempts, .. } = event else {
            return;
        };
        let Event::ToolFinished { ok, error, code, latency_us, wait_us, person_us, .. } = event else { return };
        let code = code.filter(|_| !ok).map(|code| names.errors.name(&code.to_string()));
        let alike = Alike {
            tool: names.tools.name(tool_name(tool.as_ref(), wire_name)),
            method: method.as_deref().map(|method| names.methods.name(method)),
            provider: names.providers.name(provider),
            failure: (!ok).then_some(Failure { kind: *error, code }),
            of_client: *origin == Origin::Gateway,
            to_server: mcp.is_some() && *attempts > 0,
            asked: *person_us > 0,
        };
        let series = *self.known.entry(alike).or_insert_with(|| Series::of(alike, &names, families));
        let (whole, run) = (seconds(*latency_us), seconds(latency_us.saturating_sub(*wait_us)));
        families.calls.add_at(series.calls, 1);
        families.tool_seconds.record_at(series.tool_seconds, whole);
        if let Some(place) = series.person_seconds {
            families.person_seconds.record_at(place, seconds(*person_us));
        }
        if let Some(place) = series.execute_tool {
            families.execute_tool.record_at(place, run);
        }
        if let Some(place) = series.mcp_server {
            families.mcp_server.record_at(place, whole);
        }
        if let Some(place) = series.mcp_client {
            families.mcp_client.record_at(place, run);
        }
    }
}

impl Series {
    fn of(alike: Alike, names: &CallNames<'_>, families: &mut Families) -> Self {
        let (tool, provider) = (names.tools.text(alike.tool), names.providers.text(alike.provider));
        let [error, request_error] = match alike.failure {
            None => ["", ""],
            Some(Failure { kind, code }) => [
                semconv::tool_error(kind),
                code.map_or_else(|| semconv::request_error(kind), |code| names.errors.text(code)),
            ],
        };
        let status = if alike.failure.is_none() { "ok" } else { error };
        // The method says what a request is that calls no tool.
        let request = match alike.method {
            None => [semconv::TOOLS_CALL, semconv::EXECUTE_TOOL, tool, request_error],
            Some(method) => [names.methods.text(method), "", "", request_error],
        };
        let calls_tool = alike.method.is_none();
        Self {
            calls: families.calls.place(&[tool, provider, status]),
            tool_seconds: families.tool_seconds.place(&[tool, provider]),
            person_seconds: alike.asked.then(|| families.person_seconds.place(&[tool, provider])),
            execute_tool: calls_tool.then(|| families.execute_tool.place(&[tool, semconv::FUNCTION, error])),
            mcp_server: alike.of_client.then(|| families.mcp_server.place(&request)),
            mcp_client: alike.to_server.then(|| families.mcp_client.place(&request)),
        }
    }
}

pub(super) fn seconds(us: u64) -> f64 {
    Duration::from_micros(us).as_secs_f64()
}
