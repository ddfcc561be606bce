//! Lists that come late: they go on without the request that asked for them, and clients are told when they are there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Semaphore, broadcast, watch};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::Provider;
use toolwright_core::error::ToolError;
use toolwright_mcp::merge::Kind;

use super::call::{Caller, Work};
use super::going::{Asking, Going};
use super::message::RpcError;
use super::patience::{LITTLE_PATIENCE, unsaid};

/// Lists that go on or wait for their turn at once, over all callers; of what is late beyond them, requests are given up.
const MAX_LATE: usize = 64;
/// The same of one source.
const MAX_OF_SOURCE: usize = 16;
/// What a slow reader may lag behind; it then learns that it has missed some.
const TELLINGS: usize = 64;

pub(crate) type List = Result<Arc<Vec<Value>>, RpcError>;

/// Whose list of what, for whom. Of a source by where it lies, which whoever has the key holds: another may have its
/// name meanwhile.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) place: String,
    source: usize,
    pub(super) kind: Kind,
}

impl Key {
    fn new(caller: &Caller, provider: &Arc<dyn Provider>, kind: Kind) -> Self {
        Self { place: caller.place(), source: Arc::as_ptr(provider).cast::<()>().addr(), kind }
    }
}

/// Lists that have not come in time and go on: one of each source and kind for each [place](super::call::Caller::place).
/// Of one source they are made one after another, and once nobody waits for them they take no place in the line of its
/// calls: at most one of them is made beside as many calls as may run at once.
pub(crate) struct Late {
    going_on: Mutex<All>,
    told: broadcast::Sender<Came>,
}

#[derive(Default)]
struct All {
    lists: HashMap<Key, GoingOn>,
    /// No more may enter.
    is_stopped: bool,
}

struct GoingOn {
    list: watch::Receiver<Option<List>>,
    /// Ends it.
    end: Cancel,
    turn: Arc<Semaphore>,
}

/// A place among those that go on.
pub(super) struct Entered {
    pub(super) list: watch::Sender<Option<List>>,
    /// Who has the one permit makes its list; shared by those of one source.
    pub(super) turn: Arc<Semaphore>,
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

    /// Ends all that go on, without waiting, and lets none go on from here.
    pub(crate) fn stop(&self) {
        let mut all = self.lock();
        all.is_stopped = true;
        for going_on in all.lists.values() {
            going_on.end.cancel(CancelCause::Shutdown);
        }
    }

    pub(super) fn tell(&self, came: Came) {
        // Nobody may be listening.
        let _ = self.told.send(came);
    }

    fn of(&self, key: &Key) -> Option<watch::Receiver<Option<List>>> {
        self.lock().lists.get(key).map(|going_on| going_on.list.clone())
    }

    /// A place among those that go on until `end` fires, if there is one.
    fn enter(&self, key: &Key, end: &Cancel) -> Option<Entered> {
        let mut all = self.lock();
        let of_source = || all.lists.iter().filter(|(other, _)| other.source == key.source);
        let has_room = all.lists.len() < MAX_LATE && of_source().count() < MAX_OF_SOURCE;
        if all.is_stopped || !has_room || all.lists.contains_key(key) {
            return None;
        }
        let turn = of_source().next().map(|(_, other)| Arc::clone(&other.turn));
        let turn = turn.unwrap_or_else(|| Arc::new(Semaphore::new(1)));
        let (sender, list) = watch::channel(None);
        all.lists.insert(key.clone(), GoingOn { list, end: end.clone(), turn: Arc::clone(&turn) });
        Some(Entered { list: sender, turn })
    }

