//! Builds events as Toolwright emits them.

use std::time::{Duration, SystemTime};

use serde_json::json;
use toolwright_core::error::ErrorKind;
use toolwright_core::event::{Event, McpPeer};
use toolwright_core::job::JobState;
use toolwright_core::model::{ModelErrorKind, StopReason, Usage};
use toolwright_core::operation::{CallOrigin, Lineage, Op, OpId, TraceId};
use toolwright_core::session::{CallId, SessionId};
use toolwright_core::tool_id::{ToolId, wire_candidate};

/// What stands where nobody may see it: in arguments and in messages.
pub(crate) const SECRET_TEXT: &str = "what-was-said";

/// So many milliseconds after an hour that is easy to read.
pub(crate) fn at(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000 + ms)
}

/// The operation `id`, part of `parent`, or of nothing if that is 0.
pub(crate) fn op(id: u64, parent: u64) -> Op {
    let parent = (parent > 0).then(|| OpId::new(parent));
    Lineage { parent, ..Lineage::in_trace(TraceId::new(0xabc)) }.begin(OpId::new(id))
}

pub(crate) fn in_run(op: Op, run: &str, turn: u32) -> Op {
    Op { lineage: Lineage { run: Some(run.into()), turn, ..op.lineage }, ..op }
}

fn session() -> SessionId {
    SessionId::new("s1")
}

fn call(op: &Op) -> CallId {
    CallId::new(format!("call-{}", op.id.get()))
}

fn tool(id: &str) -> ToolId {
    ToolId::parse(id).expect("id")
}

/// What calls have in common in these tests.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallTraits {
    pub(crate) mcp: bool,
    pub(crate) origin: CallOrigin,
    /// The method that they are of, where they are of no tool.
    pub(crate) method: Option<&'static str>,
}

/// Calls of an agent's model to tools of our own.
pub(crate) const OURS: CallTraits = CallTraits { mcp: false, origin: CallOrigin::Agent, method: None };

impl CallTraits {
    fn peer(self) -> Option<McpPeer> {
        self.mcp.then(|| McpPeer {
            server: "git".into(),
            protocol_version: Some("2025-11-25".into()),
            session: Some("upstream-1".into()),
        })
    }

    pub(crate) fn started(self, op: &Op, id: &str) -> Event {
        let tool = tool(id);
        Event::ToolStarted {
            op: op.clone(),
            session: session(),
            call: call(op),
            wire_name: wire_candidate(tool.namespace(), tool.name()).into(),
            provider: tool.namespace().into(),
            tool,
            mcp: self.peer(),
            method: self.method.map(Into::into),
            origin: self.origin,
            model: String::new(),
            attempt: 1,
            arguments: json!({"text": SECRET_TEXT}),
            provenance: Default::default(),
            after_us: 0,
        }
    }

    /// The end of a call that took so many milliseconds; of no known tool if `id` is empty.
    pub(crate) fn finished(self, op: &Op, id: &str, error: Option<ErrorKind>, ms: u64) -> Event {
        let tool = (!id.is_empty()).then(|| tool(id));
        let namespace = tool.as_ref().map(|tool| tool.namespace().to_owned()).unwrap_or_default();
        Event::ToolFinished {
            op: op.clone(),
            session: session(),
            call: call(op),
            wire_name: tool
                .as_ref()
                .map_or(SECRET_TEXT.to_owned(), |it| wire_candidate(it.namespace(), it.name()))
                .into(),
            refused: None,
            provider: namespace.as_str().into(),
            namespace,
            tool,
            mcp: self.peer(),
            method: self.method.map(Into::into),
            origin: self.origin,
            model: String::new(),
            attempts: 1,
            ok: error.is_none(),
            error,
            code: None,
            message: error.map(|_| SECRET_TEXT.into()),
            latency_us: ms * 1000,
            wait_us: 0,
            person_us: 0,
            run_us: ms * 1000,
            queue: None,
            cached: false,
            decided_by: "".into(),
            characters_in: 20,
            characters_out: 300,
        }
    }
}

