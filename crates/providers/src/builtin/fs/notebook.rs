//! `fs:notebook_read` and `fs:notebook_edit`: the cells of a Jupyter notebook (nbformat 4). Cells that an edit does not
//! touch keep every byte.

use std::collections::HashSet;

use async_trait::async_trait;
use jsonc_parser::cst::{CstArray, CstInputValue, CstObject};
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

use super::guard::{Paths, WriteGuard};
use super::json::OpenedDocument;
use super::json_document::{Document, input, replace};
use super::{expected_hash_schema, path_schema};
use crate::builtin::{blocking, define, failed, parse};

/// The most bytes of an output that are shown.
const MAX_OUTPUT: usize = 2000;

pub(super) struct NotebookRead(pub(super) Paths);

#[derive(Deserialize)]
struct ReadArguments {
    path: String,
    cell: Option<String>,
    outputs: bool,
}

#[async_trait]
impl Tool for NotebookRead {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:notebook_read@1.0.0",
            "Read a notebook",
            "Reads the cells of a Jupyter notebook: index, type, id, source and outputs of each. Images are only mentioned.",
            Effects::READ,
            json!({
                "path": path_schema("Notebook, an .ipynb file"),
                "cell": {"type": "string", "minLength": 1, "description": "Id or index (from 0) of the one cell to read."},
                "outputs": {"type": "boolean", "default": true, "description": "Show outputs."},
            }),
            &["path"],
        );
        definition.examples = vec![json!({"path": "analysis.ipynb"}), json!({"path": "analysis.ipynb", "cell": "3"})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let ReadArguments { path, cell, outputs } = parse(arguments)?;
        let show = move |document: &Document| {
            let notebook = Notebook::of(document)?;
            let cells = notebook.cells.elements();
            let chosen = match cell {
                Some(cell) => vec![notebook.find(&cell)?],
                None => (0..cells.len()).collect(),
            };
            let mut text = format!("{} cells, nbformat 4.{}\n", cells.len(), notebook.minor);
            for at in chosen {
                let value = cells[at].to_serde_value().unwrap_or_default();
                text.push_str(&cell_text(at, &value, outputs));
            }
            Ok(ToolOutput::text(text).with_extra("cells", cells.len()))
        };
        OpenedDocument::read(&self.0, path, context, show).await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        self.0.scope(session, arguments["path"].as_str().unwrap_or_default())
    }

    fn files(&self, arguments: &Value, session: &Session) -> FileUse {
        self.0.read_by(session, arguments)
    }
}

pub(super) struct NotebookEdit(pub(super) WriteGuard);

#[derive(Deserialize)]
struct EditArguments {
    path: String,
    op: Op,
    cell: Option<String>,
    source: Option<String>,
    cell_type: Option<CellType>,
    expected_hash: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Op {
    Replace,
    Insert,
    Delete,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum CellType {
    Code,
    Markdown,
    Raw,
}

impl CellType {
    fn as_str(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Markdown => "markdown",
            Self::Raw => "raw",
        }
    }
}

#[async_trait]
impl Tool for NotebookEdit {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            "fs:notebook_edit@1.0.0",
            "Edit a notebook",
            "Replaces, inserts or deletes a cell of a Jupyter notebook that has been read. A replaced code cell loses its outputs.",
            Effects { idempotent: false, ..Effects::WRITE },
            json!({
                "path": path_schema("Notebook, an .ipynb file"),
                "op": {"type": "string", "enum": ["replace", "insert", "delete"], "default": "replace", "description": "What to do."},
                "cell": {"type": "string", "minLength": 1, "description": "Id or index (from 0) of the cell; for insert, of the one before the new cell, which is the first without."},
                "source": {"type": "string", "description": "The cell's whole new text."},
                "cell_type": {"type": "string", "enum": ["code", "markdown", "raw"], "description": "Default: as it is; code for a new cell."},
                "expected_hash": expected_hash_schema(),
            }),
            &["path"],
        );
        definition.concurrency = Concurrency::Exclusive;
        definition.body_argument = Some("source".into());
        definition.examples = vec![
            json!({"path": "analysis.ipynb", "cell": "3", "source": "df.describe()"}),
            json!({"path": "analysis.ipynb", "op": "insert", "cell": "3", "cell_type": "markdown", "source": "# Results"}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: EditArguments = parse(arguments)?;
        let (guard, context) = (self.0.clone(), context.clone());
        blocking(move || {
            let opened =
                OpenedDocument::to_write(&guard, &arguments.path, arguments.expected_hash.as_deref(), &context)?;
            let done = Notebook::of(&opened.document)
                .and_then(|notebook| Ok(notebook.edit(&arguments)? + &notebook.part_ids()));
            let done = done.map_err(|why| failed(format!("`{}`: {why}", arguments.path)))?;
            opened.write(&done, &context)
        })
        .await
    }

    fn scope(&self, arguments: &Value, session: &Session) -> CallScope {
        self.0.scope(session, arguments["path"].as_str().unwrap_or_default())
    }

    fn files(&self, arguments: &Value, session: &Session) -> FileUse {
        self.0.changed_by(session, arguments)
    }
}

struct Notebook {
    cells: CstArray,
    minor: u64,
}

impl Notebook {
    fn of(document: &Document) -> Result<Self, String> {
        let object = document.object().ok_or("it is no notebook: it is no object")?;
        let number = |name| object.get(name).and_then(|member| member.value()?.to_serde_value()?.as_u64());
        match number("nbformat") {
            Some(4) => {}
            Some(other) => {
                return Err(format!(
                    "it has nbformat {other}; convert it with `jupyter nbconvert --to notebook` first"
                ));
            }
            None => return Err("it is no notebook: it has no `nbformat`".to_owned()),
        }
        let cells = object.array_value("cells").ok_or("it is no notebook: it has no `cells`")?;
        Ok(Self { cells, minor: number("nbformat_minor").unwrap_or_default() })
    }

