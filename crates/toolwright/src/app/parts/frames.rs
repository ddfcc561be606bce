//! `defaults.trace_mcp`: writes redacted messages from and to MCP servers to standard error or a file.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use toolwright_core::Redactor as _;
use toolwright_core::duration::iso;
use toolwright_mcp::client::{Direction, FrameSink};
use toolwright_runtime::SecretRedactor;

use crate::config::file::TraceMcp;

/// The most bytes of one message that are written.
const MAX_FRAME: usize = 1 << 20;
/// The largest file, in bytes; nothing more is written then.
const MAX_FILE: u64 = 1 << 30;

/// Writes one line for each message: time, server, direction, JSON.
#[derive(Debug)]
struct FrameLog {
    redactor: Arc<SecretRedactor>,
    /// `None` is standard error.
    file: Option<Mutex<(File, u64)>>,
}

/// Opens the target of `trace_mcp`. If its file cannot be opened, it logs a warning and traces nothing.
pub(in crate::app) fn frames(
    config: &TraceMcp,
    root: &Path,
    redactor: &Arc<SecretRedactor>,
) -> Option<Arc<dyn FrameSink>> {
    let file = match config {
        TraceMcp::Switch(false) => return None,
        TraceMcp::Switch(true) => None,
        TraceMcp::File(path) => {
            let path = root.join(path);
            let mut options = File::options();
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
            match options.create(true).append(true).open(&path).and_then(|file| Ok((file.metadata()?.len(), file))) {
                Ok((length, file)) => Some(Mutex::new((file, length))),
                Err(error) => {
                    tracing::warn!("defaults.trace_mcp: {} cannot be written: {error}", path.display());
                    return None;
                }
            }
        }
    };
    Some(Arc::new(FrameLog { redactor: Arc::clone(redactor), file }))
}

impl FrameSink for FrameLog {
    fn frame(&self, server: &str, direction: Direction, json: &[u8]) {
        let (beginning, more) = json.split_at(json.len().min(MAX_FRAME));
        let text = String::from_utf8_lossy(beginning);
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let arrow = match direction {
            Direction::Sent => "->",
            Direction::Received => "<-",
        };
        let mut line = format!(
            "{} {server} {arrow} {}",
            iso(u64::try_from(at.as_millis()).unwrap_or(u64::MAX)),
            self.redactor.redact(text.trim_end())
        );
        if !more.is_empty() {
            line.push_str(&format!(" [{} bytes more]", more.len()));
        }
        line.push('\n');
        // A failed write is ignored.
        let _ = match &self.file {
            None => std::io::stderr().lock().write_all(line.as_bytes()),
            Some(file) => {
                let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
                let (file, written) = &mut *file;
                if *written > MAX_FILE {
                    return;
                }
                *written += line.len() as u64;
                if *written > MAX_FILE {
                    line = format!("[toolwright stops here: the file has {MAX_FILE} bytes]\n");
                }
                file.write_all(line.as_bytes())
            }
        };
    }
}
