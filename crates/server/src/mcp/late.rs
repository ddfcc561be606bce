//! Lists that come late: they go on without the request that asked for them, and clients are told when they are there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use serde_json::Value;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, watch};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::{Provider, SourceNotice};
use toolwright_core::error::ToolError;
use toolwright_mcp::merge::Kind;
use toolwright_runtime::catalogue::Notice;

use super::call::Work;
use super::message::RpcError;
use super::patience::{LITTLE_PATIENCE, is_unsaid, unsaid};
use crate::Gateway;

/// Lists that go on at once, over all callers; of what is late beyond them, requests are given up.
const MAX_LATE: usize = 64;
/// How long a late list goes on, all of its pages: it takes a place in the line of its server's calls. A server that is
/// past it is looked at as one whose callers gave up.
const LONGEST: Duration = Duration::from_secs(30);
/// What a slow reader may lag behind; it then learns that it has missed some.
const TELLINGS: usize = 64;

/// Whose list of what, for whom.
type Key = (String, String, Kind);
type List = Result<Arc<Vec<Value>>, RpcError>;

/// Lists that have not come in time and go on: one of each source and kind for each [place](super::call::Caller::place).
pub(crate) struct Late {
    going_on: Mutex<HashMap<Key, GoingOn>>,
    told: broadcast::Sender<Came>,
}

struct GoingOn {
    list: watch::Receiver<Option<List>>,
    cancel: Cancel,
}

/// A list has come that callers at this place do not have.
#[derive(Debug, Clone)]
pub(crate) struct Came {
    pub(crate) place: String,
    pub(crate) kind: Kind,
}

impl Default for Late {
    fn default() -> Self {
        Self { going_on: Mutex::default(), told: broadcast::Sender::new(TELLINGS) }
    }
}

impl Late {
    /// What comes from now on.
    pub(crate) fn coming(&self) -> broadcast::Receiver<Came> {
        self.told.subscribe()
    }

    /// Ends all that go on, without waiting.
    pub(crate) fn stop(&self) {
        for going_on in self.lock().values() {
            going_on.cancel.cancel(CancelCause::Shutdown);
        }
    }

    fn of(&self, key: &Key) -> Option<watch::Receiver<Option<List>>> {
        self.lock().get(key).map(|going_on| going_on.list.clone())
    }

