//! The `group` tools: add permanent agents, send them messages, and connect channels to them.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::agents::unknown_agent;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::{Session, SessionId};
use toolwright_core::store::channel::{ChannelConfig, ChannelScope, Channels};
use toolwright_core::store::group::{Member, is_privileged};
use toolwright_core::store::{Author, LogMessage, MessageKind, NewRow, StoreError};
use toolwright_core::tool::Tool;

use super::channel::not_reached;
use crate::builtin::{BuiltinOptions, define, parse};

/// The most characters of a message and of instructions.
const MAX_TEXT: usize = 32_768;
/// The most characters of a name.
const MAX_NAME: usize = 64;

/// The action of a group tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GroupAction {
    AddAgent,
    RemoveAgent,
    Start,
    Stop,
    Channel,
    Wire,
    Send,
    Status,
}

struct GroupTool {
    verb: GroupAction,
    channels: Channels,
    /// The names of the agents.
    agents: Vec<String>,
    /// The agents that may change groups.
    privileged: Vec<String>,
}

/// Returns the tools of `group`.
pub(super) fn tools(options: &BuiltinOptions) -> Vec<Arc<dyn Tool>> {
    use GroupAction::{AddAgent, Channel, RemoveAgent, Send, Start, Status, Stop, Wire};
    let verbs = [AddAgent, RemoveAgent, Start, Stop, Channel, Wire, Send, Status];
    let BuiltinOptions { channels, agents, privileged, .. } = options;
    let tool =
        |verb| GroupTool { verb, channels: channels.clone(), agents: agents.clone(), privileged: privileged.clone() };
    verbs.into_iter().map(|verb| Arc::new(tool(verb)) as _).collect()
}

#[derive(Deserialize)]
struct Arguments {
    #[serde(default)]
    name: String,
    #[serde(default)]
    agent: String,
    instructions: Option<String>,
    #[serde(default)]
    privileged: bool,
    #[serde(default)]
    channel: String,
    #[serde(default)]
    message: String,
    #[serde(default = "yes")]
    wired: bool,
}

fn yes() -> bool {
    true
}

