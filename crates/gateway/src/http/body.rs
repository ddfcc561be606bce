//! Reads request bodies within bounds of size, time and memory.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::HttpOptions;

/// How long a client may take to send a whole body.
const BODY_LIMIT: Duration = Duration::from_secs(60);
/// Bytes of each body that need no room, so that slow large bodies do not keep small ones out.
const FREE: usize = 64 << 10;

/// The reason why a body could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It stalled, or took too long.
    TimedOut,
    /// It exceeds the limit, or the client hung up.
    TooLarge,
    /// Other bodies use all the room.
    Full,
}

/// Bounds of the bodies of unanswered requests, each and in total.
pub(crate) struct BodyLimits {
    limit: usize,
    pause: Duration,
    /// In bytes.
    room: Arc<Semaphore>,
}

/// The room of a body. Keep it as long as the body or what was parsed from it.
pub(crate) struct BodyPermit(#[expect(dead_code, reason = "it is given back when it is dropped")] OwnedSemaphorePermit);

impl BodyLimits {
    /// Allows bodies of at most `limit` bytes each.
    pub(crate) fn new(limit: usize, options: &HttpOptions) -> Self {
        // The largest allowed body must fit when it is alone.
        let room = options.max_body_bytes.max(limit).min(Semaphore::MAX_PERMITS);
        Self { limit, pause: options.body_pause, room: Arc::new(Semaphore::new(room)) }
    }

    /// Returns the size of the largest body, in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Reads a body that never stalls longer than the pause. Takes room for it as it arrives.
    pub(crate) async fn read(&self, body: Body) -> Result<(Bytes, BodyPermit), BodyError> {
        let timed_out = |_| BodyError::TimedOut;
        let mut chunks = body.into_data_stream();
        let read = async {
            let (mut whole, mut held) = (Vec::new(), self.take(0)?);
            while let Some(chunk) = tokio::time::timeout(self.pause, chunks.next()).await.map_err(timed_out)? {
                match chunk {
                    Ok(chunk) if chunk.len() <= self.limit - whole.len() => {
                        let needed = (whole.len() + chunk.len()).saturating_sub(FREE);
                        held.merge(self.take(needed - held.num_permits())?);
                        whole.extend_from_slice(&chunk);
                    }
                    _ => return Err(BodyError::TooLarge),
                }
            }
            Ok((Bytes::from(whole), BodyPermit(held)))
        };
        tokio::time::timeout(BODY_LIMIT, read).await.map_err(timed_out)?
    }

    fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit, BodyError> {
        let bytes = u32::try_from(bytes).map_err(|_| BodyError::Full)?;
        Arc::clone(&self.room).try_acquire_many_owned(bytes).map_err(|_| BodyError::Full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    /// Returns a body of this many bytes, in chunks of 1000.
    fn body(bytes: usize) -> Body {
        let chunks =
            (0..bytes.div_ceil(1000)).map(move |at| Ok::<_, std::io::Error>(vec![b' '; 1000.min(bytes - at * 1000)]));
        Body::from_stream(stream::iter(chunks))
    }

    fn bodies(room: usize) -> BodyLimits {
        let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into());
        options.max_body_bytes = room;
        BodyLimits::new(1 << 20, &options)
    }

    #[tokio::test]
    async fn a_body_keeps_its_room_until_its_answer() {
        let bodies = bodies(2 << 20);
        let all = bodies.room.available_permits();
        let (small, free) = bodies.read(body(FREE)).await.expect("there");
        assert_eq!((small.len(), bodies.room.available_permits()), (FREE, all), "so much is free");
        let (first, room) = bodies.read(body(700_000)).await.expect("there");
        let taken = all - bodies.room.available_permits();
        assert_eq!(taken, first.len() - FREE);
        let (_second, more) = bodies.read(body(1 << 20)).await.expect("there");
        assert_eq!(bodies.read(body(700_000)).await.err(), Some(BodyError::Full));
        assert_eq!(bodies.room.available_permits(), all - taken - ((1 << 20) - FREE), "who is refused gives all back");
        drop((room, more, free));
        assert_eq!(bodies.room.available_permits(), all);
        assert_eq!(bodies.read(body((1 << 20) + 1)).await.err(), Some(BodyError::TooLarge));
        assert_eq!(bodies.room.available_permits(), all);
    }
}
