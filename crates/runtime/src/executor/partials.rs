//! Progress on its way out.

use std::sync::{Arc, Mutex, PoisonError};

use toolwright_core::Services;
use toolwright_core::catalogue::Entry;
use toolwright_core::context::PartialSink;
use toolwright_core::event::{Event, Partial};
use toolwright_core::operation::Op;
use toolwright_core::redact::StreamRedactor;
use toolwright_core::session::CallId;

/// Progress of one call: to the events, and to whoever asked for it.
pub(super) struct Partials {
    pub(super) services: Arc<Services>,
    pub(super) op: Op,
    pub(super) call: CallId,
    pub(super) entry: Arc<Entry>,
    /// Its text on the way to the events: a secret may come in several pieces.
    pub(super) text: Mutex<StreamRedactor>,
    pub(super) also: Option<Arc<dyn PartialSink>>,
}

impl Partials {
    fn tell(&self, partial: Partial) {
        let (op, call, tool) = (self.op.clone(), self.call.clone(), self.entry.id().clone());
        self.services.events.emit(Event::ToolPartial { op, call, tool, partial });
    }

    fn tell_text(&self, take: impl FnOnce(&mut StreamRedactor) -> String) {
        let text = take(&mut self.text.lock().unwrap_or_else(PoisonError::into_inner));
        if !text.is_empty() {
            self.tell(Partial::Text(text));
        }
    }
}

impl PartialSink for Partials {
    fn send(&self, partial: Partial) {
        if let Some(also) = &self.also {
            also.send(partial.clone());
        }
        if !self.services.events.is_observed() {
            return;
        }
        match partial {
            Partial::Text(text) => self.tell_text(|stream| stream.push(&text)),
            Partial::Progress { progress, total, message } => {
                let message = message.map(|message| self.services.redactor.redact(&message).into_owned());
                self.tell(Partial::Progress { progress, total, message });
            }
        }
    }
}

impl Drop for Partials {
    /// The call has ended: what was held back of its text is told.
    fn drop(&mut self) {
        self.tell_text(StreamRedactor::finish);
    }
}
