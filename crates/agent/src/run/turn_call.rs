//! One call of a turn, from the model's text to exactly one result.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::ContentBlock;
use toolwright_core::agents::handoff::HANDOFF;
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, SKIPPED_TEXT};
use toolwright_core::arguments::read_object;
use toolwright_core::call::{CallMeta, RawArguments, ToolCall};
use toolwright_core::canonical::ContentHash;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::exposure::SEARCH_ID;
use toolwright_core::model::{CallResult, Message, RawToolCall};
use toolwright_core::model_repair::{RepairOutcome, RepairRecord};
use toolwright_core::outcome::{Outcome, STANDS_IN};
use toolwright_core::output::{DEFAULT_MAX_BYTES, TOOL_OUTPUT, head_and_tail, outputs_of_note};
use toolwright_core::plan::ExclusionReason;
use toolwright_core::session::CallId;
use toolwright_core::tool_id::MAX_WIRE_NAME;

use super::{ExcludedCall, Grant, ToolBatch};
use crate::report::ReportedCall;
use crate::tools::{BATCH_ID, FINAL_REPORT};

/// The most bytes of arguments in a note.
const MAX_NOTE: usize = 1000;

/// The tool that a written call resolves to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedTool {
    /// Its wire name, under which the conversation replays the call.
    pub wire_name: String,
    /// Hash of the definition of the tool that will run: of the inner one, if the call carries another.
    pub definition: ContentHash,
}

/// Finds the tool of a written call in the catalogue that the model saw.
pub(super) type ResolveTool<'r> = &'r dyn Fn(&RawToolCall) -> Option<ResolvedTool>;

/// One call of the current turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TurnCall {
    /// Unique in the conversation.
    pub(crate) id: CallId,
    /// The name as written.
    pub(crate) written: String,
    /// The name in the conversation: the resolved wire name, or a legal name derived from the written one.
    pub(crate) wire_name: String,
    /// The definition that the model saw; `None` for an unknown tool.
    pub(crate) definition: Option<ContentHash>,
    /// The arguments as written.
    arguments: String,
    /// The metadata of the call.
    #[serde(default, skip_serializing_if = "CallMeta::is_empty")]
    meta: CallMeta,
    /// The repair of the arguments by a model; the call runs with its result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) repair: Option<Box<RepairRecord>>,
    pub(super) status: CallStatus,
    /// A notice to the model in addition to the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) note: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(super) enum CallStatus {
    /// The answer is still streaming, and may break off.
    Streamed,
    /// It runs; the journal records its outcome.
    Started,
    /// It waits for the caller's permission to run, see [`Dispatch::Manual`](super::Dispatch).
    Held,
    /// It calls a tool of the client, and waits for the client's result.
    ForClient,
    /// It can run.
    Ready,
    /// A person must decide first.
    PendingApproval { request: ApprovalRequest },
    /// A person approved it; it can run.
    Granted(Grant),
    /// It depends on calls that wait for a person or for permission. A person may already have approved it.
    Blocked { grant: Option<Grant> },
    /// It has its one result.
    Answered(Box<AnsweredCall>),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct AnsweredCall {
    pub(super) result: CallResult,
    pub(super) record: ReportedCall,
    /// Handles of the stored parts of a result that was too large.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) handles: Vec<String>,
    /// The reason why it has no value for other calls, as in `which failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) lost: Option<String>,
}

impl TurnCall {
    pub(crate) fn is_runnable(&self) -> bool {
        matches!(self.status, CallStatus::Ready | CallStatus::Granted(_) | CallStatus::Started)
    }

    pub(super) fn is_started(&self) -> bool {
        self.status == CallStatus::Started
    }

    pub(crate) fn is_held(&self) -> bool {
        self.status == CallStatus::Held
    }

    /// Returns whether it still takes an outcome.
    pub(super) fn is_open(&self) -> bool {
        let is_blocked = matches!(self.status, CallStatus::Blocked { .. });
        self.is_runnable() || self.is_held() || is_blocked || self.status == CallStatus::ForClient
    }

