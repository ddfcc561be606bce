//! What stays of a run: the compat file and the page.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use toolwright::config::edit::write_atomically;
use toolwright::config::read_compat;
use toolwright::core::duration;
use toolwright_eval::CompatFile;
use toolwright_eval::Row;
use toolwright_eval::report::{self, Report};

use crate::exit::Failure;
use crate::terminal::screen::{DIM, redacted, say, styled};

/// How long others are waited for that write the compat file: each needs a moment.
const LOCK_WAIT: Duration = Duration::from_secs(10);
/// How often it is looked whether they are done.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// What a compat file says, as a report has it.
pub(super) fn rows(file: &CompatFile) -> Vec<Row> {
    let mut rows = Vec::new();
    for (tool, found) in &file.tools {
        let unscored = found.recommended.iter().filter(|model| !found.scores.contains_key(*model));
        for model in found.scores.keys().chain(unscored) {
            let measured = found.measured.get(model);
            let calls = measured.map_or(0, |measured| usize::try_from(measured.calls).unwrap_or(usize::MAX));
            rows.push(Row {
                score: found.scores.get(model).map(|score| score * 100.0),
                cost: measured.and_then(|measured| measured.cost_usd),
                latency_ms: measured.map(|measured| measured.latency_ms),
                calls,
                done: calls,
                recommended: found.recommended.contains(model),
                contract: measured.map(|measured| measured.contract.clone()).unwrap_or_default(),
                ..Row::new(tool.clone(), model.clone())
            });
        }
    }
    let key = |row: &Row| row.score.unwrap_or(-1.0);
    rows.sort_by(|a, b| a.tool.cmp(&b.tool).then(key(b).total_cmp(&key(a))).then_with(|| a.model.cmp(&b.model)));
    rows
}

/// The time, as reports show it.
pub(super) fn now() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    duration::iso(u64::try_from(now.as_millis()).unwrap_or_default())
}

/// The folder of measurements in the state directory, which nobody else reads.
pub(super) fn folder(state_dir: &Path) -> Result<PathBuf, Failure> {
    let folder = state_dir.join("bench");
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(&folder).map_err(|error| Failure::failed(format!("{}: {error}", folder.display())))?;
    Ok(folder)
}

/// Takes what was measured wholly into the compat file. Processes that do the same to the file wait for each other, ten
/// seconds at most.
pub(super) fn compat(file: &Path, rows: &[Row]) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("{} is not written: {error}", file.display()));
    let lock = lock(file, LOCK_WAIT).map_err(|error| failed(&error))?;
    let mut compat =
        if file.exists() { read_compat(file).map_err(|error| failed(&error))? } else { CompatFile::default() };
    let taken = compat.take(rows);
    if taken == 0 {
        return Ok(());
    }
    write_atomically(file, &compat.write()).map_err(|error| failed(&error))?;
    drop(lock);
    say(styled(DIM, format_args!("{}: recommendations from {taken} measurements", file.display())));
    Ok(())
}

/// Holds a file beside `file`, which itself is replaced. Whoever comes to it by a link holds the same. Blocks the thread
/// while others hold it.
fn lock(file: &Path, patience: Duration) -> std::io::Result<File> {
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut name = OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(".lock");
    let lock = OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(name))?;
    let began = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::Error(error)) => return Err(error),
            Err(TryLockError::WouldBlock) if began.elapsed() >= patience => {
                return Err(std::io::Error::other(format!(
                    "another process has been writing it for {} seconds; the measurements are kept: the same command \
                     writes it once that one is done",
                    patience.as_secs()
                )));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_POLL),
        }
    }
}

/// The report without secrets, before anything of it is cut or written in another way.
pub(super) fn without_secrets(report: Report) -> Report {
    let clean = |text: &mut String| *text = redacted(text).into_owned();
    let Report { mut rows, mut partial, mut judge, at } = report;
    partial.iter_mut().chain(&mut judge).for_each(clean);
    for row in &mut rows {
        [&mut row.tool, &mut row.model].into_iter().chain(&mut row.missing).for_each(clean);
        for case in &mut row.cases {
            std::iter::once(&mut case.case).chain(&mut case.note).for_each(clean);
        }
    }
    Report { rows, partial, judge, at }
}

/// Writes the page.
pub(super) fn html(file: &Path, report: &Report) -> Result<(), Failure> {
    let page = report::html(report);
    write_atomically(file, &redacted(&page))
        .map_err(|error| Failure::failed(format!("{} is not written: {error}", file.display())))?;
    say(styled(DIM, format_args!("the page is {}", file.display())));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_the_file_is_waited_for_and_not_for_ever() {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("compat.json");
        let held = lock(&file, Duration::ZERO).expect("free");
        let failure = lock(&file, Duration::from_millis(50)).expect_err("held").to_string();
        assert!(
            failure.contains("another process has been writing it") && failure.contains("the same command"),
            "{failure}"
        );
        let waits = std::thread::spawn(move || lock(&file, Duration::from_secs(60)).map(drop));
        std::thread::sleep(LOCK_POLL * 3);
        drop(held);
        waits.join().expect("ends").expect("it is its turn");
    }

    #[test]
    fn all_that_is_found_at_once_is_in_the_file() {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("compat.json");
        let row = |model: &str| Row {
            score: Some(95.0),
            calls: 1,
            done: 1,
            threshold: Some(90),
            ..Row::new("llm:score@1.0.0".to_owned(), model.to_owned())
        };
        std::thread::scope(|scope| {
            for writer in 0..8 {
                let (file, row) = (&file, &row);
                scope.spawn(move || {
                    for run in 0..5 {
                        compat(file, &[row(&format!("p/{writer}-{run}"))]).expect("written");
                    }
                });
            }
        });
        let found = read_compat(&file).expect("read");
        assert_eq!(found.tools["llm:score@1.0.0"].scores.len(), 40, "nothing is lost");
        let left: Vec<_> =
            std::fs::read_dir(folder.path()).expect("folder").flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left.len(), 2, "the file and its lock: {left:?}");
    }
}
