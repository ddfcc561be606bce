//! Questions to a person, and what became of them.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use toolwright_core::approval::{Answered, ApprovalDecision, InboxStore, Question, QuestionState};
use toolwright_core::store::StoreError;

use super::SqliteStore;
use super::tables::{from_json, now_ms, to_json};

const SELECT: &str = "SELECT id, request, created_ms, expires_ms, state, decision, decided_by FROM inbox";

/// A row as it stands; what is in JSON is read away from the store's thread.
struct Raw {
    id: String,
    request: String,
    created_ms: i64,
    expires_ms: i64,
    state: String,
    decision: Option<String>,
    decided_by: Option<String>,
}

impl Raw {
    fn of(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            request: row.get(1)?,
            created_ms: row.get(2)?,
            expires_ms: row.get(3)?,
            state: row.get(4)?,
            decision: row.get(5)?,
            decided_by: row.get(6)?,
        })
    }

    fn question(self) -> Result<Question, StoreError> {
        let state = QuestionState::parse(&self.state).unwrap_or(QuestionState::Withdrawn);
        // Whoever asked may be gone, and nobody has written it down.
        let late = state == QuestionState::Pending && self.expires_ms <= now_ms();
        Ok(Question {
            id: self.id,
            request: from_json(&self.request)?,
            created_ms: self.created_ms.cast_unsigned(),
            expires_ms: self.expires_ms.cast_unsigned(),
            state: if late { QuestionState::Expired } else { state },
            decision: self.decision.map(|text| from_json(&text)).transpose()?,
            decided_by: self.decided_by,
        })
    }
}

fn one(db: &Connection, id: &str) -> rusqlite::Result<Option<Raw>> {
    db.prepare_cached(&format!("{SELECT} WHERE id = ?1"))?.query_row(params![id], Raw::of).optional()
}

#[async_trait]
impl InboxStore for SqliteStore {
    async fn put_question(&self, question: &Question) -> Result<(), StoreError> {
        let request = to_json(&question.request)?;
        let question = question.clone();
        self.thread
            .run("keep a question", move |db| {
                db.execute(
                    "INSERT INTO inbox (id, session, principal, request, created_ms, expires_ms, state) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                    params![
                        question.id,
                        question.request.session.as_str(),
                        question.request.principal,
                        request,
                        question.created_ms.cast_signed(),
                        question.expires_ms.cast_signed(),
                        question.state.as_str(),
                    ],
                )
                .map(drop)
            })
            .await
    }

    async fn question(&self, id: &str) -> Result<Option<Question>, StoreError> {
        let id = id.to_owned();
        let row = self.thread.run("read a question", move |db| one(db, &id)).await?;
        row.map(Raw::question).transpose()
    }

    async fn questions(&self, state: Option<QuestionState>, limit: usize) -> Result<Vec<Question>, StoreError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let rows: Vec<Raw> = self
            .thread
            .run("list questions", move |db| {
                let now = now_ms();
                // A pending question that nobody answered in time counts as expired, written down or not.
                let sql = format!(
                    "{SELECT} WHERE ?1 IS NULL OR ?1 = CASE WHEN state = 'pending' AND expires_ms <= ?2 THEN 'expired' \
                     ELSE state END ORDER BY created_ms DESC, rowid DESC LIMIT ?3"
                );
                let state = state.map(QuestionState::as_str);
                db.prepare_cached(&sql)?.query_map(params![state, now, limit], Raw::of)?.collect()
            })
            .await?;
        rows.into_iter().map(Raw::question).collect()
    }

    async fn answer(&self, id: &str, decision: &ApprovalDecision, by: &str) -> Result<Answered, StoreError> {
        let state = match decision {
            ApprovalDecision::Approve | ApprovalDecision::Always => QuestionState::Approved,
            ApprovalDecision::Deny { .. } | ApprovalDecision::Skip | ApprovalDecision::Later => QuestionState::Denied,
        };
        let (id, decision, by) = (id.to_owned(), to_json(decision)?, by.to_owned());
        let found = self
            .thread
            .run("answer a question", move |db| {
                let now = now_ms();
                let changed = db.execute(
                    "UPDATE inbox SET state = ?2, decision = ?3, decided_by = ?4, decided_ms = ?5 \
                     WHERE id = ?1 AND state = 'pending' AND expires_ms > ?5",
                    params![id, state.as_str(), decision, by, now],
                )?;
                if changed > 0 { Ok(Err(())) } else { one(db, &id).map(Ok) }
            })
            .await?;
        Ok(match found {
            Err(()) => Answered::Counts,
            Ok(Some(row)) => Answered::TooLate(Box::new(row.question()?)),
            Ok(None) => Answered::Unknown,
        })
    }

    async fn close_question(&self, id: &str, state: QuestionState) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.thread
            .run("close a question", move |db| {
                db.execute(
                    "UPDATE inbox SET state = ?2 WHERE id = ?1 AND state = 'pending'",
                    params![id, state.as_str()],
                )
                .map(drop)
            })
            .await
    }
}
