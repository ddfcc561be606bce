//! `memory:files`: text files that a user's agents keep between conversations, with the commands of Anthropic's memory
//! tool (`memory_20250818`; platform.claude.com/docs/en/agents-and-tools/tool-use/memory-tool), which models know.
//!
//! The files are values in the session log, never files on disk, so no path can escape.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::canonical::ContentHash;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Concurrency, Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::session::{Session, SessionId};
use toolwright_core::store::{WrittenValue, decoded_name, encoded_name};
use toolwright_core::tool::Tool;

use super::{SessionSubtree, refused_as_failure};
use crate::builtin::{define, parse};

/// The folder of all files.
const ROOT: &str = "/memories";
/// The path of the files among the session's values.
const PATH: &str = "memories";
/// The most bytes of a path.
const MAX_PATH: usize = 300;
/// The largest file, in bytes, below the limit of a row of the log.
const MAX_FILE: usize = 128 << 10;
/// The most files in total.
const MAX_FILES: usize = 500;
/// Lines that an edit shows around its position.
const CONTEXT_LINES: usize = 3;
const TIME: Duration = Duration::from_secs(30);

const MANUAL: &str = "\
Keeps text files below `/memories` between conversations. The files belong to the user and the workspace: every conversation there
sees them. They are not files of the workspace.

| command | arguments | does |
|---|---|---|
| `view` | `path`, `view_range` | lists a folder, or shows a file with line numbers; `view_range` is `[first, last]`, -1 is the end |
| `create` | `path`, `file_text` | makes a new file |
| `str_replace` | `path`, `old_str`, `new_str` | replaces a text that occurs once |
| `insert` | `path`, `insert_line`, `insert_text` | inserts after this line; 0 is the beginning |
| `delete` | `path` | deletes a file, or a folder with all in it |
| `rename` | `old_path`, `new_path` | renames or moves a file or folder |

View `/memories` before you begin: earlier work may be noted there. Keep what helps later, not a log of what was said.";

/// The tool.
pub(super) struct MemoryFilesTool;

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Command {
    View,
    Create,
    StrReplace,
    Insert,
    Delete,
    Rename,
}

#[derive(Debug, Clone, Deserialize)]
struct Arguments {
    command: Command,
    path: Option<String>,
    view_range: Option<[i64; 2]>,
    file_text: Option<String>,
    old_str: Option<String>,
    new_str: Option<String>,
    insert_line: Option<u64>,
    insert_text: Option<String>,
    old_path: Option<String>,
    new_path: Option<String>,
}

#[async_trait]
impl Tool for MemoryFilesTool {
    fn definition(&self) -> ToolDefinition {
        let text = |about: &str| json!({"type": "string", "description": about});
        let mut definition = define(
            "memory:files@1.0.0",
            "Memory files",
            "Keeps text files below /memories between conversations. View /memories before you begin a task.",
            Effects { idempotent: false, ..Effects::WRITE },
            json!({
                "command": {"type": "string", "enum": ["view", "create", "str_replace", "insert", "delete", "rename"],
                            "description": "What to do."},
                "path": text("The file or folder, like /memories/notes.md."),
                "view_range": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2,
                               "description": "For view: first and last line, from 1; -1 is the end."},
                "file_text": text("For create: the text."),
                "old_str": text("For str_replace: what to replace; it occurs once."),
                "new_str": text("For str_replace: what takes its place; nothing deletes it."),
                "insert_line": {"type": "integer", "minimum": 0, "description": "For insert: after which line; 0 is the beginning."},
                "insert_text": text("For insert: the text."),
                "old_path": text("For rename: the file or folder."),
                "new_path": text("For rename: its new path."),
            }),
            &["command"],
        );
        definition.aliases = vec!["memory".into()];
        definition.documentation = Some(MANUAL.into());
        definition.timeout = Some(TIME);
        definition.concurrency = Concurrency::Ordered;
        definition.examples = vec![
            json!({"command": "view", "path": "/memories"}),
            json!({"command": "create", "path": "/memories/build.md", "file_text": "Tests need Docker.\n"}),
            json!({"command": "str_replace", "path": "/memories/build.md", "old_str": "Docker", "new_str": "Podman"}),
        ];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: Arguments = parse(arguments)?;
        let kept = SessionSubtree::at(mailbox(&context.session), context, PATH);
        let changed = kept.change(|standing| {
            let (text, changes) = plan(&tree(standing.value.clone()), arguments.clone())?;
            Ok::<_, String>((changes.into_iter().map(written).collect(), text))
        });
        let output = changed.await.map(|changed| match changed {
            Ok((text, standing)) => ToolOutput { taint: standing.taint, ..ToolOutput::text(text) },
            Err(why) => ToolOutput::failure(why),
        });
        refused_as_failure(output)
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}

