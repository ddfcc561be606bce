//! Random texts and hashes, as OAuth writes them: base64url without padding.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::error::OAuthError;

/// 256 random bits.
///
/// # Errors
/// [`OAuthError::Setting`] where the system gives no randomness.
pub(crate) fn random_text() -> Result<String, OAuthError> {
    let mut bytes = [0; 32];
    let failed = |_| OAuthError::Setting("the system's random number generator does not work".to_owned());
    SystemRandom::new().fill(&mut bytes).map_err(failed)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

/// The S256 challenge of a PKCE verifier (RFC 7636 section 4.2).
pub(crate) fn s256(verifier: &str) -> String {
    URL_SAFE_NO_PAD.encode(digest::digest(&digest::SHA256, verifier.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_those_of_rfc_7636_appendix_b() {
        assert_eq!(s256("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"), "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM");
        let (one, two) = (random_text().expect("random"), random_text().expect("random"));
        assert!(one.len() == 43 && one != two);
    }
}
