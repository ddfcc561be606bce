//! Variables: `${VAR}`, `${VAR:-default}` and `${env:VAR}` are expanded where the schema allows it, from the
//! environment or the user's file of secrets. `${parameters.x}` belongs to REST templates and is left unchanged; `$${`
//! is a literal `${`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde_json::Value;
use toolwright_runtime::queue::DEFAULT_QUEUE;

use super::check::{branch, section_schema};
use crate::config::files::node::{Data, Member, Node, Problem, Severity, SourceLocation};
use crate::config::files::{FileNames, Variables, config_home};
use crate::private_file::{self, OtherUsersAccess, write_atomically};
use crate::secrets::{describes_environment, looks_secret, secrets_in_address, secrets_in_arguments, without_scheme};

/// Schema keyword: variables are expanded here. Its value is the purpose of the text: a `setting`, a `path`, a
/// command-line `argument`, the value of a `pair` (a header, an environment variable), a `secret` of ours, or the value
/// of an `own_pair`, which is secret if its name says so.
const VARIABLES: &str = "x-variables";

/// Inputs and results of resolving entries.
pub(crate) struct ResolveScope<'a> {
    /// The files' names in the names of sources.
    pub(crate) places: &'a FileNames,
    pub(crate) variables: Variables<'a>,
    pub(crate) queues: &'a [String],
    /// The default working directory of servers.
    pub(crate) root: &'a Path,
    pub(crate) secrets: &'a mut Vec<String>,
    /// Variables that contain keys of ours.
    pub(crate) key_variables: &'a mut Vec<String>,
    /// The effect of an unset variable.
    pub(crate) fault: Severity,
    /// Whether a text that cannot be expanded counts as empty.
    pub(crate) empties: bool,
    pub(crate) problems: &'a mut Vec<Problem>,
}

