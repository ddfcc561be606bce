//! The calls of one turn, each from what the model wrote to its one result.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::ContentBlock;
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, SKIPPED_TEXT};
use toolwright_core::call::{RawArguments, ToolCall};
use toolwright_core::canonical::ContentHash;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{CallResult, Message, WrittenCall};
use toolwright_core::name::MAX_WIRE_NAME;
use toolwright_core::outcome::Outcome;
use toolwright_core::output::{DEFAULT_MAX_BYTES, head_and_tail};
use toolwright_core::session::CallId;

use super::{Grant, ToolBatch};
use crate::report::CallRecord;

/// The tool that a written name means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// Its wire name, under which the call is replayed.
    pub wire_name: String,
    /// Hash of the definition that the model saw.
    pub definition: ContentHash,
}

/// One call of the turn that is going on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TurnCall {
    /// Unique in the conversation.
    pub(crate) id: CallId,
    /// The name as written.
    pub(crate) written: String,
    /// The name in the conversation: the resolved wire name, or a legal stand-in.
    pub(crate) wire_name: String,
    /// The definition that the model saw; `None` for an unknown tool.
    pub(crate) definition: Option<ContentHash>,
    /// The arguments as written.
    arguments: String,
    pub(super) status: CallStatus,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "status", rename_all = "snake_case")]
pub(super) enum CallStatus {
    /// It is to run.
    ToRun,
    /// A person must decide first.
    Asked { request: ApprovalRequest },
    /// It is to run, by a person's leave.
    Granted(Grant),
    /// It has its one result.
    Answered(Answer),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Answer {
    pub(super) result: CallResult,
    pub(super) record: CallRecord,
}

impl TurnCall {
    pub(crate) fn is_to_run(&self) -> bool {
        matches!(self.status, CallStatus::ToRun | CallStatus::Granted(_))
    }

    pub(super) fn is_answered(&self) -> bool {
        self.answer().is_some()
    }

    pub(super) fn answer(&self) -> Option<&Answer> {
        match &self.status {
            CallStatus::Answered(answer) => Some(answer),
            _ => None,
        }
    }

    pub(super) fn question(&self) -> Option<&ApprovalRequest> {
        match &self.status {
            CallStatus::Asked { request } => Some(request),
            _ => None,
        }
    }

    /// The call as the conversation carries it.
    pub(super) fn replay(&self) -> WrittenCall {
        WrittenCall {
            id: self.id.as_str().to_owned(),
            name: self.wire_name.clone(),
            arguments: replay_arguments(&self.arguments),
        }
    }

    /// The arguments as an object, whatever was written.
    pub(super) fn argument_value(&self) -> Value {
        serde_json::from_str(&replay_arguments(&self.arguments)).unwrap_or_else(|_| json!({}))
    }

    /// Takes the outcome of the call: its result, or a question to a person.
    pub(super) fn ended(&mut self, outcome: Outcome) {
        if let Some(request) = outcome.pending {
            self.status = CallStatus::Asked { request };
            return;
        }
        let record = CallRecord::new(self.id.as_str(), &self.written, self.argument_value(), &outcome);
        let result = CallResult {
            call_id: record.id.clone(),
            name: self.wire_name.clone(),
            is_error: !outcome.ok,
            content: visible_content(outcome),
        };
        self.status = CallStatus::Answered(Answer { result, record });
    }

    /// Takes a person's decision about the pending call.
    pub(super) fn decided(&mut self, decision: ApprovalDecision) {
        let Some(request) = self.question().cloned() else { return };
        let mut outcome = match decision {
            ApprovalDecision::Later => return,
            ApprovalDecision::Approve | ApprovalDecision::Always => {
                self.status = CallStatus::Granted(Grant { request, decision });
                return;
            }
            ApprovalDecision::Deny { reason } => {
                Outcome::failed(self.id.clone(), ToolError::new(ErrorKind::Denied, format!("denied: {reason}")))
            }
            // Neutral: nobody is to blame, and the model should not look for a way round.
            ApprovalDecision::Skip => Outcome {
                ok: true,
                error: None,
                content: vec![ContentBlock::text(SKIPPED_TEXT)],
                ..Outcome::failed(self.id.clone(), ToolError::new(ErrorKind::Denied, "skipped"))
            },
        };
        outcome.tool = Some(request.tool);
        self.ended(outcome);
    }

