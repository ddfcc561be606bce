//! The two generations of the protocol, their revisions, and the keys that both sides read in `_meta`.

/// Revisions with `initialize`, newest first.
pub const LEGACY_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];
/// Revisions whose requests stand alone, newest first.
pub const MODERN_VERSIONS: [&str; 1] = ["2026-07-28"];

/// The one revision whose clients and servers may send several messages at once, as a JSON array (basic, "Batching").
pub const BATCHING: &str = "2025-03-26";

/// `_meta` key of a subscription's id.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";
/// `_meta` key under which a modern result says who made it.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// `_meta` key under which a modern request says who makes it.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// `_meta` key of the revision of a modern request.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// `_meta` key of what the maker of a modern request can be asked.
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
    /// (server/utilities/pagination); older servers write it for the end.
    #[must_use]
    pub fn leads_on(self, cursor: &str) -> bool {
        self == Self::Modern || !cursor.is_empty()
    }
}

/// The revision to answer an `initialize` with: the client's, or else our newest.
#[must_use]
pub fn negotiate(requested: Option<&str>) -> &'static str {
    LEGACY_VERSIONS.into_iter().find(|version| Some(*version) == requested).unwrap_or(LEGACY_VERSIONS[0])
}
