//! `init`, `add`, `remove`, `import`: edit the configuration file.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};
use toolwright::config::{Config, Layer, forget_secrets, keep_secrets, masked, names_variable, secret_file, user_file};
use toolwright::core::pattern::nearest;
use toolwright::gateway::ServerConfig;
use toolwright::import::edit::{EditError, Entries, add_servers, entries_of, remove_entry};
use toolwright::import::{Source, is_toolwright, take_secrets};
use toolwright::models::endpoints_from_env;
use toolwright::trust::TrustStore;

use crate::app::trust::{target, write};
use crate::app::{GlobalOptions, cwd, read, variable};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::screen::{WARN, has_invisible, one_line, print_json, sanitize, say, say_warning, styled};
use crate::values::{ImportSource, import_source};

/// The content that `init` writes.
const STARTER: &str = "\
# Configuration of Toolwright. Every section may be left out; `toolwright config schema` lists all keys,
# `toolwright doctor` checks this file and everything it names.

# MCP servers. A block from another client's configuration pastes in here unchanged; `toolwright add`
# and `toolwright import` write here too. ${VAR} is filled in from the environment.
mcpServers:
#  git:
#    command: uvx
#    args: [mcp-server-git]

# Which calls may run: the first rule that matches decides; where none does, the profile does.
policy:
#  rules:
#    - effect: deny
#      tool: \"*:delete_*\"
";

#[derive(Debug, Args)]
pub(crate) struct Add {
    /// Name; it becomes the prefix of the server's tools.
    pub(crate) name: String,
    /// Address of a server that speaks streamable HTTP.
    #[arg(long, conflicts_with = "command")]
    pub(crate) url: Option<String>,
    /// Header of every request (repeatable).
    #[arg(long, value_name = "NAME: VALUE", requires = "url")]
    pub(crate) header: Vec<String>,
    /// Environment variable of the process (repeatable).
    #[arg(long, value_name = "NAME=VALUE", conflicts_with = "url")]
    pub(crate) env: Vec<String>,
    /// Folder the process runs in.
    #[arg(long, value_name = "DIR", conflicts_with = "url")]
    pub(crate) cwd: Option<String>,
    #[command(flatten)]
    pub(crate) target: EntryTarget,
    /// Program and arguments of a server that speaks on its standard streams.
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

/// Where entries are written, and what becomes of secrets in them.
#[derive(Debug, Args)]
pub(crate) struct EntryTarget {
    /// Writes your own configuration, which applies in every folder: toolwright/toolwright.yaml in $XDG_CONFIG_HOME,
    /// else in ~/.config. Default: the file of --config, else toolwright.yaml in the current folder.
    #[arg(long)]
    pub(crate) user: bool,
    /// Leaves tokens and passwords in the configuration. Default: the entry names a variable, and its value goes to
    /// secrets.env beside your own configuration, which only you can read.
    #[arg(long)]
    pub(crate) inline_secrets: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The client, or `openapi`.
    #[arg(value_parser = import_source())]
    pub(crate) source: ImportSource,
    /// The client's file. Default: where the client keeps it. For `openapi`: the document, a file or an http(s)
    /// address.
    #[arg(value_name = "FILE|URL")]
    pub(crate) file: Option<PathBuf>,
    /// Only shows what would be added.
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) target: EntryTarget,
    #[command(flatten)]
    pub(crate) document: DocumentOptions,
}

/// What only `openapi` has.
#[derive(Debug, Args)]
#[command(next_help_heading = "Options of `openapi`")]
pub(crate) struct DocumentOptions {
    /// Namespace of the tools. Default: the document's file name or host.
    #[arg(long, value_name = "NAME")]
    pub(crate) prefix: Option<String>,
    /// Only operations with this tag, as a glob (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub(crate) tag: Vec<String>,
    /// Only operations of this method (repeatable).
    #[arg(long, value_name = "METHOD")]
    pub(crate) method: Vec<String>,
    /// Address of the API, instead of the document's servers.
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: Option<String>,
    /// Groups the tools by their first tag.
    #[arg(long)]
    pub(crate) group_by_tag: bool,
}

impl DocumentOptions {
    /// Returns the first option that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let given = [
            ("--prefix", self.prefix.is_some()),
            ("--tag", !self.tag.is_empty()),
            ("--method", !self.method.is_empty()),
            ("--base-url", self.base_url.is_some()),
            ("--group-by-tag", self.group_by_tag),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(option, _)| option)
    }
}

pub(super) fn text_of(path: &Path) -> Result<String, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(Failure::usage(format!("{}: {error}", path.display()))),
    }
}

