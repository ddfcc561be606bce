//! `sampling`: what the sources of tools may ask of a model.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `sampling`. A server whose tool is called by `run`, `chat` or `call`, or behind `serve` by a client that offers no
/// model of its own, may ask a model a question of its own. Each is a call of `client:sample` to policy: by default it
/// is asked about. Rules may look at `args.source`, the tool whose server asks, at `args.messages` and
/// `args.systemPrompt`. Where a client of `serve` says that it offers a model, that is asked instead.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingSection {
    /// Whether servers are told that they may.
    pub enabled: bool,
    /// The model that answers, `provider/model`. Default: that of the run, else `models.default`; without any, none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Tokens of one answer.
    #[schemars(range(min = 1))]
    pub max_tokens: u32,
    /// Requests in one `run`, `chat` or `call`; behind `serve`, in each call of a gateway's client.
    pub max_requests: u32,
    /// Tokens of all of these, questions and answers. What a question has is estimated before it is asked, and put right by
    /// what its API reports.
    pub max_total_tokens: u64,
    /// What all of these may cost, estimated likewise, in US dollars; the model needs `models.<name>.prices` then. Default: any amount.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0))]
    pub max_cost: Option<f64>,
}

impl Default for SamplingSection {
    fn default() -> Self {
        Self {
            enabled: true,
            model: None,
            max_tokens: 4096,
            max_requests: 20,
            max_total_tokens: 100_000,
            max_cost: None,
        }
    }
}
