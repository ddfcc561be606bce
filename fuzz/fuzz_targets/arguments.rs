//! Arguments, whatever a model writes: nothing is valid that its schema refuses, and what fits is not touched.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use toolwright_core::arguments::{Provenance, RawArguments, fit};
use toolwright_core::call::{Caller, ToolCall, check};
use toolwright_core::catalogue::{DefinitionOrigin, Snapshot};
use toolwright_core::session::{CallId, Principal};
use toolwright_fuzz::{parameters, text, tools};

/// Messages and paths are bounded whatever the arguments are, but a path is as long as the keys on it.
const MAX_MESSAGE: usize = 16 << 10;

static SNAPSHOT: LazyLock<Snapshot> = LazyLock::new(|| {
    tools::snapshot(&[
        json!({"type": "object", "properties": {
            "path": {"type": "string"}, "limit": {"type": "integer", "default": 3, "minimum": 0}, "deep": {"type": "boolean"},
        }, "required": ["path"], "additionalProperties": false}),
        json!({"type": "object", "properties": {
            "ids": {"type": "array", "items": {"type": "integer"}, "maxItems": 4},
            "when": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "where": {"oneOf": [{"type": "number"}, {"type": "object", "required": ["x"]}, {"enum": ["here", 1, null]}]},
        }}),
        json!({"$defs": {"node": {"type": "object", "properties": {
            "next": {"$ref": "#/$defs/node"}, "value": {"type": ["integer", "boolean"]}, "text": {"type": "string"},
        }}}, "$ref": "#/$defs/node"}),
        json!({"type": "object", "patternProperties": {"^n": {"type": "number", "multipleOf": 0.5}},
            "additionalProperties": {"type": "array", "items": {"type": "string"}}, "maxProperties": 6}),
        json!({"allOf": [
            {"properties": {"o": {"type": "object", "properties": {"d": {"type": "integer", "default": 1}}, "required": ["n"]}}},
            {"if": {"required": ["o"]}, "then": {"required": ["b"], "properties": {"b": {"type": "boolean"}}}},
        ], "unevaluatedProperties": false}),
    ])
});

fuzz_target!(|data: &[u8]| {
    let ([choice], written) = parameters(data);
    let (written, entries) = (text(written), SNAPSHOT.list());
    let entry = &entries[choice % entries.len()];
    let schema = entry.tool.schema().ok().flatten().expect("it compiled");
    let lossless = serde_json::from_str::<Value>(&written).ok();

    if let Some(value) = lossless.clone() {
        let fitted = fit(schema, value.clone(), Provenance::default());
        assert_eq!(fitted.violations.is_empty(), schema.is_valid(&fitted.arguments));
        assert_eq!(schema.is_valid(&value), fitted.provenance.coerced.is_empty() && fitted.violations.is_empty());
        assert!(fitted.provenance.coerced.is_empty() || fitted.arguments != value);
    }

    let raw = RawArguments::Text(written.clone().into_owned());
    let call = ToolCall::new(CallId::new("call"), entry.wire_name.clone(), raw);
    let guest = Principal { id: "guest".into(), roles: Vec::new(), owner: false };
    match check(call, &SNAPSHOT, Caller::of(&guest)) {
        Ok(valid) => {
            assert!(valid.arguments.is_object() && schema.is_valid(&valid.arguments) && valid.unvalidated.is_none());
            assert!(valid.pending.is_empty(), "there are no references");
            if let Some(value) = lossless.filter(|value| value.is_object() && schema.is_valid(value)) {
                assert!(!valid.provenance.repaired && valid.provenance.coerced.is_empty());
                assert!(entry.tool.origin() == DefinitionOrigin::Own || valid.arguments == value);
            }
        }
        Err(rejection) => {
            assert!(lossless.is_none_or(|value| !value.is_object() || !schema.is_valid(&value)), "{rejection}");
            assert!(rejection.to_string().len() <= MAX_MESSAGE + 16 * written.len(), "{rejection}");
        }
    }
});
