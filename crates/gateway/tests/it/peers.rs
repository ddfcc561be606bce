//! Another implementation as the client: `rmcp`, over both transports and in both generations.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rmcp::model::{CallToolRequestParams, ClientConfig, Implementation, ProgressNotificationParam, ProtocolVersion};
use rmcp::service::{NotificationContext, PeerRequestOptions, RunningService, serve_client_with_lifecycle};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ClientLifecycleMode, RoleClient};
use serde_json::json;
use tokio::sync::Notify;
use toolwright_gateway::serve_connection;

use crate::support::{Fixture, LONG, soon};

#[derive(Default)]
struct Ears {
    changed: Notify,
    progress: AtomicUsize,
}

#[derive(Clone, Default)]
struct Peer(Arc<Ears>);

impl ClientHandler for Peer {
    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.0.changed.notify_one();
    }

    async fn on_progress(&self, _params: ProgressNotificationParam, _context: NotificationContext<RoleClient>) {
        self.0.progress.fetch_add(1, Ordering::Relaxed);
    }

    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(Default::default(), Implementation::new("peer", "1"))
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

fn modes() -> [ClientLifecycleMode; 2] {
    [
        ClientLifecycleMode::Initialize,
        ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::V_2026_07_28] },
    ]
}

async fn exercise(fixture: &Fixture, client: RunningService<RoleClient, Peer>, modern: bool) {
    let tools = client.list_all_tools().await.expect("tools");
    assert_eq!(tools.len(), 12);
    let arguments = json!({"text": "hi"}).as_object().expect("object").clone();
    let echo = CallToolRequestParams::new("test__echo").with_arguments(arguments);
    let result = client.peer().call_tool(echo).await.expect("result");
    assert_eq!(result.content[0].as_text().map(|text| text.text.as_str()), Some("hi"));
    assert_eq!(result.structured_content, Some(json!({"n": 1.5})));
    let failed = client.peer().call_tool(CallToolRequestParams::new("test__fail")).await.expect("result");
    assert_eq!(failed.is_error, Some(true));
    assert!(client.peer().call_tool(CallToolRequestParams::new("nothing")).await.is_err());

    client.peer().call_tool(CallToolRequestParams::new("test__progress")).await.expect("result");
    let heard = async {
        while client.service().0.progress.load(Ordering::Relaxed) < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(LONG, heard).await.expect("progress");

    let wait = rmcp::model::CallToolRequest::new(CallToolRequestParams::new("test__wait"));
    let options = PeerRequestOptions::no_options();
    let running = client.peer().send_cancellable_request(wait.into(), options).await.expect("sent");
    soon(&fixture.watch.started).await;
    running.cancel(Some("enough".into())).await.expect("cancelled");
    soon(&fixture.watch.cancelled).await;

    if !modern {
        fixture.foreign.set(&["one", "two", "three"]);
        soon(&client.service().0.changed).await;
        assert_eq!(client.list_all_tools().await.expect("tools").len(), 13);
    }
    tokio::time::timeout(LONG, client.cancel()).await.expect("in time").expect("ended");
}

#[tokio::test]
async fn rmcp_over_pipes() {
    for (modern, mode) in modes().into_iter().enumerate() {
        let fixture = Fixture::new().await;
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let (input, output) = tokio::io::split(theirs);
        let serving =
            tokio::spawn(serve_connection(Arc::clone(&fixture.gateway), input, output, fixture.shutdown.clone()));
        let client = serve_client_with_lifecycle(Peer::default(), ours, mode).await.expect("connected");
        exercise(&fixture, client, modern == 1).await;
        tokio::time::timeout(LONG, serving).await.expect("in time").expect("task").expect("served");
    }
}

#[tokio::test]
async fn rmcp_over_http() {
    for (modern, mode) in modes().into_iter().enumerate() {
        let fixture = Fixture::new().await;
        let http = fixture.http().await;
        let config = StreamableHttpClientTransportConfig::with_uri(format!("http://{}/mcp", http.addr));
        let transport = StreamableHttpClientTransport::with_client(http.client.clone(), config);
        let client = serve_client_with_lifecycle(Peer::default(), transport, mode).await.expect("connected");
        exercise(&fixture, client, modern == 1).await;
    }
}
