//! The checkers judge anything without panicking: what they are given may be the very thing that is broken.

use proptest::prelude::*;
use serde_json::Value;
use toolwright_testkit::rules::{ApiRules, check_tools};

/// JSON whose keys and strings are those that the rules look for.
fn tools() -> impl Strategy<Value = Value> {
    let word = proptest::sample::select(vec![
        "type",
        "function",
        "name",
        "description",
        "strict",
        "parameters",
        "parametersJsonSchema",
        "input_schema",
        "functionDeclarations",
        "properties",
        "required",
        "items",
        "anyOf",
        "allOf",
        "enum",
        "const",
        "format",
        "pattern",
        "additionalProperties",
        "$ref",
        "$defs",
        "$anchor",
        "minItems",
        "object",
        "array",
        "string",
        "a",
        "",
        "#",
        "#/$defs/a",
        "#a",
        "(?=\\",
        "ä",
    ])
    .prop_map(str::to_owned);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(7, 96, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::vec((word.clone(), inner), 0..6)
                .prop_map(|fields| fields.into_iter().collect::<serde_json::Map<_, _>>().into()),
        ]
    })
}

proptest! {
    #[test]
    fn rules_check_any_input(tool in tools(), schema in tools()) {
        let wrapped = serde_json::json!([
            tool,
            { "type": "function", "function": { "name": "a", "strict": true, "parameters": schema } },
            { "name": "a", "strict": true, "input_schema": schema, "parameters": schema },
            { "functionDeclarations": [{ "parameters": schema }, { "parametersJsonSchema": schema }] },
        ]);
        for api in ApiRules::ALL {
            let found = check_tools(api, &wrapped);
            prop_assert!(found.iter().all(|breach| api.rules().iter().any(|rule| rule.id == breach.rule)));
        }
    }
}
