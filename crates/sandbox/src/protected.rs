//! Lists the files that decide what runs, by name.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{DirEntry, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use toolwright_core::pattern::glob_match;

/// Toolwright's own configuration: it starts servers and holds the policy.
const OWN: &[&str] = &["toolwright.yaml", "toolwright.yml", "toolwright.json", ".mcp.json"];

/// Files and folders that are protected at any depth below the root, folders with all that is in them: what programs read and
/// act on by themselves when they start, or when somebody enters or opens the folder. What a person runs on purpose, like a
/// build script, is not among them. `*` stands for any run of characters; case does not matter: on some disks it makes
/// no difference.
const NAMES: &[&str] = &[
    // Version control: hooks, filters, and settings that name programs. `.git` may also be a file that points on.
    ".git",
    ".gitattributes",
    ".gitmodules",
    ".gitconfig",
    ".githooks",
    ".hg",
    ".hgrc",
    ".jj",
    ".husky",
    ".lefthook*",
    "lefthook.y*ml",
    ".pre-commit-config.yaml",
    // Continuous integration: runs with the project's secrets.
    ".github/workflows",
    ".github/actions",
    ".gitea/workflows",
    ".forgejo/workflows",
    ".gitlab-ci.yml",
    ".circleci",
    ".buildkite",
    ".travis.yml",
    ".drone.yml",
    ".cirrus.yml",
    ".woodpecker*",
    "appveyor.yml",
    ".appveyor.yml",
    "azure-pipelines.yml",
    "bitbucket-pipelines.yml",
    "jenkinsfile",
    // Run or read when a shell enters the folder, or when a program of it starts.
    ".envrc",
    ".env",
    ".env.local",
    ".env.development",
    ".env.production",
    ".tool-versions",
    "rust-toolchain",
    "rust-toolchain.toml",
    ".rvmrc",
    "mise.toml",
    "mise.*.toml",
    ".mise.toml",
    ".mise",
    // Editors: tasks, settings that name programs, and code that runs when the folder is opened.
    ".vscode",
    "*.code-workspace",
    ".idea",
    ".zed",
    ".fleet",
    ".devcontainer",
    ".devcontainer.json",
    ".vim",
    ".vimrc",
    ".gvimrc",
    ".lvimrc",
    ".exrc",
    ".nvim",
    ".nvimrc",
    ".nvim.lua",
    ".emacs",
    ".emacs.d",
    ".dir-locals.el",
    // Debuggers, interpreters and terminals that read the current folder when they start.
    ".gdbinit",
    ".screenrc",
    ".clangd",
    ".lldbinit",
    ".pdbrc",
    ".irbrc",
    ".pryrc",
    ".rprofile",
    ".tmux.conf",
    // Agents: what they are told, the hooks that they run, and the MCP servers that they start.
    "agents.md",
    "agents.override.md",
    "claude.md",
    "claude.local.md",
    "gemini.md",
    "qwen.md",
    ".agents",
    ".claude",
    ".claude.json",
    "claude_desktop_config.json",
    ".codex",
    ".gemini",
    ".qwen",
    ".cursor",
    ".cursorrules",
    ".windsurf*",
    ".codeium",
    ".cline*",
    ".roo*",
    ".kilocode*",
    ".continue*",
    ".aider*",
    ".goose*",
    ".opencode",
    "opencode.json*",
    ".crush.json",
    "crush.json",
    ".amazonq",
    ".kiro",
    ".junie",
    ".trae",
    ".copilot",
    ".github/copilot-instructions.md",
    ".github/instructions",
    ".github/prompts",
    ".github/agents",
    "mcp.json",
    "mcp_config.json",
    "mcp_settings.json",
    "cline_mcp_settings.json",
    // Package tools: registries, credentials, and settings that name programs or load code.
    ".cargo",
    ".npmrc",
    ".yarnrc*",
    ".yarn",
    ".pnp.*",
    ".pnpmfile.*",
    "bunfig.toml",
    ".bunfig.toml",
    ".bazelrc",
    "pyvenv.cfg",
    ".pypirc",
    "pip.conf",
    "pip.ini",
    ".pip",
    ".condarc",
    "sitecustomize.py",
    "usercustomize.py",
    ".gemrc",
    ".bundle",
    ".mvn",
    ".m2",
    ".gradle",
    "gradle/wrapper",
    "nuget.config",
    ".terraformrc",
    // Where the root is a home folder: what a login, a shell or a connection runs, and what runs in its place.
    ".config",
    ".local/bin",
    ".local/share/applications",
    ".local/share/systemd",
    ".ssh",
    ".gnupg",
    ".netrc",
    ".aws",
    ".kube",
    ".docker",
    ".profile",
    ".bashrc",
    ".bash_*",
    ".zshrc",
    ".zshenv",
    ".zprofile",
    ".zlog*",
    ".kshrc",
    ".cshrc",
    ".tcshrc",
    ".inputrc",
    ".direnvrc",
    ".pam_environment",
    ".xprofile",
    ".xinitrc",
    ".xsession*",
    "library/launchagents",
];

