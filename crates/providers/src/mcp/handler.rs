//! What a server may tell or ask this client: it may ping, log, and announce a changed tool list.
#![expect(deprecated, reason = "servers up to 2025-11-25 ask for roots and log")]

use std::sync::Arc;

use rmcp::ClientHandler;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ErrorCode, ErrorData, Implementation,
    ListRootsResult, LoggingMessageNotificationParam, ProtocolVersion,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};

/// Takes what a server says by itself.
pub(super) struct Handler {
    /// Name of the server, for logs.
    pub(super) server: Arc<str>,
    /// Called when its tools may have changed.
    pub(super) tools_changed: Arc<dyn Fn() + Send + Sync>,
}

fn not_offered<T>(what: &str) -> Result<T, ErrorData> {
    Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, format!("this client does not offer {what}"), None))
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let name = Implementation::new("toolwright", env!("CARGO_PKG_VERSION")).with_title("Toolwright");
        // No capability: roots, sampling and elicitation are not offered.
        ClientConfig::new(ClientCapabilities::default(), name)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn list_roots(&self, _context: RequestContext<RoleClient>) -> Result<ListRootsResult, ErrorData> {
        not_offered("roots")
    }

    async fn create_elicitation(
        &self,
        _request: ElicitRequestParams,
        _context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        not_offered("elicitation")
    }

    async fn on_logging_message(
        &self,
        params: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        tracing::debug!(server = &*self.server, level = ?params.level, logger = ?params.logger, "{}", params.data);
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        (self.tools_changed)();
    }
}
