//! A response whose body is read within bounds.

use std::time::Instant;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use toolwright_core::{Cancel, ToolContext};
use url::Url;

use super::error::{NetError, without_secrets};
use super::media::MediaType;

/// How long a request may take: until it is cancelled or its deadline passes.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    cancel: &'a Cancel,
    deadline: Option<Instant>,
}

impl<'a> Bounds<'a> {
    /// Bounds.
    #[must_use]
    pub fn new(cancel: &'a Cancel, deadline: Option<Instant>) -> Self {
        Self { cancel, deadline }
    }

    /// The bounds of a call.
    #[must_use]
    pub fn of(context: &'a ToolContext) -> Self {
        Self::new(&context.cancel, context.deadline)
    }

    /// Runs `work` until it is done or a bound is reached; then it is dropped.
    ///
    /// # Errors
    /// [`NetError::Canceled`] and [`NetError::Timeout`].
    pub async fn run<T>(self, work: impl Future<Output = T>) -> Result<T, NetError> {
        let expired = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            cause = self.cancel.cancelled() => Err(NetError::Canceled(cause)),
            () = expired => Err(NetError::Timeout),
            done = work => Ok(done),
        }
    }
}

/// Bytes of a body.
#[derive(Debug, Clone)]
pub struct Body {
    /// The bytes, decompressed.
    pub bytes: Vec<u8>,
    /// Whether the bound left some out.
    pub cut: bool,
}

/// The head of a response, with its body still to come.
#[derive(Debug)]
pub struct HttpResponse {
    inner: reqwest::Response,
    host: String,
}

impl HttpResponse {
    pub(crate) fn new(inner: reqwest::Response, host: String) -> Self {
        Self { inner, host }
    }

    /// Status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.inner.status()
    }

    /// Headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        self.inner.headers()
    }

    /// The URL that answered, after redirects.
    #[must_use]
    pub fn url(&self) -> &Url {
        self.inner.url()
    }

    /// That URL without credentials, query and fragment.
    #[must_use]
    pub fn public_url(&self) -> String {
        without_secrets(self.url())
    }

    /// `Content-Type`; `None` when it is missing or malformed.
    #[must_use]
    pub fn media_type(&self) -> Option<MediaType> {
        MediaType::parse(self.headers().get(CONTENT_TYPE)?.to_str().ok()?)
    }

    /// The `Content-Encoding` that the body still has: what was asked for is undone, what comes unasked is not.
    #[must_use]
    pub fn encoding(&self) -> Option<String> {
        let encoding = self.headers().get(CONTENT_ENCODING)?;
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).trim().to_ascii_lowercase();
        Some(encoding).filter(|encoding| !encoding.is_empty() && encoding != "identity")
    }

    /// `Content-Length`, when it is stated. Says nothing about a compressed body's real size.
    #[must_use]
    pub fn stated_length(&self) -> Option<u64> {
        self.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// The next piece of the body; `None` at its end.
    ///
    /// # Errors
    /// [`NetError`] when the exchange breaks or a bound is reached.
    pub async fn chunk(&mut self, bounds: Bounds<'_>) -> Result<Option<Bytes>, NetError> {
        let chunk = bounds.run(self.inner.chunk()).await?;
        chunk.map_err(|error| NetError::from_reqwest(error, self.host.clone()))
    }

    /// The body, at most `max` bytes of it. The rest is not read, and the connection is closed then.
    ///
    /// # Errors
    /// As [`HttpResponse::chunk`].
    pub async fn read(mut self, max: usize, bounds: Bounds<'_>) -> Result<Body, NetError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk(bounds).await? {
            let room = max - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                return Ok(Body { bytes, cut: true });
            }
        }
        Ok(Body { bytes, cut: false })
    }
}
