//! Toolwright below Toolwright: allowed, but not without end.
//!
//! A gateway may offer another gateway's tools, one that has a configuration of its own. A configuration
//! that starts the very program that reads it, as a `.mcp.json` that other clients find Toolwright in,
//! would start it again and again. Such an entry is refused where it can be recognised; for all others,
//! wrappers and copies among them, the depth is bounded. Only what clears the environment on the way down
//! hides the depth.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use toolwright_sandbox::nesting;

/// Variable that names a configuration file, as `--config` does.
const CONFIG_VARIABLE: &str = "TOOLWRIGHT_CONFIG";
/// A process at this depth starts no stdio servers.
const MAX_DEPTH: u32 = 3;

/// Checks that a server may be started.
///
/// # Errors
/// Why it must not be, and the remedy: this process is too deep down itself, or the server would be this
/// program with the configuration that the entry is in.
pub(crate) fn check(
    command: &str,
    args: &[String],
    env: &BTreeMap<String, String>,
    cwd: Option<&Path>,
) -> Result<(), String> {
    let depth = nesting::depth();
    if depth >= MAX_DEPTH {
        return Err(format!(
            "this Toolwright was started by another one (depth {depth}); its own MCP servers are not started again: \
             remove the entry that starts Toolwright from the configuration, or give it one of its own with --config"
        ));
    }
    if asks_for_the_same(args, env) && starts_this_program(command, env, cwd) {
        return Err("it would start this very Toolwright with this very configuration, again and again: remove the \
                    entry, or give it a configuration of its own with --config"
            .to_owned());
    }
    Ok(())
}

/// Whether the arguments ask a Toolwright to serve the configuration that it finds.
fn asks_for_the_same(args: &[String], env: &BTreeMap<String, String>) -> bool {
    let names_another = |arg: &String| arg == "--config" || arg.starts_with("--config=");
    args.iter().any(|arg| arg == "serve") && !args.iter().any(names_another) && !env.contains_key(CONFIG_VARIABLE)
}

/// Whether the command is the file that this process runs, in the folder that it runs in, which is where
/// it looks for its configuration.
fn starts_this_program(command: &str, env: &BTreeMap<String, String>, cwd: Option<&Path>) -> bool {
    let Ok(here) = std::env::current_dir() else { return false };
    let folder = cwd.map_or_else(|| here.clone(), |cwd| here.join(cwd));
    let own = std::env::current_exe().and_then(|own| own.canonicalize()).ok();
    let path = env.get("PATH").map(|path| path.into()).or_else(|| std::env::var_os("PATH"));
    own.is_some()
        && own == find(command, &folder, path.as_deref())
        && folder.canonicalize().ok() == here.canonicalize().ok()
}

/// The file that the command names, looked up as exec does.
fn find(command: &str, folder: &Path, path: Option<&OsStr>) -> Option<PathBuf> {
    if command.contains('/') {
        return folder.join(command).canonicalize().ok();
    }
    let mut places = std::env::split_paths(path?).map(|place| folder.join(place).join(command));
    places.find(|place| place.is_file())?.canonicalize().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_starts_ourselves_is_recognised() {
        let own = std::env::current_exe().expect("this binary");
        let (folder, name) = (own.parent().expect("folder"), own.file_name().expect("name"));
        let (own, name) = (own.to_str().expect("text"), name.to_str().expect("text"));
        let on_path = format!("/nowhere:{}", folder.display());
        let check = |command: &str, args: &[&str], env: &[(&str, &str)], cwd: Option<&str>, refused: bool| {
            let args: Vec<_> = args.iter().map(|arg| (*arg).to_owned()).collect();
            let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let checked = super::check(command, &args, &env, cwd.map(Path::new));
            assert_eq!(checked.is_err(), refused, "{command} {args:?} {env:?} {cwd:?}: {checked:?}");
        };
        check(own, &["serve", "--stdio"], &[], None, true);
        check(own, &["--root", "/x", "serve"], &[], Some("."), true);
        check(name, &["serve", "--stdio"], &[("PATH", &on_path)], None, true);
        check(name, &["serve", "--stdio"], &[("PATH", "/nowhere")], None, false);
        check(own, &["tools", "ls"], &[], None, false);
        check(own, &["serve", "--config", "other.yaml"], &[], None, false);
        check(own, &["--config=other.yaml", "serve"], &[], None, false);
        check(own, &["serve"], &[(CONFIG_VARIABLE, "other.yaml")], None, false);
        check(own, &["serve"], &[], Some("/"), false);
        check("sh", &["serve"], &[], None, false);
    }
}
