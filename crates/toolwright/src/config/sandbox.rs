//! From written sandbox settings to ones that can be used.

use std::path::PathBuf;

use toolwright_providers::process::sandbox::{Limits, OnGap, SandboxSettings};

use super::problem::At;
use super::servers::{Holds, Scope};
use super::typed::SandboxSection;

/// Resolves them. A path that cannot be filled in is left out, with the reason among the problems: it would
/// only have widened the sandbox.
pub(crate) fn settings(written: &SandboxSection, at: &At, scope: &mut Scope<'_>) -> SandboxSettings {
    let (limits, default) = (&written.limits, Limits::default());
    SandboxSettings {
        on_gap: if written.strict { OnGap::Refuse } else { OnGap::Report },
        read: paths("read", &written.read, at, scope),
        write: paths("write", &written.write, at, scope),
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
