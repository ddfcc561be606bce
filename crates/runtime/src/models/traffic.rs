//! Queues all requests to models, retries them if that may help, and slows down if a provider asks for it.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::duration;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{
    AuxiliaryRequest, MAX_REFUSED_FORMS, ModelClient, ModelError, ModelErrorKind, ModelEvent, ModelEvents,
    ModelPriority, ModelRequest, ModelResponse, RequestAllowance, RequestProgress, RetryConfig, Usability, Usage,
    pause, retry,
};
use toolwright_core::setting::TimeSpan;

use super::micros;
use crate::queue::{PriorityQueue, QueueConfig, Slot};

/// The most queues of models without their own queue; idle ones beyond are dropped.
const MAX_QUEUES: usize = 256;

/// How requests to a model, or to all models of a provider, wait and are made again.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TrafficConfig {
    /// The queue of its requests, which all agents, tools and servers share. Under a provider's name it is one queue
    /// for all of its models. Default: a queue for each model, 32 requests at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<ModelQueueConfig>,
    /// Retries of failed requests. A request is retried only if it hit a rate limit, or if the provider is down or
    /// overloaded, and never after an answer has begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryConfig>,
}

/// The queue of a model. Who waits goes by priority: a request that is made again, then what somebody waits for, then
/// work in the background, then what has time; but nobody waits for ever.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ModelQueueConfig {
    /// Requests that run at once.
    #[schemars(range(min = 1))]
    pub concurrent: usize,
    /// Requests that may start in any sixty seconds, retries included. Default: no limit. When the provider reports
    /// that its limit is reached, the queue pauses in any case.
    #[schemars(range(min = 1, max = 100_000))]
    pub requests_per_minute: Option<usize>,
    /// Requests that may wait. When the queue is full, a new request fails at once; if its priority is higher, the
    /// newest waiting request of the lowest priority fails instead.
    pub max_waiting: usize,
    /// How long a request may wait.
    #[serde(with = "duration::required")]
    #[schemars(with = "TimeSpan")]
    pub wait_timeout: Duration,
}

impl Default for ModelQueueConfig {
    fn default() -> Self {
        Self { concurrent: 32, requests_per_minute: None, max_waiting: 1024, wait_timeout: Duration::from_secs(600) }
    }
}

impl From<ModelQueueConfig> for QueueConfig {
    fn from(queue: ModelQueueConfig) -> Self {
        let ModelQueueConfig { concurrent, requests_per_minute, max_waiting, wait_timeout } = queue;
        Self { concurrent, per_minute: requests_per_minute, max_waiting, wait_timeout }
    }
}

impl TrafficConfig {
    /// Returns how requests to `model` are retried: as set for it, or for its provider, or by default.
    #[must_use]
    pub fn retry_of(set: &BTreeMap<String, Self>, model: &str) -> RetryConfig {
        nearest(set, model, |config| config.retry).map(|(_, config)| config).unwrap_or_default()
    }
}

/// Returns the setting of a model, or else of its provider, and its name.
fn nearest<'s, T>(
    set: &'s BTreeMap<String, TrafficConfig>,
    model: &str,
    of: impl Fn(&TrafficConfig) -> Option<T>,
) -> Option<(&'s str, T)> {
    let provider = model.split_once('/').map(|(provider, _)| provider);
    [Some(model), provider].into_iter().flatten().find_map(|name| {
        let (name, config) = set.get_key_value(name)?;
        Some((name.as_str(), of(config)?))
    })
}

/// A model client that queues and retries requests for another client, which sends each once. Each model
/// (`provider/model`) has a queue, unless its provider has one; requests wait by priority. A request that fails
/// temporarily before its answer has begun is retried, with the priority of a retry; it waits outside of the queue. A
/// provider that names a wait, or reports an exhausted limit, pauses the whole queue for that time.
pub struct ModelTraffic {
    client: Arc<dyn ModelClient>,
    config: BTreeMap<String, TrafficConfig>,
    queues: Mutex<HashMap<Arc<str>, Arc<ModelQueue>>>,
}

/// Holders are named by the model that they ask.
type ModelQueue = PriorityQueue<Arc<str>>;

impl std::fmt::Debug for ModelTraffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelTraffic").field("config", &self.config).finish_non_exhaustive()
    }
}

impl ModelTraffic {
    /// Wraps `client`, with settings by model (`provider/model`) or provider. Of each setting, the one for the model
    /// overrides the provider's.
    #[must_use]
    pub fn new(client: Arc<dyn ModelClient>, config: BTreeMap<String, TrafficConfig>) -> Arc<Self> {
        Arc::new(Self { client, config, queues: Mutex::default() })
    }

