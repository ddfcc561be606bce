//! What a server demands of its callers, added to each request.

use std::fmt;

use async_trait::async_trait;
use http::HeaderMap;

/// Adds what a server demands of its callers to each HTTP request: OAuth 2.1, for one.
#[async_trait]
pub trait Authorizer: fmt::Debug + Send + Sync {
    /// Headers of the next request. Refreshes what is about to expire, one flight for all who ask.
    ///
    /// # Errors
    /// Cause and remedy, for the operator.
    async fn headers(&self) -> Result<HeaderMap, String>;
    /// The server refused a request that carried `sent` with 401 or 403. Whether it is worth sending again, with
    /// [new headers](Authorizer::headers).
    ///
    /// # Errors
    /// Cause and remedy, for the operator.
    async fn challenged(&self, challenge: Challenge, sent: HeaderMap) -> Result<Retry, String>;
    /// The server took a request that carried `sent`. Called for each, so that it has to be quick.
    fn accepted(&self, _sent: &HeaderMap) {}
    /// Tells on whose behalf requests go out now from anybody else's, without a secret: what one was answered is not
    /// for another. The default has one for all.
    fn identity(&self) -> String {
        String::new()
    }
}

/// A refusal.
#[derive(Debug, Clone)]
pub struct Challenge {
    /// 401 or 403.
    pub status: u16,
    /// `WWW-Authenticate`, all of them.
    pub authenticate: Vec<String>,
}

/// Whether to send again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    /// Once.
    Yes,
    /// No.
    No,
}
