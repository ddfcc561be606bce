//! The signed document and its Ed25519 keys. A document is not used before its signature is verified.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SystemRandom;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolwright_core::canonical::{ContentHash, canonical_json};

/// The value of a document's `format`.
pub const FORMAT: &str = "toolwright-catalogue/1";
/// The most tools of a document.
const MAX_TOOLS: usize = 2000;
/// The most signatures of a document.
const MAX_SIGNATURES: usize = 16;
/// Seconds by which the publisher's clock may be ahead of ours.
const CLOCK_SKEW: u64 = 24 * 3600;
/// The largest integer that all JSON parsers read exactly (RFC 7493, section 2.2).
const MAX_NUMBER: u64 = 1 << 53;

/// A catalogue document.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Must be [`FORMAT`].
    pub format: String,
    /// The namespace of all its tools.
    pub namespace: String,
    /// A number that grows with each change.
    pub version: u64,
    /// Creation time, in seconds since the epoch.
    pub issued: u64,
    /// Expiry time, in seconds since the epoch.
    pub expires: u64,
    /// Its tools, which are checked one by one.
    pub tools: Vec<Value>,
    /// Signatures over all other fields.
    #[serde(default)]
    pub signatures: Vec<Signature>,
}

/// A signature.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signature {
    /// The signer's public key, `ed25519:<base64>`.
    pub key: String,
    /// 64 bytes in base64.
    pub signature: String,
}

/// The requirements for a document.
#[derive(Debug, Clone)]
pub struct VerifyOptions<'a> {
    /// The trusted keys.
    pub keys: &'a [PublicKey],
    /// The required namespace.
    pub namespace: &'a str,
    /// The present time, in seconds since the epoch.
    pub now: u64,
    /// The largest document, in bytes.
    pub max_bytes: usize,
    /// The last accepted document.
    pub seen: Option<SeenVersion>,
}

/// Identifies a document that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenVersion {
    /// Its version.
    pub version: u64,
    /// The hash of the signed part.
    pub hash: ContentHash,
}

/// A verified document.
#[derive(Debug, Clone, PartialEq)]
pub struct Verified {
    /// The document.
    pub document: Document,
    /// The trusted key that signed it.
    pub key: PublicKey,
    /// The key's signature, in base64.
    pub signature: String,
    /// The record to keep of it.
    pub seen: SeenVersion,
}

/// The reason why a document is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is too large.
    #[error("it is larger than {0} bytes; `max_bytes` can be raised")]
    TooLarge(usize),
    /// It is not a catalogue document.
    #[error("it is not a catalogue: {0}")]
    Form(String),
    /// It contains a number that parsers read differently.
    #[error("it holds the number {0}, which not every reader takes for the same; write it as a text")]
    Number(String),
    /// It has no signature.
    #[error("it is not signed; its publisher signs it with `toolwright catalogue sign`")]
    Unsigned,
    /// None of its keys is trusted.
    #[error("it is signed by {0} only, and none of these keys is among `keys`")]
    WrongKey(String),
    /// It was changed after it was signed.
    #[error("it was changed after {0} had signed it")]
    Changed(PublicKey),
    /// It has expired.
    #[error("it expired {0} s ago; its publisher has to issue a new one")]
    Expired(u64),
    /// It was issued in the future.
    #[error("its date is {0} s in the future; check the clocks")]
    NotYet(u64),
    /// It is older than the last accepted one.
    #[error(
        "it is version {offered}, and version {seen} was accepted before: an older catalogue is refused, unless you \
         run `toolwright catalogue forget`"
    )]
    Rollback {
        /// Its version.
        offered: u64,
        /// The newest version that was accepted.
        seen: u64,
    },
    /// It has the same version as the last accepted one, but other content.
    #[error("its content differs from before under the same version {0}; its publisher has to raise the version")]
    SameVersion(u64),
    /// It has a different namespace.
    #[error("it is for the namespace `{found}`, and this entry is `{expected}`: name the entry so")]
    Namespace {
        /// The document's namespace.
        found: String,
        /// The configured namespace.
        expected: String,
    },
}