/// Whether a part of `path` is named like Toolwright's own configuration.
pub fn is_own(path: &Path) -> bool {
    has(path, OWN)
}

/// Whether a part of `path` is named like something that is protected.
pub fn is_protected(path: &Path) -> bool {
    has(path, OWN) || has(path, NAMES)
}

fn has(path: &Path, names: &[&str]) -> bool {
    let parts: Vec<&OsStr> = path.iter().collect();
    (0..parts.len()).any(|from| names.iter().any(|name| begins(&parts[from..], name)))
}

/// Whether the parts begin with those of `name`.
fn begins(parts: &[&OsStr], name: &str) -> bool {
    let mut parts = parts.iter();
    name.split('/').all(|wanted| parts.next().is_some_and(|part| fits(wanted, part)))
}

fn fits(wanted: &str, part: &OsStr) -> bool {
    glob_match(wanted, &part.to_string_lossy())
}

/// The folders between `root` and each of `paths`, those above first: who can rename them can put others in their place.
#[cfg(target_os = "linux")]
pub fn folders_between(root: &Path, paths: &[PathBuf]) -> Vec<PathBuf> {
    let above = |path: &PathBuf| {
        let above = path.ancestors().skip(1).take_while(|folder| *folder != root && folder.starts_with(root));
        above.map(Path::to_owned).collect::<Vec<_>>()
    };
    let mut all: Vec<PathBuf> = paths.iter().flat_map(above).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// What is protected and exists in the folder `root`: by the names above, and those of `listed`, absolute, that are anywhere
/// below it.
pub fn existing_in(root: &Path, listed: &[PathBuf]) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = listed.iter().filter(|path| path.starts_with(root) && path.exists()).cloned().collect();
    for name in OWN.iter().chain(NAMES) {
        name_in(root, name, &mut all);
    }
    all.sort_unstable();
    all.dedup();
    all
}

fn name_in(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
    let (first, rest) = name.split_once('/').map_or((name, None), |(first, rest)| (first, Some(rest)));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if fits(first, &entry.file_name()) {
            match rest {
                Some(rest) => name_in(&entry.path(), rest, found),
                None => found.push(entry.path()),
            }
        }
    }
}

/// Entries that are looked through for what was written.
const MAX_LOOKED: usize = 10_000;
/// Folders of packages, which come with hundreds of such names that nobody opens.
const NOT_LOOKED: [&str; 2] = ["node_modules", "site-packages"];
/// How far the time of a file system is behind the clock.
const COARSE: Duration = Duration::from_millis(20);

/// What [`written_since`] found.
#[derive(Debug, Default)]
pub struct Written {
    /// Relative to the root. Of a protected folder that is not new, the first file in it.
    pub paths: Vec<PathBuf>,
    /// Whether the search ended before it had looked at everything.
    pub is_cut: bool,
}

