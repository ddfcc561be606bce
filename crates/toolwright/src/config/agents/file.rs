//! One agent file: front matter in YAML between two `---` lines, and the agent's instructions after them.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};
use toolwright_core::agents::{AgentConfig, legal_name};

use super::{Draft, claude};
use crate::config::node::{Data, Node, Problem, Severity};
use crate::config::sections::check::{FOREIGN_KEYS, check, entry_schema, snake_case};
use crate::config::sections::llm_tools::split;

/// Reads an agent file; `None` if it is unusable. Errors are added to `problems`, and affect only this agent.
pub(super) fn read(text: &str, file: &Arc<Path>, problems: &mut Vec<Problem>) -> Option<Draft> {
    let mut found = Vec::new();
    let draft = parse(text, file, &mut found);
    let is_broken = draft.is_none() || found.iter().any(|problem| problem.severity != Severity::Warning);
    problems.extend(found.into_iter().map(|problem| {
        let severity = problem.severity.min(Severity::EntryDisabled);
        Problem { severity, ..problem }
    }));
    draft.filter(|_| !is_broken)
}

fn parse(text: &str, file: &Arc<Path>, problems: &mut Vec<Problem>) -> Option<Draft> {
    let (front, body) = match split(text) {
        Ok(parts) => parts,
        Err(why) => {
            let remedy = "begin it with `---`, lines like `name: reviewer`, and `---`; the agent's instructions follow";
            problems.push(Problem::with_file(Severity::EntryDisabled, file, why, remedy));
            return None;
        }
    };
    let mut node = match front_matter(front, file) {
        Ok(node) => node,
        Err(problem) => {
            problems.push(problem);
            return None;
        }
    };
    let Data::Map(members) = &mut node.data else {
        let message = format!("its front matter holds {}, where a mapping belongs", node.kind());
        problems.push(Problem::new(
            Severity::EntryDisabled,
            &node.at,
            "",
            message,
            "write lines like `name: reviewer`",
        ));
        return None;
    };
    for member in members {
        member.key = snake_case(&member.key).replace('-', "_");
    }
    claude::translate(&mut node, problems);
    let name = node.take("name");
    check(&mut node, schema(), problems);
    let mut spec: AgentConfig = match serde_json::from_value(node.to_value()) {
        Ok(spec) => spec,
        Err(error) => {
            let remedy = "compare it with `agents` in `toolwright config schema`";
            problems.push(Problem::with_file(Severity::EntryDisabled, file, error.to_string(), remedy));
            return None;
        }
    };
    let body = body.trim();
    if spec.prompt.is_empty() {
        body.clone_into(&mut spec.prompt);
    } else if !body.is_empty() {
        let at = &node.get("prompt").map_or(&node.at, |member| &member.at).clone();
        let message = "the instructions stand both in the front matter and after it";
        problems.push(Problem::new(Severity::EntryDisabled, at, "prompt", message, "keep one of them"));
    }
    // An agent without a name has that of its file.
    let stem = || file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    let written = name.as_ref().and_then(|name| name.value.text().map(str::trim)).filter(|name| !name.is_empty());
    let written = written.map_or_else(stem, str::to_owned);
    spec.name = legal_name(&written);
    let at = name.as_ref().map_or_else(|| node.at.clone(), |name| name.at.clone());
    if spec.name != written && !spec.name.is_empty() {
        let message = format!("the agent `{written}` is called `{}` here", spec.name);
        let remedy = "a name has lower-case letters, digits, `_` and `-`";
        problems.push(Problem::new(Severity::Warning, &at, "name", message, remedy));
    }
    Some(Draft { spec, at, node, prefix: String::new() })
}

/// Parses the front matter, with lines counted from the top of the file.
pub(in crate::config) fn front_matter(front: &str, file: &Arc<Path>) -> Result<Node, Problem> {
    let numbered = |text: &str| format!("\n{text}");
    Node::parse(&numbered(front), file).or_else(|problem| {
        // Claude Code writes and accepts unquoted descriptions with colons.
        let quoted = quoted(front);
        if quoted == front { Err(problem) } else { Node::parse(&numbered(&quoted), file).map_err(|_| problem) }
    })
}

/// Quotes the text in lines `key: text`, if it is plain and YAML would not read it as one text.
fn quoted(front: &str) -> String {
    let line = |line: &str| {
        let text = line.trim_end();
        let (key, value) = text.split_once(':')?;
        let is_key = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
        let value = value.strip_prefix(' ')?.trim();
        let is_plain = !value.starts_with(['"', '\'', '[', '{', '|', '>', '&', '!', '#']);
        let is_unclear = value.contains(": ")
            || value.contains(" #")
            || value.ends_with(':')
            || value.starts_with(['*', '@', '`', '%']);
        (is_key && is_plain && is_unclear).then(|| format!("{key}: '{}'\n", value.replace('\'', "''")))
    };
    front.split_inclusive('\n').map(|text| line(text).unwrap_or_else(|| text.to_owned())).collect()
}

/// Returns the schema of front matter: that of an entry of `agents`, except that unknown keys only warn.
fn schema() -> &'static Value {
    static SCHEMA: OnceLock<Value> = OnceLock::new();
    SCHEMA.get_or_init(|| {
        let mut schema = entry_schema("agents").clone();
        if let Some(object) = schema.as_object_mut() {
            object.remove("additionalProperties");
            object.insert(FOREIGN_KEYS.to_owned(), json!(true));
        }
        schema
    })
}
