//! Tools: listed, shown, found.

use std::sync::Arc;

use axum::extract::State;
use serde::Deserialize;
use serde_json::Value;
use toolwright_core::catalogue::Snapshot;
use toolwright_core::name_table::Resolution;
use toolwright_core::select::{SearchFilter, SearchHit, search_or_similar};

use super::{Answer, Api, Asked, Named};
use crate::http::ApiError;
use crate::view::Scope;

/// Hits where no limit is given, and at most.
const HITS: usize = 20;
const MAX_HITS: usize = 1000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Filter {
    namespace: Option<String>,
    prefix: Option<String>,
    tag: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Search {
    query: String,
    limit: Option<usize>,
    namespace: Option<String>,
    prefix: Option<String>,
    tag: Option<String>,
}

impl Api {
    /// The catalogue, as far as it is open to the caller.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        let whole = self.gateway.options.catalogue.snapshot();
        let limited = |entry: &toolwright_core::Entry| !self.principal.may_use(&entry.definition().allowed_roles);
        if whole.list().iter().any(|entry| limited(entry)) {
            Arc::new(whole.only(|entry| !limited(entry), "not open to your role"))
        } else {
            whole
        }
    }

    /// The same once the sources that are just starting have said what they have.
    async fn listed(&self) -> Arc<Snapshot> {
        self.gateway.listed(&Scope::Whole).await;
        self.snapshot()
    }

    /// The same for a caller who names one tool: nothing is waited for where that is there.
    pub(super) async fn snapshot_for(&self, written: &str) -> Arc<Snapshot> {
        let snapshot = self.snapshot();
        match snapshot.resolve(written) {
            Resolution::Found(..) => snapshot,
            Resolution::Unknown(_) => self.listed().await,
        }
    }
}

/// `GET /api/tools`.
pub(super) async fn list(State(api): State<Arc<Api>>, Asked(asked): Asked<Filter>) -> Answer {
    let filter = SearchFilter { namespace: asked.namespace, prefix: asked.prefix, tag: asked.tag };
    let snapshot = api.listed().await;
    let listed = snapshot.list().iter().filter(|entry| filter.passes(entry));
    api.ok(&listed.map(|entry| entry.to_json()).collect())
}

/// `GET /api/tools/{id}`.
pub(super) async fn show(State(api): State<Arc<Api>>, Named(written): Named) -> Answer {
    let snapshot = api.snapshot_for(&written).await;
    match snapshot.resolve(&written) {
        Resolution::Found(index, _) => api.ok(&snapshot.list().get(index).map(|entry| entry.to_whole_json()).into()),
        Resolution::Unknown(near) => Err(ApiError::unknown_tool(snapshot.unknown_message(&written, &near))),
    }
}

/// `GET /api/search`.
pub(super) async fn search(State(api): State<Arc<Api>>, Asked(asked): Asked<Search>) -> Answer {
    let limit = asked.limit.unwrap_or(HITS);
    if !(1..=MAX_HITS).contains(&limit) {
        return Err(ApiError::bad_request(format!("`limit` is from 1 to {MAX_HITS}")));
    }
    let filter = SearchFilter { namespace: asked.namespace, prefix: asked.prefix, tag: asked.tag };
    let snapshot = api.listed().await;
    let hits = search_or_similar(&snapshot, &asked.query, limit, &filter);
    api.ok(&hits.iter().map(SearchHit::to_json).collect::<Value>())
}
