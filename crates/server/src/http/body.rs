//! The bodies of requests, read to their end within their bounds.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::HttpOptions;

/// How long a client may take to send a whole body, however steadily it comes.
const BODY_LIMIT: Duration = Duration::from_secs(60);
/// So much of each body needs no room among those of others: who sends large ones and does not go on must not keep
/// small ones out.
const FREE: usize = 64 << 10;

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It stopped coming, or takes too long.
    Late,
    /// It is over the limit. Also where the client hung up, who sees no answer anyway.
    TooLarge,
    /// There is no room for it beside the others that are on their way.
    Full,
}

/// What bounds the bodies that are not there yet: each, and all together.
pub(crate) struct Bodies {
    limit: usize,
    pause: Duration,
    /// In bytes.
    room: Semaphore,
}

impl Bodies {
    /// Bodies of at most `limit` bytes each.
    pub(crate) fn new(limit: usize, options: &HttpOptions) -> Self {
        // One of the largest that are taken must find room when it is alone.
        let room = options.max_body_bytes.max(limit).min(Semaphore::MAX_PERMITS);
        Self { limit, pause: options.body_pause, room: Semaphore::new(room) }
    }

    /// The most that a body may have, in bytes.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Reads a body, none of which is later than the pause after what came before it. Its room is taken as it comes,
    /// and given back when all of it is there: from then on the request is counted.
    pub(crate) async fn read(&self, body: Body) -> Result<Bytes, BodyError> {
        let late = |_| BodyError::Late;
        let mut chunks = body.into_data_stream();
        let read = async {
            let (mut whole, mut held) = (BytesMut::new(), self.take(0)?);
            while let Some(chunk) = tokio::time::timeout(self.pause, chunks.next()).await.map_err(late)? {
                match chunk {
                    Ok(chunk) if chunk.len() <= self.limit - whole.len() => {
                        let counted = (whole.len() + chunk.len()).saturating_sub(FREE);
                        held.merge(self.take(counted - held.num_permits())?);
                        whole.extend_from_slice(&chunk);
                    }
                    _ => return Err(BodyError::TooLarge),
                }
            }
            Ok(whole.freeze())
        };
        tokio::time::timeout(BODY_LIMIT, read).await.map_err(late)?
    }

    fn take(&self, bytes: usize) -> Result<SemaphorePermit<'_>, BodyError> {
        let bytes = u32::try_from(bytes).map_err(|_| BodyError::Full)?;
        self.room.try_acquire_many(bytes).map_err(|_| BodyError::Full)
    }
}
