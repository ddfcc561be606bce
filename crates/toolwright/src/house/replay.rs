//! Recordings in place of models, which nobody is to take for one.

use std::sync::Arc;

use toolwright_core::Event;
use toolwright_core::event::EventSink as _;
use toolwright_models::Replayed;
use toolwright_runtime::EventHub;

/// Warns of each recording that is played, once.
pub(super) fn warning(events: &Arc<EventHub>) -> impl Fn(&Replayed) + Send + Sync + 'static + use<> {
    let events = Arc::clone(events);
    move |Replayed { file, requests, is_torn, overlong }| {
        let torn = if *is_torn { "; its last line is not whole and left out" } else { "" };
        let long = match overlong {
            0 => String::new(),
            lines => format!("; {lines} of its lines are too long and left out"),
        };
        let message = format!("answers are replayed from {file} ({requests} requests{torn}{long}): no model is asked");
        events.emit(Event::Warning { code: "replayed".to_owned(), message });
    }
}
