//! Notes on files that calls wrote. A call that reads a file with tainted values gets their taint. A trigger that a
//! file fires counts the hops of the run that wrote the file.
//!
//! The notes are values of the session log, named by the parts of the file's path. Taint notes have no data and a
//! mailbox for each principal, because runs, their agents and later runs share the files. Notes on writes of woken runs
//! share one mailbox.

use std::collections::{BTreeSet, HashSet};
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::session_log::{LogEntry, LogRow};
use super::values::{Method, SessionValues, WrittenValue, deciding, decoded_name, encoded_name, is_below, log_path};
use crate::identity::session::{Principal, SessionId};
use crate::identity::taint::Taint;
use crate::json::canonical::ContentHash;

/// Root path of the notes in their mailbox.
pub const FILES: &str = "files";
/// Most taint notes of one principal. From then on, a tainted write marks `/`: every file counts as tainted.
const MAX_NOTES: usize = 2_000;
/// The mailbox of the notes on writes of woken runs.
pub const WRITES: &str = "file-writes";
/// Assumed duration of a call that noted no end, in milliseconds.
const LONGEST_MS: u64 = 3_600_000;
/// Milliseconds by which a file's time may precede its write: file systems store it in steps.
const STEP_MS: u64 = 2_000;

/// Returns the mailbox of a principal's notes.
#[must_use]
pub fn files_mailbox(principal: &Principal) -> SessionId {
    SessionId::new(format!("{FILES}-{}", ContentHash::of_value(&json!(principal.id))))
}

/// The files that a call reads and writes, as its tool declares before it runs. Paths are absolute, with links
/// resolved.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FileUse {
    /// Files that its result may show. A folder includes all below it.
    pub reads: Vec<PathBuf>,
    /// Files whose whole content it replaces with its arguments.
    pub replaces: Vec<PathBuf>,
    /// Files that it changes in part.
    pub changes: Vec<PathBuf>,
    /// Its arguments are a program that works in this folder. The files it uses are unknown.
    pub program: Option<PathBuf>,
}

impl FileUse {
    /// Returns the files of a tool that reads one file or folder.
    #[must_use]
    pub fn reading(path: PathBuf) -> Self {
        Self { reads: vec![path], ..Self::default() }
    }

    /// Returns the files of a tool that writes a whole file.
    #[must_use]
    pub fn replacing(path: PathBuf) -> Self {
        Self { replaces: vec![path], ..Self::default() }
    }

    /// Returns the files of a tool that changes parts of files.
    #[must_use]
    pub fn changing(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        Self { changes: paths.into_iter().collect(), ..Self::default() }
    }

    /// Returns the files of a tool whose arguments are a program.
    #[must_use]
    pub fn program(folder: PathBuf) -> Self {
        Self { program: Some(folder), ..Self::default() }
    }

    /// Returns the paths that it may write.
    #[must_use]
    pub fn written(&self) -> BTreeSet<&Path> {
        self.replaces.iter().chain(&self.changes).chain(&self.program).map(PathBuf::as_path).collect()
    }

    /// Returns whether the notes must be read: to taint the result, if `is_kept`, or to update the notes on written
    /// files.
    #[must_use]
    pub fn needs_notes(&self, is_kept: bool, argument_taint: &Taint) -> bool {
        let may_mark = !argument_taint.is_empty() && !self.changes.is_empty();
        may_mark || !self.replaces.is_empty() || self.program.is_some() || (is_kept && !self.reads.is_empty())
    }
}

/// The effect of the notes on one call.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct FileTaint {
    /// The untrusted tools behind the content that it reads.
    pub read: Taint,
    /// Notes to write before the call has an effect.
    pub before: Vec<WrittenValue>,
    /// Notes to write once it has succeeded.
    pub after: Vec<WrittenValue>,
}

impl FileTaint {
    /// Whether the call reads no tainted content, and there are no notes to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The notes of a principal.
#[derive(Debug, Clone, Default)]
pub struct FileNotes(SessionValues);

impl FileNotes {
    /// Builds them from the output of [`SessionLog::values`](super::SessionLog::values).
    #[must_use]
    pub fn of(rows: Vec<LogRow>) -> Self {
        let mut notes = SessionValues::default();
        for row in rows {
            if let LogEntry::Value(written) = row.entry {
                notes.put(row.seq, written);
            }
        }
        Self(notes)
    }

