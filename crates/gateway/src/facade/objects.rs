//! What is kept: responses and conversations, each its owner's alone.

use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::cancel::CancelCause;
use toolwright_models::served::{Fault, ServedApi, input_items as with_ids, input_messages};

use super::output::Refusal;
use super::{Facade, Kind, json as respond};
use crate::http::{Connection, Identity};

type Shared = State<Arc<Facade>>;

/// Items on one page, as the API has it.
const PAGE: usize = 20;
const MAX_PAGE: usize = 100;

fn answered(result: Result<Value, Refusal>) -> Response {
    match result {
        Ok(body) => respond(200, &body),
        Err(refusal) => refusal.response(ServedApi::Responses),
    }
}

fn missing(kind: Kind, id: &str) -> Refusal {
    Refusal::new(Fault::NotFound, format!("there is no {} `{id}`", kind.as_str()))
}

impl Facade {
    async fn find(&self, identity: &Identity, kind: Kind, id: &str) -> Result<Value, Refusal> {
        let found = self.source.objects().object(&identity.principal().id, kind.as_str(), id).await?;
        found.ok_or_else(|| missing(kind, id))
    }

    async fn put(&self, identity: &Identity, kind: Kind, id: &str, object: &Value) -> Result<(), Refusal> {
        Ok(self.source.objects().put_object(&identity.principal().id, kind.as_str(), id, object).await?)
    }

    async fn delete(&self, identity: &Identity, kind: Kind, id: &str) -> Result<Value, Refusal> {
        if !self.source.objects().remove_object(&identity.principal().id, kind.as_str(), id).await? {
            return Err(missing(kind, id));
        }
        Ok(json!({"id": id, "object": format!("{}.deleted", kind.as_str()), "deleted": true}))
    }

    /// The response as it is now. One whose process has ended is taken up, if a run is behind it.
    async fn current(
        self: &Arc<Self>,
        identity: &Identity,
        connection: &Connection,
        id: &str,
    ) -> Result<Value, Refusal> {
        if let Some(live) = self.live(&identity.principal().id, id) {
            return Ok(live.output.body());
        }
        let mut kept = self.find(identity, Kind::Response, id).await?;
        if kept["response"]["status"] == "in_progress" {
            if let Some(body) = self.take_up((identity, connection), id, &kept).await? {
                return Ok(body);
            }
            kept["response"]["status"] = json!("failed");
            kept["response"]["error"] =
                json!({"code": "server_error", "message": "the server ended while it worked on this response"});
        }
        Ok(kept["response"].take())
    }
}

#[derive(Deserialize)]
pub(super) struct Fetch {
    stream: Option<bool>,
}

/// `GET /v1/responses/{id}`.
pub(super) async fn response(
    State(facade): Shared,
    Extension(identity): Extension<Identity>,
    Extension(connection): Extension<Connection>,
    Path(id): Path<String>,
    Query(fetch): Query<Fetch>,
) -> Response {
    if fetch.stream == Some(true) {
        let why = "a kept response is not streamed: fetch it until its `status` says that it is over";
        return answered(Err(Refusal::new(Fault::Invalid, why).about("stream")));
    }
    answered(facade.current(&identity, &connection, &id).await)
}

