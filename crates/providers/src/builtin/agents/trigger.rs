//! The `trigger` tools: each installs a trigger and returns its id.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::ToolId;
use toolwright_core::agents::unknown_agent;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::duration::iso;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::tool::Tool;
use toolwright_core::trigger::webhook::{DELIVERY, SIGNATURE, TIMESTAMP};
use toolwright_core::trigger::{
    Creator, InstalledTrigger, Target, TriggerConfig, TriggerKind, TriggerRequest, WEBHOOKS,
};

use crate::builtin::{BuiltinOptions, define};

/// A tool that installs triggers of one kind.
#[derive(Debug, Clone, PartialEq)]
pub struct TriggerTool {
    id: String,
    kind: TriggerKind,
    description: String,
    /// Preset arguments, which no caller can set.
    set: Map<String, Value>,
    /// The agents that it may name.
    agents: Vec<String>,
}

impl TriggerTool {
    /// Creates the tool of a kind: `trigger__timer` etc.
    #[must_use]
    pub fn of(kind: TriggerKind) -> Self {
        let description = match kind {
            TriggerKind::Timer => "Fires again and again after an interval.",
            TriggerKind::Schedule => "Fires at times of the clock: every so many minutes, hourly, daily, or by cron.",
            TriggerKind::Channel => "Fires when somebody else writes to a channel.",
            TriggerKind::File => "Fires when files of the workspace are saved, renamed or removed.",
            TriggerKind::Webhook => "Fires when a signed HTTP request arrives.",
        };
        let id = format!("trigger:{}@1.0.0", kind.as_str());
        Self { id, kind, description: description.to_owned(), set: Map::new(), agents: Vec::new() }
    }

    /// Creates a configured tool: `trigger__{name}`, with preset arguments.
    ///
    /// # Errors
    /// An invalid name, as a message.
    pub fn named(
        name: &str,
        kind: TriggerKind,
        description: Option<String>,
        set: Map<String, Value>,
    ) -> Result<Self, String> {
        let id = ToolId::format("trigger", name, "1.0.0").map_err(|error| error.to_string())?;
        let plain = Self::of(kind);
        Ok(Self { id: id.to_string(), description: description.unwrap_or(plain.description), set, ..plain })
    }

    /// Sets the agents that it may name.
    #[must_use]
    pub fn with_agents(self, agents: Vec<String>) -> Self {
        Self { agents, ..self }
    }
}

/// Returns the tools of the enabled kinds.
pub(super) fn tools(options: &BuiltinOptions) -> Vec<Arc<dyn Tool>> {
    let tool = |kind: &TriggerKind| Arc::new(TriggerTool::of(*kind).with_agents(options.agents.clone())) as _;
    options.triggers.iter().map(tool).collect()
}

