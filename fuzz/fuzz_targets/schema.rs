//! Any schema and any instance: a line each. What compiles validates, and nothing is fetched.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Value, json};
use toolwright_core::schema::{CompiledSchema, fill_defaults, shape};
use toolwright_fuzz::schema_and_instance;

/// No document has this address.
const REMOTE: &str = "http://remote.invalid/schema.json";

fuzz_target!(|data: &[u8]| {
    let Some((schema, instance)) = schema_and_instance(data) else { return };

    let mut filled = instance.clone();
    assert_eq!(fill_defaults(&schema, &mut filled), filled != instance);
    assert!(shape(&schema, 300).is_none_or(|shape| shape.len() <= 300));

    let Ok(compiled) = CompiledSchema::compile(&schema) else { return };
    let violations = compiled.violations(&instance);
    assert_eq!(compiled.is_valid(&instance), violations.is_empty());
    assert!(violations.len() <= 12);
    if let Some(coerced) = compiled.coerce(&instance) {
        assert!(compiled.is_valid(&coerced.value) && !coerced.paths.is_empty());
    }
    if !schema.to_string().contains("remote.invalid") {
        let remote: Value = json!({"allOf": [schema, {"$ref": REMOTE}]});
        let error = CompiledSchema::compile(&remote).expect_err("a remote reference compiles");
        assert!(error.message.chars().count() <= 401);
    }
});
