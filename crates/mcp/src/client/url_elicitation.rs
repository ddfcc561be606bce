//! Handles a call that is refused until its user has opened pages (MCP 2025-11-25, error -32042, "URL Elicitation
//! Required Error"): shows the user the pages, waits until they are done, and makes the call once more. A client of
//! that revision gets the refusal as it is and does all of this itself.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::approval::EXPIRY;
use toolwright_core::client::ClientRequest;
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};

use super::connection::inbox::elicitation_pages::{AwaitedPages, MAX_PAGES};
use super::exchange::{Exchange, OutgoingRequest, RequestLabel};
use super::reply::Reply;
use crate::protocol::asking;
use crate::protocol::elicitation::Page;
use crate::protocol::message::RpcError;

/// How long to wait for a page that nobody can be asked about.
const UNCONFIRMED_PAGE_WAIT: Duration = Duration::from_secs(60);

/// Whether the error requires pages.
pub(crate) fn are_required(error: &ToolError) -> bool {
    error.protocol().is_some_and(|error| error.code == RpcError::PAGES_REQUIRED)
}

/// A requested page, in the server's form and for display.
struct RequestedPage {
    params: Value,
    page: Page,
    id: Option<String>,
}

/// Handles a call that was refused with `refused`: shows its user the pages, and makes the call once more.
///
/// # Errors
/// The refusal, with the addresses for the operator, if nobody can see the pages or it is repeated;
/// [`ErrorKind::Denied`] if the user declines; those of the second request.
pub(crate) async fn follow<R: Reply>(
    exchange: &Exchange<'_>,
    sent: &mut OutgoingRequest<'_>,
    refused: ToolError,
) -> Result<R, ToolError> {
    let pages = pages(refused.protocol());
    let ids = pages.iter().filter_map(|asked| asked.id.clone()).collect();
    // The request's own id: other requests may wait for the same name.
    let request = sent.params.meta.progress_token.unwrap_or_default();
    let awaited = AwaitedPages { pages: exchange.connection.pages(), request, ids };
    let client = &exchange.context.client;
    let capabilities = client.capabilities();
    let can_see = pages.iter().all(|asked| asking::missing(&capabilities, asking::ELICIT, &asked.params).is_none());
    if pages.is_empty() || !can_see || client.follows_pages() {
        return Err(with_pages(refused, &pages));
    }
    for page in &pages {
        if !agrees(client.ask(vec![question(page.params.clone())]).await)? {
            return Err(declined(exchange.server, &page.page));
        }
    }
    let done = awaited.all();
    let form = form(sent.label, &pages);
    if asking::missing(&capabilities, asking::ELICIT, &form).is_none() {
        // Not dropped when the server reports completion: the call must take back the resources that it released to
        // ask.
        let expired = AtomicBool::new(false);
        let over = async {
            expired.store(tokio::time::timeout(EXPIRY, done).await.is_err(), Ordering::Relaxed);
        };
        let is_declined = match client.ask_until(vec![question(form)], pin!(over)).await {
            Some(answers) => !agrees(answers)?,
            None if expired.load(Ordering::Relaxed) => return Err(with_pages(refused, &pages)),
            None => false,
        };
        if is_declined {
            return Err(declined(exchange.server, &pages[0].page));
        }
    } else if !awaited.ids.is_empty() && tokio::time::timeout(UNCONFIRMED_PAGE_WAIT, done).await.is_err() {
        tracing::debug!(server = exchange.server, "it did not say that a page is done; the call is made again");
    }
    let headers = sent.headers.clone();
    let again = exchange.ask(sent.method, sent.label, sent.name, headers, &mut sent.params).await;
    // The client must not open the pages once more.
    again.map_err(|error| {
        if !are_required(&error) {
            return error;
        }
        awaited.pages.forget(sent.params.meta.progress_token.unwrap_or_default());
        with_pages(bare(error), &pages)
    })
}

/// The question to the user.
fn question(params: Value) -> ClientRequest {
    ClientRequest { key: None, method: asking::ELICIT.to_owned(), params }
}

