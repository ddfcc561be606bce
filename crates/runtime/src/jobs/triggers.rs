//! Installs triggers, and receives the events that fire them. [`TriggerRunner`] starts their runs.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tokio::sync::Notify;
use toolwright_core::ContentHash;
use toolwright_core::agents::Rights;
use toolwright_core::context::Clock;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::session::{Session, SessionId};
use toolwright_core::store::StoreError;
use toolwright_core::store::channel::{Channels, Delivery};
use toolwright_core::trigger::webhook::{SignatureError, SignedRequest, verify};
use toolwright_core::trigger::{
    Creator, Firing, FiringState, InstalledTrigger, MAX_PAYLOAD, MIN_SECRET, Target, Timetable, Trigger,
    TriggerCondition, TriggerConfig, TriggerError, TriggerKind, TriggerRequest, Triggers,
};

use crate::store::SqliteStore;

pub use super::trigger_runner::{FiringEnd, FiringSuspension, FiringTarget, TriggerRunner};
pub use crate::store::agents::firings::FiringOffer;

/// Upcoming slots that are shown of a new trigger.
const SHOWN: usize = 3;

/// Manages the triggers of a store. Shared by `Arc`.
pub struct TriggerManager {
    pub(super) store: Arc<SqliteStore>,
    pub(super) clock: Arc<dyn Clock>,
    /// The time zone of schedules that do not name one.
    zone: String,
    channels: Mutex<Channels>,
    /// Wakes the runner of this process.
    pub(super) changed: Notify,
}

impl std::fmt::Debug for TriggerManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TriggerManager").finish_non_exhaustive()
    }
}

