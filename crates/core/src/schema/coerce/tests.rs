//! Values of the wrong type, and what becomes of them.

use super::*;
use serde_json::json;

fn check(property: Value, value: Value, expect: Option<Value>) {
    check_mended(property, value, expect, false);
}

fn check_mended(property: Value, value: Value, expect: Option<Value>, repaired: bool) {
    let compiled = CompiledSchema::compile(&json!({"properties": {"p": property}})).expect("compiles");
    let value = json!({"p": value});
    assert!(!compiled.is_valid(&value), "{value}");
    let expect = expect.map(|p| Coerced { value: json!({"p": p}), paths: vec!["/p".into()], repaired });
    assert_eq!(compiled.coerce(&value), expect, "{property} {value}");
}

#[test]
fn values_of_the_wrong_type_become_what_they_spell() {
    check(json!({"type": "integer"}), json!("3"), Some(json!(3)));
    check(json!({"type": "integer"}), json!("3.5"), None);
    check(json!({"type": "integer"}), json!("three"), None);
    check(json!({"type": "number"}), json!("3.5"), Some(json!(3.5)));
    check(json!({"type": "boolean"}), json!("true"), Some(json!(true)));
    check(json!({"type": "boolean"}), json!("False"), Some(json!(false)));
    check(json!({"type": "boolean"}), json!(1), None);
    check(json!({"type": ["integer", "null"]}), json!("null"), Some(json!(null)));
    check(json!({"type": "string"}), json!(3), Some(json!("3")));
    check(json!({"type": "string"}), json!(true), None);
    check(json!({"type": "array", "items": {"type": "string"}}), json!("x"), Some(json!(["x"])));
    check(json!({"type": "array", "items": {"type": "integer"}}), json!("x"), None);
    check_mended(json!({"type": "array"}), json!("[1, 2,]"), Some(json!([1, 2])), true);
    check(json!({"type": "object", "required": ["a"]}), json!("{\"a\": 1}"), Some(json!({"a": 1})));
    check(json!({"type": "object", "required": ["a"]}), json!("{\"b\": 1}"), None);
    check(json!({"type": "integer", "minimum": 5}), json!("3"), None);
}

#[test]
fn a_text_that_only_begins_like_json_is_not_taken_apart() {
    let texts = json!({"type": "array", "items": {"type": "string"}});
    for text in ["[ERROR] disk full", "[x](http://y) and more", "[a] [b]", "{see below}"] {
        check(texts.clone(), json!(text), Some(json!([text])));
    }
    for text in ["{see below}", "{a: 1} and more", "{a: 1} {b: 2}", "{a: , b: 1}", "{a"] {
        check(json!({"type": "object"}), json!(text), None);
    }
    check_mended(texts, json!("['a', 'b']"), Some(json!(["a", "b"])), true);
    check_mended(json!({"type": "object"}), json!("{a: 1}"), Some(json!({"a": 1})), true);
}

#[test]
fn numbers_keep_their_digits() {
    for number in [json!(1.10), json!(12345678901234567890123.0), json!(1e2), json!(-0.0)] {
        check(json!({"type": "string"}), number, None);
    }
    check(json!({"type": "string"}), json!(u64::MAX), Some(json!(u64::MAX.to_string())));
    check(json!({"type": "integer"}), json!("9007199254740993.0"), Some(json!(9_007_199_254_740_993_i64)));
    check(json!({"type": "integer"}), json!("18446744073709551616"), None);
}

#[test]
fn unions_are_looked_into_and_texts_stay_where_a_text_may_stand() {
    let optional = json!({"anyOf": [{"type": "integer"}, {"type": "null"}]});
    check(optional, json!("3"), Some(json!(3)));
    check(json!({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": "^x"}]}), json!("3"), None);
}

#[test]
fn what_comes_to_light_is_mended_and_the_rest_is_untouched() {
    let compiled = CompiledSchema::compile(&json!({"properties": {
        "o": {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string"}}},
        "free": {},
    }}))
    .expect("compiles");
    let coerced = compiled.coerce(&json!({"o": "{\"n\": \"1\", \"s\": \"2\"}", "free": "3"})).expect("valid");
    assert_eq!(coerced.value, json!({"o": {"n": 1, "s": "2"}, "free": "3"}));
    assert_eq!(coerced.paths, ["/o", "/o/n"]);
}

#[test]
fn the_whole_value_is_never_coerced() {
    let compiled = CompiledSchema::compile(&json!({"type": "integer"})).expect("compiles");
    assert_eq!(compiled.coerce(&json!("3")), None);
}

#[test]
fn a_null_that_may_not_be_one_is_left_out() {
    let compiled = CompiledSchema::compile(&json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["x"]}, "c": {"type": ["string", "null"]}, "d": {"type": "string"},
            "e": {"anyOf": [{"type": "string"}, {"type": "array"}]}},
        "required": ["d"],
    }))
    .expect("compiles");
    let coerced = compiled.coerce(&json!({"a": null, "b": null, "c": null, "d": "y", "e": null})).expect("valid");
    assert_eq!((coerced.value, coerced.paths.len()), (json!({"c": null, "d": "y"}), 3));
    assert_eq!(compiled.coerce(&json!({"d": null})), None, "a required one is not");
}