    /// Returns the queue of a model, and its name.
    fn queue(&self, model: &str) -> (Arc<str>, Arc<ModelQueue>) {
        let set = nearest(&self.config, model, |config| config.queue.clone());
        let name = set.as_ref().map_or(model, |(name, _)| *name);
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((name, queue)) = queues.get_key_value(name) {
            return (Arc::clone(name), Arc::clone(queue));
        }
        if queues.len() >= MAX_QUEUES {
            // Every holder or waiter of a queue keeps a reference to it.
            queues.retain(|name, queue| Arc::strong_count(queue) > 1 || self.config.contains_key(&**name));
        }
        let name: Arc<str> = name.into();
        let queue_config = set.map(|(_, queue)| queue).unwrap_or_default().into();
        let queue = PriorityQueue::new(&*name, format!("the queue of {name}"), queue_config);
        queues.insert(Arc::clone(&name), Arc::clone(&queue));
        (name, queue)
    }

    /// Prepares a request to `model`.
    fn passage<'a>(
        &self,
        model: &str,
        priority: ModelPriority,
        room: &'a RequestAllowance,
        events: &'a dyn ModelEvents,
        cancel: &'a Cancel,
    ) -> AttemptedRequest<'a> {
        let (name, queue) = self.queue(model);
        let config = TrafficConfig::retry_of(&self.config, model);
        let (attempt, refused_forms, before) = (1, 0, None);
        AttemptedRequest {
            name,
            queue,
            config,
            holder: model.into(),
            priority,
            room,
            attempt,
            refused_forms,
            before,
            events,
            cancel,
        }
    }
}

#[async_trait]
impl ModelClient for ModelTraffic {
    async fn complete(
        &self,
        model: &str,
        request: &ModelRequest,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<ModelResponse, ModelError> {
        if let Usability::Unknown(_) = self.client.card(model).usability {
            // The client reports the unknown name itself, and no queue is created for it.
            return self.client.complete(model, request, events, cancel).await;
        }
        let mut passage = self.passage(model, request.priority, &request.room, events, cancel);
        loop {
            let turn = passage.wait_for_permit().await?;
            let answer = self.client.complete(model, request, &turn.feedback, cancel).await;
            if let Some(ended) = passage.ended(turn, answer).await {
                return ended;
            }
        }
    }

    async fn send_auxiliary(
        &self,
        model: &str,
        request: &dyn AuxiliaryRequest,
        priority: ModelPriority,
        events: &dyn ModelEvents,
        cancel: &Cancel,
    ) -> Result<Usage, ModelError> {
        let room = RequestAllowance::default();
        let mut passage = self.passage(model, priority, &room, events, cancel);
        loop {
            let turn = passage.wait_for_permit().await?;
            let answer = tokio::select! {
                biased;
                cause = cancel.cancelled() => Err(canceled(cause)),
                answer = self.client.send_auxiliary(model, request, priority, &turn.feedback, cancel) => answer,
            };
            if let Some(ended) = passage.ended(turn, answer).await {
                return ended;
            }
        }
    }

    fn inner(&self) -> Option<&dyn ModelClient> {
        Some(&*self.client)
    }
}

/// A request in progress, attempt by attempt.
struct AttemptedRequest<'a> {
    name: Arc<str>,
    queue: Arc<ModelQueue>,
    config: RetryConfig,
    holder: Arc<str>,
    priority: ModelPriority,
    room: &'a RequestAllowance,
    attempt: u32,
    /// Attempts whose form was refused. They do not count towards the limit of attempts.
    refused_forms: u32,
    /// The error of the previous attempt.
    before: Option<ModelError>,
    events: &'a dyn ModelEvents,
    cancel: &'a Cancel,
}

/// The right to make an attempt now.
struct AttemptPermit<'a> {
    slot: Slot<Arc<str>>,
    feedback: AttemptFeedback<'a>,
    began: Instant,
}

impl<'a> AttemptedRequest<'a> {
    /// Waits for the next attempt's turn.
    async fn wait_for_permit(&mut self) -> Result<AttemptPermit<'a>, ModelError> {
        let waits = |_: &str| self.events.on_traffic(RequestProgress::Waits { queue: Arc::clone(&self.name) });
        let taken = self.queue.take(&self.holder, self.priority, self.cancel, waits).await;
        let (slot, waited) = taken.map_err(|error| refused(error, self.before.as_ref()))?;
        if !self.room.take() {
            return Err(no_room(self.before.as_ref()));
        }
        self.events.on_traffic(RequestProgress::Began { attempt: self.attempt, waited_us: micros(waited) });
        let feedback = AttemptFeedback::of(self.events, Arc::clone(&self.queue), self.config.longest_wait);
        Ok(AttemptPermit { slot, feedback, began: Instant::now() })
    }

    /// Handles the end of an attempt. Returns the result of the request; `None`, after the pause, if it is retried.
    async fn ended<T>(
        &mut self,
        turn: AttemptPermit<'a>,
        answer: Result<T, ModelError>,
    ) -> Option<Result<T, ModelError>> {
        let AttemptPermit { slot, feedback, began } = turn;
        let error = match answer {
            Ok(answer) => return Some(Ok(answer)),
            Err(error) => error,
        };
        let has_begun = feedback.has_begun();
        let again = if error.is_retried_differently() {
            // After the last of these there is no other form: the same request would be refused again.
            let is_one_more = self.refused_forms < MAX_REFUSED_FORMS && !has_begun;
            self.refused_forms += u32::from(is_one_more);
            is_one_more.then_some(Duration::ZERO)
        } else {
            retry(&error, self.attempt - self.refused_forms, has_begun, self.config, seed())
        };
        feedback.failed(&error, again);
        drop(slot);
        let Some(wait) = again else {
            let is_last = has_begun || self.attempt - self.refused_forms >= self.config.attempts;
            return Some(Err(if is_last { error } else { without_retry(error, self.config) }));
        };
        self.events.on_traffic(RequestProgress::Failed {
            attempt: self.attempt,
            kind: error.kind,
            message: error.message.clone(),
            unsent: error.unsent,
            usage: error.usage,
            latency_us: micros(began.elapsed()),
            again_in_ms: u64::try_from(wait.as_millis()).unwrap_or(u64::MAX),
        });
        tokio::select! {
            biased;
            cause = self.cancel.cancelled() => return Some(Err(ModelError { unsent: true, ..canceled(cause) })),
            () = tokio::time::sleep(wait) => {}
        }
        self.attempt += 1;
        self.priority = ModelPriority::Retry;
        self.before = Some(error);
        None
    }
}

