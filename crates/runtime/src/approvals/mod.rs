//! Approvers that live in this crate, and the inbox as a way to ask a person what a tool's source wants to know.

mod forms;
mod inbox;
mod waiting;

pub use forms::{FormInbox, FormInboxParts};
pub use inbox::{Inbox, InboxParts};
pub(crate) use waiting::new_id;
