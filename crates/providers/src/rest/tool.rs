//! One call of one tool: the request, its credentials, and the reading of the response.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, Method, StatusCode};
use toolwright_core::{ErrorKind, ProviderCall, ToolContext, ToolError, ToolOutput};

use super::credential::Credential;
use super::reply::Reading;
use super::request::RequestTemplate;
use toolwright_net::{Bounds, HttpClient, HttpRequest, HttpResponse};

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// What makes the calls of one tool.
pub(crate) struct HttpTool {
    pub(crate) request: RequestTemplate,
    pub(crate) credentials: Vec<Credential>,
    pub(crate) reading: Reading,
    pub(crate) client: Arc<HttpClient>,
    /// Where its settings stand, for remedies.
    pub(crate) settings: Arc<str>,
}

impl HttpTool {
    /// Runs one call.
    ///
    /// # Errors
    /// Those of a call of a tool: a kind that was executed, or one that was not.
    pub(crate) async fn call(&self, call: &ProviderCall<'_>, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let mut request = self
            .request
            .render(&call.arguments)
            .map_err(|message| ToolError::new(ErrorKind::InvalidParameters, message))?;
        let method = request.method.clone();
        let mut add = |name: HeaderName, value: &str| {
            // A header that the caller may give and did not is nobody's.
            if !request.headers.contains_key(&name)
                && let Ok(value) = HeaderValue::from_str(value)
            {
                request.headers.insert(name, value);
            }
        };
        if !is_idempotent(&method) {
            add(IDEMPOTENCY_KEY, call.idempotency_key);
        }
        if let Some(traceparent) = &context.traceparent {
            add(TRACEPARENT, traceparent);
        }
        let mut response = self.send(&request, context).await?;
        // A token that its issuer took back early: the request was refused, so it may go once more with a fresh one.
        if response.status() == StatusCode::UNAUTHORIZED && self.forget_tokens().await {
            response = self.send(&request, context).await?;
        }
        self.reading.read(&method, response, context).await.map_err(|error| error.into_tool_error(&self.settings))
    }

    async fn send(&self, request: &HttpRequest, context: &ToolContext) -> Result<HttpResponse, ToolError> {
        let mut request = request.clone();
        for credential in &self.credentials {
            credential.apply(&mut request, &self.client, &self.settings, context).await?;
        }
        let response = self.client.send(request, Bounds::of(context)).await;
        response.map_err(|error| error.into_tool_error(&self.settings))
    }

    /// Whether there was a token to forget.
    async fn forget_tokens(&self) -> bool {
        let mut forgot = false;
        for credential in &self.credentials {
            forgot |= credential.forget().await;
        }
        forgot
    }
}

/// Whether a request of this method may be made twice (RFC 9110 section 9.2.2; QUERY:
/// draft-ietf-httpbis-safe-method-w-body). Of a method that nobody has heard of it is not known.
fn is_idempotent(method: &Method) -> bool {
    const IDEMPOTENT: [Method; 6] =
        [Method::GET, Method::HEAD, Method::OPTIONS, Method::TRACE, Method::PUT, Method::DELETE];
    IDEMPOTENT.contains(method) || method.as_str() == "QUERY"
}
