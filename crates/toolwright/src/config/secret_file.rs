//! The user's file of secrets, beside the user's configuration: `NAME=VALUE`, a line each, which `${NAME}` stands for in
//! configurations where the environment has no such variable. It is the user's alone (mode 0600).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use serde_json::Value;

use super::edit::write_atomically;
use super::expand::{Variables, is_name};
use super::layers::config_home;
use crate::private_file::{self, Others};

/// Bytes of the file that are read at most.
const MAX_FILE: u64 = 1 << 20;

/// A variable of the environment, or else of the user's file of secrets. One that is not Unicode counts as unset.
#[must_use]
pub fn variable(name: &str) -> Option<String> {
    environment(name).or_else(|| stored(name))
}

/// A variable of the environment.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Reads the file again only when it is another one than at the last look.
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

/// Tells contents and permissions of the file apart.
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

/// All of a file; nothing, with a warning, where it is not the user's alone.
fn secrets_in(path: &Path) -> BTreeMap<String, String> {
    let text = read_secrets(path).unwrap_or_else(|error| {
        tracing::warn!("{}: these secrets are not used: {error}", path.display());
        String::new()
    });
    // Of two lines for one name the last counts.
    let of = |line: &str| {
        let (key, value) = line.trim().split_once('=')?;
        Some((key.trim_end().to_owned(), read_value(value.trim())))
    };
    text.lines().filter_map(of).collect()
}

fn read_secrets(path: &Path) -> std::io::Result<String> {
    private_file::read(path, Others::Nothing, MAX_FILE)
}

/// Where the file is; nowhere without a home.
#[must_use]
pub fn secret_file(variables: Variables<'_>) -> Option<PathBuf> {
    Some(config_home(variables)?.join("toolwright/secrets.env"))
}

/// Adds these variables to the file at `path`, in one step; one that is there already gets the new value.
///
/// # Errors
/// Those of the file system; a name that is no name of a variable.
pub fn keep_secrets(path: &Path, secrets: &[(String, String)]) -> std::io::Result<()> {
    let before = match read_secrets(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            "# Secrets that configurations of Toolwright name as ${NAME}. Yours alone.\n".to_owned()
        }
        Err(error) => return Err(error),
    };
    let mut text = without(&before, &|name| secrets.iter().any(|(replaced, _)| replaced == name));
    for (name, value) in secrets {
        if !is_name(name) {
            return Err(std::io::Error::other(format!("`{name}` is no name of a variable")));
        }
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}={}", written_value(value));
    }
    write_private(path, &text)
}

/// Removes the variables that an edit has taken out of a configuration: those that `before` names, and of which
/// `is_named` says that nothing else does. Returns their names.
///
/// # Errors
/// Those of the file system.
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
        write_private(path, &without(&text, &|name| gone.iter().any(|gone| gone == name)))?;
    }
    Ok(gone)
}

/// Whether a text has the name of a variable in it, as a word: it may stand in `${NAME}`, or by itself.
#[must_use]
pub fn names_variable(text: &str, name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(name)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + name.len()..].starts_with(is_part))
}

/// The name of the variable that a line sets.
fn name_of(line: &str) -> Option<&str> {
    line.split_once('=').map(|(key, _)| key.trim()).filter(|name| is_name(name))
}

fn without(text: &str, is_left_out: &dyn Fn(&str) -> bool) -> String {
    let stays = |line: &&str| !name_of(line).is_some_and(is_left_out);
    text.lines().filter(stays).flat_map(|line| [line, "\n"]).collect()
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    write_atomically(path, text)?;
    #[cfg(unix)]
    std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(())
}

/// Plain where it is read back as it is, else as a JSON string.
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

    #[test]
    fn what_is_kept_reads_back_and_is_private() {
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
