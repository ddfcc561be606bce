//! Defines what the owner sees and changes through the HTTP API beside the tools: pins, policy, agents, triggers, saved
//! runs and the tools that selection picks for a prompt.

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::ApprovalRequest;
use toolwright_core::store::StoreError;

/// The decision about a changed definition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PinAction {
    /// Replaces the pinned definition with the waiting one.
    Approve,
    /// Withholds the tool until it is approved.
    Reject,
}

/// The program around the gateway. All values are as `/api/openapi.json` describes them, before redaction. Errors:
/// [`StoreError::NotFound`], or [`StoreError::Refused`] if the current state does not allow the operation.
#[async_trait]
pub trait Operator: std::fmt::Debug + Send + Sync {
    /// Returns the pinned definitions, with the changes of those that wait for a decision.
    async fn pins(&self) -> Result<Value, StoreError>;

    /// Decides about the definition of a tool with the hash `hash`, in the name of `by`.
    async fn decide_pin(
        &self,
        provider: &str,
        tool: &str,
        hash: &str,
        word: PinAction,
        by: &str,
    ) -> Result<(), StoreError>;

    /// Returns what helps a person to decide about a call: its effects, and the rule that "always" would write, or why
    /// there is none.
    async fn decision_preview(&self, request: &ApprovalRequest) -> Result<Value, StoreError>;

    /// Returns the tools that selection picks for a prompt, with the reasons.
    async fn pick(&self, prompt: &str, max: usize) -> Result<Value, StoreError>;

    /// Returns the defined agents, members of groups, mailboxes, and the used budgets of at most `limit` trees of
    /// agents after the run `after`.
    async fn agents(&self, after: Option<&str>, limit: usize) -> Result<Value, StoreError>;

    /// Returns triggers with their next firing and at most `firings` recent ones each.
    async fn triggers(&self, firings: usize) -> Result<Value, StoreError>;

    /// Fires a trigger.
    async fn fire(&self, trigger: &str) -> Result<Value, StoreError>;

    /// Returns the MCP servers of the configuration that were left out, each with the reason and a remedy.
    fn left_out(&self) -> Vec<(String, String)>;

    /// Returns a saved run: its conversation with calls and results, its limits and its to-do list.
    async fn run(&self, run: &str) -> Result<Value, StoreError>;

    /// Returns the values of a session, and its messages after the number `after`.
    async fn session(&self, session: &str, after: u64) -> Result<Value, StoreError>;

    /// Returns the policy in force, where it is written, and how often each rule decided the last `calls` recorded
    /// calls.
    async fn policy(&self, calls: usize) -> Result<Value, StoreError>;

    /// Checks a draft of the policy section. Returns its errors, or the recorded calls that it would decide
    /// differently.
    async fn test_policy(&self, draft: &str, calls: usize) -> Result<Value, StoreError>;

    /// Writes a draft into the file, if the file's content has the hash `base`, and keeps a copy of the old file.
    async fn save_policy(&self, draft: &str, base: &str) -> Result<Value, StoreError>;
}