/// Verifies the bytes of a document.
///
/// # Errors
/// The first [`Refusal`]; signatures are checked before any signed content.
pub fn verify(bytes: &[u8], options: &VerifyOptions<'_>) -> Result<Verified, Refusal> {
    if bytes.len() > options.max_bytes {
        return Err(Refusal::TooLarge(options.max_bytes));
    }
    let form = |error: serde_json::Error| Refusal::Form(error.to_string());
    let value: Value = serde_json::from_slice(bytes).map_err(form)?;
    let message = signed_part(&value)?;
    let document: Document = serde_json::from_value(value).map_err(form)?;
    let (key, signature) = trusted(&document, options.keys, message.as_bytes())?;
    check_form(&document)?;
    if document.namespace != options.namespace {
        return Err(Refusal::Namespace { found: document.namespace, expected: options.namespace.to_owned() });
    }
    let seen = SeenVersion { version: document.version, hash: ContentHash::of_bytes(message.as_bytes()) };
    check_time(Times { issued: document.issued, expires: document.expires }, options.now)?;
    check_version(seen, options.seen)?;
    Ok(Verified { document, key, signature, seen })
}

/// The times of a document, in seconds since the epoch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) issued: u64,
    pub(super) expires: u64,
}

/// Checks that a document is valid at this time.
///
/// # Errors
/// [`Refusal::Expired`] and [`Refusal::NotYet`].
pub(super) fn check_time(times: Times, now: u64) -> Result<(), Refusal> {
    if now >= times.expires {
        return Err(Refusal::Expired(now - times.expires));
    }
    if times.issued > now.saturating_add(CLOCK_SKEW) {
        return Err(Refusal::NotYet(times.issued - now));
    }
    Ok(())
}

/// Checks that a document may replace the last accepted one.
///
/// # Errors
/// [`Refusal::Rollback`] and [`Refusal::SameVersion`].
pub(super) fn check_version(offered: SeenVersion, before: Option<SeenVersion>) -> Result<(), Refusal> {
    match before {
        Some(before) if before.version > offered.version => {
            Err(Refusal::Rollback { offered: offered.version, seen: before.version })
        }
        Some(before) if before.version == offered.version && before.hash != offered.hash => {
            Err(Refusal::SameVersion(offered.version))
        }
        _ => Ok(()),
    }
}

/// Adds a signature to a document, replacing one by the same key.
///
/// # Errors
/// [`Refusal`] if the value is not a document.
pub fn sign(document: &Value, key: &SigningKey) -> Result<Value, Refusal> {
    let message = signed_part(document)?;
    let parsed: Document =
        serde_json::from_value(document.clone()).map_err(|error| Refusal::Form(error.to_string()))?;
    check_form(&parsed)?;
    let public = key.public().to_string();
    let mut signatures = parsed.signatures;
    signatures.retain(|signature| signature.key != public);
    signatures.push(Signature { signature: STANDARD.encode(key.sign(message.as_bytes())), key: public });
    let mut signed = document.clone();
    if let Some(fields) = signed.as_object_mut() {
        fields.insert("signatures".to_owned(), json!(signatures));
    }
    Ok(signed)
}

/// Returns the canonical text that is signed.
fn signed_part(document: &Value) -> Result<String, Refusal> {
    let Some(fields) = document.as_object() else {
        return Err(Refusal::Form("it is not a JSON object".to_owned()));
    };
    let mut fields = fields.clone();
    fields.shift_remove("signatures");
    let rest = Value::Object(fields);
    check_numbers(&rest)?;
    Ok(canonical_json(&rest))
}

