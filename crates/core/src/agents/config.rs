//! Configures an agent: its model, instructions, tools, rights and limits, as a file or an entry of `agents` has them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::model::ModelSettings;
use crate::policy::{AgentLimits, Effect, Policy, Profile, Rule};

/// Maximum characters of an agent's name.
const MAX_NAME: usize = 40;
/// Names that tools of the namespace `agent` have.
const RESERVED: [&str; 6] = ["final_report", "task_status", "batch", "todo", "ask_user", "skill"];

/// An agent: a model with a prompt, its tools and its limits. An agent never gets more than whoever starts it has: tools,
/// policy and limits only narrow.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AgentConfig {
    /// Its name: lower-case letters, digits, `_` and `-`. As a tool it is `agent__{name}`.
    // The key of its entry, or the name in its file.
    #[schemars(skip)]
    pub name: String,
    /// Whether it is used. Default: true; with `false` no other agent of its name is used either.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// When to use it. Models that may start it read this.
    pub description: String,
    /// Its instructions, the beginning of its system prompt. In an agent file the text after the front matter.
    pub prompt: String,
    /// The model, `provider/model`, or one of the names under `models.aliases`. Default: the model of whoever starts it,
    /// else `models.default`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How its model answers.
    #[serde(skip_serializing_if = "ModelSettings::is_empty")]
    pub settings: ModelSettings,
    /// Tools that it may use, as globs on ids and names; an empty list means none. Default: all tools of whoever starts
    /// it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Tools that it may not use, as globs. Applied after `tools`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub disallowed_tools: Vec<String>,
    /// Skills whose text is in its prompt from the start, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<String>,
    /// Limits of each of its runs.
    #[serde(skip_serializing_if = "AgentLimits::is_empty")]
    pub limits: AgentLimits,
    /// JSON Schema of its report. Default: the report is text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<Map<String, Value>>,
    /// Agents that it may hand the user's request to.
    #[serde(skip_serializing_if = "Router::is_empty")]
    pub router: Router,
    /// Triggers that start it.
    // Checked by who installs them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Map<String, Value>>,
    /// Whether it always runs as a background job.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub background: bool,
    /// What happens to its calls where no rule matches. The stricter of this profile and that of whoever starts it
    /// counts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<Profile>,
    /// Rules for its calls, before those of the configuration. They may only deny.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// What happens to agents that still run when it gives its report.
    #[serde(skip_serializing_if = "OnChildren::is_default")]
    pub on_children: OnChildren,
    /// Whether it may change groups of agents.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub privileged: bool,
    /// Whether references like `†state.x` are also replaced in arguments for tools of other servers. Default: these
    /// tools get the text that its model wrote.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub foreign_references: bool,
}

impl AgentConfig {
    /// The policy with this agent's rules first.
    #[must_use]
    pub fn with_agent_rules(&self, policy: &Policy) -> Policy {
        let own = self.rules.iter().filter(|rule| rule.effect == Effect::Deny);
        Policy { rules: own.chain(&policy.rules).cloned().collect(), ..policy.clone() }
    }
}

/// Hand-off: with destinations an agent has the tool `router__handoff-to`. The agent that is chosen answers the user.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Router {
    /// The agents that it may choose, by name.
    #[schemars(length(max = 64))]
    pub destinations: Vec<HandoffDestination>,
}

impl Router {
    /// Whether there is no destination.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.destinations.is_empty()
    }

    /// The destination of this name.
    #[must_use]
    pub fn destination(&self, name: &str) -> Option<&HandoffDestination> {
        self.destinations.iter().find(|destination| destination.agent == name)
    }
}

/// An agent that a request may be handed to: its name alone, or with settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(from = "RawDestination")]
#[schemars(with = "RawDestination")]
pub struct HandoffDestination {
    /// The agent.
    pub agent: String,
    /// What it sees of the conversation.
    pub history: History,
    /// Whether it may hand the request back.
    pub may_return: bool,
    /// When to choose it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// A destination as it is written.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum RawDestination {
    /// The name of an agent, which sees the whole conversation and may not hand it back.
    Name(String),
    /// An agent with settings.
    Full(FullDestination),
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FullDestination {
    /// The agent.
    agent: String,
    /// What it sees of the conversation.
    #[serde(default)]
    history: History,
    /// Whether it may hand the request back.
    #[serde(default)]
    may_return: bool,
    /// When to choose it. Default: what that agent's description says.
    #[serde(default)]
    description: String,
}

impl From<RawDestination> for HandoffDestination {
    fn from(written: RawDestination) -> Self {
        match written {
            RawDestination::Name(agent) => {
                Self { agent, history: History::All, may_return: false, description: String::new() }
            }
            RawDestination::Full(FullDestination { agent, history, may_return, description }) => {
                Self { agent, history, may_return, description }
            }
        }
    }
}

/// What an agent that a request is handed to sees of the conversation so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum History {
    /// All of it, calls and results as text.
    #[default]
    All,
    /// What the user wrote.
    UserMessages,
    /// The last message of the user.
    Last,
    /// The last message of the user, and a summary of what was before.
    Summary,
}

