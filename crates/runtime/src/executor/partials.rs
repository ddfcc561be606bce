//! Progress on its way out.

use std::sync::Arc;

use toolwright_core::Services;
use toolwright_core::catalogue::Entry;
use toolwright_core::context::PartialSink;
use toolwright_core::event::{Event, Partial};
use toolwright_core::session::CallId;

/// Progress of one call: to the events, and to whoever asked for it.
pub(super) struct Partials {
    pub(super) services: Arc<Services>,
    pub(super) call: CallId,
    pub(super) entry: Arc<Entry>,
    pub(super) also: Option<Arc<dyn PartialSink>>,
}

impl PartialSink for Partials {
    fn send(&self, partial: Partial) {
        if let Some(also) = &self.also {
            also.send(partial.clone());
        }
        let redact = |text: &str| self.services.redactor.redact(text).into_owned();
        let partial = match partial {
            Partial::Text(text) => Partial::Text(redact(&text)),
            Partial::Progress { progress, total, message } => {
                Partial::Progress { progress, total, message: message.as_deref().map(redact) }
            }
        };
        let (call, tool) = (self.call.clone(), self.entry.id().clone());
        self.services.events.emit(Event::ToolPartial { call, tool, partial });
    }
}