/// Whether the user agreed.
fn agrees(answers: Result<Vec<Result<Value, ProtocolError>>, ToolError>) -> Result<bool, ToolError> {
    let answer = answers?.into_iter().next().unwrap_or_else(|| Ok(Value::Null)).map_err(|refusal| {
        let text = format!("the client refused to show its user what the tool needs: {}", refusal.message);
        ToolError::new(ErrorKind::ExecutionError, text)
    })?;
    Ok(answer.get("action").and_then(Value::as_str) == Some("accept"))
}

/// Returns the pages of the refusal; none if there are too many, or one is invalid.
fn pages(refused: Option<&ProtocolError>) -> Vec<RequestedPage> {
    let data = refused.and_then(|error| error.data.as_ref());
    let Some(list) = data.and_then(|data| data.get("elicitations")).and_then(Value::as_array) else {
        return Vec::new();
    };
    let page_request = |one: &Value| {
        let mut params = one.as_object()?.clone();
        params.insert("mode".to_owned(), "url".into());
        let params = Value::Object(params);
        let id = params.get("elicitationId").and_then(Value::as_str).map(str::to_owned);
        Some(RequestedPage { page: Page::of(&params).ok()?, params, id })
    };
    if list.len() > MAX_PAGES {
        Vec::new()
    } else {
        list.iter().map(page_request).collect::<Option<_>>().unwrap_or_default()
    }
}

/// The form that asks whether the user is done: not every server reports it.
fn form(what: RequestLabel<'_>, pages: &[RequestedPage]) -> Value {
    let hosts: Vec<&str> = pages.iter().map(|asked| asked.page.host()).collect();
    let message = format!("Accept this once you are done at {}: {what} is then made again.", hosts.join(" and "));
    json!({"message": message, "requestedSchema": {"type": "object", "properties": {}}})
}

/// Adds the addresses to the refusal's operator message. The model gets none: it must not send anybody
/// anywhere.
fn with_pages(refused: ToolError, pages: &[RequestedPage]) -> ToolError {
    if pages.is_empty() {
        return refused;
    }
    let addresses: Vec<&str> = pages.iter().map(|asked| asked.page.address.as_str()).collect();
    let text = format!("{}; open {} and call again", refused.message(), addresses.join(" and "));
    let model = format!("{}; the user has to open a page first, which the operator is shown", refused.model_message());
    let error = ToolError::new(refused.kind(), text).with_model_message(model);
    match refused.protocol() {
        Some(own) => error.with_protocol(own.clone()),
        None => error,
    }
}

/// Removes data that a client would act on.
fn bare(error: ToolError) -> ToolError {
    ToolError::new(error.kind(), error.message()).with_model_message(error.model_message())
}

fn declined(server: &str, page: &Page) -> ToolError {
    let text = format!("MCP server {server} needs its user to open a page at {}, and they did not", page.host());
    ToolError::new(ErrorKind::Denied, text).with_model_message("denied: the user did not open the page that it needs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(data: Value) -> ToolError {
        let own = ProtocolError { code: RpcError::PAGES_REQUIRED, message: "log in".into(), data: Some(data) };
        ToolError::new(ErrorKind::ExecutionError, "x refused it").with_model_message("log in").with_protocol(own)
    }

    #[test]
    fn unfollowed_refusals_name_their_pages() {
        let page = |url: &str| json!({"mode": "url", "elicitationId": "e", "url": url, "message": "m"});
        for (data, says) in [
            (json!({"elicitations": [page("https://a.example/x")]}), "; open https://a.example/x and call again"),
            (json!({"elicitations": [page("https://a.example/x"), page("javascript:1")]}), ""),
            (json!({"elicitations": vec![page("https://a.example/x"); MAX_PAGES + 1]}), ""),
            (json!({"elicitations": []}), ""),
            (json!({}), ""),
        ] {
            let error = refused(data.clone());
            let pages = pages(error.protocol());
            let with_pages = with_pages(error, &pages);
            assert_eq!(with_pages.message(), format!("x refused it{says}"), "{data}");
            assert!(are_required(&with_pages) && !with_pages.model_message().contains("https:"), "{with_pages:?}");
        }
    }
}
