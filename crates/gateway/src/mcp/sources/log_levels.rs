//! How much sources up to 2025-11-25 are to log: they are told once for all of their callers, newer ones with each request.

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
use crate::mcp::request::Work;
use crate::mcp::session::Caller;

pub(super) const SET_LEVEL: &str = "logging/setLevel";
/// Sessions for which it is remembered what sources were told.
const MAX_SENT: usize = 4096;

/// Which log messages sources are to send. Sources may be shared, so that each is told the least severe level that anybody
/// wants; for each session, as a source may have a connection of its own for one.
#[derive(Default)]
pub(crate) struct LogLevels(Mutex<State>);

#[derive(Default)]
struct State {
    /// The least severe log messages that anybody wants of a provider.
    wanted: HashMap<String, Level>,
    sent: HashMap<(String, SessionId), SentLevel>,
}

/// The level that a source was told last.
struct SentLevel {
    level: Level,
    /// The source's connection, known by what it announced on it.
    on: Weak<Map<String, Value>>,
}

impl LogLevels {
    /// Notes that a session wants log messages of this level of a source. The least severe that anybody does; and whether
    /// the source has been told so on its present connection, whatever it made of that.
    fn want(&self, session: &Session, provider: &Arc<dyn Provider>, level: Level) -> (Level, bool) {
        let mut state = self.lock();
        let least = state.wanted.entry(provider.name().to_owned()).or_insert(level);
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
        // It does no harm to tell a source once more.
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

impl Work {
    /// The least severe log message that its client has said it wants.
    pub(crate) fn level_asked(&self, era: Era) -> Option<Level> {
        match era {
            Era::Legacy => self.caller.client.level_asked(),
            Era::Modern => self.channel.as_ref().and_then(|channel| channel.level()),
        }
    }

    /// `logging/setLevel`: the session's own level is kept here, and its sources are told.
    pub(super) async fn set_level(&self, arguments: &Map<String, Value>) -> Result<Map<String, Value>, RpcError> {
        let sources = self.sources_with(SET_LEVEL)?;
        let level = arguments.get("level").and_then(Value::as_str).and_then(Level::parse).ok_or_else(|| {
            let words = Level::ALL.map(Level::as_str).join(", ");
            RpcError::invalid_params(format!("`level` is one of {words}"))
        })?;
        self.caller.client.set_level(level);
        let telling: Vec<_> = sources
            .iter()
            .map(|provider| {
                let (least, _) = self.gateway.log_levels.want(&self.caller.session, provider, level);
                self.send_level(provider, least)
            })
            .collect();
        stream::iter(telling).buffer_unordered(AT_ONCE).collect::<()>().await;
        Ok(Map::new())
    }

    /// Tells a source what a caller wants logged who has not asked for it just now. One that was told on its present
    /// connection is left alone, and where policy asks it is not told.
    pub(crate) async fn set_level_once(&self, provider: &Arc<dyn Provider>, level: Level) {
        let (least, is_sent) = self.gateway.log_levels.want(&self.caller.session, provider, level);
        if !is_sent && self.gateway.has_method(&self.caller.view.scope, provider, SET_LEVEL) {
            let work = Self::of_nobody(&self.gateway, self.caller.clone()).under(self.cancel.clone());
            work.send_level(provider, least).await;
        }
    }

    /// A source that says nothing is not waited for.
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
    /// Has the sources of a session's address told, beside all else, what it has asked to have logged: those that are
    /// others than were told, or have begun anew. One that is down is told when it is there.
    pub(crate) fn set_level_again(self: &Arc<Self>, caller: &Caller) {
        let Some(level) = caller.client.level_asked().filter(|_| !self.is_draining()) else { return };
        let is_due = |provider: &Arc<dyn Provider>| {
            let is_there = provider.capabilities().is_some() || provider.health() == Health::Starting;
            is_there && !self.log_levels.is_sent(&caller.session, provider, level)
        };
        let due: Vec<_> = self.providers_of(&caller.view.scope).into_iter().filter(is_due).collect();
        if due.is_empty() {
            return;
        }
        let work = Work::of_nobody(self, caller.clone());
        tokio::spawn(async move {
            let telling: Vec<_> = due.iter().map(|provider| work.set_level_once(provider, level)).collect();
            stream::iter(telling).buffer_unordered(AT_ONCE).collect::<()>().await;
        });
    }
}
