//! The file of measurements: one line per call, flushed to disk before the next is counted, so that an interrupted run
//! can continue.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::summary::Measurement;

/// The largest file, in bytes.
const MAX_BYTES: u64 = 256 << 20;
/// The version of the format.
const VERSION: u32 = 1;

/// The first line.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ResultsHeader {
    /// Identifies the format.
    bench: u32,
}

/// A line with the calls that are measured again: their earlier lines do not count.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Remeasured {
    /// Their keys.
    anew: BTreeSet<String>,
}

/// The file, locked against other processes.
#[derive(Debug)]
pub struct ResultsFile {
    file: File,
    path: PathBuf,
    /// Its length in bytes, of complete lines only.
    length: u64,
    /// Its measurements of the wanted calls.
    pub measured: Vec<Measurement>,
    /// The number of unknown lines, which are ignored.
    pub unknown_lines: usize,
}

impl ResultsFile {
    /// Opens or creates the file. An incomplete last line is removed. Only measurements of the calls with these keys
    /// count; others are left unchanged. With `fresh` the calls are measured again: their earlier lines stay in the
    /// file, but do not count.
    ///
    /// # Errors
    /// The reason why it cannot be used, with its path.
    pub fn open(path: &Path, keys: &BTreeSet<String>, fresh: bool) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        // Requests and answers are private to the user.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let opened = options.open(path);
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
            None => return Err(failed(&NOT_A_RESULTS_FILE)),
        };
        let kept = std::str::from_utf8(kept).map_err(|error| failed(&format!("{NOT_A_RESULTS_FILE}: {error}")))?;
        let mut rest = kept.lines();
        if let Some(first) = rest.next()
            && serde_json::from_str::<ResultsHeader>(first).ok() != Some(ResultsHeader { bench: VERSION })
        {
            return Err(failed(&NOT_A_RESULTS_FILE));
        }
        let mut measured: Vec<Measurement> = Vec::new();
        let mut unknown_lines = 0;
        for line in kept.lines().skip(1) {
            match serde_json::from_str::<Measurement>(line) {
                Ok(line) if !line.is_sound() => unknown_lines += 1,
                Ok(line) if keys.contains(&line.key) => measured.push(line),
                Ok(_) => {}
                Err(_) => match serde_json::from_str::<Remeasured>(line) {
                    Ok(Remeasured { anew }) => measured.retain(|line| !anew.contains(&line.key)),
                    Err(_) => unknown_lines += 1,
                },
            }
        }
        let mut lines = Self { file, path: path.to_owned(), length: 0, measured, unknown_lines };
        lines.cut(kept.len() as u64)?;
        if kept.is_empty() {
            lines.write(&head)?;
        }
        if fresh && !lines.measured.is_empty() {
            let anew = lines.measured.drain(..).map(|line| line.key).collect();
            lines.entry(&Remeasured { anew })?;
        }
        Ok(lines)
    }

    fn failed(&self, error: &dyn std::fmt::Display) -> String {
        format!("{} cannot be written: {error}", self.path.display())
    }

    fn cut(&mut self, length: u64) -> Result<(), String> {
        let cut = self.file.set_len(length).and_then(|()| self.file.seek(SeekFrom::Start(length)));
        self.length = cut.map_err(|error| self.failed(&error))?;
        Ok(())
    }

    /// Writes a complete line, or nothing.
    fn write(&mut self, line: &str) -> Result<(), String> {
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // If even that fails, the next one to open the file cuts it.
            let _ = self.cut(self.length);
            return Err(self.failed(&error));
        }
        self.length += line.len() as u64;
        Ok(())
    }

    /// Adds a measurement, which is on disk when this returns.
    ///
    /// # Errors
    /// The reason of a failure, with the path.
    pub fn add(&mut self, measured: &Measurement) -> Result<(), String> {
        self.entry(measured)
    }

    fn entry(&mut self, entry: &impl Serialize) -> Result<(), String> {
        let mut line = serde_json::to_string(entry).map_err(|error| self.failed(&error))?;
        line.push('\n');
        self.write(&line)
    }
}

