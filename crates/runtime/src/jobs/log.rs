//! A job's log file, which other processes also read.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use toolwright_core::context::PartialSink;
use toolwright_core::event::Partial;
use toolwright_core::job::JobLogSlice;
use toolwright_core::output::{head_and_tail, without_preview};

/// Bytes that are kept of the log's beginning.
const HEAD: u64 = 8 << 20;
/// Bytes of one file of the log's end. The last two files are kept, which makes 16 MiB in all.
const TAIL: u64 = 4 << 20;
/// The largest report, in bytes.
const MAX_WRITE: usize = 1 << 20;
/// The most bytes of lines that one read returns.
const MAX_READ: usize = 64 << 10;
/// The most bytes of one line that a read returns.
const MAX_LINE: usize = 8 << 10;

/// The files of one job's log.
#[derive(Debug, Clone)]
pub(super) struct LogFiles {
    head: PathBuf,
    before: PathBuf,
    tail: PathBuf,
}

impl LogFiles {
    /// Returns the files of the job `id` in `dir`. Ids are ours and contain no path.
    pub(super) fn of(dir: &Path, id: &str) -> Self {
        let file = |part: &str| dir.join(format!("{id}.{part}"));
        Self { head: file("log"), before: file("tail-1"), tail: file("tail-2") }
    }

    /// Reads `lines` lines of the log and of the rest of `result`, from `offset`, which counts from the end if
    /// negative. For a stored result it returns only the message about it, because the log has its text. Stops before
    /// the first line that does not fit, so that reading on misses none.
    pub(super) fn read(&self, result: &str, offset: i64, lines: usize) -> io::Result<JobLogSlice> {
        let cut = self.before.exists();
        let note = "[toolwright: what stood here was not kept]";
        let mut end = Vec::new();
        let written = self.each_line(&mut |line, _| {
            end.extend_from_slice(line.as_bytes());
            let excess = end.len().saturating_sub(result.len());
            if excess > MAX_READ {
                end.drain(..excess);
            }
        })?;
        let more = if written == 0 { result } else { unreported(&end, without_preview(result)) };
        let total = written + usize::from(cut) + more.lines().count();
        let first = match usize::try_from(offset) {
            Ok(offset) => offset.min(total),
            Err(_) => total.saturating_sub(usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX)),
        };
        let mut text = String::new();
        let (mut number, mut full) = (0, false);
        let mut take = |line: &str| {
            if number >= first && number - first < lines && !full {
                let line = shortened(line);
                full = text.len() + line.len() >= MAX_READ;
                if !full {
                    text.push_str(&line);
                    text.push('\n');
                }
            }
            number += 1;
        };
        let mut in_head = true;
        self.each_line(&mut |line, head| {
            if cut && in_head && !head {
                take(note);
            }
            in_head = head;
            take(line);
        })?;
        more.lines().for_each(take);
        Ok(JobLogSlice { text, first, total })
    }

    /// Calls `tell` for each line, with whether it is from the beginning. Returns the number of lines.
    fn each_line(&self, on_line: &mut dyn FnMut(&str, bool)) -> io::Result<usize> {
        let mut count = 0;
        for path in [&self.head, &self.before, &self.tail] {
            let file = match File::open(path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for line in BufReader::new(file).split(b'\n') {
                on_line(&String::from_utf8_lossy(&line?), *path == self.head);
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Writes one job's log: the beginning and the end, in bounded files. Written at once, so that a crash loses nothing.
#[derive(Debug)]
pub(super) struct JobLog {
    files: LogFiles,
    open: Mutex<Option<(File, u64, Part)>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Head,
    Tail,
}

impl JobLog {
    /// Creates a log whose file is created with the first line.
    pub(super) fn new(files: LogFiles) -> Self {
        Self { files, open: Mutex::new(None) }
    }

    pub(super) fn write(&self, text: &str) -> io::Result<()> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut file, mut size, mut part) = match open.take() {
            Some(open) => open,
            None => self.begin()?,
        };
        let limit = if part == Part::Head { HEAD } else { TAIL };
        if size >= limit {
            if part == Part::Tail {
                std::fs::rename(&self.files.tail, &self.files.before)?;
            }
            (file, size, part) = (append(&self.files.tail)?, 0, Part::Tail);
        }
        let text = head_and_tail(text, MAX_WRITE);
        // One write per line: lines of two writers never mix, and nothing is held back.
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let line = format!("{text}{end}");
        file.write_all(line.as_bytes())?;
        *open = Some((file, size + line.len() as u64, part));
        Ok(())
    }

    /// Continues the log of an earlier attempt.
    fn begin(&self) -> io::Result<(File, u64, Part)> {
        let size = |path: &Path| path.metadata().map(|meta| meta.len()).ok();
        let (path, part) = if size(&self.files.tail).is_some() {
            (&self.files.tail, Part::Tail)
        } else {
            (&self.files.head, Part::Head)
        };
        if let Some(dir) = path.parent() {
            crate::private_dir(dir)?;
        }
        Ok((append(path)?, size(path).unwrap_or(0), part))
    }
}

impl PartialSink for JobLog {
    fn send(&self, partial: Partial) {
        let text = match partial {
            Partial::Text(text) => text,
            Partial::Progress { message: Some(message), .. } => message,
            Partial::Progress { progress, total: Some(total), message: None, .. } => format!("{progress} of {total}"),
            Partial::Progress { progress, total: None, message: None, .. } => progress.to_string(),
        };
        if let Err(error) = self.write(&text) {
            tracing::warn!("what a job wrote was lost ({}): {error}", self.files.head.display());
        }
    }

    fn accepts_unredacted(&self) -> bool {
        true
    }
}

/// Returns the part of a result that is missing from a log with this end. Line ends do not count, because each report
/// ends a line of the log, even within a line of the output. A line that is only partly in the log is returned whole.
fn unreported<'a>(log_end: &[u8], result: &'a str) -> &'a str {
    let sought: Vec<u8> = result.bytes().filter(|byte| *byte != b'\n').collect();
    let Some(last) = overlap(&sought, log_end).checked_sub(1) else { return result };
    let mut counted = result.bytes().enumerate().filter(|(_, byte)| *byte != b'\n');
    let end = counted.nth(last).map_or(result.len(), |(at, _)| at + 1);
    let (reported, rest) = result.split_at(result.floor_char_boundary(end));
    match rest.strip_prefix('\n') {
        Some(rest) => rest,
        None if rest.is_empty() => rest,
        None => &result[reported.rfind('\n').map_or(0, |at| at + 1)..],
    }
}

