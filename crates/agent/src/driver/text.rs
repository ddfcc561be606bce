//! The model's text as events, piece by piece, without secrets.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use toolwright_core::context::Redactor;
use toolwright_core::event::{Event, EventSink};
use toolwright_core::model::{ModelEvent, ModelEvents};

/// Bytes of text that are held back at most.
const MAX_HELD: usize = 4096;

/// Passes the model's text on in whole words, so that a secret is recognised which the stream brings in
/// several pieces. Only one that holds a space can still be split, or is longer than what is held back.
pub(super) struct TextEvents {
    events: Arc<dyn EventSink>,
    redactor: Arc<dyn Redactor>,
    held: Mutex<String>,
}

impl TextEvents {
    pub(super) fn new(events: Arc<dyn EventSink>, redactor: Arc<dyn Redactor>) -> Self {
        Self { events, redactor, held: Mutex::default() }
    }

    /// Passes on what was held back; the answer has ended.
    pub(super) fn finish(&self) {
        let held = std::mem::take(&mut *self.held());
        if !held.is_empty() {
            self.events.emit(Event::ModelText { text: self.redactor.redact(&held).into_owned() });
        }
    }

    fn held(&self) -> MutexGuard<'_, String> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ModelEvents for TextEvents {
    fn on_event(&self, event: ModelEvent) {
        let ModelEvent::Text(text) = event else { return };
        let mut held = self.held();
        held.push_str(&text);
        if held.len() > MAX_HELD {
            drop(held);
            return self.finish();
        }
        // Whatever is no visible ASCII ends a word, in scripts without spaces too.
        let Some((at, end)) = held.char_indices().rfind(|(_, c)| !c.is_ascii_graphic()) else { return };
        let (words, begun) = held.split_at(at + end.len_utf8());
        let text = self.redactor.redact(words).into_owned();
        // If a secret lies across, the words wait for its end.
        if self.redactor.redact(&held) == format!("{text}{}", self.redactor.redact(begun)) {
            *held = begun.to_owned();
            self.events.emit(Event::ModelText { text });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stars;

    impl Redactor for Stars {
        fn redact<'a>(&self, text: &'a str) -> std::borrow::Cow<'a, str> {
            text.replace("sk-12345", "***").replace("pass phrase", "***").into()
        }
    }

    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    impl EventSink for Log {
        fn emit(&self, event: Event) {
            if let Event::ModelText { text } = event {
                self.0.lock().expect("log").push(text);
            }
        }
    }

    fn check(pieces: &[&str], expect: &[&str]) {
        let log = Arc::new(Log::default());
        let events = TextEvents::new(log.clone(), Arc::new(Stars));
        for piece in pieces {
            events.on_event(ModelEvent::Text((*piece).to_owned()));
        }
        events.finish();
        assert_eq!(*log.0.lock().expect("log"), expect, "{pieces:?}");
    }

    #[test]
    fn a_secret_split_between_pieces_of_text_is_redacted() {
        check(&["the key is sk-1", "23", "45, keep it"], &["the key is ", "***, keep ", "it"]);
        check(&["sk-12345"], &["***"]);
        check(&["a pass phrase b"], &["a *** ", "b"]);
        check(&["a pass phrase", " b"], &["a *** ", "b"]);
    }

    #[test]
    fn text_comes_word_by_word_and_never_too_late() {
        check(&[], &[]);
        check(&["one tw", "o\n"], &["one ", "two\n"]);
        check(&["早上好。sk-", "12345"], &["早上好。", "***"]);
        let long = "x".repeat(MAX_HELD);
        check(&[&long, "y", "z"], &[&format!("{long}y"), "z"]);
    }
}
