//! Operations: each tool call, model attempt and job is one, with an id, a parent and a place in its run. The
//! ledger, events and exported spans use the same ids (W3C Trace Context, `traceparent`).

use std::fmt;
use std::num::{NonZeroU64, NonZeroU128};
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::identity::session::SessionId;
use crate::json::canonical::ContentHash;

/// Id of an operation and its span. Written as 16 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpId(NonZeroU64);

impl OpId {
    /// The id of this number; 1 for zero, because span ids must not be zero.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(NonZeroU64::new(number).unwrap_or(NonZeroU64::MIN))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

/// Id of a trace: a run, or a call from outside. Written as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TraceId(NonZeroU128);

impl TraceId {
    /// The id of this number; 1 for zero, because trace ids must not be zero.
    #[must_use]
    pub fn new(number: u128) -> Self {
        Self(NonZeroU128::new(number).unwrap_or(NonZeroU128::MIN))
    }

    /// Derives an id from a name, so that a resumed run continues its trace.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let hash = ContentHash::of_bytes(name.as_bytes());
        Self::new(hash.as_bytes().iter().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte)))
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u128 {
        self.0.get()
    }
}

const HEXADECIMAL: &[u8; 16] = b"0123456789abcdef";

macro_rules! hex_id {
    ($name:ident, $number:ty, $digits:literal) => {
        impl $name {
            /// Formats it as hexadecimal ASCII digits.
            fn digits(self) -> [u8; $digits] {
                let mut digits = [b'0'; $digits];
                for (pair, byte) in digits.chunks_exact_mut(2).zip(self.get().to_be_bytes()) {
                    pair[0] = HEXADECIMAL[usize::from(byte >> 4)];
                    pair[1] = HEXADECIMAL[usize::from(byte & 0xf)];
                }
                digits
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&String::from_utf8_lossy(&self.digits()))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let legal = text.len() == $digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
                let number = legal.then(|| <$number>::from_str_radix(text, 16).ok()).flatten();
                number.filter(|&number| number != 0).map(Self::new).ok_or(InvalidId)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}

hex_id!(OpId, u64, 16);
hex_id!(TraceId, u128, 32);

/// A text that is no id of an operation or a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an id of 16 (operation) or 32 (trace) hexadecimal digits other than zero")]
pub struct InvalidId;

/// The trace and parent of new operations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lineage {
    /// Their trace.
    pub trace: TraceId,
    /// The operation that they are part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<OpId>,
    /// The run, if an agent makes them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Arc<str>>,
    /// The run's turn, from 1; 0 outside of runs.
    #[serde(default)]
    pub turn: u32,
    /// The sessions above the run, if a call of another session started it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<Arc<ParentSessions>>,
}

/// The sessions above the session of a child run.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ParentSessions {
    /// The session whose call started the run.
    pub parent: SessionId,
    /// The session at the root of the tree.
    pub root: SessionId,
}

impl Lineage {
    /// Operations outside of runs, in the trace derived from `name`.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self::in_trace(TraceId::of(name))
    }

    /// Operations outside of runs, in this trace.
    #[must_use]
    pub fn in_trace(trace: TraceId) -> Self {
        Self { trace, parent: None, run: None, turn: 0, within: None }
    }

    /// Parses a caller's `traceparent`; `None` if it is invalid and must be ignored
    /// (W3C Trace Context, section 3.2).
    #[must_use]
    pub fn of_traceparent(traceparent: &str) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let two_digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        // Version ff is invalid; versions after 00 may have more fields.
        let legal = two_digits(version) && two_digits(flags) && version != "ff";
        if !legal || (version == "00" && parts.next().is_some()) {
            return None;
        }
        Some(Self { parent: Some(parent.parse().ok()?), ..Self::in_trace(trace.parse().ok()?) })
    }

    /// Returns the lineage of a run started by a call of `session`, whose lineage this is.
    #[must_use]
    pub fn of_child(&self, session: &SessionId, run: &Arc<str>) -> Self {
        let root = self.within.as_ref().map_or_else(|| session.clone(), |within| within.root.clone());
        let within = Some(Arc::new(ParentSessions { parent: session.clone(), root }));
        Self { run: Some(Arc::clone(run)), turn: 0, within, ..self.clone() }
    }

    /// The operation `id` begins.
    #[must_use]
    pub fn begin(&self, id: OpId) -> Op {
        Op { id, lineage: self.clone() }
    }
}

/// Who made a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallOrigin {
    /// The owner, by a command or from a program.
    #[default]
    Owner,
    /// An agent's model.
    Agent,
    /// A client of the gateway.
    Gateway,
    /// A job.
    Job,
}

/// The kind of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpKind {
    /// A tool call.
    Tool,
    /// A request to a model.
    Model,
    /// A job.
    Job,
    /// A guard's judgement of a call.
    Guard,
}

impl OpKind {
    /// Returns its stored form.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Tool => "tool",
            Self::Model => "model",
            Self::Job => "job",
            Self::Guard => "guard",
        }
    }

    /// The kind that is written so.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        [Self::Tool, Self::Model, Self::Job, Self::Guard].into_iter().find(|kind| kind.as_str() == text)
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An operation with its lineage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Op {
    /// Its id.
    pub id: OpId,
    /// Its lineage.
    #[serde(flatten)]
    pub lineage: Lineage,
}

impl Op {
    /// Returns the lineage of its child operations.
    #[must_use]
    pub fn inside(&self) -> Lineage {
        Lineage { parent: Some(self.id), ..self.lineage.clone() }
    }

    /// The `traceparent` for a peer.
    #[must_use]
    pub fn traceparent(&self) -> Arc<str> {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-01";
        text[3..35].copy_from_slice(&self.lineage.trace.digits());
        text[36..52].copy_from_slice(&self.id.digits());
        String::from_utf8_lossy(&text).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operation_ids_round_trip_as_hex() {
        let op = OpId::new(0xab);
        assert_eq!((op.to_string().as_str(), "00000000000000ab".parse()), ("00000000000000ab", Ok(op)));
        assert_eq!(OpId::new(0).get(), 1);
        for bad in ["", "ab", "0000000000000000", "+0000000000000ab", "00000000000000abc"] {
            assert_eq!(bad.parse::<OpId>(), Err(InvalidId), "{bad}");
        }
        let json = serde_json::to_string(&TraceId::of("run-1")).expect("json");
        assert_eq!(serde_json::from_str::<TraceId>(&json).expect("back"), TraceId::of("run-1"));
    }

    #[test]
    fn a_traceparent_is_continued_or_ignored() {
        let given = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let lineage = Lineage::of_traceparent(given).expect("valid");
        assert_eq!(lineage.parent.map(|parent| parent.to_string()).as_deref(), Some("00f067aa0ba902b7"));
        assert_eq!(
            &*lineage.begin(OpId::new(2)).traceparent(),
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000002-01"
        );
        for bad in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
        ] {
            assert_eq!(Lineage::of_traceparent(bad), None, "{bad}");
        }
        assert!(Lineage::of_traceparent("01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more").is_some());
    }

    #[test]
    fn inner_operations_name_their_parent() {
        let op = Lineage { run: Some("r".into()), turn: 3, ..Lineage::named("r") }.begin(OpId::new(7));
        let inside = op.inside();
        assert_eq!((inside.parent, inside.trace, inside.turn), (Some(OpId::new(7)), TraceId::of("r"), 3));
    }
}
