//! The gateway over real sockets and pipes, asked in raw JSON-RPC and by another implementation.

#![expect(clippy::expect_used, clippy::panic, reason = "tests")]

mod answers;
mod api;
mod batches;
mod broken_output_schemas;
mod connections;
mod elicit;
mod guards;
mod heartbeat;
mod http;
mod input_required;
mod legacy;
mod levels;
mod lists;
mod methods;
mod metrics;
mod modern;
mod outputs;
mod peers;
mod portable;
mod promises;
mod resume;
mod search;
mod shutdown;
mod sources;
mod stdio;
mod subscriptions;
mod support;
mod tasks;
mod views;
