//! The fallback for gateway clients that lack a capability: models answer sampling, and people answer through the
//! inbox.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::Policy;
use toolwright_core::approval::Approver;
use toolwright_core::client::CallClient;
use toolwright_core::context::Redactor;
use toolwright_core::inbox::{FormReply, FormRequest, RequestedAction};
use toolwright_core::policy::Profile;
use toolwright_core::session::Session;
use toolwright_gateway::{FallbackClient, FallbackContext};
use toolwright_mcp::elicitation::{Form, Page};
use toolwright_runtime::FormInbox;

use super::Toolwright;
use super::client::{ClientOptions, FormAnswer, PageAnswer, Person, elicitation, may_sample};

/// Answers sources with the model of `sampling`, else with `models.default`, within the limits of `sampling` for each
/// call of a client.
pub struct GatewayFallback {
    app: Arc<Toolwright>,
    profile: Option<Profile>,
    approver: Arc<dyn Approver>,
    forms: Option<FormInbox>,
}

impl GatewayFallback {
    /// Creates it with the models of this instance. `profile` is that of the gateway's calls; `None` for the
    /// configuration's. With the profile `client` or none, `approver` decides about requests to a model, because the
    /// client's own user does not see them.
    #[must_use]
    pub fn new(app: Arc<Toolwright>, profile: Option<Profile>, approver: Arc<dyn Approver>) -> Self {
        Self { app, profile, approver, forms: None }
    }

    /// Sends forms and pages that the owner's clients cannot show to this inbox. The calls wait for the answers.
    #[must_use]
    pub fn with_forms(self, forms: FormInbox) -> Self {
        Self { forms: Some(forms), ..self }
    }

    fn policy(&self, profile: Option<Profile>) -> Policy {
        let mut policy = self.app.config().policy(profile.or(self.profile), Profile::Ask);
        if policy.profile == Profile::Client {
            // The client cannot decide about these requests.
            policy.profile = Profile::Ask;
        }
        policy
    }

    /// Fills in forms through the owner's inbox, for calls of the owner only.
    fn person(&self, context: &FallbackContext) -> Option<Arc<dyn Person>> {
        let forms = self.forms.clone().filter(|_| context.session.principal.owner)?;
        let redactor = Arc::clone(&self.app.executor().services().redactor);
        Some(Arc::new(InboxPerson::new(forms, Arc::clone(&context.session), redactor)))
    }
}

impl FallbackClient for GatewayFallback {
    fn offers(&self, context: &FallbackContext) -> Map<String, Value> {
        let mut offered = Map::new();
        let has_model = self.app.sampling_model(None).is_some();
        if has_model && may_sample(&self.policy(context.profile), &context.session, &*context.approver) {
            offered.insert("sampling".into(), json!({}));
        }
        if self.forms.is_some() && context.session.principal.owner {
            offered.insert("elicitation".into(), elicitation());
        }
        offered
    }

    fn approver(&self) -> Arc<dyn Approver> {
        Arc::clone(&self.approver)
    }

    fn client(&self, context: &FallbackContext) -> Arc<dyn CallClient> {
        self.app.client(ClientOptions {
            session: Arc::clone(&context.session),
            policy: Arc::new(self.policy(context.profile)),
            approver: Arc::clone(&context.approver),
            person: self.person(context),
            model: None,
        })
    }
}

/// The person behind the inbox, for calls of one session. A question without an answer in time counts as dismissed.
pub struct InboxPerson {
    inbox: FormInbox,
    session: Arc<Session>,
    redactor: Arc<dyn Redactor>,
}

impl InboxPerson {
    /// Creates a person behind this inbox. `redactor` removes secrets from the questions, but not from the address of a
    /// page, which must still work.
    #[must_use]
    pub fn new(inbox: FormInbox, session: Arc<Session>, redactor: Arc<dyn Redactor>) -> Self {
        Self { inbox, session, redactor }
    }

    /// Returns the schema without secrets. A default that contains one is not shown and need not be given, because the
    /// form still has it.
    fn redacted_schema(&self, form: &Form) -> Value {
        let mut schema = self.redactor.redact_value(form.schema());
        let is_hidden = |default: &Value| self.redactor.redact_value(default) != *default;
        for field in form.fields.iter().filter(|field| field.default.as_ref().is_some_and(is_hidden)) {
            if let Some(Value::Object(property)) = schema.get_mut("properties").and_then(|all| all.get_mut(&field.name))
            {
                property.shift_remove("default");
            }
            if let Some(Value::Array(required)) = schema.get_mut("required") {
                required.retain(|name| *name != field.name);
            }
        }
        schema
    }

    async fn ask(&self, source: &str, message: &str, wants: RequestedAction) -> Option<FormReply> {
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
    async fn fill_in(&self, source: &str, form: &Form) -> FormAnswer {
        match self.ask(source, &form.message, RequestedAction::Form(self.redacted_schema(form))).await {
            // The answer was checked, but other programs of the same user can write to the store.
            Some(FormReply::Accept { content }) => match form.check(content) {
                Ok(content) => FormAnswer::Accepted(content),
                Err(wrong) => {
                    tracing::error!(source, "the answer in the inbox does not fit the form: {}", wrong.join("; "));
                    FormAnswer::Cancelled
                }
            },
            Some(FormReply::Decline) => FormAnswer::Declined,
            None => FormAnswer::Cancelled,
        }
    }

    async fn visit(&self, source: &str, page: &Page) -> PageAnswer {
        match self.ask(source, &page.message, RequestedAction::Page(page.address.to_string())).await {
            Some(FormReply::Accept { .. }) => PageAnswer::Opened,
            Some(FormReply::Decline) => PageAnswer::Declined,
            None => PageAnswer::Cancelled,
        }
    }
}
