//! Approvers that live in this crate.

mod inbox;

pub(crate) use inbox::new_id;
pub use inbox::{Inbox, InboxParts};
