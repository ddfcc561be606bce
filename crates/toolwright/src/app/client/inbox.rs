//! Asks a person through the inbox what a tool's source wants to know.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::approval::{FormReply, FormRequest, Wants};
use toolwright_core::context::Redactor;
use toolwright_core::session::Session;
use toolwright_mcp::form::Form;
use toolwright_mcp::page::Page;
use toolwright_runtime::FormInbox;

use super::{Filled, Person, Visited};

/// Whoever looks into the inbox, for calls of one session. What is not answered in time counts as dismissed.
pub struct InboxPerson {
    inbox: FormInbox,
    session: Arc<Session>,
    redactor: Arc<dyn Redactor>,
}

impl InboxPerson {
    /// A person behind this inbox. `redactor` keeps secrets out of what they are shown; a page's address stands as it is,
    /// or it would lead nowhere.
    #[must_use]
    pub fn new(inbox: FormInbox, session: Arc<Session>, redactor: Arc<dyn Redactor>) -> Self {
        Self { inbox, session, redactor }
    }

    /// The schema without secrets. A default that holds one is not shown, and need not be given: the form has it.
    fn shown(&self, form: &Form) -> Value {
        let mut shown = self.redactor.redact_value(form.schema());
        let is_hidden = |default: &Value| self.redactor.redact_value(default) != *default;
        for field in form.fields.iter().filter(|field| field.default.as_ref().is_some_and(is_hidden)) {
            if let Some(Value::Object(property)) = shown.get_mut("properties").and_then(|all| all.get_mut(&field.name))
            {
                property.shift_remove("default");
            }
            if let Some(Value::Array(required)) = shown.get_mut("required") {
                required.retain(|name| *name != field.name);
            }
        }
        shown
    }

    async fn ask(&self, source: &str, message: &str, wants: Wants) -> Option<FormReply> {
        let request = FormRequest {
            session: self.session.id.clone(),
            principal: self.session.principal.id.clone(),
            source: source.to_owned(),
            message: self.redactor.redact(message).into_owned(),
            wants,
        };
        self.inbox.ask(request).await.unwrap_or_else(|error| {
            tracing::error!(source, "nobody could be asked: {error}");
            None
        })
    }
}

#[async_trait]
impl Person for InboxPerson {
    async fn fill_in(&self, source: &str, form: &Form) -> Filled {
        match self.ask(source, &form.message, Wants::Form(self.shown(form))).await {
            // Whoever answered has checked it; the store is open to other programs of the same user.
            Some(FormReply::Accept { content }) => match form.check(content) {
                Ok(content) => Filled::Accepted(content),
                Err(wrong) => {
                    tracing::error!(source, "the answer in the inbox does not fit the form: {}", wrong.join("; "));
                    Filled::Cancelled
                }
            },
            Some(FormReply::Decline) => Filled::Declined,
            None => Filled::Cancelled,
        }
    }

    async fn visit(&self, source: &str, page: &Page) -> Visited {
        match self.ask(source, &page.message, Wants::Page(page.address.to_string())).await {
            Some(FormReply::Accept { .. }) => Visited::Opened,
            Some(FormReply::Decline) => Visited::Declined,
            None => Visited::Cancelled,
        }
    }
}
