//! The session log: an append-only log of sessions' values and of messages to their conversations.
//!
//! A row is a *value*, written under a path, or a *message*, written into a mailbox. Each session and each
//! channel has a mailbox. A run gives its model each message once: its saved state has the number of the last one.

use std::sync::Weak;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::StoreError;
use super::channel::Delivery;
use super::values::{ValueWatcher, WrittenValue, fold_with_taint};
use crate::error::Unsupported;
use crate::identity::session::{CallId, Session, SessionId};
use crate::identity::taint::Taint;
use crate::output::json_bytes;

/// Most bytes that one row counts.
pub const MAX_ROW_BYTES: usize = 256 << 10;
/// Most unread messages of one mailbox.
pub const MAX_WAITING: u64 = 1_000;
/// Most messages and file changes in a chain. The next is refused, so that agents do not wake each other forever.
pub const MAX_HOPS: u32 = 32;
/// Most bytes kept per session or channel.
pub const MAX_SESSION_BYTES: u64 = 16 << 20;
/// Most bytes kept for all sessions of one principal.
pub const MAX_PRINCIPAL_BYTES: u64 = 256 << 20;

/// The author of a row.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Author {
    /// The session; `None` for Toolwright itself.
    pub session: Option<SessionId>,
    /// The agent of that session, if it has one.
    pub agent: Option<String>,
    /// The call that wrote it, if one did.
    pub call: Option<CallId>,
}

impl Author {
    /// Returns a call as the author.
    #[must_use]
    pub fn call(session: &Session, call: &CallId) -> Self {
        Self { session: Some(session.id.clone()), agent: session.agent.clone(), call: Some(call.clone()) }
    }

    /// The displayed name: the agent's, else the session's, else `toolwright`.
    #[must_use]
    pub fn name(&self) -> &str {
        let session = self.session.as_ref().map_or("toolwright", SessionId::as_str);
        self.agent.as_deref().unwrap_or(session)
    }
}

/// The subject kind of a message, which decides how the conversation gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageKind {
    /// A background job of the session has ended; `subject` is its id. The store writes it with the job's end, and no
    /// quota refuses it. Its text is empty: the job's record has the content.
    Job,
    /// A child run has ended; `subject` names the agent.
    Child,
    /// A trigger has fired; `subject` is its id.
    Trigger,
    /// Somebody wrote to a channel; `subject` is its name.
    Channel,
    /// A member of the group wrote; `subject` is its name.
    Group,
}

impl MessageKind {
    const ALL: [Self; 5] = [Self::Job, Self::Child, Self::Trigger, Self::Channel, Self::Group];

    /// Returns its stored form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Job => "job",
            Self::Child => "child",
            Self::Trigger => "trigger",
            Self::Channel => "channel",
            Self::Group => "group",
        }
    }

    /// Parses the stored form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// A message of a mailbox.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogMessage {
    /// The kind of subject.
    pub kind: MessageKind,
    /// The job, trigger, channel or agent it is about.
    pub subject: String,
    /// The text.
    pub text: String,
    /// Further data for programs.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub data: Value,
}

impl LogMessage {
    /// Returns the source of its text.
    #[must_use]
    pub fn source(&self) -> String {
        let kind = match self.kind {
            MessageKind::Child | MessageKind::Group => "agent",
            kind => kind.as_str(),
        };
        format!("{kind} {}", self.subject)
    }

    /// Formats it for the conversation: the author, and the text as data. `author` is the row's [`Author::name`].
    #[must_use]
    pub fn notice(&self, author: &str) -> String {
        let Self { kind, subject, text, .. } = self;
        let head = match kind {
            MessageKind::Job => format!("Background job {subject} has ended"),
            MessageKind::Child => format!("Agent {subject} has ended"),
            MessageKind::Trigger => format!("Trigger {subject} has fired"),
            MessageKind::Channel => format!("{author} wrote to channel {subject}"),
            MessageKind::Group => format!("{author} sent a message"),
        };
        if text.is_empty() {
            format!("[toolwright notice] {head}.")
        } else {
            format!("[toolwright notice] {head}:\n{text}")
        }
    }
}

/// A row's content.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogEntry {
    /// A value under a path.
    Value(WrittenValue),
    /// A message for a mailbox.
    Message(LogMessage),
}

