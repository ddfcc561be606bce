//! What clients list and read, and how they hear of changes.

mod answers;
mod listed_tools;
mod lists;
mod output_schemas;
mod search;
mod subscriptions;
mod views;