pub(super) fn at(path: &Path) -> impl Fn(EditError) -> Failure {
    move |error| Failure::usage(format!("{}: {error}", path.display()))
}

fn done(global: &GlobalOptions, path: &Path, verb: &str, names: &[&str]) -> CommandResult {
    if global.json {
        print_json(&json!({"file": path, verb: names}))?;
    } else {
        say(format_args!("{verb} {} in {}", names.join(", "), path.display()));
    }
    Ok(Exit::Ok)
}

pub(crate) fn init(global: &GlobalOptions) -> CommandResult {
    let path = match &global.config {
        Some(_) => target(global, false)?,
        None => cwd()?.join("toolwright.yaml"),
    };
    if path.exists() {
        return Err(Failure::usage(format!("{} exists already and was not changed", path.display())));
    }
    write(global, &path, STARTER)?;
    if global.json {
        print_json(&json!({ "file": path }))?;
    } else {
        say(format_args!("wrote {}; next: toolwright add NAME -- COMMAND…, or toolwright serve", path.display()));
    }
    Ok(Exit::Ok)
}

pub(crate) fn add(global: &GlobalOptions, add: &Add) -> CommandResult {
    let path = target(global, add.target.user)?;
    check_name(&add.name)?;
    let mut entries = [(add.name.clone(), entry_of(add)?)];
    let secrets = ExtractedSecrets::of(&mut entries, &add.target);
    let text = add_servers(&text_of(&path)?, &entries).map_err(at(&path))?;
    secrets.keep()?;
    write(global, &path, &text)?;
    if !global.json {
        secrets.say("are kept in");
    }
    warn_of_repository(&path, &entries);
    let config = read(global)?;
    let field = format!("mcp_servers.{}", add.name);
    for problem in config
        .problems
        .iter()
        .filter(|problem| problem.field == field || problem.field.starts_with(&format!("{field}.")))
    {
        say_warning(&sanitize(&problem.to_string()));
    }
    done(global, &path, "added", &[&add.name])
}

fn check_name(name: &str) -> Result<(), Failure> {
    if name.trim().is_empty() || name.trim() != name || has_invisible(name) {
        return Err(Failure::usage(format!(
            "`{}` is not a name for a server: give letters, digits, - or _, like `toolwright add git -- uvx mcp-server-git`",
            one_line(name, 40)
        )));
    }
    Ok(())
}

/// Checks an address. Addresses with variables are checked after expansion.
fn check_url(url: &str) -> Result<(), Failure> {
    let is_http = |url: url::Url| matches!(url.scheme(), "http" | "https") && url.has_host();
    if url.contains("${") || url::Url::parse(url).is_ok_and(is_http) {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "`{}` is not the address of a server: write it like https://host/mcp",
        one_line(url, 100)
    )))
}

fn entry_of(add: &Add) -> Result<Value, Failure> {
    let mut entry = Map::new();
    if let Some(url) = &add.url {
        check_url(url)?;
        entry.insert("url".into(), json!(url));
        put_pairs(&mut entry, "headers", &add.header, ':')?;
        return Ok(entry.into());
    }
    let Some((command, args)) = add.command.split_first().filter(|(command, _)| !command.trim().is_empty()) else {
        return Err(Failure::usage("give the server's command after `--`, or its address with --url"));
    };
    entry.insert("command".into(), json!(command));
    if !args.is_empty() {
        entry.insert("args".into(), json!(args));
    }
    put_pairs(&mut entry, "env", &add.env, '=')?;
    if let Some(cwd) = &add.cwd {
        entry.insert("cwd".into(), json!(cwd));
    }
    Ok(entry.into())
}

fn put_pairs(entry: &mut Map<String, Value>, key: &str, pairs: &[String], separator: char) -> Result<(), Failure> {
    let mut map = Map::new();
    for pair in pairs {
        let Some((name, value)) = pair.split_once(separator).filter(|(name, _)| !name.trim().is_empty()) else {
            return Err(Failure::usage(format!("`{}` is not NAME{separator}VALUE", one_line(pair, 20))));
        };
        map.insert(name.trim().to_owned(), json!(value.trim()));
    }
    if !map.is_empty() {
        entry.insert(key.into(), map.into());
    }
    Ok(())
}

