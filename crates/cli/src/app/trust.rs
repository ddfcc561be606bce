//! `trust`: shows the effects of a project's configuration, and approves it. Other commands ask the same question at a
//! terminal when they find an unapproved file.

use std::io::{BufRead as _, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Value, json};
use toolwright::config::{Config, LayerKind, LoadOptions, load, user_file};
use toolwright::sandbox::is_nested;
use toolwright::trust::{
    Approval, Change, ProjectTrust, TrustState, TrustStore, is_project_file, judge, write_approved,
    write_approved_agent,
};

use crate::app::{GlobalOptions, cwd, not_nested, options, read, variable};
use crate::exit::{CommandResult, Exit, Failure};
use crate::terminal::screen::{
    BOLD, WARN, is_interactive, one_line, print_json, print_text, sanitize, say, say_warning, styled,
};

/// The most characters of a changed value that are shown.
const MAX_VALUE: usize = 400;
/// The most characters before the first difference.
const MAX_BEFORE: usize = 60;

#[derive(Debug, Args)]
pub(crate) struct Trust {
    /// The file, or its folder. Default: the project's files, searched from the current folder up.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Shows what the file would start and change, and approves nothing.
    #[arg(long, conflicts_with_all = ["yes", "revoke"])]
    show: bool,
    /// Approves without a question, for scripts.
    #[arg(long, conflicts_with = "revoke")]
    yes: bool,
    /// Withdraws the approval.
    #[arg(long)]
    revoke: bool,
}

pub(crate) fn command(global: &GlobalOptions, trust: &Trust) -> CommandResult {
    let options = LoadOptions { config: None, ..options(global)? };
    let config = load(&options, &variable);
    let store = TrustStore::in_state(&config.state_dir);
    let files = match &trust.file {
        Some(file) => named(&options.cwd.join(file))?,
        None => of_project(&config),
    };
    if trust.revoke {
        return revoke(global, &files, &store);
    }
    let judged: Vec<ProjectTrust> = files.iter().filter_map(|file| judge(file, &store)).collect();
    if judged.is_empty() && trust.file.is_some() {
        return Err(Failure::not_found(format!("there is no {}", list(&files))));
    }
    if trust.show {
        return show(global, &judged);
    }
    let waiting: Vec<&ProjectTrust> = judged.iter().filter(|judged| judged.now.is_some() && waits(judged)).collect();
    if !waiting.is_empty() {
        not_nested("change what is approved")?;
        if !trust.yes && (global.json || !is_interactive()) {
            return Err(Failure::usage(
                "nobody can be asked here; look with `toolwright trust --show`, then approve with `toolwright trust --yes`",
            ));
        }
    }
    let mut declined = false;
    for judged in &waiting {
        if let Some(fault) = &judged.fault {
            return Err(Failure::usage(format!("{fault}; fix it, then approve it")));
        }
        if trust.yes || ask_and_store(judged, &store)? {
            approve(judged, &store)?;
        } else {
            declined = true;
        }
    }
    if global.json {
        let files = judged.iter().filter_map(|judged| Some(judge(&judged.file, &store)?.to_json()));
        print_json(&json!({"files": files.collect::<Vec<Value>>()}))?;
    } else if waiting.is_empty() {
        say("nothing waits for approval here");
    }
    Ok(if declined { Exit::Denied } else { Exit::Ok })
}

/// Asks about changes that wait and were not refused before, if a person is present. Returns whether any was answered.
pub(crate) fn ask_first(global: &GlobalOptions, config: &Config) -> Result<bool, Failure> {
    if global.json || is_nested() || !is_interactive() {
        return Ok(false);
    }
    let store = TrustStore::in_state(&config.state_dir);
    let due =
        |judged: &&ProjectTrust| waits(judged) && judged.now.is_some() && judged.fault.is_none() && !judged.refused;
    let mut answered = false;
    for judged in config.trust.iter().filter(due) {
        if ask_and_store(judged, &store)? {
            approve(judged, &store)?;
        }
        answered = true;
    }
    Ok(answered)
}

