//! Why a command does not start, and what would mend it.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};

use toolwright_core::sandbox::SandboxProfile;

/// A command that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// No such program.
    #[error("the command `{program}` was not found: install it, write its full path, or put its folder on PATH")]
    NotFound {
        /// As it was given.
        program: String,
    },
    /// The file is there but cannot be run.
    #[error(
        "the command `{program}` cannot be executed: make it executable (chmod +x), or check that it is a program for this machine"
    )]
    NotExecutable {
        /// As it was given.
        program: String,
        /// Cause.
        source: io::Error,
    },
    /// The script names an interpreter that is not there.
    #[error("`{program}` exists, but the interpreter its first line names does not: install that, or mend the line")]
    NoInterpreter {
        /// As it was given.
        program: String,
    },
    /// The working directory cannot be entered.
    #[error("the working directory `{}` cannot be entered: create it, or correct `cwd` ({source})", directory.display())]
    Directory {
        /// As it was given.
        directory: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The sandbox has no grant for the program or its interpreter.
    #[error(
        "the command `{program}` may not be executed in the sandbox profile {profile}: add its folder, and that of its interpreter, to `sandbox.read`, or choose a wider profile"
    )]
    NotGranted {
        /// As it was given.
        program: String,
        /// The profile.
        profile: SandboxProfile,
    },
    /// Walls are missing, and the operator wants all of them.
    #[error(
        "the command was not started, since `sandbox.strict` is set and {gaps}: install bubblewrap or a newer kernel, choose another profile, or turn `sandbox.strict` off"
    )]
    Unenforced {
        /// Which, and why.
        gaps: String,
    },
    /// The kernel refused what it had said it can do.
    #[error("the sandbox profile {profile} could not be set up for `{program}`: {source}; it was not started")]
    Sandbox {
        /// As it was given.
        program: String,
        /// The profile.
        profile: SandboxProfile,
        /// Cause.
        source: io::Error,
    },
    /// The system refused for another reason: no more processes, descriptors or memory.
    #[error("the command `{program}` could not be started: {source}")]
    Failed {
        /// As it was given.
        program: String,
        /// Cause.
        source: io::Error,
    },
}

impl SpawnError {
    /// Tells the cases apart that exec(2) reports by one and the same code.
    pub(crate) fn explain(
        program: &OsStr,
        directory: Option<&Path>,
        profile: SandboxProfile,
        error: io::Error,
    ) -> Self {
        if let Some(directory) = directory
            // The final dot asks for what chdir(2) needs: a directory, and the right to search it.
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
