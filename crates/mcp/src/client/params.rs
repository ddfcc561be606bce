//! The parameters of a request, as they are written: what a call says is borrowed, and its `_meta` put together on the
//! way out.

use crate::protocol::message::write_json;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::transport::RequestId;

/// `_meta` key under which a call's idempotency key goes along.
const IDEMPOTENCY_KEY: &str = "io.github.toolwright/idempotency-key";
const TRACEPARENT: &str = "traceparent";
const PROGRESS_TOKEN: &str = "progressToken";

/// Parameters.
#[derive(Debug, Clone, Default)]
pub(crate) struct Params<'a> {
    /// Name of the tool of a call.
    pub(crate) name: Option<&'a str>,
    /// Arguments of a call.
    pub(crate) arguments: Option<Value>,
    /// All others.
    pub(crate) others: Map<String, Value>,
    /// `_meta`.
    pub(crate) meta: Meta<'a>,
}

/// `_meta`. Where two say the same key, the later field counts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meta<'a> {
    /// What is passed on, or of the revision.
    pub(crate) others: Map<String, Value>,
    /// The call's, for who may be asked twice.
    pub(crate) idempotency_key: Option<&'a str>,
    /// W3C trace context.
    pub(crate) traceparent: Option<&'a str>,
    /// Id of the request that they went out with last, under which progress is reported.
    pub(crate) progress_token: Option<RequestId>,
}

impl From<Map<String, Value>> for Params<'_> {
    /// Without `_meta`: one among them is left out.
    fn from(mut others: Map<String, Value>) -> Self {
        others.shift_remove("_meta");
        Self { others, ..Self::default() }
    }
}

impl<'a> Params<'a> {
    /// The same with this `_meta`.
    pub(crate) fn with(self, meta: Meta<'a>) -> Self {
        Self { meta, ..self }
    }
}

impl From<Map<String, Value>> for Meta<'_> {
    fn from(others: Map<String, Value>) -> Self {
        Self { others, ..Self::default() }
    }
}

impl Meta<'_> {
    fn is_empty(&self) -> bool {
        let Self { others, idempotency_key, traceparent, progress_token } = self;
        others.is_empty() && idempotency_key.is_none() && traceparent.is_none() && progress_token.is_none()
    }

    fn is_own(&self, key: &str) -> bool {
        match key {
            IDEMPOTENCY_KEY => self.idempotency_key.is_some(),
            TRACEPARENT => self.traceparent.is_some(),
            PROGRESS_TOKEN => self.progress_token.is_some(),
            _ => false,
        }
    }
}

/// The text of a request.
pub(crate) fn request(id: RequestId, method: &str, params: &Params<'_>) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    let mut request = Object::begin(&mut out);
    request.entry("jsonrpc", &"2.0");
    request.entry("id", &id);
    request.entry("method", &method);
    params.write(request.key("params"));
    request.end();
    out
}

impl Params<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let mut params = Object::begin(out);
        if let Some(name) = self.name {
            params.entry("name", &name);
        }
        if let Some(arguments) = &self.arguments {
            params.entry("arguments", arguments);
        }
        params.entries(self.others.iter());
        if !self.meta.is_empty() {
            self.meta.write(params.key("_meta"));
        }
        params.end();
    }
}

impl Meta<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let mut meta = Object::begin(out);
        meta.entries(self.others.iter().filter(|(key, _)| !self.is_own(key)));
        if let Some(key) = self.idempotency_key {
            meta.entry(IDEMPOTENCY_KEY, &key);
        }
        if let Some(traceparent) = self.traceparent {
            meta.entry(TRACEPARENT, &traceparent);
        }
        if let Some(token) = self.progress_token {
            meta.entry(PROGRESS_TOKEN, &token);
        }
        meta.end();
    }
}

/// A JSON object that is being written. Keys that are known have nothing to escape.
struct Object<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> Object<'o> {
    fn begin(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    fn comma(&mut self) {
        if !std::mem::take(&mut self.is_empty) {
            self.out.push(b',');
        }
    }

    fn key(&mut self, known: &str) -> &mut Vec<u8> {
        self.comma();
        self.out.push(b'"');
        self.out.extend_from_slice(known.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    fn entry(&mut self, key: &str, value: &impl Serialize) {
        write_json(self.key(key), value);
    }

    fn entries<'e>(&mut self, entries: impl Iterator<Item = (&'e String, &'e Value)>) {
        for (key, value) in entries {
            self.comma();
            write_json(self.out, key);
            self.out.push(b':');
            write_json(self.out, value);
        }
    }

    fn end(self) {
        self.out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn map(value: Value) -> Map<String, Value> {
        value.as_object().cloned().expect("an object")
    }

    #[test]
    fn parameters_are_written_once_each() {
        let check = |params: Params<'_>, expect: &str| {
            let expect = format!(r#"{{"jsonrpc":"2.0","id":3,"method":"a\"b","params":{expect}}}"#);
            assert_eq!(String::from_utf8_lossy(&request(3, "a\"b", &params)), expect);
            serde_json::from_str::<Value>(&expect).expect("JSON");
        };
        check(Params::default(), "{}");
        check(map(json!({"u\"": "a:b", "_meta": {"x": 1}, "v": [1]})).into(), r#"{"u\"":"a:b","v":[1]}"#);
        let call = Params {
            name: Some("t"),
            arguments: Some(json!({"a": 1})),
            others: map(json!({"task": {}})),
            meta: Meta {
                others: map(json!({"x": 1, "traceparent": "theirs", "progressToken": "theirs"})),
                idempotency_key: Some("k"),
                traceparent: Some("ours"),
                progress_token: Some(7),
            },
        };
        check(
            call.clone(),
            r#"{"name":"t","arguments":{"a":1},"task":{},"_meta":{"x":1,"io.github.toolwright/idempotency-key":"k","traceparent":"ours","progressToken":7}}"#,
        );
        let passed_on = Meta { traceparent: None, progress_token: None, idempotency_key: None, ..call.meta.clone() };
        check(
            Params { meta: passed_on, ..Params::default() },
            r#"{"_meta":{"x":1,"traceparent":"theirs","progressToken":"theirs"}}"#,
        );
    }
}