/// Returns the mailbox with a user's files in a workspace: notes of one project are not read in another.
fn mailbox(session: &Session) -> SessionId {
    let key = json!([session.principal.id, session.root.to_string_lossy()]);
    SessionId::new(format!("memories-{}", ContentHash::of_value(&key)))
}

/// The files, by path.
type Tree = BTreeMap<String, String>;

/// Reads the files from the values.
fn tree(value: Option<Value>) -> Tree {
    let Some(Value::Object(members)) = value else { return Tree::new() };
    let file = |(path, content): (String, Value)| Some((decoded_name(&path), content.as_str()?.to_owned()));
    members.into_iter().filter_map(file).collect()
}

fn written((path, content): (String, Option<String>)) -> WrittenValue {
    let at = format!("{PATH}.{}", encoded_name(&path));
    match content {
        Some(content) => WrittenValue::set(at, content.into()),
        None => WrittenValue::delete(at),
    }
}

/// Files to write, or to delete if they have no text.
type Changes = Vec<(String, Option<String>)>;

/// Returns the answer of a command, and its changes.
fn plan(tree: &Tree, arguments: Arguments) -> Result<(String, Changes), String> {
    let missing = |name: &str| format!("Error: `{name}` is missing");
    let Arguments { command, path, .. } = &arguments;
    let path = || checked(path.as_deref().ok_or_else(|| missing("path"))?);
    match command {
        Command::View => view(tree, &path()?, arguments.view_range).map(|text| (text, Vec::new())),
        Command::Create => {
            let (path, text) = (path()?, arguments.file_text.ok_or_else(|| missing("file_text"))?);
            if tree.contains_key(&path) {
                return Err(format!("Error: File {path} already exists"));
            }
            if tree.len() >= MAX_FILES {
                return Err(format!("Error: there are {MAX_FILES} files, the maximum: delete some"));
            }
            placeable(tree, &path)?;
            let text = bounded(text)?;
            Ok((format!("File created successfully at: {path}"), vec![(path, Some(text))]))
        }
        Command::StrReplace => {
            let path = path()?;
            let file = file(tree, &path)?;
            let old = arguments.old_str.filter(|old| !old.is_empty()).ok_or_else(|| missing("old_str"))?;
            let places: Vec<usize> = file.match_indices(&*old).map(|(at, _)| line_of(file, at)).collect();
            let [line] = places[..] else {
                return Err(match places.len() {
                    0 => format!("No replacement was performed, old_str `{old}` did not appear verbatim in {path}."),
                    _ => {
                        let lines = places.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                        format!(
                            "No replacement was performed. Multiple occurrences of old_str `{old}` in lines: {lines}. \
                             Please ensure it is unique"
                        )
                    }
                });
            };
            let new = arguments.new_str.unwrap_or_default();
            let edited = bounded(file.replacen(&*old, &new, 1))?;
            let last = line + new.matches('\n').count();
            let shown = numbered(&edited, line.saturating_sub(CONTEXT_LINES).max(1), last + CONTEXT_LINES);
            Ok((format!("The memory file has been edited.\n{shown}"), vec![(path, Some(edited))]))
        }
        Command::Insert => {
            let path = path()?;
            let file = file(tree, &path)?;
            let lines: Vec<&str> = file.split_inclusive('\n').collect();
            let line = arguments.insert_line.ok_or_else(|| missing("insert_line"))?;
            let mut text = arguments.insert_text.ok_or_else(|| missing("insert_text"))?;
            let Some(at) = usize::try_from(line).ok().filter(|at| *at <= lines.len()) else {
                return Err(format!(
                    "Error: Invalid `insert_line` parameter: {line}. It should be within the range of lines of the file: \
                     [0, {}]",
                    lines.len()
                ));
            };
            let (before, after) = lines.split_at(at);
            let mut edited = before.concat();
            if !edited.is_empty() && !edited.ends_with('\n') {
                edited.push('\n');
            }
            if !after.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            edited.push_str(&text);
            edited.push_str(&after.concat());
            Ok((format!("The file {path} has been edited."), vec![(path, Some(bounded(edited)?))]))
        }
        Command::Delete => {
            let path = path()?;
            if path == ROOT {
                return Err(format!("Error: {ROOT} itself cannot be deleted"));
            }
            let gone: Changes = below(tree, &path).map(|(path, _)| (path.clone(), None)).collect();
            if gone.is_empty() {
                return Err(format!("Error: The path {path} does not exist"));
            }
            Ok((format!("Successfully deleted {path}"), gone))
        }
        Command::Rename => {
            let old = checked(arguments.old_path.as_deref().ok_or_else(|| missing("old_path"))?)?;
            let new = checked(arguments.new_path.as_deref().ok_or_else(|| missing("new_path"))?)?;
            if old == ROOT || is_below(&new, &old) {
                return Err(format!("Error: {old} cannot be moved to {new}"));
            }
            if below(tree, &new).next().is_some() {
                return Err(format!("Error: The destination {new} already exists"));
            }
            placeable(tree, &new)?;
            let moved: Vec<(&String, &String)> = below(tree, &old).collect();
            if moved.is_empty() {
                return Err(format!("Error: The path {old} does not exist"));
            }
            let to = |path: &str| format!("{new}{}", &path[old.len()..]);
            if moved.iter().any(|(path, _)| to(path).len() > MAX_PATH) {
                return Err(format!("Error: a path has {MAX_PATH} bytes at most"));
            }
            let changes =
                moved.into_iter().flat_map(|(path, text)| [(to(path), Some(text.clone())), (path.clone(), None)]);
            Ok((format!("Successfully renamed {old} to {new}"), changes.collect()))
        }
    }
}