    /// Returns the taint of a call's input files, and the notes it adds. `argument_taint` is the taint of its arguments.
    ///
    /// - Files it writes get the taint of its arguments before it runs, so that no interruption loses it.
    /// - A file that it replaces with untainted arguments is clean once it has succeeded.
    /// - A program reads everything below its folder, and the tainted files that its text names. Everything below its
    ///   folder may be its output, with the taint of its text and of the files, or their folders, that the text names.
    #[must_use]
    pub fn judge(&self, usage: &FileUse, arguments: &Value, argument_taint: &Taint) -> FileTaint {
        let (mut found, mut moved) = (FileTaint::default(), argument_taint.clone());
        let is_full = self.0.rows().len() >= MAX_NOTES;
        for path in usage.reads.iter().chain(&usage.program) {
            found.read.add(&self.taint(path));
        }
        if let Some(folder) = &usage.program {
            let named = self.named_in(arguments, folder);
            found.read.add(&named);
            moved.add(&named);
        }
        if !moved.is_empty() {
            let everything = PathBuf::from("/");
            let written = usage.written().into_iter();
            let places: BTreeSet<&Path> = written.map(|path| if is_full { &*everything } else { path }).collect();
            let marks = places.into_iter().filter(|path| !self.covers(path, &moved));
            found.before = marks.map(|path| mark(path, Method::Merge, &moved)).collect();
        } else if !is_full {
            let tainted = usage.replaces.iter().filter(|path| !self.taint(path).is_empty());
            found.after = tainted.map(|path| mark(path, Method::Set, &moved)).collect();
        }
        found
    }

    /// Returns the taint of a file, or of all files in a folder.
    #[must_use]
    pub fn taint(&self, path: &Path) -> Taint {
        self.0.taint(&note_path(path), None)
    }

    /// Returns whether notes at or above this path have this taint.
    fn covers(&self, path: &Path, taint: &Taint) -> bool {
        let (place, mut noted_taint) = (note_path(path), Taint::default());
        for one in deciding(self.0.rows().iter().map(|(_, one)| one), &place, None) {
            if is_below(&place, &one.path) {
                noted_taint.add(&one.taint);
            } else if one.method.replaces() {
                // Older notes do not apply to this file.
                break;
            }
        }
        let mut both = noted_taint.clone();
        both.add(taint);
        both == noted_taint
    }

    /// Returns the taint of the noted files that the arguments mention: by name or, below `folder`, by the name of a
    /// parent.
    fn named_in(&self, arguments: &Value, folder: &Path) -> Taint {
        let (mut named, folder) = (Taint::default(), note_path(folder));
        for (_, one) in self.0.rows().iter().filter(|(_, one)| !one.taint.is_empty()) {
            let inside = one.path.strip_prefix(&folder).and_then(|rest| rest.strip_prefix('.'));
            let names = inside.or_else(|| one.path.rsplit('.').next()).unwrap_or_default();
            if names.split('.').any(|name| holds(arguments, &decoded_name(name))) {
                named.add(&self.0.taint(&one.path, None));
            }
        }
        named
    }
}

/// A note that a call of a woken run may write a file, or any file in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteNote {
    /// Number of messages and file changes that led to the run.
    pub hops: u32,
    /// When the call began, in milliseconds since the epoch.
    pub since_ms: u64,
    /// When it ended; `None` before its end is noted.
    pub until_ms: Option<u64>,
}

impl WriteNote {
    /// Returns the value to write for a file.
    #[must_use]
    pub fn at(self, path: &Path) -> WrittenValue {
        WrittenValue::set(note_path(path), json!(self))
    }

    fn covers(&self, changed_ms: u64) -> bool {
        let until = self.until_ms.unwrap_or_else(|| self.since_ms.saturating_add(LONGEST_MS));
        (self.since_ms.saturating_sub(STEP_MS)..=until).contains(&changed_ms)
    }
}

/// The notes on writes of woken runs.
#[derive(Debug, Clone, Default)]
pub struct WriteNotes(Vec<(String, WriteNote)>);

