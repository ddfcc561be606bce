//! Progress of a call as `notifications/progress`.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::mpsc;
use toolwright_core::context::PartialSink;
use toolwright_core::event::Partial;

use super::message::{Id, notification};

/// Sends a call's progress to where its response will go. Never waits: a client that does not read
/// misses progress, not the result.
pub(crate) struct Progress {
    token: Id,
    to: mpsc::Sender<Bytes>,
    last: Mutex<f64>,
}

impl Progress {
    /// Progress under the client's token.
    pub(crate) fn new(token: Id, to: mpsc::Sender<Bytes>) -> Self {
        Self { token, to, last: Mutex::new(f64::NEG_INFINITY) }
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
}

impl PartialSink for Progress {
    fn send(&self, partial: Partial) {
        let Partial::Progress { progress, total, message } = partial else { return };
        // The protocol wants progress that does not go back. The lock is kept while sending, so that
        // two reports at once keep their order; sending does not wait.
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if progress < *last || !progress.is_finite() {
            return;
        }
        *last = progress;
        let params = Params { progress_token: &self.token, progress, total, message };
        if self.to.try_send(notification("notifications/progress", Some(&params))).is_err() {
            tracing::debug!("progress was dropped: the client is not reading");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_keeps_its_token_never_goes_back_and_never_waits() {
        let (to, mut from) = mpsc::channel(2);
        let sink = Progress::new(Id::Text("t".into()), to);
        let report = |progress: f64| sink.send(Partial::Progress { progress, total: Some(3.0), message: None });
        for progress in [1.0, 0.5, 2.0, 3.0] {
            report(progress);
        }
        let sent: Vec<String> = std::iter::from_fn(|| from.try_recv().ok())
            .map(|bytes| serde_json::from_slice::<serde_json::Value>(&bytes).expect("json")["params"].to_string())
            .collect();
        let expect = |progress: &str| format!(r#"{{"progressToken":"t","progress":{progress},"total":3.0}}"#);
        assert_eq!(sent, [expect("1.0"), expect("2.0")], "the third found the channel full");
    }
}
