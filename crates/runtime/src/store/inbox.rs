//! Stores questions to a person, their answers, and standing approvals.

use std::time::Duration;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension as _, Row, ToSql, TransactionBehavior, params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toolwright_core::approval::{ApprovalDecision, StandingApproval};
use toolwright_core::canonical::ContentHash;
use toolwright_core::inbox::{
    AnswerStatus, AnyQuestion, FormQuestion, FormReply, InboxItem, InboxPage, InboxStore, Question, QuestionState,
};
use toolwright_core::store::{ApprovalStore, StoreError};
use toolwright_core::tool_id::ToolId;

use crate::store::BUSY;
use crate::store::SqliteStore;
use crate::store::owner::{self, renew};
use crate::store::{from_json, now_ms, one_more, split_page, to_json};

const SELECT: &str = "SELECT id, request, created_ms, expires_ms, state, decision, decided_by, kind FROM inbox";
/// SQL condition: a question is in the state ?1 at the time ?2. A pending question past its expiry counts as expired.
const IS_IN: &str =
    "(?1 IS NULL OR ?1 = CASE WHEN state = 'pending' AND expires_ms <= ?2 THEN 'expired' ELSE state END)";

/// Kinds of rows.
const CALL: &str = "call";
const FORM: &str = "form";

/// Most pending forms and pages at once: of one session, and of all sessions.
const MAX_OPEN: u32 = 16;
const MAX_OPEN_OF_ALL: u32 = 256;
/// Most expired or withdrawn forms and pages that are kept for people to look up.
const MAX_UNANSWERED: u32 = 256;
/// How long after its expiry a form's answer may still be taken, in milliseconds.
const SLACK_MS: i64 = 5_000;
/// SQL that removes a settled form's schema or address, and shortens its message to 1,000 characters.
const STRIP_CONTENT: &str = "request = json_set(CASE WHEN json_type(request, '$.wants.page') IS NULL \
    THEN json_set(request, '$.wants.form', json('null')) ELSE json_set(request, '$.wants.page', '') END, \
    '$.message', substr(request ->> '$.message', 1, 1000))";
/// SQL condition: [`STRIP_CONTENT`] has not been applied.
const HAS_CONTENT: &str = "CASE WHEN json_valid(request) THEN json_type(request, '$.wants.form') IS NOT 'null' \
     AND ifnull(request ->> '$.wants.page', 'some') <> '' END";
/// Longest wait for other processes when the WAL is truncated.
const TRUNCATE_WAIT: Duration = Duration::from_millis(100);
const EMPTY: &str = r#"{"action":"accept"}"#;
/// SQL condition: the question is about the call of a job that has not ended. The process that takes over the job uses
/// the answer.
const IS_OF_JOB: &str = "kind = 'call' AND EXISTS (SELECT 1 FROM jobs WHERE jobs.session = inbox.session \
     AND ended_ms IS NULL AND inbox.created_ms >= jobs.created_ms AND json_valid(request) \
     AND jobs.call = request ->> 'call_id' AND jobs.tool = request ->> 'tool')";

/// A row as stored. Its JSON is parsed outside the store's thread.
struct InboxRow {
    id: String,
    request: String,
    created_ms: i64,
    expires_ms: i64,
    state: String,
    decision: Option<String>,
    decided_by: Option<String>,
}

impl InboxRow {
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

    fn read<Q: DeserializeOwned, A: DeserializeOwned>(self) -> Result<InboxItem<Q, A>, StoreError> {
        let state = QuestionState::parse(&self.state).unwrap_or(QuestionState::Withdrawn);
        // The asking process may have ended without recording the expiry.
        let is_expired = state == QuestionState::Pending && self.expires_ms <= now_ms();
        Ok(InboxItem {
            id: self.id,
            request: from_json(&self.request)?,
            created_ms: self.created_ms.cast_unsigned(),
            expires_ms: self.expires_ms.cast_unsigned(),
            state: if is_expired { QuestionState::Expired } else { state },
            decision: self.decision.map(|text| from_json(&text)).transpose()?,
            decided_by: self.decided_by,
        })
    }
}