pub(crate) fn started(op: &Op, id: &str) -> Event {
    OURS.started(op, id)
}

pub(crate) fn finished(op: &Op, id: &str, error: Option<ErrorKind>, ms: u64) -> Event {
    OURS.finished(op, id, error, ms)
}

pub(crate) fn waits(op: &Op, id: &str, queue: &str) -> Event {
    Event::ToolWait { op: op.clone(), call: call(op), tool: tool(id), queue: queue.into() }
}

pub(crate) fn waited(op: &Op, id: &str, queue: &str, ms: u64) -> Event {
    Event::ToolWaited {
        op: op.clone(),
        call: call(op),
        tool: tool(id),
        queue: queue.into(),
        ok: true,
        wait_us: ms * 1000,
    }
}

pub(crate) fn cache_hit(op: &Op, id: &str) -> Event {
    Event::CacheHit { op: op.clone(), call: call(op), tool: tool(id) }
}

pub(crate) fn decided(op: &Op, id: &str, decision: &str) -> Event {
    Event::ApprovalDecided { op: op.clone(), call: call(op), tool: tool(id), decision: decision.into() }
}

pub(crate) fn asked(op: &Op, model: &str) -> Event {
    Event::ModelStarted {
        op: op.clone(),
        session: session(),
        model: model.into(),
        turn: op.lineage.turn,
        shown: vec!["a__b".into()],
        deferred: 0,
        exposure: None,
    }
}

pub(crate) fn answered(op: &Op, model: &str, ok: bool, ms: u64) -> Event {
    Event::ModelFinished {
        op: op.clone(),
        session: session(),
        model: model.into(),
        attempt: 1,
        ok,
        error: (!ok).then_some(ModelErrorKind::RateLimit),
        message: (!ok).then(|| SECRET_TEXT.into()),
        stop: ok.then_some(StopReason::ToolCalls),
        latency_us: ms * 1000,
        usage: if ok {
            Usage {
                input_tokens: 1000,
                output_tokens: 50,
                cached_tokens: 900,
                cache_written_tokens: 60,
                reasoning_tokens: 0,
            }
        } else {
            Usage::default()
        },
        cost_usd: None,
        characters_in: 4000,
        characters_out: 200,
    }
}

pub(crate) fn run_started(op: &Op, agent: Option<&str>) -> Event {
    let agent = agent.map(str::to_owned);
    Event::RunStarted { op: op.clone(), session: session(), agent, model: "openai/gpt-6".into() }
}

pub(crate) fn run_finished(op: &Op, agent: Option<&str>, ok: bool, ms: u64) -> Event {
    Event::RunFinished {
        op: op.clone(),
        session: session(),
        agent: agent.map(str::to_owned),
        ok,
        status: if ok { "success" } else { "failure" }.into(),
        latency_us: ms * 1000,
        usage: Usage { input_tokens: 3000, output_tokens: 70, cached_tokens: 0, ..Usage::default() },
    }
}

pub(crate) fn job_started(op: &Op, job: &str, id: &str) -> Event {
    Event::JobStarted { op: op.clone(), session: session(), job: job.into(), tool: tool(id) }
}

pub(crate) fn job_changed(op: &Op, job: &str, id: &str, state: JobState) -> Event {
    Event::JobChanged { op: op.clone(), session: session(), job: job.into(), tool: tool(id), state }
}

pub(crate) fn job_finished(op: &Op, job: &str, id: &str, state: JobState, ms: u64) -> Event {
    Event::JobFinished {
        op: op.clone(),
        session: session(),
        job: job.into(),
        tool: tool(id),
        state,
        error: None,
        message: Some(SECRET_TEXT.into()),
        latency_us: ms * 1000,
    }
}
