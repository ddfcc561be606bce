//! `requestState` (2026-07-28, "Multi Round-Trip Requests"): what a client sends back with its answers, signed, so
//! that it can only be what it was given.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use toolwright_core::canonical::ContentHash;

/// Of the form below; a change of the form changes it.
const FORM: u8 = 1;
/// Form, call, round, expiry, binding.
const BODY: usize = 1 + 16 + 4 + 8 + 32;
const TAG: usize = 32;

/// Signs states. Whoever has the key can make them.
#[derive(Clone)]
pub struct StateKey([u8; 32]);

impl std::fmt::Debug for StateKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StateKey(…)")
    }
}

/// Which question a client answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestState {
    /// The call that waits.
    pub call: u128,
    /// Which of its questions, from 0. An answer to an earlier one is void.
    pub round: u32,
    /// When it is void, in seconds since the Unix epoch.
    pub expires: u64,
    /// Hash of what the request must still be: whose, where, which method, with which parameters.
    pub binding: ContentHash,
}

/// Why a state is not taken. Told to clients as it is: it gives nothing away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// Not of ours, or changed.
    #[error("this requestState was not made by this server, or was changed")]
    Forged,
    /// Too late.
    #[error(
        "too late: the call of this requestState has ended, or went on without the answers; it may have had effects"
    )]
    Expired,
    /// Another request than the one that was answered with it.
    #[error("this requestState belongs to another request")]
    Foreign,
}

impl StateKey {
    /// A key of these bytes, which must be random and secret.
    #[must_use]
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The state as text.
    #[must_use]
    pub fn seal(&self, state: &RequestState) -> String {
        let mut bytes = Vec::with_capacity(BODY + TAG);
        bytes.push(FORM);
        bytes.extend_from_slice(&state.call.to_be_bytes());
        bytes.extend_from_slice(&state.round.to_be_bytes());
        bytes.extend_from_slice(&state.expires.to_be_bytes());
        bytes.extend_from_slice(state.binding.as_bytes());
        if let Some(mut mac) = self.mac() {
            mac.update(&bytes);
            bytes.extend_from_slice(&mac.finalize().into_bytes());
        }
        BASE64.encode(bytes)
    }

    /// The call and round of a text that [`StateKey::seal`] made for this request, at `now` in seconds since the
    /// Unix epoch.
    ///
    /// # Errors
    /// [`StateError`]; nothing of a text whose signature is wrong is looked at.
    pub fn open(&self, text: &str, binding: ContentHash, now: u64) -> Result<(u128, u32), StateError> {
        let bytes = BASE64.decode(text).map_err(|_| StateError::Forged)?;
        let (body, tag) = bytes.split_at_checked(BODY).ok_or(StateError::Forged)?;
        let mut mac = self.mac().ok_or(StateError::Forged)?;
        mac.update(body);
        // In constant time.
        mac.verify_slice(tag).map_err(|_| StateError::Forged)?;
        let mut rest = body;
        let [FORM] = take::<1>(&mut rest)? else { return Err(StateError::Forged) };
        let call = u128::from_be_bytes(take(&mut rest)?);
        let round = u32::from_be_bytes(take(&mut rest)?);
        let expires = u64::from_be_bytes(take(&mut rest)?);
        if rest != binding.as_bytes() {
            return Err(StateError::Foreign);
        }
        if expires <= now {
            return Err(StateError::Expired);
        }
        Ok((call, round))
    }

    fn mac(&self) -> Option<Hmac<Sha256>> {
        // HMAC takes a key of any length.
        Hmac::new_from_slice(&self.0).ok()
    }
}

fn take<const N: usize>(from: &mut &[u8]) -> Result<[u8; N], StateError> {
    let (taken, rest) = from.split_first_chunk::<N>().ok_or(StateError::Forged)?;
    *from = rest;
    Ok(*taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_what_was_given_or_nothing() {
        let key = StateKey::new([7; 32]);
        let binding = ContentHash::of_bytes(b"mine");
        let state = RequestState { call: 1 << 100, round: 3, expires: 1000, binding };
        let text = key.seal(&state);
        let check = |key: &StateKey, text: &str, binding, now, expect| {
            assert_eq!(key.open(text, binding, now), expect, "{text} at {now}");
        };
        check(&key, &text, binding, 999, Ok((1 << 100, 3)));
        check(&key, &text, binding, 1000, Err(StateError::Expired));
        check(&key, &text, ContentHash::of_bytes(b"yours"), 999, Err(StateError::Foreign));
        check(&StateKey::new([8; 32]), &text, binding, 999, Err(StateError::Forged));
        check(&key, &format!("{text}-TAMPERED"), binding, 999, Err(StateError::Forged));
        check(&key, "", binding, 999, Err(StateError::Forged));
        check(&key, "ü", binding, 999, Err(StateError::Forged));
        let bytes = BASE64.decode(&text).expect("base64");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            check(&key, &BASE64.encode(&changed), binding, 999, Err(StateError::Forged));
            check(&key, &BASE64.encode(&bytes[..at]), binding, 999, Err(StateError::Forged));
        }
    }
}
