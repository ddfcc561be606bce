//! `fs:glob`: files by the pattern of their paths.

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
use super::{Bounds, SearchOutput, hidden_schema, limited, matches, path_pattern, timeout_schema};
use crate::builtin::fs::dir::Kind;
use crate::builtin::fs::guard::{Paths, relative_path};
use crate::builtin::fs::{ROOT, optional_path_schema};
use crate::builtin::{blocking, define, parse};

pub(super) struct Glob(pub(super) Paths);

#[derive(Deserialize)]
struct Arguments {
    pattern: String,
    path: String,
    hidden: bool,
    limit: u64,
    timeout_ms: u64,
}

#[async_trait]
impl Tool for Glob {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:glob@1.0.0",
            "Find files by name",
            "Lists the files whose path matches a pattern, one path a line, sorted by name. Files that \
             .gitignore excludes are left out.",
            Effects::READ,
            json!({
                "pattern": {
                    "type": "string", "minLength": 1,
                    "description": "Glob: `*` and `?` within a name, `**` across folders, `{a,b}`, `[a-z]`. Without a slash it matches names at any depth.",
                },
                "path": optional_path_schema("Folder to look in"),
                "hidden": hidden_schema(),
                "limit": {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 500, "description": "Paths to list at most."},
                "timeout_ms": timeout_schema(),
            }),
            &["pattern"],
        );
        definition = limited(definition);
        definition.examples = vec![json!({"pattern": "*.rs"}), json!({"pattern": "src/**/*.{ts,tsx}", "path": "web"})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { pattern, path, hidden, limit, timeout_ms } = parse(arguments)?;
        let (guard, context) = (self.0.clone(), context.clone());
        blocking(move || {
            let start = guard.admit(&context.session, &path)?;
            let matcher = path_pattern(&pattern)?;
            let mut found = SearchOutput::new(timeout_ms, &context);
            let mut count = 0u64;
            let bounds = Bounds { hidden: hidden.into(), depth: None, deadline: found.until };
            let walked = walk(&start, bounds, &context, |entry| {
                if entry.kind == Kind::File && matches(&matcher, entry, &start) {
                    count += 1;
                    if count <= limit {
                        found.text.push_str(&relative_path(&entry.path, &start.root));
                        found.text.push('\n');
                        found.report();
                    }
                }
                Ok(WalkControl::Continue)
            })?;
            let summary = if count == 0 {
                Some(format!("no file matches `{pattern}` in {}", start.relative_text()))
            } else {
                (count > limit)
                    .then(|| format!("the first {limit} of {count} files: narrow the pattern or raise limit"))
            };
            Ok(found.finish(&walked, summary, count <= limit, &start).with_extra("matches", count))
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