/// What happens to agents that still run when the one that started them gives its report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnChildren {
    /// It ends once they have ended, within its own time.
    #[default]
    Wait,
    /// They are cancelled.
    Cancel,
    /// They go on by themselves.
    Detach,
}

impl OnChildren {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it by reference")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Why a text is not the name of an agent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// It is empty.
    #[error("the name is empty")]
    Empty,
    /// It is too long.
    #[error("a name has at most {MAX_NAME} characters")]
    TooLong,
    /// It has other characters.
    #[error("a name has lower-case letters, digits, `_` and `-`, and begins with a letter; `{0}` would be one")]
    Illegal(String),
    /// A tool has it.
    #[error("the tool agent__{0} has this name")]
    Reserved(String),
}

/// Checks the name of an agent.
///
/// # Errors
/// The rule that the name breaks.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > MAX_NAME {
        return Err(NameError::TooLong);
    }
    let is_legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if !name.chars().all(is_legal) || !name.starts_with(|c: char| c.is_ascii_lowercase()) {
        return Err(NameError::Illegal(legal_name(name)));
    }
    if RESERVED.contains(&name) {
        return Err(NameError::Reserved(name.to_owned()));
    }
    Ok(())
}

/// Returns the nearest legal name: `Code Reviewer` becomes `code-reviewer`. Empty if no character is legal.
#[must_use]
pub fn legal_name(name: &str) -> String {
    let mut legal = String::with_capacity(name.len().min(MAX_NAME));
    for c in name.trim().chars() {
        match c.to_ascii_lowercase() {
            c if c.is_ascii_lowercase() => legal.push(c),
            c if (c.is_ascii_digit() || c == '_') && !legal.is_empty() => legal.push(c),
            _ if !legal.is_empty() && !legal.ends_with('-') => legal.push('-'),
            _ => {}
        }
    }
    legal.truncate(MAX_NAME);
    legal.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_destination_is_a_name_or_has_settings() {
        let config: AgentConfig = serde_json::from_value(json!({
            "router": {"destinations": ["billing", {"agent": "legal", "history": "user_messages", "may_return": true}]},
            "limits": {"turns": 3, "time": "5m", "cost": 0.5},
        }))
        .expect("a spec");
        let destination = |agent: &str, history, may_return| HandoffDestination {
            agent: agent.into(),
            history,
            may_return,
            description: String::new(),
        };
        let full = destination("legal", History::UserMessages, true);
        let plain = destination("billing", History::All, false);
        assert_eq!(config.router.destinations, [plain, full]);
        let again: AgentConfig = serde_json::from_value(json!(config)).expect("what is written is read");
        assert_eq!(again, config);
    }

    #[test]
    fn an_agents_rules_come_first_and_only_deny() {
        let policy = Policy { rules: vec![Rule::allow("fs:*")], ..Policy::default() };
        let rules = vec![Rule::deny("fs:write"), Rule::allow("shell:*"), Rule::ask("web:*")];
        let agent = AgentConfig { rules, ..AgentConfig::default() };
        assert_eq!(agent.with_agent_rules(&policy).rules, [Rule::deny("fs:write"), Rule::allow("fs:*")]);
    }

    #[test]
    fn names_are_checked_and_repaired() {
        for (name, legal, error) in [
            ("reviewer", "reviewer", None),
            ("Code Reviewer", "code-reviewer", Some("`code-reviewer` would be one")),
            ("7 Über-Agents!", "ber-agents", Some("would be one")),
            ("batch", "batch", Some("agent__batch")),
            ("", "", Some("empty")),
            (&"a".repeat(41), &"a".repeat(40), Some("at most 40")),
        ] {
            assert_eq!(legal_name(name), legal, "{name}");
            let reported = check_name(name).err().map(|error| error.to_string());
            assert_eq!(reported.is_some(), error.is_some(), "{name}: {reported:?}");
            assert!(reported.unwrap_or_default().contains(error.unwrap_or_default()), "{name}");
        }
    }
}
