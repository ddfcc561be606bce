//! From written sandbox settings to ones that can be used.

use std::path::{Path, PathBuf};

use toolwright_sandbox::sandbox::{Limits, OnGap, SandboxSettings};

use super::fill::{Holds, Scope};
use super::problem::{At, Problem, Severity};
use super::typed::SandboxSection;

/// Resolves them. A path that cannot be filled in is left out, with the reason among the problems: it would
/// only have widened the sandbox.
pub(crate) fn settings(written: &SandboxSection, at: &At, state_dir: &Path, scope: &mut Scope<'_>) -> SandboxSettings {
    let mut write = paths("write", &written.write, at, scope);
    write.retain(|path| {
        let holds_state = reaches(path, state_dir);
        if holds_state {
            let message = format!(
                "{} has Toolwright's state in it: a sandboxed command could approve for you there",
                path.display()
            );
            let remedy = "name the folders beside it that commands need";
            scope.problems.push(Problem::new(Severity::Error, at, "sandbox.write", message, remedy));
        }
        !holds_state
    });
    let (limits, default) = (&written.limits, Limits::default());
    SandboxSettings {
        on_gap: if written.strict { OnGap::Refuse } else { OnGap::Report },
        read: paths("read", &written.read, at, scope),
        write,
        protected: Vec::new(),
        limits: Limits {
            memory: limits.memory.or(default.memory),
            processes: limits.processes.or(default.processes),
            file_size: limits.file_size,
            open_files: limits.open_files,
            cpu: limits.cpu.map(|span| span.0),
        },
    }
}

/// Whether one of the two is in the other.
fn reaches(path: &Path, state_dir: &Path) -> bool {
    let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let (path, state_dir) = (real(path), real(state_dir));
    state_dir.starts_with(&path) || path.starts_with(&state_dir)
}

fn paths(key: &str, written: &[String], at: &At, scope: &mut Scope<'_>) -> Vec<PathBuf> {
    let mut all = Vec::with_capacity(written.len());
    for text in written {
        let mut text = match text.strip_prefix("~/") {
            Some(rest) => format!("${{HOME}}/{rest}"),
            None => text.clone(),
        };
        let before = scope.problems.len();
        scope.fill(at, &format!("sandbox.{key}"), &mut text, Holds::Setting);
        if scope.problems.len() == before {
            all.push(scope.root.join(text));
        }
    }
    all
}
