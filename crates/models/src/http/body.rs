//! Reads the body of a response within bounds of time and size.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;
use reqwest::header::CONTENT_TYPE;
use tokio::time::Instant;
use toolwright_core::model::{ModelError, ModelErrorKind, ModelEvent, ModelEvents, ModelResponse};

use super::endpoint::Endpoint;
use super::{Timeouts, broken, describe};
use crate::codec::decode::Decoder;

/// Characters of a content type that an error quotes.
const MAX_MEDIA_TYPE: usize = 80;
/// How long a stream may take to close after a complete answer.
const CLOSING: Duration = Duration::from_secs(1);
/// How long to wait for usage after a complete response, from servers that send it last.
const USAGE_WAIT: Duration = Duration::from_secs(10);
/// Thirty years, in place of a wait that no clock can count.
const UNBOUNDED_WAIT: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Reads and decodes a response whose beginning `first` was read already.
pub(crate) async fn read(
    endpoint: &Endpoint,
    mut decoder: Decoder,
    mut response: Response,
    first: Option<Bytes>,
    timeouts: Timeouts,
    events: &dyn ModelEvents,
) -> Result<ModelResponse, ModelError> {
    let mut sink = |event| events.on_event(event);
    let mut next = first;
    let deadline = AnswerDeadline::new(timeouts);
    while let Some(bytes) = next {
        decoder.feed(&bytes, &mut sink);
        if decoder.is_settled() {
            deadline.read_rest(&mut decoder, &mut response, &mut sink).await;
            break;
        }
        next = match deadline.wait(endpoint, &mut response).await {
            Ok(next) => next,
            Err(error) => return Err(decoder.fail(error)),
        };
    }
    decoder.end(&mut sink);
    decoder.finish()
}

/// Time limits of a response that has begun.
struct AnswerDeadline {
    idle: Duration,
    answer: Duration,
    end: Instant,
}

impl AnswerDeadline {
    /// Starts the limits now.
    fn new(timeouts: Timeouts) -> Self {
        let Timeouts { idle, answer, .. } = timeouts;
        Self { idle, answer, end: after(answer) }
    }

    /// Returns the next piece; `None` at the end.
    async fn wait(&self, endpoint: &Endpoint, response: &mut Response) -> Result<Option<Bytes>, ModelError> {
        let by = after(self.idle).min(self.end);
        match tokio::time::timeout_at(by, response.chunk()).await {
            // A stream that always has something ready never waits.
            Ok(Ok(Some(_))) if Instant::now() >= self.end => Err(self.timed_out(endpoint)),
            Ok(Ok(next)) => Ok(next),
            Ok(Err(error)) => Err(broken(endpoint, error)),
            Err(_) if by == self.end => Err(self.timed_out(endpoint)),
            Err(_) => {
                let idle = self.idle.as_secs_f64();
                let message = format!("{} sent nothing for {idle} s amid an answer", describe(endpoint));
                Err(ModelError::new(ModelErrorKind::BadResponse, message))
            }
        }
    }

    /// Reads the rest after a complete response: maybe usage, and the end, which returns the connection to the
    /// pool. An error here loses nothing.
    async fn read_rest(&self, decoder: &mut Decoder, response: &mut Response, sink: &mut impl FnMut(ModelEvent)) {
        let reckoned = after(self.idle.min(USAGE_WAIT).max(CLOSING)).min(self.end);
        let mut by = None;
        loop {
            if by.is_none() && !decoder.awaits_usage() {
                by = Some(after(CLOSING));
            }
            let by = by.map_or(reckoned, |by| by.min(reckoned));
            match tokio::time::timeout_at(by, response.chunk()).await {
                // A stream that always has something ready never waits.
                Ok(Ok(Some(bytes))) if Instant::now() < by => decoder.feed(&bytes, sink),
                _ => return,
            }
        }
    }

    fn timed_out(&self, endpoint: &Endpoint) -> ModelError {
        let answer = self.answer.as_secs_f64();
        let message = format!("the answer of {} had not ended after {answer} s", describe(endpoint));
        ModelError::new(ModelErrorKind::BadResponse, message)
    }
}

/// The end of a wait that begins now, at most [`UNBOUNDED_WAIT`] away.
fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait).unwrap_or_else(|| now + UNBOUNDED_WAIT)
}

/// Returns the media type of a response, in lower case; empty if it has none.
pub(crate) fn media_type(response: &Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let media = value.split(';').next().unwrap_or_default().trim();
    media.chars().take(MAX_MEDIA_TYPE).collect::<String>().to_ascii_lowercase()
}

/// Reads a whole response whose beginning `body` was read already, at most `limit` bytes.
pub(crate) async fn read_all(
    endpoint: &Endpoint,
    mut response: Response,
    mut body: Vec<u8>,
    limit: usize,
    timeouts: Timeouts,
) -> Result<Vec<u8>, ModelError> {
    let deadline = AnswerDeadline::new(timeouts);
    while let Some(chunk) = deadline.wait(endpoint, &mut response).await? {
        if body.len() + chunk.len() > limit {
            let message = format!("the answer of {} is longer than {limit} bytes", describe(endpoint));
            return Err(ModelError::new(ModelErrorKind::BadResponse, message));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_is_bounded() {
        let now = Instant::now();
        for wait in [Duration::ZERO, Duration::from_secs(3600), Duration::MAX] {
            assert!(after(wait) >= now, "{wait:?}");
        }
    }
}
