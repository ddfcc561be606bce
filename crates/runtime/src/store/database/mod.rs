//! The database: its file, the thread that works on it, and the deletion of old rows.

mod backlog;
mod file;
mod retention;
mod thread;

pub(super) use file::check;
#[cfg(test)]
pub(super) use file::create_or_check;
pub(super) use retention::Retention;
pub(super) use thread::StoreThread;
