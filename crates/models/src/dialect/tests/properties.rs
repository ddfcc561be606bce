//! Schemas that nobody would write on purpose.

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use toolwright_core::schema::CompiledSchema;

use super::{one, tool};
use crate::dialect::rules::rules;
use crate::dialect::{Dialect, TranslatedTool, root};

#[test]
fn large_schemas_are_bounded() {
    let each = |count: usize, property: &dyn Fn(usize) -> Value| -> Value {
        (0..count).map(|at| (format!("p{at}"), property(at))).collect::<Map<String, Value>>().into()
    };
    let object =
        |properties: Value, shared: Value| json!({"type": "object", "properties": properties, "$defs": shared});
    let text = json!({"type": "string"});
    let big = object(each(2_000, &|_| text.clone()), json!({}));
    let mut deep = text.clone();
    for _ in 0..100 {
        deep = json!({"type": "object", "properties": {"d": deep}});
    }
    let ring = |at: usize| {
        object(
            json!({"a": {"$ref": format!("#/$defs/p{}", (at + 1) % 300)}, "b": {"$ref": format!("#/$defs/p{}", at * 7 % 300)}}),
            json!({}),
        )
    };
    let schemas = [
        object(each(20_000, &|_| text.clone()), json!({})),
        object(each(2_000, &|_| json!({"$ref": "#/$defs/big", "minProperties": 1})), json!({"big": big})),
        object(
            each(2_000, &|at| json!({"allOf": [{"$ref": "#/$defs/big"}, {"required": [format!("p{at}")]}]})),
            json!({"big": big}),
        ),
        object(each(300, &|at| json!({"$ref": format!("#/$defs/p{at}"), "title": "t"})), each(300, &ring)),
        object(each(2_000, &|_| json!({"$ref": "#nowhere"})), each(2_000, &|at| json!({"$id": format!("i{at}")}))),
        object(json!({"deep": deep}), json!({})),
    ];
    for (at, schema) in schemas.iter().enumerate() {
        for dialect in Dialect::ALL {
            let set = one(dialect, true, schema);
            assert_eq!(set.tools.len(), 1, "{dialect:?} {at}");
        }
    }
}

/// Odd schemas that occur in practice.
fn schemas() -> impl Strategy<Value = Value> {
    let names = ["a", "b c", "ä", "type", "$ref"];
    let references =
        ["#", "#/$defs/a", "#/$defs/b c", "#/properties/a", "#/properties/a/items", "https://example.com", "x"];
    let leaf = prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|flag| json!(flag)),
        (-2_i64..3).prop_map(|n| json!(n)),
        proptest::sample::select(vec![
            "string", "object", "array", "null", "float", "dict", "any", "(", "a", "b c", "uri"
        ])
        .prop_map(|text| json!(text)),
        proptest::sample::select(references.to_vec()).prop_map(|text| json!({"$ref": text})),
        proptest::sample::select(vec!["string", "object", "integer"]).prop_map(|text| json!({"type": text})),
    ];
    let keywords = vec![
        "type",
        "properties",
        "required",
        "items",
        "anyOf",
        "oneOf",
        "allOf",
        "$ref",
        "$defs",
        "enum",
        "const",
        "not",
        "additionalProperties",
        "description",
        "default",
        "format",
        "pattern",
        "minLength",
        "minimum",
        "prefixItems",
        "exclusiveMinimum",
        "dependencies",
        "patternProperties",
        "nullable",
        "$dynamicRef",
        "definitions",
        "title",
        "if",
        "examples",
        "dependentRequired",
        "$id",
        "$anchor",
        "uniqueItems",
        "unevaluatedProperties",
        "propertyNames",
    ];
    leaf.prop_recursive(6, 60, 5, move |inner| {
        let named = proptest::collection::vec((proptest::sample::select(names.to_vec()), inner.clone()), 0..4);
        let named = named.prop_map(|list| Value::Object(list.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()));
        let keyed = proptest::collection::vec((proptest::sample::select(keywords.clone()), inner.clone()), 0..5);
        let keyed = keyed.prop_map(|list| Value::Object(list.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()));
        let object = (named.clone(), named.clone(), proptest::collection::vec(proptest::sample::select(names.to_vec()), 0..3))
            .prop_map(|(properties, shared, required)| {
                json!({"type": "object", "properties": properties, "required": required, "$defs": shared})
            });
        let list = proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::Array);
        let union = proptest::collection::vec(inner, 1..3).prop_map(|list| json!({"anyOf": list}));
        prop_oneof![named, keyed, object, list, union]
    })
}

fn arguments() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(json!("x")), Just(json!(1)), Just(json!(true))];
    let value = leaf.prop_recursive(4, 24, 4, |inner| {
        let names = proptest::sample::select(vec!["a", "b c", "ä", "type", "z"]);
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::Array),
            proptest::collection::vec((names, inner), 0..4)
                .prop_map(|list| Value::Object(list.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())),
        ]
    });
    value.prop_map(|value| if value.is_object() { value } else { json!({"a": value}) })
}

