//! What is wrong with a configuration: where, what, and how to mend it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Serialize;

/// What a problem does to the rest of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Nothing is lost.
    Warning,
    /// The entry that it concerns (a server, a REST tool, …) is left out; the rest works.
    EntryDisabled,
    /// The configuration cannot be used: commands end with exit code 2, a running gateway keeps what it has.
    Error,
}

/// Where something was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct At {
    /// The file.
    pub file: Arc<Path>,
    /// Line, from 1; 0 where it is not known.
    pub line: u32,
}

/// One problem. `Display` is `file:line: severity: field: message. Remedy.`
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What it does to the rest.
    pub severity: Severity,
    /// The file, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Line, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// Dotted path of the field (`mcp_servers.github.command`); empty for the whole file.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
}

impl Problem {
    /// A problem at a place.
    pub fn new(
        severity: Severity,
        at: &At,
        field: impl Into<String>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self {
            severity,
            file: Some(at.file.to_path_buf()),
            line: (at.line > 0).then_some(at.line),
            field: field.into(),
            message: message.into(),
            remedy: remedy.into(),
        }
    }

    /// A problem with a whole file.
    pub fn with_file(severity: Severity, file: &Path, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            severity,
            file: Some(file.to_owned()),
            line: None,
            field: String::new(),
            message: message.into(),
            remedy: remedy.into(),
        }
    }
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::EntryDisabled => "entry left out",
            Self::Error => "error",
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{}:", file.display())?;
            if let Some(line) = self.line {
                write!(f, "{line}:")?;
            }
            f.write_str(" ")?;
        }
        write!(f, "{}: ", self.severity.word())?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)?;
        if !self.remedy.is_empty() {
            write!(f, "; {}", self.remedy)?;
        }
        Ok(())
    }
}