pub(crate) fn remove(global: &GlobalOptions, name: &str) -> CommandResult {
    let config = read(global)?;
    let candidates: Vec<PathBuf> = match &global.config {
        Some(_) => vec![target(global, false)?],
        None => {
            config.candidates.iter().map(|layer: &Layer| layer.path.clone()).filter(|path| path.is_file()).collect()
        }
    };
    let mut known: Vec<String> = Vec::new();
    for path in &candidates {
        let text = text_of(path)?;
        let entries = entries_of(&text).map_err(at(path))?;
        let is_meant = |(section, entry): &&(Entries, String)| {
            entry == name || name.strip_prefix(section.key()).and_then(|rest| rest.strip_prefix('.')) == Some(entry)
        };
        let meant: Vec<&(Entries, String)> = entries.iter().filter(is_meant).collect();
        match meant[..] {
            [] => known.extend(entries.into_iter().map(|(_, entry)| entry)),
            [(section, entry)] => {
                write(global, path, &remove_entry(&text, *section, entry).map_err(at(path))?)?;
                let forgotten = forget(&config, &text, &candidates)?;
                if global.json {
                    let mut answer = json!({"file": path, "removed": [entry]});
                    if let Some((file, names)) = forgotten {
                        answer["secrets"] = json!({"file": file, "variables": names});
                    }
                    print_json(&answer)?;
                    return Ok(Exit::Ok);
                }
                if let Some((file, names)) = forgotten {
                    say(format_args!(
                        "the values of {} are removed from {}: no configuration names them any more",
                        names.join(", "),
                        file.display()
                    ));
                }
                return done(global, path, "removed", &[entry]);
            }
            _ => {
                let all = meant.iter().map(|(section, entry)| format!("{}.{entry}", section.key()));
                let all = all.collect::<Vec<_>>().join(" or ");
                return Err(Failure::usage(format!("{}: `{name}` is there twice: say {all}", path.display())));
            }
        }
    }
    let looked = candidates.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    let places =
        if looked.is_empty() { "there is no configuration file".to_owned() } else { format!("looked in {looked}") };
    let near = nearest(name, known.iter().map(String::as_str)).map(|near| format!("did you mean `{near}`? "));
    let near = near.unwrap_or_default();
    Err(Failure::not_found(format!("no server, document, catalogue or tool is called `{name}`; {near}{places}")))
}

/// Removes the secrets that a file named before an edit and that nothing names now: no file that is read, none that is
/// approved in any folder, and no model provider that finds its key itself. Returns their file and their names.
fn forget(config: &Config, before: &str, files: &[PathBuf]) -> Result<Option<(PathBuf, Vec<String>)>, Failure> {
    let Some(file) = secret_file(&variable) else { return Ok(None) };
    let mut texts = TrustStore::in_state(&config.state_dir).texts();
    for path in files.iter().cloned().chain(user_file(&variable)) {
        texts.push(text_of(&path)?);
    }
    let asked = RefCell::new(Vec::new());
    let _ = endpoints_from_env(&|name| {
        asked.borrow_mut().push(name.to_owned());
        None
    });
    texts.append(&mut asked.into_inner());
    let is_named = |name: &str| texts.iter().any(|text| names_variable(text, name));
    let failed = |error| Failure::usage(format!("{}: cannot be written: {error}", file.display()));
    let gone = forget_secrets(&file, before, &is_named).map_err(failed)?;
    Ok((!gone.is_empty()).then_some((file, gone)))
}

/// Returns the addresses of a Toolwright with this configuration, and the default ones.
fn own_addresses(global: &GlobalOptions) -> Result<Vec<SocketAddr>, Failure> {
    let configured = read(global)?.sections.server.http;
    let http = [configured, ServerConfig::default().http];
    Ok(http.iter().filter_map(|address| address.parse().ok()).collect())
}

