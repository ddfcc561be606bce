//! A call's client as the source of its tool asks it: the user reads who asks.

use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::client::{AskingCall, CallClient, ClientRequest};
use toolwright_core::error::{ProtocolError, ToolError};
use toolwright_mcp::asking;

/// A client whose user is told which source asks, by the name that the operator has given it: the message is the
/// source's own, and says what it likes.
pub(crate) struct NamedSource {
    pub(crate) client: Arc<dyn CallClient>,
    /// Whose questions these are; `None` before a tool's source asks.
    pub(crate) source: Option<Box<str>>,
}

impl NamedSource {
    fn named(&self, mut requests: Vec<ClientRequest>) -> Vec<ClientRequest> {
        if let Some(source) = &self.source {
            requests.iter_mut().filter(|asked| asked.method == asking::ELICIT).for_each(|asked| {
                if let Some(Value::String(message)) = asked.params.get_mut("message") {
                    *message = format!("{source} asks:\n{message}");
                }
            });
        }
        requests
    }
}

#[async_trait]
impl CallClient for NamedSource {
    fn inner(&self) -> Option<&dyn CallClient> {
        Some(&*self.client)
    }

    fn for_call(&self, asking: &AskingCall) -> Option<Arc<dyn CallClient>> {
        let client = self.client.for_call(asking).unwrap_or_else(|| Arc::clone(&self.client));
        // The name in configuration is what the namespace is made of: letters, digits, `-` and `_`.
        Some(Arc::new(Self { client, source: Some(asking.tool.namespace().into()) }))
    }

    async fn ask(&self, requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        self.client.ask(self.named(requests)).await
    }

    async fn ask_until(
        &self,
        requests: Vec<ClientRequest>,
        over: Pin<&mut (dyn Future<Output = ()> + Send)>,
    ) -> Option<Result<Vec<Result<Value, ProtocolError>>, ToolError>> {
        self.client.ask_until(self.named(requests), over).await
    }
}
