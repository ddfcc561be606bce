//! A person who is asked, and a redactor, for tests of what asks and hides.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::Redactor;
use toolwright_core::approval::{Answers, ApprovalDecision, ApprovalRequest, Approver};

/// Answers questions as it was told, and remembers them.
pub struct FakeApprover {
    decision: Option<ApprovalDecision>,
    by_call: HashMap<&'static str, ApprovalDecision>,
    delay: Duration,
    place: Answers,
    asked: Mutex<Vec<ApprovalRequest>>,
}

impl std::fmt::Debug for FakeApprover {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FakeApprover").field("decision", &self.decision).finish_non_exhaustive()
    }
}

impl FakeApprover {
    fn new(decision: Option<ApprovalDecision>) -> Self {
        Self { decision, by_call: HashMap::new(), delay: Duration::ZERO, place: Answers::Here, asked: Mutex::default() }
    }

    /// Says this to every question.
    pub fn saying(decision: ApprovalDecision) -> Self {
        Self::new(Some(decision))
    }

    /// Answers by the id of the call; a question about any other call stays open.
    pub fn by_call(answers: &[(&'static str, ApprovalDecision)]) -> Self {
        Self { by_call: answers.iter().cloned().collect(), ..Self::new(None) }
    }

    /// Never answers: whoever would does so elsewhere.
    pub fn away() -> Self {
        Self::new(None).at(Answers::Elsewhere)
    }

    /// Says that answers come from there.
    #[must_use]
    pub fn at(self, place: Answers) -> Self {
        Self { place, ..self }
    }

    /// Takes this long over each question.
    #[must_use]
    pub fn after(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// What it was asked so far.
    pub fn requests(&self) -> Vec<ApprovalRequest> {
        self.lock().clone()
    }

    /// How often it was asked.
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

    fn answers(&self) -> Answers {
        self.place
    }
}

/// Hides this word.
#[derive(Debug, Clone, Copy)]
pub struct FakeRedactor(pub &'static str);

impl Redactor for FakeRedactor {
    fn spans(&self, text: &str) -> Vec<std::ops::Range<usize>> {
        text.match_indices(self.0).map(|(at, found)| at..at + found.len()).collect()
    }
}
