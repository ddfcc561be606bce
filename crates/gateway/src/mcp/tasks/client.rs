//! The client and the progress of a call that is, or may become, a task.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::client::{CallClient, ClientRequest};
use toolwright_core::context::PartialSink;
use toolwright_core::error::{ProtocolError, ToolError};
use toolwright_core::event::Partial;
use toolwright_mcp::tasks::RELATED;

use super::task::Task;
use crate::mcp::client::{SessionClient, ask_permitted};
use crate::mcp::message::{RpcError, notification};
use crate::mcp::protocol::Level;
use crate::mcp::session::ClientState;

/// Asks in the style of the task's generation.
pub(crate) struct TaskClient {
    pub(crate) task: Arc<Task>,
    pub(crate) route: AskRoute,
    /// The client of the request that began the call.
    pub(crate) first: Arc<dyn CallClient>,
}

/// How a task's client is asked.
pub(crate) enum AskRoute {
    /// In the stream of `tasks/result` (2025-11-25).
    InStream(Arc<ClientState>),
    /// By the status in `tasks/get` once the call is a task (2026-07-28); before that like any call.
    ByStatus,
}

#[async_trait]
impl CallClient for TaskClient {
    fn inner(&self) -> Option<&dyn CallClient> {
        Some(&*self.first)
    }

    fn capabilities(&self) -> Map<String, Value> {
        match &self.route {
            // There will be a stream.
            AskRoute::InStream(state) => Map::clone(&state.capabilities()),
            AskRoute::ByStatus => self.first.capabilities(),
        }
    }

    fn is_away(&self) -> bool {
        match &self.route {
            AskRoute::InStream(_) => self.task.newest_stream().is_none(),
            AskRoute::ByStatus => self.first.is_away(),
        }
    }

    async fn ask(&self, mut requests: Vec<ClientRequest>) -> Result<Vec<Result<Value, ProtocolError>>, ToolError> {
        match &self.route {
            AskRoute::InStream(state) => {
                let channel = self.task.stream().await?;
                for asked in &mut requests {
                    if let Value::Object(params) = &mut asked.params
                        && let Value::Object(meta) = params.entry("_meta").or_insert_with(|| json!({}))
                    {
                        meta.insert(RELATED.into(), json!({"taskId": self.task.id}));
                    }
                }
                let client = SessionClient { channel, state: Arc::clone(state), params: None };
                let _waits = self.task.waits();
                client.ask(requests).await
            }
            AskRoute::ByStatus => {
                if let Some(_plain) = self.task.stay_plain() {
                    return self.first.ask(requests).await;
                }
                ask_permitted(requests, &self.capabilities(), RpcError::MISSING_CAPABILITY, async |permitted| {
                    Ok(self.task.ask(permitted).await?.into_iter().map(Ok).collect())
                })
                .await
            }
        }
    }

    fn log(&self, message: Value) {
        match &self.route {
            AskRoute::InStream(state) => {
                if let Some(channel) = self.task.newest_stream().filter(|_| state.wants(Level::of_message(&message))) {
                    channel.note(|_| Some(notification("notifications/message", Some(&message))));
                }
            }
            AskRoute::ByStatus => self.first.log(message),
        }
    }
}

/// Keeps the last progress message as the task's status, and passes progress on.
pub(crate) struct TaskProgress {
    pub(crate) task: Arc<Task>,
    pub(crate) to_client: Option<Arc<dyn PartialSink>>,
}

impl PartialSink for TaskProgress {
    fn send(&self, partial: Partial) {
        if let Partial::Progress { message: Some(message), .. } = &partial {
            self.task.set_message(message);
        }
        if let Some(client) = &self.to_client {
            client.send(partial);
        }
    }
}
