//! Refuses input that serde's derived code accepts: an array in place of an object, and null in place of an absent
//! field.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::protocol::message::Id;

/// Something that is read out of an object only.
pub(crate) struct Object<T>(pub(crate) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Fields<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(fields))
            }
        }

        deserializer.deserialize_map(Fields(PhantomData)).map(Self)
    }
}

/// Reads a field that must be an object.
///
/// # Errors
/// It is not an object, or not of this type.
pub(crate) fn object<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(inner)| inner)
}

/// The id that a message shows.
#[derive(Default)]
pub(crate) enum ReadableId {
    /// Without an id.
    #[default]
    Absent,
    /// With a null id, which is invalid for a request.
    Null,
    /// With this id.
    Is(Id),
}

impl<'de> Deserialize<'de> for ReadableId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::<Id>::deserialize(deserializer)?.map_or(Self::Null, Self::Is))
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::message::{Id, Message, Response, RpcError, parse};

    #[test]
    fn a_request_whose_id_is_null_is_refused() {
        for method in ["ping", "tools/call", "own/x"] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":null,"method":"{method}","params":{{}}}}"#);
            let refused = parse(text.as_bytes()).expect_err("refused");
            assert_eq!((refused.error.code, refused.id), (RpcError::INVALID_REQUEST, None), "{text}");
        }
        for text in [
            r#"{"jsonrpc":"2.0","method":"ping"}"#,
            // There is nobody to answer.
            r#"{"jsonrpc":"2.0","id":null,"method":"notifications/initialized"}"#,
        ] {
            assert!(matches!(parse(text.as_bytes()), Ok(Message::Notification { .. })), "{text}");
        }
        // Errors about unreadable messages look like this.
        let answer = parse(br#"{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"x"}}"#);
        assert!(matches!(answer, Ok(Message::Response(Response { id: None, outcome: Err(_) }))), "{answer:?}");
    }

    #[test]
    fn params_and_meta_must_be_objects() {
        for params in ["[]", "[1]", r#"[{"progressToken":1}]"#, "5", r#""x""#, r#"{"_meta":[]}"#, r#"{"_meta":[1]}"#] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}"#);
            let refused = parse(text.as_bytes()).expect_err("refused");
            assert_eq!((refused.error.code, refused.id), (RpcError::INVALID_PARAMS, Some(Id::Number(7.into()))));
            let message = &refused.error.message;
            assert!(message.contains("expected an object") && !message.contains("struct"), "{text}: {message}");
            // Parameters of unknown methods are not parsed.
            let text = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"own/x","params":{params}}}"#);
            let Ok(Message::Request(request)) = parse(text.as_bytes()) else { panic!("{text}") };
            assert_eq!(request.params.meta.progress_token, None, "{text}");
        }
        for params in ["{}", "null", r#"{"_meta":{}}"#] {
            let text = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"ping","params":{params}}}"#);
            assert!(matches!(parse(text.as_bytes()), Ok(Message::Request(_))), "{text}");
        }
    }
}
