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
use toolwright_core::tool::Tool;

use super::dir::Kind;
use super::guard::{Paths, shown};
use super::walk::{Next, hidden_schema, matches, path_pattern, walk, with_notes};
use super::{ROOT, optional_path_schema, with_warning};
use crate::builtin::{blocking, define, parse};

pub(super) struct Glob(pub(super) Paths);

#[derive(Deserialize)]
struct Arguments {
    pattern: String,
    path: String,
    hidden: bool,
    limit: u64,
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
            }),
            &["pattern"],
        );
        definition.examples = vec![json!({"pattern": "*.rs"}), json!({"pattern": "src/**/*.{ts,tsx}", "path": "web"})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { pattern, path, hidden, limit } = parse(arguments)?;
        let (guard, context) = (self.0.clone(), context.clone());
        blocking(move || {
            let start = guard.admit(&context.session, &path)?;
            let matcher = path_pattern(&pattern)?;
            let (mut text, mut count) = (String::new(), 0u64);
            let walked = walk(&start, hidden.into(), None, &context.cancel, |entry| {
                if entry.kind == Kind::File && matches(&matcher, entry, &start) {
                    count += 1;
                    if count <= limit {
                        text.push_str(&shown(&entry.path, &start.root));
                        text.push('\n');
                    }
                }
                Ok(Next::Continue)
            })?;
            let mut notes = walked.notes();
            if count == 0 {
                notes.insert(0, format!("no file matches `{pattern}` in {}", start.shown()));
            } else if count > limit {
                notes.insert(0, format!("the first {limit} of {count} files: narrow the pattern or raise limit"));
            }
            Ok(with_warning(ToolOutput::text(with_notes(text, &notes)).with_extra("matches", count), &start))
        })
        .await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        self.0.scope(session, arguments["path"].as_str().unwrap_or(ROOT))
    }
}
