//! Tracks the pages that users must open before refused calls are made again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::Notify;

use crate::protocol::message::RpcError;
use crate::transport::RequestId;

/// Pages that one refusal may name.
pub(crate) const MAX_PAGES: usize = 8;
/// Pages that the refused requests of one connection are known to wait for.
const MAX_NAMED: usize = 256;
/// Maximal bytes of a page's id; longer ones are not kept.
pub(crate) const MAX_ID: usize = 1024;

/// Pages required by refused calls of one connection, and which of them users have completed, as far as the server
/// reports it (`notifications/elicitation/complete`).
#[derive(Debug, Default)]
pub(crate) struct ElicitationPages {
    named: Mutex<VecDeque<NamedPage>>,
    more: Notify,
}

/// A page named in a request's refusal. Several requests may be refused for the same page.
#[derive(Debug)]
struct NamedPage {
    request: RequestId,
    id: String,
    is_done: bool,
}

impl ElicitationPages {
    /// Records a refusal with pages. Must precede later messages of the server: earlier completions under the same
    /// id do not count.
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
            named.push_back(NamedPage { request, id: id.to_owned(), is_done: false });
        }
    }

    /// Records the completion of an id, for all who wait for it.
    pub(crate) fn done(&self, id: &str) {
        for page in self.lock().iter_mut().filter(|page| page.id == id) {
            page.is_done = true;
        }
        self.more.notify_waiters();
    }

    /// Waits until all of these ids from a request's refusal are complete; for ever if there are none.
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

    /// Removes the pages of this request's refusal.
    pub(crate) fn forget(&self, request: RequestId) {
        self.lock().retain(|page| page.request != request);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<NamedPage>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Pages that a refused request waits for; dropped, they are forgotten.
pub(crate) struct AwaitedPages<'a> {
    pub(crate) pages: &'a ElicitationPages,
    pub(crate) request: RequestId,
    pub(crate) ids: Vec<String>,
}

impl AwaitedPages<'_> {
    /// Waits until all of them are done.
    pub(crate) async fn all(&self) {
        self.pages.all(self.request, &self.ids).await;
    }
}

impl Drop for AwaitedPages<'_> {
    fn drop(&mut self) {
        self.pages.forget(self.request);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn refuse(pages: &ElicitationPages, request: RequestId, ids: &[&str]) {
        let list: Vec<Value> = ids.iter().map(|id| json!({"elicitationId": id})).collect();
        let mut error = RpcError::new(RpcError::PAGES_REQUIRED, "log in");
        error.data = Some(Box::new(json!({"elicitations": list})));
        pages.refused(request, &error);
    }

    async fn is_done(pages: &ElicitationPages, request: RequestId, ids: &[&str]) -> bool {
        let ids: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        tokio::time::timeout(Duration::from_millis(20), pages.all(request, &ids)).await.is_ok()
    }

    #[tokio::test]
    async fn early_completions_count_and_memory_is_bounded() {
        let pages = ElicitationPages::default();
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
    async fn done_pages_are_required_again_when_refused() {
        let pages = ElicitationPages::default();
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
    async fn one_completed_page_serves_two_requests() {
        let pages = ElicitationPages::default();
        let awaited = |request| AwaitedPages { pages: &pages, request, ids: vec!["e".to_owned()] };
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
