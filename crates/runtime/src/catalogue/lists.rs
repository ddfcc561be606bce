//! Caches a provider's lists other than tools, and runs the tasks that keep them fresh. Its methods are listed once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use toolwright_core::backoff::Backoff;
use toolwright_core::catalogue::{ListKind, Listing, Provider, Snapshot, SourceNotice};

use super::Catalogue;
use super::provider_slot::ProviderSlot;

/// The age at which a list is stale.
const STALE: Duration = Duration::from_secs(30);
/// The pauses after consecutive failures.
const BACKOFF: Backoff = Backoff { first: Duration::from_secs(1), most: Duration::from_secs(60) };

/// The last list of one kind.
#[derive(Debug, Clone, Default)]
pub(super) struct LastList {
    /// The items of the last successful list.
    pub(super) items: Arc<[Value]>,
    /// Whether a list has arrived or failed.
    pub(super) is_known: bool,
    /// The error of the last list. Earlier items stay.
    pub(super) error: Option<String>,
}

impl LastList {
    /// Stores the result of a list. Returns whether readers must be notified.
    pub(super) fn take(&mut self, listed: Result<Arc<[Value]>, String>) -> bool {
        let was_known = std::mem::replace(&mut self.is_known, true);
        let (is_other, error) = match listed {
            Ok(items) if items == self.items => (false, None),
            Ok(items) => {
                self.items = items;
                (true, None)
            }
            Err(error) => (false, Some(error)),
        };
        let is_other_error = error != self.error;
        self.error = error;
        is_other || is_other_error || !was_known
    }
}

/// The lists of one provider that are due.
#[derive(Debug, Default)]
pub(super) struct DueLists {
    wake: [Notify; 3],
    /// When each list was last requested.
    last_requested: Mutex<[Option<Instant>; 3]>,
}

impl DueLists {
    /// Requests the list again, now or after the request in progress.
    pub(super) fn set(&self, kind: ListKind) {
        self.wake[kind as usize].notify_one();
    }

    fn lock_last_requested(&self) -> MutexGuard<'_, [Option<Instant>; 3]> {
        self.last_requested.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a notice of the provider. Returns whether it was about its lists.
    pub(super) fn noticed(&self, notice: &SourceNotice) -> bool {
        match notice {
            SourceNotice::PromptsChanged => self.set(ListKind::Prompts),
            SourceNotice::ResourcesChanged => {
                self.set(ListKind::Resources);
                self.set(ListKind::Templates);
            }
            _ => return false,
        }
        true
    }
}

/// The lists of one provider in the live catalogue.
#[derive(Debug, Default)]
pub(super) struct Lists {
    /// The methods of its source, if it has any.
    pub(super) methods: Option<Arc<Snapshot>>,
    pub(super) last: [LastList; 3],
    pub(super) due: Arc<DueLists>,
    /// The provider's announced capabilities when it was listed. The object differs for each connection.
    announced: Option<Arc<Map<String, Value>>>,
    /// Tasks that request the lists; dropping this ends them.
    tasks: JoinSet<()>,
}

impl Lists {
    /// Lists the methods of the provider's source, and nothing else yet.
    pub(super) async fn new(provider: &dyn Provider) -> Self {
        let Some(provider) = provider.methods() else { return Self::default() };
        let failed = |error| tracing::debug!("{}: its methods are not known: {error}", provider.name());
        let tools = provider.list().await.map_err(failed).unwrap_or_default();
        let listing = Listing { provider, tools, error: None, withheld: Vec::new() };
        Self { methods: Some(Arc::new(Snapshot::build(&[listing]))), ..Self::default() }
    }

    /// Starts listing for the first time, or again after the connection has changed.
    pub(super) fn refresh(&mut self, catalogue: &Arc<Catalogue>, provider: &Arc<dyn Provider>) {
        if self.methods.is_none() {
            return;
        }
        let announced = provider.capabilities();
        let is_same = match (&self.announced, &announced) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        self.announced = announced;
        if self.tasks.is_empty() {
            for kind in ListKind::ALL {
                let (catalogue, due) = (Arc::downgrade(catalogue), Arc::clone(&self.due));
                self.tasks.spawn(keep_listed(catalogue, Arc::clone(provider), kind, due));
            }
        } else if !is_same {
            ListKind::ALL.into_iter().for_each(|kind| self.due.set(kind));
        }
    }