    /// Returns whether its cells have ids.
    fn has_ids(&self) -> bool {
        self.minor >= 5
    }

    /// Returns the index of a cell, by its id or number.
    fn find(&self, written: &str) -> Result<usize, String> {
        let cells = self.cells.elements();
        let ids: Vec<Option<String>> = cells.iter().map(|cell| text_of(&cell.as_object()?, "id")).collect();
        let mut with_id = (0..cells.len()).filter(|&at| ids[at].as_deref() == Some(written));
        match (with_id.next(), with_id.next()) {
            (Some(at), None) => return Ok(at),
            (Some(one), Some(other)) => {
                return Err(format!(
                    "cells {one} and {other} both have the id `{written}`: name the cell by its index"
                ));
            }
            (None, _) => {}
        }
        let at = written.parse().ok().filter(|&at: &usize| at < cells.len());
        at.ok_or_else(|| format!("there is no cell `{written}`: it has {}, counted from 0", cells.len()))
    }

    /// Makes the edit. Returns a description of it.
    fn edit(&self, edit: &EditArguments) -> Result<String, String> {
        let cell = edit.cell.as_deref().map(|cell| self.find(cell)).transpose()?;
        match (edit.op, cell) {
            (Op::Insert, before) => {
                let at = before.map_or(0, |before| before + 1);
                let source = edit.source.as_deref().ok_or("`source` is missing")?;
                let id = self.insert(at, edit.cell_type.unwrap_or(CellType::Code), source);
                Ok(match id {
                    Some(id) => format!("inserted cell {at} with the id {id}"),
                    None => format!("inserted cell {at}"),
                })
            }
            (_, None) => Err("`cell` is missing: say which cell".to_owned()),
            (Op::Delete, Some(at)) => {
                self.cells.elements().swap_remove(at).remove();
                Ok(format!("deleted cell {at}"))
            }
            (Op::Replace, Some(at)) => {
                let cell = self.cells.elements()[at].as_object().ok_or("the cell is no object")?;
                let is = text_of(&cell, "cell_type").unwrap_or_default();
                let becomes = edit.cell_type.map_or(is.as_str(), |kind| kind.as_str());
                let old = source_of(&cell.to_serde_value().unwrap_or_default());
                let source = edit.source.clone().unwrap_or_else(|| old.clone());
                if becomes != is || source != old {
                    retype(&cell, &is, becomes);
                    set_source(&cell, &source);
                }
                Ok(format!("replaced cell {at}"))
            }
        }
    }

    /// Gives each cell with a duplicate id a new one. Returns a description.
    fn part_ids(&self) -> String {
        let mut seen = HashSet::new();
        let mut done = String::new();
        for (at, cell) in self.cells.elements().iter().enumerate() {
            let Some(cell) = cell.as_object() else { continue };
            let Some(id) = text_of(&cell, "id") else { continue };
            if seen.contains(&id) {
                let new = self.new_id(at, &source_of(&cell.to_serde_value().unwrap_or_default()));
                set(&cell, "id", &json!(new));
                done.push_str(&format!(", gave cell {at} the id {new} instead of a second {id}"));
            } else {
                seen.insert(id);
            }
        }
        done
    }

    /// Inserts a cell. Returns its id, if cells of this notebook have ids.
    fn insert(&self, at: usize, kind: CellType, source: &str) -> Option<String> {
        let id = self.has_ids().then(|| self.new_id(at, source));
        let mut members = vec![("cell_type", json!(kind.as_str()))];
        if kind == CellType::Code {
            members.push(("execution_count", Value::Null));
        }
        members.extend(id.as_ref().map(|id| ("id", json!(id))));
        members.push(("metadata", json!({})));
        if kind == CellType::Code {
            members.push(("outputs", json!([])));
        }
        let members = members.into_iter().map(|(name, value)| (name.to_owned(), input(&value))).collect();
        if let Some(cell) = self.cells.insert(at, CstInputValue::Object(members)).as_object() {
            set_source(&cell, source);
        }
        id
    }

