//! A call that is refused until its user has opened pages (MCP 2025-11-25, error -32042, "URL Elicitation Required
//! Error"): the user is shown them, what they do there is waited for, and the call is made once more. A client of that
//! revision gets the refusal as it is and does all of this itself.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use toolwright_core::approval::EXPIRY;
use toolwright_core::client::{ClientRequest, Manner};
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};
use toolwright_mcp::asking;
use toolwright_mcp::page::Page;

use super::exchange::{Exchange, Sent};

/// The error.
const PAGES_REQUIRED: i64 = -32042;
/// Pages that one refusal may name.
const MAX_PAGES: usize = 8;
/// Pages that are remembered as done.
const MAX_DONE: usize = 64;
/// How long a page that nobody can be asked about is waited for.
const UNTOLD: Duration = Duration::from_secs(60);

/// What users have done at pages of one server, as far as it says so (`notifications/elicitation/complete`).
#[derive(Debug, Default)]
pub(super) struct Done {
    ids: Mutex<VecDeque<String>>,
    more: Notify,
}

impl Done {
    /// What was asked for under this id is done.
    pub(super) fn note(&self, id: &str) {
        {
            let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
            if ids.len() == MAX_DONE {
                ids.pop_front();
            }
            ids.push_back(id.to_owned());
        }
        self.more.notify_waiters();
    }

    fn has(&self, id: &str) -> bool {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner).iter().any(|done| done == id)
    }

    /// Waits until all of these are done; for ever where the server names none.
    async fn all(&self, ids: &[String]) {
        if ids.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let more = self.more.notified();
            if ids.iter().all(|id| self.has(id)) {
                return;
            }
            more.await;
        }
    }
}

/// Whether this is the refusal.
pub(super) fn are_required(error: &ToolError) -> bool {
    error.protocol().is_some_and(|error| error.code == PAGES_REQUIRED)
}

/// A page, as the server asks for it and as it is shown.
struct Asked {
    params: Value,
    page: Page,
    id: Option<String>,
}

/// Sees a call that was refused with `refused` through: its user is shown the pages, and it is made once more.
///
/// # Errors
/// The refusal, with the addresses for the operator, where nobody can be shown them or it comes again;
/// [`ErrorKind::Denied`] where the user does not go there; those of the second request.
pub(super) async fn follow(
    exchange: &Exchange<'_>,
    sent: &mut Sent<'_>,
    refused: ToolError,
) -> Result<Value, ToolError> {
    let pages = pages(refused.protocol());
    let client = &exchange.context.client;
    let capabilities = client.capabilities();
    let can_see = pages.iter().all(|asked| asking::missing(&capabilities, asking::ELICIT, &asked.params).is_none());
    // A client that is asked by requests is of the revision that has this error, or older.
    if pages.is_empty() || !can_see || client.manner() == Manner::Requests {
        return Err(told(refused, &pages));
    }
    for asked in &pages {
        if !agrees(exchange, asked.params.clone()).await? {
            return Err(declined(exchange.server, &asked.page));
        }
    }
    let ids: Vec<String> = pages.iter().filter_map(|asked| asked.id.clone()).collect();
    let done = exchange.connection.listener().pages_done.all(&ids);
    let form = form(sent.what, &pages);
    if asking::missing(&capabilities, asking::ELICIT, &form).is_none() {
        let patience = tokio::time::timeout(EXPIRY, agrees(exchange, form));
        tokio::select! {
            biased;
            () = done => {}
            said = patience => match said {
                Ok(said) => if !said? {
                    return Err(declined(exchange.server, &pages[0].page));
                },
                Err(_) => return Err(told(refused, &pages)),
            },
        }
    } else if !ids.is_empty() && tokio::time::timeout(UNTOLD, done).await.is_err() {
        tracing::debug!(server = exchange.server, "it did not say that a page is done; the call is made again");
    }
    let headers = sent.headers.clone();
    let again = exchange.ask(sent.method, sent.what, sent.name, headers, &mut sent.params).await;
    // The client is not to do once more what was done for it.
    again.map_err(|error| if are_required(&error) { told(bare(error), &pages) } else { error })
}

