//! The signature of a webhook's request, as in Standard Webhooks and most services: an HMAC-SHA256 over the
//! timestamp, a full stop and the body. A delivery's key is signed too, so that a request cannot be replayed under
//! another key.

use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

use crate::ContentHash;

/// The headers of a request.
pub const SIGNATURE: &str = "x-toolwright-signature";
/// Seconds since the epoch.
pub const TIMESTAMP: &str = "x-toolwright-timestamp";
/// Header with the sender's delivery key: a repeated key fires nothing.
pub const DELIVERY: &str = "x-toolwright-delivery";

/// Bytes of a delivery's key.
const MAX_KEY: usize = 200;

/// A signed request.
#[derive(Debug, Clone, Copy)]
pub struct SignedRequest<'a> {
    /// The header's value: `sha256=` and 64 hexadecimal digits.
    pub signature: Option<&'a str>,
    /// The header's value.
    pub timestamp: Option<&'a str>,
    /// The header's value.
    pub delivery: Option<&'a str>,
    /// The body.
    pub body: &'a [u8],
}

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// A header is missing.
    #[error("the header {0} is missing")]
    Missing(&'static str),
    /// A header cannot be read.
    #[error("the header {0} cannot be read")]
    Unreadable(&'static str),
    /// The timestamp is too far from now.
    #[error("the timestamp is outside the window of this webhook; send it with the time of now")]
    Old,
    /// No secret of this webhook made the signature.
    #[error(
        "the signature does not match; it is the HMAC-SHA256 of timestamp, full stop and body, behind `delivery:`, key and line feed where there is a key"
    )]
    Wrong,
}

/// Verifies a request and returns its replay key: the sender's own, else the hash of the signed text.
///
/// # Errors
/// [`SignatureError`].
pub fn verify<'s>(
    request: SignedRequest<'_>,
    secrets: impl IntoIterator<Item = &'s [u8]>,
    window: Duration,
    now_ms: u64,
) -> Result<String, SignatureError> {
    let written = request.timestamp.ok_or(SignatureError::Missing(TIMESTAMP))?;
    let timestamp: u64 = written.parse().map_err(|_| SignatureError::Unreadable(TIMESTAMP))?;
    let signature = request.signature.ok_or(SignatureError::Missing(SIGNATURE))?;
    let signature = signature.strip_prefix("sha256=").unwrap_or(signature);
    let signature = from_hex(signature).ok_or(SignatureError::Unreadable(SIGNATURE))?;
    // Compared in constant time. The time window is checked afterwards, so that a stranger learns nothing.
    let matches = |secret: &[u8]| {
        mac(secret, written, request.delivery, request.body).is_some_and(|mac| mac.verify_slice(&signature).is_ok())
    };
    if !secrets.into_iter().any(matches) {
        return Err(SignatureError::Wrong);
    }
    if timestamp.saturating_mul(1000).abs_diff(now_ms) > u64::try_from(window.as_millis()).unwrap_or(u64::MAX) {
        return Err(SignatureError::Old);
    }
    match request.delivery {
        Some(key) if key.is_empty() || key.len() > MAX_KEY => Err(SignatureError::Unreadable(DELIVERY)),
        Some(key) => Ok(format!("delivery {key}")),
        None => Ok(format!("signed {}", ContentHash::of_bytes(&signature).to_hex())),
    }
}

/// The signature header of a request.
#[must_use]
pub fn sign(secret: &[u8], timestamp: u64, delivery: Option<&str>, body: &[u8]) -> String {
    let Some(mac) = mac(secret, &timestamp.to_string(), delivery, body) else { return String::new() };
    let digits: String = mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256={digits}")
}

fn mac(secret: &[u8], timestamp: &str, delivery: Option<&str>, body: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).ok()?;
    // A timestamp begins with a digit, so the two forms are distinct.
    if let Some(delivery) = delivery {
        mac.update(format!("delivery:{delivery}\n").as_bytes());
    }
    mac.update(timestamp.as_bytes());
    mac.update(b".");
    mac.update(body);
    Some(mac)
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_fresh_signed_requests_pass() {
        const NOW: u64 = 1_700_000_000;
        let good = sign(b"new secret", NOW, None, b"{}");
        let old = sign(b"old secret", NOW, None, b"{}");
        let check =
            |signature: Option<&str>, timestamp: Option<u64>, body: &str, expect: Result<(), SignatureError>| {
                let timestamp = timestamp.map(|seconds| seconds.to_string());
                let request =
                    SignedRequest { signature, timestamp: timestamp.as_deref(), delivery: None, body: body.as_bytes() };
                let secrets = [&b"new secret"[..], b"old secret"];
                let verified = verify(request, secrets, Duration::from_secs(300), NOW * 1000);
                assert_eq!(verified.map(drop), expect, "{signature:?} {timestamp:?} {body}");
            };
        check(Some(&good), Some(NOW), "{}", Ok(()));
        check(Some(&old), Some(NOW), "{}", Ok(()));
        check(Some(&good), Some(NOW), "{} ", Err(SignatureError::Wrong));
        check(Some(&good), Some(NOW - 1), "{}", Err(SignatureError::Wrong));
        check(Some(&sign(b"another", NOW, None, b"{}")), Some(NOW), "{}", Err(SignatureError::Wrong));
        check(Some(&sign(b"new secret", NOW - 301, None, b"{}")), Some(NOW - 301), "{}", Err(SignatureError::Old));
        check(Some(&sign(b"new secret", NOW + 301, None, b"{}")), Some(NOW + 301), "{}", Err(SignatureError::Old));
        check(None, Some(NOW), "{}", Err(SignatureError::Missing(SIGNATURE)));
        check(Some("sha256=x"), Some(NOW), "{}", Err(SignatureError::Unreadable(SIGNATURE)));
        check(Some(&good), None, "{}", Err(SignatureError::Missing(TIMESTAMP)));
    }

    #[test]
    fn the_delivery_names_the_request() {
        let key = |signed, delivery| {
            let signature = sign(b"secret", 5, signed, b"x");
            let request = SignedRequest { signature: Some(&signature), timestamp: Some("5"), delivery, body: b"x" };
            verify(request, [&b"secret"[..]], Duration::from_secs(9), 5000)
        };
        assert_eq!(key(Some("d1"), Some("d1")), Ok("delivery d1".into()));
        assert_eq!(key(None, None), key(None, None));
        assert_eq!(key(Some(""), Some("")), Err(SignatureError::Unreadable(DELIVERY)));
        for (signed, delivery) in [(None, Some("d2")), (Some("d1"), Some("d2")), (Some("d1"), None)] {
            assert_eq!(key(signed, delivery), Err(SignatureError::Wrong), "{signed:?} {delivery:?}");
        }
    }
}
