//! The database: its file, the thread that works on it, and the deletion of old rows.

mod backlog;
mod begun_journal;
mod file;
mod retention;
mod thread;

#[cfg(test)]
pub(super) use begun_journal::{BegunJournal, line};
pub(super) use begun_journal::{DeadJournal, dead_journals};
#[cfg(test)]
pub(super) use file::create_or_check;
pub(super) use file::{MEMORY, check};
pub(super) use retention::Retention;
pub(super) use thread::StoreThread;
