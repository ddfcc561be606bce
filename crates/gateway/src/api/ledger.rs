//! The ledger: runs and sessions, their operations as trees, and sums of what they used.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use serde_json::json;
use toolwright_core::store::TraceSums;
use toolwright_core::trace;
use toolwright_core::usage::{UsageBy, usage};

use super::{Answer, Api, PathParam, QueryParams};
use crate::http::ApiError;

/// Runs and sessions that are listed unless asked otherwise, and at most.
const LISTED: usize = 50;
const MAX_LISTED: usize = 1000;
/// Operations that sums are made of at most.
const MAX_COUNTED: usize = 50_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    limit: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sums {
    by: UsageBy,
    #[serde(default)]
    since_ms: u64,
}

/// `GET /api/traces`.
pub(super) async fn traces(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<List>) -> Answer {
    let limit = asked.limit.unwrap_or(LISTED);
    if !(1..=MAX_LISTED).contains(&limit) {
        return Err(ApiError::bad_request(format!("`limit` is from 1 to {MAX_LISTED}")));
    }
    // One more tells whether there are more.
    let mut traces = api.gateway.options.executor.ledger().traces(limit + 1).await?;
    let more = traces.len() > limit;
    traces.truncate(limit);
    api.ok(&json!({"traces": traces, "more": more}))
}

/// `GET /api/traces/{id}`.
pub(super) async fn trace(State(api): State<Arc<Api>>, PathParam(id): PathParam) -> Answer {
    let traces = trace::read(&**api.gateway.options.executor.ledger(), &id).await?;
    match traces.first() {
        Some(trace) => api.ok(&json!(trace)),
        None => Err(ApiError::not_found(format!("no run or session is called, or begins with, only `{id}`"))),
    }
}

/// `GET /api/usage`.
pub(super) async fn sums(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<Sums>) -> Answer {
    let ledger = api.gateway.options.executor.ledger();
    let (mut entries, mut is_cut) = (Vec::new(), false);
    for root in ledger.traces(MAX_LISTED).await? {
        for of in ledger.trace_tree(&root).await? {
            if of.ended_ms < asked.since_ms {
                continue;
            }
            // One more tells whether there are more.
            let room = MAX_COUNTED - entries.len();
            let read = ledger.operations(&of, room + 1).await?;
            is_cut |= read.len() > room;
            entries.extend(read.into_iter().filter(|entry| entry.at_ms >= asked.since_ms).take(room));
        }
        if is_cut {
            break;
        }
    }
    let mut totals = TraceSums::default();
    entries.iter().for_each(|entry| totals.add(entry));
    api.ok(&json!({"rows": usage(&entries, asked.by), "totals": totals, "operations": entries.len(), "cut": is_cut}))
}
