//! Background jobs. The owner sees all jobs; other principals see the jobs of their own session.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::job::{JobFilter, JobRecord, JobScope, Jobs};
use toolwright_core::session::Session;

use super::{Api, ApiResult, JsonBody, PathParam, QueryParams, bounded, wait};
use crate::http::{ApiError, Connection};

/// The default and largest number of listed jobs.
const LISTED: usize = 1000;
const MAX_LISTED: usize = 10_000;
/// The default and largest number of lines.
const LINES: usize = 1000;
const MAX_LINES: usize = 100_000;
/// How long stopping a job may take.
const STOP_WAIT: Duration = Duration::from_secs(15);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct List {
    after: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    open: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Show {
    wait: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Read {
    #[serde(default)]
    offset: i64,
    lines: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Send {
    input: Value,
    wait: Option<String>,
}

impl Api {
    fn jobs(&self) -> Result<&dyn Jobs, ApiError> {
        let jobs = self.gateway.options.executor.jobs();
        jobs.map(|jobs| &**jobs as &dyn Jobs).ok_or_else(|| ApiError::not_found("there are no jobs here"))
    }
}

fn scope(session: &Session) -> JobScope<'_> {
    if session.principal.owner { JobScope::All } else { JobScope::Of(session) }
}

/// Handles `GET /api/jobs`.
pub(super) async fn list(State(api): State<Arc<Api>>, QueryParams(asked): QueryParams<List>) -> ApiResult {
    let session = api.session();
    let listed = if asked.open { JobFilter::Open } else { JobFilter::All };
    let limit = bounded("limit", asked.limit, LISTED, MAX_LISTED)?;
    let page = api.jobs()?.page(scope(&session), listed, asked.after.as_deref(), limit).await?;
    let jobs: Value = page.jobs.iter().map(JobRecord::to_json).collect();
    api.ok(&json!({"jobs": jobs, "total": page.total, "next": page.next}))
}

/// Handles `GET /api/jobs/{id}`.
pub(super) async fn show(
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam,
    QueryParams(asked): QueryParams<Show>,
) -> ApiResult {
    let session = api.session();
    let wait = wait(asked.wait.as_deref())?;
    api.ok(&api.jobs()?.wait(scope(&session), &id, wait).await?.to_whole_json())
}

/// Handles `GET /api/jobs/{id}/output`.
pub(super) async fn read(
    State(api): State<Arc<Api>>,
    PathParam(id): PathParam,
    QueryParams(asked): QueryParams<Read>,
) -> ApiResult {
    let (session, jobs) = (api.session(), api.jobs()?);
    let lines = asked.lines.unwrap_or(LINES).min(MAX_LINES);
    let text = jobs.read(scope(&session), &id, asked.offset, lines).await?;
    api.ok(&text.to_json(&jobs.get(scope(&session), &id).await?))
}

/// Handles `POST /api/jobs/{id}/send`.
pub(super) async fn send(
    State(api): State<Arc<Api>>,
    Extension(connection): Extension<Connection>,
    PathParam(id): PathParam,
    JsonBody(asked): JsonBody<Send>,
) -> ApiResult {
    api.not_nested(&connection).await?;
    let (session, jobs) = (api.session(), api.jobs()?);
    let wait = wait(asked.wait.as_deref())?;
    jobs.send(scope(&session), &id, asked.input).await?;
    api.ok(&jobs.wait(scope(&session), &id, wait).await?.to_whole_json())
}

/// Handles `POST /api/jobs/{id}/stop`.
pub(super) async fn stop(State(api): State<Arc<Api>>, PathParam(id): PathParam) -> ApiResult {
    let (session, jobs) = (api.session(), api.jobs()?);
    jobs.stop(scope(&session), &id).await?;
    api.ok(&jobs.wait(scope(&session), &id, STOP_WAIT).await?.to_whole_json())
}