fn one(db: &Connection, kind: &str, id: &str) -> rusqlite::Result<Option<InboxRow>> {
    db.prepare_cached(&format!("{SELECT} WHERE id = ?1 AND kind = ?2"))?
        .query_row(params![id, kind], InboxRow::of)
        .optional()
}

/// Settles and erases forms whose expiry passed [`SLACK_MS`] ago, and deletes surplus ones.
pub(super) fn clear_expired(db: &Connection, now_ms: i64) -> rusqlite::Result<()> {
    let oldest = now_ms - SLACK_MS;
    db.prepare_cached(
        "UPDATE inbox SET state = 'expired' WHERE kind = 'form' AND state = 'pending' AND expires_ms <= ?1",
    )?
    .execute([oldest])?;
    db.prepare_cached(
        "UPDATE inbox SET state = 'withdrawn', asker = NULL WHERE kind = 'form' AND state IN ('approved', 'denied') \
         AND asker IS NOT NULL AND expires_ms <= ?1",
    )?
    .execute([oldest])?;
    strip_content(db, "expires_ms <= ?1", oldest)?;
    let sql = "DELETE FROM inbox WHERE kind = 'form' AND state IN ('expired', 'withdrawn') AND rowid NOT IN (SELECT rowid \
               FROM inbox WHERE kind = 'form' AND state IN ('expired', 'withdrawn') ORDER BY rowid DESC LIMIT ?1)";
    db.prepare_cached(sql)?.execute([MAX_UNANSWERED]).map(drop)
}

/// Erases the schemas, addresses and filled-in values of settled forms.
fn strip_content(db: &Connection, which: &str, value: impl ToSql) -> rusqlite::Result<()> {
    let of = format!("WHERE {which} AND kind = 'form' AND state <> 'pending' AND");
    db.prepare_cached(&format!("UPDATE inbox SET {STRIP_CONTENT} {of} {HAS_CONTENT}"))?.execute([&value])?;
    let accepted = "CASE WHEN json_valid(decision) THEN decision ->> 'action' = 'accept' END";
    let sql = format!("UPDATE inbox SET decision = ?2 {of} {accepted} AND decision <> ?2");
    if db.prepare_cached(&sql)?.execute(params![value, EMPTY])? > 0 {
        forget_written(db)?;
    }
    Ok(())
}

/// Withdraws questions whose asking process died before the answer or before it took the answer, except those of jobs.
fn withdraw_orphaned(db: &Connection) -> rusqlite::Result<()> {
    let sql = format!(
        "SELECT id, asker, asker IN (SELECT id FROM job_owners) FROM inbox WHERE asker IS NOT NULL \
         AND state IN ('pending', 'approved', 'denied') AND NOT ({IS_OF_JOB})"
    );
    let waiting: Vec<(String, i64, bool)> = db
        .prepare_cached(&sql)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    if waiting.is_empty() {
        return Ok(());
    }
    let gone = owner::dead_owners(db)?;
    for (id, ..) in waiting.iter().filter(|(_, asker, is_known)| !is_known || gone.contains(asker)) {
        withdraw(db, id)?;
    }
    Ok(())
}

/// Withdraws a question that is pending, or whose answer was not taken.
fn withdraw(db: &Connection, id: &str) -> rusqlite::Result<()> {
    let sql = "UPDATE inbox SET asker = NULL, \
               state = CASE WHEN state = 'pending' AND expires_ms <= ?2 THEN 'expired' ELSE 'withdrawn' END \
               WHERE id = ?1 AND (state = 'pending' OR asker IS NOT NULL AND state IN ('approved', 'denied'))";
    db.prepare_cached(sql)?.execute(params![id, now_ms()])?;
    strip_content(db, "id = ?1", id)
}