    /// A place among those that go on, if there is one.
    fn enter(&self, key: &Key, cancel: &Cancel) -> Option<watch::Sender<Option<List>>> {
        let mut all = self.lock();
        if all.len() >= MAX_LATE || all.contains_key(key) {
            return None;
        }
        let (sender, list) = watch::channel(None);
        all.insert(key.clone(), GoingOn { list, cancel: cancel.clone() });
        Some(sender)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, GoingOn>> {
        self.going_on.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One that goes on; its place is given up with this.
struct Going {
    gateway: Arc<Gateway>,
    provider: Arc<dyn Provider>,
    key: Key,
    notices: broadcast::Receiver<Notice>,
    list: watch::Sender<Option<List>>,
}

impl Going {
    async fn on(mut self, mut asking: BoxFuture<'static, List>, cancel: Cancel) {
        let list = match tokio::time::timeout(LONGEST, &mut asking).await {
            Ok(list) => list,
            Err(_) => {
                cancel.cancel(CancelCause::CallerGone);
                asking.await
            }
        };
        let (place, source, kind) = self.key.clone();
        if let Err(error) = &list {
            tracing::debug!("{source}: {} failed late: {}", kind.method(), error.message);
        }
        if !list.as_ref().is_err_and(is_unsaid) {
            self.gateway.silent.answered(&source, kind.method());
        }
        let is_news = match &list {
            Ok(list) if self.is_served() => {
                let is_other = self.gateway.owners.came(&place, kind, &source, list);
                // What clients listed upon such a notice was this, which may be older.
                is_other | self.has_changed()
            }
            _ => false,
        };
        // Nobody may be waiting.
        self.list.send_replace(Some(list));
        let gateway = Arc::clone(&self.gateway);
        drop(self);
        if is_news {
            // Nobody may be listening.
            let _ = gateway.late.told.send(Came { place, kind });
        }
    }

    /// Whether the source is the one of this name still.
    fn is_served(&self) -> bool {
        self.gateway.options.catalogue.sources().iter().any(|provider| Arc::ptr_eq(provider, &self.provider))
    }

    /// Whether the source told meanwhile that its list is another.
    fn has_changed(&mut self) -> bool {
        loop {
            match self.notices.try_recv() {
                Ok(Notice { provider, notice }) if *provider == *self.provider.name() => match (notice, self.key.2) {
                    (SourceNotice::PromptsChanged, Kind::Prompts)
                    | (SourceNotice::ResourcesChanged, Kind::Resources | Kind::Templates) => return true,
                    _ => {}
                },
                Ok(_) => {}
                Err(TryRecvError::Lagged(_)) => return true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return false,
            }
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.gateway.late.lock().remove(&self.key);
    }
}

impl Work {
    /// A source's whole list, within the time that [`Work::in_time`] has for an answer. One that is late goes on for
    /// half a minute; callers at this place are told when it has come, and who asks meanwhile waits a second
    /// for the same.
    ///
    /// # Errors
    /// Those of asking for it; one that [`is_unsaid`] when it is late.
    pub(crate) async fn list_in_time(&self, provider: &Arc<dyn Provider>, kind: Kind) -> List {
        let (source, method, silent) = (provider.name(), kind.method(), &self.gateway.silent);
        let key = (self.caller.place(), source.to_owned(), kind);
        if let Some(mut list) = self.gateway.late.of(&key) {
            let come = async { list.wait_for(Option::is_some).await.ok().and_then(|list| list.clone()) };
            return tokio::select! {
                come = tokio::time::timeout(LITTLE_PATIENCE, come) => {
                    come.ok().flatten().unwrap_or_else(|| Err(unsaid(source, method, LITTLE_PATIENCE)))
                }
                cause = self.cancel.cancelled() => {
                    Err(RpcError::new(RpcError::INTERNAL, ToolError::canceled(cause).message().to_owned()))
                }
            };
        }
        let cancel = Cancel::new();
        let (work, asked) = (self.under(cancel.clone()), Arc::clone(provider));
        let mut asking = async move { work.pages(&asked, kind).await.map(Arc::new) }.boxed();
        let patience = silent.patience(source, method);
        tokio::select! {
            biased;
            list = &mut asking => {
                silent.answered(source, method);
                return list;
            }
            cause = self.cancel.cancelled() => {
                cancel.cancel(cause);
                return asking.await;
            }
            () = tokio::time::sleep(patience) => {}
        }
        silent.fell_silent(source, method);
        let late = || unsaid(source, method, patience);
        let place = if self.gateway.is_draining() { None } else { self.gateway.late.enter(&key, &cancel) };
        let Some(list) = place else {
            cancel.cancel(CancelCause::CallerGone);
            // It ends in good order, within the executor's grace.
            return asking.await.map_err(|_| late());
        };
        let (gateway, provider) = (Arc::clone(&self.gateway), Arc::clone(provider));
        let notices = gateway.options.catalogue.notices();
        tokio::spawn(Going { gateway, provider, key, notices, list }.on(asking, cancel));
        Err(late())
    }
}

/// What of this place has come; both where that cannot be known. `None` when nothing will come any more.
pub(crate) fn kinds_at(place: &str, came: Result<Came, RecvError>) -> Option<Vec<Kind>> {
    match came {
        Ok(came) if came.place == place => Some(vec![came.kind]),
        Ok(_) => Some(Vec::new()),
        Err(RecvError::Lagged(_)) => Some(vec![Kind::Resources, Kind::Prompts]),
        Err(RecvError::Closed) => None,
    }
}
