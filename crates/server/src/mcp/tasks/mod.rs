//! Calls that go on as tasks after their first answer: a client looks at them, and has their results, later.
//!
//! Under a task is a call like any other, through the executor. Up to 2025-11-25 a client says which call is to be one.
//! A client with the extension of 2026-07-28 is answered so whenever a call takes longer than a moment. A task belongs
//! to its session, ends with it, and is kept for its time only.

mod client;
mod methods;
mod progress;
mod store;
mod task;

pub(crate) use client::{TaskClient, Way};
pub(crate) use methods::{serves, wished};
pub(crate) use progress::TaskProgress;
pub(crate) use store::Tasks;
pub(crate) use task::Task;