/// Settles what other processes asked about this call of a run that this process now drives. Takes the newest untaken
/// answer to the same question, and withdraws the pending questions.
fn settle_earlier(
    db: &Connection,
    (session, run, call): (&str, &str, &str),
    request: &str,
    asker: i64,
) -> rusqlite::Result<Option<String>> {
    let of_call = format!(
        "FROM inbox WHERE kind = 'call' AND session = ?1 AND json_valid(request) AND request ->> 'run' = ?2 \
         AND request ->> 'call_id' = ?3 AND asker IS NOT ?4 AND NOT ({IS_OF_JOB})"
    );
    // A question whose asker died before it took the answer may be withdrawn already.
    let untaken = "request = ?5 AND decision IS NOT NULL AND (asker IS NOT NULL OR state = 'withdrawn')";
    let newest = "ORDER BY created_ms DESC, rowid DESC LIMIT 1";
    let answered: Option<(String, String)> = db
        .prepare_cached(&format!("SELECT id, decision {of_call} AND {untaken} {newest}"))?
        .query_row(params![session, run, call, asker, request], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let left: Vec<String> = db
        .prepare_cached(&format!("SELECT id {of_call} AND state = 'pending'"))?
        .query_map(params![session, run, call, asker], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    left.iter().try_for_each(|id| withdraw(db, id))?;
    let Some((id, decision)) = answered else { return Ok(None) };
    let state = serde_json::from_str(&decision).map_or(QuestionState::Denied, |decision| state_of(&decision));
    db.prepare_cached("UPDATE inbox SET asker = NULL, state = ?2 WHERE id = ?1")?
        .execute(params![id, state.as_str()])?;
    Ok(Some(decision))
}

/// Returns the state of a question with this answer.
fn state_of(decision: &ApprovalDecision) -> QuestionState {
    match decision {
        ApprovalDecision::Approve | ApprovalDecision::Always | ApprovalDecision::AlwaysThese => QuestionState::Approved,
        ApprovalDecision::Deny { .. } | ApprovalDecision::Skip | ApprovalDecision::Later => QuestionState::Denied,
    }
}

/// Returns the owner number of this process, and renews its lease.
fn asker(db: &Connection) -> rusqlite::Result<i64> {
    let this = owner::number(db)?;
    renew(db, this)?;
    Ok(this)
}

/// Reads a row for this process, which waits for its answer and becomes the asker of a pending row. A settled row
/// counts as taken, and a form's content is erased.
fn take(db: &Connection, kind: &str, id: &str) -> rusqlite::Result<Option<InboxRow>> {
    let row = one(db, kind, id)?;
    match row.as_ref().and_then(|row| QuestionState::parse(&row.state)) {
        None => {}
        Some(QuestionState::Pending) => {
            let this = asker(db)?;
            let known: Option<i64> = db
                .prepare_cached("SELECT asker FROM inbox WHERE id = ?1")?
                .query_row([id], |row| row.get(0))
                .optional()?
                .flatten();
            if known != Some(this) {
                let sql = "UPDATE inbox SET asker = ?2 WHERE id = ?1 AND state = 'pending'";
                db.prepare_cached(sql)?.execute(params![id, this])?;
            }
        }
        Some(_) => {
            db.prepare_cached("UPDATE inbox SET asker = NULL WHERE id = ?1")?.execute([id])?;
            strip_content(db, "id = ?1", id)?;
        }
    }
    Ok(row)
}

/// Truncates the WAL, which may still contain filled-in values. If another process reads the file, they may stay there
/// until the WAL is overwritten.
fn forget_written(db: &Connection) -> rusqlite::Result<()> {
    db.busy_timeout(TRUNCATE_WAIT)?;
    if let Err(error) = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(())) {
        tracing::debug!("the log of writes was not cut back: {error}");
    }
    db.busy_timeout(BUSY)
}

impl SqliteStore {
    async fn get<Q: DeserializeOwned, A: DeserializeOwned>(
        &self,
        kind: &'static str,
        id: &str,
    ) -> Result<Option<InboxItem<Q, A>>, StoreError> {
        let id = id.to_owned();
        let row = self
            .thread
            .run("read a question", move |db| {
                withdraw_orphaned(db)?;
                one(db, kind, &id)
            })
            .await?;
        row.map(InboxRow::read).transpose()
    }

    async fn take<Q: DeserializeOwned, A: DeserializeOwned>(
        &self,
        kind: &'static str,
        id: &str,
    ) -> Result<Option<InboxItem<Q, A>>, StoreError> {
        let id = id.to_owned();
        let row = self.thread.run("take an answer", move |db| take(db, kind, &id)).await?;
        row.map(InboxRow::read).transpose()
    }

    async fn page(
        &self,
        state: Option<QuestionState>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<InboxPage, StoreError> {
        let (after, limit) = (after.map(str::to_owned), limit.max(1));
        let (mut rows, total) = self
            .thread
            .run("list the inbox", move |db| {
                withdraw_orphaned(db)?;
                let (state, now) = (state.map(QuestionState::as_str), now_ms());
                let count = format!("SELECT count(*) FROM inbox WHERE {IS_IN}");
                let total: i64 = db.prepare_cached(&count)?.query_row(params![state, now], |row| row.get(0))?;
                let behind =
                    "(?3 IS NULL OR (created_ms, rowid) < (SELECT created_ms, rowid FROM inbox WHERE id = ?3))";
                let sql = format!("{SELECT} WHERE {IS_IN} AND {behind} ORDER BY created_ms DESC, rowid DESC LIMIT ?4");
                let rows = db
                    .prepare_cached(&sql)?
                    .query_map(params![state, now, after, one_more(limit)], |row| {
                        Ok((row.get(7)?, InboxRow::of(row)?))
                    })?
                    .collect::<rusqlite::Result<Vec<(String, InboxRow)>>>()?;
                Ok((rows, total.cast_unsigned()))
            })
            .await?;
        let next = split_page(&mut rows, limit, |(_, row)| row.id.clone());
        let read = |(kind, row): (String, InboxRow)| match kind.as_str() {
            CALL => Ok(AnyQuestion::Call(Box::new(row.read()?))),
            _ => Ok(AnyQuestion::Form(Box::new(row.read()?))),
        };
        let questions = rows.into_iter().map(read).collect::<Result<_, StoreError>>()?;
        Ok(InboxPage { questions, total, next })
    }

    async fn list<Q: DeserializeOwned, A: DeserializeOwned>(
        &self,
        kind: &'static str,
        state: Option<QuestionState>,
        limit: usize,
    ) -> Result<Vec<InboxItem<Q, A>>, StoreError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let rows: Vec<InboxRow> = self
            .thread
            .run("list questions", move |db| {
                withdraw_orphaned(db)?;
                let now = now_ms();
                let sql = format!("{SELECT} WHERE kind = ?4 AND {IS_IN} ORDER BY created_ms DESC, rowid DESC LIMIT ?3");
                let state = state.map(QuestionState::as_str);
                db.prepare_cached(&sql)?.query_map(params![state, now, limit, kind], InboxRow::of)?.collect()
            })
            .await?;
        rows.into_iter().map(InboxRow::read).collect()
    }

    async fn decide<Q: DeserializeOwned, A: DeserializeOwned + Serialize>(
        &self,
        kind: &'static str,
        id: &str,
        (state, decision): (QuestionState, &A),
        by: &str,
    ) -> Result<AnswerStatus<InboxItem<Q, A>>, StoreError> {
        let (id, decision, by) = (id.to_owned(), to_json(decision)?, by.to_owned());
        let found = self
            .thread
            .run("answer a question", move |db| {
                let now = now_ms();
                clear_expired(db, now)?;
                withdraw_orphaned(db)?;
                let changed = db.execute(
                    "UPDATE inbox SET state = ?2, decision = ?3, decided_by = ?4, decided_ms = ?5 \
                     WHERE id = ?1 AND state = 'pending' AND expires_ms > ?5 AND kind = ?6",
                    params![id, state.as_str(), decision, by, now, kind],
                )?;
                if changed > 0 { Ok(Err(())) } else { one(db, kind, &id).map(Ok) }
            })
            .await?;
        Ok(match found {
            Err(()) => AnswerStatus::Accepted,
            Ok(Some(row)) => AnswerStatus::AlreadySettled(Box::new(row.read()?)),
            Ok(None) => AnswerStatus::Unknown,
        })
    }
}

#[async_trait]
impl InboxStore for SqliteStore {
    async fn put_question(&self, question: &Question) -> Result<Option<ApprovalDecision>, StoreError> {
        let request = &question.request;
        let (session, principal) = (request.session.as_str().to_owned(), request.principal.clone());
        let (run, call) = (request.run.clone(), request.call_id.to_string());
        let (id, state, request) = (question.id.clone(), question.state, to_json(request)?);
        let (created, expires) = (question.created_ms.cast_signed(), question.expires_ms.cast_signed());
        let given = self
            .thread
            .run("keep a question", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let asker = asker(&transaction)?;
                let given = match &run {
                    Some(run) => settle_earlier(&transaction, (&session, run, &call), &request, asker)?,
                    None => None,
                };
                if given.is_none() {
                    transaction.execute(
                        "INSERT INTO inbox (id, session, principal, request, created_ms, expires_ms, state, kind, asker) \
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                        params![id, session, principal, request, created, expires, state.as_str(), CALL, asker],
                    )?;
                }
                transaction.commit()?;
                Ok(given)
            })
            .await?;
        given.map(|text| from_json(&text)).transpose()
    }

    async fn question(&self, id: &str) -> Result<Option<Question>, StoreError> {
        self.get(CALL, id).await
    }

    async fn take_question(&self, id: &str) -> Result<Option<Question>, StoreError> {
        self.take(CALL, id).await
    }

    async fn questions(&self, state: Option<QuestionState>, limit: usize) -> Result<Vec<Question>, StoreError> {
        self.list(CALL, state, limit).await
    }

    async fn inbox(
        &self,
        state: Option<QuestionState>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<InboxPage, StoreError> {
        self.page(state, after, limit).await
    }

    async fn answer(&self, id: &str, decision: &ApprovalDecision, by: &str) -> Result<AnswerStatus, StoreError> {
        self.decide(CALL, id, (state_of(decision), decision), by).await
    }

    async fn put_form(&self, form: &FormQuestion) -> Result<(), StoreError> {
        let request = &form.request;
        let (session, principal) = (request.session.as_str().to_owned(), request.principal.clone());
        let (id, request) = (form.id.clone(), to_json(request)?);
        let (created, expires) = (form.created_ms.cast_signed(), form.expires_ms.cast_signed());
        let is_kept = self
            .thread
            .run("keep a question", move |db| {
                let now = now_ms();
                clear_expired(db, now)?;
                withdraw_orphaned(db)?;
                let asker = asker(db)?;
                let open = "SELECT count(*) FROM inbox WHERE kind = 'form' AND state = 'pending' AND expires_ms > ?6";
                let sql = format!(
                    "INSERT INTO inbox (id, session, principal, request, created_ms, expires_ms, state, kind, asker) \
                     SELECT ?1, ?2, ?3, ?4, ?5, ?7, 'pending', 'form', ?8 \
                     WHERE ({open} AND session = ?2) < {MAX_OPEN} AND ({open}) < {MAX_OPEN_OF_ALL}"
                );
                let row = params![id, session, principal, request, created, now, expires, asker];
                Ok(db.prepare_cached(&sql)?.execute(row)? > 0)
            })
            .await?;
        if is_kept {
            return Ok(());
        }
        let text = format!("{MAX_OPEN} forms and pages of one session may wait at once, and {MAX_OPEN_OF_ALL} of all");
        Err(StoreError::Quota(text))
    }

    async fn form(&self, id: &str) -> Result<Option<FormQuestion>, StoreError> {
        self.get(FORM, id).await
    }

    async fn forms(&self, state: Option<QuestionState>, limit: usize) -> Result<Vec<FormQuestion>, StoreError> {
        self.list(FORM, state, limit).await
    }

    async fn answer_form(
        &self,
        id: &str,
        reply: &FormReply,
        by: &str,
    ) -> Result<AnswerStatus<FormQuestion>, StoreError> {
        let state = match reply {
            FormReply::Accept { .. } => QuestionState::Approved,
            FormReply::Decline => QuestionState::Denied,
        };
        self.decide(FORM, id, (state, reply), by).await
    }

    async fn take_form(&self, id: &str) -> Result<Option<FormQuestion>, StoreError> {
        self.take(FORM, id).await
    }

    async fn close_question(&self, id: &str, state: QuestionState) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.thread
            .run("close a question", move |db| {
                // The asker polls once more after the expiry, so an answer is left for it. After a withdrawal nobody
                // polls.
                if state == QuestionState::Withdrawn {
                    return withdraw(db, &id);
                }
                let close = "UPDATE inbox SET state = ?2 WHERE id = ?1 AND state = 'pending'";
                db.execute(close, params![id, state.as_str()]).map(drop)
            })
            .await
    }
}

