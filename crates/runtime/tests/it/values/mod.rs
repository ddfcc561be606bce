//! Values of a session, and the calls that refer to them.

mod plans;
mod requests;
mod session_log;
mod state;
