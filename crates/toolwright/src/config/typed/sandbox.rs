//! How processes are sandboxed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use toolwright_core::SandboxProfile;

use toolwright_core::setting::TimeSpan;

/// `sandbox`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxSection {
    /// What commands of `shell__bash` may do.
    pub bash: SandboxProfile,
    /// What programs of `shell__python` may do.
    pub python: SandboxProfile,
    /// Refuses to start what this machine cannot sandbox wholly. Without it, what is not enforced is reported
    /// by `doctor`, in a warning, and in the extras of each result.
    pub strict: bool,
    /// Files and folders that every profile may read and run programs from; `pure` alone needs it. Relative to
    /// the workspace root; `~/` and `${VAR}` are filled in.
    pub read: Vec<String>,
    /// Files and folders that `workspace` and `network` may write besides the workspace, like the caches of
    /// package managers. Written as in `read`.
    pub write: Vec<String>,
    /// Limits of what runs in a sandbox.
    pub limits: SandboxLimits,
}

/// Limits of what runs in a sandbox. `file_size`, `open_files` and `cpu` are inherited unless they are set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SandboxLimits {
    /// Memory, in bytes: of all processes of one start together, and what a single one may allocate. 4 GiB unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1_048_576))]
    pub memory: Option<u64>,
    /// Processes of one start. 512 unless set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub processes: Option<u64>,
    /// Size of one file that it writes, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_size: Option<u64>,
    /// Files and sockets that it has open.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16))]
    pub open_files: Option<u64>,
    /// Time on the processor, in whole seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<TimeSpan>,
}

impl Default for SandboxSection {
    fn default() -> Self {
        let tools = toolwright_providers::builtin::ShellOptions::default();
        Self {
            bash: tools.bash,
            python: tools.python,
            strict: false,
            read: Vec::new(),
            write: Vec::new(),
            limits: SandboxLimits::default(),
        }
    }
}
