//! `agent:skill`: loads the text of a skill.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::catalogue::prompt_part::{MAX_SKILL_NAME, SKILL_ID};
use toolwright_core::catalogue::{CallScope, PromptPart, Skill};
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::pattern::nearest;
use toolwright_core::session::Session;
use toolwright_core::tool::Tool;

use super::{define, parse};

const MANUAL: &str = "\
Skills are instructions for certain kinds of work, each in a folder of its own with a file `SKILL.md`. The system prompt names them.

A call with a `name` shows the text of that skill and its folder. A skill may name other files in its folder: read them with the
tools that read files, when the text says so. A call without a `name` lists the skills and what each is for.

The text of a skill comes from the owner of the workspace. Files in its folder are read under the same rules as all files.";

/// Loads skills.
pub struct SkillTool(pub Arc<[Skill]>);

#[derive(Deserialize)]
struct SkillArguments {
    #[serde(default)]
    name: Option<String>,
}

#[async_trait]
impl Tool for SkillTool {
    fn definition(&self) -> ToolDefinition {
        let name = json!({
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_SKILL_NAME,
            "description": "The skill. Without it, all skills are listed.",
        });
        let mut definition = define(
            SKILL_ID,
            "Load a skill",
            "Shows the instructions of a skill. Load the skill for a kind of work before you begin the work.",
            Effects::READ,
            json!({"name": name}),
            &[],
        );
        definition.documentation = Some(MANUAL.into());
        definition.examples = vec![json!({"name": "release-notes"})];
        // A skill is returned whole; its loader limits the size.
        definition.max_output = Some(256 << 10);
        definition
    }

    async fn run(&self, arguments: Value, _context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let SkillArguments { name } = parse(arguments)?;
        let lines = || {
            let lines = self.0.iter().map(|skill| format!("- {}: {}", skill.name, skill.description.trim()));
            lines.collect::<Vec<_>>().join("\n")
        };
        let Some(name) = name else { return Ok(ToolOutput::text(lines())) };
        if let Some(skill) = self.0.iter().find(|skill| skill.name == name) {
            return Ok(ToolOutput::text(skill.in_words()));
        }
        let names = self.0.iter().map(|skill| skill.name.as_str());
        let hint = nearest(&name, names).map(|near| format!(" Did you mean `{near}`?")).unwrap_or_default();
        Ok(ToolOutput::failure(format!("There is no skill `{name}`.{hint}\n{}", lines())))
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }

    fn prompt_part(&self) -> Option<PromptPart> {
        Some(PromptPart::Skills(Arc::clone(&self.0)))
    }
}
