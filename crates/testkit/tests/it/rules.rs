//! What the encoders send keeps the rules of its API: every tool of the catalogues, and schemas made to
//! break encoders.

#![expect(clippy::print_stdout, reason = "how many tools go strict is worth a look")]

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_core::model::{ModelRequest, RequestTool};
use toolwright_core::name_table::{NameTable, NamedTool};
use toolwright_core::tool_id::{MAX_WIRE_NAME, ToolId};
use toolwright_models::dialect::{Dialect, translate};
use toolwright_models::{Api, EncodedTools, encode_with};
use toolwright_testkit::rules::{ApiRules, Breach, check_tools};
use toolwright_testkit::test_data;

/// How many tools a request shows: no more than every API takes, and enough to meet the limits that are
/// counted over a request.
const SHOWN: usize = 100;

/// A tool, and whether its author gave it a schema.
struct Subject {
    tool: RequestTool,
    has_schema: bool,
}

/// The tools of JSON lines `{name, description?, parameters | inputSchema}`, under their wire names.
fn subjects(lines: &str) -> Vec<Subject> {
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let raw_names: Vec<&str> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    // Each in a namespace of its own, as many share a name.
    let ids = raw_names.iter().enumerate().map(|(at, name)| ToolId::foreign(&format!("s{at}"), name).unwrap());
    let ids: Vec<ToolId> = ids.collect();
    let named = ids.iter().zip(&raw_names);
    let named: Vec<_> = named.map(|(id, raw_name)| NamedTool { provider: 0, id, raw_name, aliases: &[] }).collect();
    let names = NameTable::build(&named, MAX_WIRE_NAME);
    let subject = |(at, line): (usize, &Value)| {
        let schema = ["inputSchema", "parameters"].iter().find_map(|key| line.get(*key));
        let schema = schema.filter(|schema| !schema.is_null());
        let tool = RequestTool {
            name: names.wire_name(at).to_owned(),
            description: line["description"].as_str().unwrap_or_default().to_owned(),
            parameters: schema.cloned().unwrap_or_else(|| json!({ "type": "object" })),
            ..RequestTool::default()
        };
        Subject { tool, has_schema: schema.is_some() }
    };
    lines.iter().enumerate().map(subject).collect()
}

/// A catalogue of the test data, where it is.
fn catalogue(name: &str) -> Vec<Subject> {
    let Some(folder) = test_data(name) else { return Vec::new() };
    subjects(&std::fs::read_to_string(folder.join("tools.jsonl")).unwrap())
}

fn nasty() -> Vec<Subject> {
    subjects(include_str!("rules_nasty.jsonl"))
}

fn rules_of(api: Api) -> ApiRules {
    match api.as_str() {
        "openai_chat" => ApiRules::OpenAiChat,
        "openai_responses" => ApiRules::OpenAiResponses,
        "anthropic" => ApiRules::Anthropic,
        "gemini" => ApiRules::Gemini,
        "ollama" => ApiRules::Ollama,
        other => panic!("no rules for {other}"),
    }
}

/// Every API with every dialect that its requests can carry.
fn targets() -> Vec<(Api, Dialect)> {
    let carries = |api: Api, dialect| match dialect {
        // What is listed to clients, and is no request of ours.
        Dialect::Portable => false,
        dialect => api.dialect() == dialect,
    };
    let of =
        |api| Dialect::ALL.into_iter().filter(move |dialect| carries(api, *dialect)).map(move |dialect| (api, dialect));
    Api::ALL.into_iter().flat_map(of).collect()
}

/// A name that every API takes.
fn is_legal(name: &str) -> bool {
    let starts = name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    starts
        && name.len() <= MAX_WIRE_NAME
        && name.chars().all(|char| char.is_ascii_alphanumeric() || "_-".contains(char))
}

/// What came of sending tools to an API.
#[derive(Default)]
struct Outcome {
    /// By rule: how many breaches, and the tool with the shortest schema that shows one.
    breaches: BTreeMap<&'static str, (usize, Shown)>,
    with_schema: usize,
    /// Tools that have a schema and cannot be shown, with the reason.
    quarantined: Vec<String>,
    strict: usize,
}

/// A breach, and the tool that shows it as its author wrote it.
struct Shown {
    breach: Breach,
    schema: String,
}

