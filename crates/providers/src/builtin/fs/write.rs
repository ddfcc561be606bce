//! `fs:write`: a whole file.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_core::tool::Tool;

use super::diff::unified;
use super::guard::WriteGuard;
use super::{
    MAX_WHOLE_FILE, count_of, expected_hash_schema, io_failure, lines_of, looks_binary, path_schema, read,
    read_existing, with_warning,
};
use crate::builtin::{blocking, define, parse};

pub(super) struct Write(pub(super) WriteGuard);

#[derive(Deserialize)]
struct Arguments {
    path: String,
    content: String,
    expected_hash: Option<String>,
}

#[async_trait]
impl Tool for Write {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:write@1.0.0",
            "Write a file",
            "Writes a whole text file, making missing folders. An existing file is replaced, and must have been \
             read with fs__read before. To change a part of a file, use fs__edit.",
            Effects::WRITE,
            json!({
                "path": path_schema("File to write"),
                "content": {"type": "string", "maxLength": MAX_WHOLE_FILE, "description": "The whole new content."},
                "expected_hash": expected_hash_schema(),
            }),
            &["path", "content"],
        );
        definition.concurrency = Concurrency::Exclusive;
        definition.body_argument = Some("content".into());
        definition.examples = vec![json!({"path": "notes/todo.md", "content": "# To do\n"})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { path, content, expected_hash } = parse(arguments)?;
        let (guard, context) = (self.0.clone(), context.clone());
        blocking(move || {
            let target = guard.admit(&context, &path)?;
            let existing = read_existing(&target)?;
            if let Some((bytes, _)) = &existing {
                read::check(&context, &target, ContentHash::of_bytes(bytes), expected_hash.as_deref())?;
            }
            let metadata = target
                .replace(content.as_bytes(), existing.as_ref().map(|(_, metadata)| metadata))
                .map_err(|error| io_failure("write", &path, &error))?;
            let hash = ContentHash::of_bytes(content.as_bytes());
            read::note(&context, &target.path, hash, Some(&metadata));
            let did = if existing.is_some() { "replaced" } else { "created" };
            let lines = lines_of(content.as_bytes());
            let text = format!(
                "{did} {}: {}, {}",
                target.relative_text(),
                count_of(lines, "line"),
                count_of(content.len() as u64, "byte")
            );
            let output = ToolOutput::text(text)
                .with_extra("sha256", hash.to_hex())
                .with_extra("bytes", content.len())
                .with_extra("lines", lines)
                .with_extra("created", existing.is_none());
            Ok(with_warning(output, &target))
        })
        .await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        self.0.scope(session, arguments["path"].as_str().unwrap_or_default())
    }

    fn files(&self, arguments: &Value, session: &Session) -> FileUse {
        FileUse {
            replaces: self.0.paths.located(session, &arguments["path"]).into_iter().collect(),
            ..FileUse::default()
        }
    }

    fn changes(&self, arguments: &Value, session: &Session) -> Option<String> {
        let content = arguments["content"].as_str()?.as_bytes();
        let target = self.0.paths.admit(session, arguments["path"].as_str()?).ok()?;
        let old = read_existing(&target).ok()?.map(|(bytes, _)| bytes).unwrap_or_default();
        (!looks_binary(&old)).then(|| unified(&target.relative_text(), &old, content))
    }
}
