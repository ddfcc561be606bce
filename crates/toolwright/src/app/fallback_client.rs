//! The fallback for gateway clients that lack a capability: models answer sampling, and people answer through the
//! inbox.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use toolwright_core::Policy;
use toolwright_core::approval::{Approver, FormReply, FormRequest, Wants};
use toolwright_core::client::CallClient;
use toolwright_core::context::Redactor;
use toolwright_core::policy::Profile;
use toolwright_core::session::Session;
use toolwright_gateway::{FallbackClient, FallbackContext};
use toolwright_mcp::form::Form;
use toolwright_mcp::page::Page;
use toolwright_runtime::FormInbox;

use super::Toolwright;
use super::client::{ClientOptions, Filled, Person, Visited, elicitation, may_sample};

/// Answers sources with the model that `sampling` names, else with `models.default`, within what `sampling` allows each
/// call of a client.
pub struct GatewayFallback {
    app: Arc<Toolwright>,
    given: Option<Profile>,
    approver: Arc<dyn Approver>,
    forms: Option<FormInbox>,
}

impl GatewayFallback {
    /// The models of this instance. `given` is the profile that was given for the gateway's calls, else the
    /// configuration's counts. Where the client decides, and without a profile, questions to a model are asked about:
    /// what the client's own user sees of a call does not show them. `approver` answers then.
    #[must_use]
    pub fn new(app: Arc<Toolwright>, given: Option<Profile>, approver: Arc<dyn Approver>) -> Self {
        Self { app, given, approver, forms: None }
    }

    /// The same, which puts forms and pages for the owner's clients that cannot show them into this inbox. The calls
    /// wait for the answers.
    #[must_use]
    pub fn with_forms(self, forms: FormInbox) -> Self {
        Self { forms: Some(forms), ..self }
    }

    fn policy(&self, profile: Option<Profile>) -> Policy {
        let mut policy = self.app.config().policy(profile.or(self.given), Profile::Ask);
        if policy.profile == Profile::Client {
            // Nobody decides there.
            policy.profile = Profile::Ask;
        }
        policy
    }

    /// Who fills in forms: nobody for calls that others than the owner make. The inbox is the owner's, and what is
    /// theirs to tell is not.
    fn person(&self, terms: &FallbackContext) -> Option<Arc<dyn Person>> {
        let forms = self.forms.clone().filter(|_| terms.session.principal.owner)?;
        let redactor = Arc::clone(&self.app.executor().services().redactor);
        Some(Arc::new(InboxPerson::new(forms, Arc::clone(&terms.session), redactor)))
    }
}

impl FallbackClient for GatewayFallback {
    fn offers(&self, terms: &FallbackContext) -> Map<String, Value> {
        let mut offered = Map::new();
        let has_model = self.app.sampling_model(None).is_some();
        if has_model && may_sample(&self.policy(terms.profile), &terms.session, &*terms.approver) {
            offered.insert("sampling".into(), json!({}));
        }
        if self.forms.is_some() && terms.session.principal.owner {
            offered.insert("elicitation".into(), elicitation());
        }
        offered
    }

    fn approver(&self) -> Arc<dyn Approver> {
        Arc::clone(&self.approver)
    }

    fn client(&self, terms: &FallbackContext) -> Arc<dyn CallClient> {
        self.app.client(ClientOptions {
            session: Arc::clone(&terms.session),
            policy: Arc::new(self.policy(terms.profile)),
            approver: Arc::clone(&terms.approver),
            person: self.person(terms),
            model: None,
        })
    }
}

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