const NOT_A_RESULTS_FILE: &str = "it is no file of measurements; name another with --out";

fn head() -> String {
    format!("{{\"bench\":{VERSION}}}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(case: &str) -> Measurement {
        Measurement {
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
            charged_usd: None,
            latency_ms: 1.5,
            at_ms: 3,
        }
    }

    fn open(path: &Path, fresh: bool) -> Result<ResultsFile, String> {
        ResultsFile::open(path, &["a", "b", "c"].map(str::to_owned).into(), fresh)
    }

    #[test]
    fn lines_that_were_written_whole_are_read_again() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("deep/bench.jsonl");
        let mut lines = open(&path, false).expect("opens");
        lines.add(&measured("a")).expect("writes");
        lines.add(&measured("b")).expect("writes");
        let taken = open(&path, false).expect_err("taken");
        assert!(taken.contains("another `toolwright bench`"), "{taken}");
        drop(lines);
        let whole = std::fs::read_to_string(&path).expect("text");
        for torn in ["", "{", "{\"key\":\"c\",\"to", "\u{0}\u{0}"] {
            std::fs::write(&path, format!("{whole}{torn}")).expect("writes");
            let mut lines = open(&path, false).expect("opens");
            assert_eq!(lines.measured, [measured("a"), measured("b")], "{torn:?}");
            lines.add(&measured("c")).expect("writes");
            drop(lines);
            let now = std::fs::read_to_string(&path).expect("text");
            assert!(now.starts_with(&whole) && now.lines().count() == 4, "{now}");
        }
    }

    #[test]
    fn old_lines_of_a_fresh_run_stay_uncounted() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("bench.jsonl");
        let mut lines = open(&path, false).expect("opens");
        let foreign =
            [Measurement { score: 101.0, ..measured("b") }, Measurement { cost_usd: Some(-1.0), ..measured("c") }];
        for line in [&measured("a"), &measured("elsewhere"), &foreign[0], &foreign[1]] {
            lines.add(line).expect("writes");
        }
        drop(lines);
        assert_eq!(open(&path, false).expect("opens").measured, [measured("a")]);
        let before = std::fs::read_to_string(&path).expect("text");
        let mut lines = open(&path, true).expect("opens");
        assert_eq!(lines.measured, []);
        lines.add(&measured("b")).expect("writes");
        drop(lines);
        assert_eq!(open(&path, false).expect("opens").measured, [measured("b")], "a run that breaks off goes on");
        let now = std::fs::read_to_string(&path).expect("text");
        assert!(now.starts_with(&before) && now.len() > before.len(), "nothing that was paid for is lost");
        let elsewhere = BTreeSet::from(["elsewhere".to_owned()]);
        let lines = ResultsFile::open(&path, &elsewhere, false).expect("opens");
        assert_eq!(lines.measured, [measured("elsewhere")]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        }
    }

    #[test]
    fn a_failed_write_leaves_whole_lines() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("f");
        let mut lines = open(&path, false).expect("opens");
        lines.add(&measured("a")).expect("writes");
        let whole = std::fs::read_to_string(&path).expect("text");
        lines.file = File::open(&path).expect("for reading only");
        let failure = lines.add(&measured("b")).expect_err("it cannot be written");
        assert!(failure.contains("f cannot be written: "), "{failure}");
        drop(lines);
        assert_eq!(std::fs::read_to_string(&path).expect("text"), whole);
        assert_eq!(open(&path, false).expect("opens").measured, [measured("a")]);
    }

    #[test]
    fn other_files_are_left_unchanged() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("f");
        for (text, expect) in
            [("", true), ("{\"ben", true), ("# notes", false), ("# notes\n", false), ("{\"bench\":2}\n", false)]
        {
            for fresh in [false, true] {
                std::fs::write(&path, text).expect("writes");
                assert_eq!(open(&path, fresh).is_ok(), expect, "{text:?}");
                assert!(expect || std::fs::read_to_string(&path).expect("text") == text, "{text:?}");
            }
        }
    }
}
