//! Gives every response at `/v1` the form of its API: the id of its request, and the body of an error.

use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use serde_json::Value;
use toolwright_models::served::{Fault, ServedApi, error_body};

use super::{RETRY_AFTER, facade_api};

/// The header in which `OpenAI`'s clients find a request's id.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// The header in which Anthropic's clients find a request's id.
const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");
/// A request header that Anthropic's clients send.
const ANTHROPIC: HeaderName = HeaderName::from_static("anthropic-version");
/// The most bytes of an error message that are read.
const MAX_MESSAGE: usize = 4096;

/// Returns the API whose form the answer to this request has; `None` outside of the facades.
pub(crate) fn api_of(path: &str, headers: &HeaderMap) -> Option<ServedApi> {
    facade_api(path).map(|api| if headers.contains_key(&ANTHROPIC) { ServedApi::Messages } else { api })
}

/// Returns a refusal in the form of this API.
pub(crate) fn refusal(api: ServedApi, status: StatusCode, why: &str) -> Response {
    let body = error_body(api, fault(status), why, None).to_string();
    let mut response = (status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    response
}

/// Adds the request's id to an answer, and turns an error of another form into the API's.
pub(crate) async fn shape(api: ServedApi, method: &Method, path: &str, response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    let mut response = if is_error && !is_json {
        let (mut parts, body) = response.into_parts();
        let why = match status {
            StatusCode::METHOD_NOT_ALLOWED => format!("{path} takes no {method}"),
            _ => message(body).await.unwrap_or_else(|| format!("{method} {path} cannot be answered")),
        };
        parts.headers.remove(header::CONTENT_TYPE);
        parts.headers.remove(header::CONTENT_LENGTH);
        let mut shaped = refusal(api, status, &why);
        shaped.headers_mut().extend(parts.headers);
        shaped
    } else {
        response
    };
    let headers = response.headers_mut();
    if !headers.contains_key(&REQUEST_ID)
        && let Ok(id) = HeaderValue::from_str(&format!("req_{}", uuid::Uuid::new_v4().simple()))
    {
        headers.insert(REQUEST_ID, id);
    }
    let Some(id) = headers.get(&REQUEST_ID).filter(|_| api == ServedApi::Messages).cloned() else { return response };
    headers.insert(ANTHROPIC_ID, id.clone());
    if is_error { identified(response, id.to_str().unwrap_or_default()).await } else { response }
}

/// Adds the id of its request to the body of an error.
async fn identified(response: Response, id: &str) -> Response {
    let (mut parts, body) = response.into_parts();
    // The body was written here as a whole.
    let bytes = to_bytes(body, usize::MAX).await.unwrap_or_default();
    let body = match serde_json::from_slice(&bytes) {
        Ok(body) => Body::from(with_request_id(body, id).to_string()),
        Err(_) => Body::from(bytes),
    };
    parts.headers.remove(header::CONTENT_LENGTH);
    Response::from_parts(parts, body)
}

/// Returns an error's body with the id of its request, if its API has a place for it.
pub(crate) fn with_request_id(mut body: Value, id: &str) -> Value {
    if let Some(place) = body.get_mut("request_id") {
        *place = Value::from(id);
    }
    body
}

async fn message(body: Body) -> Option<String> {
    let bytes = to_bytes(body, MAX_MESSAGE).await.ok()?;
    Some(String::from_utf8_lossy(&bytes).trim().to_owned()).filter(|text| !text.is_empty())
}

fn fault(status: StatusCode) -> Fault {
    match status {
        StatusCode::UNAUTHORIZED => Fault::Unauthorized,
        StatusCode::FORBIDDEN => Fault::Forbidden,
        StatusCode::NOT_FOUND => Fault::NotFound,
        StatusCode::CONFLICT => Fault::Conflict,
        StatusCode::PAYLOAD_TOO_LARGE => Fault::TooLarge,
        StatusCode::TOO_MANY_REQUESTS => Fault::RateLimited,
        StatusCode::SERVICE_UNAVAILABLE => Fault::Overloaded,
        status if status.is_client_error() => Fault::Invalid,
        _ => Fault::Internal,
    }
}
