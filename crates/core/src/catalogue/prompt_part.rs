//! Defines the parts that tools add to the system prompts of runs that may use them: skills, channels.

use std::path::PathBuf;
use std::sync::Arc;

/// Id of the tool that loads a skill.
pub const SKILL_ID: &str = "agent:skill@1.0.0";
/// Characters of a skill's name.
pub const MAX_SKILL_NAME: usize = 64;
/// Characters of a skill's description.
pub const MAX_SKILL_DESCRIPTION: usize = 1024;
/// Bytes of a skill's text.
pub const MAX_SKILL_TEXT: usize = 64 << 10;

/// Instructions for one kind of work: a folder with a file `SKILL.md`. A prompt names it; its text is loaded when it is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skill {
    /// Its name: lower-case letters, digits and `-`.
    pub name: String,
    /// Purpose and when to load it, for models.
    pub description: String,
    /// The instructions.
    pub text: String,
    /// Its folder, absolute. Other files of the skill are read from there by the tools that read files.
    pub folder: PathBuf,
}

impl Skill {
    /// The skill as a model reads it.
    #[must_use]
    pub fn in_words(&self) -> String {
        format!("# Skill {}\n\nFolder: {}\n\n{}\n", self.name, self.folder.display(), self.text.trim())
    }
}

/// A tool's contribution to the system prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptPart {
    /// Skills that it loads.
    Skills(Arc<[Skill]>),
    /// Channels that it writes to, a line each.
    Channels(Arc<[String]>),
}
