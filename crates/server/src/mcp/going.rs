//! A list that goes on: from when it was late to when it is there, or given up.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{Semaphore, broadcast, watch};
use tokio::time::Instant;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::{Provider, SourceNotice};
use toolwright_mcp::merge::Kind;
use toolwright_runtime::catalogue::Notice;

use super::call::{Caller, Work};
use super::late::{Came, Key, List};
use super::message::RpcError;
use super::patience::is_unsaid;
use crate::Gateway;

/// How long a late list goes on, all of its pages, and how long it waits for its turn before. A server that is past it is
/// looked at as one whose callers gave up.
const LONGEST: Duration = Duration::from_secs(30);

/// A source that is being asked for its list.
pub(super) struct Asking {
    provider: Arc<dyn Provider>,
    kind: Kind,
    list: BoxFuture<'static, List>,
    cancel: Cancel,
    /// Fires when nobody waits for it any more.
    unawaited: Cancel,
    began: Instant,
    notices: broadcast::Receiver<Notice>,
    has_changed: bool,
}

impl Asking {
    pub(super) fn of(work: Work, provider: &Arc<dyn Provider>, kind: Kind) -> Self {
        let (cancel, unawaited, asked) = (work.cancel.clone(), Cancel::new(), Arc::clone(provider));
        let work = work.awaited_until(unawaited.clone());
        // What the source tells from here on may be newer than its list.
        let notices = work.gateway.options.catalogue.notices();
        let list = async move {
            match work.pages(&asked, kind).await {
                // Having none is no failure.
                Err(error) if error.code == RpcError::METHOD_NOT_FOUND => Ok(Arc::default()),
                list => list.map(Arc::new),
            }
        };
        let (provider, began) = (Arc::clone(provider), Instant::now());
        Self { provider, kind, list: list.boxed(), cancel, unawaited, began, notices, has_changed: false }
    }

    /// All pages; of a source that has no such list, none. Cancel-safe, but not to be called again once it has ended.
    pub(super) async fn list(&mut self) -> List {
        loop {
            let noticed = tokio::select! {
                biased;
                list = &mut self.list => return list,
                // As they come: of many some would be missed.
                noticed = self.notices.recv() => noticed,
            };
            match noticed {
                Ok(notice) => self.note(&notice),
                // What was missed may have been of this list.
                Err(RecvError::Lagged(_)) => self.has_changed = true,
                Err(RecvError::Closed) => return (&mut self.list).await,
            }
        }
    }

    /// What it comes to as it is given up. It ends in good order, within the executor's grace.
    pub(super) async fn given_up(&mut self, cause: CancelCause) -> List {
        self.cancel.cancel(cause);
        self.list().await
    }

    fn note(&mut self, Notice { provider, notice }: &Notice) {
        self.has_changed |= **provider == *self.provider.name()
            && matches!(
                (notice, self.kind),
                (SourceNotice::PromptsChanged, Kind::Prompts)
                    | (SourceNotice::ResourcesChanged, Kind::Resources | Kind::Templates)
            );
    }

    /// Whether the source told meanwhile that its list is another.
    fn has_changed(&mut self) -> bool {
        loop {
            match self.notices.try_recv() {
                Ok(notice) => self.note(&notice),
                Err(TryRecvError::Lagged(_)) => self.has_changed = true,
                Err(TryRecvError::Empty | TryRecvError::Closed) => return self.has_changed,
            }
        }
    }
}

/// One that goes on; its place among those is given up with this.
pub(super) struct Going {
    pub(super) gateway: Arc<Gateway>,
    /// Who asked, without what is kept for its client, which may leave meanwhile.
    pub(super) caller: Caller,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) key: Key,
    pub(super) list: watch::Sender<Option<List>>,
}

impl Going {
    /// Goes on until `end` fires at the latest.
    pub(super) async fn on(self, mut asking: Asking, turn: Arc<Semaphore>, end: Cancel) {
        let list = self.made(&mut asking, turn, &end).await;
        let (source, kind) = (self.provider.name(), self.key.kind);
        if let Err(error) = &list {
            tracing::debug!("{source}: {} failed late: {}", kind.method(), error.message);
        }
        let is_said = !list.as_ref().is_err_and(is_unsaid);
        let is_news = is_said && self.gateway.serves(&self.provider) && {
            self.gateway.silent.came(&self.provider, kind.method(), asking.began.elapsed());
            let list = list.as_ref().ok().map(|list| &list[..]);
            let is_other = self.gateway.owners.came(&self.key.place, kind, source, list);
            // What clients listed upon such a notice was this, which may be older.
            is_other | asking.has_changed()
        };
        // Nobody may be waiting.
        self.list.send_replace(Some(list));
        let (gateway, place) = (Arc::clone(&self.gateway), self.key.place.clone());
        drop(self);
        if is_news {
            gateway.late.tell(Came { place, kind });
        }
    }

    /// The list, of `asking` or of another in its place.
    async fn made(&self, asking: &mut Asking, turn: Arc<Semaphore>, end: &Cancel) -> List {
        let _turn = match Arc::clone(&turn).try_acquire_owned() {
            Ok(turn) => turn,
            // Another list of the source goes on, and this one is made anew after it.
            Err(_) => {
                let list = asking.given_up(CancelCause::CallerGone).await;
                if !list.as_ref().is_err_and(is_unsaid) {
                    return list;
                }
                let waited = tokio::select! {
                    turn = tokio::time::timeout(LONGEST, turn.acquire_owned()) => turn.ok().and_then(Result::ok),
                    _ = end.cancelled() => None,
                };
                let Some(turn) = waited.filter(|_| self.gateway.serves(&self.provider)) else { return list };
                let work = Work::of_nobody(&self.gateway, self.caller.clone()).under(end.child());
                *asking = Asking::of(work, &self.provider, self.key.kind);
                turn
            }
        };
        // From here on it holds up no call of its server.
        asking.unawaited.cancel(CancelCause::CallerGone);
        match tokio::time::timeout(LONGEST, asking.list()).await {
            Ok(list) => list,
            Err(_) => asking.given_up(CancelCause::CallerGone).await,
        }
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.gateway.late.leave(&self.key);
    }
}
