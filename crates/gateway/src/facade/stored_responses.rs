//! Stored responses, fetched, cancelled and deleted by id. Each is visible to its owner only.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::Extension;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde_json::{Value, json};
use toolwright_core::cancel::CancelCause;
use toolwright_models::served::{Fault, ServedApi, check_include};

use super::endpoints::session_name;
use super::refusal::Refusal;
use super::response_work::ResponseWork;
use super::{Facade, RecordKind, json as respond};
use crate::http::{Connection, Identity};

pub(super) type FacadeState = State<Arc<Facade>>;

/// The default number of items on one page, as in the API.
const PAGE: usize = 20;
const MAX_PAGE: usize = 100;

/// The parameters of a URL, in their order.
pub(super) type Parameters = Vec<(String, String)>;

pub(super) fn answered(result: Result<Value, Refusal>) -> Response {
    match result {
        Ok(body) => respond(200, &body),
        Err(refusal) => refusal.response(ServedApi::Responses),
    }
}

pub(super) fn missing(kind: RecordKind, id: &str) -> Refusal {
    Refusal::new(Fault::NotFound, format!("there is no {} `{id}`", kind.as_str()))
}

pub(super) fn deleted(kind: RecordKind, id: &str) -> Value {
    json!({"id": id, "object": format!("{}.deleted", kind.as_str()), "deleted": true})
}

/// An answer that was looked up.
pub(super) enum FoundAnswer {
    /// This process works on it.
    Live(Arc<ResponseWork>),
    /// As the store has it. If it is in progress, another process works on it.
    Kept(Value),
    /// Its process ended while it worked on it, and it is not resumed.
    Lost(Value),
}

/// The reason why lost work has no answer.
const LOST: &str = "the server ended while it worked on this response";

impl Facade {
    pub(super) async fn find(&self, identity: &Identity, kind: RecordKind, id: &str) -> Result<Value, Refusal> {
        let found = self.source.objects().object(&identity.principal().id, kind.as_str(), id).await?;
        found.ok_or_else(|| missing(kind, id))
    }

    /// Looks up a response or an answer. If its process has ended and it may go on, its run is resumed.
    async fn look_up(
        self: &Arc<Self>,
        (identity, connection): (&Identity, &Connection),
        kind: RecordKind,
        id: &str,
    ) -> Result<FoundAnswer, Refusal> {
        let owner = &identity.principal().id;
        if let Some(live) = self.live(owner, id) {
            return Ok(FoundAnswer::Live(live));
        }
        let record = self.find(identity, kind, id).await?;
        if record["in_progress"] != true {
            return Ok(FoundAnswer::Kept(record));
        }
        // Only one request resumes it. Another one, here or in another process, may be doing so or have done so.
        let lock = match self.reserve(owner, kind, id).await {
            Ok(lock) => lock,
            Err(refusal) if refusal.fault == Fault::Conflict => return Ok(FoundAnswer::Kept(record)),
            Err(refusal) => return Err(refusal),
        };
        if let Some(live) = self.live(owner, id) {
            return Ok(FoundAnswer::Live(live));
        }
        let record = self.find(identity, kind, id).await?;
        if record["in_progress"] != true {
            return Ok(FoundAnswer::Kept(record));
        }
        self.resume_kept((identity, connection), id, record, lock).await
    }

    /// Returns the current response.
    async fn current(self: &Arc<Self>, sender: (&Identity, &Connection), id: &str) -> Result<Value, Refusal> {
        Ok(match self.look_up(sender, RecordKind::Response, id).await? {
            FoundAnswer::Live(live) => live.current_body(),
            FoundAnswer::Kept(mut kept) => kept["response"].take(),
            FoundAnswer::Lost(mut kept) => {
                let mut response = kept["response"].take();
                response["status"] = json!("failed");
                response["error"] = json!({"code": "server_error", "message": LOST});
                response
            }
        })
    }

    /// Deletes a response, and cancels its run, whose result nobody could fetch.
    async fn delete_response(&self, owner: &str, id: &str) -> Result<Value, Refusal> {
        let live = self.live(owner, id);
        if let Some(live) = &live {
            live.output.deleted.store(true, Ordering::Relaxed);
            live.cancel.cancel(CancelCause::User);
            self.set_live(owner, id, None);
        }
        let was_kept = self.remove_response(owner, id).await?;
        if was_kept || live.is_some() {
            Ok(deleted(RecordKind::Response, id))
        } else {
            Err(missing(RecordKind::Response, id))
        }
    }

    /// Removes a response and what is kept beside it; returns whether there was one.
    pub(super) async fn remove_response(&self, owner: &str, id: &str) -> Result<bool, Refusal> {
        let objects = self.source.objects();
        let was_kept = objects.remove_object(owner, RecordKind::Response.as_str(), id).await?;
        for kind in [RecordKind::Turn, RecordKind::Answer] {
            objects.remove_object(owner, kind.as_str(), id).await?;
        }
        Ok(was_kept)
    }
}

/// Checks that each parameter of a URL has a meaning: `include`, which adds nothing here, or one of `others`.
///
/// # Errors
/// [`Fault::Invalid`], with the name of the parameter.
pub(super) fn check_parameters(query: &[(String, String)], others: &[&str]) -> Result<(), Refusal> {
    query.iter().try_for_each(|(name, value)| match name.as_str() {
        // Some clients write lists with brackets.
        "include" | "include[]" => Ok(check_include(value)?),
        name if others.contains(&name) => Ok(()),
        name => Err(Refusal::new(Fault::Invalid, format!("there is no parameter `{name}`")).with_field(name)),
    })
}