/// The reason why a webhook request fires nothing.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The webhook does not exist.
    #[error("there is no such webhook")]
    Unknown,
    /// None of its secrets is set.
    #[error(
        "no secret of this webhook is set: set {0} to at least {MIN_SECRET} bytes in the environment of the server"
    )]
    NoSecret(String),
    /// The request's signature is missing or invalid.
    #[error(transparent)]
    Unsigned(#[from] SignatureError),
    /// Its body is too long, or not text.
    #[error("the body must be text of at most {MAX_PAYLOAD} bytes")]
    Body,
    /// Too many firings are waiting.
    #[error("too many firings of this webhook wait; try again later")]
    Full,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl TriggerManager {
    /// Creates the manager of the triggers in `store`.
    #[must_use]
    pub fn new(store: Arc<SqliteStore>, clock: Arc<dyn Clock>) -> Arc<Self> {
        let zone = jiff::tz::TimeZone::system().iana_name().unwrap_or("UTC").to_owned();
        Arc::new(Self { store, clock, zone, channels: Mutex::default(), changed: Notify::new() })
    }

    /// Sets the configured channels.
    pub fn use_channels(&self, channels: Channels) {
        *self.channels() = channels;
    }

    fn channels(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mailbox of a trigger's channel, and how its messages are delivered.
    pub(super) async fn mailbox(&self, trigger: &Trigger, channel: &str) -> Result<(SessionId, Delivery), StoreError> {
        let config = self.channels().get(channel).unwrap_or_default();
        let session = Session {
            id: trigger.creator.session().cloned().unwrap_or_else(|| SessionId::new("")),
            principal: trigger.rights.principal.clone(),
            root: trigger.rights.root.clone(),
            agent: None,
        };
        Ok((config.mailbox(channel, &session, &*self.store).await?, config.delivery))
    }

    /// Returns when a trigger fires.
    ///
    /// # Errors
    /// [`TriggerError`] if an incompatible version installed it.
    pub fn when(&self, trigger: &Trigger) -> Result<TriggerCondition, TriggerError> {
        trigger.config.when(trigger.created_ms, &self.zone)
    }

    /// Returns the next slots of a trigger; none if it does not fire by time.
    #[must_use]
    pub fn next(&self, trigger: &Trigger, count: usize) -> Vec<u64> {
        match self.when(trigger) {
            Ok(TriggerCondition::Times(times)) => slots(&times, self.clock.wall_ms(), count),
            _ => Vec::new(),
        }
    }

    /// Returns a trigger.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if it does not exist.
    pub async fn get(&self, id: &str) -> Result<Trigger, StoreError> {
        let quoted_id: String = id.chars().take(100).collect();
        self.store.trigger(id).await?.ok_or_else(|| StoreError::NotFound(format!("trigger {quoted_id}")))
    }

    /// Returns the triggers of one workspace.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn of_root(&self, root: &Path) -> Result<Vec<Trigger>, StoreError> {
        self.store.triggers(Some(root)).await
    }

    /// Returns the firings of one trigger or of all, the newest first.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn firings(&self, of: Option<&str>, limit: usize) -> Result<Vec<Firing>, StoreError> {
        self.store.firings(of, limit).await
    }

    /// Returns whether a living process runs triggers.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn has_runner(&self) -> Result<bool, StoreError> {
        self.store.has_runner().await
    }

    /// Fires a trigger now, regardless of its schedule. A process that runs triggers starts it.
    ///
    /// # Errors
    /// [`StoreError::NotFound`] if it does not exist, [`StoreError::Quota`] if too many firings are waiting.
    pub async fn fire(&self, id: &str) -> Result<Firing, StoreError> {
        self.get(id).await?;
        let now = self.clock.wall_ms();
        let slot = format!("manual {}", uuid::Uuid::new_v4());
        match self.store.offer_firing(id, &slot, now, None).await? {
            FiringOffer::Full => {
                Err(StoreError::Quota(format!("too many firings of trigger {id} wait; try again later")))
            }
            _ => {
                self.changed.notify_one();
                let (trigger, state) = (id.to_owned(), FiringState::Pending);
                Ok(Firing { trigger, slot, due_ms: now, state, payload: None, error: None })
            }
        }
    }

    /// Handles a signed webhook request. When this returns, the firing is committed. `secret` reads the environment
    /// variable of this name.
    ///
    /// # Errors
    /// [`WebhookError`].
    pub async fn receive(
        &self,
        id: &str,
        request: SignedRequest<'_>,
        secret: impl Fn(&str) -> Option<String>,
    ) -> Result<FiringOffer, WebhookError> {
        let trigger = self.store.trigger(id).await?.ok_or(WebhookError::Unknown)?;
        let Ok(TriggerCondition::Request { secret_env, window }) = self.when(&trigger) else {
            return Err(WebhookError::Unknown);
        };
        let secrets: Vec<String> =
            secret_env.iter().filter_map(|name| secret(name)).filter(|secret| secret.len() >= MIN_SECRET).collect();
        if secrets.is_empty() {
            return Err(WebhookError::NoSecret(secret_env.join(" or ")));
        }
        let now = self.clock.wall_ms();
        let slot = verify(request, secrets.iter().map(String::as_bytes), window, now)?;
        let body = std::str::from_utf8(request.body).ok().filter(|body| body.len() <= MAX_PAYLOAD);
        let body = body.ok_or(WebhookError::Body)?.to_owned();
        match self.store.offer_firing(id, &slot, now, Some(body)).await? {
            FiringOffer::Full => Err(WebhookError::Full),
            FiringOffer::NoTrigger => Err(WebhookError::Unknown),
            offered => {
                self.changed.notify_one();
                Ok(offered)
            }
        }
    }

    /// Returns the trigger that a workspace's configuration gives this name, as if it were installed now.
    #[must_use]
    pub fn configured(&self, rights: &Rights, name: &str, config: TriggerConfig) -> Trigger {
        let (id, now) = (configured_id(name, &rights.root), self.clock.wall_ms());
        let (rights, creator) = (rights.clone(), Creator::Configuration);
        Trigger { id, config, target: Target::Run, rights, creator, created_ms: now, cursor: now }
    }

    /// Installs the triggers of a workspace's configuration, and removes configured ones that it no longer has. Returns
    /// the names that could not be installed, with the reasons.
    ///
    /// # Errors
    /// Errors of the store.
    pub async fn configure(
        &self,
        rights: &Rights,
        named: impl IntoIterator<Item = (String, TriggerConfig)>,
    ) -> Result<Vec<(String, ToolError)>, StoreError> {
        let (mut refused, mut configured_ids) = (Vec::new(), Vec::new());
        for (name, config) in named {
            let id = configured_id(&name, &rights.root);
            configured_ids.push(id.clone());
            let request = TriggerRequest {
                id: Some(id),
                config,
                target: Target::Run,
                rights: rights.clone(),
                creator: Creator::Configuration,
            };
            if let Err(error) = self.install(request).await {
                refused.push((name, error));
            }
        }
        for trigger in self.store.triggers(Some(&rights.root)).await? {
            if trigger.creator == Creator::Configuration && !configured_ids.contains(&trigger.id) {
                self.store.remove_trigger(&trigger.id).await?;
            }
        }
        Ok(refused)
    }
}

