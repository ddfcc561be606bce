//! A fake approver and a fake redactor.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::Redactor;
use toolwright_core::approval::{AnswerSource, ApprovalDecision, ApprovalRequest, Approver};

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
        self.lock().clone()
    }

    /// Returns the number of requests so far.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<ApprovalRequest>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Approver for FakeApprover {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        self.lock().push(request.clone());
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

/// A redactor that hides this word.
#[derive(Debug, Clone, Copy)]
pub struct FakeRedactor(pub &'static str);

impl Redactor for FakeRedactor {
    fn spans(&self, text: &str) -> Vec<std::ops::Range<usize>> {
        text.match_indices(self.0).map(|(at, found)| at..at + found.len()).collect()
    }
}
