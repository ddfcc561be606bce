//! Log levels of sources up to 2025-11-25: each source gets the least severe level that any caller wants.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::{StreamExt as _, stream};
use serde_json::{Map, Value};
use toolwright_core::catalogue::{Health, Provider};
use toolwright_core::session::{Session, SessionId};

use super::AT_ONCE;
use crate::Gateway;
use crate::mcp::message::RpcError;
use crate::mcp::protocol::{Era, Level};
use crate::mcp::request::McpRequestContext;
use crate::mcp::session::Caller;

pub(super) const SET_LEVEL: &str = "logging/setLevel";
/// The most sessions for which the last level is remembered.
const MAX_SENT: usize = 4096;

/// The levels that were sent to sources. Callers share sources, so each source gets the least severe level that any
/// caller wants. It is sent for each session, because a source may have a connection per session.
#[derive(Default)]
pub(crate) struct LogLevels(Mutex<State>);

#[derive(Default)]
struct State {
    /// The least severe level that any caller wants of each provider.
    by_provider: HashMap<String, Level>,
    sent: HashMap<(String, SessionId), SentLevel>,
}

/// The level that was sent last.
struct SentLevel {
    level: Level,
    /// The source's connection, identified by its announced capabilities.
    on: Weak<Map<String, Value>>,
}

impl LogLevels {
    /// Records the level that a session wants of a source. Returns the least severe level that any caller wants, and
    /// whether the source already got it on its current connection.
    fn record_level(&self, session: &Session, provider: &Arc<dyn Provider>, level: Level) -> (Level, bool) {
        let mut state = self.lock();
        let least = state.by_provider.entry(provider.name().to_owned()).or_insert(level);
        *least = level.min(*least);
        let least = *least;
        (least, state.is_sent(session, provider, least))
    }

    fn is_sent(&self, session: &Session, provider: &Arc<dyn Provider>, level: Level) -> bool {
        self.lock().is_sent(session, provider, level)
    }

    fn note(&self, session: &Session, provider: &Arc<dyn Provider>, level: Level) {
        let Some(connection) = provider.capabilities() else { return };
        let mut state = self.lock();
        // Sending a level twice is harmless.
        if state.sent.len() >= MAX_SENT {
            state.sent.clear();
        }
        let key = (provider.name().to_owned(), session.id.clone());
        state.sent.insert(key, SentLevel { level, on: Arc::downgrade(&connection) });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_sent(&self, session: &Session, provider: &Arc<dyn Provider>, level: Level) -> bool {
        let sent = self.sent.get(&(provider.name().to_owned(), session.id.clone()));
        sent.zip(provider.capabilities()).is_some_and(|(sent, connection)| {
            sent.level <= level && Weak::ptr_eq(&sent.on, &Arc::downgrade(&connection))
        })
    }
}

impl McpRequestContext {
    /// Returns the log level that the client has asked for.
    pub(crate) fn level_asked(&self, era: Era) -> Option<Level> {
        match era {
            Era::Legacy => self.caller.client.level_asked(),
            Era::Modern => self.channel.as_ref().and_then(|channel| channel.level()),
        }
    }

    /// Handles `logging/setLevel`: sets the session's level and sends it to its sources.
    pub(super) async fn set_level(&self, arguments: &Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        let sources = self.sources_with(SET_LEVEL)?;
        let level = arguments.get("level").and_then(Value::as_str).and_then(Level::parse).ok_or_else(|| {
            let words = Level::ALL.map(Level::as_str).join(", ");
            RpcError::invalid_params(format!("`level` is one of {words}"))
        })?;
        self.caller.client.set_level(level);
        let sending: Vec<_> = sources
            .iter()
            .map(|provider| {
                let (least, _) = self.gateway.log_levels.record_level(&self.caller.session, provider, level);
                self.send_level(provider, least)
            })
            .collect();
        stream::iter(sending).buffer_unordered(AT_ONCE).collect::<()>().await;
        Ok(Map::new())
    }

    /// Sends a source the level of a caller that did not just set it, once per connection. Does nothing if policy would
    /// ask.
    pub(crate) async fn send_level_once(&self, provider: &Arc<dyn Provider>, level: Level) {
        let (least, is_sent) = self.gateway.log_levels.record_level(&self.caller.session, provider, level);
        if !is_sent && self.gateway.has_method(&self.caller.view.scope, provider, SET_LEVEL) {
            let work = Self::detached(&self.gateway, self.caller.clone()).with_cancel(self.cancel.clone());
            work.send_level(provider, least).await;
        }
    }

    /// Sends the level without waiting for a silent source.
    async fn send_level(&self, provider: &Arc<dyn Provider>, level: Level) {
        let arguments = Map::from_iter([("level".to_owned(), level.as_str().into())]);
        let source = Arc::clone(provider);
        let ask = |work: Self| async move { work.ask_source(&source, SET_LEVEL, arguments).await };
        if let Err(error) = self.in_time(provider, SET_LEVEL, ask).await {
            tracing::warn!("{} did not take the log level: {}", provider.name(), error.message);
        }
        self.gateway.log_levels.note(&self.caller.session, provider, level);
    }
}

impl Gateway {
    /// Sends the session's level in the background to sources that do not have it: new and reconnected ones. A source
    /// that is down gets it when it is back.
    pub(crate) fn resend_level(self: &Arc<Self>, caller: &Caller) {
        let Some(level) = caller.client.level_asked().filter(|_| !self.is_draining()) else { return };
        let is_due = |provider: &Arc<dyn Provider>| {
            let is_there = provider.capabilities().is_some() || provider.health() == Health::Starting;
            is_there && !self.log_levels.is_sent(&caller.session, provider, level)
        };
        let due: Vec<_> = self.providers_of(&caller.view.scope).into_iter().filter(is_due).collect();
        if due.is_empty() {
            return;
        }
        let work = McpRequestContext::detached(self, caller.clone());
        tokio::spawn(async move {
            let sending: Vec<_> = due.iter().map(|provider| work.send_level_once(provider, level)).collect();
            stream::iter(sending).buffer_unordered(AT_ONCE).collect::<()>().await;
        });
    }
}
