//! The `agent` tools: `agent:todo`, an agent's to-do list; `agent:ask_user`, questions to its user; `agent:skill`, which
//! loads the text of a skill.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use toolwright_core::catalogue::{CallScope, MAX_SKILL_NAME, PromptPart, SKILL_ID, Skill};
use toolwright_core::client::ClientRequest;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::event::Partial;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::pattern::nearest;
use toolwright_core::session::Session;
use toolwright_core::store::todo::{MAX_ID, MAX_ITEMS, MAX_TEXT, TODO_ID, TODO_ROOT, TodoList, TodoPatch};
use toolwright_core::tool::Tool;

use super::{SessionSubtree, refused_as_failure};
use crate::builtin::{define, parse};

/// Time limit of a change to the list.
const TODO_TIME: Duration = Duration::from_secs(30);
/// The most characters of a question, and of a choice.
const MAX_QUESTION: usize = 4_000;
const MAX_LABEL: usize = 200;
/// The most choices of one question.
const MAX_CHOICES: usize = 20;

const TODO_MANUAL: &str = "\
Keeps the to-do list of this session. Use it for work of three steps or more.

Each item has an id, a text and a status: `pending`, `in_progress` or `done`. A call changes only the items that it names:

- `{\"text\": \"...\"}` adds an item. Without `id` it gets the next free number.
- `{\"id\": \"1\", \"status\": \"done\"}` changes an item. What the change leaves out stays.
- `{\"id\": \"1\", \"remove\": true}` removes it.
- No `items` shows the list.

All changes of a call apply, or none. Keep one item `in_progress`. Mark an item `done` as soon as it is. The list stays when old
messages leave the conversation, and is shown again from time to time while something is left to do.";

const ASK_MANUAL: &str = "\
Asks the person for whom you work, and waits for the answer.

With `choices` the person picks one of them, or several where `multiple` is true. Put the choice that you recommend first. Unless
`free_text` is false, the person may also write an answer of their own. Without `choices` the answer is text.

The person answers in the terminal, in the client of the gateway, or in the inbox (`toolwright approvals`). The person may decline:
go on without the answer then, and do not ask the same again. Ask only what you cannot find out yourself.";

/// Changes and shows the to-do list of the session.
pub(super) struct Todo;

#[derive(Deserialize)]
struct Changes {
    #[serde(default)]
    items: Vec<TodoPatch>,
}

