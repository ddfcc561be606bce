//! The body of a request, read to its end within its bounds.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;

/// How long a client may take to send a whole body, however steadily it comes.
const BODY_LIMIT: Duration = Duration::from_secs(60);

/// Why there is no body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// It stopped coming, or takes too long.
    Late,
    /// It is over the limit. Also where the client hung up, who sees no answer anyway.
    TooLarge,
}

/// Reads a body of at most `limit` bytes, none of which is later than `pause` after the one before it.
pub(crate) async fn read_body(body: Body, limit: usize, pause: Duration) -> Result<Bytes, BodyError> {
    let late = |_| BodyError::Late;
    let mut chunks = body.into_data_stream();
    let read = async {
        let mut whole = BytesMut::new();
        while let Some(chunk) = tokio::time::timeout(pause, chunks.next()).await.map_err(late)? {
            match chunk {
                Ok(chunk) if chunk.len() <= limit - whole.len() => whole.extend_from_slice(&chunk),
                _ => return Err(BodyError::TooLarge),
            }
        }
        Ok(whole.freeze())
    };
    tokio::time::timeout(BODY_LIMIT, read).await.map_err(late)?
}
