//! The house's models for the clients of its gateway that have none.

use std::sync::Arc;

use toolwright_core::approval::Approver;
use toolwright_core::client::CallClient;
use toolwright_core::policy::Profile;
use toolwright_core::session::Session;
use toolwright_server::ModelHost;

use super::ClientTerms;
use crate::house::House;

/// Answers sources with the model that `sampling` names, else with `models.default`, within what `sampling` allows each
/// call of a client.
pub struct GatewayModels {
    house: Arc<House>,
    given: Option<Profile>,
    approver: Arc<dyn Approver>,
}

impl GatewayModels {
    /// The models of this house. `given` is the profile that was given for the gateway's calls, else the
    /// configuration's counts. Where the client decides, and without a profile, questions to a model are asked about:
    /// what the client's own user sees of a call does not show them. `approver` answers then.
    #[must_use]
    pub fn new(house: Arc<House>, given: Option<Profile>, approver: Arc<dyn Approver>) -> Self {
        Self { house, given, approver }
    }
}

impl ModelHost for GatewayModels {
    fn is_offered(&self) -> bool {
        self.house.sampling_model(None).is_some()
    }

    fn approver(&self) -> Arc<dyn Approver> {
        Arc::clone(&self.approver)
    }

    fn client(&self, session: Arc<Session>, approver: Arc<dyn Approver>) -> Arc<dyn CallClient> {
        let mut policy = self.house.config().policy(self.given, Profile::Ask);
        if policy.profile == Profile::Client {
            // Nobody decides there.
            policy.profile = Profile::Ask;
        }
        self.house.client(ClientTerms { session, policy: Arc::new(policy), approver, person: None, model: None })
    }
}