impl WriteNotes {
    /// Builds them from the rows of [`WRITES`], newest first. A call's note on its end replaces that on its beginning.
    #[must_use]
    pub fn of(newest: Vec<LogRow>) -> Self {
        let mut seen_calls = HashSet::new();
        let notes = newest.into_iter().filter_map(|row| {
            let LogEntry::Value(WrittenValue { path, data, .. }) = row.entry else { return None };
            let call = (row.author.session, row.author.call, path.clone());
            Some((path, serde_json::from_value(data).ok().filter(|_| seen_calls.insert(call))?))
        });
        Self(notes.collect())
    }

    /// Returns the hops that led to a change of a file at this time; 0 if no woken run made it.
    #[must_use]
    pub fn hops(&self, path: &Path, changed_ms: u64) -> u32 {
        let place = note_path(path);
        let led = self.0.iter().filter(|(at, note)| is_below(&place, at) && note.covers(changed_ms));
        led.map(|(_, note)| note.hops).max().unwrap_or_default()
    }
}

/// Returns whether a text in these values has `name` as a word.
fn holds(value: &Value, name: &str) -> bool {
    let continues = |next: Option<char>| next.is_some_and(|next| next.is_alphanumeric() || "_-".contains(next));
    match value {
        Value::String(text) => text.match_indices(name).any(|(at, _)| {
            let (before, after) = (text[..at].chars().next_back(), text[at + name.len()..].chars().next());
            !continues(before) && before != Some('.') && !continues(after)
        }),
        Value::Array(items) => items.iter().any(|item| holds(item, name)),
        Value::Object(members) => members.values().any(|member| holds(member, name)),
        _ => false,
    }
}

fn mark(path: &Path, method: Method, taint: &Taint) -> WrittenValue {
    WrittenValue { method, taint: taint.clone(), ..WrittenValue::set(note_path(path), Value::Null) }
}

/// Returns the path of a file's note.
fn note_path(path: &Path) -> String {
    let names = path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    names.fold(FILES.to_owned(), |above, name| log_path(&above, &encoded_name(&name.as_os_str().to_string_lossy())))
}

#[cfg(test)]
mod tests {
    use super::super::session_log::Author;
    use super::*;
    use crate::identity::session::CallId;
    use crate::identity::tool_id::ToolId;

    fn web() -> Taint {
        Taint::of(&ToolId::parse("web:fetch@1.0.0").expect("id"))
    }

    /// Returns the notes after these calls: how each uses which path (`+`: with tainted arguments), and a program's
    /// text.
    fn after(calls: &[(&str, &str)]) -> FileNotes {
        let mut notes = FileNotes::default();
        for (how, path) in calls {
            let found = judge(&notes, how, path);
            found.before.into_iter().chain(found.after).for_each(|one| notes.0.push(one));
        }
        notes
    }

    fn judge(notes: &FileNotes, how: &str, path: &str) -> FileTaint {
        let (how, given) = how.strip_suffix('+').map_or((how, Taint::default()), |how| (how, web()));
        let at = PathBuf::from(path);
        let usage = match how {
            "replace" => FileUse::replacing(at),
            "change" => FileUse::changing([at]),
            "run" => FileUse::program("/w".into()),
            _ => FileUse::reading(at),
        };
        notes.judge(&usage, &json!({"args": [path]}), &given)
    }

