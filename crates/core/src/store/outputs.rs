//! Defines the store of outputs.

use async_trait::async_trait;

use super::StoreError;
use crate::error::Unsupported;
use crate::identity::session::SessionId;

pub use crate::output::StoredOutput;

/// A range of a stored output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputSlice {
    /// The text; cut at character boundaries.
    pub text: String,
    /// Byte offset after the last byte returned.
    pub next_offset: u64,
    /// Size of the whole.
    pub total_bytes: u64,
}

/// Lines of a stored output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LineRange {
    /// The first one, from 1.
    pub first: u64,
    /// Maximal number.
    pub count: u64,
}

/// Bytes that can be read from anywhere. Reading blocks.
pub trait ReadSeek: std::io::Read + std::io::Seek + Send {}

impl<T: std::io::Read + std::io::Seek + Send> ReadSeek for T {}

/// A stored output, open at its beginning. It is not deleted meanwhile.
pub struct OpenOutput {
    /// Its bytes. Reading blocks: off the async threads.
    pub reader: Box<dyn ReadSeek>,
    /// Size in bytes.
    pub bytes: u64,
    /// Its media type, if it is not text.
    pub binary: Option<String>,
}

/// An output being stored. If dropped before [`OutputWriter::finish`], nothing is kept.
#[async_trait]
pub trait OutputWriter: Send {
    /// Appends bytes.
    ///
    /// # Errors
    /// [`StoreError::Quota`] when the store is full; the output is discarded.
    async fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError>;
    /// Ends the output and assigns its handle.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be stored.
    async fn finish(self: Box<Self>) -> Result<StoredOutput, StoreError>;
}

/// Outputs too large for a conversation, as files of their session. Handles of other sessions are
/// not found.
#[async_trait]
pub trait OutputStore: Send + Sync {
    /// Stores a whole output.
    async fn put(&self, _session: &SessionId, _bytes: &[u8]) -> Result<StoredOutput, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Stores bytes that are not text.
    async fn put_artifact(
        &self,
        _session: &SessionId,
        _bytes: &[u8],
        _media_type: &str,
    ) -> Result<StoredOutput, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Stores an output of unknown size as it arrives.
    async fn writer(&self, _session: &SessionId) -> Result<Box<dyn OutputWriter>, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Reads at most `limit` bytes from byte `offset`, or one character if that is longer.
    async fn read(
        &self,
        _session: &SessionId,
        _handle: &str,
        _offset: u64,
        _limit: usize,
    ) -> Result<OutputSlice, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Reads lines, at most `limit` bytes: the last one may be cut.
    async fn read_lines(
        &self,
        _session: &SessionId,
        _handle: &str,
        _range: LineRange,
        _limit: usize,
    ) -> Result<OutputSlice, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Opens an output as a whole.
    async fn open(&self, _session: &SessionId, _handle: &str) -> Result<OpenOutput, StoreError> {
        Err(Unsupported("the output store").into())
    }
    /// Whether the session has stored outputs, so that the reading tools should be listed.
    fn has_outputs(&self, _session: &SessionId) -> bool {
        false
    }
}
