//! The live catalogue: adds and removes providers, takes their lists as they arrive, and gives readers one immutable
//! snapshot.

mod lists;
mod pins;
mod provider_slot;
mod publish;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use futures_util::{FutureExt as _, StreamExt as _, stream};
use tokio::sync::{Mutex, broadcast, watch};
use toolwright_core::Redactor;
use toolwright_core::catalogue::{ListKind, Provider, Snapshot, SourceNotice};
use toolwright_core::context::NoRedaction;
use toolwright_core::event::{Event, EventSink, NoEvents};
use toolwright_core::pins::Change;

use self::lists::Due;
pub use self::lists::SourceLists;
pub use self::pins::Pins;
use self::pins::UnpinnedTool;
use self::provider_slot::{ProviderSlot, reuse};
use self::publish::{Current, Sources};

/// How long one provider may take to list before it counts as failed.
pub const DEFAULT_LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Definitions that are told of one by one when a list brings them; of more, the number.
const MAX_NOTICES: usize = 32;

/// Providers whose last lists are read at the same time when many are put.
const READ_AT_ONCE: usize = 32;

/// Notices that a slow reader may lag behind; it then learns that it has missed some.
const NOTICES: usize = 256;

/// What a provider's source told outside of calls.
#[derive(Debug, Clone)]
pub struct Notice {
    /// The provider.
    pub provider: Arc<str>,
    /// What it told.
    pub notice: SourceNotice,
}

/// A provider of that name is there already.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a provider called `{0}` is already in the catalogue")]
pub struct DuplicateProvider(pub String);

/// The mutable host of snapshots.
pub struct Catalogue {
    events: Arc<dyn EventSink>,
    redactor: Arc<dyn Redactor>,
    list_timeout: Duration,
    current: Arc<Current>,
    slots: Mutex<Vec<ProviderSlot>>,
    absent: RwLock<Vec<(String, String)>>,
    /// Whether calls become jobs whose tools do not ask for it.
    jobs: AtomicBool,
    /// Whether somebody has a model that extracts from stored outputs.
    extraction: AtomicBool,
    /// Whether somebody reads what providers list besides their tools.
    keeps_lists: AtomicBool,
    /// Whether the providers are being shut down, which change for that.
    is_closing: AtomicBool,
    notices: broadcast::Sender<Notice>,
    /// What judges foreign definitions; without it all are offered.
    pins: OnceLock<Arc<Pins>>,
}

impl std::fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalogue").field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}

