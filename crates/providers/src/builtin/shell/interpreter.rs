//! Which Python runs, and which folders it needs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use toolwright_core::error::ToolError;

use crate::builtin::failed;
use toolwright_sandbox::{SupervisedCommand, candidates};

/// How long an interpreter may take to say where it is; version managers put a script in between.
const PROBE_TIME: Duration = Duration::from_secs(10);
/// Bytes of its answer that are read.
const PROBE_BYTES: u64 = 64 * 1024;
/// Version, then its own file, then the folders of its library, a line each.
const PROBE: &str = "import sys, os
print(sys.version_info[0])
print(sys.executable)
for p in (os.path.dirname(os.path.realpath(sys.executable)), sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix):
    print(p)";

/// A Python 3.
#[derive(Debug, Clone)]
pub(super) struct Interpreter {
    /// The interpreter itself, not a script that looks for one.
    pub(super) program: PathBuf,
    /// Folders that it reads, for profiles that read little else.
    pub(super) folders: Vec<PathBuf>,
}

impl Interpreter {
    /// The first `python3`, else `python`, on `PATH` that runs and is a Python 3. Scripts of version managers are
    /// asked in `root`, whose version they choose.
    ///
    /// # Errors
    /// With what to install where there is none.
    pub(super) async fn find(withheld_env: &[String], root: &Path) -> Result<Self, ToolError> {
        for program in ["python3", "python"].into_iter().flat_map(candidates) {
            if let Some(interpreter) = probe(&program, withheld_env, root).await {
                return Ok(interpreter);
            }
        }
        Err(failed(
            "no Python 3 was found: install it, as `python3` in a folder of PATH, or run the code by another tool",
        ))
    }
}

async fn probe(program: &Path, withheld_env: &[String], root: &Path) -> Option<Interpreter> {
    let command = SupervisedCommand::new(program).withhold(withheld_env).args(["-I", "-c", PROBE]).current_dir(root);
    let mut child = command.spawn_aside().await.ok()?;
    let mut text = String::new();
    let answer = child.stdout.take()?;
    let read = tokio::time::timeout(PROBE_TIME, answer.take(PROBE_BYTES).read_to_string(&mut text)).await;
    read.ok()?.ok()?;
    let mut lines = text.lines();
    if lines.next() != Some("3") {
        return None;
    }
    let program = PathBuf::from(lines.next()?);
    // A prefix of `/` would grant everything.
    let folders = lines.map(PathBuf::from).filter(|folder| folder.parent().is_some()).collect();
    program.is_absolute().then_some(Interpreter { program, folders })
}
