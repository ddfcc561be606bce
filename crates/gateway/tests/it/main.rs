//! The gateway over real sockets and pipes, asked in raw JSON-RPC and by another implementation.

#![expect(clippy::expect_used, clippy::panic, reason = "tests")]

mod answers;
mod api;
mod api_approvals;
mod batches;
mod connections;
mod console;
mod elicit;
mod facades;
mod guards;
mod input_required;
mod legacy;
mod listed_tools;
mod lists;
mod methods;
mod modern;
mod output_schemas;
mod search;
mod shutdown;
mod sources;
mod stdio;
mod streams;
mod subscriptions;
mod support;
mod tasks;
mod views;
