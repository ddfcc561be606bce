//! A project of its own for each test: a folder with files, and variables.

use std::path::{Path, PathBuf};

use toolwright::config::{Config, LoadOptions, load};
use toolwright::trust::{Approval, Content, TrustStore};

/// A temporary project. Its own home, so that nothing of the machine's shows.
pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary folder");
        std::fs::create_dir_all(dir.path().join("home")).expect("home");
        std::fs::create_dir_all(dir.path().join("project")).expect("project");
        Self { dir, variables: Vec::new() }
    }

    pub(crate) fn with(text: &str) -> Self {
        let fixture = Self::new();
        fixture.write("project/toolwright.yaml", text);
        fixture
    }

    pub(crate) fn set(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.dir.path().join(relative)
    }

    pub(crate) fn project(&self) -> PathBuf {
        self.path("project")
    }

    /// Writes a file as the owner of the project: project configurations of its folder, and of those above it, are approved
    /// as they then are.
    pub(crate) fn write(&self, relative: &str, text: &str) -> PathBuf {
        let path = self.write_as_stranger(relative, text);
        self.approve();
        path
    }

    /// Writes a file, and approves nothing.
    pub(crate) fn write_as_stranger(&self, relative: &str, text: &str) -> PathBuf {
        let path = self.path(relative);
        std::fs::create_dir_all(path.parent().expect("parent")).expect("folder");
        std::fs::write(&path, text).expect("file");
        path
    }

    /// Where state is kept unless a test says otherwise.
    pub(crate) fn state_dir(&self) -> PathBuf {
        self.path("home/.local/state/toolwright")
    }

    /// Approves every project configuration of the fixture.
    pub(crate) fn approve(&self) {
        self.approve_in(&self.state_dir());
    }

    /// The same, for another state directory.
    pub(crate) fn approve_in(&self, state_dir: &Path) {
        let store = TrustStore::in_state(state_dir);
        let folders = std::fs::read_dir(self.dir.path()).expect("fixture").flatten().map(|entry| entry.path());
        let files = folders.flat_map(|folder| {
            ["toolwright.yaml", ".mcp.json", "agents", ".claude/agents", "skills", ".claude/skills"]
                .map(|name| folder.join(name))
        });
        for file in files {
            if let Ok(Some(content)) = Content::read(&file) {
                store.approve(&file, &content, Approval::ByPerson).expect("approved");
            }
        }
    }

    pub(crate) fn read(&self, relative: &str) -> String {
        std::fs::read_to_string(self.path(relative)).expect("file")
    }

    pub(crate) fn variable(&self, name: &str) -> Option<String> {
        if name == "HOME" {
            return Some(self.path("home").to_string_lossy().into_owned());
        }
        self.variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }

    pub(crate) fn load(&self) -> Config {
        self.load_with(|_| {})
    }

    pub(crate) fn load_with(&self, change: impl FnOnce(&mut LoadOptions)) -> Config {
        let mut options = LoadOptions { cwd: self.project(), ..LoadOptions::default() };
        change(&mut options);
        load(&options, &|name| self.variable(name))
    }
}

/// A data file beside these tests.
pub(crate) fn data_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fixtures").join(name)
}

/// Waits until something is so; the bound is generous, the wait is not.
pub(crate) fn until(what: &str, mut test: impl FnMut() -> bool) {
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !test() {
        assert!(std::time::Instant::now() < end, "not within 20 s: {what}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Sends a signal to a process of ours.
pub(crate) fn signal(process: u32, name: &str) {
    let sent =
        std::process::Command::new("kill").args([format!("-{name}"), process.to_string()]).status().expect("kill");
    assert!(sent.success());
}