/// The purpose of a string, which determines whether it may be secret.
#[derive(Clone, Copy)]
pub(crate) enum StringUse<'a> {
    /// A plain setting.
    Setting,
    /// A command-line argument.
    Argument,
    /// The value of this header or environment variable.
    Pair(&'a str),
    /// Like a pair of this name, but only for us: children do not inherit the variables in it.
    OwnKey(&'a str),
}

impl ResolveScope<'_> {
    /// Expands the settings that are not entries. A text that cannot be expanded counts as empty, and is reported.
    pub(crate) fn fill_settings(&mut self, merged: &mut Node) {
        let Data::Map(sections) = &mut merged.data else { return };
        for section in sections {
            let Data::Map(members) = &mut section.value.data else { continue };
            let schema = section_schema(&section.key);
            // Without its token a server would be open to others.
            self.fault = if section.key == "server" { Severity::Error } else { Severity::EntryDisabled };
            self.empties = true;
            for member in members {
                let below = &schema["properties"][&member.key];
                let below = if below.is_null() { &schema["additionalProperties"] } else { below };
                self.fill_in(&mut member.value, below, &member.at, &format!("{}.{}", section.key, member.key));
            }
        }
        (self.fault, self.empties) = (Severity::EntryDisabled, false);
    }

    /// Expands the texts in `node`, by its schema. Each fault is reported for `field` at the place `at`.
    pub(crate) fn fill_in(&mut self, node: &mut Node, schema: &Value, at: &SourceLocation, field: &str) {
        if let Some(purpose) = schema.get(VARIABLES).and_then(Value::as_str) {
            self.fill_texts(node, purpose, "", at, field);
            return;
        }
        let schema = branch(node, schema);
        match &mut node.data {
            Data::Map(members) => {
                for member in members {
                    let property = schema.get("properties").and_then(|properties| properties.get(&member.key));
                    let Some(below) = property.or_else(|| schema.get("additionalProperties")) else { continue };
                    self.fill_in(&mut member.value, below, at, &format!("{field}.{}", member.key));
                }
            }
            Data::List(items) => {
                let below = schema.get("items").unwrap_or(&Value::Null);
                items.iter_mut().for_each(|item| self.fill_in(item, below, at, field));
            }
            _ => {}
        }
    }

    fn fill_texts(&mut self, node: &mut Node, purpose: &str, key: &str, at: &SourceLocation, field: &str) {
        match &mut node.data {
            Data::Text(text) => {
                let holds = match purpose {
                    "argument" => StringUse::Argument,
                    "pair" => StringUse::Pair(key),
                    "secret" => StringUse::OwnKey("secret"),
                    "own_pair" if key.is_empty() => StringUse::OwnKey(field.rsplit('.').next().unwrap_or_default()),
                    "own_pair" => StringUse::OwnKey(key),
                    _ => StringUse::Setting,
                };
                if let Some(rest) = text.strip_prefix("~/").filter(|_| purpose == "path") {
                    *text = format!("${{HOME}}/{rest}");
                }
                let before = self.problems.len();
                self.fill(at, field, text, holds);
                if self.empties && self.problems.len() > before {
                    text.clear();
                }
            }
            Data::List(items) => {
                items.iter_mut().for_each(|item| self.fill_texts(item, purpose, key, at, field));
                if purpose == "path" {
                    items.retain(|item| item.text().is_some_and(|path| !path.is_empty()));
                }
                let texts: Vec<&str> = items.iter().filter_map(Node::text).collect();
                if purpose == "argument" {
                    for (part, text) in secrets_in_arguments(&texts).into_iter().zip(texts) {
                        if let Some(part) = part.filter(|part| part.is_certain) {
                            note(without_scheme(&text[part.range]), self.secrets);
                        }
                    }
                }
            }
            Data::Map(members) => {
                for member in members {
                    let field = format!("{field}.{}", member.key);
                    // Values below a pair are part of it.
                    let key = if key.is_empty() { member.key.as_str() } else { key };
                    self.fill_texts(&mut member.value, purpose, key, at, &field);
                }
            }
            _ => {}
        }
    }

    /// Reads an entry of `section` as its type, and expands its variables; `None`, with the reason among the problems,
    /// if it is invalid.
    pub(crate) fn entry<T: DeserializeOwned>(
        &mut self,
        member: &mut Member,
        schema: &Value,
        section: &str,
    ) -> Option<T> {
        let before = self.problems.len();
        self.fill_in(&mut member.value, schema, &member.at, &format!("{section}.{}", member.key));
        if self.problems.len() == before { self.read(member, section) } else { None }
    }

    /// Reads an entry of `section` whose variables are expanded; `None`, with the reason among the problems, if it is
    /// invalid.
    pub(crate) fn read<T: DeserializeOwned>(&mut self, member: &Member, section: &str) -> Option<T> {
        let compare = "compare it with `toolwright config schema`";
        serde_json::from_value(member.value.to_value())
            .map_err(|error| {
                self.leave_out(&member.at, &format!("{section}.{}", member.key), error.to_string(), compare)
            })
            .ok()
    }

    /// Expands a string of an entry in place. A fault leaves the entry out.
    pub(crate) fn fill(&mut self, at: &SourceLocation, field: &str, text: &mut String, holds: StringUse<'_>) {
        match expand(text, self.variables) {
            Ok(expanded) => {
                note_secrets(&expanded, holds, self.secrets);
                if let StringUse::OwnKey(_) = holds {
                    self.key_variables.extend(key_variables(&expanded));
                }
                *text = expanded.text;
            }
            Err(error) => {
                self.problems.push(Problem::new(self.fault, at, field, error.to_string(), error.remedy()));
            }
        }
    }

    /// Reports a fault that leaves the entry out.
    pub(crate) fn leave_out(&mut self, at: &SourceLocation, field: &str, message: String, remedy: impl Into<String>) {
        self.problems.push(Problem::new(Severity::EntryDisabled, at, field, message, remedy));
    }

    /// Checks that a queue is defined. Otherwise the calls would not be limited as intended.
    pub(crate) fn check_queue(&mut self, at: &SourceLocation, field: &str, queue: &str) {
        if queue == DEFAULT_QUEUE || self.queues.iter().any(|known| known == queue) {
            return;
        }
        let near = toolwright_core::pattern::nearest(queue, self.queues.iter().map(String::as_str));
        let remedy = near.map_or_else(|| format!("define `queues.{queue}`"), |near| format!("did you mean `{near}`?"));
        let message = format!("there is no queue called `{queue}`");
        self.problems.push(Problem::new(Severity::Error, at, field, message, remedy));
    }
}

