//! The two transports, and what their requests have in common: `dispatch` picks the method.

mod dispatch;
pub(crate) mod http;
pub(crate) mod stdio;
mod stdio_streams;
