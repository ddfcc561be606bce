//! What a server says of how far a call is.

use std::fmt;

use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use toolwright_core::event::Partial;

/// The parameters of `notifications/progress`.
#[derive(Debug)]
pub(crate) struct Progress<'a> {
    /// Of the call.
    pub(crate) token: &'a RawValue,
    /// How far it is, with all else that the server says of it.
    pub(crate) partial: Partial,
}

/// A field of them.
#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
enum Field {
    ProgressToken,
    Progress,
    Total,
    Message,
    Other(String),
}

impl<'de: 'a, 'a> Deserialize<'de> for Progress<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Progress<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the parameters of notifications/progress")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Self::Value, A::Error> {
                let (mut token, mut progress, mut total, mut message) = (None, None, None, None);
                let mut more = Map::new();
                while let Some(field) = fields.next_key()? {
                    match field {
                        Field::ProgressToken => token = Some(fields.next_value()?),
                        Field::Progress => progress = Some(fields.next_value()?),
                        Field::Total => total = fields.next_value()?,
                        Field::Message => message = fields.next_value()?,
                        Field::Other(key) => _ = more.insert(key, fields.next_value::<Value>()?),
                    }
                }
                let progress = progress.ok_or_else(|| A::Error::missing_field("progress"))?;
                Ok(Progress {
                    token: token.ok_or_else(|| A::Error::missing_field("progressToken"))?,
                    partial: Partial::Progress { progress, total, message, more },
                })
            }
        }

        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_known_of_progress_is_kept() {
        let text = r#"{"progressToken":7,"progress":1,"message":"m","total":null,"_meta":{"k":[1]},"later":{}}"#;
        let read: Progress<'_> = serde_json::from_str(text).expect("progress");
        assert_eq!(read.token.get(), "7");
        let Value::Object(more) = json!({"_meta": {"k": [1]}, "later": {}}) else { panic!("an object") };
        let expect = Partial::Progress { progress: 1.0, total: None, message: Some("m".into()), more };
        assert_eq!(read.partial, expect);
        for other in [r#"{"progress":1}"#, r#"{"progressToken":7}"#, r#"{"progressToken":7,"progress":"1"}"#, "[7,1]"] {
            assert!(serde_json::from_str::<Progress<'_>>(other).is_err(), "{other}");
        }
    }
}