/// Returns a failure that is not retried. If the reason is the wait that the provider asks for, the message names it.
fn without_retry(mut error: ModelError, config: RetryConfig) -> ModelError {
    let may = error.should_retry.unwrap_or_else(|| error.kind.is_retryable());
    let server_wait =
        error.retry_after_ms.map(Duration::from_millis).filter(|asked| may && *asked > config.longest_wait);
    if let Some(server_wait) = server_wait {
        let (wait_seconds, longest) = (server_wait.as_secs_f64(), config.longest_wait.as_secs_f64());
        error.message.push_str(&format!(
            "; it asks to wait {wait_seconds} s, over the {longest} s of retry.longest_wait, so it is not retried"
        ));
    }
    error
}

/// Returns the error of an attempt that was not made, after the failure `before` if it was a retry.
fn no_room(before: Option<&ModelError>) -> ModelError {
    let failed = before.map(|before| format!("; before, it had failed: {before}")).unwrap_or_default();
    let message = format!("the caller allows no more requests to models{failed}");
    ModelError { should_retry: Some(false), unsent: true, ..ModelError::new(ModelErrorKind::RateLimit, message) }
}

/// Returns the error of a request that did not get its turn, after the failure `before` if it was a retry.
fn refused(error: ToolError, before: Option<&ModelError>) -> ModelError {
    if let Some(cause) = error.cancel_cause() {
        return ModelError { unsent: true, ..canceled(cause) };
    }
    let kind = match error.kind() {
        ErrorKind::LimitExceeded => ModelErrorKind::RateLimit,
        _ => ModelErrorKind::Unavailable,
    };
    let failed = before.map(|before| format!("; before, it had failed: {before}")).unwrap_or_default();
    let message = format!("{}{failed}", error.message());
    let source = Some(Box::new(error) as _);
    ModelError { should_retry: Some(false), unsent: true, source, ..ModelError::new(kind, message) }
}

fn canceled(cause: CancelCause) -> ModelError {
    ModelError::new(ModelErrorKind::Canceled, format!("the model request was cancelled {}", cause.describe()))
}

fn seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Passes on the events of one attempt, records whether an answer has begun, and pauses the queue if the provider
/// reports an exhausted limit.
struct AttemptFeedback<'a> {
    events: &'a dyn ModelEvents,
    queue: Arc<ModelQueue>,
    longest: Duration,
    begun: AtomicBool,
}

impl<'a> AttemptFeedback<'a> {
    /// Creates it. A provider can pause the queue for at most `longest`.
    pub(super) fn of(events: &'a dyn ModelEvents, queue: Arc<ModelQueue>, longest: Duration) -> Self {
        Self { events, queue, longest, begun: AtomicBool::new(false) }
    }

    /// Returns whether any part of an answer has arrived.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Handles a failed attempt, which is retried after `again`, if at all.
    pub(super) fn failed(&self, error: &ModelError, again: Option<Duration>) {
        let asked_wait = error.retry_after_ms.map(Duration::from_millis);
        match error.kind {
            // Other requests would only get the same error.
            ModelErrorKind::RateLimit => self.pause(asked_wait.or(again)),
            ModelErrorKind::Unavailable => self.pause(asked_wait),
            _ => {}
        }
    }

    fn pause(&self, wait: Option<Duration>) {
        if let Some(wait) = wait {
            self.queue.pause(Instant::now() + wait.min(self.longest));
        }
    }
}

impl ModelEvents for AttemptFeedback<'_> {
    fn on_event(&self, event: ModelEvent) {
        self.begun.store(true, Ordering::Relaxed);
        self.events.on_event(event);
    }

    fn on_traffic(&self, traffic: RequestProgress) {
        match &traffic {
            RequestProgress::FirstByte => self.begun.store(true, Ordering::Relaxed),
            RequestProgress::Limits(limits) => self.pause(pause(limits)),
            _ => {}
        }
        self.events.on_traffic(traffic);
    }
}
