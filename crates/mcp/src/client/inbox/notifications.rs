//! What a server says unasked: to the call that it is of, or to the listener.

use std::cell::OnceCell;
use std::sync::Arc;

use crate::protocol::message::read as read_part;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use toolwright_core::catalogue::SourceNotice;
use toolwright_core::json::read;

use super::super::progress::Progress;
use super::super::url_elicitation::MAX_ID;
use super::{Answer, Attribution, Inbox, Purpose, Waiting};
use crate::transport::{RequestId, own_id};

impl Inbox {
    /// Takes a notification other than of progress.
    pub(super) fn notified(&self, method: &str, params: Option<&RawValue>, during: Option<RequestId>) {
        // Null where there are none that can be read.
        let raw = params;
        let params = || match raw.map(read_part::<Value>) {
            Some(Ok(params)) => params,
            Some(Err(error)) => {
                self.listener.broken(&format!("the parameters of its {method} cannot be read: {error}"));
                Value::Null
            }
            None => Value::Null,
        };
        match method {
            "notifications/message" => {
                let message = params();
                if message.is_null() {
                    return;
                }
                tracing::debug!(server = &*self.listener.server, "{message}");
                match self.asked_of(during, &[]) {
                    Attribution::Call(_, caller) | Attribution::Likely(_, caller) => caller.client.log(message),
                    Attribution::Nobody => self.listener.log(message),
                    // It must not reach those that it is not of.
                    Attribution::Ended | Attribution::Several => {
                        tracing::trace!(server = &*self.listener.server, "a log message of a call that is not known");
                    }
                }
            }
            "notifications/tools/list_changed" => self.listener.tools_changed(),
            "notifications/resources/list_changed" => self.listener.notice(SourceNotice::ResourcesChanged),
            "notifications/prompts/list_changed" => self.listener.notice(SourceNotice::PromptsChanged),
            "notifications/resources/updated" => {
                if let Some(uri) = params().get("uri").and_then(Value::as_str) {
                    self.listener.notice(SourceNotice::ResourceUpdated { uri: uri.to_owned() });
                }
            }
            "notifications/elicitation/complete" => {
                if let Some(id) = params().get("elicitationId").and_then(Value::as_str).filter(|id| id.len() <= MAX_ID)
                {
                    self.pages.done(id);
                    self.listener.notice(SourceNotice::ElicitationComplete { id: id.to_owned() });
                }
            }
            "notifications/cancelled" => self.cancelled(raw),
            "notifications/subscriptions/acknowledged" => self.acknowledged(&params(), during),
            // Whatever else a server announces is for clients that know it.
            _ => tracing::debug!(server = &*self.listener.server, method, "a notification that is not known here"),
        }
    }

    /// The server takes a question back, or (2026-07-28 on a pipe) ends a subscription.
    fn cancelled(&self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        struct Cancelled<'a> {
            #[serde(borrow, rename = "requestId")]
            id: &'a RawValue,
        }
        let Some(Ok(Cancelled { id })) = params.map(|params| serde_json::from_str(params.get())) else { return };
        self.questions.withdrawn(id.get());
        if let Some(id) = own_id(id.get()) {
            let is_subscription =
                self.lock().waiting.get(&id).is_some_and(|waiting| matches!(waiting.purpose, Purpose::Subscription(_)));
            if is_subscription {
                self.settle(id, Answer::Result(RawValue::NULL.to_owned()));
            }
        }
    }

    fn acknowledged(&self, params: &Value, during: Option<RequestId>) {
        let named = params.get("_meta").and_then(|meta| meta.get(crate::protocol::revision::SUBSCRIPTION_ID));
        let Some(id) = named.and_then(|id| own_id(&id.to_string())).or(during) else { return };
        if let Some(Waiting { purpose: Purpose::Subscription(accepted), .. }) = self.lock().waiting.get(&id) {
            accepted.send_replace(Some(params.get("notifications").cloned().unwrap_or_default()));
        }
    }

    /// Takes a notification of progress.
    pub(super) fn progress(&self, params: Option<&RawValue>) {
        let room = OnceCell::new();
        let Some(Ok(progress)) = params.map(|params| read::<Progress<'_>>(params.get().as_bytes(), &room)) else {
            return;
        };
        let Progress { token, partial } = progress;
        let Some(id) = own_id(token.get()) else { return };
        let sink = match self.lock().waiting.get(&id) {
            Some(Waiting { purpose: Purpose::Call(caller), .. }) => Arc::clone(&caller.partials),
            _ => return,
        };
        sink.send(partial);
    }
}