    #[test]
    fn files_keep_the_taint_of_what_was_written() {
        let check = |calls: &[(&str, &str)], how: &str, path: &str, expect: bool| {
            let read = judge(&after(calls), how, path).read;
            assert_eq!(!read.is_empty(), expect, "{calls:?}: {how} {path}");
        };
        let page = ("replace+", "/w/a/page.md");
        check(&[page], "read", "/w/a/page.md", true);
        check(&[page], "read", "/w/a", true);
        check(&[page], "read", "/", true);
        check(&[page], "read", "/w/a/page", false);
        check(&[page], "read", "/w/b", false);
        check(&[page], "read", "/w/a/page/md", false);
        check(&[("replace", "/w/a/page.md")], "read", "/w/a/page.md", false);
        check(&[page, ("replace", "/w/a/page.md")], "read", "/w/a/page.md", false);
        check(&[page, ("replace", "/w/a/page.md")], "read", "/w", false);
        check(&[page, ("change", "/w/a/page.md")], "read", "/w/a/page.md", true);
        check(&[("change+", "/w/x")], "read", "/w/x", true);
        check(&[("change+", "/w/x"), ("replace", "/w/x"), ("replace+", "/w/x")], "read", "/w/x", true);
        // A program reads files below its folder, and those it names.
        check(&[page], "run", "cat *", true);
        check(&[("replace+", "/v/page.md")], "run", "cat *", false);
        check(&[("replace+", "/v/page.md")], "run", "cat ../v/page.md", true);
        // It may write any file there.
        check(&[("run+", "tee x")], "read", "/w/a", true);
        check(&[("run+", "tee x")], "read", "/v", false);
        check(&[("run+", "tee x"), ("replace", "/w/x")], "read", "/w/x", false);
        check(&[("run+", "tee x"), ("replace", "/w/x"), ("run+", "tee x")], "read", "/w/x", true);
        check(&[("run+", "tee x"), ("replace", "/w/x"), ("replace+", "/w/x")], "read", "/w/x", true);
        check(&[page, ("run", "make")], "read", "/w/x", false);
        check(&[page, ("run", "cat my-page.md")], "read", "/w/x", false);
        check(&[page, ("run", "cp a/page.md x")], "read", "/w/x", true);
        check(&[page, ("run", "cat a/* > x")], "read", "/w/x", true);
    }

    #[test]
    fn notes_are_written_only_if_they_add_information() {
        let check = |calls: &[(&str, &str)], how: &str, path: &str, expect: (usize, usize)| {
            let found = judge(&after(calls), how, path);
            assert_eq!((found.before.len(), found.after.len()), expect, "{calls:?}: {how} {path}");
        };
        check(&[], "replace", "/w/x", (0, 0));
        check(&[], "change", "/w/x", (0, 0));
        check(&[], "run", "make", (0, 0));
        check(&[], "replace+", "/w/x", (1, 0));
        check(&[("replace+", "/w/x")], "replace+", "/w/x", (0, 0));
        check(&[("replace+", "/w/x")], "change+", "/w/x", (0, 0));
        check(&[("run+", "make")], "replace+", "/w/x", (0, 0));
        check(&[("run+", "make"), ("replace", "/w/x")], "run+", "make", (1, 0));
        check(&[("run+", "make"), ("replace", "/w/x"), ("run+", "make")], "run+", "make", (0, 0));
        check(&[("replace+", "/w/x")], "replace", "/w/x", (0, 1));
        check(&[("replace+", "/w/x"), ("replace", "/w/x")], "replace", "/w/x", (0, 0));
    }

    #[test]
    fn changes_follow_from_the_calls_that_made_them() {
        let row = |call: &str, path: &str, hops, since_ms, until_ms| LogRow {
            seq: 1,
            session: SessionId::new(WRITES),
            principal: "owner".into(),
            at_ms: 0,
            author: Author { session: Some(SessionId::new("s")), call: Some(CallId::new(call)), ..Author::default() },
            entry: LogEntry::Value(WriteNote { hops, since_ms, until_ms }.at(Path::new(path))),
        };
        let notes = WriteNotes::of(vec![
            row("b", "/w", 7, 40_000, None),
            row("a", "/w/x", 3, 10_000, Some(20_000)),
            row("a", "/w/x", 3, 10_000, None),
        ]);
        for (path, at, expect) in [
            ("/w/x", 15_000, 3),
            ("/w/x", 8_500, 3),
            // No woken run changed it before or after.
            ("/w/x", 7_000, 0),
            ("/w/x", 21_000, 0),
            ("/w/y", 15_000, 0),
            ("/w/y", 50_000, 7),
            ("/w/x", 50_000, 7),
            ("/v", 50_000, 0),
            ("/w/y", 40_001 + LONGEST_MS, 0),
        ] {
            assert_eq!(notes.hops(Path::new(path), at), expect, "{path} at {at}");
        }
    }

    #[test]
    fn notes_are_bounded() {
        let mut notes = FileNotes::default();
        for n in 0..MAX_NOTES + 10 {
            judge(&notes, "replace+", &format!("/w/{n}")).before.into_iter().for_each(|one| notes.0.push(one));
        }
        assert!(notes.0.rows().len() <= MAX_NOTES + 1, "{}", notes.0.rows().len());
        assert!(!notes.taint(Path::new("/elsewhere")).is_empty());
    }
}
