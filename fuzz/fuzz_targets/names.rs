//! Names: one tool a line, a tab before each of its aliases; an empty line ends a provider.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use toolwright_core::catalogue::foreign_ids;
use toolwright_core::name_table::{NameMatch, NameTable, NamedTool, Resolution};
use toolwright_core::tool_id::ToolId;
use toolwright_fuzz::{parameters, text};

const MAX_TOOLS: usize = 16;
const NAMESPACES: [&str; 4] = ["a", "7-", "_s", "a-namespace-of-some-forty-characters-or-so"];

struct Tool<'a> {
    provider: usize,
    id: ToolId,
    raw_name: &'a str,
    aliases: Vec<String>,
}

/// The tools of `text`. A raw name that ends in a version is an id of ours. Equal ids are refused before
/// names are given: the first stays.
fn tools(text: &str, namespace: usize) -> Vec<Tool<'_>> {
    let mut tools = Vec::new();
    let mut seen = HashSet::new();
    for (provider, listed) in text.split("\n\n").enumerate() {
        let namespace = NAMESPACES[(namespace + provider) % NAMESPACES.len()];
        let lines: Vec<_> = listed.lines().map(|line| line.split_once('\t').unwrap_or((line, ""))).collect();
        let raw_names: Vec<_> = lines.iter().map(|(raw_name, _)| *raw_name).collect();
        let ids = foreign_ids(namespace, &raw_names).expect("a legal namespace");
        for ((raw_name, aliases), foreign) in lines.into_iter().zip(ids) {
            let own =
                raw_name.split_once('@').and_then(|(name, version)| ToolId::format(namespace, name, version).ok());
            let id = own.unwrap_or(foreign);
            if seen.insert(id.clone()) && tools.len() < MAX_TOOLS {
                let aliases = aliases.split('\t').filter(|alias| !alias.is_empty()).map(str::to_owned).collect();
                tools.push(Tool { provider, id, raw_name, aliases });
            }
        }
    }
    tools
}

fn table(tools: &[Tool<'_>], max: usize) -> NameTable {
    let named: Vec<_> = tools
        .iter()
        .map(|Tool { provider, id, raw_name, aliases }| NamedTool { provider: *provider, id, raw_name, aliases })
        .collect();
    NameTable::build(&named, max)
}

fn is_legal(wire: &str, max: usize) -> bool {
    wire.len() <= max
        && wire.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && wire.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
}

fuzz_target!(|data: &[u8]| {
    let ([namespace, max], written) = parameters(data);
    let (text, max) = (text(written), 16 + max % 49);
    let tools = tools(&text, namespace);
    let names = table(&tools, max);
    let again = table(&tools, max);
    let providers = tools.last().map_or(0, |tool| tool.provider);
    let without_last = tools.iter().position(|tool| tool.provider == providers).unwrap_or(0);
    let fewer = table(&tools[..without_last], max);

    let mut seen = HashSet::new();
    for (index, tool) in tools.iter().enumerate() {
        let wire = names.wire_name(index);
        assert!(is_legal(wire, max), "{wire:?} for {:?}", tool.raw_name);
        assert!(seen.insert(wire), "{wire} means two tools");
        assert_eq!(wire, again.wire_name(index));
        assert!(index >= without_last || wire == fewer.wire_name(index), "{wire} was renamed");
        assert_eq!(names.by_wire_name(wire), Some(index));
        assert_eq!(names.resolve(wire), Resolution::Found(index, NameMatch::Wire));
        assert_eq!(names.resolve(tool.id.as_str()), Resolution::Found(index, NameMatch::Id));
        for written in tool.aliases.iter().map(String::as_str).chain([tool.raw_name]) {
            if let Resolution::Unknown(near) = names.resolve(written) {
                assert!(near.len() <= 5 && near.iter().all(|name| names.by_wire_name(name).is_some()));
            }
        }
    }
    let _ = names.resolve(&text);
});
