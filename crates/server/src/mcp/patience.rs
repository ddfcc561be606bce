//! How long a source is waited for where others are asked too: one that says nothing holds up nobody else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use toolwright_core::cancel::CancelCause;
use toolwright_core::catalogue::Provider;
use toolwright_core::error::ErrorKind;

use super::call::Work;
use super::message::RpcError;

/// Sources that are asked at once.
pub(crate) const ABREAST: usize = 32;
/// What a source has for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// What it has after it did not answer the last time.
pub(crate) const LITTLE_PATIENCE: Duration = Duration::from_secs(1);
/// How long it has no more than that.
const SILENCE: Duration = Duration::from_secs(30);
/// Kinds of failures that are no word of the source's.
const UNSAID: [ErrorKind; 3] = [ErrorKind::Timeout, ErrorKind::Canceled, ErrorKind::TransportError];

/// Which sources did not answer a method in time.
#[derive(Default)]
pub(crate) struct Silent(Mutex<HashMap<(String, &'static str), Fell>>);

/// That one did not.
struct Fell {
    /// Another may have its name meanwhile.
    of: Weak<dyn Provider>,
    since: Instant,
    /// Its answer came later than any source is waited for: it is slow, and will be.
    is_slow: bool,
}

impl Fell {
    fn is_of(&self, provider: &Arc<dyn Provider>) -> bool {
        std::ptr::addr_eq(self.of.as_ptr(), Arc::as_ptr(provider))
    }

    fn is_over(&self) -> bool {
        self.of.strong_count() == 0 || (!self.is_slow && self.since.elapsed() >= SILENCE)
    }
}

impl Silent {
    /// How long it has for an answer.
    pub(crate) fn patience(&self, provider: &Arc<dyn Provider>, method: &'static str) -> Duration {
        let all = self.lock();
        let fell = all.get(&key(provider, method)).filter(|fell| fell.is_of(provider) && !fell.is_over());
        if fell.is_some() { LITTLE_PATIENCE } else { PATIENCE }
    }

    /// It has answered in time.
    pub(crate) fn answered(&self, provider: &Arc<dyn Provider>, method: &'static str) {
        let mut all = self.lock();
        if !all.is_empty() {
            all.remove(&key(provider, method));
        }
    }

    /// It has answered late, but it has answered: one that took no longer than others have is waited for as they are,
    /// another one has little time until it has done better.
    pub(crate) fn came(&self, provider: &Arc<dyn Provider>, method: &'static str, took: Duration) {
        if took <= PATIENCE {
            return self.answered(provider, method);
        }
        let slow = Fell { of: Arc::downgrade(provider), since: Instant::now(), is_slow: true };
        self.lock().insert(key(provider, method), slow);
    }

    /// It did not answer in time.
    pub(crate) fn fell_silent(&self, provider: &Arc<dyn Provider>, method: &'static str) {
        let mut all = self.lock();
        // Sources come and go; what is over is not kept.
        all.retain(|_, fell| !fell.is_over());
        let fell = || Fell { of: Arc::downgrade(provider), since: Instant::now(), is_slow: false };
        let known = all.entry(key(provider, method)).or_insert_with(fell);
        if !known.is_of(provider) {
            *known = fell();
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(String, &'static str), Fell>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(provider: &Arc<dyn Provider>, method: &'static str) -> (String, &'static str) {
    (provider.name().to_owned(), method)
}

impl Work {
    /// Has a source do what `ask` asks of it, for two seconds; for one second within half a minute after it did not
    /// answer this method in time. Then it is given up, as by a client that has gone.
    ///
    /// # Errors
    /// Those of `ask`; one that [`is_unsaid`] when the source was late.
    pub(crate) async fn in_time<T, F>(
        &self,
        provider: &Arc<dyn Provider>,
        method: &'static str,
        ask: impl FnOnce(Work) -> F,
    ) -> Result<T, RpcError>
    where
        F: Future<Output = Result<T, RpcError>>,
    {
        let silent = &self.gateway.silent;
        let patience = silent.patience(provider, method);
        let cancel = self.cancel.child();
        let mut asking = Box::pin(ask(self.under(cancel.clone())));
        if let Ok(answer) = tokio::time::timeout(patience, asking.as_mut()).await {
            silent.answered(provider, method);
            return answer;
        }
        silent.fell_silent(provider, method);
        cancel.cancel(CancelCause::CallerGone);
        // It ends in good order, within the executor's grace.
        asking.await.map_err(|_| unsaid(provider.name(), method, patience))
    }
}

/// That a source is late.
pub(crate) fn unsaid(source: &str, method: &str, patience: Duration) -> RpcError {
    let text = format!("{source} did not answer {method} within {patience:?}");
    RpcError { data: Some(Box::new(json!({"kind": ErrorKind::Timeout}))), ..RpcError::new(RpcError::INTERNAL, text) }
}

/// Whether this tells of a source that said nothing, rather than what it said.
pub(crate) fn is_unsaid(error: &RpcError) -> bool {
    is_of(error, &UNSAID)
}

/// Whether policy, or a person, did not let a source be asked.
pub(crate) fn is_denied(error: &RpcError) -> bool {
    is_of(error, &[ErrorKind::Denied])
}

fn is_of(error: &RpcError, kinds: &[ErrorKind]) -> bool {
    let kind = error.data.as_ref().and_then(|data| data.get("kind")?.as_str());
    error.code == RpcError::INTERNAL && kind.is_some_and(|kind| kinds.iter().any(|one| one.as_str() == kind))
}
