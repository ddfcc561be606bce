//! The `requestState` of a dialogue: readable, but bound to its request, to this process and to a time by HMAC-SHA-256
//! (RFC 2104) under a key of this process.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::wire::{Request, RpcError};

/// The time that a client has for its answer.
const LIFETIME: Duration = Duration::from_secs(600);
const BLOCK: usize = 64;

pub(super) struct Seal {
    key: [u8; BLOCK],
}

impl Default for Seal {
    fn default() -> Self {
        let mut key = [0; BLOCK];
        for part in key.chunks_mut(16) {
            part.copy_from_slice(uuid::Uuid::new_v4().as_bytes());
        }
        Self { key }
    }
}

impl Seal {
    pub(super) fn close(&self, request: &Request, state: &Value) -> String {
        let payload = BASE64.encode(json!({"state": state, "expires": now() + LIFETIME.as_secs()}).to_string());
        let tag = BASE64.encode(self.tag(request, &payload));
        format!("{payload}.{tag}")
    }

    /// Returns the state if this process sealed it for the same request within [`LIFETIME`].
    pub(super) fn open(&self, request: &Request, token: &str) -> Result<Value, RpcError> {
        let invalid = || RpcError::invalid("requestState is not one of ours, or it is too old");
        let (payload, tag) = token.split_once('.').ok_or_else(invalid)?;
        if BASE64.decode(tag).ok().as_deref() != Some(&self.tag(request, payload)[..]) {
            return Err(invalid());
        }
        let payload = BASE64.decode(payload).map_err(|_| invalid())?;
        let payload: Value = serde_json::from_slice(&payload).map_err(|_| invalid())?;
        if payload["expires"].as_u64().is_none_or(|expires| expires < now()) {
            return Err(invalid());
        }
        Ok(payload["state"].clone())
    }

    fn tag(&self, request: &Request, payload: &str) -> [u8; 32] {
        let pad = |byte: u8| self.key.map(|key| key ^ byte);
        let arguments = request.params.get("arguments").map(Value::to_string).unwrap_or_default();
        let mut inner = Sha256::new_with_prefix(pad(0x36));
        for part in [&request.method, request.text("name"), request.text("uri"), &arguments, payload] {
            inner.update(part.len().to_le_bytes());
            inner.update(part);
        }
        let mut outer = Sha256::new_with_prefix(pad(0x5c));
        outer.update(inner.finalize());
        outer.finalize().into()
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Era;

    #[test]
    fn a_state_is_bound_to_its_request() {
        let request = |name: &str, city: &str| Request {
            id: json!(1),
            method: "tools/call".into(),
            params: json!({"name": name, "arguments": {"city": city}}).as_object().cloned().unwrap(),
            era: Era::Modern,
        };
        let seal = Seal::default();
        let token = seal.close(&request("a", "Bern"), &json!({"step": 2}));
        let check = |seal: &Seal, name: &str, city: &str, token: &str, expect: Option<Value>| {
            assert_eq!(seal.open(&request(name, city), token).ok(), expect, "{name} {city} {token}");
        };
        check(&seal, "a", "Bern", &token, Some(json!({"step": 2})));
        check(&seal, "b", "Bern", &token, None);
        check(&seal, "a", "Basel", &token, None);
        check(&seal, "a", "Bern", &format!("{token}-TAMPERED"), None);
        check(&seal, "a", "Bern", "", None);
        check(&Seal::default(), "a", "Bern", &token, None);
    }
}