pub(crate) fn import(global: &GlobalOptions, import: &Import, source: Source) -> CommandResult {
    if let Some(option) = import.document.given() {
        return Err(Failure::usage(format!("{option} is for `import openapi`: servers keep the names that they have")));
    }
    let cwd = cwd()?;
    let file = match &import.file {
        Some(file) => cwd.join(file),
        None => source.find(&cwd, &variable).map_err(Failure::usage)?,
    };
    let imported = source.read(&file, &cwd).map_err(Failure::usage)?;
    let path = target(global, import.target.user)?;
    let text = text_of(&path)?;
    let mut notes = imported.notes;
    let mut fresh = Vec::new();
    let addresses = own_addresses(global)?;
    for (name, entry) in imported.servers {
        if is_toolwright(&entry, &addresses, &variable) {
            notes.push(format!("{name}: left out: it is Toolwright itself"));
            continue;
        }
        match add_servers(&text, &[(name.clone(), entry.clone())]) {
            Ok(_) => fresh.push((name, entry)),
            Err(EditError::Exists(_)) => {
                notes.push(format!("{name}: left out: {} has a server of that name", path.display()))
            }
            Err(error) => return Err(at(&path)(error)),
        }
    }
    let secrets = ExtractedSecrets::of(&mut fresh, &import.target);
    let shown: Map<String, Value> = fresh.iter().map(|(name, entry)| (name.clone(), masked(entry))).collect();
    let written = !import.dry_run && !fresh.is_empty();
    if written {
        let text = add_servers(&text, &fresh).map_err(at(&path))?;
        secrets.keep()?;
        write(global, &path, &text)?;
    }
    if global.json {
        let mut done = json!({"source": file, "file": path, "written": written, "servers": shown, "notes": notes});
        if let Some(kept) = secrets.to_json() {
            done["secrets"] = kept;
        }
        print_json(&done)?;
        return Ok(Exit::Ok);
    }
    let verb = if import.dry_run { "would add" } else { "added" };
    for (name, entry) in &shown {
        say(sanitize(&format!("{verb} {name}: {entry}")));
    }
    for note in &notes {
        say(styled(WARN, format_args!("note: {}", sanitize(note))));
    }
    secrets.say(if import.dry_run { "would be kept in" } else { "are kept in" });
    warn_of_repository(&path, &fresh);
    if fresh.is_empty() {
        say(format_args!("nothing to add from {}", file.display()));
    } else {
        say(format_args!("{verb} {} of {} to {}", fresh.len(), file.display(), path.display()));
    }
    Ok(Exit::Ok)
}

/// Secrets removed from entries, and their file.
struct ExtractedSecrets {
    file: PathBuf,
    taken: Vec<(String, String)>,
}

impl ExtractedSecrets {
    /// Removes the secrets from the entries, unless they must stay or there is no home to store them.
    fn of(entries: &mut [(String, Value)], target: &EntryTarget) -> Self {
        let file = secret_file(&variable).filter(|_| !target.inline_secrets);
        let mut secrets = Self { taken: Vec::new(), file: file.clone().unwrap_or_default() };
        for (name, entry) in entries.iter_mut().filter(|_| file.is_some()) {
            let known = |name: &str| {
                let ours = secrets.taken.iter().find(|(have, _)| have == name).map(|(_, value)| value.clone());
                ours.or_else(|| variable(name))
            };
            let taken = take_secrets(name, entry, &known);
            secrets.taken.extend(taken);
        }
        secrets
    }

    /// Stores them, before the entries that name them are written.
    fn keep(&self) -> Result<(), Failure> {
        if self.taken.is_empty() {
            return Ok(());
        }
        let refused = |error| Failure::usage(format!("{}: cannot be written: {error}", self.file.display()));
        keep_secrets(&self.file, &self.taken).map_err(refused)
    }

    fn names(&self) -> Vec<&str> {
        self.taken.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn say(&self, verb: &str) {
        if !self.taken.is_empty() {
            say(format_args!("the values of {} {verb} {}, yours alone", self.names().join(", "), self.file.display()));
        }
    }

    fn to_json(&self) -> Option<Value> {
        (!self.taken.is_empty()).then(|| json!({"file": self.file, "variables": self.names()}))
    }
}

/// Warns if secrets stay in a file of a git repository.
fn warn_of_repository(path: &Path, entries: &[(String, Value)]) {
    let holds = |(name, entry): &(String, Value)| !take_secrets(name, &mut entry.clone(), &|_| None).is_empty();
    let Some(repository) = path.ancestors().skip(1).find(|folder| folder.join(".git").exists()) else { return };
    if entries.iter().any(holds) {
        say(styled(
            WARN,
            format_args!(
                "{} lies in the git repository {} and holds secrets: do not commit it; --user writes your own configuration, and without --inline-secrets the file holds none",
                path.display(),
                repository.display()
            ),
        ));
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use toolwright::config::LayerKind;

    #[test]
    fn the_starter_is_a_configuration_without_faults() {
        let folder = tempfile::tempdir().expect("folder");
        let file = folder.path().join("toolwright.yaml");
        std::fs::write(&file, STARTER).expect("file");
        let options = toolwright::config::LoadOptions { cwd: folder.path().to_owned(), ..Default::default() };
        let config = toolwright::config::load(&options, &|_| None);
        assert!(config.problems.is_empty(), "{:?}", config.problems);
        assert!(config.candidates.iter().any(|layer| layer.kind == LayerKind::Project));
        assert!(add_servers(STARTER, &[("git".into(), json!({"command": "x"}))]).is_ok());
    }
}