/// What is protected by name below `root`, at any depth, and was made or changed since then. Looks through a bounded number of
/// entries, the nearest first.
pub fn written_since(root: &Path, since: SystemTime) -> Written {
    let since = since.checked_sub(COARSE).unwrap_or(since);
    let is_new =
        |entry: &DirEntry| entry.metadata().ok().and_then(|metadata| changed(&metadata)).is_some_and(|at| at >= since);
    let mut written = Written::default();
    // Each folder with the protected one that it belongs to, if any.
    let mut folders: VecDeque<(PathBuf, Option<PathBuf>)> = VecDeque::from([(PathBuf::new(), None)]);
    let (mut reported, mut looked) = (HashSet::new(), 0);
    while let Some((folder, within)) = folders.pop_front() {
        if within.as_ref().is_some_and(|within| reported.contains(within)) {
            continue;
        }
        for entry in std::fs::read_dir(root.join(&folder)).into_iter().flatten().flatten() {
            looked += 1;
            if looked > MAX_LOOKED {
                written.is_cut = true;
                return written;
            }
            let path = folder.join(entry.file_name());
            let within = within.clone().or_else(|| is_protected(&path).then(|| path.clone()));
            if let Some(within) = within.as_ref().filter(|_| is_new(&entry)) {
                if reported.insert(within.clone()) {
                    written.paths.push(path);
                }
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir())
                && !NOT_LOOKED.iter().any(|name| entry.file_name() == *name)
            {
                folders.push_back((path, within));
            }
        }
    }
    written
}

/// When it changed last, by the time that no program can set.
#[cfg(unix)]
fn changed(metadata: &Metadata) -> Option<SystemTime> {
    use std::os::unix::fs::MetadataExt as _;
    let seconds = Duration::from_secs(u64::try_from(metadata.ctime()).ok()?);
    let rest = Duration::from_nanos(u64::try_from(metadata.ctime_nsec()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(seconds + rest)
}

#[cfg(not(unix))]
fn changed(metadata: &Metadata) -> Option<SystemTime> {
    metadata.modified().ok()
}

/// The files of Toolwright's own configuration that are read in `root`, and those of `listed` below it, whether they exist
/// or not.
#[cfg(target_os = "linux")]
pub fn configuration_in(root: &Path, listed: &[PathBuf]) -> Vec<PathBuf> {
    let named = ["toolwright.yaml", ".mcp.json"].map(|name| root.join(name));
    let listed = listed.iter().filter(|path| path.starts_with(root)).cloned();
    let mut all: Vec<PathBuf> = named.into_iter().chain(listed).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(paths: &[&str], own: bool, protected: bool) {
        for path in paths {
            let path = Path::new(path);
            assert_eq!((is_own(path), is_protected(path)), (own, protected), "{}", path.display());
        }
    }

    #[test]
    fn protected_names_hold_at_any_depth() {
        check(&["toolwright.yaml", "a/.MCP.json", "TOOLWRIGHT.YML", "toolwright.yaml/x"], true, true);
        check(&[".github/workflows/ci.yml", "a/.GitHub/Workflows", ".cargo/config.toml", ".local/bin/ls"], false, true);
        check(
            &["CLAUDE.md", "sub/AGENTS.md", ".yarnrc.yml", ".npmrc", ".env", ".bash_profile", ".clinerules"],
            false,
            true,
        );
        check(&["opencode.jsonc", "x.code-workspace", ".vimrc", ".gitattributes", "Jenkinsfile"], false, true);
        check(&[".github/dependabot.yml", ".local/share/x", ".env.example", "README.md", "src/git/x"], false, false);
        check(&[".gitignore", "toolwright.yaml.md", "workflows/ci.yml", "package.json"], false, false);
    }
}