impl Catalogue {
    /// An empty catalogue; a provider that takes longer than `list_timeout` to list counts as failed.
    /// Providers' errors are redacted before anybody sees them.
    #[must_use]
    pub fn new(events: Arc<dyn EventSink>, redactor: Arc<dyn Redactor>, list_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            events,
            redactor,
            list_timeout,
            current: Arc::default(),
            slots: Mutex::new(Vec::new()),
            absent: RwLock::default(),
            jobs: AtomicBool::new(false),
            extraction: AtomicBool::new(true),
            keeps_lists: AtomicBool::new(false),
            is_closing: AtomicBool::new(false),
            notices: broadcast::channel(NOTICES).0,
            pins: OnceLock::new(),
        })
    }

    /// A catalogue that is `snapshot` until a provider is added, and from then on what its own providers have. For
    /// what is known at once and does not change, as a file.
    #[must_use]
    pub fn from_snapshot(snapshot: Arc<Snapshot>) -> Arc<Self> {
        let catalogue = Self::new(Arc::new(NoEvents), Arc::new(NoRedaction), DEFAULT_LIST_TIMEOUT);
        catalogue.current.put(snapshot, Sources::default(), 0);
        catalogue
    }

    /// Offers only those foreign definitions that `pins` let through, of lists that come from now on. Once: later ones
    /// are ignored.
    pub fn keep_pins(&self, pins: Arc<Pins>) {
        let _ = self.pins.set(pins);
    }

    /// Judges all that was listed again, after a decision about pins or under other terms.
    pub async fn recheck_pins(&self) {
        let mut slots = self.slots.lock().await;
        let mut held = Vec::new();
        let mut changed = false;
        for slot in &mut *slots {
            let before = slot.judgement();
            held.extend(slot.judge(self.pins.get().map(|pins| &**pins)).await);
            changed |= before != slot.judgement();
        }
        if changed {
            self.publish(&slots);
        }
        drop(slots);
        self.warn_of_held(held);
    }

    /// The catalogue as it is now. A run keeps the one of its turn.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.snapshot()
    }

    /// The providers of the snapshot as it is now, in registration order, those without tools too.
    #[must_use]
    pub fn sources(&self) -> Arc<[Arc<dyn Provider>]> {
        self.current.sources().all
    }

    /// Those of [`Catalogue::sources`] of which it is not known yet what they have: their first list is neither there
    /// nor has it failed, and there is none of an earlier run.
    #[must_use]
    pub fn unlisted(&self) -> Arc<[Arc<dyn Provider>]> {
        self.current.sources().unlisted
    }

    /// What the providers list besides their tools, in registration order: the same object until one of the lists is
    /// another. Empty lists unless [`Catalogue::keep_lists`] was called.
    #[must_use]
    pub fn lists(&self) -> Arc<[SourceLists]> {
        self.current.sources().lists
    }

    /// Has prompts, resources and resource templates listed too from now on, each provider's after its tools. Within a
    /// runtime.
    pub fn keep_lists(self: &Arc<Self>) {
        if self.keeps_lists.swap(true, Ordering::AcqRel) {
            return;
        }
        let catalogue = Arc::clone(self);
        tokio::spawn(async move {
            for slot in catalogue.slots.lock().await.iter_mut().filter(|slot| slot.finished > 0 && slot.error.is_none())
            {
                slot.lists.refresh(&catalogue, &slot.provider);
            }
        });
    }

    /// Waits until no wanted provider is among [`Catalogue::unlisted`]. Has none of them listed: see
    /// [`Catalogue::refresh`].
    pub async fn listed(&self, is_wanted: impl Fn(&dyn Provider) -> bool) {
        let mut changes = self.changes();
        while self.unlisted().iter().any(|provider| is_wanted(&**provider)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// What the providers' sources tell outside of calls, from now on.
    #[must_use]
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Changes whenever the snapshot does, and with each list that says nothing new of tools.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.current.generation.subscribe()
    }

    /// Wakes those who wait for changes though no tool has changed: what some of them show may be another.
    pub fn notify_watchers(&self) {
        self.current.generation.send_modify(|generation| *generation += 1);
    }

    /// Adds a provider at the end of the registration order, with its cached tools if it has any. Does
    /// not wait for its list: call [`Catalogue::refresh`] for that.
    ///
    /// # Errors
    /// [`DuplicateProvider`]; nothing is changed then.
    pub async fn add_provider(self: &Arc<Self>, provider: Arc<dyn Provider>) -> Result<(), DuplicateProvider> {
        let mut slot = ProviderSlot::new(Arc::clone(&provider)).await;
        let due;
        let held = {
            let mut slots = self.slots.lock().await;
            if slots.iter().any(|slot| slot.provider.name() == provider.name()) {
                return Err(DuplicateProvider(provider.name().to_owned()));
            }
            let held = slot.judge(self.pins.get().map(|pins| &**pins)).await;
            due = Arc::clone(&slot.lists.due);
            slots.push(slot);
            self.publish(&slots);
            held
        };
        self.warn_of_held(held);
        self.listen_to(&*provider, due);
        Ok(())
    }

    /// As [`Catalogue::put_providers`], for one.
    pub async fn put_provider(self: &Arc<Self>, provider: Arc<dyn Provider>) -> Option<Arc<dyn Provider>> {
        self.put_providers(vec![provider]).await.pop().flatten()
    }

    /// As [`Catalogue::add_provider`], each in the place of the provider of the same name if there is one,
    /// which is returned in its turn: its position, and so everybody's names, stay as they are. Running calls finish
    /// on the old one; the caller shuts it down. Readers see all of them at once. To be waited for: where it is given
    /// up, the old ones may be out without having been returned.
    pub async fn put_providers(self: &Arc<Self>, providers: Vec<Arc<dyn Provider>>) -> Vec<Option<Arc<dyn Provider>>> {
        if providers.is_empty() {
            return Vec::new();
        }
        let fresh = stream::iter(providers.clone()).map(ProviderSlot::new).buffered(READ_AT_ONCE);
        // Boxed, here and below, since the compiler cannot see otherwise that what waits for it may go to another
        // thread.
        let mut fresh: Vec<ProviderSlot> = fresh.collect().boxed().await;
        let mut slots = self.slots.lock().await;
        for slot in &mut fresh {
            let same = |old: &&ProviderSlot| {
                old.provider.name() == slot.provider.name() && old.provider.defined_in() == slot.provider.defined_in()
            };
            // What another source of the name had would be judged as if this one had said it.
            if let Some(old) = slots.iter().find(same) {
                // Until the first list of the new one, what the old one had: better than nothing.
                if slot.listed.is_empty() {
                    slot.listed.clone_from(&old.listed);
                    slot.is_listed |= !old.listed.is_empty();
                }
                slot.held.clone_from(&old.held);
                slot.lists.inherit(&old.lists);
            }
        }
        let pins = self.pins.get().map(|pins| &**pins);
        let judged = stream::iter(&mut fresh).map(|slot| slot.judge(pins)).buffered(READ_AT_ONCE);
        let held: Vec<_> = judged.collect().boxed().await;
        let put = |slot: ProviderSlot| match slots.iter_mut().find(|old| old.provider.name() == slot.provider.name()) {
            Some(place) => Some(std::mem::replace(place, slot).provider),
            None => {
                slots.push(slot);
                None
            }
        };
        let due: Vec<_> = fresh.iter().map(|slot| Arc::clone(&slot.lists.due)).collect();
        let old = fresh.into_iter().map(put).collect();
        for (provider, due) in providers.iter().zip(due) {
            self.listen_to(&**provider, due);
        }
        self.publish(&slots);
        drop(slots);
        held.into_iter().for_each(|held| self.warn_of_held(held));
        old
    }

    /// Names what the operator has written and no provider brings, with reasons, in the place of what was
    /// named before: see [`Snapshot::with_absent`]. Reasons are redacted.
    pub async fn set_absent(&self, absent: Vec<(String, String)>) {
        let redacted = |(name, why): (String, String)| (name, self.redactor.redact(&why).into_owned());
        let absent: Vec<_> = absent.into_iter().map(redacted).collect();
        let slots = self.slots.lock().await;
        let old = {
            let mut held = self.absent.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *held, absent.clone())
        };
        if old != absent {
            self.publish(&slots);
        }
    }

    /// Offers the tools that follow jobs from now on: a call may become a job whose tool does not ask for it. They
    /// are offered in any case while some tool does.
    pub async fn offer_jobs(&self) {
        if !self.jobs.swap(true, Ordering::AcqRel) {
            self.publish(&self.slots.lock().await);
        }
    }

    /// Offers the tool that has a model extract from stored outputs, or withholds it where nobody has such a model. It
    /// is offered where this is never called.
    pub async fn offer_extraction(&self, is_offered: bool) {
        if self.extraction.swap(is_offered, Ordering::AcqRel) != is_offered {
            self.publish(&self.slots.lock().await);
        }
    }

    /// Lists a provider again whenever it says that it changed.
    fn listen_to(self: &Arc<Self>, provider: &dyn Provider, due: Arc<Due>) {
        let (catalogue, runtime) = (Arc::downgrade(self), tokio::runtime::Handle::current());
        let name = provider.name().to_owned();
        provider.on_change(Arc::new(move || {
            if let Some(catalogue) =
                catalogue.upgrade().filter(|catalogue| !catalogue.is_closing.load(Ordering::Acquire))
            {
                let name = name.clone();
                runtime.spawn(async move { catalogue.refresh(&name).await });
            }
        }));
        let (notices, name) = (self.notices.clone(), Arc::<str>::from(provider.name()));
        provider.on_notice(Arc::new(move |notice| {
            if !due.noticed(&notice) {
                // Nobody may be listening.
                let _ = notices.send(Notice { provider: Arc::clone(&name), notice });
            }
        }));
    }

    /// Takes a provider and its tools out. Running calls finish on the snapshot they began with; the
    /// caller shuts the provider down.
    pub async fn remove_provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        let mut slots = self.slots.lock().await;
        let index = slots.iter().position(|slot| slot.provider.name() == name)?;
        let slot = slots.remove(index);
        self.publish(&slots);
        Some(slot.provider)
    }

    /// Lists one provider again and swaps the snapshot. Other providers' tools are not touched; a
    /// failed list takes this provider's tools out and keeps the reason.
    pub async fn refresh(self: &Arc<Self>, name: &str) {
        let (provider, ticket) = {
            let mut slots = self.slots.lock().await;
            let Some(slot) = slots.iter_mut().find(|slot| slot.provider.name() == name) else { return };
            slot.begun += 1;
            (Arc::clone(&slot.provider), slot.begun)
        };
        let listed = match tokio::time::timeout(self.list_timeout, provider.list()).await {
            Ok(Ok(tools)) => Ok(tools),
            Ok(Err(error)) => Err(self.redactor.redact(&error.to_string()).into_owned()),
            Err(_) => Err(format!("no tool list within {}", toolwright_core::duration::format(self.list_timeout))),
        };
        let mut slots = self.slots.lock().await;
        let Some(slot) = slots.iter_mut().find(|slot| Arc::ptr_eq(&slot.provider, &provider)) else { return };
        if slot.finished > ticket {
            return;
        }
        slot.finished = ticket;
        slot.is_listed = true;
        let held = match listed {
            Ok(tools) => {
                slot.listed = reuse(&slot.listed, tools);
                slot.error = None;
                slot.judge(self.pins.get().map(|pins| &**pins)).await
            }
            Err(error) => {
                // What is held stays known: it is not told of again when the provider is back.
                (slot.listed, slot.tools) = (Vec::new(), Vec::new());
                slot.error = Some(error);
                Vec::new()
            }
        };
        let event =
            Event::ProviderChanged { provider: name.to_owned(), tools: slot.tools.len(), error: slot.error.clone() };
        let keeps_lists = self.keeps_lists.load(Ordering::Acquire);
        if let Some(slot) = slots.iter_mut().find(|slot| Arc::ptr_eq(&slot.provider, &provider)).filter(|_| keeps_lists)
            && slot.error.is_none()
        {
            slot.lists.refresh(self, &provider);
        }
        self.publish(&slots);
        drop(slots);
        self.events.emit(event);
        self.warn_of_held(held);
    }

    /// Lists what one provider has besides its tools again; a failed list leaves the last one.
    async fn refresh_list(&self, provider: &Arc<dyn Provider>, kind: ListKind) -> Result<(), ()> {
        let listed = match tokio::time::timeout(self.list_timeout, provider.list_of(kind)).await {
            Ok(Ok(items)) => Ok(items),
            Ok(Err(error)) => Err(self.redactor.redact(&error.to_string()).into_owned()),
            Err(_) => Err(format!(
                "no list of its {} within {}",
                kind.words(),
                toolwright_core::duration::format(self.list_timeout)
            )),
        };
        let outcome = listed.as_ref().map(drop).map_err(drop);
        let mut slots = self.slots.lock().await;
        if let Some(slot) = slots.iter_mut().find(|slot| Arc::ptr_eq(&slot.provider, provider)) {
            let last = &mut slot.lists.last[kind as usize];
            if last.take(listed) {
                if let Some(error) = &last.error {
                    tracing::warn!("{}: {} failed: {error}", provider.name(), kind.method());
                }
                self.publish(&slots);
            }
        }
        outcome
    }

    /// Tells of definitions that are not the pinned ones.
    fn warn_of_held(&self, held: Vec<UnpinnedTool>) {
        let rest = held.len().saturating_sub(MAX_NOTICES);
        let provider = held.first().map(|held| held.provider.clone());
        for held in held.into_iter().take(MAX_NOTICES) {
            let redact =
                |change: Change| Change { message: self.redactor.redact(&change.message).into_owned(), ..change };
            self.events.emit(Event::PinNotice {
                provider: held.provider,
                tool: held.tool.definition().id.clone(),
                raw_name: held.tool.raw_name().to_owned(),
                withheld: held.withheld,
                message: self.redactor.redact(&held.why).into_owned(),
                changes: held.changes.into_iter().map(redact).collect(),
            });
        }
        if let Some(provider) = provider.filter(|_| rest > 0) {
            let message =
                format!("{rest} more definitions of {provider} are not the pinned ones: see `toolwright pins ls`");
            self.events.emit(Event::Warning { code: "pins".to_owned(), message });
        }
    }

    /// Lists every provider again, at most `concurrency` at a time.
    pub async fn refresh_all(self: &Arc<Self>, concurrency: usize) {
        let names: Vec<String> = self.slots.lock().await.iter().map(|slot| slot.provider.name().to_owned()).collect();
        stream::iter(names)
            .for_each_concurrent(concurrency.max(1), |name| async move { self.refresh(&name).await })
            .await;
    }

    /// The providers, in registration order.
    pub async fn providers(&self) -> Vec<Arc<dyn Provider>> {
        self.slots.lock().await.iter().map(|slot| Arc::clone(&slot.provider)).collect()
    }

    /// Shuts every provider down, all at once, within `grace`. From now on none is listed again by itself.
    pub async fn shut_down(&self, grace: Duration) {
        self.is_closing.store(true, Ordering::Release);
        let providers = self.providers().await;
        let all = futures_util::future::join_all(providers.iter().map(|provider| provider.shut_down()));
        if tokio::time::timeout(grace, all).await.is_err() {
            tracing::warn!("some providers did not shut down within {grace:?}");
        }
    }
}