impl LogEntry {
    /// The bytes that quotas count.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Value(WrittenValue { path, output: Some(handle), .. }) => path.len() + handle.len(),
            Self::Value(value) => value.path.len() + json_bytes(&value.data),
            Self::Message(message) => {
                let data = if message.data.is_null() { 0 } else { message.data.to_string().len() };
                message.subject.len() + message.text.len() + data
            }
        }
    }
}

/// A row to append.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRow {
    /// The session that keeps the value or receives the message, or a channel's address.
    pub session: SessionId,
    /// The session's principal. The caller checks that the author may write to it.
    pub principal: String,
    /// The author.
    pub author: Author,
    /// The content.
    pub entry: LogEntry,
    /// Key for writing at most once in a session: a second row with the key is not written, and the first keeps its
    /// number.
    pub once: Option<String>,
}

impl NewRow {
    /// Returns a message for a session of `principal`.
    #[must_use]
    pub fn message(to: &SessionId, principal: &str, author: Author, message: LogMessage) -> Self {
        Self {
            session: to.clone(),
            principal: principal.to_owned(),
            author,
            entry: LogEntry::Message(message),
            once: None,
        }
    }

    /// Returns a value that a call of `session` writes in it.
    #[must_use]
    pub fn value(session: &Session, call: &CallId, written: WrittenValue) -> Self {
        Self {
            session: session.id.clone(),
            principal: session.principal.id.clone(),
            author: Author::call(session, call),
            entry: LogEntry::Value(written),
            once: None,
        }
    }

    /// Sets the key for writing at most once.
    #[must_use]
    pub fn once(self, key: String) -> Self {
        Self { once: Some(key), ..self }
    }
}

/// A row that was appended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AppendedRow {
    /// Its number.
    pub seq: u64,
    /// The sessions that are wired to the mailbox and did not get the message, because their own mailboxes are full.
    pub missed: Vec<SessionId>,
}

/// A row of the log.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogRow {
    /// Its number, ascending across all sessions.
    pub seq: u64,
    /// The session or channel that it is in.
    pub session: SessionId,
    /// The session's principal.
    pub principal: String,
    /// Time of writing, in milliseconds since the epoch.
    pub at_ms: u64,
    /// The author.
    pub author: Author,
    /// The content.
    pub entry: LogEntry,
}

impl LogRow {
    /// Returns its message, if it is one.
    #[must_use]
    pub fn message(&self) -> Option<&LogMessage> {
        match &self.entry {
            LogEntry::Message(message) => Some(message),
            LogEntry::Value(_) => None,
        }
    }
}

/// The value at a path of a session, and the number of the newest row that contributed to it; 0 without one.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct VersionedValue {
    /// The value, if any.
    pub value: Option<Value>,
    /// The untrusted tools that had a part in it.
    pub taint: Taint,
    /// The row's number.
    pub seq: u64,
}

impl VersionedValue {
    /// Builds it from the output of [`SessionLog::values`] for `path`, for all instances.
    #[must_use]
    pub fn of(rows: Vec<LogRow>, path: &str) -> Self {
        let seq = rows.last().map_or(0, |row| row.seq);
        let written = rows.into_iter().filter_map(|row| match row.entry {
            LogEntry::Value(written) => Some(written),
            LogEntry::Message(_) => None,
        });
        let written: Vec<WrittenValue> = written.collect();
        let (value, taint) = fold_with_taint(written.iter(), path, None).unzip();
        Self { value, taint: taint.unwrap_or_default(), seq }
    }
}

/// The session log. Every method commits before it returns.
#[async_trait]
pub trait SessionLog: Send + Sync {
    /// Appends a row and returns its number. A message wakes callers of [`SessionLog::wait`].
    ///
    /// # Errors
    /// [`StoreError::Quota`] for a row that is too long, a mailbox with [`MAX_WAITING`] unread messages, a message at
    /// the end of a chain of [`MAX_HOPS`] others, and a session or principal over its byte quota: nothing is written,
    /// and the error says what the author can do.
    async fn append(&self, _row: NewRow) -> Result<AppendedRow, StoreError> {
        Err(Unsupported("the session log").into())
    }

    /// Appends values of one session together, if the newest value relevant to `path` is still the one
    /// with the number `seq`. Returns whether they were written; if not, another author wrote there first.
    ///
    /// # Errors
    /// As [`SessionLog::append`]: none is written.
    async fn append_values(&self, _rows: Vec<NewRow>, _path: &str, _seq: u64) -> Result<bool, StoreError> {
        Err(Unsupported("the session log").into())
    }