    /// Returns whether it gives the final report. No other tool has that wire name: the namespace is reserved.
    pub(super) fn is_report(&self) -> bool {
        self.definition.is_some() && self.wire_name == FINAL_REPORT
    }

    /// Returns whether it hands the request to another agent. No other tool has that wire name: the namespace is
    /// reserved.
    pub(super) fn is_handoff(&self) -> bool {
        self.definition.is_some() && self.wire_name == HANDOFF
    }

    /// The agent that its arguments name.
    fn handoff_target(&self) -> String {
        self.argument_value()["agent"].as_str().unwrap_or_default().trim().to_owned()
    }

    fn is_written_as(&self, call: &RawToolCall) -> bool {
        self.written == call.name && self.arguments == call.arguments
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answer().is_some()
    }

    pub(super) fn answer(&self) -> Option<&AnsweredCall> {
        match &self.status {
            CallStatus::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    /// Returns whether policy, the caller's roles or a person denied it.
    pub(super) fn is_denied(&self) -> bool {
        let failure = self.answer().and_then(|answer| answer.record.error.as_ref());
        failure.is_some_and(|failure| matches!(failure.kind, ErrorKind::Denied | ErrorKind::NotPermitted))
    }

    pub(super) fn approval_request(&self) -> Option<&ApprovalRequest> {
        match &self.status {
            CallStatus::PendingApproval { request } => Some(request),
            _ => None,
        }
    }

    /// Returns the call as the model wrote it, under its own id.
    pub(crate) fn as_written(&self) -> ToolCall {
        let arguments = RawArguments::Text(self.arguments.clone());
        ToolCall::new(self.id.clone(), self.written.clone(), arguments).with_meta(self.meta.clone())
    }

    /// Returns the call as the conversation contains it.
    pub(super) fn replay(&self) -> RawToolCall {
        RawToolCall {
            id: self.id.as_str().to_owned(),
            name: self.wire_name.clone(),
            arguments: replay_arguments(&self.arguments),
        }
    }

    /// Returns the arguments as an object, whatever was written.
    pub(crate) fn argument_value(&self) -> Value {
        serde_json::from_str(&replay_arguments(&self.arguments)).unwrap_or_else(|_| json!({}))
    }

    /// Takes the outcome of the call: its result, or a question to a person.
    pub(super) fn end(&mut self, outcome: Outcome) {
        if let Some(request) = outcome.pending {
            self.status = CallStatus::PendingApproval { request: *request };
            return;
        }
        let record = ReportedCall::new(self.id.as_str(), &self.written, self.argument_value(), &outcome);
        let notes = [repair_note(&outcome), self.note.take()];
        let (loads, handles) = (found_tools(&outcome), stored_handles(&outcome));
        let lost = outcome.no_value().map(str::to_owned);
        let mut result = CallResult {
            call_id: record.id.clone(),
            name: self.wire_name.clone(),
            is_error: !outcome.ok,
            content: visible_content(outcome),
            loads,
        };
        result.content.extend(notes.into_iter().flatten().map(ContentBlock::text));
        self.status = CallStatus::Answered(Box::new(AnsweredCall { result, record, handles, lost }));
    }

    /// Takes a person's decision about the pending call.
    pub(super) fn decide(&mut self, decision: ApprovalDecision) {
        let Some(request) = self.approval_request().cloned() else { return };
        let mut outcome = match decision {
            ApprovalDecision::Later => return,
            ApprovalDecision::Approve | ApprovalDecision::Always | ApprovalDecision::AlwaysThese => {
                self.status = CallStatus::Granted(Grant { request, decision });
                return;
            }
            ApprovalDecision::Deny { reason } => {
                Outcome::failed(self.id.clone(), ToolError::new(ErrorKind::Denied, format!("denied: {reason}")))
            }
            // Neutral, so that the model does not look for a workaround.
            ApprovalDecision::Skip => Outcome {
                ok: true,
                error: None,
                content: vec![ContentBlock::text(SKIPPED_TEXT)],
                ..Outcome::failed(self.id.clone(), ToolError::new(ErrorKind::Denied, "skipped"))
            },
        };
        if outcome.ok {
            outcome.extras.insert(STANDS_IN.into(), "skipped".into());
        }
        outcome.tool = Some(request.tool);
        self.end(outcome);
    }

    /// Marks it as blocked by calls that wait themselves.
    pub(super) fn block(&mut self) {
        self.status = match std::mem::replace(&mut self.status, CallStatus::Ready) {
            CallStatus::Ready => CallStatus::Blocked { grant: None },
            CallStatus::Granted(grant) => CallStatus::Blocked { grant: Some(grant) },
            other => other,
        };
    }

    /// Unblocks it, because the calls it waited for may have ended.
    pub(super) fn unblock(&mut self) {
        self.status = match std::mem::replace(&mut self.status, CallStatus::Ready) {
            CallStatus::Blocked { grant: None } => CallStatus::Ready,
            CallStatus::Blocked { grant: Some(grant) } => CallStatus::Granted(grant),
            other => other,
        };
    }

    /// Returns why it does not run with the others of its turn, if its writes may affect them.
    fn excluded(&self) -> Option<ExclusionReason> {
        match &self.status {
            CallStatus::Held | CallStatus::PendingApproval { .. } | CallStatus::Blocked { .. } => {
                Some(ExclusionReason::Held)
            }
            CallStatus::Answered(answer) => answer.lost.clone().map(ExclusionReason::Lost),
            _ => None,
        }
    }

    /// Lets a pending call run, so that it is asked about again.
    pub(super) fn ask_again(&mut self) {
        if self.approval_request().is_some() {
            self.status = CallStatus::Ready;
        }
    }

    /// Adds a note to the result.
    pub(super) fn add_note(&mut self, note: ContentBlock) {
        if let CallStatus::Answered(answer) = &mut self.status {
            answer.result.content.push(note);
        }
    }

    /// Creates a streamed call, with a legal name and an id that is not among `ids`.
    pub(super) fn new(
        written: RawToolCall,
        position: CallPosition,
        ids: &HashSet<String>,
        resolve: ResolveTool<'_>,
    ) -> Self {
        let (wire_name, definition) = match resolve(&written) {
            Some(resolved) => (resolved.wire_name, Some(resolved.definition)),
            None => (legal_name(&written.name), None),
        };
        Self {
            id: CallId::new(unique_id(written.id, position, ids)),
            written: written.name,
            wire_name,
            definition,
            arguments: written.arguments,
            meta: CallMeta::default(),
            repair: None,
            status: CallStatus::Streamed,
            note: None,
        }
    }
}

impl TurnCall {
    /// Creates a held call of a plan. `id` must be new.
    pub(super) fn planned(id: CallId, call: ToolCall, resolve: ResolveTool<'_>) -> Self {
        let arguments = match call.arguments {
            RawArguments::Text(text) => text,
            RawArguments::Value(value) | RawArguments::Resolved(value, _) => value.to_string(),
        };
        let written = RawToolCall { id: id.to_string(), name: call.name, arguments };
        let held = Self::new(written, CallPosition { turn: 0, index: 0 }, &HashSet::new(), resolve);
        Self { id, meta: call.meta, status: CallStatus::Held, ..held }
    }
}

/// The position of a call.
#[derive(Clone, Copy)]
pub(super) struct CallPosition {
    pub(super) turn: u32,
    /// The position among the calls of its answer.
    pub(super) index: usize,
}

/// Returns the ids of the calls in a conversation, of those `removed` from it, and of `more`.
pub(super) fn call_ids(messages: &[Message], removed: &[String], more: &[TurnCall]) -> HashSet<String> {
    let calls = messages.iter().filter_map(|message| match message {
        Message::Assistant { calls, .. } => Some(calls),
        _ => None,
    });
    let used_ids = calls.flatten().map(|call| &call.id).chain(removed).cloned();
    used_ids.chain(more.iter().map(|call| call.id.to_string())).collect()
}

/// Returns the calls of a complete answer. Streamed calls keep their ids; started ones are kept even if the answer
/// lacks them. `ids` are in use.
pub(super) fn take_calls(
    written: Vec<RawToolCall>,
    mut streamed: Vec<TurnCall>,
    turn: u32,
    mut ids: HashSet<String>,
    resolve: ResolveTool<'_>,
) -> Vec<TurnCall> {
    let mut calls = Vec::with_capacity(written.len());
    for (index, call) in written.into_iter().enumerate() {
        let call = match streamed.iter().position(|streamed| streamed.is_written_as(&call)) {
            Some(index_of_streamed) => streamed.remove(index_of_streamed),
            None => TurnCall::new(call, CallPosition { turn, index }, &ids, resolve),
        };
        ids.insert(call.id.to_string());
        calls.push(call);
    }
    calls.extend(streamed.into_iter().filter(TurnCall::is_started));
    calls
}

/// Answers these calls as refused by a limit, unless they were started.
pub(super) fn refuse<'c>(calls: impl Iterator<Item = &'c mut TurnCall>, why: &str) {
    for call in calls.filter(|call| !call.is_started()) {
        call.end(Outcome::failed(call.id.clone(), ToolError::new(ErrorKind::LimitExceeded, why)));
    }
}

/// Refuses every hand-off but one: one agent answers. That is the one that has been started, else the first to an agent that
/// may get the request, else the first.
pub(super) fn refuse_other_handoffs(calls: &mut [TurnCall], may_get: impl Fn(&str) -> bool) {
    let chosen = {
        let open = || calls.iter().filter(|call| call.is_handoff() && !call.is_answered());
        let chosen =
            open().find(|call| call.is_started()).or_else(|| open().find(|call| may_get(&call.handoff_target())));
        chosen.or_else(|| open().next()).map(|call| call.id.clone())
    };
    let others = calls.iter_mut().filter(|call| call.is_handoff() && Some(&call.id) != chosen.as_ref());
    for call in others.filter(|call| !call.is_answered() && !call.is_started()) {
        let (kind, why) = match call.handoff_target() {
            to if may_get(&to) => {
                let why = "only the first hand-off of an answer is tried; if it failed, hand the request over again";
                (ErrorKind::LimitExceeded, why.to_owned())
            }
            to => (ErrorKind::InvalidParameters, format!("there is no destination `{to}`")),
        };
        call.end(Outcome::failed(call.id.clone(), ToolError::new(kind, why)));
    }
}

/// Returns the calls to run, people's approvals, the calls that already run, and those that do not run.
pub(super) fn batch(calls: &[TurnCall]) -> ToolBatch {
    let mut batch = ToolBatch::default();
    for call in calls {
        if let Some(end) = call.excluded() {
            batch.excluded.push(ExcludedCall { after: batch.calls.len(), call: call.as_written(), end });
        }
        if !call.is_runnable() {
            continue;
        }
        batch.repairs.extend(call.repair.as_ref().map(|record| (call.id.clone(), (**record).clone())));
        match &call.status {
            CallStatus::Started => batch.started.push(call.id.clone()),
            CallStatus::Granted(grant) => {
                batch.calls.push(call.as_written());
                batch.grants.push(grant.clone());
            }
            _ => batch.calls.push(call.as_written()),
        }
    }
    batch
}

/// Returns the calls that wait for the caller: for permission to run, or for their results.
pub(super) fn held(calls: &[TurnCall]) -> Vec<ToolCall> {
    calls
        .iter()
        .filter(|call| call.is_held() || call.status == CallStatus::ForClient)
        .map(TurnCall::as_written)
        .collect()
}

/// Returns the questions that people must decide.
pub(super) fn approval_requests(calls: &[TurnCall]) -> Vec<ApprovalRequest> {
    calls.iter().filter_map(TurnCall::approval_request).cloned().collect()
}

/// Returns the written id if it is new, else one derived from the call's position.
fn unique_id(written: String, CallPosition { turn, index }: CallPosition, taken: &HashSet<String>) -> String {
    if !written.trim().is_empty() && !taken.contains(&written) {
        return written;
    }
    let place = format!("call_{turn}_{}", index + 1);
    let mut id = place.clone();
    let mut attempt = 2;
    while taken.contains(&id) {
        id = format!("{place}_{attempt}");
        attempt += 1;
    }
    id
}

/// Returns a legal name for a tool that does not exist.
fn legal_name(written: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let mut name: String = written.trim().chars().map(legal).take(MAX_WIRE_NAME - 1).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        name.insert(0, '_');
    }
    name
}

