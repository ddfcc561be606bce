//! The user of the client, who logs in on every page and agrees to every question.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use toolwright_core::client::ClientRequest;
use toolwright_oauth::Consent;
use toolwright_testkit::FakeCallClient;
use url::Url;

use super::arguments;

/// The time limit for a page of the suite's authorization server.
const PAGE_BOUND: Duration = Duration::from_secs(10);

/// Opens pages as a browser does: it follows redirects, including those to our own listener.
pub(crate) struct Browser;

#[async_trait]
impl Consent for Browser {
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String> {
        let client = reqwest::Client::builder().no_proxy().timeout(PAGE_BOUND).build().map_err(|e| e.to_string())?;
        let page = client.get(url.clone()).send().await.map_err(|error| error.to_string())?;
        if page.status().is_success() { Ok(None) } else { Err(format!("the login page answered {}", page.status())) }
    }
}

/// Answers the questions of servers during a call.
pub(crate) fn accepting_client() -> FakeCallClient {
    let all = json!({"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}});
    FakeCallClient::new(answer).with(|client| client.capabilities = all)
}

fn answer(request: &ClientRequest) -> Value {
    match request.method.as_str() {
        "sampling/createMessage" => json!({
            "role": "assistant",
            "content": {"type": "text", "text": "a sampled answer"},
            "model": "conformance",
            "stopReason": "endTurn",
        }),
        "roots/list" => json!({"roots": [{"uri": "file:///workspace", "name": "workspace"}]}),
        _ => json!({"action": "accept", "content": arguments::answer(&request.params["requestedSchema"])}),
    }
}
