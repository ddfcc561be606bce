//! How much sources up to 2025-11-25 are to log: they are told once for all of their callers, newer ones with each request.

use std::sync::Arc;

use futures_util::{StreamExt as _, stream};
use serde_json::Map;
use toolwright_core::catalogue::{Health, Provider};
use toolwright_core::session::Session;

use super::call::{Caller, Work};
use super::methods::{AT_ONCE, SET_LEVEL};
use super::protocol::Level;
use super::sources::LevelListener;
use crate::Gateway;

/// For this session, on the connection that a source has now.
fn listener(session: &Session, provider: &Arc<dyn Provider>) -> LevelListener {
    LevelListener { session: session.id.clone(), connection: provider.capabilities() }
}

impl Work {
    /// Tells one source the least severe level that anybody wants, this one included, unless it took that for this session
    /// on its present connection; one that says nothing is not waited for.
    pub(crate) async fn tell_level(&self, provider: &Arc<dyn Provider>, level: Level) {
        let sources = &self.gateway.sources;
        let wanted = sources.least_severe(provider.name(), level);
        if sources.took_level(provider.name(), listener(&self.caller.session, provider), wanted) {
            return;
        }
        let told = Map::from_iter([("level".to_owned(), wanted.as_str().into())]);
        let source = Arc::clone(provider);
        let ask = |work: Self| async move { work.ask_source(&source, SET_LEVEL, told).await };
        let taken = self.in_time(provider, SET_LEVEL, ask).await;
        if let Err(error) = &taken {
            tracing::warn!("{} did not take the log level: {}", provider.name(), error.message);
        }
        sources.note_level(provider.name(), listener(&self.caller.session, provider), wanted, taken.is_ok());
    }

    /// The same for who has not asked for it just now: a source that was told on its present connection, and did not take
    /// it, is left alone, and where policy asks it is not told.
    pub(crate) async fn tell_level_once(&self, provider: &Arc<dyn Provider>, level: Level) {
        let knows_level =
            self.gateway.sources.knows_level(provider.name(), listener(&self.caller.session, provider), level);
        if !knows_level && self.gateway.has_method(&self.caller.view.scope, provider, SET_LEVEL) {
            let work = Self::of_nobody(&self.gateway, self.caller.clone()).under(self.cancel.clone());
            work.tell_level(provider, level).await;
        }
    }
}

impl Gateway {
    /// Has the sources of a session's address told, beside all else, what it has asked to have logged: those that are
    /// others than were told, or have begun anew. One that is down is told when it is there.
    pub(crate) fn tell_level_again(self: &Arc<Self>, caller: &Caller) {
        let Some(level) = caller.peer.said_level().filter(|_| !self.is_draining()) else { return };
        let is_due = |provider: &Arc<dyn Provider>| {
            let is_there = provider.capabilities().is_some() || provider.health() == Health::Starting;
            is_there && !self.sources.knows_level(provider.name(), listener(&caller.session, provider), level)
        };
        let due: Vec<_> = self.providers_of(&caller.view.scope).into_iter().filter(is_due).collect();
        if due.is_empty() {
            return;
        }
        let work = Work::of_nobody(self, caller.clone());
        tokio::spawn(async move {
            let telling: Vec<_> = due.iter().map(|provider| work.tell_level_once(provider, level)).collect();
            stream::iter(telling).buffer_unordered(AT_ONCE).collect::<()>().await;
        });
    }
}