/// Returns the length of the longest prefix of `sought` that `text` ends with (Knuth, Morris, Pratt).
fn overlap(sought: &[u8], text: &[u8]) -> usize {
    // For each prefix length, the longest shorter prefix that it ends with.
    let mut shorter = vec![0; sought.len() + 1];
    let longer = |shorter: &[usize], mut matched: usize, byte: u8| loop {
        match sought.get(matched) {
            Some(next) if *next == byte => break matched + 1,
            _ if matched == 0 => break 0,
            _ => matched = shorter[matched],
        }
    };
    for at in 1..sought.len() {
        shorter[at + 1] = longer(&shorter, shorter[at], sought[at]);
    }
    text.iter().fold(0, |matched, byte| longer(&shorter, matched, *byte))
}

/// Returns a line, without the end if it is too long.
fn shortened(line: &str) -> Cow<'_, str> {
    if line.len() <= MAX_LINE {
        return Cow::Borrowed(line);
    }
    let (beginning, cut) = line.split_at(line.floor_char_boundary(MAX_LINE));
    Cow::Owned(format!("{beginning} [toolwright: {} more bytes of this line]", cut.len()))
}

/// Removes logs in `dir`: those of jobs that are `gone`, and the oldest if all together exceed `max_bytes`. The logs of
/// the jobs in `live` stay.
pub(super) fn sweep(dir: &Path, gone: &HashSet<String>, live: &HashSet<String>, max_bytes: u64) {
    let mut files: Vec<(SystemTime, u64, PathBuf)> = Vec::new();
    for (job, path) in files_in(dir) {
        if gone.contains(&job) {
            let _ = std::fs::remove_file(&path);
        } else if let Ok(meta) = path.metadata() {
            // Logs of live jobs count as new and come last, so that they are never removed.
            let at = if live.contains(&job) { None } else { meta.modified().ok() };
            files.push((at.unwrap_or_else(SystemTime::now), meta.len(), path));
        }
    }
    let mut bytes: u64 = files.iter().map(|(_, size, _)| size).sum();
    files.sort();
    for (_, size, path) in files {
        let job = job_of(&path);
        if bytes <= max_bytes {
            break;
        }
        if !job.is_some_and(|job| live.contains(&job)) && std::fs::remove_file(&path).is_ok() {
            bytes -= size;
        }
    }
}

/// Returns the jobs with logs in `dir`.
pub(super) fn jobs_in(dir: &Path) -> Vec<String> {
    let jobs: HashSet<String> = files_in(dir).map(|(job, _)| job).collect();
    jobs.into_iter().collect()
}

fn files_in(dir: &Path) -> impl Iterator<Item = (String, PathBuf)> {
    // An unreadable folder counts as empty: it does not exist yet, or its files could not be removed.
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|file| file.path());
    files.filter_map(|path| Some((job_of(&path)?, path)))
}

fn job_of(path: &Path) -> Option<String> {
    let (job, part) = path.file_name()?.to_str()?.split_once('.')?;
    matches!(part, "log" | "tail-1" | "tail-2").then(|| job.to_owned())
}

