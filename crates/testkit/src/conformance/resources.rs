//! Resources: constants, a template, one that changes, and one that asks before it is read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::{Value, json};

use super::{Fixture, blocks, dialogue, page, questions};
use crate::wire::{Answer, Change, Era, Exchange, Request, RpcError};

const WATCHED: &str = "test://watched-resource";

#[derive(Default)]
pub(super) struct Resources {
    extra: AtomicBool,
    /// The number of changes of the watched resource.
    edition: AtomicU64,
}

impl Resources {
    pub(super) async fn toggle_extra(&self, exchange: &Exchange) {
        self.extra.fetch_not(Ordering::Relaxed);
        exchange.announce(&Change::Resources).await;
    }

    pub(super) async fn update(&self, exchange: &Exchange) {
        self.edition.fetch_add(1, Ordering::Relaxed);
        exchange.announce(&Change::Resource(WATCHED.to_owned())).await;
    }
}

pub(super) fn list(fixture: &Fixture, request: &Request) -> Answer {
    let resource = |uri: &str, name: &str, description: &str, mime_type: &str| json!({"uri": uri, "name": name, "description": description, "mimeType": mime_type});
    let mut resources = vec![
        resource("test://static-text", "static-text", "A text that never changes", "text/plain"),
        resource("test://static-binary", "static-binary", "An image that never changes", "image/png"),
        resource(WATCHED, "watched-resource", "A text that a tool changes", "text/plain"),
        resource("test://guarded", "guarded", "A text that is read with the user's permission", "text/plain"),
    ];
    if fixture.resources.extra.load(Ordering::Relaxed) {
        resources.push(resource("test://extra", "extra", "Comes and goes", "text/plain"));
    }
    page(request, "resources", &resources)
}

pub(super) fn templates() -> Value {
    json!({"resourceTemplates": [{
        "uriTemplate": "test://template/{id}/data",
        "name": "template-data",
        "description": "Data of one id",
        "mimeType": "application/json",
    }]})
}

pub(super) async fn read(fixture: &Fixture, request: &Request, exchange: &Exchange) -> Answer {
    let uri = request.text("uri");
    let contents = |content: Value| Answer::Result(json!({"contents": [content]}));
    let text = |text: &str| contents(json!({"uri": uri, "mimeType": "text/plain", "text": text}));
    match uri {
        "test://static-text" => text("This is the content of the static text resource."),
        "test://static-binary" => contents(json!({"uri": uri, "mimeType": "image/png", "blob": blocks::PNG})),
        WATCHED => text(&format!("Edition {}", fixture.resources.edition.load(Ordering::Relaxed))),
        "test://extra" if fixture.resources.extra.load(Ordering::Relaxed) => text("Here for now."),
        "test://guarded" => dialogue::hold(&fixture.seal, request, exchange, questions::guarded_resource).await,
        _ => match uri.strip_prefix("test://template/").and_then(|rest| rest.strip_suffix("/data")) {
            Some(id) if !id.is_empty() && !id.contains('/') => {
                let data = json!({"id": id, "templateTest": true, "data": format!("Data for ID: {id}")});
                contents(json!({"uri": uri, "mimeType": "application/json", "text": data.to_string()}))
            }
            _ => {
                let code = match request.era {
                    Era::Modern => RpcError::INVALID_PARAMS,
                    Era::Legacy => RpcError::RESOURCE_NOT_FOUND,
                };
                RpcError::new(code, "Resource not found").with_data(json!({"uri": uri})).into()
            }
        },
    }
}