impl Outcome {
    fn add(&mut self, breach: Breach, subjects: &[Subject]) {
        let schema = subjects.iter().find(|subject| subject.tool.name == breach.tool);
        let schema = schema.map(|subject| subject.tool.parameters.to_string()).unwrap_or_default();
        let rule = breach.rule;
        let shown = Shown { breach, schema };
        match self.breaches.get_mut(rule) {
            None => {
                self.breaches.insert(rule, (1, shown));
            }
            Some((count, shortest)) => {
                *count += 1;
                if shown.schema.len() < shortest.schema.len() {
                    *shortest = shown;
                }
            }
        }
    }

    fn report(&self) -> String {
        let line = |(rule, (count, shown)): (&&str, &(usize, Shown))| {
            let Shown { breach, schema } = shown;
            let schema: String = schema.chars().take(2_000).collect();
            format!("{rule}, {count} times: {} at {}: {}\n  {schema}\n", breach.tool, breach.path, breach.message)
        };
        self.breaches.iter().map(line).collect()
    }
}

/// Sends `subjects` to an API, some at a time, and checks what is sent.
fn send(api: Api, dialect: Dialect, strict: bool, subjects: &[Subject]) -> Outcome {
    let mut outcome = Outcome::default();
    for subjects in subjects.chunks(SHOWN) {
        let tools: Arc<[RequestTool]> = subjects.iter().map(|subject| subject.tool.clone()).collect();
        let set = translate(dialect, &tools, strict);
        outcome.with_schema += subjects.iter().filter(|subject| subject.has_schema).count();
        outcome.strict += set.tools.iter().filter(|tool| tool.strict).count();
        for subject in subjects {
            let name = &subject.tool.name;
            let shown = set.tools.iter().filter(|tool| tool.name == *name).count();
            let quarantined: Vec<_> = set.quarantined.iter().filter(|tool| tool.tool == *name).collect();
            assert_eq!(shown + quarantined.len(), 1, "{name} is shown or quarantined, once");
            assert!(is_legal(name), "{name} is no legal name");
            for tool in quarantined {
                assert!(!tool.reason.is_empty(), "{name} is quarantined without a reason");
                if subject.has_schema {
                    outcome.quarantined.push(format!("{name}: {}", tool.reason));
                }
            }
        }
        let request = ModelRequest { tools, ..ModelRequest::default() };
        let body: Value =
            serde_json::from_slice(&encode_with(&request, "model", &EncodedTools::of(api, set.clone())).bytes())
                .unwrap();
        let sent = body.get("tools").cloned().unwrap_or_else(|| json!([]));
        for breach in check_tools(rules_of(api), &sent) {
            outcome.add(breach, subjects);
        }
    }
    outcome
}

/// Sends `subjects` to every API, strict and not. No rule may be broken, and of those with a schema at most
/// this share may be quarantined.
fn check(of: &str, subjects: &[Subject], most_quarantined: f64) {
    let mut reported = String::new();
    for (api, dialect) in targets() {
        for strict in [false, true] {
            let outcome = send(api, dialect, strict, subjects);
            let Outcome { quarantined, with_schema, .. } = &outcome;
            let what = format!("{of}, {api} as {dialect:?}, strict {strict}");
            println!("{what}: {} strict, {} quarantined of {with_schema}", outcome.strict, quarantined.len());
            if !outcome.breaches.is_empty() {
                reported += &format!("## {what}\n{}\n", outcome.report());
            }
            if quarantined.len() as f64 > most_quarantined * *with_schema as f64 {
                reported += &format!("## {what}: {} quarantined\n{}\n", quarantined.len(), quarantined.join("\n"));
            }
        }
    }
    assert!(reported.is_empty(), "{reported}");
}

#[test]
fn hostile_schemas() {
    check("nasty", &nasty(), 0.1);
}

#[test]
fn mcp_catalogue() {
    check("mcp", &catalogue("mcp_catalogue"), 0.01);
}

#[test]
fn bfcl() {
    check("bfcl", &catalogue("retrieval/bfcl"), 0.01);
}

#[test]
fn metatool() {
    check("metatool", &catalogue("retrieval/metatool"), 0.01);
}

#[test]
fn sealtools() {
    check("sealtools", &catalogue("retrieval/sealtools"), 0.01);
}

/// Otherwise no rule about strict tools would have been tried.
#[test]
fn strict_schemas_are_sent_strict() {
    let ready: Vec<Subject> =
        nasty().into_iter().filter(|subject| subject.tool.name.ends_with("strict_ready")).collect();
    for (api, dialect) in targets() {
        let expected = usize::from(matches!(dialect, Dialect::OpenAi | Dialect::Anthropic));
        assert_eq!(send(api, dialect, true, &ready).strict, expected, "{api}");
        assert_eq!(send(api, dialect, false, &ready).strict, 0, "{api}");
    }
}
