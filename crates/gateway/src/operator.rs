//! Defines what the owner sees and changes through the HTTP API beside the tools: pins, policy, agents, triggers, saved
//! runs and the tools that selection picks for a prompt.

use async_trait::async_trait;
use serde_json::Value;
use toolwright_core::ApprovalRequest;
use toolwright_core::store::StoreError;

/// Whether a changed definition is let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PinWord {
    /// What waits takes the place of what is pinned.
    Approve,
    /// The tool is withheld until it is approved.
    Reject,
}

/// The program around the gateway. All values are as `/api/openapi.json` describes them, before redaction. An error says whether
/// there is no such thing ([`StoreError::NotFound`]) or the state does not allow it ([`StoreError::Refused`]).
#[async_trait]
pub trait Operator: std::fmt::Debug + Send + Sync {
    /// The pinned definitions, with what changed in those that wait.
    async fn pins(&self) -> Result<Value, StoreError>;

    /// Decides about the definition of a tool whose hash is `hash`, in the name of `by`.
    async fn decide_pin(
        &self,
        provider: &str,
        tool: &str,
        hash: &str,
        word: PinWord,
        by: &str,
    ) -> Result<(), StoreError>;

    /// What helps to decide about a call: what it would change, and the rule that approving it for always writes, or why there
    /// is none.
    async fn prospect(&self, asked: &ApprovalRequest) -> Result<Value, StoreError>;

    /// What a model would be shown for a prompt, and why.
    async fn pick(&self, prompt: &str, max: usize) -> Result<Value, StoreError>;

    /// The agents that are defined, members of groups, mailboxes, and how much of their budgets trees of agents have used:
    /// at most `limit` trees behind the run `after`.
    async fn agents(&self, after: Option<&str>, limit: usize) -> Result<Value, StoreError>;

    /// Triggers, their next and latest firings, of which at most `firings` each.
    async fn triggers(&self, firings: usize) -> Result<Value, StoreError>;

    /// Fires a trigger.
    async fn fire(&self, trigger: &str) -> Result<Value, StoreError>;

    /// The MCP servers of the configuration that were left out of it, and why, with the remedy.
    fn left_out(&self) -> Vec<(String, String)>;

    /// The conversation of a saved run with its calls and results, its limits and its to-do list.
    async fn run(&self, run: &str) -> Result<Value, StoreError>;

    /// The values that a session keeps, and its messages behind the number `after`.
    async fn session(&self, session: &str, after: u64) -> Result<Value, StoreError>;

    /// The policy in force, where it is written, and how often each rule decided the last recorded calls.
    async fn policy(&self, calls: usize) -> Result<Value, StoreError>;

    /// What is wrong with a draft of the policy section, else which recorded calls it decides otherwise.
    async fn test_policy(&self, draft: &str, calls: usize) -> Result<Value, StoreError>;

    /// Writes a draft into the file whose content has the hash `base`, and keeps a copy of the file as it was.
    async fn save_policy(&self, draft: &str, base: &str) -> Result<Value, StoreError>;
}