#[async_trait]
impl Tool for TriggerTool {
    fn definition(&self) -> ToolDefinition {
        let text = |about: &str| json!({"type": "string", "minLength": 1, "description": about});
        let span = |about: &str| json!({"type": "string", "description": about});
        let (own, needs, example): (Value, &[&str], Value) = match self.kind {
            TriggerKind::Timer => (
                json!({
                    "interval": text("How often, like 10m or 2h."),
                    "immediate": {"type": "boolean", "default": false, "description": "Also fire now."},
                }),
                &["interval"],
                json!({"interval": "10m", "prompt": "Look whether the build has ended."}),
            ),
            TriggerKind::Schedule => (
                json!({
                    "every": {"type": "integer", "minimum": 1, "maximum": 1440, "description": "Every so many minutes."},
                    "hourly_at": {"type": "integer", "minimum": 0, "maximum": 59, "description": "At this minute of each hour."},
                    "daily_at": text("Each day at this time, like 07:30."),
                    "cron": text("Five fields, like `0 9 * * MON-FRI`."),
                    "time_zone": text("IANA name, like Europe/Oslo. Default: the machine's."),
                }),
                &[],
                json!({"daily_at": "07:30", "time_zone": "Europe/Oslo", "prompt": "Summarise yesterday's commits."}),
            ),
            TriggerKind::Channel => (
                json!({"channel": text("The channel."), "from": text("Only messages of this sender.")}),
                &["channel"],
                json!({"channel": "reviews", "prompt": "Review what is asked for."}),
            ),
            TriggerKind::File => (
                json!({
                    "globs": {"type": "array", "items": {"type": "string"}, "minItems": 1,
                              "description": "Which files, from the workspace root, like src/**/*.rs."},
                    "debounce": span("How long it must be quiet, like 2s."),
                }),
                &["globs"],
                json!({"globs": ["src/**/*.rs"], "prompt": "Run the tests."}),
            ),
            TriggerKind::Webhook => (
                json!({
                    "secret_env": {"type": "array", "items": {"type": "string"}, "minItems": 1,
                                   "description": "Environment variables of the server that have its secrets."},
                    "window": span("How old a request may be, like 5m."),
                }),
                &["secret_env"],
                json!({"secret_env": ["DEPLOY_HOOK_SECRET"], "prompt": "Say what was deployed."}),
            ),
        };
        let mut properties = Map::new();
        properties.insert("prompt".into(), text("What is to be done each time."));
        if let Value::Object(own) = own {
            properties.extend(own);
        }
        let deliver = json!({"enum": ["session", "run"],
            "description": "`session`: this conversation gets the prompt as a message; one that has ended reads it when it goes on. \
            `run`: a new run does it. Default: `session` in a chat, else `run`."});
        let overlap = json!({"enum": ["skip", "queue", "allow"],
            "description": "What becomes of a firing while an earlier one runs."});
        properties.extend([
            ("deliver".to_owned(), deliver),
            ("agent".to_owned(), text("The agent of the run, by name.")),
            ("overlap".to_owned(), overlap),
        ]);
        let required: Vec<&str> =
            ["prompt"].iter().chain(needs).copied().filter(|key| !self.set.contains_key(*key)).collect();
        properties.retain(|key, _| !self.set.contains_key(key));
        // The others have arguments preset by a configuration.
        let effects = Effects { destructive: false, open_world: false, ..Effects::UNKNOWN };
        let title = format!("Install a {} trigger", self.kind.as_str());
        let about = format!("{} Returns the trigger's id; job__stop removes it.", self.description);
        let mut definition = define(&self.id, &title, &about, effects, properties.into(), &required);
        if self.set.is_empty() {
            definition.examples = vec![example];
        }
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Value::Object(mut written) = arguments else {
            return Err(ToolError::new(ErrorKind::InvalidParameters, "the arguments are no object"));
        };
        written.extend(self.set.clone());
        let target = match written.shift_remove("deliver").as_ref().and_then(Value::as_str) {
            Some("run") => Target::Run,
            Some("session") => Target::Session(context.session.id.clone()),
            // The mailbox of an ended run has no reader.
            _ if context.calls.reads_mailbox() && !written.contains_key("agent") => {
                Target::Session(context.session.id.clone())
            }
            _ => Target::Run,
        };
        written.insert("type".into(), self.kind.as_str().into());
        let config = TriggerConfig::parse(&written)
            .map_err(|said| ToolError::new(ErrorKind::InvalidParameters, said.clone()).with_model_message(said))?;
        let known = self.agents.iter().map(String::as_str);
        if let Some(agent) = config.agent.as_deref().filter(|agent| !known.clone().any(|known| known == *agent)) {
            return Ok(ToolOutput::failure(unknown_agent(agent, known)));
        }
        let rights = context
            .calls
            .rights()
            .ok_or_else(|| ToolError::new(ErrorKind::InternalError, "a trigger cannot be installed from here"))?;
        let request =
            TriggerRequest { id: None, config, target, rights, creator: Creator::Session(context.session.id.clone()) };
        Ok(installed_output(&context.services.triggers.install(request).await?))
    }

    /// It makes no calls, but the trigger gets the rights of its run.
    fn awaits_others(&self) -> bool {
        true
    }
}

/// Returns an installed trigger, equally in text and structure.
fn installed_output(installed: &InstalledTrigger) -> ToolOutput {
    let trigger = &installed.trigger;
    let next: Vec<String> = installed.next.iter().map(|slot| iso(*slot)).collect();
    let mut message = format!("{}.", trigger.line());
    if let Some(first) = next.first() {
        message.push_str(&format!(" It fires next at {first}."));
    }
    if trigger.config.kind == TriggerKind::Webhook {
        message.push_str(&format!(
            " Requests go to {WEBHOOKS}/{} of the HTTP server, with {TIMESTAMP}, {SIGNATURE} and, for each delivery, \
             {DELIVERY}.",
            trigger.id
        ));
    }
    if !installed.is_run {
        message.push_str(" No process runs triggers now: `toolwright serve` and `toolwright chat` do.");
    }
    message.push_str(" job__stop with this id removes it.");
    let note = json!({"trigger": trigger.id, "fires": trigger.config.describe(), "next": next, "message": message});
    ToolOutput { structured: Some(note), ..ToolOutput::text(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_keys_of_a_trigger() {
        let keys = schemars::schema_for!(TriggerConfig);
        for kind in TriggerKind::ALL {
            let definition = TriggerTool::of(kind).definition();
            let properties = &definition.parameters.as_ref().expect("schema")["properties"];
            for (name, argument) in
                properties.as_object().expect("properties").iter().filter(|(name, _)| *name != "deliver")
            {
                let key = &keys.as_value()["properties"][name];
                assert!(key.is_object(), "{kind:?}: {name}");
                for bound in ["minimum", "maximum"] {
                    assert_eq!(
                        argument[bound],
                        if argument["type"] == "integer" { key[bound].clone() } else { Value::Null }
                    );
                }
            }
            let mut example = definition.examples[0].as_object().expect("example").clone();
            example.insert("type".into(), kind.as_str().into());
            TriggerConfig::parse(&example).expect("example").when(0, "UTC").expect("fires");
        }
    }
}