/// Checks a path below the root: nothing in it may point elsewhere.
fn checked(path: &str) -> Result<String, String> {
    let trimmed = path.trim_end_matches('/');
    let is_name = |name: &str| {
        !name.is_empty()
            && name != "."
            && name != ".."
            && !name.contains(['\\', '%'])
            && !name.chars().any(char::is_control)
    };
    let rest = trimmed.strip_prefix(ROOT).map(|rest| rest.strip_prefix('/').unwrap_or(rest));
    let is_inside = trimmed == ROOT || trimmed.starts_with(&format!("{ROOT}/"));
    if trimmed.len() > MAX_PATH {
        return Err(format!("Error: a path has {MAX_PATH} bytes at most"));
    }
    match rest {
        Some(rest) if is_inside && (rest.is_empty() || rest.split('/').all(is_name)) => Ok(trimmed.to_owned()),
        _ => Err(format!("Error: `{path}` is not a path below {ROOT}: it is names joined by `/`, without `..`")),
    }
}

fn bounded(text: String) -> Result<String, String> {
    match text.len() {
        0..=MAX_FILE => Ok(text),
        length => Err(format!("Error: the file would have {length} bytes; {MAX_FILE} is the maximum")),
    }
}

/// Checks that a file can be created at the path: not on a folder, and not inside a file.
fn placeable(tree: &Tree, path: &str) -> Result<(), String> {
    let above = path.match_indices('/').map(|(at, _)| &path[..at]).any(|above| tree.contains_key(above));
    match path == ROOT || above || below(tree, path).next().is_some() {
        true => Err(format!("Error: {path} is a folder, or lies inside a file")),
        false => Ok(()),
    }
}

fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn below<'t>(tree: &'t Tree, path: &str) -> impl Iterator<Item = (&'t String, &'t String)> {
    let path = path.to_owned();
    tree.iter().filter(move |(file, _)| is_below(file, &path))
}

fn file<'t>(tree: &'t Tree, path: &str) -> Result<&'t String, String> {
    let missing = || format!("Error: The path {path} does not exist. Please provide a valid path.");
    tree.get(path).ok_or_else(missing)
}

fn view(tree: &Tree, path: &str, range: Option<[i64; 2]>) -> Result<String, String> {
    if let Some(text) = tree.get(path) {
        let [first, last] = range.unwrap_or([1, -1]);
        let first = usize::try_from(first).unwrap_or(1).max(1);
        let last = usize::try_from(last).unwrap_or(usize::MAX);
        return Ok(format!("Here's the content of {path} with line numbers:\n{}", numbered(text, first, last)));
    }
    let mut sizes: BTreeMap<String, usize> = BTreeMap::new();
    for (file, text) in below(tree, path) {
        let rest = file[path.len()..].trim_start_matches('/');
        let mut at = path.to_owned();
        *sizes.entry(at.clone()).or_default() += text.len();
        for name in rest.split('/').take(2) {
            at = format!("{at}/{name}");
            *sizes.entry(at.clone()).or_default() += text.len();
        }
    }
    if sizes.is_empty() && path != ROOT {
        return Err(format!("The path {path} does not exist. Please provide a valid path."));
    }
    sizes.entry(path.to_owned()).or_default();
    let mut text = format!(
        "Here're the files and directories up to 2 levels deep in {path}, excluding hidden items and node_modules:"
    );
    for (path, bytes) in sizes {
        text.push_str(&format!("\n{bytes}B\t{path}"));
    }
    Ok(text)
}

fn numbered(text: &str, first: usize, last: usize) -> String {
    let lines = text.lines().zip(1..).filter(|(_, at)| (first..=last).contains(at));
    lines.map(|(line, at)| format!("{at:>6}\t{line}")).collect::<Vec<_>>().join("\n")
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}
