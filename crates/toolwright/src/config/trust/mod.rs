//! Decides which configuration files of projects apply, and with which content. Only approved ones do.
//!
//! A project's `toolwright.yaml` and `.mcp.json` come with the project, so they are untrusted. Such a file has no
//! effect until the owner approves its content. The approved content is stored: when the file changes, the approved
//! version stays in force until the change is approved too, unless the change is harmless ([`waiting`]). Files in the
//! owner's home, of the system, and those given with `--config` need no approval.

mod compare;
mod store;
mod summary;

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use toolwright_sandbox::is_nested;

use crate::config::{Problem, Severity};

pub use compare::{Change, waiting};
pub use store::{Approval, Content, TrustStore, is_project_file};
pub use summary::Summary;

/// The state of a project's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustState {
    /// Its content is approved.
    Approved,
    /// It differs from the approved version, which stays in force.
    Changed,
    /// It was approved and is gone; the approved version stays in force, because it restricts something.
    Gone,
    /// It is not approved, and so left out.
    Unapproved,
    /// It is not approved, and all of it is faulty, so that nothing in it applies. It needs no approval.
    Faulty,
}

impl TrustState {
    /// Returns the name of the state in JSON answers.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Changed => "changed",
            Self::Gone => "gone",
            Self::Unapproved => "unapproved",
            Self::Faulty => "faulty",
        }
    }
}

/// A project's file, and its state by the stored approvals.
#[derive(Debug, Clone)]
pub struct ProjectTrust {
    /// The file, absolute.
    pub file: PathBuf,
    /// Its state.
    pub state: TrustState,
    /// The approved content, which applies; `None` if there is none.
    pub in_force: Option<Content>,
    /// The current content; `None` if the file is gone or cannot be read.
    pub now: Option<Content>,
    /// Changes that wait for approval.
    pub pending: Vec<Change>,
    /// The reason why the current file cannot be read or parsed.
    pub fault: Option<String>,
    /// The problems of a faulty file.
    pub faults: Vec<Problem>,
    /// Whether its owner has refused this content.
    pub refused: bool,
}

impl ProjectTrust {
    /// Returns the message of commands about the file, and the remedy; `None` without a message.
    #[must_use]
    pub fn notice(&self) -> Option<(String, String)> {
        let nested = is_nested();
        let remedy = |own: &str| match nested {
            true => "its owner can approve it with `toolwright trust` in a terminal of their own".to_owned(),
            false => own.to_owned(),
        };
        let fault = self.fault.as_ref().map(|fault| format!(" ({fault})")).unwrap_or_default();
        let refused = if self.refused { "; you refused the change" } else { "" };
        Some(match self.state {
            TrustState::Approved | TrustState::Faulty => return None,
            TrustState::Unapproved if self.refused => (
                "you refused this file, so it is left out".to_owned(),
                remedy("`toolwright trust` asks again, as does any change of the file"),
            ),
            TrustState::Unapproved => (
                format!("nobody has approved this file, so it is left out{fault}"),
                remedy("`toolwright trust` shows what it would start and change, and asks"),
            ),
            TrustState::Changed => (
                format!(
                    "it has changed since it was approved, and the approved version stays in force{refused}{fault}{}",
                    named(&self.pending)
                ),
                remedy("`toolwright trust` shows the change and asks"),
            ),
            TrustState::Gone => (
                format!(
                    "it was removed, but the approved version stays in force because it restricts something{}",
                    named(&self.pending)
                ),
                remedy("put it back, or run `toolwright trust --revoke` with its path"),
            ),
        })
    }

    /// Returns a summary of the current file's effects.
    #[must_use]
    pub fn summary(&self) -> Option<Summary> {
        let now = self.now.as_ref()?;
        let value = now.value(&self.file).ok()?;
        Some(Summary::of(&value, &now.servers(&self.file, summary::MAX_SERVERS)))
    }

    /// Returns the file for JSON answers.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut value = json!({
            "file": self.file,
            "state": self.state.as_str(),
            "waits": self.pending.iter().map(Change::to_json).collect::<Vec<_>>(),
        });
        if let Some(summary) = self.summary() {
            value["starts"] = json!(summary.starts);
            value["reaches"] = json!(summary.reaches);
            value["changes"] = json!(summary.changes);
        }
        if let Some(fault) = &self.fault {
            value["error"] = json!(fault);
        }
        if !self.faults.is_empty() {
            value["problems"] = json!(self.faults);
        }
        if self.refused {
            value["refused"] = json!(true);
        }
        value
    }
}

/// Returns the paths of the first changes.
fn named(waits: &[Change]) -> String {
    const SHOWN: usize = 6;
    if waits.is_empty() {
        return String::new();
    }
    let mut paths: Vec<&str> = waits.iter().take(SHOWN).map(|change| change.path.as_str()).collect();
    if waits.len() > SHOWN {
        paths.push("and others");
    }
    format!(": {}", paths.join(", "))
}

