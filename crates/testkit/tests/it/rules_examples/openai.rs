use serde_json::{Value, json};
use toolwright_testkit::rules::ApiRules;

use super::{Example, OpenAiChat, OpenAiResponses, closed, fields, many, named, object, schemas, tool, with_defs};

pub(super) fn openai(api: ApiRules) -> Vec<Example> {
    let at = if api == OpenAiChat { "/0/function" } else { "/0" };
    let field = |rule, name: &str, value: Value| fields(api, rule, json!({ format!("{at}/{name}"): value }));
    let plain = |rule, breaks, mended| schemas(api, false, rule, breaks, mended);
    let good = object(json!({}));
    let several = |count: usize| (0..count).map(|at| named(api, &format!("t{at}"), &good, false)).collect();
    let mut at_root: Vec<Example> = ["oneOf", "anyOf", "allOf"]
        .map(|keyword| {
            plain(
                "openai/root-combinator",
                json!({ "type": "object", "properties": {}, keyword: [{ "type": "object" }] }),
                good.clone(),
            )
        })
        .into();
    at_root.extend([
        field("openai/tool", "defer", json!(true)),
        field("openai/tool", "description", json!(1)),
        field("openai/tool", "strict", json!("yes")),
        field("openai/tool", "parameters", json!([])),
        fields(api, "openai/tool", json!({ "/0/type": null })),
        field("openai/name", "name", json!("look.up")),
        field("openai/name", "name", json!("nachschlagen_ä")),
        field("openai/name", "name", json!("")),
        field("openai/name", "name", json!("n".repeat(65))),
        Example { api, rule: "openai/tool-count", breaks: several(129), mended: several(128) },
        plain("openai/root-object", json!({ "properties": {} }), good.clone()),
        plain("openai/root-object", json!({ "type": ["object", "null"], "properties": {} }), good.clone()),
        plain("openai/root-combinator", json!({ "type": "object", "properties": {}, "enum": [{}] }), good.clone()),
        plain("openai/root-combinator", json!({ "type": "object", "properties": {}, "not": {} }), good.clone()),
        plain("openai/root-properties", json!({ "type": "object" }), good),
        patterned(api, "^(?!undefined$|null$)", "^[^u]"),
        patterned(api, "(?<=a)b", "\\(?a"),
        patterned(api, "(?<year>\\d{4})", "(?:\\d{4})"),
        patterned(api, "(a)\\1", "(a)\\\\1"),
        patterned(api, "^\\p{L}+$", "^\\w+$"),
        patterned(api, "[[]", "[\\[]"),
        plain(
            "openai/pattern",
            json!({ "type": "object", "properties": {}, "patternProperties": { "^(?=a)": {} } }),
            json!({ "type": "object", "properties": {}, "patternProperties": { "^a": {} } }),
        ),
        plain(
            "openai/array-items",
            object(json!({ "a": { "type": ["string", "array"] } })),
            object(json!({ "a": { "type": ["string", "array"], "items": {} } })),
        ),
        plain(
            "openai/array-items",
            object(json!({ "a": { "type": "array", "prefixItems": [{ "type": "string" }] } })),
            object(json!({ "a": { "type": "array", "prefixItems": [{ "type": "string" }], "items": false } })),
        ),
    ]);
    at_root
}

/// A text with a pattern, and with another.
fn patterned(api: ApiRules, breaks: &str, mended: &str) -> Example {
    let text = |pattern: &str| object(json!({ "a": { "type": "string", "pattern": pattern } }));
    schemas(api, false, "openai/pattern", text(breaks), text(mended))
}

pub(super) fn responses() -> Vec<Example> {
    let function = tool(OpenAiResponses, &object(json!({})), false);
    let search = json!({
        "type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": object(json!({})),
    });
    let space = json!({ "type": "namespace", "name": "n", "description": "Tools.", "tools": [function] });
    let without = |rule, good: &Value, field| {
        let mut bad = good.clone();
        bad.as_object_mut().unwrap().shift_remove(field);
        Example { api: OpenAiResponses, rule, breaks: json!([bad]), mended: json!([good]) }
    };
    let (twice, once) = (json!([search, search]), json!([search]));
    vec![
        without("openai-responses/strict-said", &function, "strict"),
        without("openai-responses/strict-said", &function, "parameters"),
        without("openai-responses/tool-search", &search, "description"),
        without("openai-responses/tool-search", &search, "parameters"),
        Example { api: OpenAiResponses, rule: "openai-responses/tool-search", breaks: twice, mended: once },
        without("openai-responses/namespace", &space, "name"),
        without("openai-responses/namespace", &space, "description"),
        without("openai-responses/namespace", &space, "tools"),
    ]
}