fn check_numbers(value: &Value) -> Result<(), Refusal> {
    match value {
        Value::Number(number) => {
            let whole = number.as_u64().or_else(|| number.as_i64().map(i64::unsigned_abs));
            match whole {
                Some(whole) if whole > MAX_NUMBER => Err(Refusal::Number(number.to_string())),
                _ => Ok(()),
            }
        }
        Value::Array(items) => items.iter().try_for_each(check_numbers),
        Value::Object(fields) => fields.values().try_for_each(check_numbers),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

fn check_form(document: &Document) -> Result<(), Refusal> {
    if document.format != FORMAT {
        let found: String = document.format.chars().take(80).collect();
        return Err(Refusal::Form(format!("its `format` is `{found}`, and only {FORMAT} is known")));
    }
    if document.tools.len() > MAX_TOOLS {
        return Err(Refusal::Form(format!("it has {} tools, more than {MAX_TOOLS}", document.tools.len())));
    }
    if document.signatures.len() > MAX_SIGNATURES {
        return Err(Refusal::Form(format!("it has more than {MAX_SIGNATURES} signatures")));
    }
    Ok(())
}

/// Returns the first trusted key with a valid signature, and that signature.
fn trusted(document: &Document, keys: &[PublicKey], message: &[u8]) -> Result<(PublicKey, String), Refusal> {
    if document.signatures.is_empty() {
        return Err(Refusal::Unsigned);
    }
    let mut broken = None;
    for signature in document.signatures.iter().take(MAX_SIGNATURES) {
        let Ok(key) = signature.key.parse::<PublicKey>() else { continue };
        if !keys.contains(&key) {
            continue;
        }
        let bytes = STANDARD.decode(&signature.signature).unwrap_or_default();
        if key.verifies(message, &bytes) {
            return Ok((key, signature.signature.clone()));
        }
        broken = Some(key);
    }
    Err(match broken {
        Some(key) => Refusal::Changed(key),
        None => {
            let named = document.signatures.iter().take(3).map(|signature| signature.key.chars().take(60).collect());
            Refusal::WrongKey(named.collect::<Vec<String>>().join(", "))
        }
    })
}

const PREFIX: &str = "ed25519:";
const PUBLIC_BYTES: usize = 32;

/// The reason why a text or file is not a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The text is not a public key.
    #[error(
        "`{0}` is not a public key: expected ed25519: and 32 bytes in base64, as `toolwright catalogue keygen` prints it"
    )]
    Form(String),
    /// The bytes of a file are not a private key.
    #[error("it holds no Ed25519 private key in PKCS#8, PEM or DER ({0}); `toolwright catalogue keygen` makes one")]
    Private(String),
    /// Key generation failed.
    #[error("no random numbers are available for a key")]
    Random,
}

/// A public key, in the form `ed25519:<base64>`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct PublicKey([u8; PUBLIC_BYTES]);

impl PublicKey {
    /// Returns whether `signature` is by this key over `message`.
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

/// A private key. `Debug` shows only its public half.
pub struct SigningKey(Ed25519KeyPair);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SigningKey({})", self.public())
    }
}

impl SigningKey {
    /// Generates a key, as the text of its file: PKCS#8 (RFC 8410) in PEM.
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

    /// Reads a private key: PKCS#8, PEM or DER, with or without its public half (OpenSSL writes none).
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

