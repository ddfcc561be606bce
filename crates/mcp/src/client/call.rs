//! One call: what goes out. What comes back is a [`CallReply`].

use std::pin::pin;

use serde_json::{Value, json};
use toolwright_core::catalogue::ProviderCall;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;

use super::exchange::{Exchange, Sent, What, transport};
use super::params::Params;
use super::reply::CallReply;
use super::tasks;
use super::tool_facts::Fact;

/// Runs one call. Dropping the future cancels it at the server.
///
/// # Errors
/// As [`Exchange::run`].
pub(crate) async fn run(
    exchange: Exchange<'_>,
    call: ProviderCall<'_>,
    fact: Option<&Fact>,
) -> Result<ToolOutput, ToolError> {
    let mut params = Params { name: Some(call.raw_name), ..Params::default() };
    let mut headers = Vec::new();
    if let Value::Object(arguments) = &call.arguments {
        headers = fact.map(|fact| fact.headers(arguments)).unwrap_or_default();
        params.arguments = Some(call.arguments);
    }
    if fact.is_some_and(|fact| fact.wants_task) && tasks::can_be_asked_for(exchange.connection.server()) {
        params.others.insert("task".to_owned(), json!({}));
    }
    let sent = Sent {
        method: "tools/call",
        what: What("the call of ", call.raw_name),
        name: Some(call.raw_name),
        headers,
        params,
        idempotency_key: Some(call.idempotency_key),
    };
    let reply = pin!(exchange.run::<CallReply>(sent)).await?;
    reply.output(exchange.connection.server().era).map_err(|reason| transport(exchange.server, reason))
}