/// Checks properties of every view, besides those of its API.
fn assert_sound(view: &TranslatedTool, schema: &Value) {
    if let Err(error) = CompiledSchema::compile(&view.parameters) {
        panic!("{error}: {} of {schema}", view.parameters);
    }
    assert_eq!(view.parameters["type"], "object", "{schema}");
    assert!(view.parameters["properties"].is_object(), "{schema}");
}

/// Schemas that mostly translate exactly, and the rest nearly.
fn nearly_sound() -> impl Strategy<Value = Value> {
    let keyword = |pairs: Vec<(&'static str, Value)>| proptest::sample::select(pairs);
    let beside = keyword(vec![
        ("description", json!("d")),
        ("title", json!("T")),
        ("title", json!(1)),
        ("default", json!(null)),
        ("minimum", json!(1)),
        ("exclusiveMinimum", json!(true)),
        ("exclusiveMaximum", json!(9)),
        ("minItems", json!(1)),
        ("maxLength", json!(-1)),
        ("pattern", json!("^a+$")),
        ("pattern", json!("(")),
        ("format", json!("date")),
        ("enum", json!(["a", 1])),
        ("enum", json!([null])),
        ("enum", json!([])),
        ("const", json!("a")),
        ("uniqueItems", json!(true)),
        ("nullable", json!(true)),
        ("x-own", json!(1)),
        ("$schema", json!("http://json-schema.org/draft-07/schema#")),
        ("$ref", json!("#")),
    ]);
    let types = [json!("string"), json!("integer"), json!(["string", "null"]), json!("array"), json!("int")];
    let leaf = (proptest::sample::select(types.to_vec()), proptest::collection::vec(beside.clone(), 0..3));
    let leaf = leaf.prop_map(|(types, beside)| {
        let mut map = Map::from_iter([("type".to_owned(), types)]);
        map.extend(beside.into_iter().map(|(key, value)| (key.to_owned(), value)));
        Value::Object(map)
    });
    let object = move |inner: BoxedStrategy<Value>| {
        let names = || proptest::sample::select(vec!["a", "b", "c-d", "e f"]);
        let properties = proptest::collection::vec((names(), inner), 0..4);
        let further = proptest::option::of(proptest::sample::select(vec![json!(false), json!(true), json!({})]));
        let required = proptest::option::of(proptest::collection::vec(names(), 0..3));
        (properties, required, further, proptest::collection::vec(beside.clone(), 0..2)).prop_map(
            |(properties, required, further, beside)| {
                let properties: Map<String, Value> =
                    properties.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
                let mut map = json!({"type": "object", "properties": properties});
                for (key, value) in beside {
                    map[key] = value;
                }
                if let Some(required) = required {
                    map["required"] = json!(required);
                }
                if let Some(further) = further {
                    map["additionalProperties"] = further;
                }
                map
            },
        )
    };
    let below = object.clone();
    let inner = leaf.prop_recursive(3, 16, 3, move |inner| {
        let list = inner.clone().prop_map(|items| json!({"type": "array", "items": items}));
        let union =
            (proptest::sample::select(vec!["anyOf", "oneOf", "allOf"]), proptest::collection::vec(inner.clone(), 0..3));
        prop_oneof![list, union.prop_map(|(key, parts)| json!({key: parts})), below(inner.boxed())]
    });
    object(inner.boxed())
}

/// Sorts the names of every `required`, without those that a root omits.
fn plain(schema: &Value) -> Value {
    match schema {
        Value::Object(map) => map
            .iter()
            .filter(|(key, _)| *key != "$schema")
            .map(|(key, value)| {
                let mut value = plain(value);
                if let (true, Value::Array(names)) = (key == "required", &mut value) {
                    names.sort_by_key(Value::to_string);
                }
                (key.clone(), value)
            })
            .collect::<Map<String, Value>>()
            .into(),
        Value::Array(list) => list.iter().map(plain).collect(),
        other => other.clone(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn unchanged_views_equal_written_views(schema in nearly_sound()) {
        for dialect in Dialect::ALL {
            let rules = rules(dialect, false);
            let Some(view) = schema.as_object().and_then(|map| root::unchanged(rules, map)) else { continue };
            let mut losses = Vec::new();
            let written = root::attempt(rules, &tool("t", schema.clone()), &schema, false, &mut losses);
            prop_assert_eq!(plain(&written.expect("a view").0.parameters), plain(&view), "{:?} {}", dialect, &schema);
            prop_assert_eq!(losses, []);
        }
    }
}

proptest! {
    #[test]
    fn any_schema_gives_a_valid_view(schema in schemas(), call in arguments()) {
        for dialect in Dialect::ALL {
            for strict in [false, true] {
                let set = one(dialect, strict, &schema);
                prop_assert_eq!(set.tools.len() + set.quarantined.len(), 1);
                let Some(view) = set.tools.first() else { continue };
                assert_sound(view, &schema);
                let shown = set.replay("t", &call).unwrap_or_else(|| call.clone());
                let back = set.restore("t", &shown.to_string()).unwrap_or_else(|| shown.to_string());
                let back: Value = serde_json::from_str(&back).expect("JSON");
                prop_assert_eq!(&back, &call, "{:?} {} {}", dialect, &schema, &view.parameters);
            }
        }
    }
}
