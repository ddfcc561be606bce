//! The fallback for gateway clients that lack a capability: models answer sampling, and people answer through the
//! inbox.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use toolwright_core::Policy;
use toolwright_core::approval::Approver;
use toolwright_core::client::CallClient;
use toolwright_core::policy::Profile;
use toolwright_gateway::{FallbackClient, FallbackTerms};
use toolwright_runtime::FormInbox;

use super::inbox::InboxPerson;
use super::{ClientOptions, Person, sample};
use crate::app::Toolwright;

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
    fn person(&self, terms: &FallbackTerms) -> Option<Arc<dyn Person>> {
        let forms = self.forms.clone().filter(|_| terms.session.principal.owner)?;
        let redactor = Arc::clone(&self.app.executor().services().redactor);
        Some(Arc::new(InboxPerson::new(forms, Arc::clone(&terms.session), redactor)))
    }
}

impl FallbackClient for GatewayFallback {
    fn offers(&self, terms: &FallbackTerms) -> Map<String, Value> {
        let mut offered = Map::new();
        let has_model = self.app.sampling_model(None).is_some();
        if has_model && sample::may_be_allowed(&self.policy(terms.profile), &terms.session, &*terms.approver) {
            offered.insert("sampling".into(), json!({}));
        }
        if self.forms.is_some() && terms.session.principal.owner {
            offered.insert("elicitation".into(), super::elicitation());
        }
        offered
    }

    fn approver(&self) -> Arc<dyn Approver> {
        Arc::clone(&self.approver)
    }

    fn client(&self, terms: &FallbackTerms) -> Arc<dyn CallClient> {
        self.app.client(ClientOptions {
            session: Arc::clone(&terms.session),
            policy: Arc::new(self.policy(terms.profile)),
            approver: Arc::clone(&terms.approver),
            person: self.person(terms),
            model: None,
        })
    }
}
