//! `fs:tree`: the contents of a directory.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_core::tool::Tool;

use super::walk::{WalkControl, walk};
use super::{Bounds, SearchOutput, hidden_schema, limited, timeout_schema};
use crate::builtin::fs::dir::Kind;
use crate::builtin::fs::guard::Paths;
use crate::builtin::fs::{ROOT, optional_path_schema};
use crate::builtin::{blocking, define, failed, parse};

pub(super) struct Tree(pub(super) Paths);

#[derive(Deserialize)]
struct Arguments {
    path: String,
    depth: usize,
    hidden: bool,
    limit: u64,
    timeout_ms: u64,
}

#[async_trait]
impl Tool for Tree {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:tree@1.0.0",
            "List a directory",
            "Lists what is in a folder and in the folders below it, indented by level; folders end with a slash. \
             What .gitignore excludes is left out.",
            Effects::READ,
            json!({
                "path": optional_path_schema("Folder to list"),
                "depth": {"type": "integer", "minimum": 1, "maximum": 20, "default": 3, "description": "Levels to show."},
                "hidden": hidden_schema(),
                "limit": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 500, "description": "Entries to show at most."},
                "timeout_ms": timeout_schema(),
            }),
            &[],
        );
        definition = limited(definition);
        definition.examples = vec![json!({}), json!({"path": "src", "depth": 1})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { path, depth, hidden, limit, timeout_ms } = parse(arguments)?;
        let (guard, context) = (self.0.clone(), context.clone());
        blocking(move || {
            let start = guard.admit(&context.session, &path)?;
            let mut found = SearchOutput::new(timeout_ms, &context);
            found.text = format!("{}/\n", start.relative_text());
            let mut count = 0u64;
            let bounds = Bounds { hidden: hidden.into(), depth: Some(depth), deadline: found.until };
            let walked = walk(&start, bounds, &context, |entry| {
                if entry.depth == 0 {
                    return Err(failed(format!("`{path}` is a file, not a folder: read it with fs__read")));
                }
                count += 1;
                if count > limit {
                    return Ok(WalkControl::Stop);
                }
                let text = &mut found.text;
                text.push_str(&"  ".repeat(entry.depth));
                text.push_str(&entry.name().to_string_lossy());
                match entry.kind {
                    Kind::Folder => text.push('/'),
                    Kind::Link => text.push_str(&format!(" -> {}", entry.link().unwrap_or_default().display())),
                    Kind::File | Kind::Other => {}
                }
                text.push('\n');
                found.report();
                Ok(WalkControl::Continue)
            })?;
            let summary = if count == 0 {
                Some("the folder is empty, or all in it is hidden or ignored".to_owned())
            } else {
                (count > limit).then(|| format!("the first {limit} entries: list a folder below, or raise limit"))
            };
            Ok(found.finish(&walked, summary, count <= limit, &start).with_extra("entries", count.min(limit)))
        })
        .await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        self.0.scope(session, arguments["path"].as_str().unwrap_or(ROOT))
    }

    fn files(&self, arguments: &Value, session: &Session) -> FileUse {
        self.0.read_by(session, arguments)
    }
}
