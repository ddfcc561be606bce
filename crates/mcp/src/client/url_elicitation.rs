//! A call that is refused until its user has opened pages (MCP 2025-11-25, error -32042, "URL Elicitation Required
//! Error"): the user is shown them, what they do there is waited for, and the call is made once more. A client of that
//! revision gets the refusal as it is and does all of this itself.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;
use toolwright_core::approval::EXPIRY;
use toolwright_core::client::ClientRequest;
use toolwright_core::error::{ErrorKind, ProtocolError, ToolError};

use super::exchange::{Exchange, Sent, What};
use super::reply::Reply;
use crate::protocol::asking;
use crate::protocol::elicitation::Page;
use crate::protocol::message::RpcError;
use crate::transport::RequestId;

/// Pages that one refusal may name.
const MAX_PAGES: usize = 8;
/// Pages that the refused requests of one connection are known to wait for.
const MAX_NAMED: usize = 256;
/// Bytes of a name that a server gives to what it asks a user to do elsewhere; a longer one is not kept.
pub(crate) const MAX_ID: usize = 1024;
/// How long a page that nobody can be asked about is waited for.
const UNTOLD: Duration = Duration::from_secs(60);

/// Pages that calls of one connection were refused for, and what users have done there, as far as the server says so
/// (`notifications/elicitation/complete`).
#[derive(Debug, Default)]
pub(crate) struct Pages {
    named: Mutex<VecDeque<Named>>,
    more: Notify,
}

/// A page that the refusal of one request has named. Two requests may be refused for the same page.
#[derive(Debug)]
struct Named {
    request: RequestId,
    id: String,
    is_done: bool,
}

impl Pages {
    /// A request is refused with this. Must come before anything that the server says after it: what was done at a page
    /// of the same name before does not count.
    pub(crate) fn refused(&self, request: RequestId, error: &RpcError) {
        if error.code != RpcError::PAGES_REQUIRED {
            return;
        }
        let list = error.data.as_ref().and_then(|data| data.get("elicitations")).and_then(Value::as_array);
        let ids = list.into_iter().flatten().take(MAX_PAGES).filter_map(|one| one.get("elicitationId")?.as_str());
        let mut named = self.lock();
        for id in ids.filter(|id| id.len() <= MAX_ID) {
            if named.len() == MAX_NAMED {
                named.pop_front();
            }
            named.push_back(Named { request, id: id.to_owned(), is_done: false });
        }
    }

    /// What was asked for under this id is done, for all that wait for it.
    pub(crate) fn done(&self, id: &str) {
        for page in self.lock().iter_mut().filter(|page| page.id == id) {
            page.is_done = true;
        }
        self.more.notify_waiters();
    }

    /// Waits until all of these are done that the refusal of a request named; for ever where there are none.
    async fn all(&self, request: RequestId, ids: &[String]) {
        if ids.is_empty() {
            return std::future::pending().await;
        }
        loop {
            let more = self.more.notified();
            let is_done =
                |id: &String| self.lock().iter().any(|page| page.is_done && page.request == request && page.id == *id);
            if ids.iter().all(is_done) {
                return;
            }
            more.await;
        }
    }

    /// Nobody waits any more for what the refusal of this request named.
    fn forget(&self, request: RequestId) {
        self.lock().retain(|page| page.request != request);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Named>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pages that a refused request waits for; dropped, they are forgotten.
struct Awaited<'a> {
    pages: &'a Pages,
    request: RequestId,
    ids: Vec<String>,
}

impl Awaited<'_> {
    async fn all(&self) {
        self.pages.all(self.request, &self.ids).await;
    }
}

impl Drop for Awaited<'_> {
    fn drop(&mut self) {
        self.pages.forget(self.request);
    }
}