#[async_trait]
impl Tool for Todo {
    fn definition(&self) -> ToolDefinition {
        // It changes only the session's own list, so no approval is needed.
        let mut definition = define(
            TODO_ID,
            "To-do list",
            "Keeps the to-do list of this session. Changes the items that are named, and returns the list.",
            Effects { idempotent: false, ..Effects::READ },
            json!({
                "items": {
                    "type": "array",
                    "maxItems": MAX_ITEMS,
                    "description": "What to change. Nothing shows the list.",
                    "items": {
                        "type": "object",
                        "properties": {
                            "id": {"type": "string", "minLength": 1, "maxLength": MAX_ID, "description": "The item; without it a new one."},
                            "text": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT, "description": "What is to be done."},
                            "status": {"enum": ["pending", "in_progress", "done"]},
                            "remove": {"type": "boolean", "description": "Removes the item."},
                        },
                        "additionalProperties": false,
                    },
                },
            }),
            &[],
        );
        definition.documentation = Some(TODO_MANUAL.into());
        definition.timeout = Some(TODO_TIME);
        definition.concurrency = Concurrency::Ordered;
        definition.examples = vec![
            json!({"items": [{"text": "Find the failing test", "status": "in_progress"}, {"text": "Mend it"}]}),
            json!({"items": [{"id": "1", "status": "done"}, {"id": "2", "status": "in_progress"}]}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Changes { items } = parse(arguments)?;
        let is_change = !items.is_empty();
        let kept = SessionSubtree::of_session(context, TODO_ROOT);
        let changed = kept.change(|standing| {
            let mut list = TodoList::of_value(standing.value.clone());
            let before = list.text();
            let rows = list.patch(items.clone()).map_err(|why| format!("Nothing was changed. {why}\n{before}"))?;
            Ok::<_, String>((rows, list))
        });
        let output = changed.await.map(|changed| match changed {
            Ok((list, standing)) => {
                let text = list.text();
                if is_change {
                    // For observers, because results go to the model only. The line end marks the last word as
                    // complete.
                    context.partials.send(Partial::Text(format!("{text}\n")));
                }
                ToolOutput { structured: Some(list.to_json()), taint: standing.taint, ..ToolOutput::text(text) }
            }
            Err(why) => ToolOutput::failure(why),
        });
        refused_as_failure(output)
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}

/// Asks the user behind the call.
pub(super) struct AskUser;

#[derive(Deserialize)]
struct Question {
    question: String,
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    multiple: bool,
    #[serde(default)]
    free_text: bool,
}

#[derive(Deserialize)]
struct Choice {
    label: String,
    #[serde(default)]
    description: String,
}

#[async_trait]
impl Tool for AskUser {
    fn definition(&self) -> ToolDefinition {
        let text =
            |max: usize, about: &str| json!({"type": "string", "minLength": 1, "maxLength": max, "description": about});
        let mut definition = define(
            "agent:ask_user@1.0.0",
            "Ask the user",
            "Asks the person for whom you work a question, with choices where there are some, and waits for the answer.",
            Effects { idempotent: false, ..Effects::READ },
            json!({
                "question": text(MAX_QUESTION, "The question, complete in itself."),
                "choices": {
                    "type": "array", "maxItems": MAX_CHOICES, "description": "What to choose from, the best first.",
                    "items": {
                        "type": "object",
                        "properties": {
                            "label": text(MAX_LABEL, "The choice."),
                            "description": text(MAX_LABEL, "What it means."),
                        },
                        "required": ["label"],
                        "additionalProperties": false,
                    },
                },
                "multiple": {"type": "boolean", "default": false, "description": "Whether several may be chosen."},
                "free_text": {"type": "boolean", "default": true, "description": "Whether the person may answer in own words instead of a choice."},
            }),
            &["question"],
        );
        definition.documentation = Some(ASK_MANUAL.into());
        // The inbox or client limits how long a person may take.
        definition.timeout = Some(TODO_TIME);
        definition.examples = vec![
            json!({"question": "Which database shall the service use?",
                   "choices": [{"label": "PostgreSQL", "description": "runs already"}, {"label": "SQLite"}]}),
            json!({"question": "What is the name of the release?"}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let question: Question = parse(arguments)?;
        if !context.client.capabilities().contains_key("elicitation") {
            return Ok(ToolOutput::failure(
                "Nobody can be asked here: the caller answers no questions. Decide by yourself, and say what you assumed.",
            ));
        }
        let request = ClientRequest { key: None, method: "elicitation/create".into(), params: question.form() };
        let answer = context.client.ask(vec![request]).await?.into_iter().next();
        let answer = match answer {
            Some(Ok(answer)) => answer,
            Some(Err(refusal)) => {
                return Ok(ToolOutput::failure(format!("The question could not be put: {}", refusal.message)));
            }
            None => return Err(ToolError::new(ErrorKind::InternalError, "the client gave no answer")),
        };
        Ok(match answer.get("action").and_then(Value::as_str) {
            Some("accept") => question.answered(answer.get("content").unwrap_or(&Value::Null)),
            Some("decline") => ToolOutput::failure("The person declined to answer. Go on without the answer."),
            _ => ToolOutput::failure("The person left without an answer. Go on without it, or end here."),
        })
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}

impl Question {
    /// Returns MCP's parameters of `elicitation/create`.
    fn form(&self) -> Value {
        let mut properties = Map::new();
        let mut required = Vec::new();
        if self.choices.is_empty() {
            properties.insert("answer".into(), json!({"type": "string", "title": "Answer", "minLength": 1}));
            required.push("answer");
        } else {
            let choice = |choice: &Choice| match &*choice.description {
                "" => json!({"const": choice.label, "title": choice.label}),
                about => json!({"const": choice.label, "title": format!("{} ({about})", choice.label)}),
            };
            let choices: Vec<Value> = self.choices.iter().map(choice).collect();
            let answer = match self.multiple {
                true => json!({"type": "array", "title": "Choices", "items": {"anyOf": choices}}),
                false => json!({"type": "string", "title": "Choice", "oneOf": choices}),
            };
            properties.insert("answer".into(), answer);
            if self.free_text {
                properties.insert("other".into(), json!({"type": "string", "title": "Other answer"}));
            } else {
                required.push("answer");
            }
        }
        let schema = json!({"type": "object", "properties": properties, "required": required});
        json!({"message": self.question, "requestedSchema": schema})
    }

    fn answered(&self, content: &Value) -> ToolOutput {
        let text = |value: Option<&Value>| match value {
            Some(Value::String(text)) if !text.is_empty() => Some(text.clone()),
            Some(Value::Array(items)) if !items.is_empty() => {
                Some(items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "))
            }
            _ => None,
        };
        let parts: Vec<String> =
            [text(content.get("answer")), text(content.get("other"))].into_iter().flatten().collect();
        if parts.is_empty() {
            return ToolOutput::failure("The person gave an empty answer. Go on without it.");
        }
        ToolOutput {
            structured: Some(content.clone()),
            ..ToolOutput::text(format!("The person answers: {}", parts.join("; ")))
        }
    }
}

const SKILL_MANUAL: &str = "\
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
        definition.documentation = Some(SKILL_MANUAL.into());
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
