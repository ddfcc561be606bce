//! What a full server answers at the addresses of model APIs.

use std::sync::Arc;

use async_trait::async_trait;
use reqwest::Method;
use serde_json::json;
use toolwright_core::approval::{Approver, NoApprover};
use toolwright_core::store::{NoStore, ObjectStore, RunStore};
use toolwright_gateway::{AgentSource, ModelTarget, PreparedRun, RunRequest, RunTarget};
use toolwright_models::Api;

use crate::support::{Fixture, body};

#[derive(Debug)]
struct NoAgents;

struct NoRuns;

impl RunStore for NoRuns {}

#[async_trait]
impl AgentSource for NoAgents {
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn resolve(&self, name: &str, _mean: ModelTarget) -> Result<RunTarget, String> {
        Ok(RunTarget::Raw(name.to_owned()))
    }

    fn api(&self, _target: &RunTarget) -> Option<Api> {
        None
    }

    async fn prepare(&self, _order: RunRequest) -> Result<PreparedRun, String> {
        Err("there are no agents".into())
    }

    fn inbox(&self) -> Arc<dyn Approver> {
        Arc::new(NoApprover { remedy: String::new() })
    }

    fn objects(&self) -> Arc<dyn ObjectStore> {
        Arc::new(NoStore)
    }

    fn runs(&self) -> Arc<dyn RunStore> {
        Arc::new(NoRuns)
    }
}

#[tokio::test]
async fn full_servers_say_when_to_retry() {
    let fixture = Fixture::new().await;
    let http = fixture
        .http_with(|options| {
            options.max_requests = 0;
            options.agents = Some(Arc::new(NoAgents));
            options.api_token = toolwright_gateway::Token::new("s3cret");
        })
        .await
        .with_token("s3cret");
    for (path, kind) in [
        ("/v1/chat/completions", "server_error"),
        ("/v1/responses", "server_error"),
        ("/v1/messages", "overloaded_error"),
    ] {
        let messages = json!([{"role": "user", "content": "x"}]);
        let mut request = json!({"model": "a/b"});
        match path {
            "/v1/responses" => request["input"] = json!("x"),
            _ => (request["messages"], request["max_tokens"]) = (messages, json!(9)),
        }
        let send =
            || http.request(Method::POST, path).header("content-type", "application/json").body(request.to_string());
        assert_eq!(body(send(), 503).await["error"]["type"], kind, "{path}");
        let headers = send().send().await.expect("an answer").headers().clone();
        assert_eq!(headers["retry-after"], "1", "{path}");
        assert!(headers.contains_key("x-request-id"), "{path}");
        assert_eq!(headers.contains_key("request-id"), path == "/v1/messages", "{path}");
    }
}
