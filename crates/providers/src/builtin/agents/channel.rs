//! The `channel` tools: agents write to named logs, and read what others wrote.

use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::catalogue::{CallScope, PromptPart};
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::duration::iso;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::{Session, SessionId};
use toolwright_core::store::channel::Channels;
use toolwright_core::store::{AppendedRow, Author, LogMessage, LogRow, MessageKind, NewRow, StoreError};
use toolwright_core::tool::Tool;

use crate::builtin::{define, parse};

/// The most characters of one message.
const MAX_MESSAGE: usize = 32_768;
/// The most messages of one read.
const MAX_READ: usize = 100;

/// Returns the tools of `channel`.
pub(super) fn tools(channels: &Channels) -> Vec<Arc<dyn Tool>> {
    vec![Arc::new(SendTool(channels.clone())), Arc::new(ReadTool(channels.clone()))]
}

/// Returns the part of both descriptions that is about channels.
fn about(channels: &Channels) -> String {
    let lines = channels.lines();
    let listed = if lines.is_empty() { String::new() } else { format!("Channels: {}. ", lines.join("; ")) };
    format!("{listed}Any other name is a channel of this session and the agents that it starts.")
}

fn name() -> Value {
    json!({"type": "string", "minLength": 1, "maxLength": 64, "description": "The channel's name."})
}

/// Writes to a channel.
struct SendTool(Channels);

#[derive(Deserialize)]
struct Sent {
    channel: String,
    message: String,
}

#[async_trait]
impl Tool for SendTool {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "channel:send@1.0.0",
            "Send to a channel",
            &format!("Writes a message to a channel, where other agents read it. {}", about(&self.0)),
            Effects { destructive: false, open_world: false, ..Effects::UNKNOWN },
            json!({
                "channel": name(),
                "message": {"type": "string", "minLength": 1, "maxLength": MAX_MESSAGE, "description": "What to say."},
            }),
            &["channel", "message"],
        );
        definition.concurrency = Concurrency::Ordered;
        definition.examples = vec![json!({"channel": "review", "message": "The parser is done; please review it."})];
        definition
    }

    fn prompt_part(&self) -> Option<PromptPart> {
        Some(PromptPart::Channels(self.0.lines().into()))
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Sent { channel: name, message } = parse(arguments)?;
        let (session, call) = (&context.session, &context.call_id);
        let address = match self.0.get(&name) {
            Ok(channel) => channel.mailbox(&name, session, &*context.services.log).await?,
            Err(why) => return Ok(ToolOutput::failure(why)),
        };
        let message =
            LogMessage { kind: MessageKind::Channel, subject: name.clone(), text: message, data: Value::Null };
        let row = NewRow::message(&address, &session.principal.id, Author::call(session, call), message);
        match context.services.log.append(row).await {
            Ok(AppendedRow { seq, missed }) => {
                let missed = named(&missed, context).await?;
                let text = format!("Sent to channel {name} as number {seq}.{}", not_reached(&missed));
                let mut structured = json!({"channel": name, "number": seq});
                if !missed.is_empty() {
                    structured["not_reached"] = json!(missed);
                }
                Ok(ToolOutput { structured: Some(structured), ..ToolOutput::text(text) })
            }
            Err(StoreError::Quota(why)) => Ok(ToolOutput::failure(format!("Channel {name}: {why}."))),
            Err(error) => Err(error.into()),
        }
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}

/// Reads a channel.
struct ReadTool(Channels);

#[derive(Deserialize)]
struct ChannelReadArguments {
    channel: String,
    #[serde(default)]
    limit: usize,
}

#[async_trait]
impl Tool for ReadTool {
    fn definition(&self) -> ToolDefinition {
        // It only moves the reader's own position in the log.
        let mut definition = define(
            "channel:read@1.0.0",
            "Read a channel",
            &format!("Reads what others wrote to a channel since this session read it last. {}", about(&self.0)),
            Effects { idempotent: false, ..Effects::READ },
            json!({
                "channel": name(),
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_READ, "default": 20,
                          "description": "Messages at most, the oldest first."},
            }),
            &["channel"],
        );
        definition.concurrency = Concurrency::Ordered;
        definition.examples = vec![json!({"channel": "review"})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let ChannelReadArguments { channel: name, limit } = parse(arguments)?;
        let channel = match self.0.get(&name) {
            Ok(channel) => channel,
            Err(why) => return Ok(ToolOutput::failure(why)),
        };
        let (log, reader) = (&context.services.log, &context.session.id);
        let address = channel.mailbox(&name, &context.session, &**log).await?;
        let limit = limit.clamp(1, MAX_READ);
        let rows = log.take(&address, channel.delivery, reader, &context.call_id, limit).await?;
        Ok(messages_output(&name, &rows))
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}

/// Returns the names of the group members with these sessions.
async fn named(sessions: &[SessionId], context: &ToolContext) -> Result<Vec<String>, StoreError> {
    if sessions.is_empty() {
        return Ok(Vec::new());
    }
    let members = context.services.groups.members(Some(&context.session.principal.id)).await?;
    let name = |session: &SessionId| {
        let member = members.iter().find(|member| member.session == *session);
        member.map_or_else(|| session.to_string(), |member| member.name.clone())
    };
    Ok(sessions.iter().map(name).collect())
}

/// Returns the note for a sender about members that did not get a message.
pub(super) fn not_reached(names: &[String]) -> String {
    match names {
        [] => String::new(),
        names => format!(" It did not reach {}: the mailbox is full. Send again later.", names.join(", ")),
    }
}

fn messages_output(name: &str, rows: &[LogRow]) -> ToolOutput {
    let messages = || rows.iter().filter_map(|row| Some((row, row.message()?)));
    let line =
        |(row, message): (&LogRow, &LogMessage)| format!("[{} {}] {}", iso(row.at_ms), row.author.name(), message.text);
    let mut lines: Vec<String> = messages().map(line).collect();
    if lines.is_empty() {
        lines.push(format!("There is nothing new in channel {name}."));
    }
    let json = |(row, message): (&LogRow, &LogMessage)| json!({"number": row.seq, "from": row.author.name(), "at": iso(row.at_ms), "text": message.text});
    let structured = json!({"channel": name, "messages": messages().map(json).collect::<Vec<_>>()});
    ToolOutput { structured: Some(structured), ..ToolOutput::text(lines.join("\n")) }
}
