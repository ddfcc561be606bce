//! Files that decide what runs, by name.

use std::path::{Path, PathBuf};

/// Files and folders that are protected at any depth below the root, folders with all that is in them.
/// Case does not matter: on some disks it makes no difference.
pub(crate) const NAMES: &[&str] = &[
    // Our own configuration: starts servers and holds the policy, and is taken up as soon as it changes.
    "toolwright.yaml",
    "toolwright.yml",
    "toolwright.json",
    ".mcp.json",
    // Version control: hooks, and settings that name programs. `.git` may also be a file that points on.
    ".git",
    ".hg",
    ".husky",
    ".pre-commit-config.yaml",
    // Run when a shell enters the folder.
    ".envrc",
    // Editors and agents: tasks, hooks and servers that start when the folder is opened.
    ".vscode",
    ".idea",
    ".zed",
    ".devcontainer",
    ".claude",
    ".cursor",
    ".codex",
    ".gemini",
    // Where the root is a home folder: what a login, a shell or a connection runs.
    ".config",
    ".ssh",
    ".gitconfig",
    ".profile",
    ".bashrc",
    ".bash_profile",
    ".bash_login",
    ".bash_logout",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlogin",
];

/// Those of [`NAMES`] that are in the folder `root` itself, and those of `listed`, absolute, that are
/// anywhere below it, as far as they exist.
pub(crate) fn existing_in(root: &Path, listed: &[PathBuf]) -> Vec<PathBuf> {
    let named = NAMES.iter().map(|name| root.join(name));
    let listed = listed.iter().filter(|path| path.starts_with(root)).cloned();
    let mut all: Vec<PathBuf> = named.chain(listed).filter(|path| path.exists()).collect();
    all.sort_unstable();
    all.dedup();
    all
}
