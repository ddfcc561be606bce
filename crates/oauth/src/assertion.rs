//! Signed assertions by which a client says who it is (RFC 7523 section 2.2), in place of a shared secret.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, RSA_PKCS1_SHA256,
    RSA_PKCS1_SHA384, RSA_PKCS1_SHA512, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding, RsaKeyPair,
};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::json;
use toolwright_core::Secret;

use super::error::OAuthError;
use super::random::random_text;

/// How long an assertion holds. It is made for one request.
const LIFETIME_SECONDS: u64 = 120;

/// A client's private key. `Debug` shows the algorithm only.
#[derive(Clone)]
pub struct SigningKey {
    algorithm: &'static str,
    key_id: Option<String>,
    pem: Secret,
    key: Arc<Key>,
}

impl PartialEq for SigningKey {
    fn eq(&self, other: &Self) -> bool {
        (self.algorithm, &self.key_id, &self.pem) == (other.algorithm, &other.key_id, &other.pem)
    }
}

impl Eq for SigningKey {}

enum Key {
    Ecdsa(EcdsaKeyPair),
    Rsa(RsaKeyPair, &'static dyn RsaEncoding),
    Ed25519(Ed25519KeyPair),
}

impl SigningKey {
    /// A key of PKCS#8 in PEM (`BEGIN PRIVATE KEY`), for a JWS algorithm: ES256, ES384, RS256, RS384, RS512, PS256,
    /// PS384, PS512 or EdDSA. `key_id` goes into the header `kid`.
    ///
    /// # Errors
    /// [`OAuthError::Setting`], never with the key in it.
    pub fn from_pem(pem: &str, algorithm: &str, key_id: Option<String>) -> Result<Self, OAuthError> {
        let unusable = |reason: String| OAuthError::Setting(format!("the private key cannot be used: {reason}"));
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes())
            .map_err(|_| unusable("it is not PKCS#8 in PEM (`-----BEGIN PRIVATE KEY-----`)".to_owned()))?;
        let der = der.secret_pkcs8_der();
        let rejected = |error: ring::error::KeyRejected| unusable(format!("{error} (for {algorithm})"));
        let rsa = |encoding| RsaKeyPair::from_pkcs8(der).map(|pair| Key::Rsa(pair, encoding)).map_err(rejected);
        let ecdsa =
            |curve| EcdsaKeyPair::from_pkcs8(curve, der, &SystemRandom::new()).map(Key::Ecdsa).map_err(rejected);
        let (algorithm, key) = match algorithm {
            "ES256" => ("ES256", ecdsa(&ECDSA_P256_SHA256_FIXED_SIGNING)?),
            "ES384" => ("ES384", ecdsa(&ECDSA_P384_SHA384_FIXED_SIGNING)?),
            "RS256" => ("RS256", rsa(&RSA_PKCS1_SHA256)?),
            "RS384" => ("RS384", rsa(&RSA_PKCS1_SHA384)?),
            "RS512" => ("RS512", rsa(&RSA_PKCS1_SHA512)?),
            "PS256" => ("PS256", rsa(&RSA_PSS_SHA256)?),
            "PS384" => ("PS384", rsa(&RSA_PSS_SHA384)?),
            "PS512" => ("PS512", rsa(&RSA_PSS_SHA512)?),
            "EdDSA" => {
                let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(der).map_err(rejected)?;
                ("EdDSA", Key::Ed25519(pair))
            }
            other => return Err(unusable(format!("the algorithm `{other}` is not known"))),
        };
        Ok(Self { algorithm, key_id, pem: Secret::new(pem), key: Arc::new(key) })
    }

    /// An assertion of `client` for the authorization server `audience`.
    ///
    /// # Errors
    /// [`OAuthError::Setting`] where signing fails.
    pub(crate) fn assertion(&self, client: &str, audience: &str) -> Result<String, OAuthError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut header = json!({"alg": self.algorithm, "typ": "JWT"});
        if let Some(key_id) = &self.key_id {
            header["kid"] = json!(key_id);
        }
        let claims = json!({
            "iss": client,
            "sub": client,
            "aud": audience,
            "jti": random_text()?,
            "iat": now,
            "exp": now + LIFETIME_SECONDS,
        });
        let encode = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self.sign(signed.as_bytes())?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }

    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, OAuthError> {
        let failed = |_| OAuthError::Setting("the private key does not sign".to_owned());
        let random = SystemRandom::new();
        match &*self.key {
            Key::Ecdsa(pair) => Ok(pair.sign(&random, message).map_err(failed)?.as_ref().to_vec()),
            Key::Ed25519(pair) => Ok(pair.sign(message).as_ref().to_vec()),
            Key::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, &random, message, &mut signature).map_err(failed)?;
                Ok(signature)
            }
        }
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningKey").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use base64::engine::general_purpose::STANDARD;
    use ring::signature::{ECDSA_P256_SHA256_FIXED, KeyPair as _, UnparsedPublicKey};
    use serde_json::Value;

    use super::*;

    #[test]
    fn assertions_verify_and_say_who_and_to_whom() {
        let document =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).expect("a key");
        let pem =
            format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(document.as_ref()));
        let key = SigningKey::from_pem(&pem, "ES256", Some("k1".into())).expect("a key");
        let jwt = key.assertion("me", "https://as").expect("an assertion");
        let parts: Vec<_> = jwt.split('.').collect();
        let decoded = |part: &str| URL_SAFE_NO_PAD.decode(part).expect("base64url");
        let claims: Value = serde_json::from_slice(&decoded(parts[1])).expect("claims");
        let header: Value = serde_json::from_slice(&decoded(parts[0])).expect("a header");
        assert_eq!(
            (&claims["iss"], &claims["sub"], &claims["aud"]),
            (&json!("me"), &json!("me"), &json!("https://as"))
        );
        assert_eq!((&header["alg"], &header["kid"]), (&json!("ES256"), &json!("k1")));
        let Key::Ecdsa(pair) = &*key.key else { panic!("an elliptic key") };
        let public = UnparsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, pair.public_key().as_ref());
        public.verify(format!("{}.{}", parts[0], parts[1]).as_bytes(), &decoded(parts[2])).expect("it verifies");

        for (pem, algorithm, expect) in [(&*pem, "RS256", "RS256"), (&*pem, "none", "not known"), ("x", "ES256", "PEM")]
        {
            let error = SigningKey::from_pem(pem, algorithm, None).expect_err("refused").to_string();
            assert!(error.contains(expect), "{error}");
        }
    }
}