#[test]
fn whole_floats_become_integers_where_the_draft_tells_them_apart() {
    let old = json!({"$schema": "http://json-schema.org/draft-04/schema#", "properties": {"p": {"type": "integer"}}});
    let compiled = CompiledSchema::compile(&old).expect("compiles");
    for (value, expect) in [(json!(3.0), Some(json!(3))), (json!("3.0"), Some(json!(3))), (json!(3.5), None)] {
        let expect = expect.map(|p| json!({"p": p}).to_string());
        assert_eq!(compiled.coerce(&json!({"p": value})).map(|coerced| coerced.value.to_string()), expect, "{value}");
    }
    check(json!({"type": "integer"}), json!("1e300"), None);
    check(json!({"type": "integer"}), json!("18446744073709551615"), Some(json!(u64::MAX)));
}

#[test]
fn an_allowed_value_is_known_by_its_letters() {
    let units = json!({"enum": ["Celsius", "Fahrenheit", "K", "k", 3]});
    check(units.clone(), json!(" celsius "), Some(json!("Celsius")));
    check(units.clone(), json!("3"), Some(json!(3)));
    check(units.clone(), json!("k "), None);
    check(units, json!("kelvin"), None);
    check(json!({"const": "v1"}), json!("V1"), Some(json!("v1")));
    check(json!({"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]}), json!("A"), Some(json!("a")));
}

#[test]
fn a_union_is_mended_inside_the_branch_that_takes_the_type() {
    let optional = json!({"anyOf": [{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}, {"type": "null"}]});
    let compiled = CompiledSchema::compile(&json!({"properties": {"p": optional}})).expect("compiles");
    let coerced = compiled.coerce(&json!({"p": {"n": "3"}})).expect("valid");
    assert_eq!((coerced.value, coerced.paths), (json!({"p": {"n": 3}}), vec!["/p/n".to_owned()]));
    assert_eq!(compiled.coerce(&json!({"p": {"m": "3"}})), None);
}

mod properties {
    use super::*;
    use proptest::prelude::*;

    fn scalar() -> impl Strategy<Value = Value> {
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-5i64..5).prop_map(Value::from),
            Just(json!(2.0)),
            Just(json!(2.5)),
            "[a-cA-C ]{0,2}|-?[0-9]|true|null|\\[1\\]|\\{\"a\": \"1\"\\}".prop_map(Value::from),
        ]
    }

    fn value() -> impl Strategy<Value = Value> {
        scalar().prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::btree_map("[a-c]", inner, 0..3).prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    fn schema() -> impl Strategy<Value = Value> {
        let kinds = ["null", "boolean", "integer", "number", "string", "array", "object"];
        let leaf = prop_oneof![
            Just(json!({})),
            proptest::sample::select(kinds.to_vec()).prop_map(|kind| json!({"type": kind})),
            proptest::sample::subsequence(kinds.to_vec(), 1..3).prop_map(|kinds| json!({"type": kinds})),
            proptest::collection::vec(scalar(), 1..4).prop_map(|options| json!({"enum": options})),
        ];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                inner.clone().prop_map(|items| json!({"type": "array", "items": items})),
                proptest::collection::vec(inner.clone(), 1..3).prop_map(|branches| json!({"anyOf": branches})),
                (
                    proptest::collection::btree_map("[a-c]", inner, 1..3),
                    proptest::collection::vec("[a-c]", 0..2),
                    any::<bool>()
                )
                    .prop_map(|(properties, required, open)| json!({
                        "type": "object", "properties": properties, "required": required, "additionalProperties": open,
                    })),
            ]
        })
    }

    proptest! {
        #[test]
        fn what_is_coerced_is_valid_and_only_what_was_not_is_coerced(schema in schema(), value in value()) {
            let Ok(compiled) = CompiledSchema::compile(&schema) else { return Ok(()) };
            let fitted = crate::arguments::fit(&compiled, value.clone(), crate::arguments::Provenance::default());
            if compiled.is_valid(&value) {
                prop_assert_eq!(&fitted.arguments, &value);
                prop_assert!(fitted.provenance.is_plain());
            } else if fitted.violations.is_empty() {
                prop_assert!(compiled.is_valid(&fitted.arguments));
                prop_assert!(!fitted.provenance.coerced.is_empty());
            } else {
                prop_assert_eq!(&fitted.arguments, &value);
            }
        }
    }
}