#[async_trait]
impl Tool for GroupTool {
    fn definition(&self) -> ToolDefinition {
        let text = |about: &str, most: usize| json!({"type": "string", "minLength": 1, "maxLength": most, "description": about});
        let name = || text("The member's name.", MAX_NAME);
        let channel = || text("The channel's name.", MAX_NAME);
        let write = Effects { destructive: false, open_world: false, ..Effects::UNKNOWN };
        let again = Effects { idempotent: true, ..write };
        let (id, title, about, effects, properties, required): (_, _, _, _, _, &[&str]) = match self.verb {
            GroupAction::AddAgent => (
                "add_agent",
                "Add an agent",
                "Adds an agent to the group, stopped. It stays, has a mailbox, and works whenever a message comes.",
                write,
                json!({
                    "name": name(),
                    "agent": text("Which agent it is: its name in the configuration. Without it, the default model.", MAX_NAME),
                    "instructions": text("What it is told to be and do.", MAX_TEXT),
                    "privileged": {"type": "boolean", "default": false, "description": "Whether it may change the group."},
                }),
                &["name"],
            ),
            GroupAction::RemoveAgent => (
                "remove_agent",
                "Remove an agent",
                "Removes an agent from the group.",
                Effects { idempotent: true, open_world: false, ..Effects::UNKNOWN },
                json!({"name": name()}),
                &["name"],
            ),
            GroupAction::Start => (
                "start",
                "Start an agent",
                "Lets an agent of the group work on its messages, with a first one if you like.",
                again,
                json!({"name": name(), "message": text("A first message.", MAX_TEXT)}),
                &["name"],
            ),
            GroupAction::Stop => (
                "stop",
                "Stop an agent",
                "Lets an agent of the group rest; its messages wait.",
                again,
                json!({"name": name()}),
                &["name"],
            ),
            GroupAction::Channel => (
                "channel",
                "Write to a channel of the group",
                "Writes a message to a channel for all that are wired to it or read it.",
                write,
                json!({"channel": channel(), "message": text("What to say.", MAX_TEXT)}),
                &["channel", "message"],
            ),
            GroupAction::Wire => (
                "wire",
                "Wire an agent to a channel",
                "From now on, what others write to a channel reaches an agent as a message and wakes it.",
                again,
                json!({
                    "channel": channel(),
                    "name": name(),
                    "wired": {"type": "boolean", "default": true, "description": "false: no more."},
                }),
                &["channel", "name"],
            ),
            GroupAction::Send => (
                "send",
                "Send to an agent",
                "Sends a message to one agent of the group, or answers whoever wrote to this one. An answer comes as a message.",
                write,
                json!({"name": text("The member's name, or the sender's as a message showed it.", 2 * MAX_NAME), "message": text("What to say.", MAX_TEXT)}),
                &["name", "message"],
            ),
            GroupAction::Status => (
                "status",
                "Group status",
                "Lists the agents of the group and how each is doing.",
                Effects::READ,
                json!({}),
                &[],
            ),
        };
        let mut definition = define(&format!("group:{id}@1.0.0"), title, about, effects, properties, required);
        definition.concurrency = Concurrency::Ordered;
        definition.examples = vec![match self.verb {
            GroupAction::AddAgent => {
                json!({"name": "scout", "instructions": "You look for the causes of failing tests."})
            }
            GroupAction::RemoveAgent | GroupAction::Start | GroupAction::Stop => json!({"name": "scout"}),
            GroupAction::Channel => json!({"channel": "news", "message": "The build is green."}),
            GroupAction::Wire => json!({"channel": "news", "name": "scout"}),
            GroupAction::Send => json!({"name": "scout", "message": "Look at the failing test."}),
            GroupAction::Status => json!({}),
        }];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: Arguments = parse(arguments)?;
        match self.answer(arguments, context).await {
            Ok(output) => Ok(output),
            Err(StoreError::Quota(why) | StoreError::Refused(why)) => Ok(ToolOutput::failure(why)),
            Err(StoreError::NotFound(what)) => {
                Ok(ToolOutput::failure(format!("There is no {what}. group__status lists those there are.")))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }

    /// It makes no calls, but an added member gets the rights of its run.
    fn awaits_others(&self) -> bool {
        self.verb == GroupAction::AddAgent
    }
}

impl GroupTool {
    async fn answer(&self, arguments: Arguments, context: &ToolContext) -> Result<ToolOutput, StoreError> {
        let (groups, session) = (&context.services.groups, &context.session);
        let principal = &*session.principal.id;
        let members = groups.members(Some(principal)).await?;
        let is_open = matches!(self.verb, GroupAction::Send | GroupAction::Status);
        if !is_open && !is_privileged(session, &members, &self.privileged) {
            return Ok(ToolOutput::failure(
                "Only the person and privileged agents may change the group. group__send is open to you.",
            ));
        }
        let name = &*arguments.name;
        let member = || members.iter().find(|member| member.name == name).ok_or_else(|| unknown(name));
        match self.verb {
            GroupAction::AddAgent => {
                let known = self.agents.iter().map(String::as_str);
                if !arguments.agent.is_empty() && !known.clone().any(|known| known == arguments.agent) {
                    return Ok(ToolOutput::failure(unknown_agent(&arguments.agent, known)));
                }
                let Some(rights) = context.calls.rights() else {
                    return Err(StoreError::Refused("an agent cannot be added from here".into()));
                };
                let created_ms = context.services.clock.wall_ms();
                let added = Member {
                    name: arguments.name.clone(),
                    rights,
                    agent: arguments.agent,
                    instructions: arguments.instructions,
                    // A later member of the same name is a different one.
                    session: SessionId::new(format!("group-{principal}-{name}-{created_ms}")),
                    privileged: arguments.privileged,
                    started: false,
                    is_driven: false,
                    created_ms,
                    waiting: 0,
                };
                groups.add(added).await?;
                Ok(done(format!("Added {name}. It is stopped; group__start starts it.")))
            }
            GroupAction::RemoveAgent => {
                groups.remove(principal, name).await?;
                Ok(done(format!("Removed {name}.")))
            }
            GroupAction::Start => {
                let member = member()?;
                if !arguments.message.is_empty() {
                    send(context, &members, (name, &member.session), arguments.message).await?;
                }
                groups.set_started(principal, name, true).await?;
                Ok(done(format!("{name} is started. `toolwright serve` and `chat` run it.")))
            }
            GroupAction::Stop => {
                groups.set_started(principal, name, false).await?;
                Ok(done(format!("{name} is stopped; its messages wait.")))
            }
            GroupAction::Channel => {
                let to = self.channel(&arguments.channel, context).await?;
                let message = message(MessageKind::Channel, &arguments.channel, arguments.message);
                let author = author(context, &members);
                let row = NewRow::message(&to, principal, author, message);
                let missed = context.services.log.append(row).await?.missed;
                let missed = members.iter().filter(|member| missed.contains(&member.session));
                let missed: Vec<String> = missed.map(|member| member.name.clone()).collect();
                Ok(done(format!("Sent to channel {}.{}", arguments.channel, not_reached(&missed))))
            }
            GroupAction::Wire => {
                let channel = self.channel(&arguments.channel, context).await?;
                groups.wire(&channel, &member()?.session, arguments.wired).await?;
                let how = if arguments.wired { "now wakes" } else { "no longer wakes" };
                Ok(done(format!("Channel {} {how} {name}.", arguments.channel)))
            }
            GroupAction::Send => {
                let to = match member() {
                    Ok(member) => member.session.clone(),
                    Err(unknown) => sender(context, name).await?.ok_or(unknown)?,
                };
                send(context, &members, (name, &to), arguments.message).await?;
                Ok(done(format!("Sent to {name}.")))
            }
            GroupAction::Status => Ok(status(&members)),
        }
    }

    /// Returns the mailbox of a channel of the group. It is shared, because each member has its own session.
    async fn channel(&self, name: &str, context: &ToolContext) -> Result<SessionId, StoreError> {
        let channel = self.channels.get(name).map_err(StoreError::Refused)?;
        let channel = ChannelConfig { reach: ChannelScope::Shared, ..channel };
        channel.mailbox(name, &context.session, &*context.services.log).await
    }
}

fn unknown(name: &str) -> StoreError {
    let shown: String = name.chars().take(MAX_NAME).collect();
    StoreError::NotFound(format!("member `{shown}` of the group"))
}

fn done(message: String) -> ToolOutput {
    ToolOutput { structured: Some(json!({"message": message})), ..ToolOutput::text(message) }
}

fn message(kind: MessageKind, subject: &str, text: String) -> LogMessage {
    LogMessage { kind, subject: subject.to_owned(), text, data: Value::Null }
}

/// Returns the author of a message: a member, by its name.
fn author(context: &ToolContext, members: &[Member]) -> Author {
    let author = Author::call(&context.session, &context.call_id);
    match members.iter().find(|member| member.session == context.session.id) {
        Some(member) => Author { agent: Some(member.name.clone()), ..author },
        None => author,
    }
}

/// Sends a message to the session that models know by this name.
async fn send(
    context: &ToolContext,
    members: &[Member],
    (name, to): (&str, &SessionId),
    text: String,
) -> Result<(), StoreError> {
    let author = author(context, members);
    let message = message(MessageKind::Group, author.name(), text);
    let row = NewRow::message(to, &context.session.principal.id, author, message);
    context.services.log.append(row).await.map(drop).map_err(|error| match error {
        StoreError::Quota(why) => StoreError::Quota(why.replace(to.as_str(), name)),
        error => error,
    })
}

/// Returns the session of the author, shown under this name, of a message to this session, so that it can be answered.
async fn sender(context: &ToolContext, name: &str) -> Result<Option<SessionId>, StoreError> {
    let rows = context.services.log.messages(&context.session.id, 0, usize::MAX).await?;
    Ok(rows.into_iter().rev().find(|row| row.author.name() == name).and_then(|row| row.author.session))
}

fn status(members: &[Member]) -> ToolOutput {
    let lines: Vec<String> = members.iter().map(Member::line).collect();
    let text = if lines.is_empty() { "The group has no members.".into() } else { lines.join("\n") };
    let members: Vec<Value> = members.iter().map(Member::to_json).collect();
    ToolOutput { structured: Some(json!({"members": members})), ..ToolOutput::text(text) }
}
