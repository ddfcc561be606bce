//! Getting the bytes of a catalogue.

use std::time::{Duration, Instant};

use toolwright_core::Cancel;

use super::spec::{CatalogueConfig, is_secure};
use toolwright_net::{Bounds, HttpClient, HttpRequest, NetError};

/// How long fetching one may take, all in all.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Why a catalogue was not fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The address is not protected.
    #[error("`{0}` is refused: catalogues are fetched over https")]
    Insecure(String),
    /// The exchange failed, or the address is refused.
    #[error("it could not be fetched: {0}")]
    Net(#[from] NetError),
    /// The server answered otherwise.
    #[error("its server answered HTTP {0}")]
    Status(u16),
    /// It is too large.
    #[error("it is larger than {0} bytes; `max_bytes` can be raised")]
    TooLarge(usize),
}

/// Fetches the document of `spec`. Redirects are followed, each checked like the address itself, and may not end where
/// the exchange is not protected.
///
/// # Errors
/// [`FetchError`].
pub async fn fetch(client: &HttpClient, spec: &CatalogueConfig) -> Result<Vec<u8>, FetchError> {
    if !is_secure(&spec.url, spec.insecure_loopback) {
        return Err(FetchError::Insecure(spec.url.scheme().to_owned()));
    }
    let cancel = Cancel::new();
    let bounds = Bounds::new(&cancel, Instant::now().checked_add(TIMEOUT));
    let response = client.send(HttpRequest::get(spec.url.clone()), bounds).await?;
    if !is_secure(response.url(), spec.insecure_loopback) {
        return Err(FetchError::Insecure(response.public_url()));
    }
    if !response.status().is_success() {
        return Err(FetchError::Status(response.status().as_u16()));
    }
    let body = response.read(spec.max_bytes, bounds).await?;
    if body.cut { Err(FetchError::TooLarge(spec.max_bytes)) } else { Ok(body.bytes) }
}
