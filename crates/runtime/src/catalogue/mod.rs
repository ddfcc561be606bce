//! The live catalogue: adds and removes providers, takes their lists as they arrive, and gives readers an immutable
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

use self::lists::DueLists;
pub use self::lists::SourceLists;
pub use self::pins::Pins;
use self::pins::UnpinnedTool;
use self::provider_slot::{ProviderSlot, reuse};
use self::publish::{CurrentSnapshot, Sources};

/// How long one provider may take to list before it counts as failed.
pub const DEFAULT_LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// The most held definitions that are reported one by one for a list; for more, only their number.
const MAX_NOTICES: usize = 32;

/// Cached lists that are read concurrently when many providers are added.
const READ_AT_ONCE: usize = 32;

/// Notices that a slow reader may lag behind. It learns how many it has missed.
const NOTICES: usize = 256;

/// A notice that a provider's source sent outside of calls.
#[derive(Debug, Clone)]
pub struct Notice {
    /// The provider.
    pub provider: Arc<str>,
    /// The source's notice.
    pub notice: SourceNotice,
}

/// A provider of that name already exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a provider called `{0}` is already in the catalogue")]
pub struct DuplicateProvider(pub String);

/// Holds the current snapshot and replaces it.
pub struct Catalogue {
    events: Arc<dyn EventSink>,
    redactor: Arc<dyn Redactor>,
    list_timeout: Duration,
    current: Arc<CurrentSnapshot>,
    slots: Mutex<Vec<ProviderSlot>>,
    absent: RwLock<Vec<(String, String)>>,
    /// Whether calls may become jobs although their tools do not ask for it.
    jobs: AtomicBool,
    /// Whether a model is available that extracts from stored outputs.
    extraction: AtomicBool,
    /// Whether a reader needs the providers' lists other than tools.
    keeps_lists: AtomicBool,
    /// Whether the providers are being shut down. Changes that this causes are ignored.
    is_closing: AtomicBool,
    notices: broadcast::Sender<Notice>,
    /// Checks third-party definitions; without it all are offered.
    pins: OnceLock<Arc<Pins>>,
}

impl std::fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Catalogue").field("snapshot", &self.snapshot()).finish_non_exhaustive()
    }
}

impl Catalogue {
    /// Creates an empty catalogue. A provider that takes longer than `list_timeout` to list counts as failed.
    /// Providers' errors are redacted before anyone sees them.
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

    /// Creates a catalogue of a fixed snapshot, for example from a file. Once a provider is added, it shows only its
    /// own providers.
    #[must_use]
    pub fn from_snapshot(snapshot: Arc<Snapshot>) -> Arc<Self> {
        let catalogue = Self::new(Arc::new(NoEvents), Arc::new(NoRedaction), DEFAULT_LIST_TIMEOUT);
        catalogue.current.put(snapshot, Sources::default(), 0);
        catalogue
    }

    /// From now on offers only the third-party definitions that `pins` admit, in lists that arrive later. Only the
    /// first call counts.
    pub fn keep_pins(&self, pins: Arc<Pins>) {
        let _ = self.pins.set(pins);
    }