/// `DELETE /v1/responses/{id}`.
pub(super) async fn delete_response(
    State(facade): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Response {
    answered(facade.delete(&identity, Kind::Response, &id).await)
}

/// `POST /v1/responses/{id}/cancel`.
pub(super) async fn cancel_response(
    State(facade): Shared,
    Extension(identity): Extension<Identity>,
    Extension(connection): Extension<Connection>,
    Path(id): Path<String>,
) -> Response {
    let now = facade.current(&identity, &connection, &id).await;
    let Some(live) = facade.live(&identity.principal().id, &id) else { return answered(now) };
    live.cancel.cancel(CancelCause::User);
    let mut body = live.output.body();
    body["status"] = json!("cancelled");
    respond(200, &body)
}

#[derive(Deserialize)]
pub(super) struct Page {
    after: Option<String>,
    limit: Option<usize>,
    order: Option<String>,
}

impl Page {
    /// The items of this page; the newest come first unless asked otherwise.
    fn of(&self, mut items: Vec<Value>) -> Value {
        if self.order.as_deref() != Some("asc") {
            items.reverse();
        }
        if let Some(after) = &self.after
            && let Some(at) = items.iter().position(|item| item["id"] == after.as_str())
        {
            items.drain(..=at);
        }
        let limit = self.limit.unwrap_or(PAGE).clamp(1, MAX_PAGE);
        let has_more = items.len() > limit;
        items.truncate(limit);
        let end = |item: Option<&Value>| item.map(|item| item["id"].clone());
        json!({
            "object": "list", "first_id": end(items.first()), "last_id": end(items.last()), "has_more": has_more,
            "data": items,
        })
    }
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// `GET /v1/responses/{id}/input_items`.
pub(super) async fn input_items(
    State(facade): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Response {
    answered(facade.find(&identity, Kind::Response, &id).await.map(|kept| page.of(list(&kept["input"]))))
}

fn shown_conversation(id: &str, kept: &Value) -> Value {
    json!({"id": id, "object": "conversation", "created_at": kept["created_at"], "metadata": kept["metadata"]})
}

async fn read(facade: &Facade, body: Body) -> Result<Map<String, Value>, Refusal> {
    let (bytes, _room) = facade.body(body).await?;
    if bytes.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&bytes).map_err(|error| Refusal::new(Fault::Invalid, format!("the body: {error}")))
}

fn new_items(given: &Map<String, Value>) -> Result<Vec<Value>, Refusal> {
    let items = given.get("items").map(list).unwrap_or_default();
    input_messages(&items)?;
    Ok(with_ids(&items, |_| format!("msg_{}", uuid::Uuid::new_v4().simple())))
}

/// `POST /v1/conversations`.
pub(super) async fn create_conversation(
    State(facade): Shared,
    Extension(identity): Extension<Identity>,
    body: Body,
) -> Response {
    let create = async {
        let given = read(&facade, body).await?;
        let id = format!("conv_{}", uuid::Uuid::new_v4().simple());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        let metadata = given.get("metadata").filter(|metadata| metadata.is_object()).cloned();
        let kept = json!({
            "created_at": now, "metadata": metadata.unwrap_or_else(|| json!({})), "items": new_items(&given)?,
        });
        facade.put(&identity, Kind::Conversation, &id, &kept).await?;
        Ok(shown_conversation(&id, &kept))
    };
    answered(create.await)
}

/// `GET /v1/conversations/{id}`.
pub(super) async fn conversation(
    State(facade): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Response {
    answered(facade.find(&identity, Kind::Conversation, &id).await.map(|kept| shown_conversation(&id, &kept)))
}

/// `POST /v1/conversations/{id}`.
pub(super) async fn update_conversation(
    State(facade): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    body: Body,
) -> Response {
    let update = async {
        let given = read(&facade, body).await?;
        let _busy = facade.reserve(&identity.principal().id, Kind::Conversation, &id)?;
        let mut kept = facade.find(&identity, Kind::Conversation, &id).await?;
        if let Some(metadata) = given.get("metadata").filter(|metadata| metadata.is_object()) {
            kept["metadata"] = metadata.clone();
        }
        facade.put(&identity, Kind::Conversation, &id, &kept).await?;
        Ok(shown_conversation(&id, &kept))
    };
    answered(update.await)
}

/// `DELETE /v1/conversations/{id}`.
pub(super) async fn delete_conversation(
    State(facade): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Response {
    answered(facade.delete(&identity, Kind::Conversation, &id).await)
}

/// `GET /v1/conversations/{id}/items`.
pub(super) async fn conversation_items(
    State(facade): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    Query(page): Query<Page>,
) -> Response {
    answered(facade.find(&identity, Kind::Conversation, &id).await.map(|kept| page.of(list(&kept["items"]))))
}

/// `POST /v1/conversations/{id}/items`.
pub(super) async fn add_conversation_items(
    State(facade): Shared,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    body: Body,
) -> Response {
    let add = async {
        let given = read(&facade, body).await?;
        let added = new_items(&given)?;
        let _busy = facade.reserve(&identity.principal().id, Kind::Conversation, &id)?;
        let mut kept = facade.find(&identity, Kind::Conversation, &id).await?;
        if kept["state"].is_object() || kept["messages"].is_array() {
            let why = "this conversation has responses: send further items as the `input` of the next";
            return Err(Refusal::new(Fault::Conflict, why));
        }
        let mut items = list(&kept["items"]);
        items.extend(added.iter().cloned());
        kept["items"] = Value::Array(items);
        facade.put(&identity, Kind::Conversation, &id, &kept).await?;
        Ok(Page { after: None, limit: Some(MAX_PAGE), order: Some("asc".into()) }.of(added))
    };
    answered(add.await)
}