    /// Returns an unused id: a part of a hash of the new cell.
    fn new_id(&self, at: usize, source: &str) -> String {
        let taken: HashSet<String> =
            self.cells.elements().iter().filter_map(|cell| text_of(&cell.as_object()?, "id")).collect();
        let candidate =
            |round: usize| ContentHash::of_bytes(format!("{round} {at} {source}").as_bytes()).to_hex()[..8].to_owned();
        (taken.len()..).map(candidate).find(|id| !taken.contains(id)).unwrap_or_default()
    }
}

/// Gives a cell the members of its new type. A code cell loses its outputs.
fn retype(cell: &CstObject, is: &str, becomes: &str) {
    if is != becomes {
        set(cell, "cell_type", &json!(becomes));
        if is == "code" {
            remove(cell, "execution_count");
            remove(cell, "outputs");
        }
        if becomes == "code" {
            remove(cell, "attachments");
        }
    }
    if becomes == "code" {
        set(cell, "execution_count", &Value::Null);
        set(cell, "outputs", &json!([]));
    }
}

/// Writes the source in its present form: one text, or a list of lines.
fn set_source(cell: &CstObject, source: &str) {
    let is_text =
        cell.get("source").and_then(|member| member.value()).is_some_and(|value| value.as_string_lit().is_some());
    if is_text {
        set(cell, "source", &json!(source));
        return;
    }
    let lines: Vec<&str> = source.split_inclusive('\n').collect();
    set(cell, "source", &json!(lines));
    if let Some(array) = cell.array_value("source")
        && !lines.is_empty()
    {
        array.ensure_multiline();
    }
}

/// Sets a member; a new one is inserted in the order of names, as Jupyter does.
fn set(cell: &CstObject, name: &str, value: &Value) {
    match cell.get(name).and_then(|member| member.value()) {
        Some(node) if node.to_serde_value().as_ref() == Some(value) => {}
        Some(node) => replace(node, value),
        None => {
            let after =
                |member: &jsonc_parser::cst::CstObjectProp| member.decoded_name().is_some_and(|other| *other > *name);
            let properties = cell.properties();
            let at = properties.iter().position(after).unwrap_or(properties.len());
            cell.insert(at, name, input(value));
        }
    }
}

fn remove(cell: &CstObject, name: &str) {
    if let Some(member) = cell.get(name) {
        member.remove();
    }
}

fn text_of(object: &CstObject, name: &str) -> Option<String> {
    object.get(name)?.value()?.as_string_lit()?.decoded_value().ok()
}

/// Returns text that notebooks store as one string or as a list of lines.
fn joined(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

fn source_of(cell: &Value) -> String {
    joined(&cell["source"])
}

/// Returns a cell as text for the reader.
fn cell_text(at: usize, cell: &Value, outputs: bool) -> String {
    let mut text = format!("\n[{at}] {}", cell["cell_type"].as_str().unwrap_or("unknown"));
    if let Some(id) = cell["id"].as_str() {
        text.push_str(&format!(" id={id}"));
    }
    if let Some(count) = cell["execution_count"].as_u64() {
        text.push_str(&format!(" run={count}"));
    }
    text.push('\n');
    text.push_str(&source_of(cell));
    end_line(&mut text);
    for output in cell["outputs"].as_array().into_iter().flatten().filter(|_| outputs) {
        let said = output_text(output);
        let end = said.floor_char_boundary(MAX_OUTPUT);
        text.push_str(&format!("--- {}\n{}", output["output_type"].as_str().unwrap_or("output"), &said[..end]));
        end_line(&mut text);
        if end < said.len() {
            text.push_str(&format!("[… toolwright cut {} of {} bytes]\n", said.len() - end, said.len()));
        }
    }
    text
}

fn output_text(output: &Value) -> String {
    if output["output_type"] == "error" {
        let [name, value] = ["ename", "evalue"].map(|key| output[key].as_str().unwrap_or_default());
        return format!("{name}: {value}");
    }
    if !output["text"].is_null() {
        return joined(&output["text"]);
    }
    let data = output["data"].as_object();
    if let Some(plain) = data.and_then(|data| data.get("text/plain")) {
        let others: Vec<_> =
            data.into_iter().flatten().map(|(kind, _)| kind.as_str()).filter(|&kind| kind != "text/plain").collect();
        let others = if others.is_empty() { String::new() } else { format!("\n[also as {}]", others.join(", ")) };
        return format!("{}{others}", joined(plain));
    }
    let kinds = data.into_iter().flatten().map(|(kind, value)| format!("[{kind}, {} bytes]", joined(value).len()));
    kinds.collect::<Vec<_>>().join("\n")
}

fn end_line(text: &mut String) {
    if !text.ends_with('\n') {
        text.push('\n');
    }
}
