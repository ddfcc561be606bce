use serde_json::{Value, json};

use super::super::Document;
use super::*;

/// A tool as a test writes it.
#[derive(Debug, Clone, Default)]
struct Tool {
    name: String,
    description: String,
    parameters: Value,
    server: String,
}

fn tool(name: &str, description: &str, parameters: Value) -> Tool {
    Tool { name: name.into(), description: description.into(), parameters, server: String::new() }
}

impl Searchable for Tool {
    fn key(&self) -> DocumentKey {
        use std::hash::{DefaultHasher, Hash as _, Hasher as _};
        let mut hasher = DefaultHasher::new();
        (&self.name, &self.description, self.parameters.to_string(), &self.server).hash(&mut hasher);
        DocumentKey(hasher.finish(), 0)
    }

    fn document(&self) -> Document<'_> {
        Document {
            name: &self.name,
            description: &self.description,
            parameters: Some(&self.parameters),
            server: &self.server,
            ..Document::default()
        }
    }
}

fn tools() -> Vec<Tool> {
    vec![
        tool("read_file", "Reads a text file.", json!({"properties": {"path": {"description": "Where it is"}}})),
        tool("write_file", "Writes a text file.", json!({"properties": {"path": {}, "content": {}}})),
        tool("getWeather", "Current conditions of a place.", json!({"type": "dict", "properties": {"city": {}}})),
        tool(
            "create_issue",
            "Opens an issue on GitHub.",
            json!({"properties": {"state": {"enum": ["draft", "open"]}}}),
        ),
        tool("天気", "天気予報を調べる", json!(null)),
    ]
}

fn all(_: usize) -> bool {
    true
}

#[test]
fn words_find_tools_wherever_they_stand() {
    let tools = tools();
    let index = LexicalIndex::build(&tools, None);
    for (query, expect) in [
        ("read file", "read_file write_file"),
        ("reading FILES", "read_file write_file"),
        ("get_weather", "getWeather"),
        ("weather in a city", "getWeather"),
        ("github", "create_issue"),
        ("git hub", "create_issue"),
        ("draft", "create_issue"),
        ("content", "write_file"),
        ("予報", "天気"),
        ("the of and", ""),
        ("unheard", ""),
        ("", ""),
    ] {
        let found: Vec<_> = index.rank(query, 10, &all).iter().map(|hit| &*tools[hit.index].name).collect();
        assert_eq!(found.join(" "), expect, "{query}");
    }
}
