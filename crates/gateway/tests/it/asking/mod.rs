//! Calls that ask their client, or outlast their request.

mod elicit;
mod input_required;
mod tasks;
