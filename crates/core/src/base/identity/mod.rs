//! Identifies tools, calls, principals and sessions, and maps the names that models write.

pub mod name_table;
pub mod session;
pub mod taint;
pub mod tool_id;
