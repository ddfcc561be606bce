//! Reuses a question that an earlier process of the job has asked, so that it is not asked twice.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use toolwright_core::approval::{
    ApprovalDecision, ApprovalRequest, Approver, EXPIRED, InboxStore as _, Question, QuestionState,
};
use toolwright_core::job::JobRecord;
use toolwright_core::store::StoreError;

use crate::store::SqliteStore;

/// How often the store is asked whether there is an answer.
const LOOK: Duration = Duration::from_millis(250);

/// Asks about a job that another process had: the question that process left open stays open, and an answer that
/// came meanwhile counts. Where there is none, or it was withdrawn, it is asked anew.
pub(super) struct ResumedQuestion {
    pub(super) store: Arc<SqliteStore>,
    pub(super) job: JobRecord,
    /// Who is asked anew.
    pub(super) now: Arc<dyn Approver>,
}

impl ResumedQuestion {
    async fn earlier(&self, request: &ApprovalRequest) -> Result<Option<ApprovalDecision>, StoreError> {
        for id in self.store.questions_of_job(&self.job.id).await? {
            let Some(question) = self.store.take_question(&id).await? else { continue };
            if question.state == QuestionState::Withdrawn {
                continue;
            }
            let asked = &question.request;
            if asked.definition != request.definition || asked.principal != request.principal {
                break;
            }
            return self.answer(question).await.map(Some);
        }
        // What is asked anew is not to be answered twice.
        self.store.withdraw_questions(&self.job.id).await?;
        Ok(None)
    }

    async fn answer(&self, mut question: Question) -> Result<ApprovalDecision, StoreError> {
        let mut open = Open { store: &self.store, id: Some(question.id.clone()) };
        while question.state == QuestionState::Pending {
            tokio::time::sleep(LOOK).await;
            let found = self.store.take_question(&question.id).await?;
            question = found.ok_or_else(|| StoreError::NotFound(format!("question {}", question.id)))?;
        }
        open.id = None;
        if question.state == QuestionState::Expired {
            self.store.close_question(&question.id, QuestionState::Expired).await?;
            return Ok(ApprovalDecision::Deny { reason: EXPIRED.to_owned() });
        }
        let decision = question.decision.filter(|_| question.state != QuestionState::Withdrawn);
        let withdrawn = || ApprovalDecision::Deny { reason: "the question was withdrawn".to_owned() };
        Ok(decision.unwrap_or_else(withdrawn))
    }
}

#[async_trait]
impl Approver for ResumedQuestion {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        match self.earlier(request).await {
            Ok(Some(decision)) => decision,
            Ok(None) => self.now.ask(request).await,
            Err(error) => {
                let reason = format!("{}; and what was asked before cannot be looked up: {error}", request.reason);
                ApprovalDecision::Deny { reason }
            }
        }
    }

    fn patience(&self) -> Duration {
        self.now.patience()
    }
}

/// A question that somebody waits for; dropped, it is withdrawn.
struct Open<'a> {
    store: &'a Arc<SqliteStore>,
    id: Option<String>,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let (Some(id), Ok(runtime)) = (self.id.take(), tokio::runtime::Handle::try_current()) else { return };
        let store = Arc::clone(self.store);
        // Else it expires by itself.
        runtime.spawn(async move { store.close_question(&id, QuestionState::Withdrawn).await });
    }
}