/// Collects values that must not be printed: values of variables in headers and environment, values whose key names a
/// secret, and passwords in addresses.
fn note_secrets(expanded: &Expanded, holds: StringUse<'_>, secrets: &mut Vec<String>) {
    for (name, value) in &expanded.used {
        let secret = match holds {
            StringUse::Pair(_) | StringUse::OwnKey(_) => !describes_environment(name),
            StringUse::Setting | StringUse::Argument => looks_secret(name),
        };
        if secret {
            note(value, secrets);
        }
    }
    // Remaining placeholders are filled in by a call.
    if expanded.text.contains("${") {
        return;
    }
    if let StringUse::Pair(key) | StringUse::OwnKey(key) = holds
        && looks_secret(key)
    {
        note(without_scheme(&expanded.text), secrets);
    }
    for part in secrets_in_address(&expanded.text).into_iter().filter(|part| part.is_certain) {
        note(&expanded.text[part.range], secrets);
    }
}

/// Returns the variables that contain a key of ours or a part of it.
fn key_variables(expanded: &Expanded) -> impl Iterator<Item = String> {
    expanded.used.iter().filter(|(name, _)| !describes_environment(name)).map(|(name, _)| name.clone())
}

/// Adds a new secret.
fn note(value: &str, secrets: &mut Vec<String>) {
    if !value.is_empty() && !secrets.iter().any(|have| have == value) {
        secrets.push(value.to_owned());
    }
}

/// A string after expansion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expanded {
    pub(crate) text: String,
    /// Name and value of every variable in it.
    pub(crate) used: Vec<(String, String)>,
}

/// The reason why a string cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExpandError {
    #[error("the variable {0} is not set")]
    Missing(String),
    #[error("`${{{0}}}` is a placeholder of another program")]
    Foreign(String),
    #[error("`${{` is not closed")]
    Unclosed,
}

impl ExpandError {
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::Missing(name) => format!("set {name}, or write ${{{name}:-default}}"),
            Self::Foreign(_) => "write the value, ${VAR} for an environment variable, or $${ for a plain ${".to_owned(),
            Self::Unclosed => "add the closing `}`".to_owned(),
        }
    }
}

/// Expands one string once: values of variables are not expanded again.
pub(crate) fn expand(text: &str, variables: Variables<'_>) -> Result<Expanded, ExpandError> {
    let mut out = String::with_capacity(text.len());
    let mut used = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let body = &rest[start + 2..];
        if let Some(before) = rest[..start].strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = body;
            continue;
        }
        out.push_str(&rest[..start]);
        let end = body.find('}').ok_or(ExpandError::Unclosed)?;
        let expression = &body[..end];
        rest = &body[end + 1..];
        if expression.starts_with("parameters.") {
            out.push_str("${");
            out.push_str(expression);
            out.push('}');
            continue;
        }
        let (name, default) = match expression.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (expression, None),
        };
        let name = name.strip_prefix("env:").unwrap_or(name);
        if !is_name(name) {
            return Err(ExpandError::Foreign(expression.to_owned()));
        }
        // As in a shell: with a default, an empty variable counts as unset.
        let value = variables(name).filter(|value| default.is_none() || !value.is_empty());
        match (value, default) {
            (Some(value), _) => {
                out.push_str(&value);
                used.push((name.to_owned(), value));
            }
            (None, Some(default)) => out.push_str(default),
            (None, None) => return Err(ExpandError::Missing(name.to_owned())),
        }
    }
    out.push_str(rest);
    Ok(Expanded { text: out, used })
}

