//! What things are called: tools, calls and sessions, operations and traces, and the names that models write.

pub mod name_table;
pub mod operation;
pub mod session;
pub mod tool_id;
