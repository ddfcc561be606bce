//! Names of files that decide which code runs.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{DirEntry, Metadata};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use toolwright_core::pattern::glob_match;

/// Toolwright's own configuration: it starts servers and holds the policy.
const OWN: &[&str] = &["toolwright.yaml", "toolwright.yml", "toolwright.json", ".mcp.json"];

/// Files and folders protected at any depth below the root, folders with all their content: those that programs read
/// and act on by themselves when they start, or when somebody enters or opens the folder. Files that a person runs on
/// purpose, like build scripts, are not included. `*` matches any run of characters. Case is ignored, as some file
/// systems do.
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
    // Run or read when a shell enters the folder, or when a program is started in it.
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
    // Agents: instructions, hooks, and MCP servers that they start.
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
    // For a root that is a home folder: files that logins, shells and connections run, and folders of programs.
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

/// Whether a component of `path` has the name of Toolwright's own configuration.
pub fn is_own(path: &Path) -> bool {
    has(path, OWN)
}

/// Whether a component of `path` has a protected name.
pub fn is_protected(path: &Path) -> bool {
    has(path, OWN) || has(path, NAMES)
}

fn has(path: &Path, names: &[&str]) -> bool {
    let parts: Vec<&OsStr> = path.iter().collect();
    (0..parts.len()).any(|from| names.iter().any(|name| begins(&parts[from..], name)))
}

/// Whether `parts` begin with the components of `name`.
fn begins(parts: &[&OsStr], name: &str) -> bool {
    let mut parts = parts.iter();
    name.split('/').all(|wanted| parts.next().is_some_and(|part| fits(wanted, part)))
}

fn fits(wanted: &str, part: &OsStr) -> bool {
    glob_match(wanted, &part.to_string_lossy())
}

/// Returns the folders between `root` and each of `paths`, parents first: renaming one would replace its content.
#[cfg(target_os = "linux")]
pub fn ancestor_folders(root: &Path, paths: &[PathBuf]) -> Vec<PathBuf> {
    let above = |path: &PathBuf| {
        let above = path.ancestors().skip(1).take_while(|folder| *folder != root && folder.starts_with(root));
        above.map(Path::to_owned).collect::<Vec<_>>()
    };
    let mut all: Vec<PathBuf> = paths.iter().flat_map(above).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns the protected paths that exist in the folder `root`: by the names above, and those of the absolute paths
/// `listed` that are below it.
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

/// Bound on directory entries searched for recent writes.
const MAX_SEARCHED_ENTRIES: usize = 10_000;
/// Package folders with hundreds of protected names that nobody opens.
const SKIPPED_FOLDERS: [&str; 2] = ["node_modules", "site-packages"];
/// Allowance for file system times that lag behind the clock.
const COARSE: Duration = Duration::from_millis(20);

/// Result of [`written_since`].
#[derive(Debug, Default)]
pub struct WrittenPaths {
    /// Paths relative to the root. For a protected folder that is not new, its first changed file.
    pub paths: Vec<PathBuf>,
    /// Whether the search stopped at its bound.
    pub is_cut: bool,
}

/// Finds protected names below `root`, at any depth, that were created or changed since `since`. Searches a bounded
/// number of entries, nearest first.
pub fn written_since(root: &Path, since: SystemTime) -> WrittenPaths {
    let since = since.checked_sub(COARSE).unwrap_or(since);
    let is_new =
        |entry: &DirEntry| entry.metadata().ok().and_then(|metadata| changed(&metadata)).is_some_and(|at| at >= since);
    let mut written = WrittenPaths::default();
    // Folders to visit, each with its protected ancestor, if any.
    let mut folders: VecDeque<(PathBuf, Option<PathBuf>)> = VecDeque::from([(PathBuf::new(), None)]);
    let (mut reported, mut looked) = (HashSet::new(), 0);
    while let Some((folder, within)) = folders.pop_front() {
        if within.as_ref().is_some_and(|within| reported.contains(within)) {
            continue;
        }
        for entry in std::fs::read_dir(root.join(&folder)).into_iter().flatten().flatten() {
            looked += 1;
            if looked > MAX_SEARCHED_ENTRIES {
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
                && !SKIPPED_FOLDERS.iter().any(|name| entry.file_name() == *name)
            {
                folders.push_back((path, within));
            }
        }
    }
    written
}

/// Time of the last change (ctime where available), which programs cannot set.
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

/// Returns the files of Toolwright's own configuration read in `root`, and those of `listed` below it, even if they do
/// not exist.
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
