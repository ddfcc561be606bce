//! Defines channels: bounded named logs that agents write to and read from. A channel is a mailbox of the session log.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::session_log::SessionLog;
use crate::identity::session::{Session, SessionId};
use crate::pattern::nearest;

/// Prefix of channels' mailboxes.
const MAILBOX: &str = "channel/";

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
pub enum ChannelScope {
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
    pub reach: ChannelScope,
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
            let quoted_name: String = name.chars().take(MAX_NAME).collect();
            return Err(format!(
                "`{quoted_name}` is not the name of a channel: it has 1 to {MAX_NAME} letters, digits, `-`, `_` and `.`"
            ));
        }
        Ok(self.0.get(name).cloned().unwrap_or_default())
    }

    /// Returns why nobody outside a session can read this channel, if so: its name is illegal, or it is private. Names
    /// the configured channel that is nearest to an unknown one.
    #[must_use]
    pub fn unreachable(&self, name: &str) -> Option<String> {
        match self.get(name) {
            Err(why) => Some(why),
            Ok(ChannelConfig { reach: ChannelScope::Private, .. }) => {
                let near = nearest(name, self.0.keys().map(String::as_str)).filter(|_| !self.0.contains_key(name));
                let near = near.map(|near| format!("did you mean `{near}`? Otherwise ")).unwrap_or_default();
                Some(format!(
                    "channel {name} is private to a session and its agents, so this trigger would never fire: {near}write \
                     `channels: {{{name}: {{reach: shared}}}}` in the configuration"
                ))
            }
            Ok(_) => None,
        }
    }

    /// Describes each channel in one line, for the manuals of the channel tools.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let line = |(name, channel): (&String, &ChannelConfig)| {
            let delivery = match channel.delivery {
                Delivery::Broadcast => "broadcast",
                Delivery::Queue => "queue",
            };
            let reach = match channel.reach {
                ChannelScope::Private => "private",
                ChannelScope::Shared => "shared",
            };
            let about = channel.description.as_deref().map(|about| format!(": {about}")).unwrap_or_default();
            format!("{name} ({reach} {delivery}){about}")
        };
        self.0.iter().map(line).collect()
    }
}

impl ChannelConfig {
    /// Returns the mailbox of the channel `name` as seen by `session`. A private channel belongs to the session's whole
    /// tree of agents.
    ///
    /// # Errors
    /// Those of the log.
    pub async fn mailbox(&self, name: &str, session: &Session, log: &dyn SessionLog) -> Result<SessionId, StoreError> {
        Ok(match self.reach {
            ChannelScope::Private => {
                SessionId::new(format!("{MAILBOX}session/{}/{name}", log.root(&session.id).await?))
            }
            ChannelScope::Shared => SessionId::new(format!("{MAILBOX}principal/{}/{name}", session.principal.id)),
        })
    }
}

/// Returns the name of a mailbox for its writers: a channel's own name.
#[must_use]
pub fn mailbox_name(mailbox: &SessionId) -> String {
    let channel = mailbox.as_str().strip_prefix(MAILBOX).and_then(|rest| rest.rsplit('/').next());
    channel.map_or_else(|| mailbox.to_string(), |name| format!("channel {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::session::Principal;

    #[test]
    fn channels_have_legal_names_and_defaults() {
        let channels = Channels(BTreeMap::from([(
            "jobs".into(),
            ChannelConfig {
                delivery: Delivery::Queue,
                reach: ChannelScope::Shared,
                description: Some("Work to do".into()),
            },
        )]));
        assert_eq!(channels.get("other"), Ok(ChannelConfig::default()));
        assert_eq!(channels.get("jobs").map(|channel| channel.delivery), Ok(Delivery::Queue));
        for name in ["", "a/b", "a b", &"x".repeat(65)] {
            assert!(channels.get(name).is_err_and(|why| why.contains("not the name of a channel")), "{name}");
        }
        assert_eq!(channels.unreachable("jobs"), None);
        assert!(channels.unreachable("other").is_some_and(|why| why.contains("never fire: write `channels: {other:")));
        assert!(channels.unreachable("job").is_some_and(|why| why.contains("did you mean `jobs`? Otherwise write")));
        assert_eq!(channels.lines(), ["jobs (shared queue): Work to do"]);
    }

    /// Sessions whose ids share a prefix are in one tree.
    struct Trees;

    #[async_trait::async_trait]
    impl SessionLog for Trees {
        async fn root(&self, session: &SessionId) -> Result<SessionId, StoreError> {
            Ok(SessionId::new(session.as_str().get(..1).unwrap_or_default()))
        }
    }

    #[test]
    fn private_channels_are_apart_and_shared_ones_not() {
        let mailbox = |reach, id: &str| {
            let session =
                Session { id: SessionId::new(id), principal: Principal::owner(), root: "/".into(), agent: None };
            let channel = ChannelConfig { reach, ..ChannelConfig::default() };
            futures_util::FutureExt::now_or_never(channel.mailbox("news", &session, &Trees))
                .expect("ready")
                .expect("read")
        };
        assert_ne!(mailbox(ChannelScope::Private, "a"), mailbox(ChannelScope::Private, "b"));
        assert_eq!(mailbox(ChannelScope::Private, "a-child"), mailbox(ChannelScope::Private, "a"));
        assert_eq!(mailbox(ChannelScope::Shared, "a"), mailbox(ChannelScope::Shared, "b"));
        let shared = mailbox(ChannelScope::Shared, "a");
        assert_eq!((&*mailbox_name(&shared), &*mailbox_name(&SessionId::new("a"))), ("channel news", "a"));
    }
}
