//! `fs:json_read` and `fs:json_write`: a value in a JSON file. `fs:notebook_read` and `fs:notebook_edit`: cells of
//! Jupyter notebooks, which are JSON files.

use std::fs::Metadata;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Number, Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::schema::{CompiledSchema, Violation};
use toolwright_core::session::Session;
use toolwright_core::store::FileUse;
use toolwright_core::tool::Tool;

use super::diff::unified;
use super::guard::{Paths, Target, WriteGuard};
use super::json_document::{Change, Document, changed, steps};
use super::notebook::{NotebookEdit, NotebookRead};
use super::{expected_hash_schema, io_failure, path_schema, read, read_existing, with_warning};
use crate::builtin::{blocking, define, failed, parse};

/// The most schema violations that an error lists.
const MAX_VIOLATIONS: usize = 10;

/// 2^63. Integers below it arrive with all their digits.
const MAX_EXACT: f64 = 9.223_372_036_854_776e18;

/// Returns the tools for JSON files.
pub(super) fn tools(paths: &Paths, writes: &WriteGuard) -> [Arc<dyn Tool>; 4] {
    [
        Arc::new(JsonRead(paths.clone())),
        Arc::new(JsonWrite(writes.clone())),
        Arc::new(NotebookRead(paths.clone())),
        Arc::new(NotebookEdit(writes.clone())),
    ]
}

fn pointer_schema() -> Value {
    json!({"type": "string", "default": "", "description": "JSON Pointer (`/a/0/b`) or path (`a[0].b`); empty for the whole."})
}

/// An open JSON file.
pub(super) struct OpenedDocument {
    pub(super) target: Target,
    pub(super) bytes: Vec<u8>,
    metadata: Metadata,
    pub(super) document: Document,
}

impl OpenedDocument {
    fn of(target: Target, bytes: Vec<u8>, metadata: Metadata) -> Result<Self, ToolError> {
        let path = &target.written;
        let text =
            std::str::from_utf8(&bytes).map_err(|_| failed(format!("`{path}` is not UTF-8, so it is no JSON")))?;
        let document = Document::parse(text).map_err(|why| failed(format!("`{path}` is no JSON: {why}")))?;
        Ok(Self { target, bytes, metadata, document })
    }

    /// Reads the file and returns what `show` finds in it, with the file's hash. Notes that the file was read. `show`
    /// fails with the reason.
    pub(super) async fn read(
        paths: &Paths,
        path: String,
        context: &ToolContext,
        show: impl FnOnce(&Document) -> Result<ToolOutput, String> + Send + 'static,
    ) -> Result<ToolOutput, ToolError> {
        let (paths, context) = (paths.clone(), context.clone());
        blocking(move || {
            let target = paths.admit(&context.session, &path)?;
            let (bytes, metadata) = existing(&target)?;
            let opened = Self::of(target, bytes, metadata)?;
            let hash = ContentHash::of_bytes(&opened.bytes);
            read::note(&context, &opened.target.path, hash, Some(&opened.metadata));
            let output = show(&opened.document).map_err(|why| failed(format!("`{path}`: {why}")))?;
            Ok(with_warning(output.with_extra("sha256", hash.to_hex()), &opened.target))
        })
        .await
    }

    pub(super) fn to_write(
        guard: &WriteGuard,
        path: &str,
        hash: Option<&str>,
        context: &ToolContext,
    ) -> Result<Self, ToolError> {
        let target = guard.admit(context, path)?;
        let (bytes, metadata) = existing(&target)?;
        read::check(context, &target, ContentHash::of_bytes(&bytes), hash)?;
        Self::of(target, bytes, metadata)
    }

    /// Writes the changed document, and reports the change.
    pub(super) fn write(&self, did: &str, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let new = self.document.text().into_bytes();
        let shown = self.target.relative_text();
        if new == self.bytes {
            return Ok(ToolOutput::text(format!("nothing to change in {shown}: it is so already"))
                .with_extra("changed", false));
        }
        let metadata = self
            .target
            .replace(&new, Some(&self.metadata))
            .map_err(|error| io_failure("write", &self.target.written, &error))?;
        let hash = ContentHash::of_bytes(&new);
        read::note(context, &self.target.path, hash, Some(&metadata));
        let text = format!("{did} in {shown}\n{}", unified(&shown, &self.bytes, &new));
        let output = ToolOutput::text(text).with_extra("sha256", hash.to_hex()).with_extra("changed", true);
        Ok(with_warning(output, &self.target))
    }
}