    /// Returns the messages of a mailbox after the number `after` that were not taken, oldest first, at most `limit`.
    async fn messages(&self, _session: &SessionId, _after: u64, _limit: usize) -> Result<Vec<LogRow>, StoreError> {
        Ok(Vec::new())
    }

    /// Returns the messages of a mailbox after both `after` and its own cursor: those that its runs have not shown.
    async fn unread(&self, _session: &SessionId, _after: u64, _limit: usize) -> Result<Vec<LogRow>, StoreError> {
        Ok(Vec::new())
    }

    /// Returns the values of a session relevant to `path`: those written at it, above it and below it, oldest
    /// first. [`super::fold`] reads them.
    async fn values(&self, _session: &SessionId, _path: &str) -> Result<Vec<LogRow>, StoreError> {
        Err(Unsupported("the session log").into())
    }

    /// Returns the session that last wrote a value at `path` or below it.
    async fn last_writer(&self, _path: &str) -> Result<Option<SessionId>, StoreError> {
        Err(Unsupported("the session log").into())
    }

    /// Reports values of the session as this process writes them, as long as the watcher is alive.
    fn watch(&self, _session: &SessionId, _watcher: Weak<dyn ValueWatcher>) {}

    /// Returns the number of the last message that a reader of a mailbox has read; 0 at first. A reader is the id of a
    /// session or trigger.
    async fn cursor(&self, _mailbox: &SessionId, _reader: &str) -> Result<u64, StoreError> {
        Ok(0)
    }

    /// Records that a session has read its mailbox up to `seq`, and that its current work is based on messages after
    /// `since`. Both only increase. Messages read by all readers are removed first when room is needed.
    async fn set_cursor(&self, _mailbox: &SessionId, _seq: u64, _since: u64) -> Result<(), StoreError> {
        Ok(())
    }

    /// Takes the oldest messages of a channel that sessions other than `reader` wrote, at most `limit`. From a queue,
    /// no other reader gets them, in any process; of a broadcast, they are those after the reader's cursor, which
    /// advances. A repeated `call` gets the same messages.
    async fn take(
        &self,
        _mailbox: &SessionId,
        _delivery: Delivery,
        _reader: &SessionId,
        _call: &CallId,
        _limit: usize,
    ) -> Result<Vec<LogRow>, StoreError> {
        Err(Unsupported("the session log").into())
    }

    /// Returns the session at the root of a session's tree of agents, possibly itself.
    async fn root(&self, session: &SessionId) -> Result<SessionId, StoreError> {
        Ok(session.clone())
    }

    /// Returns the number of messages and file changes that led to the current work of a session; 0 for none.
    async fn hops(&self, _session: &SessionId) -> Result<u32, StoreError> {
        Ok(0)
    }

    /// Waits until a mailbox has a message after `after`, at most `limit`; returns whether it has one. Messages of this
    /// process are noticed at once, those of others within a second.
    async fn wait(&self, _mailbox: &SessionId, _after: u64, _limit: Duration) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// Marks messages about `subject` as taken, because the conversation got the information another way.
    async fn withdraw(&self, _mailbox: &SessionId, _kind: MessageKind, _subject: &str) -> Result<(), StoreError> {
        Ok(())
    }
}

/// A log that keeps and delivers nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoSessionLog;

impl SessionLog for NoSessionLog {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_name_sender_and_subject() {
        let notice = |kind, text: &str| {
            LogMessage { kind, subject: "news".into(), text: text.into(), data: Value::Null }.notice("scout")
        };
        for (kind, text, expect) in [
            (MessageKind::Channel, "hello", "[toolwright notice] scout wrote to channel news:\nhello"),
            (MessageKind::Trigger, "", "[toolwright notice] Trigger news has fired."),
            (MessageKind::Group, "go", "[toolwright notice] scout sent a message:\ngo"),
        ] {
            assert_eq!(notice(kind, text), expect);
            assert_eq!(MessageKind::parse(kind.as_str()), Some(kind));
        }
    }

    #[test]
    fn authors_are_named_by_agent_then_session() {
        let session = Some(SessionId::new("s"));
        let agent = Author { session: session.clone(), agent: Some("scout".into()), call: None };
        assert_eq!(agent.name(), "scout");
        assert_eq!(Author { session, ..Author::default() }.name(), "s");
        assert_eq!(Author::default().name(), "toolwright");
    }
}
