use serde_json::{Value, json};

use super::{Anthropic, Example, closed, fields, many, named, object, schemas, with_defs};

pub(super) fn anthropic() -> Vec<Example> {
    let field = |rule, name: &str, value: Value| fields(Anthropic, rule, json!({ format!("/0/{name}"): value }));
    let plain = |rule, breaks, mended| schemas(Anthropic, false, rule, breaks, mended);
    let good = object(json!({}));
    let mut found: Vec<Example> = ["oneOf", "anyOf", "allOf"]
        .map(|keyword| {
            plain("anthropic/root-combinator", json!({ "type": "object", keyword: [{ "required": [] }] }), good.clone())
        })
        .into();
    found.extend([
        field("anthropic/tool", "parameters", json!({})),
        field("anthropic/tool", "input_schema", json!(null)),
        field("anthropic/tool", "description", json!(["one"])),
        field("anthropic/tool", "strict", json!(1)),
        field("anthropic/name", "name", json!("look up")),
        field("anthropic/name", "name", json!("n".repeat(65))),
        plain("anthropic/root-object", json!({ "properties": {} }), good.clone()),
        plain("anthropic/property-name", object(json!({ "filter[id]": {} })), object(json!({ "filter.id": {} }))),
        plain(
            "anthropic/property-name",
            object(json!({ "$top": {} })),
            object(json!({ "in": { "type": "object", "properties": { "$top": {} } } })),
        ),
        plain("anthropic/property-name", object(json!({ "n".repeat(65): {} })), object(json!({ "n".repeat(64): {} }))),
        plain(
            "anthropic/draft-2020-12",
            json!({ "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                    "properties": { "a": { "type": "array", "items": [{ "type": "string" }] } } }),
            json!({ "$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
                    "properties": { "a": { "type": "array", "prefixItems": [{ "type": "string" }] } } }),
        ),
        plain(
            "anthropic/draft-2020-12",
            object(json!({ "a": { "type": "float" } })),
            object(json!({ "a": { "type": "number" } })),
        ),
    ]);
    found
}

pub(super) fn anthropic_deferred() -> Vec<Example> {
    let of = |fields: [Value; 2]| -> Value {
        let with = |(at, fields): (usize, &Value)| {
            let mut tool = named(Anthropic, &format!("t{at}"), &object(json!({})), false);
            tool.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            tool
        };
        fields.iter().enumerate().map(with).collect()
    };
    let (none, deferred) = (json!({}), json!({ "defer_loading": true }));
    let cached = json!({ "defer_loading": true, "cache_control": { "type": "ephemeral" } });
    let mended = of([none.clone(), deferred.clone()]);
    let example = |rule, breaks| Example { api: Anthropic, rule, breaks, mended: mended.clone() };
    vec![
        example("anthropic-request/not-deferred", of([deferred.clone(), deferred])),
        example("anthropic/deferred-cache", of([none, cached])),
    ]
}

pub(super) fn anthropic_strict() -> Vec<Example> {
    let strict = |rule, breaks, mended| schemas(Anthropic, true, rule, breaks, mended);
    let of = |schema: Value| closed(json!({ "a": schema }));
    let one = |rule, breaks: Value, mended: Value| strict(rule, of(breaks), of(mended));
    let string = json!({ "type": "string" });
    let unsupported = json!({
        "minimum": 1, "maximum": 2, "exclusiveMinimum": 1, "exclusiveMaximum": 2, "multipleOf": 2, "minLength": 1,
        "maxLength": 2, "maxItems": 3, "uniqueItems": true, "oneOf": [string], "not": { "type": "null" },
        "patternProperties": {}, "propertyNames": { "type": "string" }, "$schema": "https://json-schema.org/draft/2020-12/schema"
    });
    let mut found: Vec<Example> = Vec::new();
    for (keyword, value) in unsupported.as_object().unwrap() {
        found.push(one("anthropic-strict/keyword", json!({ "type": "string", keyword: value }), string.clone()));
    }
    for pattern in [r"^(a)\1$", r"^(?=a)", r"^(?!a)", r"(?<=a)b", r"\bword", r"no\B"] {
        let pattern = json!({ "type": "string", "pattern": pattern });
        found.push(one(
            "anthropic-strict/pattern",
            pattern,
            json!({ "type": "string", "pattern": r"^[(?=]\(?=\\b{2}$" }),
        ));
    }
    let array = |least: u32| json!({ "type": "array", "items": string, "minItems": least });
    let format = |name: &str| json!({ "type": "string", "format": name });
    let list = closed(json!({ "next": { "anyOf": [{ "$ref": "#/$defs/list" }, { "type": "null" }] } }));
    found.extend([
        strict("anthropic-strict/closed", object(json!({})), closed(json!({}))),
        one("anthropic-strict/closed", json!({ "type": "object" }), closed(json!({}))),
        one("anthropic-strict/min-items", array(2), array(1)),
        one(
            "anthropic-strict/enum-values",
            json!({ "enum": ["x", { "y": 1 }] }),
            json!({ "enum": ["x", 1, true, null] }),
        ),
        strict(
            "anthropic-strict/all-of-ref",
            with_defs(of(json!({ "allOf": [{ "$ref": "#/$defs/s" }] })), json!({ "s": string })),
            with_defs(of(json!({ "$ref": "#/$defs/s" })), json!({ "s": string })),
        ),
        strict(
            "anthropic-strict/recursion",
            with_defs(of(json!({ "$ref": "#/$defs/list" })), json!({ "list": list })),
            with_defs(of(json!({ "$ref": "#/$defs/list" })), json!({ "list": closed(json!({ "next": string })) })),
        ),
        one("anthropic-strict/recursion", json!({ "$ref": "#" }), string.clone()),
        one("anthropic-strict/format", format("regex"), format("uri")),
    ]);
    found
}

/// The limits that are counted over a request.
pub(super) fn anthropic_request() -> Vec<Example> {
    let string = json!({ "type": "string" });
    let nullable = json!({ "type": ["string", "null"] });
    let tools = |schemas: Vec<Value>| -> Value {
        schemas.iter().enumerate().map(|(at, schema)| named(Anthropic, &format!("t{at}"), schema, true)).collect()
    };
    let strict = |count| tools(vec![closed(json!({})); count]);
    let optional = |count: usize| {
        let schema = json!({ "type": "object", "properties": many(count, &string), "additionalProperties": false });
        closed(json!({ "in": schema }))
    };
    let union = |count: usize| closed(many(count, &nullable));
    let referred =
        |count: usize| with_defs(closed(many(count, &json!({ "$ref": "#/$defs/n" }))), json!({ "n": nullable }));
    let listed = |count: usize| closed(many(count, &json!({ "type": "array", "items": { "anyOf": [string] } })));
    let mut mixed = tools(vec![closed(json!({})); 21]);
    mixed[20]["strict"] = json!(false);
    let example = |rule, breaks, mended| Example { api: Anthropic, rule, breaks, mended };
    vec![
        example("anthropic-request/strict-tools", strict(21), strict(20)),
        example("anthropic-request/strict-tools", strict(21), mixed),
        example(
            "anthropic-request/optional-parameters",
            tools(vec![optional(12), optional(13)]),
            tools(vec![optional(12); 2]),
        ),
        example("anthropic-request/union-parameters", tools(vec![union(8), union(9)]), tools(vec![union(8); 2])),
        example("anthropic-request/union-parameters", tools(vec![referred(17)]), tools(vec![referred(16)])),
        example("anthropic-request/union-parameters", tools(vec![listed(17)]), tools(vec![listed(16)])),
    ]
}