pub(in crate::config) fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// The most bytes of the file that are read.
const MAX_FILE: u64 = 1 << 20;

/// Returns a variable of the environment, or else of the user's file of secrets. A non-Unicode value counts as unset.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    environment(name).or_else(|| stored(name))
}

/// Returns a variable of the environment.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Returns a stored secret. The file is read again only after a change.
fn stored(name: &str) -> Option<String> {
    static READ: Mutex<Option<(Version, BTreeMap<String, String>)>> = Mutex::new(None);
    let version = Version::of(secret_file(&environment)?)?;
    let mut read = READ.lock().unwrap_or_else(PoisonError::into_inner);
    let secrets = match read.take() {
        Some((known, secrets)) if known == version => secrets,
        _ => secrets_in(&version.path),
    };
    let value = secrets.get(name).cloned();
    *read = Some((version, secrets));
    value
}

/// Identifies a version of the file's content and permissions.
#[derive(Debug, PartialEq, Eq)]
struct Version {
    path: PathBuf,
    length: u64,
    changed: Option<SystemTime>,
    #[cfg(unix)]
    inode: (u64, i64, i64),
}

impl Version {
    fn of(path: PathBuf) -> Option<Self> {
        let metadata = std::fs::metadata(&path).ok()?;
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt as _;
        Some(Self {
            path,
            length: metadata.len(),
            changed: metadata.modified().ok(),
            #[cfg(unix)]
            inode: (metadata.ino(), metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// Reads all variables of a file; empty, with a warning, if the file is not private to the user.
fn secrets_in(path: &Path) -> BTreeMap<String, String> {
    let text = read_secrets(path).unwrap_or_else(|error| {
        tracing::warn!("{}: these secrets are not used: {error}", path.display());
        String::new()
    });
    // Of two lines with the same name the last counts.
    let of = |line: &str| {
        let (key, value) = line.trim().split_once('=')?;
        Some((key.trim_end().to_owned(), read_value(value.trim())))
    };
    text.lines().filter_map(of).collect()
}

fn read_secrets(path: &Path) -> std::io::Result<String> {
    private_file::read(path, OtherUsersAccess::Nothing, MAX_FILE)
}

/// Returns the path of the file; `None` without a home.
#[must_use]
pub fn secret_file(variables: Variables<'_>) -> Option<PathBuf> {
    Some(config_home(variables)?.join("toolwright/secrets.env"))
}

/// Adds these variables to the file at `path` atomically; existing ones get the new value.
///
/// # Errors
/// Errors of the file system; an invalid name of a variable.
pub fn keep_secrets(path: &Path, secrets: &[(String, String)]) -> std::io::Result<()> {
    let before = match read_secrets(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            "# Secrets that configurations of Toolwright name as ${NAME}. Yours alone.\n".to_owned()
        }
        Err(error) => return Err(error),
    };
    let mut text = without_parts(&before, &|name| secrets.iter().any(|(replaced, _)| replaced == name));
    for (name, value) in secrets {
        if !is_name(name) {
            return Err(std::io::Error::other(format!("`{name}` is not the name of a variable")));
        }
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}={}", written_value(value));
    }
    write_private(path, &text)
}

/// Removes the variables that an edit removed from a configuration: those in the text `before` for which `is_named`
/// returns that nothing else names them. Returns their names.
///
/// # Errors
/// Errors of the file system.
pub fn forget_secrets(path: &Path, before: &str, is_named: &dyn Fn(&str) -> bool) -> std::io::Result<Vec<String>> {
    let text = match read_secrets(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut gone: Vec<String> = text.lines().filter_map(name_of).map(str::to_owned).collect();
    gone.sort_unstable();
    gone.dedup();
    gone.retain(|name| names_variable(before, name) && !is_named(name));
    if !gone.is_empty() {
        write_private(path, &without_parts(&text, &|name| gone.iter().any(|gone| gone == name)))?;
    }
    Ok(gone)
}

/// Returns whether a text contains the name of a variable as a word, in `${NAME}` or alone.
#[must_use]
pub fn names_variable(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part))
}

/// Returns the name of the variable that a line sets.
fn name_of(line: &str) -> Option<&str> {
    line.split_once('=').map(|(key, _)| key.trim()).filter(|name| is_name(name))
}

fn without_parts(text: &str, is_left_out: &dyn Fn(&str) -> bool) -> String {
    let stays = |line: &&str| !name_of(line).is_some_and(is_left_out);
    text.lines().filter(stays).flat_map(|line| [line, "\n"]).collect()
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    write_atomically(path, text)?;
    #[cfg(unix)]
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(())
}

/// Writes a value plain if it is read back unchanged, else as a JSON string.
fn written_value(value: &str) -> String {
    let is_plain = value.trim() == value && !value.starts_with('"') && !value.chars().any(char::is_control);
    if is_plain { value.to_owned() } else { Value::String(value.to_owned()).to_string() }
}

fn read_value(written: &str) -> String {
    serde_json::from_str::<String>(written).unwrap_or_else(|_| written.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<&str, &str>) {
        let variables = |name: &str| match name {
            "A" => Some("1".to_owned()),
            "B" => Some("${A}".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        match (expand(text, &variables), expect) {
            (Ok(got), Ok(want)) => assert_eq!(got.text, want, "{text}"),
            (Err(error), Err(fragment)) => assert!(error.to_string().contains(fragment), "{text}: {error}"),
            (got, want) => panic!("{text}: got {got:?}, want {want:?}"),
        }
    }

    #[test]
    fn variables_expand_once() {
        check("x${A}y${env:A}", Ok("x1y1"));
        check("${B}", Ok("${A}"));
        check("${C:-d}${A:-d}${EMPTY:-e}${EMPTY}", Ok("d1e"));
        check("${C:-}", Ok(""));
        check("${parameters.id}/${A}", Ok("${parameters.id}/1"));
        check("$A {A} plain", Ok("$A {A} plain"));
        check("echo $${A%x} ${A}", Ok("echo ${A%x} 1"));
        check("${C}", Err("variable C is not set"));
        check("${input:token}", Err("placeholder of another program"));
        check("${A", Err("not closed"));
    }

    #[test]
    fn stored_secrets_read_back_and_are_private() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("toolwright/secrets.env");
        let secrets = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>()
        };
        keep_secrets(&path, &secrets(&[("A", "plain=#x"), ("B", " a\nb\"")])).expect("kept");
        keep_secrets(&path, &secrets(&[("A", "\"new\"")])).expect("kept");
        let text = std::fs::read_to_string(&path).expect("file");
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
            line.map(read_value)
        };
        assert_eq!((value("A"), value("B")), (Some("\"new\"".into()), Some(" a\nb\"".into())), "{text}");
        assert!(keep_secrets(&path, &secrets(&[("A B", "x")])).is_err());
        let forget = |before: &str, named: &str| forget_secrets(&path, before, &|name| names_variable(named, name));
        assert_eq!(forget("${A} ${B:-x} ${C}", "x: ${B}").expect("written"), ["A"]);
        assert_eq!(forget("${BB} ${_B}", "").expect("written"), Vec::<String>::new());
        let text = std::fs::read_to_string(&path).expect("file");
        assert!(text.starts_with('#') && !text.contains("A=") && text.contains("B="), "{text}");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt as _;
            assert_eq!(std::fs::metadata(&path).expect("file").permissions().mode() & 0o777, 0o600);
            assert_eq!(secrets_in(&path).len(), 1);
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("mode");
            assert!(secrets_in(&path).is_empty(), "others may read it");
        }
    }
}
