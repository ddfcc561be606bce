//! The two generations of the protocol, their revisions, the keys that both sides read in `_meta`, and the levels of log
//! messages.

use serde_json::Value;

/// Revisions with `initialize`, newest first.
pub const LEGACY_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Revisions without sessions, newest first.
pub const MODERN_VERSIONS: [&str; 1] = ["2026-07-28"];

/// The only revision with batches of messages as a JSON array (basic, "Batching").
pub const BATCHING: &str = "2025-03-26";

/// `_meta` key of a subscription's id.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// `_meta` key of the server's identity in a modern result.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// `_meta` key of the client's identity in a modern request.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// `_meta` key of the revision of a modern request.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// `_meta` key of the client's capabilities in a modern request.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// `_meta` key of the least severe log message that the maker of a modern request wants.
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";

/// Generation of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Era {
    /// With `initialize`; up to 2025-11-25.
    Legacy,
    /// Stateless; from 2026-07-28.
    Modern,
}

impl Era {
    /// Whether this `nextCursor` of a server leads to another page. From 2026-07-28 an empty one does
    /// (server/utilities/pagination); older servers write an empty one at the end.
    #[must_use]
    pub fn has_next_page(self, cursor: &str) -> bool {
        self == Self::Modern || !cursor.is_empty()
    }
}

/// Returns the revision for the answer to `initialize`: the client's if supported, else our newest.
#[must_use]
pub fn negotiate(requested: Option<&str>) -> &'static str {
    LEGACY_VERSIONS.into_iter().find(|version| Some(*version) == requested).unwrap_or(LEGACY_VERSIONS[0])
}

/// Severity of a log message (`LoggingLevel`, in the words of RFC 5424), in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// Debugging information.
    Debug,
    /// Usual events.
    Info,
    /// Usual, but significant.
    Notice,
    /// May become an error.
    Warning,
    /// Something failed.
    Error,
    /// A part failed.
    Critical,
    /// Needs immediate action.
    Alert,
    /// The system is not usable.
    Emergency,
}

impl Level {
    /// All levels, least severe first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// Returns its wire form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }

    /// Parses the wire form.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == word)
    }

    /// Returns the level of a message (the parameters of `notifications/message`). An unknown level counts as an
    /// error, so that no filter loses the message.
    #[must_use]
    pub fn of_message(message: &Value) -> Self {
        message.get("level").and_then(Value::as_str).and_then(Self::parse).unwrap_or(Self::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn level_names_are_ordered_by_severity() {
        for (n, level) in Level::ALL.into_iter().enumerate() {
            assert_eq!((Level::parse(level.as_str()), level as usize), (Some(level), n));
        }
        assert!(Level::Debug < Level::Warning && Level::parse("warn").is_none());
        assert_eq!(Level::of_message(&json!({"level": "notice"})), Level::Notice);
        assert_eq!(Level::of_message(&json!({"data": 1})), Level::Error);
    }
}