    /// Takes over the lists of another provider of the same source, until this one has listed.
    pub(super) fn inherit(&mut self, old: &Self) {
        self.last.clone_from(&old.last);
    }
}

/// Lists at once, and then whenever the list is due. Retries failures with growing pauses.
async fn keep_listed(catalogue: Weak<Catalogue>, provider: Arc<dyn Provider>, kind: ListKind, due: Arc<DueLists>) {
    let mut failures = 0_u32;
    loop {
        let Some(catalogue) = catalogue.upgrade() else { return };
        due.lock_last_requested()[kind as usize] = Some(Instant::now());
        let has_failed = catalogue.refresh_list(&provider, kind).await.is_err();
        drop(catalogue);
        let due = due.wake[kind as usize].notified();
        if has_failed {
            failures = failures.saturating_add(1);
            let _ = tokio::time::timeout(BACKOFF.pause(failures), due).await;
        } else {
            failures = 0;
            due.await;
        }
    }
}

/// A provider's lists other than tools, at one moment.
#[derive(Clone)]
pub struct SourceLists {
    provider: Arc<dyn Provider>,
    methods: Arc<Snapshot>,
    last: [LastList; 3],
    due: Arc<DueLists>,
    /// Whether its tools could not be listed, so that nothing is requested of it.
    has_failed: bool,
}

impl SourceLists {
    /// Returns the lists in this slot; `None` if its source has no methods and thus no such lists.
    pub(super) fn of(slot: &ProviderSlot) -> Option<Self> {
        Some(Self {
            provider: Arc::clone(&slot.provider),
            methods: Arc::clone(slot.lists.methods.as_ref()?),
            last: slot.lists.last.clone(),
            due: Arc::clone(&slot.lists.due),
            has_failed: slot.error.is_some(),
        })
    }

    /// Returns their provider.
    #[must_use]
    pub fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    /// Returns the methods of its source, as tools for the executor: see [`Provider::methods`].
    #[must_use]
    pub fn methods(&self) -> &Arc<Snapshot> {
        &self.methods
    }

    /// Returns the last list of this kind; empty before the first. A failed list leaves it unchanged.
    #[must_use]
    pub fn items(&self, kind: ListKind) -> &Arc<[Value]> {
        &self.last[kind as usize].items
    }

    /// Returns whether the first list of this kind has not arrived yet.
    #[must_use]
    pub fn is_awaited(&self, kind: ListKind) -> bool {
        !self.last[kind as usize].is_known && !self.has_failed
    }

    /// Lists again in the background if the last list is stale. A source that announces changes never has stale lists.
    pub fn refresh_if_stale(&self, kind: ListKind) {
        if self.announces_changes(kind) {
            return;
        }
        let last_requested = &mut self.due.lock_last_requested()[kind as usize];
        if last_requested.is_some_and(|asked| asked.elapsed() >= STALE) {
            *last_requested = Some(Instant::now());
            self.due.set(kind);
        }
    }

    fn announces_changes(&self, kind: ListKind) -> bool {
        let announced = self.provider.capabilities();
        announced.and_then(|all| all.get(kind.capability())?.get("listChanged")?.as_bool()) == Some(true)
    }

    /// Returns whether it has the same lists of the same provider.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let is_same =
            |one: &LastList, other: &LastList| Arc::ptr_eq(&one.items, &other.items) && one.is_known == other.is_known;
        Arc::ptr_eq(&self.provider, &other.provider)
            && self.has_failed == other.has_failed
            && self.last.iter().zip(&other.last).all(|(one, other)| is_same(one, other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_failed_list_leaves_the_one_before_it() {
        let mut last = LastList::default();
        let list = |name: &str| Ok(Arc::from([json!({"name": name})]));
        let failed = || Err("it is down".to_owned());
        for (listed, is_news, item) in [
            (failed(), true, None),
            (failed(), false, None),
            (list("a"), true, Some("a")),
            (list("a"), false, Some("a")),
            (failed(), true, Some("a")),
            (list("a"), true, Some("a")),
            (list("b"), true, Some("b")),
        ] {
            let before = Arc::clone(&last.items);
            assert_eq!(last.take(listed.clone()), is_news, "{listed:?}");
            assert_eq!(last.items.first().and_then(|item| item["name"].as_str()), item);
            let is_same = before == last.items;
            assert_eq!(Arc::ptr_eq(&before, &last.items), is_same, "equal lists stay the same object");
        }
    }
}
