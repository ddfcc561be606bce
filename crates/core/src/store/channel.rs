//! Channels: bounded named logs that agents write to and read from. A channel is a mailbox of the session log.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::session_log::LogRow;
use crate::identity::session::{Session, SessionId};

/// Characters of a channel's name.
const MAX_NAME: usize = 64;

/// Who gets a message of a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// Every reader, each from where it ended.
    #[default]
    Broadcast,
    /// One reader: the first that takes it.
    Queue,
}

/// Who shares a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reach {
    /// The agents of one session and those that it started.
    #[default]
    Private,
    /// All sessions of the same principal.
    Shared,
}

/// An entry of `channels`. A channel without an entry is private and broadcasts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelConfig {
    /// Who gets a message: `broadcast` (every reader) or `queue` (the first that takes it).
    #[serde(alias = "type")]
    pub delivery: Delivery,
    /// Who shares it: `private` (a session and the agents that it starts) or `shared` (all sessions of the principal).
    #[serde(alias = "scope")]
    pub reach: Reach,
    /// What it is for, as agents are told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// The channels that are configured.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Channels(pub BTreeMap<String, ChannelConfig>);

impl Channels {
    /// The configuration of a channel.
    ///
    /// # Errors
    /// A name that no channel can have, in words.
    pub fn get(&self, name: &str) -> Result<ChannelConfig, String> {
        let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(is_legal) {
            let shown: String = name.chars().take(MAX_NAME).collect();
            return Err(format!(
                "`{shown}` is no name of a channel: it has 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`"
            ));
        }
        Ok(self.0.get(name).cloned().unwrap_or_default())
    }

    /// One line for each channel, for the manuals of the tools that use them.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |(name, channel): (&String, &ChannelConfig)| {
            let delivery = match channel.delivery {
                Delivery::Broadcast => "broadcast",
                Delivery::Queue => "queue",
            };
            let reach = match channel.reach {
                Reach::Private => "private",
                Reach::Shared => "shared",
            };
            let about = channel.description.as_deref().map(|about| format!(": {about}")).unwrap_or_default();
            format!("{name} ({reach} {delivery}){about}")
        };
        self.0.iter().map(line).collect()
    }
}

impl ChannelConfig {
    /// The mailbox of the channel `name` as `session` sees it: of a private one, the session that began the tree of agents
    /// ([`SessionLog::root`](super::SessionLog::root)).
    #[must_use]
    pub fn address(&self, name: &str, session: &Session) -> SessionId {
        match self.reach {
            Reach::Private => SessionId::new(format!("channel/session/{}/{name}", session.id)),
            Reach::Shared => SessionId::new(format!("channel/principal/{}/{name}", session.principal.id)),
        }
    }
}

/// Whether a reader gets a message of a channel: its own are left out.
#[must_use]
pub fn is_for(row: &LogRow, reader: &SessionId) -> bool {
    row.author.session.as_ref() != Some(reader)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::session::Principal;

    #[test]
    fn channels_have_legal_names_and_defaults() {
        let channels = Channels(BTreeMap::from([(
            "jobs".into(),
            ChannelConfig { delivery: Delivery::Queue, reach: Reach::Shared, description: Some("Work to do".into()) },
        )]));
        assert_eq!(channels.get("other"), Ok(ChannelConfig::default()));
        assert_eq!(channels.get("jobs").map(|channel| channel.delivery), Ok(Delivery::Queue));
        for name in ["", "a/b", "a b", &"x".repeat(65)] {
            assert!(channels.get(name).is_err_and(|why| why.contains("no name of a channel")), "{name}");
        }
        assert_eq!(channels.lines(), ["jobs (shared queue): Work to do"]);
    }

    #[test]
    fn private_channels_are_apart_and_shared_ones_not() {
        let session =
            |id: &str| Session { id: SessionId::new(id), principal: Principal::owner(), root: "/".into(), agent: None };
        let address = |reach, id| ChannelConfig { reach, ..ChannelConfig::default() }.address("news", &session(id));
        assert_ne!(address(Reach::Private, "a"), address(Reach::Private, "b"));
        assert_eq!(address(Reach::Shared, "a"), address(Reach::Shared, "b"));
    }
}