    /// Returns its public half.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        let mut bytes = [0; PUBLIC_BYTES];
        // An Ed25519 public key has 32 bytes (RFC 8032, section 5.1.5).
        for (to, from) in bytes.iter_mut().zip(self.0.public_key().as_ref()) {
            *to = *from;
        }
        PublicKey(bytes)
    }

    /// Signs `message`.
    #[must_use]
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.0.sign(message).as_ref().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn key() -> SigningKey {
        SigningKey::read(SigningKey::generate().expect("key").as_bytes()).expect("read")
    }

    fn document() -> Value {
        json!({"format": FORMAT, "namespace": "acme", "version": 3, "issued": NOW - 10, "expires": NOW + 10,
            "tools": [{"id": "acme:t@1.0.0", "price": 1.50}]})
    }

    fn check(change: impl Fn(&mut Value), options: impl Fn(&mut VerifyOptions<'_>), expect: Option<&str>) {
        let key = key();
        let keys = [key.public()];
        let mut signed = sign(&document(), &key).expect("signed");
        change(&mut signed);
        let mut ours = VerifyOptions { keys: &keys, namespace: "acme", now: NOW, max_bytes: 10_000, seen: None };
        options(&mut ours);
        let verified = verify(signed.to_string().as_bytes(), &ours);
        match (verified, expect) {
            (Ok(verified), None) => assert_eq!((verified.document.version, verified.key), (3, key.public())),
            (Err(refusal), Some(part)) => assert!(refusal.to_string().contains(part), "{refusal}"),
            (verified, expect) => panic!("{verified:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn only_new_documents_of_pinned_keys_count() {
        let same = |_: &mut Value| ();
        let usual = |_: &mut VerifyOptions<'_>| ();
        check(same, usual, None);
        check(|d| d["tools"][0]["id"] = json!("acme:u@1.0.0"), usual, Some("was changed after"));
        check(|d| d["version"] = json!(4), usual, Some("was changed after"));
        check(|d| d["signatures"] = json!([]), usual, Some("it is not signed"));
        check(|d| drop(d.as_object_mut().expect("object").shift_remove("signatures")), usual, Some("it is not signed"));
        check(|d| d["signatures"][0]["signature"] = json!("AAAA"), usual, Some("was changed after"));
        check(|d| d["signatures"][0]["key"] = json!(key().public().to_string()), usual, Some("none of these keys"));
        check(same, |options| options.keys = &[], Some("none of these keys"));
        check(same, |options| options.now = NOW + 10, Some("it expired 0 s ago"));
        check(same, |options| options.now = NOW - 2 * CLOCK_SKEW, Some("check the clocks"));
        check(same, |options| options.namespace = "other", Some("for the namespace `acme`"));
        check(same, |options| options.max_bytes = 10, Some("larger than 10 bytes"));
        let seen = |version| Some(SeenVersion { version, hash: ContentHash::of_bytes(b"x") });
        check(same, |options| options.seen = seen(2), None);
        check(same, |options| options.seen = seen(4), Some("version 4 was accepted before"));
        check(same, |options| options.seen = seen(3), Some("under the same version 3"));
        check(|d| *d = json!([]), usual, Some("not a JSON object"));
        check(|d| d["tools"][0]["price"] = json!(u64::MAX), usual, Some("18446744073709551615"));
    }

    #[test]
    fn signatures_ignore_formatting() {
        let key = key();
        let text = sign(&document(), &key).expect("signed").to_string();
        let mut back: Value = serde_json::from_str(&text).expect("JSON");
        let mut fields = std::mem::take(back.as_object_mut().expect("object"));
        fields.sort_keys();
        let spaced = serde_json::to_string_pretty(&fields).expect("text").replace("1.5", "1.50e0");
        let keys = [key.public()];
        let options = VerifyOptions { keys: &keys, namespace: "acme", now: NOW, max_bytes: 10_000, seen: None };
        let (one, other) = (verify(text.as_bytes(), &options), verify(spaced.as_bytes(), &options));
        assert_eq!(one.expect("one").seen, other.expect("other").seen);
    }

    #[test]
    fn two_keys_may_sign_and_one_signs_once() {
        let (old, new) = (key(), key());
        let twice = sign(&sign(&document(), &old).expect("old"), &new).expect("new");
        let again = sign(&twice, &old).expect("again");
        assert_eq!(again["signatures"].as_array().map(Vec::len), Some(2));
        for key in [old, new] {
            let keys = [key.public()];
            let options = VerifyOptions { keys: &keys, namespace: "acme", now: NOW, max_bytes: 10_000, seen: None };
            assert!(verify(again.to_string().as_bytes(), &options).is_ok());
        }
        assert!(matches!(sign(&json!({"format": "x"}), &self::key()), Err(Refusal::Form(_))));
    }

    #[test]
    fn keys_survive_their_text_form() {
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
        // Section 7.1, test 1: seed, public key, and the signature of an empty message.
        let der = "MC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g";
        let key = SigningKey::read(&STANDARD.decode(der).expect("base64")).expect("as OpenSSL writes it");
        assert_eq!(key.public().to_string(), "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=");
        assert!(STANDARD.encode(key.sign(b"")).starts_with("5VZDAMNgrHKQhuLMgG6Ci"));
    }

    #[test]
    fn invalid_keys_are_refused() {
        for text in ["", "ed25519:", "ed25519:AAAA", "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=", "rsa:AAAA"] {
            assert!(text.parse::<PublicKey>().is_err(), "{text}");
        }
        assert!(SigningKey::read(b"-----BEGIN PRIVATE KEY-----\n!\n").is_err());
        assert!(SigningKey::read(b"no key").is_err());
    }
}
