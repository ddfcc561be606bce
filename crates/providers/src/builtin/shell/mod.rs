//! `shell:bash` and `shell:python`: run code in a process tree that ends with the call.

mod bash;
mod command_output;
mod python;
mod runner;
mod session;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::context::ToolContext;
use toolwright_core::sandbox::SandboxProfile;
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_core::tool::Tool;

use super::BuiltinOptions;
use runner::Runner;
use toolwright_sandbox::enforce::SandboxConfig;

/// What the processes of tools may do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ShellConfig {
    /// What commands of `shell__bash` may do.
    pub bash: SandboxProfile,
    /// What programs of `shell__python` may do.
    pub python: SandboxProfile,
    /// How sandboxes are set up.
    // Also protects the paths of [`BuiltinOptions::protected`].
    #[serde(flatten)]
    pub sandbox: SandboxConfig,
}

impl Default for ShellConfig {
    /// `full` for bash: commands install, commit and fetch, which no narrower profile allows, and policy asks before
    /// each by default. `workspace` for Python, which is meant for computing and for work on files.
    fn default() -> Self {
        Self { bash: SandboxProfile::Full, python: SandboxProfile::Workspace, sandbox: SandboxConfig::default() }
    }
}

/// Returns the tools, in a fixed order.
pub(super) fn tools(options: &BuiltinOptions) -> [Arc<dyn Tool>; 2] {
    let runner = |profile| Runner::new(profile, options);
    [Arc::new(bash::Bash::new(runner(options.shell.bash))), Arc::new(python::Python::new(runner(options.shell.python)))]
}

/// Returns the arguments that both have.
fn common_properties() -> [(&'static str, Value); 3] {
    [
        (
            "timeout_ms",
            json!({
                "type": "integer", "minimum": 1, "maximum": runner::MAX_TIMEOUT_MS, "default": 120_000,
                "description": "Milliseconds after which the command and all it started are killed.",
            }),
        ),
        (
            "cwd",
            json!({"type": "string", "description": "Directory to run in; relative to the workspace root, which is the default."}),
        ),
        ("session", session::property()),
    ]
}

/// Returns the files of a program, which works in the workspace.
fn program_files(session: &Session) -> FileUse {
    FileUse::program(session.root.canonicalize().unwrap_or_else(|_| session.root.clone()))
}

/// Returns the folder that a session's call requests, as the prelude takes it; empty for the session's present folder.
fn folder_of(cwd: Option<&str>, context: &ToolContext) -> String {
    cwd.map_or_else(String::new, |cwd| context.resolve_path(cwd).to_string_lossy().into_owned())
}

/// Returns what a model should know about the sandbox when it writes code.
fn sandbox_note(profile: SandboxProfile) -> &'static str {
    match profile {
        SandboxProfile::Pure => {
            " It runs in a sandbox: it has neither the files of the workspace nor network, and writes only to a \
             temporary folder, its working directory."
        }
        SandboxProfile::ReadOnly => {
            " It runs in a sandbox: it reads files, writes only to the folder that TMPDIR names, and has no network."
        }
        SandboxProfile::Workspace => {
            " It runs in a sandbox: it writes only in the workspace and in the folder that TMPDIR names, and has no \
             network."
        }
        SandboxProfile::Network => {
            " It runs in a sandbox: it writes only in the workspace and in the folder that TMPDIR names."
        }
        SandboxProfile::Full => "",
    }
}
