//! Loads the catalogue and the queries of the selection benchmark.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_search::{Document, DocumentKey, Searchable};

use crate::Failure;

/// A tool as published by a server.
#[derive(Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Record {
    #[serde(skip)]
    serial: u64,
    #[serde(rename = "server")]
    pub(crate) server: String,
    #[serde(rename = "server_description", default)]
    pub(crate) server_description: String,
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) description: String,
    #[serde(default)]
    pub(crate) input_schema: Value,
}

#[cfg(feature = "peers")]
impl Record {
    /// Returns the names and descriptions of its arguments.
    pub(crate) fn arguments(&self) -> String {
        let properties = self.input_schema.get("properties").and_then(Value::as_object);
        let texts = properties.into_iter().flatten().flat_map(|(name, schema)| {
            [name.as_str(), schema.get("description").and_then(Value::as_str).unwrap_or_default()]
        });
        texts.collect::<Vec<_>>().join(" ")
    }
}

impl Searchable for Record {
    fn key(&self) -> DocumentKey {
        DocumentKey(self.serial, 0)
    }

    fn document(&self) -> Document<'_> {
        Document {
            name: &self.name,
            description: &self.description,
            parameters: Some(&self.input_schema),
            server: &self.server,
            server_description: self.server_description.as_str().into(),
            ..Document::default()
        }
    }
}

/// Returns `count` tools: those of `data/mcp_catalogue/tools.jsonl`, or generated ones, repeated under other server
/// names as often as needed.
pub(crate) fn tools(data: Option<&Path>, count: usize) -> Result<Vec<Record>, Failure> {
    let first: Vec<Record> = match data {
        Some(data) => lines(&data.join("mcp_catalogue/tools.jsonl"))?,
        None => generated(),
    };
    let rounds = (0..).flat_map(|round| first.iter().map(move |tool| (round, tool)));
    let renamed = rounds.take(count).zip(0..).map(|((round, tool), serial)| {
        let server = if round == 0 { tool.server.clone() } else { format!("{}-{round}", tool.server) };
        Record { serial, server, ..tool.clone() }
    });
    Ok(renamed.collect())
}

/// Returns the same tools with changes in the `size` tools from `start` on, as if their server had changed.
pub(crate) fn changed(tools: &[Record], start: usize, size: usize) -> Vec<Record> {
    let mut tools = tools.to_vec();
    for tool in tools.iter_mut().skip(start).take(size) {
        tool.serial += 1 << 32;
        tool.description.push_str(" Changed.");
    }
    tools
}

/// A set of queries.
pub(crate) struct QuerySet {
    pub(crate) name: &'static str,
    pub(crate) queries: Vec<String>,
}

/// Returns the queries of each folder of `data/retrieval`, and words of some of the tools.
pub(crate) fn query_sets(data: Option<&Path>, tools: &[Record]) -> Result<Vec<QuerySet>, Failure> {
    #[derive(Deserialize)]
    struct Line {
        query: String,
    }
    let words = |tool: &Record| {
        let words: Vec<_> = tool.description.split_whitespace().take(8).collect();
        if words.is_empty() { tool.name.clone() } else { words.join(" ") }
    };
    let some = tools.iter().step_by(tools.len().div_ceil(500).max(1));
    let mut sets = vec![QuerySet { name: "descriptions", queries: some.map(words).collect() }];
    if let Some(data) = data {
        for name in ["bfcl", "sealtools", "metatool"] {
            let asked: Vec<Line> = lines(&data.join("retrieval").join(name).join("queries.jsonl"))?;
            sets.push(QuerySet { name, queries: asked.into_iter().map(|line| line.query).collect() });
        }
    }
    Ok(sets)
}

fn lines<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<Vec<T>, Failure> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Generates two thousand tools: every verb with every noun, in a hundred servers.
fn generated() -> Vec<Record> {
    const VERBS: &str = "
        create read update delete list search send convert schedule cancel compare export import archive
        restore share validate translate summarize watch
    ";
    const NOUNS: &str = "
        account address alarm album alert article asset backup bank bill board book branch bucket budget
        calendar camera campaign card cart channel chart city client cluster comment commit company contact
        container contract coupon course currency customer dashboard database device diagram document domain
        email event exam expense flight folder form forecast friend game group hotel image invoice issue
        item job journal label lead lesson link log map meeting message metric movie note order page patient
        payment photo playlist podcast policy post price product project query recipe record report route
        schema score secret session sheet song stock student task team ticket user video
    ";
    let nouns: Vec<_> = NOUNS.split_whitespace().collect();
    let tool = |noun: usize, verb: &str| {
        let (own, other, third) = (nouns[noun], nouns[(noun * 7 + 3) % 100], nouns[(noun * 13 + verb.len()) % 100]);
        Record {
            serial: 0,
            server: format!("{own}-service"),
            server_description: format!("Everything about a {own} and the {other} it belongs to."),
            name: format!("{verb}_{own}"),
            description: format!("Use this to {verb} a {own}, given the {other}. Answers with its {third}."),
            input_schema: json!({"type": "object", "properties": {
                format!("{own}_id"): {"type": "string", "description": format!("Which {own} to {verb}")},
                other: {"type": "string", "description": format!("The {other} that has the {third}")},
                "limit": {"type": "integer", "description": "How many results to return at most"},
            }}),
        }
    };
    let pairs = (0..nouns.len()).flat_map(|noun| VERBS.split_whitespace().map(move |verb| (noun, verb)));
    pairs.map(|(noun, verb)| tool(noun, verb)).collect()
}
