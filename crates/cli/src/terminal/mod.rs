//! The person at the terminal: what is shown, asked, logged and interrupted.

pub(crate) mod approver;
pub(crate) mod console;
pub(crate) mod form;
pub(crate) mod logging;
pub(crate) mod markdown;
pub(crate) mod progress;
pub(crate) mod screen;
pub(crate) mod signals;
pub(crate) mod table;
pub(crate) mod wrap;