/// Writes a configuration file on its owner's behalf. A project's file stays approved if it was or is new; otherwise
/// the owner is told that it is not.
pub(crate) fn write(global: &GlobalOptions, path: &Path, text: &str) -> Result<(), Failure> {
    let state_dir = toolwright::config::state_dir(&options(global)?, &variable);
    let approved = write_approved(path, text, &TrustStore::in_state(&state_dir))
        .map_err(|error| Failure::usage(format!("{}: cannot be written: {error}", path.display())))?;
    // The user's own file needs no approval, nor does a given one.
    let is_own = global.config.is_some() || user_file(&variable).is_some_and(|own| own == path);
    if !approved && !is_own {
        let file = sanitize(&path.display().to_string());
        say_warning(&format!("{file} is not approved, so its changes have no effect yet: run `toolwright trust`"));
    }
    Ok(())
}

/// Writes an agent file on its owner's behalf, in the `user`'s own folder or the project's. The project's stays
/// approved if it was or is new; otherwise the owner is told that it is not.
pub(crate) fn write_agent(
    global: &GlobalOptions,
    folder: &Path,
    path: &Path,
    text: &str,
    user: bool,
) -> Result<(), Failure> {
    let state_dir = toolwright::config::state_dir(&options(global)?, &variable);
    let failed = |error| Failure::usage(format!("{}: cannot be written: {error}", path.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let approved = write_approved_agent(folder, path, text, &TrustStore::in_state(&state_dir)).map_err(failed)?;
    if !approved && !user && global.config.is_none() {
        let folder = sanitize(&folder.display().to_string());
        say_warning(&format!("{folder} is not approved, so its changes have no effect yet: run `toolwright trust`"));
    }
    Ok(())
}

fn waits(judged: &ProjectTrust) -> bool {
    !matches!(judged.state, TrustState::Approved | TrustState::Faulty)
}

/// Returns the project files of a path: the file itself, or those in the folder.
fn named(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if path.is_dir() && !is_project_file(path) {
        let names = ["toolwright.yaml", ".mcp.json", "agents", ".claude/agents", "skills", ".claude/skills"];
        return Ok(names.map(|name| path.join(name)).to_vec());
    }
    if is_project_file(path) {
        return Ok(vec![path.to_owned()]);
    }
    Err(Failure::usage(format!(
        "{} needs no approval: only a project's toolwright.yaml, .mcp.json and folders of agents and skills do",
        path.display()
    )))
}

fn of_project(config: &Config) -> Vec<PathBuf> {
    let project = config.candidates.iter().filter(|layer| layer.kind.is_of_project());
    project.map(|layer| layer.path.clone()).collect()
}

fn list(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ")
}

fn revoke(global: &GlobalOptions, files: &[PathBuf], store: &TrustStore) -> CommandResult {
    not_nested("change what is approved")?;
    let mut revoked = Vec::new();
    for file in files {
        if store.revoke(file).map_err(|error| Failure::failed(format!("{}: {error}", file.display())))? {
            revoked.push(file);
        }
    }
    if global.json {
        print_json(&json!({ "revoked": revoked }))?;
    } else if revoked.is_empty() {
        say("nothing was approved here");
    }
    for file in revoked {
        say(format_args!("no longer approved: {}", file.display()));
    }
    Ok(Exit::Ok)
}

fn approve(judged: &ProjectTrust, store: &TrustStore) -> Result<(), Failure> {
    let Some(content) = &judged.now else { return Ok(()) };
    store
        .approve(&judged.file, content, Approval::ByPerson)
        .map_err(|error| Failure::failed(format!("{}: the approval cannot be kept: {error}", judged.file.display())))?;
    say(format_args!("approved {}", sanitize(&judged.file.display().to_string())));
    Ok(())
}

/// Asks, and stores a refusal, so that the next command does not ask about the same content.
fn ask_and_store(judged: &ProjectTrust, store: &TrustStore) -> Result<bool, Failure> {
    let answer = ask(judged)?;
    if let (Some(false), Some(content)) = (answer, &judged.now) {
        store.refuse(&judged.file, content).map_err(|error| {
            Failure::failed(format!("{}: the refusal cannot be kept: {error}", judged.file.display()))
        })?;
    }
    Ok(answer == Some(true))
}

/// Returns the answer; `None` at the end of the input.
fn ask(judged: &ProjectTrust) -> Result<Option<bool>, Failure> {
    for line in in_words(judged) {
        say(line);
    }
    let mut screen = anstream::stderr();
    // If standard error is closed, the question is lost, and the end of the input answers it.
    let _ = write!(screen, "Use this configuration? [y/N] ");
    let _ = screen.flush();
    let mut answer = String::new();
    let is_there = std::io::stdin().lock().read_line(&mut answer)? > 0;
    if !is_there {
        // Ctrl-D leaves the cursor after the question.
        say("");
    }
    Ok(is_there.then(|| matches!(answer.trim().to_lowercase().as_str(), "y" | "yes")))
}

fn show(global: &GlobalOptions, judged: &[ProjectTrust]) -> CommandResult {
    if global.json {
        print_json(&json!({"files": judged.iter().map(ProjectTrust::to_json).collect::<Vec<_>>()}))?;
    } else if judged.is_empty() {
        say("there is no toolwright.yaml, .mcp.json, folder of agents or folder of skills from here");
    } else {
        print_text(&judged.iter().flat_map(in_words).collect::<Vec<_>>().join("\n"))?;
    }
    Ok(Exit::Ok)
}

/// Describes a file. Its text is data: it can neither move the cursor nor hide anything.
fn in_words(judged: &ProjectTrust) -> Vec<String> {
    let file = one_line(&judged.file.display().to_string(), MAX_VALUE);
    let state = match judged.state {
        TrustState::Approved => "is approved",
        TrustState::Unapproved if judged.refused => "was refused",
        TrustState::Unapproved => "is not approved",
        TrustState::Faulty => "says nothing that counts",
        TrustState::Changed if judged.refused => "has changed since it was approved, and the change was refused",
        TrustState::Changed => "has changed since it was approved",
        TrustState::Gone => "was removed, and its approved version stays in force",
    };
    let mut lines = vec![format!("{} {state}.", styled(BOLD, file))];
    if let Some(fault) = &judged.fault {
        lines.push(styled(WARN, sanitize(fault)));
    }
    lines.extend(judged.faults.iter().map(|fault| styled(WARN, sanitize(&fault.to_string()))));
    let mut group = |title: &str, items: Vec<String>| {
        if !items.is_empty() {
            lines.push(title.to_owned());
            lines.extend(items.iter().map(|item| format!("  {}", one_line(item, 4 * MAX_VALUE))));
        }
    };
    group("What is new:", judged.pending.iter().flat_map(change).collect());
    if let Some(summary) = judged.summary() {
        let is_empty = summary.starts.is_empty() && summary.reaches.is_empty() && summary.changes.is_empty();
        group("It starts:", summary.starts);
        group("It uses:", summary.reaches);
        group("It sets:", summary.changes);
        if is_empty {
            lines.push("It starts, uses and sets nothing.".to_owned());
        }
    }
    lines
}

fn change(change: &Change) -> Vec<String> {
    let (was, is) = change.masked();
    // Long texts are shown from shortly before the first difference.
    let text = |value: &Option<Value>| value.as_ref().map_or("nothing".to_owned(), Value::to_string);
    let (was, is) = (text(&was), text(&is));
    let same = was.chars().zip(is.chars()).take_while(|(was, is)| was == is).count();
    let from = if was.len().max(is.len()) > MAX_VALUE { same.saturating_sub(MAX_BEFORE) } else { 0 };
    let shown = |text: String| {
        let start = if from > 0 { "…" } else { "" };
        one_line(&format!("{start}{}", text.chars().skip(from).collect::<String>()), MAX_VALUE)
    };
    vec![format!("{}: was {}, is {}", change.path, shown(was), shown(is))]
}

/// Returns the file to edit: the user's own if requested, else the given one, else the nearest `toolwright.yaml` of the
/// project, else a new one.
pub(crate) fn target(global: &GlobalOptions, user: bool) -> Result<PathBuf, Failure> {
    let cwd = cwd()?;
    if user {
        return user_file(&variable)
            .ok_or_else(|| Failure::usage("--user needs a home: set HOME or XDG_CONFIG_HOME to an absolute path"));
    }
    if let Some(file) = &global.config {
        return Ok(cwd.join(file));
    }
    let config = read(global)?;
    let project = config.candidates.iter().filter(|layer| layer.kind == LayerKind::Project);
    let found = project.map(|layer| layer.path.clone()).find(|path| path.is_file());
    Ok(found.unwrap_or_else(|| cwd.join("toolwright.yaml")))
}