    /// Leaves a pending call to run, and so to be asked about again.
    pub(super) fn ask_again(&mut self) {
        if self.question().is_some() {
            self.status = CallStatus::ToRun;
        }
    }

    /// Adds a note to the result.
    pub(super) fn add_note(&mut self, note: ContentBlock) {
        if let CallStatus::Answered(answer) = &mut self.status {
            answer.result.content.push(note);
        }
    }
}

/// The calls of a response under unique ids and legal names, all of them to run.
pub(super) fn take_calls(
    written: Vec<WrittenCall>,
    turn: u32,
    messages: &[Message],
    resolve: &dyn Fn(&str) -> Option<Resolved>,
) -> Vec<TurnCall> {
    let mut taken: HashSet<String> = messages
        .iter()
        .filter_map(|message| match message {
            Message::Assistant { calls, .. } => Some(calls),
            _ => None,
        })
        .flatten()
        .map(|call| call.id.clone())
        .collect();
    let mut calls = Vec::with_capacity(written.len());
    for (index, call) in written.into_iter().enumerate() {
        let id = unique_id(call.id, turn, index, &taken);
        taken.insert(id.clone());
        let (wire_name, definition) = match resolve(&call.name) {
            Some(resolved) => (resolved.wire_name, Some(resolved.definition)),
            None => (stand_in(&call.name), None),
        };
        calls.push(TurnCall {
            id: CallId::new(id),
            written: call.name,
            wire_name,
            definition,
            arguments: call.arguments,
            status: CallStatus::ToRun,
        });
    }
    calls
}

/// Answers all calls after the first `left` as refused by a limit.
pub(super) fn refuse(calls: &mut [TurnCall], left: usize, why: &str) {
    for call in calls.iter_mut().skip(left) {
        call.ended(Outcome::failed(call.id.clone(), ToolError::new(ErrorKind::LimitExceeded, why)));
    }
}

/// What is to run, with the leave that people gave.
pub(super) fn batch(calls: &[TurnCall]) -> ToolBatch {
    let mut batch = ToolBatch::default();
    for call in calls.iter().filter(|call| call.is_to_run()) {
        batch.calls.push(ToolCall {
            id: call.id.clone(),
            name: call.written.clone(),
            arguments: RawArguments::Text(call.arguments.clone()),
        });
        if let CallStatus::Granted(grant) = &call.status {
            batch.grants.push(grant.clone());
        }
    }
    batch
}

/// What people must decide.
pub(super) fn questions(calls: &[TurnCall]) -> Vec<ApprovalRequest> {
    calls.iter().filter_map(TurnCall::question).cloned().collect()
}

/// The written id where it is new, else one made of the call's place.
fn unique_id(written: String, turn: u32, index: usize, taken: &HashSet<String>) -> String {
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

/// A legal name for a tool that does not exist.
fn stand_in(written: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' };
    let mut name: String = written.trim().chars().map(legal).take(MAX_WIRE_NAME - 1).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        name.insert(0, '_');
    }
    name
}

/// The text of a JSON object: what was written where that is one, byte for byte.
fn replay_arguments(written: &str) -> String {
    if written.trim().is_empty() {
        return "{}".into();
    }
    match serde_json::from_str(written) {
        Ok(Value::Object(_)) => written.to_owned(),
        Ok(Value::Null) => "{}".into(),
        Ok(Value::String(text)) if text.trim().is_empty() => "{}".into(),
        Ok(Value::String(text)) if matches!(serde_json::from_str(&text), Ok(Value::Object(_))) => text,
        _ => json!({"unparsed": written}).to_string(),
    }
}

/// The content of an outcome; never empty, which several APIs refuse.
fn visible_content(outcome: Outcome) -> Vec<ContentBlock> {
    let empty = outcome.content.iter().all(|block| block.as_text().is_some_and(|text| text.trim().is_empty()));
    if !empty {
        return outcome.content;
    }
    let text = match outcome.structured {
        // The executor's cap counts text blocks only.
        Some(structured) => head_and_tail(&structured.to_string(), DEFAULT_MAX_BYTES),
        None => "(no output)".into(),
    };
    vec![ContentBlock::text(text)]
}
