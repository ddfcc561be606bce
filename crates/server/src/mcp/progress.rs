//! Progress of a call as `notifications/progress`.

use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};
use toolwright_core::context::PartialSink;
use toolwright_core::event::Partial;

use super::line::Line;
use super::message::{Id, notification};

/// Sends a call's progress to where its response will go. Never waits: a client that does not read
/// misses progress, not the result.
pub(crate) struct Progress {
    line: Arc<Line>,
    last: Mutex<f64>,
}

impl Progress {
    /// Progress under the token of the request that waits for the call.
    pub(crate) fn new(line: Arc<Line>) -> Self {
        Self { line, last: Mutex::new(f64::NEG_INFINITY) }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    progress_token: &'a Id,
    progress: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<String>,
    #[serde(flatten)]
    more: Map<String, Value>,
}

impl PartialSink for Progress {
    fn send(&self, partial: Partial) {
        let Partial::Progress { progress, total, message, more } = partial else { return };
        // The protocol wants progress that does not go back. The lock is kept while sending, so that
        // two reports at once keep their order; sending does not wait.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if progress < *last || !progress.is_finite() {
            return;
        }
        *last = progress;
        self.line.note(|attached| {
            let progress_token = attached.progress.as_ref()?;
            let params = Params { progress_token, progress, total, message, more };
            Some(notification("notifications/progress", Some(&params)))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::line::{Attached, To};
    use crate::mcp::protocol::Era;
    use crate::mcp::running::Running;
    use tokio::sync::mpsc;
    use toolwright_core::cancel::Cancel;

    #[test]
    fn progress_keeps_its_token_never_goes_back_and_never_waits() {
        let (to, mut from) = mpsc::channel(2);
        let (id, cancel) = (Id::Number(1.into()), Cancel::new());
        let entered = Arc::new(Running::default()).enter(&id, &cancel).expect("the first");
        let attached = Attached { id, to: To::Pipe(to), progress: Some(Id::Text("t".into())), level: None, entered };
        let sink = Progress::new(Line::new(Era::Legacy, cancel, attached));
        let more = |progress: f64| Map::from_iter([("_meta".to_owned(), serde_json::json!({"of": progress}))]);
        let report = |progress: f64| {
            sink.send(Partial::Progress { progress, total: Some(3.0), message: None, more: more(progress) });
        };
        for progress in [1.0, 0.5, 2.0, 3.0] {
            report(progress);
        }
        let sent: Vec<String> = std::iter::from_fn(|| from.try_recv().ok())
            .map(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).expect("json")["params"].to_string())
            .collect();
        let expect = |progress: &str| {
            format!(r#"{{"progressToken":"t","progress":{progress},"total":3.0,"_meta":{{"of":{progress}}}}}"#)
        };
        assert_eq!(sent, [expect("1.0"), expect("2.0")], "the third found the channel full");
    }
}
