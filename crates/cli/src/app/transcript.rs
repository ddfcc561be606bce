//! Writes all messages of a run as JSON lines to a file.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;
use toolwright::agent::Transcript;

use crate::exit::Failure;

/// A transcript file, private to the user.
pub(crate) struct TranscriptFile {
    file: Mutex<Option<File>>,
}

impl TranscriptFile {
    /// Makes the file, or appends to it: a resumed run goes on in the same one.
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options
            .open(path)
            .map_err(|error| Failure::usage(format!("{}: cannot be written: {error}", path.display())))?;
        Ok(Self { file: Mutex::new(Some(file)) })
    }
}

impl Transcript for TranscriptFile {
    fn record(&self, record: Value) {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = file.as_mut()
            && let Err(error) = writeln!(open, "{record}")
        {
            tracing::error!("the transcript ends here: {error}");
            *file = None;
        }
    }
}
