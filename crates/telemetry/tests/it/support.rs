//! Events, as the house sends them.

use std::time::{Duration, SystemTime};

use serde_json::json;
use toolwright_core::error::ErrorKind;
use toolwright_core::event::Event;
use toolwright_core::model::Usage;
use toolwright_core::name::ToolId;
use toolwright_core::operation::{Lineage, Op, OpId, TraceId};
use toolwright_core::session::{CallId, SessionId};

/// What stands where nobody may see it: in arguments and in messages.
pub(crate) const SAID: &str = "what-was-said";

/// So many milliseconds after an hour that is easy to read.
pub(crate) fn at(ms: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000 + ms)
}

/// The operation `id`, part of `parent`, or of nothing if that is 0.
pub(crate) fn op(id: u64, parent: u64) -> Op {
    let parent = (parent > 0).then(|| OpId::new(parent));
    Lineage { trace: TraceId::new(0xabc), parent, run: None, turn: 0 }.begin(OpId::new(id))
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

pub(crate) fn waits(op: &Op, id: &str, queue: &str) -> Event {
    Event::ToolWait { call: call(op), tool: tool(id), queue: queue.into() }
}

pub(crate) fn started(op: &Op, id: &str) -> Event {
    Event::ToolStarted {
        op: op.clone(),
        session: session(),
        call: call(op),
        tool: tool(id),
        arguments: json!({"text": SAID}),
        provenance: Default::default(),
    }
}

/// The end of a call that took `latency_ms`; of no known tool if `id` is empty.
pub(crate) fn finished(op: &Op, id: &str, error: Option<ErrorKind>, latency_ms: u64) -> Event {
    let tool = (!id.is_empty()).then(|| tool(id));
    Event::ToolFinished {
        op: op.clone(),
        session: session(),
        call: call(op),
        namespace: tool.as_ref().map(|tool| tool.namespace().to_owned()).unwrap_or_default(),
        tool,
        refused: None,
        ok: error.is_none(),
        error,
        message: error.map(|_| SAID.into()),
        latency_ms,
        characters_in: 20,
        characters_out: 300,
    }
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

pub(crate) fn answered(op: &Op, model: &str, ok: bool, latency_ms: u64) -> Event {
    Event::ModelFinished {
        op: op.clone(),
        session: session(),
        model: model.into(),
        ok,
        message: (!ok).then(|| SAID.into()),
        latency_ms,
        usage: if ok { Usage { input_tokens: 1000, output_tokens: 50, cached_tokens: 900 } } else { Usage::default() },
    }
}

pub(crate) fn decided(op: &Op, id: &str, decision: &str) -> Event {
    Event::ApprovalDecided { call: call(op), tool: tool(id), decision: decision.into() }
}