/// The user's word on what they are asked.
async fn agrees(exchange: &Exchange<'_>, params: Value) -> Result<bool, ToolError> {
    let question = ClientRequest { key: None, method: asking::ELICIT.to_owned(), params };
    let answer = exchange.context.client.ask(vec![question]).await?.into_iter().next();
    let answer = answer.unwrap_or_else(|| Ok(Value::Null)).map_err(|refusal| {
        let text = format!("the client refused to show its user what the tool needs: {}", refusal.message);
        ToolError::new(ErrorKind::ExecutionError, text)
    })?;
    Ok(answer.get("action").and_then(Value::as_str) == Some("accept"))
}

/// What the refusal names; nothing where that is too much, or one of it is no page.
fn pages(refused: Option<&ProtocolError>) -> Vec<Asked> {
    let data = refused.and_then(|error| error.data.as_ref());
    let Some(list) = data.and_then(|data| data.get("elicitations")).and_then(Value::as_array) else {
        return Vec::new();
    };
    let asked = |one: &Value| {
        let mut params = one.as_object()?.clone();
        params.insert("mode".to_owned(), "url".into());
        let params = Value::Object(params);
        let id = params.get("elicitationId").and_then(Value::as_str).map(str::to_owned);
        Some(Asked { page: Page::of(&params).ok()?, params, id })
    };
    if list.len() > MAX_PAGES { Vec::new() } else { list.iter().map(asked).collect::<Option<_>>().unwrap_or_default() }
}

/// Asks whether the user is done: not every server says so.
fn form(what: &str, pages: &[Asked]) -> Value {
    let hosts: Vec<&str> = pages.iter().map(|asked| asked.page.host()).collect();
    let message = format!("Accept this once you are done at {}: {what} is then made again.", hosts.join(" and "));
    json!({"message": message, "requestedSchema": {"type": "object", "properties": {}}})
}

/// The refusal, with the addresses for whoever sees what operators do. The model gets none: it is not to send anybody
/// anywhere.
fn told(refused: ToolError, pages: &[Asked]) -> ToolError {
    if pages.is_empty() {
        return refused;
    }
    let addresses: Vec<&str> = pages.iter().map(|asked| asked.page.address.as_str()).collect();
    let text = format!("{}; open {} and call again", refused.message(), addresses.join(" and "));
    let model = format!("{}; the user has to open a page first, which the operator is shown", refused.said_to_model());
    let error = ToolError::new(refused.kind(), text).with_model_message(model);
    match refused.protocol() {
        Some(own) => error.with_protocol(own.clone()),
        None => error,
    }
}

/// Without what a client would act on.
fn bare(error: ToolError) -> ToolError {
    ToolError::new(error.kind(), error.message()).with_model_message(error.said_to_model())
}

fn declined(server: &str, page: &Page) -> ToolError {
    let text = format!("MCP server {server} needs its user to open a page at {}, and they did not", page.host());
    ToolError::new(ErrorKind::Denied, text).with_model_message("denied: the user did not open the page that it needs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(data: Value) -> ToolError {
        let own = ProtocolError { code: PAGES_REQUIRED, message: "log in".into(), data: Some(data) };
        ToolError::new(ErrorKind::ExecutionError, "x refused it").with_model_message("log in").with_protocol(own)
    }

    #[test]
    fn a_refusal_that_nobody_follows_says_where_to_go() {
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
            let told = told(error, &pages);
            assert_eq!(told.message(), format!("x refused it{says}"), "{data}");
            assert!(are_required(&told) && !told.said_to_model().contains("https:"), "{told:?}");
        }
    }

    #[tokio::test]
    async fn what_is_done_before_it_is_waited_for_counts_and_what_is_remembered_is_bounded() {
        let done = Done::default();
        done.note("a");
        let both = ["a".to_owned(), "b".to_owned()];
        let waiting = done.all(&both);
        tokio::time::timeout(Duration::from_millis(20), waiting).await.expect_err("b is not done");
        let (waited, ()) =
            tokio::join!(tokio::time::timeout(Duration::from_secs(10), done.all(&both)), async { done.note("b") });
        waited.expect("both are done");
        (0..1000).for_each(|at| done.note(&at.to_string()));
        assert_eq!(done.ids.lock().expect("ids").len(), MAX_DONE);
    }
}
