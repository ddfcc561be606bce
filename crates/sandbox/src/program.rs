//! Resolves the program and the inherited variables of a start, and explains why a command does not start.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use toolwright_core::pattern::glob_match;
use toolwright_core::sandbox::SandboxProfile;

/// A command that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// The program does not exist.
    #[error("the command `{program}` was not found: install it, write its full path, or put its folder on PATH")]
    NotFound {
        /// The program as given.
        program: String,
    },
    /// The file exists but cannot be executed.
    #[error(
        "the command `{program}` cannot be executed: make it executable (chmod +x), or check that it is a program for this machine"
    )]
    NotExecutable {
        /// The program as given.
        program: String,
        /// Cause.
        source: io::Error,
    },
    /// The script names an interpreter that is not there.
    #[error("`{program}` exists, but the interpreter its first line names does not: install that, or correct the line")]
    NoInterpreter {
        /// The program as given.
        program: String,
    },
    /// The working directory cannot be entered.
    #[error("the working directory `{}` cannot be entered: create it, or correct `cwd` ({source})", directory.display())]
    Directory {
        /// The directory as given.
        directory: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The sandbox has no grant for the program or its interpreter.
    #[error(
        "the command `{program}` may not be executed in the sandbox profile {profile}: add its folder, and that of its interpreter, to `sandbox.read`, or choose a wider profile"
    )]
    NotGranted {
        /// The program as given.
        program: String,
        /// The profile.
        profile: SandboxProfile,
    },
    /// Walls are missing, and the operator wants all of them.
    #[error(
        "the command was not started, since `sandbox.strict` is set and {gaps}: install bubblewrap or a newer kernel, choose another profile, or turn `sandbox.strict` off"
    )]
    Unenforced {
        /// Which parts are not enforced, and why.
        gaps: String,
    },
    /// The kernel refused a mechanism that it reported as available.
    #[error("the sandbox profile {profile} could not be set up for `{program}`: {source}; it was not started")]
    Sandbox {
        /// The program as given.
        program: String,
        /// The profile.
        profile: SandboxProfile,
        /// Cause.
        source: io::Error,
    },
    /// The system failed for another reason: no more processes, descriptors or memory.
    #[error("the command `{program}` could not be started: {source}")]
    Failed {
        /// The program as given.
        program: String,
        /// Cause.
        source: io::Error,
    },
}

impl SpawnError {
    /// Distinguishes causes that exec(2) reports with the same code.
    pub(crate) fn explain(
        program: &OsStr,
        directory: Option<&Path>,
        profile: SandboxProfile,
        error: io::Error,
    ) -> Self {
        if let Some(directory) = directory
            // The final `/.` checks what chdir(2) needs: a directory that may be searched.
            && let Err(source) = std::fs::metadata(directory.join("."))
        {
            return Self::Directory { directory: directory.to_owned(), source };
        }
        let name = program.to_string_lossy().into_owned();
        match error.kind() {
            io::ErrorKind::NotFound => {
                let has_slash = name.contains('/');
                if has_slash && directory.unwrap_or(Path::new("")).join(program).is_file() {
                    Self::NoInterpreter { program: name }
                } else {
                    Self::NotFound { program: name }
                }
            }
            io::ErrorKind::PermissionDenied if profile == SandboxProfile::Pure => {
                Self::NotGranted { program: name, profile }
            }
            io::ErrorKind::PermissionDenied => Self::NotExecutable { program: name, source: error },
            // ENOEXEC
            _ if error.raw_os_error() == Some(8) => Self::NotExecutable { program: name, source: error },
            _ => Self::Failed { program: name, source: error },
        }
    }
}

/// Finds the file of `program`: in `PATH`, or, if it contains a slash, relative to `directory` (default: the current
/// one). `None` if there is no executable file. Touches the disk.
#[must_use]
pub fn find_program(program: impl AsRef<OsStr>, directory: Option<&Path>) -> Option<PathBuf> {
    find_in(&std::env::var_os("PATH").unwrap_or_default(), program.as_ref(), directory)
}

/// Like [`find_program`], with another value of `PATH`.
pub(crate) fn find_in(path: &OsStr, program: &OsStr, directory: Option<&Path>) -> Option<PathBuf> {
    let program = Path::new(program);
    if program.components().count() > 1 || program.is_absolute() {
        let path = std::path::absolute(directory.unwrap_or(Path::new("")).join(program)).ok()?;
        return path.is_file().then_some(path);
    }
    in_folders(path, program).next()
}

/// Returns all executables of this name, in the order of `PATH`.
#[must_use]
pub fn candidates(name: &str) -> Vec<PathBuf> {
    in_folders(&std::env::var_os("PATH").unwrap_or_default(), Path::new(name)).collect()
}

fn in_folders(path: &OsStr, name: &Path) -> impl Iterator<Item = PathBuf> {
    std::env::split_paths(path).map(move |folder| folder.join(name)).filter(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// Toolwright's own variables, its token among them, and the keys of model APIs.
const WITHHELD: [&str; 25] = [
    "TOOLWRIGHT_*",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "GEMINI_API_KEY",
    "GOOGLE_API_KEY",
    "AZURE_OPENAI_API_KEY",
    "CEREBRAS_API_KEY",
    "COHERE_API_KEY",
    "CO_API_KEY",
    "DASHSCOPE_API_KEY",
    "DEEPSEEK_API_KEY",
    "FIREWORKS_API_KEY",
    "GROQ_API_KEY",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
    "MISTRAL_API_KEY",
    "MOONSHOT_API_KEY",
    "NVIDIA_API_KEY",
    "OLLAMA_API_KEY",
    "OPENROUTER_API_KEY",
    "PERPLEXITY_API_KEY",
    "REPLICATE_API_TOKEN",
    "TOGETHER_API_KEY",
    "XAI_API_KEY",
];

/// Patterns (`*` and `?`, ignoring case) of variables that no child inherits unless its
/// configuration allows it: Toolwright's own and the keys of model APIs.
#[must_use]
pub fn withheld_by_default() -> Vec<String> {
    WITHHELD.map(str::to_owned).to_vec()
}

/// Returns the variables of this process that match one of the patterns.
pub(crate) fn matching(patterns: &[String]) -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name).filter(|name| {
        let name = name.to_string_lossy();
        patterns.iter().any(|pattern| glob_match(pattern, &name))
    })
}
