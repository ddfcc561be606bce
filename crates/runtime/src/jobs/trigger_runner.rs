//! Runs the triggers of one workspace: records due slots, and starts firings.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;
use toolwright_core::cancel::Cancel;
use toolwright_core::duration::iso;
use toolwright_core::session::SessionId;
use toolwright_core::store::channel::Delivery;
use toolwright_core::store::{Author, LogMessage, MessageKind, NewRow, SessionLog as _, StoreError};
use toolwright_core::trigger::{Firing, FiringState, MAX_WAITING, Target, Trigger, TriggerCondition, TriggerConfig};

use super::trigger_files::FileWatch;
use super::triggers::TriggerManager;

/// Concurrent firings. A firing that waits for a person does not count.
const RUNNING: usize = 8;
/// Concurrent firings, including those that wait for a person.
const MAX_CONCURRENT_FIRINGS: usize = 64;
/// Messages of one channel that one check reads.
const MESSAGES: usize = 64;
/// Interval between checks for due triggers.
pub(super) const PERIOD: Duration = Duration::from_millis(500);

/// Starts the runs of firings.
#[async_trait]
pub trait FiringTarget: Send + Sync {
    /// Checks whether the trigger may fire at all.
    ///
    /// # Errors
    /// The reason why not, as a message.
    fn admit(&self, _trigger: &Trigger) -> Result<(), String> {
        Ok(())
    }

    /// Creates the run of a firing. The run may exist already: its id is the firing's own.
    ///
    /// # Errors
    /// The reason why it cannot, as a message.
    async fn begin(&self, trigger: &Trigger, firing: &Firing) -> Result<(), String>;

    /// Drives the run of a firing to its end. It may have run for a while in a process that died.
    ///
    /// # Errors
    /// The reason of the failure, as a message.
    async fn finish(
        &self,
        trigger: &Trigger,
        firing: &Firing,
        suspension: FiringSuspension,
    ) -> Result<FiringEnd, String>;
}

/// How this process has finished with a firing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FiringEnd {
    /// Its run is over.
    Over,
    /// Its run was interrupted, and another process continues it.
    Left,
}

/// Marks a firing as waiting for a person, so that it blocks no other firing.
#[derive(Clone)]
pub struct FiringSuspension {
    manager: Arc<TriggerManager>,
    firing: Arc<Firing>,
    permit: Arc<Mutex<Option<OwnedSemaphorePermit>>>,
}

impl std::fmt::Debug for FiringSuspension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FiringSuspension").field("firing", &self.firing).finish_non_exhaustive()
    }
}

impl FiringSuspension {
    /// Marks the firing as waiting for a person from now on.
    pub async fn suspend(&self) {
        drop(self.permit.lock().unwrap_or_else(PoisonError::into_inner).take());
        note(&self.manager, &self.firing, FiringState::Waiting, None).await;
    }
}

/// Runs the triggers of one workspace.
pub struct TriggerRunner {
    manager: Arc<TriggerManager>,
    root: PathBuf,
    target: Arc<dyn FiringTarget>,
    running: Arc<Semaphore>,
    under_way: TaskTracker,
    /// When each trigger with a known configuration fires.
    conditions: HashMap<String, (TriggerConfig, Option<TriggerCondition>)>,
    watches: HashMap<String, FileWatch>,
    /// Fires when this process stops running triggers.
    end: Cancel,
}

impl std::fmt::Debug for TriggerRunner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TriggerRunner").field("root", &self.root).finish_non_exhaustive()
    }
}

impl TriggerRunner {
    /// Creates a runner of the triggers of `root`.
    #[must_use]
    pub fn new(manager: Arc<TriggerManager>, root: PathBuf, target: Arc<dyn FiringTarget>) -> Self {
        let running = Arc::new(Semaphore::new(RUNNING));
        let under_way = TaskTracker::new();
        let (conditions, watches) = (HashMap::new(), HashMap::new());
        Self { manager, root, target, running, under_way, conditions, watches, end: Cancel::new() }
    }

