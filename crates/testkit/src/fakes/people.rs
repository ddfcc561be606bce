//! A fake approver, a fake client of calls and a fake redactor.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value};
use toolwright_core::Redactor;
use toolwright_core::approval::{AnswerSource, ApprovalDecision, ApprovalRequest, Approver};
use toolwright_core::client::{AskStyle, AskingCall, CallClient, ClientRequest};
use toolwright_core::error::{ProtocolError, ToolError};

use super::sinks::lock;

/// An approver that gives configured answers and records the requests.
pub struct FakeApprover {
    decision: Option<ApprovalDecision>,
    by_call: HashMap<&'static str, ApprovalDecision>,
    delay: Duration,
    place: AnswerSource,
    asked: Mutex<Vec<ApprovalRequest>>,
}

impl std::fmt::Debug for FakeApprover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeApprover").field("decision", &self.decision).finish_non_exhaustive()
    }
}

impl FakeApprover {
    fn new(decision: Option<ApprovalDecision>) -> Self {
        Self {
            decision,
            by_call: HashMap::new(),
            delay: Duration::ZERO,
            place: AnswerSource::Here,
            asked: Mutex::default(),
        }
    }

    /// Creates an approver that gives this decision on every request.
    pub fn saying(decision: ApprovalDecision) -> Self {
        Self::new(Some(decision))
    }

    /// Creates an approver that decides by call id; a request about any other call stays open.
    pub fn by_call(answers: &[(&'static str, ApprovalDecision)]) -> Self {
        Self { by_call: answers.iter().cloned().collect(), ..Self::new(None) }
    }

    /// Creates an approver that never answers and says that answers come from elsewhere.
    pub fn unavailable() -> Self {
        Self::new(None).at(AnswerSource::Elsewhere)
    }

    /// Sets the place that answers come from.
    #[must_use]
    pub fn at(self, place: AnswerSource) -> Self {
        Self { place, ..self }
    }

    /// Delays each answer.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<ApprovalRequest> {
        lock(&self.asked).clone()
    }

    /// Returns the number of requests so far.
    pub fn count(&self) -> usize {
        lock(&self.asked).len()
    }
}

#[async_trait]
impl Approver for FakeApprover {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        lock(&self.asked).push(request.clone());
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        match self.by_call.get(request.call_id.as_str()).or(self.decision.as_ref()) {
            Some(decision) => decision.clone(),
            None => std::future::pending().await,
        }
    }

    fn answers(&self) -> AnswerSource {
        self.place
    }
}

/// The future answer of a [`FakeCallClient`].
pub type FakeReply = Pin<Box<dyn Future<Output = Value> + Send>>;

/// A client that gives configured answers, and keeps the questions and the log messages. By default it supports no
/// requests.
pub struct FakeCallClient {
    answer: Box<dyn Fn(&ClientRequest) -> FakeReply + Send + Sync>,
    asked: Mutex<Vec<ClientRequest>>,
    logged: Mutex<Vec<Value>>,
    /// Delays the answers of each question.
    pub delay: Duration,
    /// The supported requests: an object.
    pub capabilities: Value,
    /// The way to ask it.
    pub ask_style: AskStyle,
    /// Whether it handles pages; `None` if its style says so.
    pub follows_pages: Option<bool>,
    /// The client as seen by the source of one call, if it differs.
    pub for_call: Option<fn(&AskingCall) -> Self>,
    /// Who is asked.
    pub identity: Option<String>,
    /// The minimum level of log messages.
    pub log_level: Option<&'static str>,
    /// The members of `_meta`: an object.
    pub meta: Value,
}

impl FakeCallClient {
    /// Creates a client that answers with the results of `answer`.
    pub fn new(answer: impl Fn(&ClientRequest) -> Value + Send + Sync + 'static) -> Self {
        Self::with_future(move |request| Box::pin(std::future::ready(answer(request))))
    }

    /// Creates a client that answers with the results of the futures from `answer`.
    pub fn with_future(answer: impl Fn(&ClientRequest) -> FakeReply + Send + Sync + 'static) -> Self {
        Self {
            answer: Box::new(answer),
            asked: Mutex::default(),
            logged: Mutex::default(),
            delay: Duration::ZERO,
            capabilities: Value::Null,
            ask_style: AskStyle::Either,
            follows_pages: None,
            for_call: None,
            identity: None,
            log_level: None,
            meta: Value::Null,
        }
    }

    /// Creates a client that gives this answer to every question.
    pub fn saying(answer: Value) -> Self {
        Self::new(move |_| answer.clone())
    }

    /// Changes its fields.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Locks the questions so far.
    pub fn asked(&self) -> MutexGuard<'_, Vec<ClientRequest>> {
        lock(&self.asked)
    }

    /// Locks the log messages so far.
    pub fn logged(&self) -> MutexGuard<'_, Vec<Value>> {
        lock(&self.logged)
    }
}

#[async_trait]
impl CallClient for FakeCallClient {
    fn capabilities(&self) -> Map<String, Value> {
        self.capabilities.as_object().cloned().unwrap_or_default()
    }

    fn ask_style(&self) -> AskStyle {
        self.ask_style
    }

    fn follows_pages(&self) -> bool {
        self.follows_pages.unwrap_or(self.ask_style == AskStyle::Requests)
    }

    fn for_call(&self, asking: &AskingCall) -> Option<Arc<dyn CallClient>> {
        self.for_call.map(|client| Arc::new(client(asking)) as _)
    }

    fn identity(&self) -> Option<String> {
        self.identity.clone()
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        let replies: Vec<_> = requests.iter().map(&self.answer).collect();
        self.asked().extend(requests);
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
        let mut answers = Vec::new();
        for reply in replies {
            answers.push(Ok(reply.await));
        }
        Ok(answers)
    }

    fn log_level(&self) -> Option<String> {
        self.log_level.map(str::to_owned)
    }

    fn log(&self, message: Value) {
        self.logged().push(message);
    }

    fn meta(&self) -> Map<String, Value> {
        self.meta.as_object().cloned().unwrap_or_default()
    }
}

/// A redactor that hides this word.
#[derive(Debug, Clone, Copy)]
pub struct FakeRedactor(pub &'static str);

impl Redactor for FakeRedactor {
    fn spans(&self, text: &str) -> Vec<std::ops::Range<usize>> {
        text.match_indices(self.0).map(|(at, found)| at..at + found.len()).collect()
    }
}
