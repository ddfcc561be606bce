//! The person at the terminal: what is shown, asked, logged and interrupted.

pub(crate) mod console;
pub(crate) mod logging;
pub(crate) mod markdown;
pub(crate) mod person;
pub(crate) mod progress;
pub(crate) mod screen;
pub(crate) mod table;
