//! Stores the members of groups, and which mailboxes are wired.

use async_trait::async_trait;
use rusqlite::{Row, TransactionBehavior, params};
use toolwright_core::session::SessionId;
use toolwright_core::store::StoreError;
use toolwright_core::store::group::{CLAIM, Groups, MAX_MEMBERS, Member};

use crate::store::owner::Owner;
use crate::store::{SqliteStore, json_column, to_json};

#[async_trait]
impl Groups for SqliteStore {
    async fn add(&self, member: Member) -> Result<(), StoreError> {
        let (name, rights) = (member.name.clone(), to_json(&member.rights)?);
        let refused = self
            .thread
            .run("add a member of a group", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                let sql = "SELECT count(*), count(*) FILTER (WHERE name = ?2) FROM group_members WHERE principal = ?1";
                let (all, same): (i64, i64) =
                    transaction.query_row(sql, [&*member.rights.principal.id, &member.name], |row| {
                        Ok((row.get(0)?, row.get(1)?))
                    })?;
                if same > 0 {
                    return Ok(Some(StoreError::Refused(format!("the group has a member `{}` already", member.name))));
                }
                if usize::try_from(all).unwrap_or_default() >= MAX_MEMBERS {
                    return Ok(Some(StoreError::Quota(format!(
                        "the group has {MAX_MEMBERS} members, which is the limit: remove one before `{}` is added",
                        member.name
                    ))));
                }
                transaction.execute(
                    "INSERT INTO group_members VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                    params![
                        member.rights.principal.id,
                        member.name,
                        member.agent,
                        member.instructions,
                        member.session.as_str(),
                        member.privileged,
                        member.started,
                        member.created_ms.cast_signed(),
                        rights,
                    ],
                )?;
                transaction.commit()?;
                Ok(None)
            })
            .await?;
        tracing::debug!(member = name, "a member of a group was added");
        refused.map_or(Ok(()), Err)
    }

    async fn remove(&self, principal: &str, name: &str) -> Result<(), StoreError> {
        let (principal, key) = (principal.to_owned(), name.to_owned());
        let removed = self
            .thread
            .run("remove a member of a group", move |db| {
                let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                transaction.execute(
                    "DELETE FROM wires WHERE reader IN (SELECT session FROM group_members WHERE principal = ?1 AND name = ?2)",
                    [&principal, &key],
                )?;
                let sql = "DELETE FROM group_members WHERE principal = ?1 AND name = ?2";
                let removed = transaction.execute(sql, [&principal, &key])?;
                transaction.commit()?;
                Ok(removed)
            })
            .await?;
        found(removed, name)
    }

    async fn set_started(&self, principal: &str, name: &str, started: bool) -> Result<(), StoreError> {
        let (principal, key) = (principal.to_owned(), name.to_owned());
        let changed = self
            .thread
            .run("start or stop a member of a group", move |db| {
                let sql = "UPDATE group_members SET started = ?3 WHERE principal = ?1 AND name = ?2";
                db.execute(sql, params![principal, key, started])
            })
            .await?;
        self.wake_mail_waiters();
        found(changed, name)
    }

    async fn members(&self, principal: Option<&str>) -> Result<Vec<Member>, StoreError> {
        let principal = principal.map(str::to_owned);
        self.thread
            .run("list the members of groups", move |db| {
                let sql = "SELECT name, rights, agent, instructions, session, privileged, group_members.started, \
                           created_ms, (SELECT count(*) FROM session_log WHERE session_log.session = group_members.session \
                           AND is_message AND taken_by IS NULL AND seq > ifnull((SELECT seq FROM session_log_cursors \
                           WHERE mailbox = group_members.session AND reader = mailbox), 0)), \
                           pid, boot, run_claims.started \
                           FROM group_members LEFT JOIN run_claims ON run = ?2 || session WHERE ?1 IS NULL OR principal = ?1 ORDER BY name, principal";
                db.prepare_cached(sql)?.query_map(params![principal, CLAIM], member)?.collect()
            })
            .await
    }

    async fn wire(&self, from: &SessionId, to: &SessionId, is_wired: bool) -> Result<(), StoreError> {
        let (from, to) = (from.as_str().to_owned(), to.as_str().to_owned());
        self.thread
            .run("wire mailboxes", move |db| {
                let sql = if is_wired {
                    "INSERT OR IGNORE INTO wires VALUES (?1, ?2)"
                } else {
                    "DELETE FROM wires WHERE mailbox = ?1 AND reader = ?2"
                };
                db.execute(sql, [from, to]).map(drop)
            })
            .await
    }
}

fn found(rows: usize, name: &str) -> Result<(), StoreError> {
    let quoted_name: String = name.chars().take(100).collect();
    if rows > 0 { Ok(()) } else { Err(StoreError::NotFound(format!("a member `{quoted_name}` of the group"))) }
}

fn member(row: &Row<'_>) -> rusqlite::Result<Member> {
    let pid: Option<u32> = row.get(9)?;
    let driver = pid.map(|pid| Ok::<_, rusqlite::Error>(Owner { pid, boot: row.get(10)?, started: row.get(11)? }));
    let driver = driver.transpose()?;
    Ok(Member {
        name: row.get(0)?,
        rights: json_column(row, 1)?,
        agent: row.get(2)?,
        instructions: row.get(3)?,
        session: SessionId::new(row.get::<_, String>(4)?),
        privileged: row.get(5)?,
        started: row.get(6)?,
        is_driven: driver.is_some_and(|driver| driver == *Owner::current() || driver.is_alive()),
        created_ms: row.get::<_, i64>(7)?.cast_unsigned(),
        waiting: row.get::<_, i64>(8)?.cast_unsigned(),
    })
}