/// Returns the id of a configured trigger. It contains the workspace, because another may use the same name.
fn configured_id(name: &str, root: &Path) -> String {
    let mut hash = ContentHash::of_bytes(root.as_os_str().as_encoded_bytes()).to_hex();
    hash.truncate(8);
    format!("{name}_{hash}")
}

/// Returns the next slots after a time.
fn slots(times: &Timetable, after_ms: u64, count: usize) -> Vec<u64> {
    std::iter::successors(times.next(after_ms), |slot| times.next(*slot)).take(count).collect()
}

#[async_trait]
impl Triggers for TriggerManager {
    async fn install(&self, request: TriggerRequest) -> Result<InstalledTrigger, ToolError> {
        let TriggerRequest { id, mut config, target, rights, creator } = request;
        if config.kind == TriggerKind::Schedule && config.every.is_none() && config.time_zone.is_none() {
            config.time_zone = Some(self.zone.clone());
        }
        let now = self.clock.wall_ms();
        let invalid =
            |message: String| ToolError::new(ErrorKind::InvalidParameters, message.clone()).with_model_message(message);
        let when = config.when(now, &self.zone).map_err(|error| invalid(error.to_string()))?;
        if let TriggerCondition::Message { channel, .. } = &when
            && creator.session().is_none()
            && let Some(why) = self.channels().unreachable(channel)
        {
            return Err(invalid(why));
        }
        let number = uuid::Uuid::new_v4().as_u64_pair().0 >> 32;
        let id = id.unwrap_or_else(|| format!("{}_{number:08x}", config.kind.as_str()));
        // The slot at the very time of creation counts for a timer that fires at once.
        let cursor = match config.kind {
            TriggerKind::Channel => self.store.last_message().await?,
            _ if config.immediate => now.saturating_sub(1),
            _ => now,
        };
        let trigger = Trigger { id, config, target, rights, creator, created_ms: now, cursor };
        // A trigger takes messages out of a queue only for itself.
        let read = match &when {
            TriggerCondition::Message { channel, .. } => Some(self.mailbox(&trigger, channel).await?),
            _ => None,
        };
        let read = read.filter(|(_, delivery)| *delivery == Delivery::Broadcast).map(|(mailbox, _)| mailbox);
        let trigger = self.store.install_trigger(&trigger, read).await.map_err(|error| match error {
            StoreError::Quota(why) => ToolError::new(ErrorKind::LimitExceeded, why.clone()).with_model_message(why),
            other => other.into(),
        })?;
        self.changed.notify_one();
        let next = match when {
            TriggerCondition::Times(times) => slots(&times, trigger.cursor, SHOWN),
            _ => Vec::new(),
        };
        let is_run = self.store.has_runner().await.unwrap_or(false);
        Ok(InstalledTrigger { trigger, next, is_run })
    }

    async fn list(&self, of: Option<&Session>) -> Result<Vec<Trigger>, StoreError> {
        let mut all = self.store.triggers(None).await?;
        all.retain(|trigger| of.is_none_or(|session| trigger.is_of(session)));
        Ok(all)
    }

    async fn remove(&self, id: &str, of: Option<&Session>) -> Result<bool, StoreError> {
        match self.store.trigger(id).await? {
            Some(trigger) if of.is_none_or(|session| trigger.is_of(session)) => {
                let removed = self.store.remove_trigger(id).await?;
                self.changed.notify_one();
                Ok(removed)
            }
            _ => Ok(false),
        }
    }
}
