//! Stored conversations; each is visible to its owner only. Responses add to them; see [`super::response_work`].

use axum::Extension;
use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::response::Response;
use serde_json::{Map, Value, json};
use toolwright_models::served::{ConversationBody, Fault, input_items as with_ids, read_conversation};

use super::refusal::Refusal;
use super::stored_responses::{FacadeState, Page, Parameters, answered, check_parameters, deleted, list, missing};
use super::{Facade, RecordKind};
use crate::http::Identity;

fn conversation_json(id: &str, conversation: &Value) -> Value {
    json!({"id": id, "object": "conversation", "created_at": conversation["created_at"], "metadata": conversation["metadata"]})
}

/// Reads the metadata and the items of a body.
async fn read(
    facade: &Facade,
    body: Body,
    what: ConversationBody,
) -> Result<(Option<Map<String, Value>>, Vec<Value>), Refusal> {
    let (bytes, _room) = facade.body(body).await?;
    let (metadata, items) = read_conversation(&bytes, what)?;
    Ok((metadata, with_ids(&items, |_| format!("msg_{}", uuid::Uuid::new_v4().simple()))))
}

/// Changes a conversation that no request is using. Returns the result of `change`, and the conversation.
async fn changed<T>(
    facade: &std::sync::Arc<Facade>,
    identity: &Identity,
    id: &str,
    change: impl FnOnce(&mut Value) -> Result<T, Refusal>,
) -> Result<(T, Value), Refusal> {
    let owner = &identity.principal().id;
    let lock = facade.reserve(owner, RecordKind::Conversation, id).await?;
    let mut conversation = facade.find(identity, RecordKind::Conversation, id).await?;
    let done = change(&mut conversation)?;
    let is_there =
        facade.source.objects().replace_object(owner, RecordKind::Conversation.as_str(), id, &conversation).await?;
    lock.release().await;
    if is_there { Ok((done, conversation)) } else { Err(missing(RecordKind::Conversation, id)) }
}

/// Returns the items of a conversation. Fails once a response has read them, because its run then holds them too.
fn own_items(conversation: &Value) -> Result<Vec<Value>, Refusal> {
    if conversation["state"].is_object() || conversation["messages"].is_array() {
        let why = "this conversation has responses: send further items as the `input` of the next, or begin another";
        return Err(Refusal::new(Fault::Conflict, why));
    }
    Ok(list(&conversation["items"]))
}

/// Handles `POST /v1/conversations`.
pub(super) async fn create(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    body: Body,
) -> Response {
    let create = async {
        let (metadata, items) = read(&facade, body, ConversationBody::New).await?;
        let id = format!("conv_{}", uuid::Uuid::new_v4().simple());
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
        let conversation = json!({"created_at": now, "metadata": metadata.unwrap_or_default(), "items": items});
        let owner = &identity.principal().id;
        facade.source.objects().put_object(owner, RecordKind::Conversation.as_str(), &id, conversation.clone()).await?;
        Ok(conversation_json(&id, &conversation))
    };
    answered(create.await)
}

/// Handles `GET /v1/conversations/{id}`.
pub(super) async fn conversation(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    Query(query): Query<Parameters>,
) -> Response {
    let find = async {
        check_parameters(&query, &[])?;
        Ok(conversation_json(&id, &facade.find(&identity, RecordKind::Conversation, &id).await?))
    };
    answered(find.await)
}

/// Handles `POST /v1/conversations/{id}`.
pub(super) async fn update(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    body: Body,
) -> Response {
    let update = async {
        let (metadata, _) = read(&facade, body, ConversationBody::Changed).await?;
        let change = |conversation: &mut Value| {
            if let Some(metadata) = metadata {
                conversation["metadata"] = Value::Object(metadata);
            }
            Ok(())
        };
        let ((), conversation) = changed(&facade, &identity, &id, change).await?;
        Ok(conversation_json(&id, &conversation))
    };
    answered(update.await)
}

/// Handles `DELETE /v1/conversations/{id}`. A response in progress is not stored in a deleted conversation.
pub(super) async fn delete(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
) -> Response {
    let objects = facade.source.objects();
    let delete = async {
        match objects.remove_object(&identity.principal().id, RecordKind::Conversation.as_str(), &id).await? {
            true => Ok(deleted(RecordKind::Conversation, &id)),
            false => Err(missing(RecordKind::Conversation, &id)),
        }
    };
    answered(delete.await)
}

/// Handles `GET /v1/conversations/{id}/items`.
pub(super) async fn items(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    Query(query): Query<Parameters>,
) -> Response {
    let page = async {
        let page = Page::read(&query)?;
        page.of(list(&facade.find(&identity, RecordKind::Conversation, &id).await?["items"]))
    };
    answered(page.await)
}

/// Handles `POST /v1/conversations/{id}/items`.
pub(super) async fn add_items(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Path(id): Path<String>,
    Query(query): Query<Parameters>,
    body: Body,
) -> Response {
    let add = async {
        check_parameters(&query, &[])?;
        let (_, added) = read(&facade, body, ConversationBody::Items).await?;
        let change = |conversation: &mut Value| {
            let mut items = own_items(conversation)?;
            items.extend(added.iter().cloned());
            conversation["items"] = Value::Array(items);
            Ok(())
        };
        changed(&facade, &identity, &id, change).await?;
        Page::whole().of(added)
    };
    answered(add.await)
}

fn no_item(id: &str) -> Refusal {
    Refusal::new(Fault::NotFound, format!("there is no item `{id}`"))
}

/// Handles `GET /v1/conversations/{id}/items/{item}`.
pub(super) async fn item(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Path((id, item)): Path<(String, String)>,
    Query(query): Query<Parameters>,
) -> Response {
    let find = async {
        check_parameters(&query, &[])?;
        let conversation = facade.find(&identity, RecordKind::Conversation, &id).await?;
        list(&conversation["items"]).into_iter().find(|one| one["id"] == item.as_str()).ok_or_else(|| no_item(&item))
    };
    answered(find.await)
}

/// Handles `DELETE /v1/conversations/{id}/items/{item}`.
pub(super) async fn delete_item(
    State(facade): FacadeState,
    Extension(identity): Extension<Identity>,
    Path((id, item)): Path<(String, String)>,
) -> Response {
    let change = |conversation: &mut Value| {
        let mut items = own_items(conversation)?;
        let before = items.len();
        items.retain(|one| one["id"] != item.as_str());
        if items.len() == before {
            return Err(no_item(&item));
        }
        conversation["items"] = Value::Array(items);
        Ok(())
    };
    answered(changed(&facade, &identity, &id, change).await.map(|((), kept)| conversation_json(&id, &kept)))
}
