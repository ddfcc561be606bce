//! The ledger: runs and sessions, their operations as trees, and usage sums.

use std::sync::Arc;

use axum::extract::{Path, State};
use serde::Deserialize;
use serde_json::json;
use toolwright_core::store::TraceSums;
use toolwright_core::store::{UsageBy, UsageRow};
use toolwright_core::trace;
use toolwright_core::trace::MAX_OPERATIONS;

use super::{Api, ApiResult, PathParam, QueryParams, bounded};
use crate::http::ApiError;

/// The default and largest number of listed runs and sessions.
const LISTED: usize = 50;
const MAX_LISTED: usize = 1000;
/// The default and largest number of listed calls of one tool.
const CALLS: usize = 20;
const MAX_CALLS: usize = 100;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    after: Option<String>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Show {
    last: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Calls {
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sums {
    by: UsageBy,
    #[serde(default)]
    since_ms: u64,
}

/// Handles `GET /api/traces`.
pub(super) async fn traces(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<List>) -> ApiResult {
    let limit = bounded("limit", asked.limit, LISTED, MAX_LISTED)?;
    let wrong = |why| ApiError::bad_request(format!("`after`: {why}"));
    let after = asked.after.as_deref().map(str::parse).transpose().map_err(wrong)?;
    let page = api.gateway.options.executor.ledger().trace_page(after, limit).await?;
    api.ok(&json!({"traces": page.traces, "total": page.total, "next": page.next.map(|next| next.to_string())}))
}

/// Handles `GET /api/traces/{id}`.
pub(super) async fn trace(
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam,
    QueryParams(asked): QueryParams<Show>,
) -> ApiResult {
    let last = bounded("last", asked.last, MAX_OPERATIONS, MAX_OPERATIONS)?;
    let traces = trace::read(&**api.gateway.options.executor.ledger(), &id, last).await?;
    match traces.first() {
        Some(trace) => api.ok(&json!(trace)),
        None => Err(ApiError::not_found(format!("no run or session is called, or begins with, only `{id}`"))),
    }
}

/// Handles `GET /api/traces/{id}/operations/{op}`.
pub(super) async fn operation(State(api): State<Arc<Api>>, Path((id, op)): Path<(String, String)>) -> ApiResult {
    let ledger = api.gateway.options.executor.ledger();
    for summary in &ledger.find_traces(&id).await? {
        let mut room = MAX_OPERATIONS;
        for of in &ledger.trace_tree(summary).await? {
            let entries = ledger.operations(of, room).await?;
            if let Some(entry) = entries.iter().find(|entry| entry.op.id.to_string() == op) {
                return api.ok(&json!(entry));
            }
            room -= entries.len().min(room);
        }
    }
    Err(ApiError::not_found(format!("`{id}` has no operation `{op}`")))
}

/// Handles `GET /api/tools/{id}/calls`.
pub(super) async fn calls(
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam,
    QueryParams(asked): QueryParams<Calls>,
) -> ApiResult {
    let limit = bounded("limit", asked.limit, CALLS, MAX_CALLS)?;
    let tool = api.tool(&id).await?;
    let calls = api.gateway.options.executor.ledger().recent_calls(Some(&tool.id().to_string()), limit).await?;
    api.ok(&json!({"calls": calls}))
}

/// Handles `GET /api/budgets`.
pub(super) async fn budgets(State(api): State<Arc<Api>>) -> ApiResult {
    let options = &api.gateway.options;
    let mut budgets = Vec::new();
    for (name, client) in &options.server.tokens {
        let Some(limits) = &client.budget else { continue };
        let (period, spent) = options.executor.models().spent(name).await?.unzip();
        budgets.push(json!({"token": name, "limits": limits, "period": period, "spent": spent}));
    }
    api.ok(&json!({"tokens": budgets}))
}

/// Handles `GET /api/usage`.
pub(super) async fn sums(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Sums>) -> ApiResult {
    let ledger = api.gateway.options.executor.ledger();
    let rows = ledger.usage(asked.by, asked.since_ms).await?;
    let mut totals = TraceSums::default();
    let mut add = |days: &[UsageRow]| days.iter().for_each(|day| totals.add_all(&day.sums));
    match asked.by {
        UsageBy::Day => add(&rows),
        _ => add(&ledger.usage(UsageBy::Day, asked.since_ms).await?),
    }
    api.ok(&json!({"rows": rows, "totals": totals}))
}