    pub(super) fn leave(&self, key: &Key) {
        self.lock().lists.remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.going_on.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    /// A source's whole list, within the time that [`Work::in_time`] has for an answer. One that is late goes on for half
    /// a minute, at once or after others of its source; callers at this place are told when it has come, and who asks
    /// meanwhile waits a second for the same. It goes on though its caller leaves: it is for all callers at this place, of
    /// whom those without sessions come and go with each request.
    ///
    /// # Errors
    /// Those of asking for it; one that [`is_unsaid`](super::patience::is_unsaid) when it is late.
    pub(crate) async fn list_in_time(&self, provider: &Arc<dyn Provider>, kind: Kind) -> List {
        let (method, silent, late) = (kind.method(), &self.gateway.silent, &self.gateway.late);
        let key = Key::new(&self.caller, provider, kind);
        if let Some(list) = late.of(&key) {
            return self.coming_list(list, || unsaid(provider.name(), method, LITTLE_PATIENCE)).await;
        }
        let end = Cancel::new();
        let mut asking = Asking::of(self.under(end.child()), provider, kind);
        let patience = silent.patience(provider, method);
        tokio::select! {
            biased;
            list = asking.list() => {
                silent.answered(provider, method);
                return list;
            }
            cause = self.cancel.cancelled() => return asking.given_up(cause).await,
            () = tokio::time::sleep(patience) => {}
        }
        silent.fell_silent(provider, method);
        let unsaid = || unsaid(provider.name(), method, patience);
        let Some(entered) = late.enter(&key, &end) else {
            return asking.given_up(CancelCause::CallerGone).await.map_err(|_| unsaid());
        };
        let caller = Caller::new(Arc::clone(&self.caller.session), self.caller.view.clone());
        let gateway = Arc::clone(&self.gateway);
        let going = Going { gateway, caller, provider: Arc::clone(provider), key, list: entered.list };
        tokio::spawn(going.on(asking, entered.turn, end));
        Err(unsaid())
    }

    /// What comes for somebody else, if it comes soon.
    async fn coming_list(&self, mut list: watch::Receiver<Option<List>>, unsaid: impl FnOnce() -> RpcError) -> List {
        let come = async { list.wait_for(Option::is_some).await.ok().and_then(|list| list.clone()) };
        tokio::select! {
            come = tokio::time::timeout(LITTLE_PATIENCE, come) => come.ok().flatten().unwrap_or_else(|| Err(unsaid())),
            cause = self.cancel.cancelled() => {
                Err(RpcError::new(RpcError::INTERNAL, ToolError::canceled(cause).message().to_owned()))
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(place: usize, source: usize) -> Key {
        Key { place: place.to_string(), source, kind: Kind::Prompts }
    }

    #[test]
    fn what_goes_on_is_bounded_over_all_and_for_each_source() {
        let (late, end) = (Late::default(), Cancel::new());
        let first = late.enter(&key(0, 1), &end).expect("room");
        assert!(late.enter(&key(0, 1), &end).is_none(), "it goes on already");
        for place in 1..MAX_OF_SOURCE {
            let other = late.enter(&key(place, 1), &end).expect("room");
            assert!(Arc::ptr_eq(&first.turn, &other.turn), "one after another");
        }
        assert!(late.enter(&key(MAX_OF_SOURCE, 1), &end).is_none());
        let other = late.enter(&key(0, 2), &end).expect("another source has room of its own");
        assert!(!Arc::ptr_eq(&first.turn, &other.turn));
        let more = (3..2 * MAX_LATE).filter(|source| late.enter(&key(0, *source), &end).is_some()).count();
        assert_eq!(MAX_OF_SOURCE + 1 + more, MAX_LATE);
        late.leave(&key(0, 2));
        assert!(late.of(&key(0, 2)).is_none() && late.enter(&key(0, 2), &end).is_some());
    }

    #[test]
    fn a_list_that_is_late_while_the_server_stops_does_not_go_on() {
        let (late, end) = (Late::default(), Cancel::new());
        let _entered = late.enter(&key(0, 1), &end).expect("room");
        late.stop();
        assert_eq!(end.cause(), Some(CancelCause::Shutdown));
        assert!(late.enter(&key(0, 2), &Cancel::new()).is_none(), "nobody would end it");
    }
}
