//! `POST /webhooks/{trigger}`: requests that fire triggers. Their signature authenticates them, so they need no token.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use serde_json::json;
use tokio::sync::Semaphore;
use toolwright_core::trigger::webhook::{DELIVERY, SIGNATURE, SignedRequest, TIMESTAMP};
use toolwright_core::trigger::{MAX_PAYLOAD, WEBHOOKS};
use toolwright_runtime::TriggerManager;
use toolwright_runtime::triggers::{FiringOffer, WebhookError};

use super::{ApiError, respond};

/// How long a body may take to arrive.
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// Reads the environment variable of this name.
pub type SecretSource = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The webhooks of a server.
#[derive(Clone)]
pub struct WebhookOptions {
    /// Fires the triggers.
    pub triggers: Arc<TriggerManager>,
    /// Reads the triggers' secrets.
    pub secrets: SecretSource,
}

impl fmt::Debug for WebhookOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookOptions").finish_non_exhaustive()
    }
}

/// Returns the routes, if there are webhooks. `requests` bounds all requests of the server.
pub(crate) fn router(webhooks: Option<WebhookOptions>, requests: Arc<Semaphore>) -> Router {
    match webhooks {
        Some(webhooks) => {
            Router::new().route(&format!("{WEBHOOKS}/{{trigger}}"), post(receive)).with_state((webhooks, requests))
        }
        None => Router::new(),
    }
}

/// Returns whether a path is a webhook's.
pub(crate) fn is_webhook(path: &str) -> bool {
    path.strip_prefix(WEBHOOKS).is_some_and(|rest| rest.starts_with('/'))
}

async fn receive(
    State((webhooks, requests)): State<(WebhookOptions, Arc<Semaphore>)>,
    Path(trigger): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let Ok(_permit) = requests.try_acquire() else {
        return ApiError::busy("too many requests at once; try again").into_response();
    };
    let body = match tokio::time::timeout(BODY_LIMIT, axum::body::to_bytes(body, MAX_PAYLOAD)).await {
        Ok(Ok(body)) => body,
        Ok(Err(_)) => return ApiError::too_large(MAX_PAYLOAD).into_response(),
        Err(_) => return ApiError::timed_out().into_response(),
    };
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let request = SignedRequest {
        signature: header(SIGNATURE),
        timestamp: header(TIMESTAMP),
        delivery: header(DELIVERY),
        body: &body,
    };
    let received = webhooks.triggers.receive(&trigger, request, &*webhooks.secrets).await;
    match received {
        Ok(FiringOffer::Known) => respond(StatusCode::OK, &json!({"status": "known"})),
        Ok(_) => respond(StatusCode::ACCEPTED, &json!({"status": "accepted"})),
        Err(error) => refuse(&trigger, error).into_response(),
    }
}

fn refuse(trigger: &str, error: WebhookError) -> ApiError {
    let why = error.to_string();
    match error {
        WebhookError::Unknown => ApiError::not_found(why),
        WebhookError::Unsigned(_) => ApiError::unauthorized(why),
        WebhookError::Body => ApiError::bad_request(why),
        WebhookError::Full => ApiError::busy(why),
        WebhookError::NoSecret(_) => {
            // The response must not reveal the variable's name.
            tracing::warn!("trigger {trigger}: {why}");
            ApiError::busy("this webhook is not set up: the log of the server says why")
        }
        WebhookError::Store(error) => error.into(),
    }
}
