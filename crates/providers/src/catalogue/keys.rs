//! Ed25519 keys, as texts and files.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::Deserialize;

const PREFIX: &str = "ed25519:";
const PUBLIC_BYTES: usize = 32;

/// Why a text or file is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text of a public key has another form.
    #[error(
        "`{0}` is not a public key: expected ed25519: and 32 bytes in base64, as `toolwright catalogue keygen` prints it"
    )]
    Form(String),
    /// The bytes of a file are no private key.
    #[error("it holds no Ed25519 private key in PKCS#8, PEM or DER ({0}); `toolwright catalogue keygen` makes one")]
    Private(String),
    /// No key could be made.
    #[error("no random numbers are to be had for a key")]
    Random,
}

/// A public key, written `ed25519:<base64>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct PublicKey([u8; PUBLIC_BYTES]);

impl PublicKey {
    /// Whether `signature` is this key's over `message`.
    #[must_use]
    pub fn verifies(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(message, signature).is_ok()
    }
}

impl TryFrom<String> for PublicKey {
    type Error = KeyError;

    fn try_from(text: String) -> Result<Self, KeyError> {
        text.parse()
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let form = || KeyError::Form(text.chars().take(80).collect());
        let bytes = STANDARD.decode(text.strip_prefix(PREFIX).ok_or_else(form)?).map_err(|_| form())?;
        bytes.try_into().map(Self).map_err(|_| form())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A private key. `Debug` shows its public half only.
pub struct SigningKey(Ed25519KeyPair);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}

impl SigningKey {
    /// A new key as the text of its file: PKCS#8 (RFC 8410) in PEM.
    ///
    /// # Errors
    /// [`KeyError::Random`].
    pub fn generate() -> Result<String, KeyError> {
        let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::Random)?;
        let body = STANDARD.encode(der.as_ref());
        let mut pem = String::from("-----BEGIN PRIVATE KEY-----\n");
        for line in body.as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END PRIVATE KEY-----\n");
        Ok(pem)
    }

    /// Reads a private key: PKCS#8, PEM or DER, with its public half or without (as OpenSSL writes it).
    ///
    /// # Errors
    /// [`KeyError::Private`].
    pub fn read(bytes: &[u8]) -> Result<Self, KeyError> {
        let der = match std::str::from_utf8(bytes) {
            Ok(text) if text.trim_start().starts_with("-----BEGIN") => {
                let body: String = text.lines().filter(|line| !line.starts_with("-----")).map(str::trim).collect();
                STANDARD.decode(body).map_err(|error| KeyError::Private(error.to_string()))?
            }
            _ => bytes.to_vec(),
        };
        Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map(Self).map_err(|error| KeyError::Private(error.to_string()))
    }

    /// Its public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; PUBLIC_BYTES];
        // An Ed25519 public key has 32 bytes (RFC 8032, section 5.1.5).
        for (to, from) in bytes.iter_mut().zip(self.0.public_key().as_ref()) {
            *to = *from;
        }
        PublicKey(bytes)
    }

    /// Its signature over `message`.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).as_ref().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text_and_signs_for_its_public_half() {
        let pem = SigningKey::generate().expect("key");
        let key = SigningKey::read(pem.as_bytes()).expect("read");
        let public: PublicKey = key.public().to_string().parse().expect("public");
        assert_eq!(public, key.public());
        let signature = key.sign(b"m");
        assert!(public.verifies(b"m", &signature));
        assert!(!public.verifies(b"n", &signature) && !public.verifies(b"m", &signature[1..]));
        assert!(!format!("{key:?}").contains(&pem.lines().nth(1).expect("body")[20..40]));
    }

    #[test]
    fn the_first_test_vector_of_rfc_8032_holds() {
        // Section 7.1, test 1: seed, public key, signature over nothing.
        let der = "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g";
        let key = SigningKey::read(&STANDARD.decode(der).expect("base64")).expect("as OpenSSL writes it");
        assert_eq!(key.public().to_string(), "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=");
        assert!(STANDARD.encode(key.sign(b"")).starts_with("5VZDAMNgrHKQhuLMgG6Ci"));
    }

    #[test]
    fn what_is_no_key_is_told() {
        for text in ["", "ed25519:", "ed25519:AAAA", "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=", "rsa:AAAA"] {
            assert!(text.parse::<PublicKey>().is_err(), "{text}");
        }
        assert!(SigningKey::read(b"-----BEGIN PRIVATE KEY-----\n!\n").is_err());
        assert!(SigningKey::read(b"no key").is_err());
    }
}