#[async_trait]
impl ApprovalStore for SqliteStore {
    async fn is_approved(&self, scope: &str, tool: &ToolId, key: ContentHash) -> Result<bool, StoreError> {
        let (scope, tool, hash) = (scope.to_owned(), tool.to_string(), key.to_hex());
        self.thread
            .run("look up an approval", move |db| {
                db.query_row(
                    "SELECT 1 FROM approvals WHERE scope = ?1 AND tool = ?2 AND hash = ?3",
                    params![scope, tool, hash],
                    |_| Ok(()),
                )
                .optional()
            })
            .await
            .map(|row| row.is_some())
    }

    async fn approve_always(&self, standing: &StandingApproval) -> Result<(), StoreError> {
        let (scope, tool, hash) = (standing.scope.clone(), standing.tool.to_string(), standing.key.to_hex());
        let (id, standing) = (standing.id.clone(), to_json(standing)?);
        self.thread
            .run("store an approval", move |db| {
                db.execute(
                    "INSERT INTO approvals (scope, tool, hash, saved_ms, id, standing) VALUES (?1, ?2, ?3, ?4, ?5, ?6) \
                     ON CONFLICT (scope, tool, hash) DO UPDATE SET saved_ms = ?4",
                    params![scope, tool, hash, now_ms(), id, standing],
                )
                .map(drop)
            })
            .await
    }

    async fn list_standing(&self, limit: usize) -> Result<Vec<StandingApproval>, StoreError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        let rows: Vec<String> = self
            .thread
            .run("list standing approvals", move |db| {
                db.prepare_cached("SELECT standing FROM approvals ORDER BY saved_ms DESC, rowid DESC LIMIT ?1")?
                    .query_map(params![limit], |row: &Row<'_>| row.get(0))?
                    .collect()
            })
            .await?;
        rows.iter().map(|row| from_json(row)).collect()
    }

    async fn revoke(&self, id: &str) -> Result<bool, StoreError> {
        let id = id.to_owned();
        self.thread
            .run("revoke an approval", move |db| db.execute("DELETE FROM approvals WHERE id = ?1", params![id]))
            .await
            .map(|gone| gone > 0)
    }
}

#[cfg(test)]
#[path = "inbox_tests.rs"]
mod tests;