    /// Runs triggers until `end` fires. Does not wait for firings in progress: another process continues them.
    pub async fn run(mut self, end: Cancel) {
        self.end = end.clone();
        loop {
            if let Err(error) = self.step().await {
                tracing::warn!("triggers could not be attended to: {error}");
            }
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = self.manager.changed.notified() => {}
                _ = end.cancelled() => break,
            }
        }
        if let Err(error) = self.manager.store.leave_firings().await {
            tracing::debug!("{error}");
        }
    }

    /// Checks once for due triggers, and starts them.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn step(&mut self) -> Result<(), StoreError> {
        self.manager.store.keep_firings().await?;
        let triggers = self.manager.store.triggers(Some(&self.root)).await?;
        self.conditions.retain(|id, _| triggers.iter().any(|trigger| trigger.id == *id));
        self.watches.retain(|id, _| triggers.iter().any(|trigger| trigger.id == *id));
        for trigger in &triggers {
            self.check_trigger(trigger).await?;
        }
        let free = self.running.available_permits().min(MAX_CONCURRENT_FIRINGS.saturating_sub(self.under_way.len()));
        if free == 0 {
            return Ok(());
        }
        let now = self.manager.clock.wall_ms();
        for (trigger, firing) in self.manager.store.claim_firings(&self.root, now, free).await? {
            self.start(trigger, firing);
        }
        Ok(())
    }

    /// Waits until no firing is in progress.
    pub async fn wait_until_idle(&self) {
        self.under_way.close();
        self.under_way.wait().await;
        self.under_way.reopen();
    }

    /// Checks whether a trigger fires.
    async fn check_trigger(&mut self, trigger: &Trigger) -> Result<(), StoreError> {
        let (manager, store) = (&self.manager, &self.manager.store);
        let is_known = self.conditions.get(&trigger.id).is_some_and(|(config, _)| *config == trigger.config);
        if !is_known {
            let when = manager.when(trigger).inspect_err(|error| tracing::warn!("trigger {}: {error}", trigger.id));
            self.conditions.insert(trigger.id.clone(), (trigger.config.clone(), when.ok()));
            self.watches.remove(&trigger.id);
        }
        let Some((_, Some(when))) = self.conditions.get(&trigger.id) else { return Ok(()) };
        match when {
            TriggerCondition::Times(times) => {
                let due = times.due(trigger.cursor, manager.clock.wall_ms(), trigger.config.catch_up);
                // The time of the check is stored with the slots that it found.
                if !due.slots.is_empty() {
                    let (id, config) = (trigger.id.clone(), trigger.config.clone());
                    let left = store.advance_trigger(trigger, due, move |slot| config.due_ms(&id, slot)).await?;
                    if let Some(slot) = left {
                        tracing::warn!(
                            "trigger {}: {MAX_WAITING} firings wait, so the slots from {} on are missed until there is room",
                            trigger.id,
                            iso(slot)
                        );
                    }
                }
            }
            TriggerCondition::Change { globs, debounce } => {
                if !store.watch_trigger(&trigger.id).await? {
                    self.watches.remove(&trigger.id);
                } else if !self.watches.contains_key(&trigger.id) {
                    let watch = FileWatch::start(manager, trigger, &self.root, globs, *debounce);
                    self.watches.insert(trigger.id.clone(), watch);
                }
            }
            TriggerCondition::Message { channel, from } => self.read(trigger, channel, from.as_deref()).await?,
            TriggerCondition::Request { .. } => {}
        }
        Ok(())
    }

    /// Looks for messages that fire a trigger. Skips its own, and those of the runs that it started and of the agents
    /// below them.
    async fn read(&self, trigger: &Trigger, channel: &str, from: Option<&str>) -> Result<(), StoreError> {
        let store = &self.manager.store;
        let run_prefix = format!("trigger-{}-", trigger.id);
        let is_of_trigger_run = |session: &SessionId| session.as_str().starts_with(&run_prefix);
        let (mailbox, delivery) = self.manager.mailbox(trigger, channel).await?;
        let is_queue = delivery == Delivery::Queue;
        for row in store.messages(&mailbox, trigger.cursor, MESSAGES).await? {
            let Some(message) = row.message() else { continue };
            let is_own = match &row.author.session {
                Some(author) if trigger.creator.session() == Some(author) || is_of_trigger_run(author) => true,
                // The agents of its runs have sessions with other names.
                Some(author) => is_of_trigger_run(&store.root(author).await?),
                None => false,
            };
            let counts = !is_own && from.is_none_or(|from| from == row.author.name());
            let payload = counts.then(|| format!("{}: {}", row.author.name(), message.text));
            store
                .offer_message(&trigger.id, (&mailbox, row.seq), is_queue, self.manager.clock.wall_ms(), payload)
                .await?;
        }
        Ok(())
    }

    fn start(&self, trigger: Trigger, firing: Firing) {
        let Ok(permit) = Arc::clone(&self.running).try_acquire_owned() else { return };
        let (manager, target, end) = (Arc::clone(&self.manager), Arc::clone(&self.target), self.end.clone());
        self.under_way.spawn(async move {
            let suspension = FiringSuspension {
                manager: Arc::clone(&manager),
                firing: Arc::new(firing.clone()),
                permit: Arc::new(Mutex::new(Some(permit))),
            };
            if let Err(why) = target.admit(&trigger) {
                tracing::warn!("trigger {} did not run: {why}", trigger.id);
                return note(&manager, &firing, FiringState::Failed, Some(why)).await;
            }
            if let Target::Session(session) = &trigger.target {
                let author = Author { session: trigger.creator.session().cloned(), ..Author::default() };
                let (kind, subject) = (MessageKind::Trigger, trigger.id.clone());
                let message = LogMessage { kind, subject, text: firing.message(&trigger.config), data: Value::Null };
                let row = NewRow::message(session, &trigger.rights.principal.id, author, message);
                if let Err(error) = manager.store.deliver_firing(&firing, row).await {
                    tracing::warn!("{error}");
                }
                return;
            }
            // A dropped run continues in another process as after a crash, so none of its calls is answered as
            // cancelled.
            let ended = tokio::select! {
                biased;
                _ = end.cancelled() => Ok(FiringEnd::Left),
                ended = run(&manager, &*target, &trigger, &firing, suspension.clone()) => ended,
            };
            match ended {
                Ok(FiringEnd::Over) => note(&manager, &firing, FiringState::Done, None).await,
                Ok(FiringEnd::Left) => {
                    if let Err(error) = manager.store.leave_firing(&firing).await {
                        tracing::warn!("{error}");
                    }
                }
                Err(why) => {
                    tracing::warn!("trigger {} did not run: {why}", trigger.id);
                    note(&manager, &firing, FiringState::Failed, Some(why)).await;
                }
            }
            drop(suspension);
            // Another firing may have waited for this one.
            manager.changed.notify_one();
        });
    }
}

/// Creates the run, then records that the trigger has fired, then drives the run.
async fn run(
    manager: &TriggerManager,
    target: &dyn FiringTarget,
    trigger: &Trigger,
    firing: &Firing,
    suspension: FiringSuspension,
) -> Result<FiringEnd, String> {
    target.begin(trigger, firing).await?;
    if firing.state == FiringState::Claimed {
        let noted = manager.store.set_firing(firing, FiringState::Fired, None).await;
        noted.map_err(|error| error.to_string())?;
    }
    target.finish(trigger, firing, suspension).await
}

async fn note(manager: &TriggerManager, firing: &Firing, state: FiringState, error: Option<String>) {
    if let Err(error) = manager.store.set_firing(firing, state, error).await {
        tracing::warn!("{error}");
    }
}
