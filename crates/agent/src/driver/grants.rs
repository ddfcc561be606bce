//! Passes decisions made while the run was suspended to the executor when it asks for them.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use toolwright_core::approval::{ApprovalDecision, ApprovalRequest, Approver};
use toolwright_core::session::CallId;

use crate::run::Grant;

/// Answers the questions that were answered before, and passes on all others.
pub(super) struct Granted {
    grants: HashMap<CallId, Grant>,
    otherwise: Arc<dyn Approver>,
}

impl Granted {
    pub(super) fn new(grants: Vec<Grant>, otherwise: Arc<dyn Approver>) -> Self {
        Self { grants: grants.into_iter().map(|grant| (grant.request.call_id.clone(), grant)).collect(), otherwise }
    }
}

#[async_trait]
impl Approver for Granted {
    async fn ask(&self, request: &ApprovalRequest) -> ApprovalDecision {
        match self.grants.get(&request.call_id) {
            // Leave holds for the call that the person was asked about, and for no other.
            Some(Grant { request: asked, decision })
                if asked.tool == request.tool
                    && asked.definition == request.definition
                    && asked.binds_to.is_some()
                    && asked.binds_to == request.binds_to =>
            {
                decision.clone()
            }
            _ => self.otherwise.ask(request).await,
        }
    }
}
