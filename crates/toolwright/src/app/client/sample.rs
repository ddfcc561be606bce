//! `client:sample`: a source's request to a model, as a tool, so that rules, guards, people and the ledger see it
//! like any call. No catalogue lists it: only [`super::AppClient`] calls it.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::approval::{Answers, Approver};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::{Services, ToolContext};
use toolwright_core::definition::ToolDefinition;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_core::model::{ModelBudget, ModelPriority};
use toolwright_core::outcome::ToolOutput;
use toolwright_core::policy::{HintTrust, PolicyQuery};
use toolwright_core::session::Session;
use toolwright_core::tool::Tool;
use toolwright_core::{Effects, Policy, ToolId};
use toolwright_mcp::sampling::{request_of, result_of};

/// Its id.
pub(super) const ID: &str = "client:sample@1.0.0";
/// Bytes of a question.
const MAX_QUESTION: usize = 1 << 20;

/// The tool.
pub(super) struct Sample {
    /// [`ID`].
    pub(super) id: ToolId,
    pub(super) model: String,
    pub(super) services: Arc<Services>,
    /// Tokens of one answer.
    pub(super) max_tokens: u32,
    pub(super) budget: Arc<ModelBudget>,
}

#[async_trait]
impl Tool for Sample {
    fn definition(&self) -> ToolDefinition {
        definition(self.id.clone(), &self.model)
    }

    /// The model.
    fn awaits_others(&self) -> bool {
        true
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let invalid = |why: String| ToolError::new(ErrorKind::InvalidParameters, why);
        if arguments.to_string().len() > MAX_QUESTION {
            return Err(invalid(format!("a question to a model has at most {MAX_QUESTION} bytes")));
        }
        let mut request = request_of(&arguments, self.max_tokens).map_err(invalid)?;
        // The owner's own requests go before those of a server.
        request.priority = ModelPriority::Background;
        let client = &self.services.model;
        let answer = client.longest_answer(&self.model, request.max_tokens, &request.settings, self.max_tokens);
        let reserved = self.budget.reserve(&self.model, request.tokens() as u64, answer.into())?;
        let answer = context.calls.ask(&self.model, &request).await.map_err(|error| {
            ToolError::new(ErrorKind::ExecutionError, format!("{} did not answer: {error}", self.model))
                .with_model_message("the model did not answer")
                .with_source(error)
        })?;
        reserved.settle(answer.usage);
        let result = result_of(&answer, &self.model);
        Ok(ToolOutput { structured: Some(result), ..ToolOutput::text(format!("{} answered", self.model)) })
    }
}

fn definition(id: ToolId, model: &str) -> ToolDefinition {
    let parameters = json!({
        "type": "object",
        "properties": {
            "source": {"type": "string", "description": "The tool whose source asks."},
            "messages": {"type": "array", "items": {"type": "object"}},
            "systemPrompt": {"type": "string"},
            "maxTokens": {"type": "integer", "minimum": 1},
            "temperature": {"type": "number"},
            "stopSequences": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["source", "messages", "maxTokens"],
    });
    let answer = json!({
        "type": "object",
        "properties": {
            "role": {"type": "string"},
            "content": {"type": "object"},
            "model": {"type": "string"},
            "stopReason": {"type": "string"},
        },
        "required": ["role", "content", "model"],
    });
    let about = format!("Lets the source of a tool ask {model} a question of its own.");
    let mut definition = ToolDefinition::new(id, about, Some(parameters));
    definition.output_schema = Some(answer);
    // It changes nothing, but what the source wrote goes to a model's provider, at the owner's cost.
    definition.effects = Effects { read_only: false, destructive: false, idempotent: false, open_world: true };
    definition
}

/// A question of no source in particular, as policy sees it.
static ANY: LazyLock<Option<ToolDefinition>> =
    LazyLock::new(|| ToolId::try_parse(ID).map(|id| definition(id, "a model")));

/// Whether some question could be let through under these terms: by policy, or by somebody whom it has asked.
pub(super) fn may_be_allowed(policy: &Policy, session: &Session, approver: &dyn Approver) -> bool {
    let Some(definition) = &*ANY else { return false };
    let prospects = policy.prospects(&PolicyQuery {
        definition,
        trust: HintTrust::Trusted,
        principal: &session.principal,
        root: &session.root,
        scope: CallScope::Anywhere,
        unvalidated: None,
        arguments: &Value::Null,
        request: None,
    });
    prospects.allows || (prospects.asks && approver.answers() != Answers::Nobody)
}
