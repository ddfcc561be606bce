//! The views of whole catalogues: legal for their API, few left out, calls unharmed.
//! `TOOLWRIGHT_TEST_DATA` names the folder of the catalogues.

#![expect(clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "tests")]

use serde_json::{Map, Value, json};
use toolwright_core::model::RequestTool;
use toolwright_core::schema::CompiledSchema;
use toolwright_models::dialect::{Dialect, PortableSchema, Toolset, translate};
use toolwright_testkit::test_data;

fn catalogue(path: &str, schema: &str) -> Option<Vec<RequestTool>> {
    let lines = std::fs::read_to_string(test_data(path)?).expect("the catalogue");
    let tools = lines.lines().enumerate().map(|(at, line)| {
        let line: Value = serde_json::from_str(line).expect("a tool");
        let text = |key: &str| line[key].as_str().unwrap_or_default().to_owned();
        RequestTool {
            name: format!("tool_{at}"),
            description: text("description"),
            parameters: line[schema].clone(),
            ..RequestTool::default()
        }
    });
    Some(tools.collect())
}

/// Arguments for `schema`: all properties, or only those required. None where it is not plain how.
fn arguments(root: &Value, schema: &Value, all: bool, depth: usize) -> Option<Value> {
    let below = |schema: &Value| arguments(root, schema, all, depth + 1);
    if depth > 12 {
        return None;
    }
    if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
        return below(root.pointer(reference.strip_prefix('#')?)?);
    }
    if let Some(value) = schema.get("const").or_else(|| schema.get("enum")?.get(0)) {
        return Some(value.clone());
    }
    if let Some(branches) = schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array) {
        return branches.iter().find_map(below);
    }
    let one = |types: &Value| types.as_str().map(str::to_owned);
    let kind = schema.get("type").and_then(|types| one(types).or_else(|| one(types.get(0)?)));
    match kind.as_deref().unwrap_or(if schema.get("properties").is_some() { "object" } else { "string" }) {
        "object" => {
            let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            let mut object = Map::new();
            for (name, property) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
                let needed = required.contains(&Value::from(name.as_str()));
                match below(property) {
                    Some(value) if all || needed => drop(object.insert(name.clone(), value)),
                    None if needed => return None,
                    _ => {}
                }
            }
            Some(Value::Object(object))
        }
        "array" => Some(match schema.get("items").map(below) {
            Some(Some(item)) => json!([item]),
            _ => json!([]),
        }),
        "integer" | "number" => Some(schema.get("minimum").cloned().unwrap_or(json!(1))),
        "boolean" => Some(json!(true)),
        "null" => Some(Value::Null),
        _ => Some(json!("x".repeat(schema.get("minLength").and_then(Value::as_u64).unwrap_or(1) as usize))),
    }
}

/// Whether every value valid by the tool's schema is valid by its view, as far as the losses say.
fn is_no_wider(set: &Toolset, tool: &str) -> bool {
    let harmless = ["strict", "default", "title", "examples", "$schema"];
    set.losses.iter().filter(|loss| loss.tool == tool).all(|loss| {
        harmless.contains(&loss.keyword.as_str())
            || loss.note.contains("description")
            || loss.note.contains("called")
            || loss.note.contains("taken at the root: the arguments")
    })
}

fn check(name: &str, tools: &[RequestTool]) {
    let with_schema =
        tools.iter().filter(|tool| tool.parameters.as_object().is_some_and(|map| !map.is_empty())).count();
    let compiled: Vec<_> = tools.iter().map(|tool| CompiledSchema::compile(&tool.parameters).ok()).collect();
    for dialect in Dialect::ALL {
        for strict in [false, true] {
            let set = translate(dialect, tools, strict);
            assert_eq!(set.tools.len() + set.quarantined.len(), tools.len());
            let asked = set.tools.iter().filter(|tool| tool.strict).count();
            let each = tools.iter().filter(|tool| {
                translate(dialect, std::slice::from_ref(tool), true).tools.iter().any(|view| view.strict)
            });
            let alone = if strict { each.count() } else { 0 };
            let mut calls = 0;
            for view in &set.tools {
                let at: usize = view.name["tool_".len()..].parse().expect("a number");
                let original = &tools[at].parameters;
                let checked = CompiledSchema::compile(&view.parameters);
                let checked =
                    checked.unwrap_or_else(|error| panic!("{dialect:?} {}: {error}\n{original}", view.parameters));
                assert_eq!(view.parameters["type"], "object");
                assert!(view.parameters["properties"].is_object());
                let Some(compiled) = &compiled[at] else { continue };
                for all in [true, false] {
                    let Some(call) = arguments(original, original, all, 0)
                        .filter(|call| call.is_object() && compiled.is_valid(call))
                    else {
                        continue;
                    };
                    let shown = set.replay(&view.name, &call).unwrap_or_else(|| call.clone());
                    if view.strict || is_no_wider(&set, &view.name) {
                        assert!(
                            checked.is_valid(&shown),
                            "{dialect:?} {strict} {shown}\n{original}\n{}\n{:?}",
                            view.parameters,
                            checked.violations(&shown)
                        );
                        calls += 1;
                    }
                    let back = set.restore(&view.name, &shown.to_string());
                    let back: Value = back.map_or(shown, |text| serde_json::from_str(&text).expect("JSON"));
                    assert!(compiled.is_valid(&back), "{back}\n{original}");
                    assert_eq!(back, call, "{original}");
                }
            }
            println!(
                "{name} {dialect:?} strict={strict}: {} shown, {} quarantined, {asked} strict in one request, {alone} each alone, \
                 {} losses, {calls} calls checked",
                set.tools.len(),
                set.quarantined.len(),
                set.losses.len()
            );
            if dialect == Dialect::OpenAi && strict {
                let mut why = std::collections::BTreeMap::<String, usize>::new();
                for loss in set.losses.iter().filter(|loss| loss.keyword == "strict") {
                    *why.entry(loss.note.chars().take(90).collect()).or_default() += 1;
                }
                let mut why: Vec<_> = why.into_iter().collect();
                why.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
                why.iter().take(25).for_each(|(note, count)| println!("    {count} {note}"));
            }
            assert!(set.quarantined.len() * 100 <= with_schema.max(100), "{:?}", set.quarantined);
        }
    }
}