/// Determines a project's file's state; `None` if it does not exist and no approval of it matters. Approves and stores
/// a harmless change, unless this process may not approve.
#[must_use]
pub fn judge(file: &Path, store: &TrustStore) -> Option<ProjectTrust> {
    let approved = store.approved(file);
    let mut judged = ProjectTrust {
        file: file.to_owned(),
        state: TrustState::Unapproved,
        in_force: approved.as_ref().map(|approved| approved.content.clone()),
        now: None,
        pending: Vec::new(),
        fault: None,
        faults: Vec::new(),
        refused: false,
    };
    let now = match Content::read(file) {
        Ok(now) => now,
        Err(error) => {
            judged.fault = Some(format!("it cannot be read: {error}"));
            judged.state = if approved.is_some() { TrustState::Changed } else { TrustState::Unapproved };
            return Some(judged);
        }
    };
    let Some(now) = now else {
        // A missing file does not apply, unless that would remove a restriction.
        let was = approved?.content.value(file).ok()?;
        judged.pending = waiting(&was, &json!({}));
        judged.state = TrustState::Gone;
        return (!judged.pending.is_empty()).then_some(judged);
    };
    judged.now = Some(now.clone());
    judged.refused = store.is_refused(file, &now);
    let parsed = now.checked(file);
    judged.fault = parsed.as_ref().err().map(Problem::to_string);
    let Some(approved) = approved else {
        if let Ok((value, faults)) = parsed
            && value == json!({})
        {
            // An empty file needs no approval and counts as missing: sandboxes use such files to block names.
            if faults.is_empty() {
                return None;
            }
            // A faulty file needs no approval either, but its owner should know.
            let harmless = |fault| Problem { severity: Severity::Warning, ..fault };
            (judged.state, judged.faults) = (TrustState::Faulty, faults.into_iter().map(harmless).collect());
        }
        return Some(judged);
    };
    judged.state = if approved.content == now {
        TrustState::Approved
    } else if approved.older.contains(&now.hash()) {
        keep(store, file, &now, Approval::ByPerson);
        TrustState::Approved
    } else {
        match (approved.content.value(file), parsed) {
            (Ok(was), Ok((is, _))) => {
                judged.pending = waiting(&was, &is);
                if judged.pending.is_empty() {
                    keep(store, file, &now, Approval::Harmless);
                    TrustState::Approved
                } else {
                    TrustState::Changed
                }
            }
            _ => TrustState::Changed,
        }
    };
    if judged.state == TrustState::Approved {
        // The problems of an approved file are reported when it is loaded.
        (judged.in_force, judged.fault) = (Some(now), None);
    }
    Some(judged)
}

fn keep(store: &TrustStore, file: &Path, content: &Content, how: Approval) {
    if is_nested() {
        return;
    }
    if let Err(error) = store.approve(file, content, how) {
        // It applies anyway, and is checked again the next time.
        tracing::debug!("{}: its approval is not kept: {error}", file.display());
    }
}

/// Writes a project's file on its owner's behalf, and keeps it approved if it was approved before or is new. Returns
/// whether it is approved now. Other files need no approval and are only written.
///
/// # Errors
/// Errors of the file system.
pub fn write_approved(file: &Path, text: &str, store: &TrustStore) -> io::Result<bool> {
    let was_approved = judge(file, store).is_none_or(|judged| judged.state == TrustState::Approved);
    crate::private_file::write_atomically(file, text)?;
    if !is_project_file(file) {
        return Ok(true);
    }
    if !was_approved || is_nested() {
        return Ok(false);
    }
    // Approves the written text, not the current file: others may write there too.
    store.approve(file, &Content::of(file, text.to_owned())?, Approval::Harmless)?;
    Ok(true)
}

/// Writes an agent file of `folder` on its owner's behalf, and keeps the folder approved if it was approved before or
/// is new. Returns whether it is approved now.
///
/// # Errors
/// Errors of the file system.
pub fn write_approved_agent(folder: &Path, file: &Path, text: &str, store: &TrustStore) -> io::Result<bool> {
    let judged = judge(folder, store);
    let was_approved = judged.as_ref().is_none_or(|judged| judged.state == TrustState::Approved);
    crate::private_file::write_atomically(file, text)?;
    if !was_approved || is_nested() {
        return Ok(false);
    }
    // Approves the earlier content and the written text, not the current content: others may write there too.
    let before = judged.and_then(|judged| judged.now);
    let mut content = before.unwrap_or_else(|| Content {
        text: String::new(),
        files: Default::default(),
        documents: Default::default(),
    });
    let name = file.strip_prefix(folder).unwrap_or(file).to_string_lossy().into_owned();
    content.files.insert(name, Some(text.to_owned()));
    store.approve(folder, &content, Approval::Harmless)?;
    Ok(true)
}
