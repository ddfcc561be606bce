//! Emits the model's text as events while it streams, with secrets redacted.

use std::sync::{Arc, Mutex, PoisonError};

use toolwright_core::context::Redactor;
use toolwright_core::event::{Event, EventSink};
use toolwright_core::model::{ModelEvent, ModelEvents};
use toolwright_core::redact::StreamRedactor;
use toolwright_core::session::SessionId;

/// Passes the model's text on as soon as it can be told that it is no part of a secret, which the stream may bring
/// in several pieces.
pub(super) struct TextEvents {
    events: Arc<dyn EventSink>,
    session: SessionId,
    stream: Mutex<StreamRedactor>,
}

impl TextEvents {
    pub(super) fn new(events: Arc<dyn EventSink>, redactor: Arc<dyn Redactor>, session: SessionId) -> Self {
        Self { events, session, stream: Mutex::new(StreamRedactor::new(redactor)) }
    }

    /// Passes on what was held back; the answer has ended.
    pub(super) fn finish(&self) {
        self.pass(StreamRedactor::finish);
    }

    fn pass(&self, take: impl FnOnce(&mut StreamRedactor) -> String) {
        let text = take(&mut self.stream.lock().unwrap_or_else(PoisonError::into_inner));
        if !text.is_empty() {
            self.events.tell_routine(|| Event::ModelText { session: self.session.clone(), text });
        }
    }
}

impl ModelEvents for TextEvents {
    fn on_event(&self, event: ModelEvent) {
        if let ModelEvent::Text(text) = event {
            self.pass(|stream| stream.push(&text));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    struct RenderContext;

    impl Redactor for RenderContext {
        fn spans(&self, text: &str) -> Vec<Range<usize>> {
            text.match_indices("sk-12345").map(|(at, found)| at..at + found.len()).collect()
        }
    }

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl EventSink for Log {
        fn emit(&self, event: Event) {
            if let Event::ModelText { text, .. } = event {
                self.0.lock().expect("log").push(text);
            }
        }
    }

    fn check(pieces: &[&str], expect: &[&str]) {
        let log = Arc::new(Log::default());
        let events = TextEvents::new(log.clone(), Arc::new(RenderContext), SessionId::new("s"));
        for piece in pieces {
            events.on_event(ModelEvent::Text((*piece).to_owned()));
        }
        events.finish();
        assert_eq!(*log.0.lock().expect("log"), expect, "{pieces:?}");
    }

    #[test]
    fn text_comes_word_by_word_and_without_secrets() {
        check(&[], &[]);
        check(&["one tw", "o\n"], &["one ", "two\n"]);
        check(&["the key is sk-1", "23", "45, keep it"], &["the key is ", "[secret], keep ", "it"]);
        check(&["sk-12345"], &["[secret]"]);
        check(&["早上好。sk-", "12345"], &["早上好。", "[secret]"]);
    }
}