/// What the rules of [`Dialect::Portable`] forbid in a schema, by pointer.
fn portable_violations(schema: &Value, at: &str, found: &mut Vec<String>) {
    let Some(map) = schema.as_object() else {
        found.push(format!("{at}: {schema} for a schema"));
        return;
    };
    let has_array = map
        .get("type")
        .is_some_and(|types| types == "array" || types.as_array().is_some_and(|all| all.contains(&"array".into())));
    if has_array && !map.get("items").is_some_and(Value::is_object) {
        found.push(format!("{at}: an array without items"));
    }
    for keyword in ["prefixItems", "oneOf", "allOf", "not", "$schema", "$id"] {
        if map.contains_key(keyword) {
            found.push(format!("{at}: {keyword}"));
        }
    }
    for (name, inner) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let legal = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        if !(1..=64).contains(&name.len()) || !name.bytes().all(legal) {
            found.push(format!("{at}: the property {name:?}"));
        }
        portable_violations(inner, &format!("{at}/properties/{name}"), found);
    }
    for (name, inner) in map.get("$defs").and_then(Value::as_object).into_iter().flatten() {
        portable_violations(inner, &format!("{at}/$defs/{name}"), found);
    }
    for inner in map.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
        portable_violations(inner, &format!("{at}/anyOf"), found);
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(inner) = map.get(keyword).filter(|inner| inner.is_object()) {
            portable_violations(inner, &format!("{at}/{keyword}"), found);
        }
    }
}

#[test]
fn real_tools_stay_callable_in_portable_form() {
    let Some(tools) = catalogue("mcp_catalogue/tools.jsonl", "inputSchema") else { return };
    let (mut changed, mut calls) = (0, 0);
    for tool in tools {
        let portable = PortableSchema::new(&tool.name, &tool.parameters);
        let view = portable.schema();
        let mut found = Vec::new();
        portable_violations(view, "", &mut found);
        for keyword in ["anyOf", "oneOf", "allOf", "not", "enum", "const"] {
            assert!(view.get(keyword).is_none(), "{keyword} at the root: {view}");
        }
        assert_eq!((view["type"].as_str(), view["properties"].is_object()), (Some("object"), true), "{view}");
        assert_eq!(found, Vec::<String>::new(), "{}\n{view}", tool.parameters);
        changed += usize::from(!portable.losses().is_empty());
        let (Ok(own), Ok(shown)) = (CompiledSchema::compile(&tool.parameters), CompiledSchema::compile(view)) else {
            continue;
        };
        for all in [true, false] {
            let call = arguments(&tool.parameters, &tool.parameters, all, 0);
            let Some(call) = call.filter(|call| call.is_object() && own.is_valid(call)) else { continue };
            let renamed = portable.losses().iter().any(|loss| loss.note.contains("called by its own name"));
            assert!(
                shown.is_valid(&call) || renamed || !portable.losses().is_empty(),
                "{call}\n{}\n{view}",
                tool.parameters
            );
            assert_eq!(portable.restore(call.clone()), call);
            calls += 1;
        }
    }
    println!("{changed} tools are listed otherwise, {calls} calls checked");
}

#[test]
fn every_tool_of_real_servers_has_a_view() {
    if let Some(tools) = catalogue("mcp_catalogue/tools.jsonl", "inputSchema") {
        check("mcp", &tools);
    }
}

#[test]
fn types_of_other_languages_have_a_view() {
    for set in ["bfcl", "sealtools", "metatool"] {
        if let Some(mut tools) = catalogue(&format!("retrieval/{set}/tools.jsonl"), "parameters") {
            tools.truncate(600);
            check(set, &tools);
        }
    }
}
