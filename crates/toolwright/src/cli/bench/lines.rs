//! The file of measurements: a line a call, on the disk before the next is counted, so that a run that is killed goes on
//! where it was.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toolwright::core::bench::Measured;

use crate::cli::exit::Failure;
use crate::cli::screen::{WARN, say, styled};

/// Bytes that such a file may have.
const MAX_BYTES: u64 = 256 << 20;
/// The version of the form.
const VERSION: u32 = 1;

/// The first line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Head {
    /// Tells that it is such a file.
    bench: u32,
}

/// The file, which no other process writes meanwhile.
#[derive(Debug)]
pub(super) struct Lines {
    file: File,
    path: PathBuf,
    /// What it had.
    pub(super) measured: Vec<Measured>,
}

impl Lines {
    /// Opens the file, or makes it. What a killed process left of a line is cut off. With `fresh` nothing is kept.
    pub(super) fn open(path: &Path, fresh: bool) -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::usage(format!("{}: {error}", path.display()));
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        }
        let mut options = OpenOptions::new();
        let opened = options.read(true).write(true).create(true).truncate(false).open(path);
        let mut file = opened.map_err(|error| failed(&error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(failed(
                    &"another `toolwright bench` writes it; wait for that one, or name another with --out",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed(&format!("it cannot be locked: {error}"))),
        }
        let mut bytes = Vec::new();
        (&mut file).take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(failed(&format!("it has more than {MAX_BYTES} bytes; name another with --out")));
        }
        let head = head();
        let kept = match bytes.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => &bytes[..=end],
            None if head.as_bytes().starts_with(&bytes) => &[],
            None => return Err(failed(&NOT_OURS)),
        };
        let kept = std::str::from_utf8(kept).map_err(|error| failed(&format!("{NOT_OURS}: {error}")))?;
        let mut rest = kept.lines();
        if let Some(first) = rest.next()
            && serde_json::from_str::<Head>(first).ok() != Some(Head { bench: VERSION })
        {
            return Err(failed(&NOT_OURS));
        }
        let kept = if fresh { "" } else { kept };
        let mut measured = Vec::new();
        let mut unknown = 0_usize;
        for line in kept.lines().skip(1) {
            match serde_json::from_str::<Measured>(line) {
                Ok(line) => measured.push(line),
                Err(_) => unknown += 1,
            }
        }
        if unknown > 0 {
            say(styled(
                WARN,
                format_args!("{}: {unknown} lines are no measurements, and do not count", path.display()),
            ));
        }
        let mut lines = Self { file, path: path.to_owned(), measured };
        lines.cut(kept.len() as u64)?;
        if kept.is_empty() {
            lines.write(&head)?;
        }
        Ok(lines)
    }

    fn failed(&self, error: &std::io::Error) -> Failure {
        Failure::failed(format!("{} cannot be written: {error}", self.path.display()))
    }

    fn cut(&mut self, length: u64) -> Result<(), Failure> {
        let cut = self.file.set_len(length).and_then(|()| self.file.seek(SeekFrom::Start(length)));
        cut.map(|_| ()).map_err(|error| self.failed(&error))
    }

    fn write(&mut self, line: &str) -> Result<(), Failure> {
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(|error| self.failed(&error))
    }

    /// Adds a measurement; it is on the disk when this returns.
    pub(super) fn add(&mut self, measured: &Measured) -> Result<(), Failure> {
        let mut line = serde_json::to_string(measured).map_err(Failure::failed)?;
        line.push('\n');
        self.write(&line)
    }
}

const NOT_OURS: &str = "it is no file of measurements; name another with --out";

fn head() -> String {
    format!("{{\"bench\":{VERSION}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(case: &str) -> Measured {
        Measured {
            key: case.to_owned(),
            tool: "x:t@1.0.0".to_owned(),
            case: case.to_owned(),
            model: "p/m".to_owned(),
            repeat: 1,
            done: true,
            score: 50.0,
            checks: Vec::new(),
            error: None,
            output: "o".to_owned(),
            input_tokens: 1,
            output_tokens: 2,
            requests: 1,
            cost_usd: None,
            judge_cost_usd: None,
            latency_ms: 1.5,
            at_ms: 3,
        }
    }

    #[test]
    fn what_was_written_whole_is_there_again() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("deep/bench.jsonl");
        let mut lines = Lines::open(&path, false).expect("opens");
        lines.add(&measured("a")).expect("writes");
        lines.add(&measured("b")).expect("writes");
        let taken = Lines::open(&path, false).expect_err("taken");
        assert!(taken.message.contains("another `toolwright bench`"), "{}", taken.message);
        drop(lines);
        let whole = std::fs::read_to_string(&path).expect("text");
        for torn in ["", "{", "{\"key\":\"c\",\"to", "\u{0}\u{0}"] {
            std::fs::write(&path, format!("{whole}{torn}")).expect("writes");
            let mut lines = Lines::open(&path, false).expect("opens");
            assert_eq!(lines.measured, [measured("a"), measured("b")], "{torn:?}");
            lines.add(&measured("c")).expect("writes");
            drop(lines);
            let now = std::fs::read_to_string(&path).expect("text");
            assert!(now.starts_with(&whole) && now.lines().count() == 4, "{now}");
        }
        assert_eq!(Lines::open(&path, true).expect("opens").measured, []);
        assert_eq!(std::fs::read_to_string(&path).expect("text"), head());
    }

    #[test]
    fn other_files_are_left_as_they_are() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("f");
        for (text, expect) in
            [("", true), ("{\"ben", true), ("# notes", false), ("# notes\n", false), ("{\"bench\":2}\n", false)]
        {
            for fresh in [false, true] {
                std::fs::write(&path, text).expect("writes");
                assert_eq!(Lines::open(&path, fresh).is_ok(), expect, "{text:?}");
                assert!(expect || std::fs::read_to_string(&path).expect("text") == text, "{text:?}");
            }
        }
    }
}
