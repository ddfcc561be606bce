//! How much sources up to 2025-11-25 are to log: they are told once for all of their callers, newer ones with each request.

use std::sync::Arc;

use serde_json::Map;
use toolwright_core::catalogue::Provider;

use super::call::Work;
use super::methods::SET_LEVEL;
use super::protocol::Level;
use super::sources::Heard;

impl Work {
    /// Tells one source the least severe level that anybody wants, this one included, unless it took that for this session
    /// on its present connection; one that says nothing is not waited for.
    pub(crate) async fn tell_level(&self, provider: &Arc<dyn Provider>, level: Level) {
        let sources = &self.gateway.sources;
        let wanted = sources.least_severe(provider.name(), level);
        if sources.has_heard(provider.name(), self.heard_by(provider), wanted) {
            return;
        }
        let told = Map::from_iter([("level".to_owned(), wanted.as_str().into())]);
        let source = Arc::clone(provider);
        let ask = |work: Self| async move { work.ask_source(&source, SET_LEVEL, told).await };
        let taken = self.in_time(provider, SET_LEVEL, ask).await;
        if let Err(error) = &taken {
            tracing::warn!("{} did not take the log level: {}", provider.name(), error.message);
        }
        sources.told(provider.name(), self.heard_by(provider), wanted, taken.is_ok());
    }

    /// The same for who has not asked for it just now: a source that was told on its present connection, and did not take
    /// it, is left alone, and where policy asks it is not told.
    pub(crate) async fn tell_level_once(&self, provider: &Arc<dyn Provider>, level: Level) {
        let was_told = self.gateway.sources.was_told(provider.name(), self.heard_by(provider), level);
        if !was_told && self.has_method(provider, SET_LEVEL).await {
            let work = Self::of_nobody(&self.gateway, self.caller.clone()).under(self.cancel.clone());
            work.tell_level(provider, level).await;
        }
    }

    fn heard_by(&self, provider: &Arc<dyn Provider>) -> Heard {
        Heard { session: self.caller.session.id.clone(), connection: provider.capabilities() }
    }
}