fn existing(target: &Target) -> Result<(Vec<u8>, Metadata), ToolError> {
    let missing = || failed(format!("`{}` does not exist; fs__glob and fs__tree show what there is", target.written));
    read_existing(target)?.ok_or_else(missing)
}

struct JsonRead(Paths);

#[derive(Deserialize)]
struct ReadArguments {
    path: String,
    pointer: String,
}

#[async_trait]
impl Tool for JsonRead {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:json_read@1.0.0",
            "Read a JSON value",
            "Reads one value of a JSON file, as it is written there. Comments and trailing commas are allowed.",
            Effects::READ,
            json!({"path": path_schema("JSON file"), "pointer": pointer_schema()}),
            &["path"],
        );
        definition.examples = vec![json!({"path": "package.json", "pointer": "/version"})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let ReadArguments { path, pointer } = parse(arguments)?;
        let steps = steps(&pointer).map_err(failed)?;
        let show = move |document: &Document| Ok(ToolOutput::text(document.find(&steps)?.to_string()));
        OpenedDocument::read(&self.0, path, context, show).await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        self.0.scope(session, arguments["path"].as_str().unwrap_or_default())
    }

    fn files(&self, arguments: &Value, session: &Session) -> FileUse {
        self.0.read_by(session, arguments)
    }
}

struct JsonWrite(WriteGuard);

#[derive(Deserialize)]
struct WriteArguments {
    path: String,
    pointer: String,
    op: Op,
    value: Option<Value>,
    schema: Option<String>,
    expected_hash: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    Set,
    Insert,
    Remove,
}

