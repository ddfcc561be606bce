//! Delivers the notifications of a server to the call that they belong to, or to the listener.

use std::cell::OnceCell;
use std::fmt;
use std::sync::Arc;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use toolwright_core::catalogue::SourceNotice;
use toolwright_core::event::Partial;
use toolwright_core::json::read;

use super::elicitation_pages::MAX_ID;
use super::{Attribution, InFlightRequest, Inbox, RequestOutcome, RequestPurpose};
use crate::protocol::message::read as read_part;
use crate::transport::{RequestId, own_id};

impl Inbox {
    /// Handles a notification other than progress.
    pub(super) fn notified(&self, method: &str, params: Option<&RawValue>, during: Option<RequestId>) {
        // Null if the parameters are missing or unreadable.
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
                    // It must not reach other callers.
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
            // Other notifications are ignored.
            _ => tracing::debug!(server = &*self.listener.server, method, "a notification that is not known here"),
        }
    }

    /// The server withdraws a question, or (2026-07-28 on a pipe) ends a subscription.
    fn cancelled(&self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        struct Cancelled<'a> {
            #[serde(borrow, rename = "requestId")]
            id: &'a RawValue,
        }
        let Some(Ok(Cancelled { id })) = params.map(|params| serde_json::from_str(params.get())) else { return };
        self.questions.withdrawn(id.get());
        if let Some(id) = own_id(id.get()) {
            let is_subscription = self
                .lock()
                .waiting
                .get(&id)
                .is_some_and(|waiting| matches!(waiting.purpose, RequestPurpose::Subscription(_)));
            if is_subscription {
                self.complete_request(id, RequestOutcome::Result(RawValue::NULL.to_owned()));
            }
        }
    }

    fn acknowledged(&self, params: &Value, during: Option<RequestId>) {
        let named = params.get("_meta").and_then(|meta| meta.get(crate::protocol::revision::SUBSCRIPTION_ID));
        let Some(id) = named.and_then(|id| own_id(&id.to_string())).or(during) else { return };
        if let Some(InFlightRequest { purpose: RequestPurpose::Subscription(accepted), .. }) =
            self.lock().waiting.get(&id)
        {
            accepted.send_replace(Some(params.get("notifications").cloned().unwrap_or_default()));
        }
    }

    /// Handles a progress notification.
    pub(super) fn progress(&self, params: Option<&RawValue>) {
        let room = OnceCell::new();
        let Some(Ok(progress)) = params.map(|params| read::<Progress<'_>>(params.get().as_bytes(), &room)) else {
            return;
        };
        let Progress { token, partial } = progress;
        let Some(id) = own_id(token.get()) else { return };
        let sink = match self.lock().waiting.get(&id) {
            Some(InFlightRequest { purpose: RequestPurpose::Call(caller), .. }) => Arc::clone(&caller.partials),
            _ => return,
        };
        sink.send(partial);
    }
}

/// The parameters of `notifications/progress`.
#[derive(Debug)]
pub(crate) struct Progress<'a> {
    /// Progress token of the call.
    pub(crate) token: &'a RawValue,
    /// The progress, with all further members.
    pub(crate) partial: Partial,
}

/// A field of them.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Field {
    ProgressToken,
    Progress,
    Total,
    Message,
    Other(String),
}

impl<'de: 'a, 'a> Deserialize<'de> for Progress<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Progress<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the parameters of notifications/progress")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
                let (mut token, mut progress, mut total, mut message) = (None, None, None, None);
                let mut more = Map::new();
                while let Some(field) = fields.next_key()? {
                    match field {
                        Field::ProgressToken => token = Some(fields.next_value()?),
                        Field::Progress => progress = Some(fields.next_value()?),
                        Field::Total => total = fields.next_value()?,
                        Field::Message => message = fields.next_value()?,
                        Field::Other(key) => _ = more.insert(key, fields.next_value::<Value>()?),
                    }
                }
                let progress = progress.ok_or_else(|| A::Error::missing_field("progress"))?;
                Ok(Progress {
                    token: token.ok_or_else(|| A::Error::missing_field("progressToken"))?,
                    partial: Partial::Progress { progress, total, message, more },
                })
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod progress_tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unknown_progress_fields_are_kept() {
        let text = r#"{"progressToken":7,"progress":1,"message":"m","total":null,"_meta":{"k":[1]},"later":{}}"#;
        let read: Progress<'_> = serde_json::from_str(text).expect("progress");
        assert_eq!(read.token.get(), "7");
        let Value::Object(more) = json!({"_meta": {"k": [1]}, "later": {}}) else { panic!("an object") };
        let expect = Partial::Progress { progress: 1.0, total: None, message: Some("m".into()), more };
        assert_eq!(read.partial, expect);
        for other in [r#"{"progress":1}"#, r#"{"progressToken":7}"#, r#"{"progressToken":7,"progress":"1"}"#, "[7,1]"] {
            assert!(serde_json::from_str::<Progress<'_>>(other).is_err(), "{other}");
        }
    }
}