/// Handles `GET /v1/responses/{id}`.
pub(super) async fn response(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Extension(connection): Extension<Connection>,
    Path(id): Path<String>,
    Query(query): Query<Parameters>,
) -> Response {
    let fetch = async {
        check_parameters(&query, &["stream", "include_obfuscation", "starting_after"])?;
        if query.iter().any(|(name, value)| name == "stream" && value != "false") {
            let why = "a kept response is not streamed: fetch it until its `status` says that it is over";
            return Err(Refusal::new(Fault::Invalid, why).with_field("stream"));
        }
        facade.current((&identity, &connection), &id).await
    };
    answered(fetch.await)
}

/// Handles `GET` of an answer of a stateless API, by its id or its session's name, for a client that disconnected.
/// Returns 202 while the answer is in progress. If the last answer of a session is lost, the finished one before it stays.
pub(super) async fn answer(
    State(facade): FacadeState,
    Extension(api): Extension<ServedApi>,
    Extension(identity): Extension<Identity>,
    Extension(connection): Extension<Connection>,
    Path(named): Path<String>,
    Query(query): Query<Parameters>,
) -> Response {
    let (kind, owner) = (RecordKind::Answer, identity.principal().id.as_str());
    let in_progress = |id: &str| Ok((202, json!({"id": id, "status": "in_progress"})));
    let find = async {
        check_parameters(&query, &[])?;
        let session = session_name(owner, &named);
        if let Some(live) = facade.live_in_session(&session) {
            return in_progress(&live.id);
        }
        let noted = facade.source.objects().object(owner, kind.as_str(), &session).await?.unwrap_or_default();
        let mut ids: Vec<&str> = ["last", "finished"].iter().filter_map(|key| noted[key].as_str()).collect();
        if ids.is_empty() {
            ids.push(&named);
        }
        for id in ids {
            match facade.look_up((&identity, &connection), kind, id).await? {
                FoundAnswer::Live(_) => return in_progress(id),
                FoundAnswer::Kept(kept) if kept["in_progress"] == true => return in_progress(id),
                FoundAnswer::Kept(kept) if kept["body"].is_object() => {
                    let status = kept["status"].as_u64().and_then(|status| u16::try_from(status).ok());
                    return Ok((status.unwrap_or(200), kept["body"].clone()));
                }
                FoundAnswer::Kept(_) => return Err(missing(kind, &named)),
                FoundAnswer::Lost(_) => {}
            }
        }
        Err(Refusal::new(Fault::Internal, LOST))
    };
    match find.await {
        Ok((status, body)) => respond(status, &body),
        Err(refusal) => Refusal::response(&refusal, api),
    }
}

/// Handles `DELETE /v1/responses/{id}`.
pub(super) async fn delete_response(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Response {
    answered(facade.delete_response(&identity.principal().id, &id).await)
}

/// Handles `POST /v1/responses/{id}/cancel`.
pub(super) async fn cancel_response(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Extension(connection): Extension<Connection>,
    Path(id): Path<String>,
) -> Response {
    let now = facade.current((&identity, &connection), &id).await;
    let Some(live) = facade.live(&identity.principal().id, &id) else { return answered(now) };
    live.cancel.cancel(CancelCause::User);
    respond(200, &live.current_body())
}

/// The requested part of a list.
pub(super) struct Page {
    after: Option<String>,
    limit: usize,
    is_ascending: bool,
}

impl Page {
    /// A page of all items, the oldest first.
    pub(super) fn whole() -> Self {
        Self { after: None, limit: MAX_PAGE, is_ascending: true }
    }

    /// Parses the page parameters of a URL; the newest come first by default.
    ///
    /// # Errors
    /// [`Fault::Invalid`], with the name of the parameter.
    pub(super) fn read(query: &[(String, String)]) -> Result<Self, Refusal> {
        check_parameters(query, &["after", "limit", "order"])?;
        let mut page = Self { after: None, limit: PAGE, is_ascending: false };
        for (name, value) in query {
            let wrong = |why: String| Err(Refusal::new(Fault::Invalid, why).with_field(name));
            match name.as_str() {
                "after" => page.after = Some(value.clone()),
                "limit" => match value.parse() {
                    Ok(limit @ 1..=MAX_PAGE) => page.limit = limit,
                    _ => return wrong(format!("`limit` is a number from 1 to {MAX_PAGE}")),
                },
                "order" => match value.as_str() {
                    "asc" | "desc" => page.is_ascending = value == "asc",
                    _ => return wrong("`order` is `asc` or `desc`".to_owned()),
                },
                _ => {}
            }
        }
        Ok(page)
    }

    /// Returns the items of this page.
    ///
    /// # Errors
    /// [`Fault::Invalid`] if the item before the page is not in the list.
    pub(super) fn of(&self, mut items: Vec<Value>) -> Result<Value, Refusal> {
        if !self.is_ascending {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let at = items.iter().position(|item| item["id"] == after.as_str());
            let missing =
                || Refusal::new(Fault::Invalid, format!("there is no item `{after}` here")).with_field("after");
            items.drain(..=at.ok_or_else(missing)?);
        }
        let has_more = items.len() > self.limit;
        items.truncate(self.limit);
        let end = |item: Option<&Value>| item.map(|item| item["id"].clone());
        Ok(json!({
            "object": "list", "first_id": end(items.first()), "last_id": end(items.last()), "has_more": has_more,
            "data": items,
        }))
    }
}

pub(super) fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// Handles `GET /v1/responses/{id}/input_items`.
pub(super) async fn input_items(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    Query(query): Query<Parameters>,
) -> Response {
    let page = async {
        let page = Page::read(&query)?;
        page.of(match facade.live(&identity.principal().id, &id) {
            Some(live) => live.input_items(),
            None => list(&facade.find(&identity, RecordKind::Response, &id).await?["input"]),
        })
    };
    answered(page.await)
}