pub(super) fn openai_strict(api: ApiRules) -> Vec<Example> {
    let strict = |rule, breaks, mended| schemas(api, true, rule, breaks, mended);
    let of = |schema: Value| closed(json!({ "a": schema }));
    let string = json!({ "type": "string" });
    let one = |rule, breaks: Value, mended: Value| strict(rule, of(breaks), of(mended));
    let without = |name: &str| {
        let mut schema = of(string.clone());
        schema.as_object_mut().unwrap().shift_remove(name);
        schema
    };
    let unsupported = json!({
        "minLength": 1, "maxLength": 2, "default": "x", "examples": ["x"], "oneOf": [string], "allOf": [string],
        "not": { "type": "null" }, "if": { "type": "string" }, "deprecated": true, "contentEncoding": "base64",
        "uniqueItems": true, "minProperties": 1
    });
    let mut found: Vec<Example> = Vec::new();
    for (keyword, value) in unsupported.as_object().unwrap() {
        found.push(one("openai-strict/keyword", json!({ "type": "string", keyword: value }), string.clone()));
    }
    let defined = |beside: Value| with_defs(of(beside), json!({ "s": { "type": "string" } }));
    let enum_of = |values: Value| json!({ "type": "string", "enum": values });
    found.extend([
        strict("openai-strict/required", without("required"), of(string.clone())),
        strict(
            "openai-strict/required",
            json!({ "type": "object", "properties": { "a": string }, "required": [], "additionalProperties": false }),
            of(json!({ "type": ["string", "null"] })),
        ),
        strict("openai-strict/closed", without("additionalProperties"), of(string.clone())),
        one(
            "openai-strict/closed",
            json!({ "type": ["object", "null"], "properties": {}, "required": [], "additionalProperties": string }),
            json!({ "type": ["object", "null"], "properties": {}, "required": [], "additionalProperties": false }),
        ),
        one(
            "openai-strict/format",
            json!({ "type": "string", "format": "uri" }),
            json!({ "type": "string", "format": "uuid" }),
        ),
        one(
            "openai-strict/typed",
            json!({ "description": "anything" }),
            json!({ "anyOf": [string, { "type": "null" }] }),
        ),
        one("openai-strict/typed", json!({ "const": "x" }), json!({ "type": "string", "const": "x" })),
        one("openai-strict/typed", json!(true), string.clone()),
        strict(
            "openai-strict/ref-alone",
            defined(json!({ "$ref": "#/$defs/s", "description": "one" })),
            defined(json!({ "$ref": "#/$defs/s" })),
        ),
        one("openai-strict/enum-type", enum_of(json!(["x", null])), enum_of(json!(["x"]))),
        one(
            "openai-strict/enum-type",
            json!({ "type": "integer", "enum": ["1"] }),
            json!({ "type": "integer", "enum": [1, 2.0] }),
        ),
        strict("openai-strict/depth", nested(11), nested(10)),
        strict("openai-strict/property-count", closed(many(5_001, &string)), closed(many(5_000, &string))),
        strict(
            "openai-strict/string-size",
            closed(json!({ "n".repeat(120_001): string })),
            closed(json!({ "n".repeat(120_000): string })),
        ),
        strict(
            "openai-strict/string-size",
            closed(json!({ "a": enum_of(strings(240, 500)), "b": string })),
            closed(json!({ "a": enum_of(strings(240, 499)), "b": string })),
        ),
        strict(
            "openai-strict/enum-count",
            closed(json!({ "a": enum_of(strings(500, 3)), "b": enum_of(strings(501, 3)) })),
            closed(json!({ "a": enum_of(strings(500, 3)), "b": enum_of(strings(500, 3)) })),
        ),
        one("openai-strict/enum-size", enum_of(strings(251, 60)), enum_of(strings(250, 61))),
    ]);
    found
}

fn strings(count: usize, length: usize) -> Value {
    (0..count).map(|at| format!("{at:0length$}")).collect::<Vec<_>>().into()
}

/// `depth` closed objects inside one another.
fn nested(depth: usize) -> Value {
    (1..depth).fold(closed(json!({})), |inner, _| closed(json!({ "in": inner })))
}