/// Whether this is the refusal.
pub(crate) fn are_required(error: &ToolError) -> bool {
    error.protocol().is_some_and(|error| error.code == RpcError::PAGES_REQUIRED)
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
pub(crate) async fn follow<R: Reply>(
    exchange: &Exchange<'_>,
    sent: &mut Sent<'_>,
    refused: ToolError,
) -> Result<R, ToolError> {
    let pages = pages(refused.protocol());
    let ids = pages.iter().filter_map(|asked| asked.id.clone()).collect();
    // Its own id: what other requests wait for under the same name is theirs.
    let request = sent.params.meta.progress_token.unwrap_or_default();
    let awaited = Awaited { pages: exchange.connection.pages(), request, ids };
    let client = &exchange.context.client;
    let capabilities = client.capabilities();
    let can_see = pages.iter().all(|asked| asking::missing(&capabilities, asking::ELICIT, &asked.params).is_none());
    if pages.is_empty() || !can_see || client.follows_pages() {
        return Err(with_pages(refused, &pages));
    }
    for asked in &pages {
        if !agrees(client.ask(vec![question(asked.params.clone())]).await)? {
            return Err(declined(exchange.server, &asked.page));
        }
    }
    let done = awaited.all();
    let form = form(sent.what, &pages);
    if asking::missing(&capabilities, asking::ELICIT, &form).is_none() {
        // Not dropped when the server says that it is done: the call must have back what it gave up to ask.
        let late = AtomicBool::new(false);
        let over = async {
            late.store(tokio::time::timeout(EXPIRY, done).await.is_err(), Ordering::Relaxed);
        };
        let is_declined = match client.ask_until(vec![question(form)], pin!(over)).await {
            Some(said) => !agrees(said)?,
            None if late.load(Ordering::Relaxed) => return Err(with_pages(refused, &pages)),
            None => false,
        };
        if is_declined {
            return Err(declined(exchange.server, &pages[0].page));
        }
    } else if !awaited.ids.is_empty() && tokio::time::timeout(UNTOLD, done).await.is_err() {
        tracing::debug!(server = exchange.server, "it did not say that a page is done; the call is made again");
    }
    let headers = sent.headers.clone();
    let again = exchange.ask(sent.method, sent.what, sent.name, headers, &mut sent.params).await;
    // The client is not to do once more what was done for it.
    again.map_err(|error| {
        if !are_required(&error) {
            return error;
        }
        awaited.pages.forget(sent.params.meta.progress_token.unwrap_or_default());
        with_pages(bare(error), &pages)
    })
}

/// Asks the user.
fn question(params: Value) -> ClientRequest {
    ClientRequest { key: None, method: asking::ELICIT.to_owned(), params }
}

/// The user's word on what they were asked.
fn agrees(answers: Result<Vec<Result<Value, ProtocolError>>, ToolError>) -> Result<bool, ToolError> {
    let answer = answers?.into_iter().next().unwrap_or_else(|| Ok(Value::Null)).map_err(|refusal| {
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
fn form(what: What<'_>, pages: &[Asked]) -> Value {
    let hosts: Vec<&str> = pages.iter().map(|asked| asked.page.host()).collect();
    let message = format!("Accept this once you are done at {}: {what} is then made again.", hosts.join(" and "));
    json!({"message": message, "requestedSchema": {"type": "object", "properties": {}}})
}

/// The refusal, with the addresses for whoever sees what operators do. The model gets none: it is not to send anybody
/// anywhere.
fn with_pages(refused: ToolError, pages: &[Asked]) -> ToolError {
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

/// Without what a client would act on.
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
            let with_pages = with_pages(error, &pages);
            assert_eq!(with_pages.message(), format!("x refused it{says}"), "{data}");
            assert!(are_required(&with_pages) && !with_pages.model_message().contains("https:"), "{with_pages:?}");
        }
    }

    fn refuse(pages: &Pages, request: RequestId, ids: &[&str]) {
        let list: Vec<Value> = ids.iter().map(|id| json!({"elicitationId": id})).collect();
        let mut error = RpcError::new(RpcError::PAGES_REQUIRED, "log in");
        error.data = Some(Box::new(json!({"elicitations": list})));
        pages.refused(request, &error);
    }

    async fn is_done(pages: &Pages, request: RequestId, ids: &[&str]) -> bool {
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        tokio::time::timeout(Duration::from_millis(20), pages.all(request, &ids)).await.is_ok()
    }

    #[tokio::test]
    async fn what_is_done_before_it_is_waited_for_counts_and_what_is_remembered_is_bounded() {
        let pages = Pages::default();
        refuse(&pages, 1, &["a", "b"]);
        pages.done("a");
        assert!(!is_done(&pages, 1, &["a", "b"]).await);
        let both = ["a".to_owned(), "b".to_owned()];
        let (waited, ()) =
            tokio::join!(tokio::time::timeout(Duration::from_secs(10), pages.all(1, &both)), async { pages.done("b") });
        waited.expect("both are done");
        (0..1000).for_each(|at| refuse(&pages, at, &[&at.to_string()]));
        assert_eq!(pages.lock().len(), MAX_NAMED);
    }

    #[tokio::test]
    async fn a_page_that_was_done_is_not_done_for_the_next_refusal_of_its_name() {
        let pages = Pages::default();
        pages.done("e");
        refuse(&pages, 1, &["e"]);
        assert!(!is_done(&pages, 1, &["e"]).await, "nothing was asked for under it then");
        pages.done("e");
        assert!(is_done(&pages, 1, &["e"]).await);
        refuse(&pages, 2, &["e"]);
        assert!(!is_done(&pages, 2, &["e"]).await, "it was for the one before");
        assert!(is_done(&pages, 1, &["e"]).await, "which it still is done for");
    }

    #[tokio::test]
    async fn two_that_were_refused_for_one_page_are_both_done_with_it() {
        let pages = Pages::default();
        let awaited = |request| Awaited { pages: &pages, request, ids: vec!["e".to_owned()] };
        let (one, other) = (awaited(1), awaited(2));
        refuse(&pages, 1, &["e"]);
        refuse(&pages, 2, &["e"]);
        pages.done("e");
        assert!(is_done(&pages, 1, &["e"]).await);
        drop(one);
        assert!(is_done(&pages, 2, &["e"]).await, "what the first forgets is its own");
        drop(other);
        assert!(pages.lock().is_empty());
    }
}