/// Returns the text of a JSON object: the written text, byte for byte, if it is one; else the object that the call runs
/// with.
fn replay_arguments(written: &str) -> String {
    if matches!(serde_json::from_str(written), Ok(Value::Object(_))) {
        return written.to_owned();
    }
    read_object(written).unwrap_or_else(|| json!({"unparsed": written})).to_string()
}

/// Returns the tools that a search has found, by wire name.
fn found_tools(outcome: &Outcome) -> Vec<String> {
    let is_search = outcome.ok && outcome.tool.as_ref().is_some_and(|tool| tool.as_str() == SEARCH_ID);
    let hits = outcome.structured.as_ref().filter(|_| is_search).and_then(|found| found.get("tools"));
    hits.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns the handles of the stored parts of an outcome.
fn stored_handles(outcome: &Outcome) -> Vec<String> {
    let noted = outcome.extras.get(TOOL_OUTPUT).map(outputs_of_note).unwrap_or_default();
    noted.into_iter().map(|stored| stored.handle).collect()
}

/// Returns a notice that tells the model how its arguments were changed.
fn repair_note(outcome: &Outcome) -> Option<String> {
    let mended = outcome.provenance.repair.as_ref().filter(|record| record.end == RepairOutcome::Accepted);
    if let Some(candidate) = mended.and_then(|record| record.candidate.as_ref()) {
        let excerpt = head_and_tail(&candidate.to_string(), MAX_NOTE);
        return Some(format!(
            "[toolwright notice] Your arguments did not fit the schema; the call ran with {excerpt}."
        ));
    }
    let is_batch = outcome.tool.as_ref().is_some_and(|tool| tool.as_str() == BATCH_ID);
    let in_an_item = |cut: &&str| is_batch && outcome.ok && cut.matches('/').count() > 1;
    if let Some(cut) = outcome.provenance.cut.as_deref().filter(in_an_item) {
        return Some(format!(
            "[toolwright notice] Your batch broke off at {cut}: an item that was not whole was dropped and did not run. Call what is missing again."
        ));
    }
    // The message of a failed call already contains it.
    (outcome.ok && outcome.provenance.repaired).then(|| {
        "[toolwright notice] Your arguments were not valid JSON and had to be repaired; check that nothing is missing, and write one whole JSON object.".into()
    })
}

/// Returns the content of an outcome, never empty, which several APIs refuse.
fn visible_content(outcome: Outcome) -> Vec<ContentBlock> {
    let empty = outcome.content.iter().all(|block| block.as_text().is_some_and(|text| text.trim().is_empty()));
    if !empty {
        return outcome.content;
    }
    let text = match outcome.structured {
        // The executor limits text blocks only.
        Some(structured) => head_and_tail(&structured.to_string(), DEFAULT_MAX_BYTES),
        None => "(no output)".into(),
    };
    vec![ContentBlock::text(text)]
}
