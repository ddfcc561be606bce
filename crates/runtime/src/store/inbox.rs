//! Questions to a person, and what became of them.

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toolwright_core::approval::{
    Answered, ApprovalDecision, FormQuestion, FormReply, InboxStore, Kept, Question, QuestionState,
};
use toolwright_core::store::StoreError;

use super::SqliteStore;
use super::tables::{from_json, now_ms, to_json};

const SELECT: &str = "SELECT id, request, created_ms, expires_ms, state, decision, decided_by FROM inbox";

/// Kinds of rows.
const CALL: &str = "call";
const FORM: &str = "form";

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

    fn read<Q: DeserializeOwned, A: DeserializeOwned>(self) -> Result<Kept<Q, A>, StoreError> {
        let state = QuestionState::parse(&self.state).unwrap_or(QuestionState::Withdrawn);
        // Whoever asked may be gone, and nobody has written it down.
        let late = state == QuestionState::Pending && self.expires_ms <= now_ms();
        Ok(Kept {
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

fn one(db: &Connection, kind: &str, id: &str) -> rusqlite::Result<Option<Raw>> {
    db.prepare_cached(&format!("{SELECT} WHERE id = ?1 AND kind = ?2"))?
        .query_row(params![id, kind], Raw::of)
        .optional()
}

impl SqliteStore {
    async fn put<Q: Serialize, A>(
        &self,
        kind: &'static str,
        (session, principal): (&str, &str),
        kept: &Kept<Q, A>,
    ) -> Result<(), StoreError> {
        let (session, principal, request) = (session.to_owned(), principal.to_owned(), to_json(&kept.request)?);
        let (id, state) = (kept.id.clone(), kept.state);
        let (created, expires) = (kept.created_ms.cast_signed(), kept.expires_ms.cast_signed());
        self.thread
            .run("keep a question", move |db| {
                db.execute(
                    "INSERT INTO inbox (id, session, principal, request, created_ms, expires_ms, state, kind) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                    params![id, session, principal, request, created, expires, state.as_str(), kind],
                )
                .map(drop)
            })
            .await
    }

    async fn get<Q: DeserializeOwned, A: DeserializeOwned>(
        &self,
        kind: &'static str,
        id: &str,
    ) -> Result<Option<Kept<Q, A>>, StoreError> {
        let id = id.to_owned();
        let row = self.thread.run("read a question", move |db| one(db, kind, &id)).await?;
        row.map(Raw::read).transpose()
    }

    async fn list<Q: DeserializeOwned, A: DeserializeOwned>(
        &self,
        kind: &'static str,
        state: Option<QuestionState>,
        limit: usize,
    ) -> Result<Vec<Kept<Q, A>>, StoreError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let rows: Vec<Raw> = self
            .thread
            .run("list questions", move |db| {
                let now = now_ms();
                // A pending question that nobody answered in time counts as expired, written down or not.
                let sql = format!(
                    "{SELECT} WHERE kind = ?4 AND (?1 IS NULL OR ?1 = CASE WHEN state = 'pending' AND expires_ms <= ?2 \
                     THEN 'expired' ELSE state END) ORDER BY created_ms DESC, rowid DESC LIMIT ?3"
                );
                let state = state.map(QuestionState::as_str);
                db.prepare_cached(&sql)?.query_map(params![state, now, limit, kind], Raw::of)?.collect()
            })
            .await?;
        rows.into_iter().map(Raw::read).collect()
    }

    async fn decide<Q: DeserializeOwned, A: DeserializeOwned + Serialize>(
        &self,
        kind: &'static str,
        id: &str,
        (state, decision): (QuestionState, &A),
        by: &str,
    ) -> Result<Answered<Kept<Q, A>>, StoreError> {
        let (id, decision, by) = (id.to_owned(), to_json(decision)?, by.to_owned());
        let found = self
            .thread
            .run("answer a question", move |db| {
                let now = now_ms();
                let changed = db.execute(
                    "UPDATE inbox SET state = ?2, decision = ?3, decided_by = ?4, decided_ms = ?5 \
                     WHERE id = ?1 AND state = 'pending' AND expires_ms > ?5 AND kind = ?6",
                    params![id, state.as_str(), decision, by, now, kind],
                )?;
                if changed > 0 { Ok(Err(())) } else { one(db, kind, &id).map(Ok) }
            })
            .await?;
        Ok(match found {
            Err(()) => Answered::Counts,
            Ok(Some(row)) => Answered::TooLate(Box::new(row.read()?)),
            Ok(None) => Answered::Unknown,
        })
    }
}

#[async_trait]
impl InboxStore for SqliteStore {
    async fn put_question(&self, question: &Question) -> Result<(), StoreError> {
        let request = &question.request;
        self.put(CALL, (request.session.as_str(), &request.principal), question).await
    }

    async fn question(&self, id: &str) -> Result<Option<Question>, StoreError> {
        self.get(CALL, id).await
    }

    async fn questions(&self, state: Option<QuestionState>, limit: usize) -> Result<Vec<Question>, StoreError> {
        self.list(CALL, state, limit).await
    }

    async fn answer(&self, id: &str, decision: &ApprovalDecision, by: &str) -> Result<Answered, StoreError> {
        let state = match decision {
            ApprovalDecision::Approve | ApprovalDecision::Always => QuestionState::Approved,
            ApprovalDecision::Deny { .. } | ApprovalDecision::Skip | ApprovalDecision::Later => QuestionState::Denied,
        };
        self.decide(CALL, id, (state, decision), by).await
    }

    async fn put_form(&self, form: &FormQuestion) -> Result<(), StoreError> {
        let request = &form.request;
        self.put(FORM, (request.session.as_str(), &request.principal), form).await
    }

    async fn form(&self, id: &str) -> Result<Option<FormQuestion>, StoreError> {
        self.get(FORM, id).await
    }

    async fn forms(&self, state: Option<QuestionState>, limit: usize) -> Result<Vec<FormQuestion>, StoreError> {
        self.list(FORM, state, limit).await
    }

    async fn answer_form(&self, id: &str, reply: &FormReply, by: &str) -> Result<Answered<FormQuestion>, StoreError> {
        let state = match reply {
            FormReply::Accept { .. } => QuestionState::Approved,
            FormReply::Decline => QuestionState::Denied,
        };
        self.decide(FORM, id, (state, reply), by).await
    }

    async fn take_form(&self, id: &str) -> Result<Option<FormQuestion>, StoreError> {
        let (id, bare) = (id.to_owned(), to_json(&FormReply::Accept { content: serde_json::Map::new() })?);
        let row = self
            .thread
            .run("take an answer", move |db| {
                let row = one(db, FORM, &id)?;
                if row.as_ref().is_some_and(|row| row.state == QuestionState::Approved.as_str()) {
                    db.execute("UPDATE inbox SET decision = ?2 WHERE id = ?1", params![id, bare])?;
                }
                Ok(row)
            })
            .await?;
        row.map(Raw::read).transpose()
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
