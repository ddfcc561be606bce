//! How long a source is waited for where others are asked too: one that says nothing holds up nobody else.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use toolwright_core::cancel::CancelCause;
use toolwright_core::error::ErrorKind;

use super::call::Work;
use super::message::RpcError;

/// Sources that are asked at once.
pub(crate) const ABREAST: usize = 32;
/// What a source has for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// What it has after it did not answer the last time.
pub(crate) const LITTLE_PATIENCE: Duration = Duration::from_secs(1);
/// How long it has no more than that.
const SILENCE: Duration = Duration::from_secs(30);
/// Kinds of failures that are no word of the source's.
const UNSAID: [ErrorKind; 3] = [ErrorKind::Timeout, ErrorKind::Canceled, ErrorKind::TransportError];

/// Which sources did not answer a method lately, and since when.
#[derive(Default)]
pub(crate) struct Silent(Mutex<HashMap<(String, &'static str), Instant>>);

impl Silent {
    /// How long it has for an answer.
    pub(crate) fn patience(&self, source: &str, method: &'static str) -> Duration {
        let since = self.lock().get(&(source.to_owned(), method)).copied();
        if since.is_some_and(|since| since.elapsed() < SILENCE) { LITTLE_PATIENCE } else { PATIENCE }
    }

    /// It has answered.
    pub(crate) fn answered(&self, source: &str, method: &'static str) {
        let mut all = self.lock();
        if !all.is_empty() {
            all.remove(&(source.to_owned(), method));
        }
    }

    /// It did not answer in time.
    pub(crate) fn fell_silent(&self, source: &str, method: &'static str) {
        let mut all = self.lock();
        // Sources come and go; what is over is not kept.
        all.retain(|_, since| since.elapsed() < SILENCE);
        all.entry((source.to_owned(), method)).or_insert_with(Instant::now);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, &'static str), Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    /// Has a source do what `ask` asks of it, for five seconds; for one second within half a minute after it did not
    /// answer this method in time. Then it is given up, as by a client that has gone.
    ///
    /// # Errors
    /// Those of `ask`; one that [`is_unsaid`] when the source was late.
    pub(crate) async fn in_time<T, F>(
        &self,
        source: &str,
        method: &'static str,
        ask: impl FnOnce(Work) -> F,
    ) -> Result<T, RpcError>
    where
        F: Future<Output = Result<T, RpcError>>,
    {
        let silent = &self.gateway.silent;
        let patience = silent.patience(source, method);
        let cancel = self.cancel.child();
        let mut asking = Box::pin(ask(self.under(cancel.clone())));
        if let Ok(answer) = tokio::time::timeout(patience, asking.as_mut()).await {
            silent.answered(source, method);
            return answer;
        }
        silent.fell_silent(source, method);
        cancel.cancel(CancelCause::CallerGone);
        // It ends in good order, within the executor's grace.
        asking.await.map_err(|_| unsaid(source, method, patience))
    }
}

/// That a source is late.
pub(crate) fn unsaid(source: &str, method: &str, patience: Duration) -> RpcError {
    let text = format!("{source} did not answer {method} within {patience:?}");
    RpcError { data: Some(Box::new(json!({"kind": ErrorKind::Timeout}))), ..RpcError::new(RpcError::INTERNAL, text) }
}

/// Whether this tells of a source that said nothing, rather than what it said.
pub(crate) fn is_unsaid(error: &RpcError) -> bool {
    let kind = error.data.as_ref().and_then(|data| data.get("kind")?.as_str());
    error.code == RpcError::INTERNAL && kind.is_some_and(|kind| UNSAID.iter().any(|unsaid| unsaid.as_str() == kind))
}
