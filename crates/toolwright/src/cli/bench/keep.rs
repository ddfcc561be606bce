//! What stays of a run: the compat file and the page.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use toolwright::config::edit::write_atomically;
use toolwright::config::read_compat;
use toolwright::core::bench::Row;
use toolwright::core::bench::report::{self, Report};
use toolwright::core::moment;
use toolwright::core::select::CompatFile;

use crate::cli::exit::Failure;
use crate::cli::screen::{DIM, redacted, say, styled};

/// What a compat file says, as a report has it.
pub(super) fn rows(file: &CompatFile) -> Vec<Row> {
    let mut rows = Vec::new();
    for (tool, found) in &file.tools {
        let unscored = found.recommended.iter().filter(|model| !found.scores.contains_key(*model));
        for model in found.scores.keys().chain(unscored) {
            let measured = found.measured.get(model);
            let calls = measured.map_or(0, |measured| usize::try_from(measured.calls).unwrap_or(usize::MAX));
            rows.push(Row {
                tool: tool.clone(),
                model: model.clone(),
                score: found.scores.get(model).map(|score| score * 100.0),
                cost: measured.and_then(|measured| measured.cost_usd),
                latency_ms: measured.map(|measured| measured.latency_ms),
                calls,
                done: calls,
                failed: 0,
                sd: None,
                min: None,
                p50_ms: None,
                p95_ms: None,
                input_tokens: 0,
                output_tokens: 0,
                judge_cost: None,
                threshold: None,
                recommended: found.recommended.contains(model),
                contract: measured.map(|measured| measured.contract.clone()).unwrap_or_default(),
                missing: None,
                cases: Vec::new(),
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
    moment::iso(u64::try_from(now.as_millis()).unwrap_or_default())
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

/// Takes what was measured wholly into the compat file. Processes that do the same to the file wait for each other.
pub(super) fn compat(file: &Path, rows: &[Row]) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("{} is not written: {error}", file.display()));
    let lock = lock(file).map_err(|error| failed(&error))?;
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

/// Holds a file beside `file`, which itself is replaced. Whoever comes to it by a link holds the same.
fn lock(file: &Path) -> std::io::Result<File> {
    let file = std::fs::canonicalize(file).unwrap_or_else(|_| file.to_owned());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    let mut name = OsString::from(".");
    name.push(file.file_name().unwrap_or_default());
    name.push(".lock");
    let lock = OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(name))?;
    lock.lock()?;
    Ok(lock)
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