fn append(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &LogFiles, more: &str, offset: i64, lines: usize) -> (String, usize, usize) {
        let read = files.read(more, offset, lines).expect("read");
        (read.text, read.first, read.total)
    }

    #[test]
    fn log_lines_are_read_from_either_end() {
        let dir = tempfile::tempdir().expect("dir");
        let files = LogFiles::of(dir.path(), "a_00000001");
        assert_eq!(read(&files, "done", 0, 9), ("done\n".into(), 0, 1));
        let log = JobLog::new(files.clone());
        for line in ["one", "two\n", "three"] {
            log.write(line).expect("written");
        }
        JobLog::new(files.clone()).write("four").expect("a later attempt goes on");
        assert_eq!(read(&files, "done", 1, 2), ("two\nthree\n".into(), 1, 5));
        assert_eq!(read(&files, "done", -2, 9), ("four\ndone\n".into(), 3, 5));
        assert_eq!(read(&files, "", 99, 9), (String::new(), 4, 4));
        assert_eq!(read(&files, "", i64::MIN, 1), ("one\n".into(), 0, 4));
    }

    #[test]
    fn a_result_repeats_nothing_of_its_log() {
        for (log, result, expect) in [
            ("", "a\nb", "a\nb"),
            ("abc", "a\nb\nc\n", ""),
            ("a", "a\nb\nc\n", "b\nc\n"),
            ("ab", "a\nb\nexit code 1", "exit code 1"),
            ("an earlier attempt", "an\nb", "an\nb"),
            ("aab", "a\nb", ""),
            ("abab", "a\nb\na\nc", "a\nc"),
            ("ababc", "a\nb\na\nb\nc\nd", "d"),
            // Reports that end within a line.
            ("abcd", "abcd\nef", "ef"),
            ("...", "... done", "... done"),
            ("oneDown", "one\nDownloaded", "Downloaded"),
            ("é", "éé\n", "éé\n"),
            ("a", "", ""),
        ] {
            assert_eq!(unreported(log.as_bytes(), result), expect, "{log:?} {result:?}");
        }
    }

    #[test]
    fn a_long_log_is_read_on_without_holes() {
        let dir = tempfile::tempdir().expect("dir");
        let files = LogFiles::of(dir.path(), "a_00000001");
        let log = JobLog::new(files.clone());
        let written: Vec<String> =
            (0..40).map(|n| format!("{n} {}", "x".repeat(if n % 2 == 0 { 7000 } else { 1 }))).collect();
        for line in &written {
            log.write(line).expect("written");
        }
        log.write(&"é".repeat(MAX_LINE)).expect("written");
        let mut all = Vec::new();
        while all.len() < 41 {
            let (text, first, total) = read(&files, "", i64::try_from(all.len()).expect("small"), 100);
            assert_eq!((first, total), (all.len(), 41));
            assert!(!text.is_empty() && text.len() <= MAX_READ);
            all.extend(text.lines().map(str::to_owned));
        }
        assert_eq!(all[..40], written);
        assert!(all[40].len() < MAX_LINE + 100 && all[40].ends_with("more bytes of this line]"), "{}", all[40]);
    }

    #[test]
    fn logs_are_deleted_with_jobs_or_quota() {
        let dir = tempfile::tempdir().expect("dir");
        for (n, name) in ["gone.log", "old.log", "old.tail-1", "new.log", "live.log", "else.txt"].iter().enumerate() {
            let path = dir.path().join(name);
            std::fs::write(&path, "x".repeat(10)).expect("written");
            let at = SystemTime::UNIX_EPOCH
                + std::time::Duration::from_secs(100 - u64::from(name.starts_with("live")) + n as u64);
            File::options().write(true).open(&path).expect("open").set_modified(at).expect("aged");
        }
        let set = |name: &str| HashSet::from([name.to_owned()]);
        sweep(dir.path(), &set("gone"), &set("live"), 20);
        let mut left: Vec<_> =
            std::fs::read_dir(dir.path()).expect("dir").map(|file| file.expect("file").file_name()).collect();
        left.sort();
        assert_eq!(left, ["else.txt", "live.log", "new.log"]);
    }

    #[test]
    fn a_flood_keeps_its_beginning_and_its_end() {
        let dir = tempfile::tempdir().expect("dir");
        let files = LogFiles::of(dir.path(), "a_00000001");
        let log = JobLog::new(files.clone());
        let line = "x".repeat(1 << 20);
        log.write("first").expect("written");
        for _ in 0..30 {
            log.write(&line).expect("written");
        }
        log.write("last").expect("written");
        let size: u64 = std::fs::read_dir(dir.path())
            .expect("dir")
            .map(|file| file.expect("file").metadata().expect("meta").len())
            .sum();
        assert!(size < HEAD + 2 * TAIL + (3 << 20), "{size}");
        assert_eq!(read(&files, "", 0, 1).0, "first\n");
        assert_eq!(read(&files, "", -1, 1).0, "last\n");
    }
}
