//! A minimal proxy on the official SDK, for comparison in `toolwright-bench gateway`.
//!
//! `naive-proxy [--port N] COMMAND [ARGS…]` or `naive-proxy [--port N] URL`.

use axum::serve::ListenerExt as _;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, ErrorData, ListToolsResult, PaginatedRequestParams, ServerCapabilities,
    ServerConfig,
};
use rmcp::service::{RequestContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::tower::StreamableHttpService;
use rmcp::{RoleClient, RoleServer, ServerHandler, ServiceExt as _};
use std::sync::Arc;

#[derive(Clone)]
struct NaiveProxy(Arc<RunningService<RoleClient, ()>>);

impl ServerHandler for NaiveProxy {
    fn get_info(&self) -> ServerConfig {
        let mut config = ServerConfig::default();
        config.capabilities = ServerCapabilities::builder().enable_tools().build();
        config
    }

    async fn list_tools(
        &self,
        params: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.0.list_tools(params).await.map_err(failed)
    }

    async fn call_tool(
        &self,
        params: CallToolRequestParams,
        _: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        self.0.call_tool(params).await.map(Into::into).map_err(failed)
    }
}

fn failed(error: rmcp::ServiceError) -> ErrorData {
    ErrorData::internal_error(error.to_string(), None)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    rustls::crypto::ring::default_provider().install_default().map_err(|_| "two providers of TLS")?;
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let port = if args.first().is_some_and(|arg| arg == "--port") { args.drain(..2).nth(1) } else { None };
    let target = args.first().ok_or("what is to be proxied?")?;
    let upstream = if target.starts_with("http://") {
        ().serve(StreamableHttpClientTransport::from_uri(target.as_str())).await?
    } else {
        let mut child = tokio::process::Command::new(target)
            .args(&args[1..])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let pipes = (child.stdout.take().ok_or("no stdout")?, child.stdin.take().ok_or("no stdin")?);
        // The child lives as long as this program.
        tokio::spawn(async move { child.wait().await });
        ().serve(pipes).await?
    };
    let naive = NaiveProxy(Arc::new(upstream));
    if let Some(port) = port {
        let sessions = Arc::new(LocalSessionManager::default());
        let service = StreamableHttpService::new(move || Ok(naive.clone()), sessions, Default::default());
        let listener = tokio::net::TcpListener::bind(format!("127.0.0.1:{port}")).await?;
        // Without this, each answer waits 40 ms for an acknowledgement.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        axum::serve(listener, axum::Router::new().nest_service("/mcp", service)).await?;
    } else {
        naive.serve(rmcp::transport::stdio()).await?.waiting().await?;
    }
    Ok(())
}
