//! Decides which entries are excluded by `.gitignore`, `.ignore` and `.git/info/exclude`.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::Path;
use std::rc::Rc;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::builtin::fs::dir::Dir;

/// The most bytes of one rules file that are read.
const MAX_BYTES: u64 = 1024 * 1024;

/// The rules of a folder, and of those above it.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// In order of precedence: `.ignore`, `.gitignore`, `.git/info/exclude`.
    files: [Option<Gitignore>; 3],
    above: Option<Rc<Self>>,
}

/// The rules' decision about an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ruling {
    None,
    Ignored,
    /// Included, even if it is hidden.
    Wanted,
}

impl Rules {
    /// Reads the rules of the folders above `path`, which is absolute and without links.
    pub(super) fn above(path: &Path) -> Rc<Self> {
        let mut rules = Rc::new(Self::default());
        let Ok(top) = Dir::root(Path::new("/")) else { return rules };
        let mut folders: Vec<&Path> = path.ancestors().skip(1).collect();
        while let Some(folder) = folders.pop() {
            let opened = folder.strip_prefix("/").map(|below| top.descend(below));
            if let Ok(Ok(opened)) = opened {
                rules = Self::of(&opened, folder, &rules);
            }
        }
        rules
    }

    /// Reads the rules of a folder, in addition to those above it.
    pub(super) fn of(folder: &Dir, path: &Path, above: &Rc<Self>) -> Rc<Self> {
        let exclude = || read(&folder.descend(Path::new(".git/info")).ok()?, "exclude", path);
        let files = [read(folder, ".ignore", path), read(folder, ".gitignore", path), exclude()];
        if files.iter().all(Option::is_none) {
            return Rc::clone(above);
        }
        Rc::new(Self { files, above: Some(Rc::clone(above)) })
    }

    /// Returns the decision about an entry below the folder.
    pub(super) fn ruling(&self, path: &Path, is_folder: bool) -> Ruling {
        for kind in 0..self.files.len() {
            let mut level = Some(self);
            while let Some(rules) = level {
                match rules.files[kind].as_ref().map_or(Match::None, |file| file.matched(path, is_folder)) {
                    Match::None => level = rules.above.as_deref(),
                    Match::Ignore(_) => return Ruling::Ignored,
                    Match::Whitelist(_) => return Ruling::Wanted,
                }
            }
        }
        Ruling::None
    }
}

/// Reads one rules file. Like git, does not follow a link.
fn read(folder: &Dir, name: &str, path: &Path) -> Option<Gitignore> {
    let (file, _) = folder.file(OsStr::new(name)).ok()?;
    let mut text = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut builder = GitignoreBuilder::new(path);
    for line in text.strip_prefix('\u{feff}').unwrap_or(&text).lines() {
        // An invalid line excludes nothing.
        let _ = builder.add_line(None, line);
    }
    builder.build().ok()
}
