//! Recordings that answer in place of models, marked as such.

use std::sync::Arc;

use toolwright_core::Event;
use toolwright_core::event::EventSink as _;
use toolwright_core::model::{ModelClient as _, is_replay};
use toolwright_models::{Models, Replayed};
use toolwright_runtime::EventHub;

use crate::config::Config;

/// Has the recordings read that the configuration names in place of models, off the runtime's threads, so that what is
/// known of models is known. One that cannot be read is reported when it is used.
pub(super) async fn read(models: &Models, config: &Config) {
    let written = &config.written;
    let named = [
        &written.models.default,
        &written.models.judge,
        &written.sampling.model,
        &written.context.model,
        &written.outputs.extract_model,
        &written.defaults.repair_model,
        &written.selection.judge_model,
    ];
    for recording in named.into_iter().flatten().filter(|model| is_replay(model)) {
        let _ = models.ready(recording).await;
    }
}

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