    /// Checks all listed definitions again, after a decision about pins or a change of their configuration.
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
        self.warn_withheld(held);
    }

    /// Returns the current snapshot. A run keeps the snapshot of its turn.
    #[must_use]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.snapshot()
    }

    /// Returns the providers of the current snapshot, in registration order, including those without tools.
    #[must_use]
    pub fn sources(&self) -> Arc<[Arc<dyn Provider>]> {
        self.current.sources().all
    }

    /// Returns the [`Catalogue::sources`] whose tools are still unknown: they have no list yet, no failed one, and no
    /// cached one.
    #[must_use]
    pub fn unlisted(&self) -> Arc<[Arc<dyn Provider>]> {
        self.current.sources().unlisted
    }

    /// Returns the providers' methods and their lists other than tools, in registration order. The same object until a
    /// list changes. Lists other than methods are empty unless [`Catalogue::keep_lists`] was called.
    #[must_use]
    pub fn lists(&self) -> Arc<[SourceLists]> {
        self.current.sources().lists
    }

    /// From now on also lists prompts, resources and resource templates, each provider's after its tools. Needs a tokio
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

    /// Waits until no wanted provider is among [`Catalogue::unlisted`]. Does not start any listing: see
    /// [`Catalogue::refresh`].
    pub async fn listed(&self, is_wanted: impl Fn(&dyn Provider) -> bool) {
        let mut changes = self.changes();
        while self.unlisted().iter().any(|provider| is_wanted(&**provider)) {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the notices that the providers' sources send outside of calls, from now on.
    #[must_use]
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Returns a value that changes with the snapshot, and with each list that leaves the tools unchanged.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.current.generation.subscribe()
    }

    /// Wakes the watchers of changes although no tool has changed, because what they show may have.
    pub fn notify_watchers(&self) {
        self.current.generation.send_modify(|generation| *generation += 1);
    }

    /// Adds a provider at the end of the registration order, with its cached tools, if any. Does not list it: call
    /// [`Catalogue::refresh`] for that.
    ///
    /// # Errors
    /// [`DuplicateProvider`]; the catalogue is then unchanged.
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
        self.warn_withheld(held);
        self.listen_to(&*provider, due);
        Ok(())
    }

    /// Like [`Catalogue::put_providers`], for one provider.
    pub async fn put_provider(self: &Arc<Self>, provider: Arc<dyn Provider>) -> Option<Arc<dyn Provider>> {
        self.put_providers(vec![provider]).await.pop().flatten()
    }

    /// Like [`Catalogue::add_provider`], but each provider replaces one of the same name, which is returned. It keeps
    /// the old position, so all names stay the same. Running calls finish on the old provider; the caller shuts it
    /// down. Readers see all changes at once. Await the future to its end: if it is dropped, old providers may be
    /// removed without being returned.
    pub async fn put_providers(self: &Arc<Self>, providers: Vec<Arc<dyn Provider>>) -> Vec<Option<Arc<dyn Provider>>> {
        if providers.is_empty() {
            return Vec::new();
        }
        let fresh = stream::iter(providers.clone()).map(ProviderSlot::new).buffered(READ_AT_ONCE);
        // Boxed here and below, because the compiler cannot prove otherwise that callers' futures are `Send`.
        let mut fresh: Vec<ProviderSlot> = fresh.collect().boxed().await;
        let mut slots = self.slots.lock().await;
        for slot in &mut fresh {
            let same = |old: &&ProviderSlot| {
                old.provider.name() == slot.provider.name() && old.provider.defined_in() == slot.provider.defined_in()
            };
            // Lists of another source of the same name must not be checked as this source's.
            if let Some(old) = slots.iter().find(same) {
                // Until the new provider has listed, the old one's tools stay.
                if slot.listed.is_empty() {
                    slot.listed.clone_from(&old.listed);
                    slot.is_listed |= !old.listed.is_empty();
                }
                slot.withheld_tools.clone_from(&old.withheld_tools);
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
        held.into_iter().for_each(|held| self.warn_withheld(held));
        old
    }

    /// Names the tools that are configured but that no provider has, with reasons, and replaces the previous ones: see
    /// [`Snapshot::with_absent`]. Reasons are redacted.
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

    /// From now on offers the tools that follow jobs, because calls may become jobs. They are also offered while any
    /// tool runs as a job.
    pub async fn offer_jobs(&self) {
        if !self.jobs.swap(true, Ordering::AcqRel) {
            self.publish(&self.slots.lock().await);
        }
    }

    /// Offers the tool with which a model extracts from stored outputs, or withholds it if no such model is available.
    /// The default is to offer it.
    pub async fn offer_extraction(&self, is_offered: bool) {
        if self.extraction.swap(is_offered, Ordering::AcqRel) != is_offered {
            self.publish(&self.slots.lock().await);
        }
    }

    /// Lists a provider again whenever it reports a change.
    fn listen_to(self: &Arc<Self>, provider: &dyn Provider, due: Arc<DueLists>) {
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
                // There may be no listener.
                let _ = notices.send(Notice { provider: Arc::clone(&name), notice });
            }
        }));
    }

    /// Removes a provider and its tools. Running calls finish on their snapshot; the caller shuts the provider down.
    pub async fn remove_provider(&self, name: &str) -> Option<Arc<dyn Provider>> {
        let mut slots = self.slots.lock().await;
        let index = slots.iter().position(|slot| slot.provider.name() == name)?;
        let slot = slots.remove(index);
        self.publish(&slots);
        Some(slot.provider)
    }

    /// Lists one provider again and swaps the snapshot. Other providers are not affected. If listing fails, this
    /// provider's tools are removed and the reason is kept.
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
                // Held definitions are kept, so that they are not reported again when the provider is back.
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
        self.warn_withheld(held);
    }

    /// Lists one kind of a provider's items other than tools again; if that fails, the last list stays.
    async fn refresh_list(&self, provider: &Arc<dyn Provider>, kind: ListKind) -> Result<(), ()> {
        let listed = match tokio::time::timeout(self.list_timeout, provider.list_of(kind)).await {
            Ok(Ok(items)) => Ok(items),
            Ok(Err(error)) => Err(self.redactor.redact(&error.to_string()).into_owned()),
            Err(_) => Err(format!(
                "it did not list its {} within {}",
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

    /// Reports definitions that differ from the pinned ones.
    fn warn_withheld(&self, held: Vec<UnpinnedTool>) {
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

    /// Returns the providers, in registration order.
    pub async fn providers(&self) -> Vec<Arc<dyn Provider>> {
        self.slots.lock().await.iter().map(|slot| Arc::clone(&slot.provider)).collect()
    }

    /// Shuts all providers down concurrently, within `grace`. From now on none is listed again automatically.
    pub async fn shut_down(&self, grace: Duration) {
        self.is_closing.store(true, Ordering::Release);
        let providers = self.providers().await;
        let all = futures_util::future::join_all(providers.iter().map(|provider| provider.shut_down()));
        if tokio::time::timeout(grace, all).await.is_err() {
            tracing::warn!("some providers did not shut down within {grace:?}");
        }
    }
}