#[async_trait]
impl Tool for JsonWrite {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:json_write@1.0.0",
            "Write a JSON value",
            "Changes one value of a JSON file that has been read; order, formatting and comments of the rest stay. set adds a \
             missing member, or an element at the end (`/list/-`).",
            Effects { idempotent: false, ..Effects::WRITE },
            json!({
                "path": path_schema("JSON file"),
                "pointer": pointer_schema(),
                "op": {"type": "string", "enum": ["set", "insert", "remove"], "default": "set", "description": "insert puts an element before the one at pointer."},
                "value": {"description": "Any JSON value; not for remove."},
                "schema": {"type": "string", "minLength": 1, "description": "File with a JSON Schema that the result must keep. Default: what `$schema` names, if it is a file here."},
                "expected_hash": expected_hash_schema(),
            }),
            &["path"],
        );
        definition.concurrency = Concurrency::Exclusive;
        definition.examples = vec![
            json!({"path": "package.json", "pointer": "/version", "value": "1.2.0"}),
            json!({"path": "tsconfig.json", "pointer": "compilerOptions.paths", "op": "remove"}),
        ];
        definition.documentation = Some(
            "Members keep their order; a new one comes last, and takes the indentation of its neighbours. A value that is an \
             object or an array is compared with what is there, and only what differs is changed. With a schema, rules that the \
             change would break refuse it; those that the file broke before do not. The file must exist: create it with fs__write."
                .to_owned(),
        );
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: WriteArguments = parse(arguments)?;
        let (guard, context) = (self.0.clone(), context.clone());
        blocking(move || {
            let WriteArguments { path, pointer, op, value, schema, expected_hash } = arguments;
            let opened = OpenedDocument::to_write(&guard, &path, expected_hash.as_deref(), &context)?;
            let change = match (op, &value) {
                (Op::Remove, _) => Change::Remove,
                (Op::Set, Some(value)) => Change::Set(value),
                (Op::Insert, Some(value)) => Change::Insert(value),
                (_, None) => return Err(failed("`value` is missing: say what to write (null is a value)")),
            };
            if let Change::Set(value) | Change::Insert(value) = &change
                && let Some(number) = rounded(value)
            {
                return Err(failed(format!(
                    "nothing was written: `value` has a number that is too large to keep its digits, and arrived as {number}; \
                     pass it as text, or write it with fs__edit"
                )));
            }
            let steps = steps(&pointer).map_err(failed)?;
            let before = opened.document.value();
            opened.document.change(&steps, &change).map_err(|why| failed(format!("`{path}`: {why}")))?;
            let wanted = changed(before.clone(), &steps, &change);
            let written = Document::parse(&opened.document.text()).map(|document| document.value()).ok();
            if wanted != written {
                return Err(failed(format!(
                    "`{path}` was left as it is: this change cannot be written in place; use fs__edit"
                )));
            }
            let wanted = wanted.unwrap_or_default();
            if let Some((named, schema)) = schema_of(&guard.paths, &opened.target, schema, &wanted, &context)? {
                let broken_before = schema.violations(&before);
                let broken = schema.violations(&wanted).into_iter().filter(|now| !broken_before.contains(now));
                let broken: Vec<_> =
                    broken.map(|Violation { path, message, .. }| format!("`{path}`: {message}")).collect();
                if !broken.is_empty() {
                    let listed = broken[..broken.len().min(MAX_VIOLATIONS)].join("\n");
                    return Err(failed(format!(
                        "nothing was written: the result would break the schema `{named}`:\n{listed}"
                    )));
                }
            }
            let did = match op {
                Op::Set => "set",
                Op::Insert => "inserted",
                Op::Remove => "removed",
            };
            let place = if pointer.is_empty() { "the document" } else { &pointer };
            opened.write(&format!("{did} {place}"), &context)
        })
        .await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        let read = arguments["schema"].as_str().map(|schema| self.0.paths.scope(session, schema));
        let written = self.0.scope(session, arguments["path"].as_str().unwrap_or_default());
        read.into_iter().fold(written, Ord::max)
    }

    fn files(&self, arguments: &Value, session: &Session) -> FileUse {
        self.0.changed_by(session, arguments)
    }
}

/// Returns the first number that may have lost digits when the arguments were parsed: larger than every integer, and so
/// a float.
fn rounded(value: &Value) -> Option<&Number> {
    match value {
        Value::Number(number) => {
            let is_large = number.as_f64().is_some_and(|float| float.abs() >= MAX_EXACT);
            Some(number).filter(|number| number.is_f64() && is_large)
        }
        Value::Array(values) => values.iter().find_map(rounded),
        Value::Object(members) => members.values().find_map(rounded),
        _ => None,
    }
}

/// Returns the schema that a call names, else the file beside the document that its `$schema` names.
fn schema_of(
    paths: &Paths,
    target: &Target,
    named: Option<String>,
    document: &Value,
    context: &ToolContext,
) -> Result<Option<(String, CompiledSchema)>, ToolError> {
    let (path, is_asked) = match (named, document["$schema"].as_str()) {
        (Some(named), _) => (named, true),
        (None, Some(beside)) if !beside.contains("://") => {
            let folder = target.path.parent().unwrap_or(&target.root);
            (folder.join(beside).to_string_lossy().into_owned(), false)
        }
        _ => return Ok(None),
    };
    let schema = paths.admit(&context.session, &path).and_then(|schema| {
        // A schema that the caller did not name must not be outside.
        if !is_asked && !schema.inside {
            return Err(failed("it is outside the workspace root"));
        }
        let (bytes, metadata) = existing(&schema)?;
        OpenedDocument::of(schema, bytes, metadata)
    });
    match schema {
        Err(_) if !is_asked => Ok(None),
        Err(error) => Err(error),
        Ok(opened) => match CompiledSchema::compile(&opened.document.value()) {
            Ok(compiled) => Ok(Some((opened.target.relative_text(), compiled))),
            Err(_) if !is_asked => Ok(None),
            Err(error) => Err(failed(format!("`{path}` is no JSON Schema that can be used: {error}"))),
        },
    }
}
