//! Reads MCP servers from other clients' configuration files. Changes nothing: the caller shows and writes the result.

pub mod edit;
mod entry;
mod secrets;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::config::Variables;
use crate::jsonc::without_comments;

pub use secrets::take_secrets;

/// Maximum bytes of a file.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// A client whose configuration can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Claude Desktop: `claude_desktop_config.json`.
    ClaudeDesktop,
    /// Claude Code: `~/.claude.json` with its per-project part.
    ClaudeCode,
    /// Cursor: `mcp.json`.
    Cursor,
    /// VS Code: `mcp.json`, or the `mcp` part of `settings.json`.
    Vscode,
    /// Codex: `config.toml`. <https://developers.openai.com/codex/config-reference>
    Codex,
    /// Gemini CLI: `settings.json`. <https://geminicli.com/docs/tools/mcp-server>
    Gemini,
    /// opencode: `opencode.json`, of versions 1 and 2. <https://opencode.ai/v1/docs/mcp-servers>,
    /// <https://opencode.ai/v2/docs/mcp-servers>
    Opencode,
    /// Windsurf: `mcp_config.json`. <https://docs.windsurf.com/windsurf/cascade/mcp>
    Windsurf,
    /// Zed: `context_servers` in `settings.json`.
    Zed,
    /// A `.mcp.json`.
    McpJson,
}

/// The servers of a file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Imported {
    /// Name and entry of each server, in the file's order, with our keys.
    pub servers: Vec<(String, Value)>,
    /// Settings that were not carried over, with remedies.
    pub notes: Vec<String>,
}

/// The reason why a file cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The client's usual places contain no file.
    #[error(
        "{source_name} has no configuration here; looked at {places}; give the file: toolwright import {source_name} FILE"
    )]
    NotFound {
        /// The client.
        source_name: &'static str,
        /// The places.
        places: String,
    },
    /// It cannot be read.
    #[error("{}: cannot be read: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        error: std::io::Error,
    },
    /// It cannot be parsed.
    #[error("{}: {message}", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The error.
        message: String,
    },
    /// It has no servers.
    #[error("{}: there are no MCP servers in it; {source_name} keeps them under `{section}`", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The client.
        source_name: &'static str,
        /// The key under which it was looked for.
        section: &'static str,
    },
}

impl Source {
    /// All sources.
    pub const ALL: [Self; 10] = [
        Self::ClaudeDesktop,
        Self::ClaudeCode,
        Self::Cursor,
        Self::Vscode,
        Self::Codex,
        Self::Gemini,
        Self::Opencode,
        Self::Windsurf,
        Self::Zed,
        Self::McpJson,
    ];

    /// Returns its name on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClaudeDesktop => "claude-desktop",
            Self::ClaudeCode => "claude-code",
            Self::Cursor => "cursor",
            Self::Vscode => "vscode",
            Self::Codex => "codex",
            Self::Gemini => "gemini",
            Self::Opencode => "opencode",
            Self::Windsurf => "windsurf",
            Self::Zed => "zed",
            Self::McpJson => "mcp-json",
        }
    }

    fn section(self) -> &'static str {
        match self {
            Self::Vscode => "servers",
            Self::Codex => "mcp_servers",
            Self::Opencode => "mcp",
            Self::Zed => "context_servers",
            _ => "mcpServers",
        }
    }

    /// Returns where the client keeps its configuration on this platform, project first.
    #[must_use]
    pub fn places(self, cwd: &Path, variables: Variables<'_>) -> Vec<PathBuf> {
        let home = variables("HOME").or_else(|| variables("USERPROFILE")).map(PathBuf::from).unwrap_or_default();
        let app_data = if cfg!(target_os = "macos") {
            home.join("Library/Application Support")
        } else if cfg!(windows) {
            variables("APPDATA").map(PathBuf::from).unwrap_or_default()
        } else {
            variables("XDG_CONFIG_HOME").map_or_else(|| home.join(".config"), PathBuf::from)
        };
        match self {
            Self::ClaudeDesktop => vec![app_data.join("Claude/claude_desktop_config.json")],
            Self::ClaudeCode => vec![home.join(".claude.json")],
            Self::Cursor => vec![cwd.join(".cursor/mcp.json"), home.join(".cursor/mcp.json")],
            Self::Vscode => vec![
                cwd.join(".vscode/mcp.json"),
                app_data.join("Code/User/mcp.json"),
                app_data.join("Code/User/settings.json"),
            ],
            Self::Codex => vec![
                cwd.join(".codex/config.toml"),
                variables("CODEX_HOME").map_or_else(|| home.join(".codex"), PathBuf::from).join("config.toml"),
            ],
            Self::Gemini => vec![cwd.join(".gemini/settings.json"), home.join(".gemini/settings.json")],
            Self::Opencode => {
                let user = variables("XDG_CONFIG_HOME").map_or_else(|| home.join(".config"), PathBuf::from);
                [cwd.to_owned(), cwd.join(".opencode"), user.join("opencode")]
                    .iter()
                    .flat_map(|folder| ["opencode.json", "opencode.jsonc"].map(|file| folder.join(file)))
                    .collect()
            }
            Self::Windsurf => vec![home.join(".codeium/windsurf/mcp_config.json")],
            // Zed uses ~/.config on macOS too.
            Self::Zed if cfg!(target_os = "macos") => {
                vec![cwd.join(".zed/settings.json"), home.join(".config/zed/settings.json")]
            }
            Self::Zed => vec![cwd.join(".zed/settings.json"), app_data.join("zed/settings.json")],
            Self::McpJson => vec![cwd.join(".mcp.json")],
        }
    }

    /// Returns the first of [`Source::places`] that exists.
    ///
    /// # Errors
    /// [`ImportError::NotFound`] lists them.
    pub fn find(self, cwd: &Path, variables: Variables<'_>) -> Result<PathBuf, ImportError> {
        let places = self.places(cwd, variables);
        places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| ImportError::NotFound {
            source_name: self.as_str(),
            places: places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", "),
        })
    }

    /// Reads the servers of a file. `cwd` picks the project in files that hold several.
    ///
    /// # Errors
    /// [`ImportError`]; entries that cannot be carried over become notes instead.
    pub fn read(self, path: &Path, cwd: &Path) -> Result<Imported, ImportError> {
        let unreadable = |error| ImportError::Unreadable { path: path.to_owned(), error };
        let size = std::fs::metadata(path).map_err(unreadable)?.len();
        if size > MAX_FILE {
            return Err(unreadable(std::io::Error::other(format!(
                "it has {size} bytes, over the limit of {MAX_FILE}"
            ))));
        }
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let imported =
            self.parse(&text, cwd).map_err(|message| ImportError::Broken { path: path.to_owned(), message })?;
        if imported.servers.is_empty() && imported.notes.is_empty() {
            return Err(ImportError::Empty {
                path: path.to_owned(),
                source_name: self.as_str(),
                section: self.section(),
            });
        }
        Ok(imported)
    }

    fn parse(self, text: &str, cwd: &Path) -> Result<Imported, String> {
        let document = match self {
            Self::Codex => {
                let table: toml::Table =
                    text.parse().map_err(|error: toml::de::Error| format!("not valid TOML: {}", error.message()))?;
                serde_json::to_value(table).map_err(|error| error.to_string())?
            }
            _ => json(text)?,
        };
        let mut imported = Imported { notes: unimported_limits(self, &document), ..Imported::default() };
        for servers in self.sections(&document, cwd) {
            for (name, written) in servers {
                if imported.servers.iter().any(|(have, _)| have == name) {
                    continue;
                }
                match entry::convert_entry(self, name, written, &mut imported.notes) {
                    Some(mut entry) => {
                        if is_disabled_in_client(self, &document, cwd, name) {
                            entry["enabled"] = Value::Bool(false);
                        }
                        imported.servers.push((name.clone(), entry));
                    }
                    None => imported.notes.push(format!("{name}: left out: it has neither a command nor an address")),
                }
            }
        }
        Ok(imported)
    }

    fn sections<'d>(self, document: &'d Value, cwd: &Path) -> Vec<&'d Map<String, Value>> {
        let at = |path: &[&str]| path.iter().try_fold(document, |value, key| value.get(key)).and_then(Value::as_object);
        let project = cwd.to_string_lossy();
        let places: Vec<Option<&Map<String, Value>>> = match self {
            // The project's own servers hide the user's.
            Self::ClaudeCode => vec![at(&["projects", &project, "mcpServers"]), at(&["mcpServers"])],
            Self::Vscode => vec![at(&["servers"]), at(&["mcp", "servers"])],
            // Version 2 has one more level; a server of version 1 may also be called `servers`.
            Self::Opencode => {
                let is_server =
                    |map: &&Map<String, Value>| ["type", "command", "url"].iter().any(|key| map.contains_key(*key));
                vec![at(&["mcp", "servers"]).filter(|map| !is_server(map)).or_else(|| at(&["mcp"]))]
            }
            _ => vec![at(&[self.section()])],
        };
        places.into_iter().flatten().collect()
    }
}

/// Returns whether the client does not start this server, because a list elsewhere in the file excludes it: Gemini CLI has
/// `mcp.allowed` and `mcp.excluded` (<https://geminicli.com/docs/reference/configuration>), Claude Code
/// `disabledMcpServers` of a project, which its `/mcp` writes.
fn is_disabled_in_client(source: Source, document: &Value, cwd: &Path, name: &str) -> bool {
    let lists = |path: &[&str]| {
        let list = path.iter().try_fold(document, |value, key| value.get(key)).and_then(Value::as_array)?;
        Some(list.iter().any(|listed| listed == name))
    };
    match source {
        Source::Gemini => lists(&["mcp", "allowed"]) == Some(false) || lists(&["mcp", "excluded"]) == Some(true),
        Source::ClaudeCode => lists(&["projects", &cwd.to_string_lossy(), "disabledMcpServers"]) == Some(true),
        _ => false,
    }
}

/// Returns notes on sections outside the entries that may limit tools and are not carried over.
fn unimported_limits(source: Source, document: &Value) -> Vec<String> {
    let sections: &[&str] = if source == Source::Opencode { &["tools", "permission"] } else { &[] };
    let found = sections.iter().filter(|key| document.get(**key).is_some());
    found
        .map(|key| {
            format!("`{key}` is not imported: if it limits tools of these servers, write `tools_denied` or policy.rules here")
        })
        .collect()
}

/// Parses JSON as editors write it: with comments and trailing commas.
fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).or_else(|_| {
        let file: Arc<Path> = Arc::from(Path::new(""));
        let plain = without_comments(text);
        crate::config::parse_value(&plain, &file).map_err(|problem| match problem.line {
            Some(line) => format!("line {line}: {}", problem.message),
            None => problem.message,
        })
    })
}

/// Returns whether an entry, with our keys, is Toolwright itself: `toolwright serve` under any path, or its endpoint at
/// one of `addresses`. If it were imported, Toolwright would serve itself.
#[must_use]
pub fn is_toolwright(entry: &Value, addresses: &[SocketAddr], variables: Variables<'_>) -> bool {
    let text = |key: &str| entry.get(key).and_then(Value::as_str);
    let serves = || entry.get("args").and_then(Value::as_array).is_some_and(|args| args.contains(&"serve".into()));
    text("command").is_some_and(|command| serves() && is_our_program(command, variables))
        || text("url").is_some_and(|url| is_our_address(url, addresses))
}

fn is_our_program(command: &str, variables: Variables<'_>) -> bool {
    let path = Path::new(command);
    if path.file_stem().is_some_and(|name| name == "toolwright") {
        return true;
    }
    let Ok(ours) = std::env::current_exe().and_then(std::fs::canonicalize) else { return false };
    let mut places: Vec<PathBuf> = vec![path.to_owned()];
    if path.components().count() == 1 {
        let folders = variables("PATH").unwrap_or_default();
        places = std::env::split_paths(&folders).map(|folder| folder.join(path)).collect();
    }
    places.iter().any(|place| std::fs::canonicalize(place).is_ok_and(|found| found == ours))
}

fn is_our_address(url: &str, addresses: &[SocketAddr]) -> bool {
    let Ok(url) = url::Url::parse(url) else { return false };
    let is_loopback = match url.host() {
        Some(url::Host::Domain(name)) => name == "localhost",
        Some(url::Host::Ipv4(ip)) => ip.is_loopback(),
        Some(url::Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    };
    let is_ours = addresses.iter().any(|address| Some(address.port()) == url.port_or_known_default());
    is_loopback && is_ours && (url.path() == "/mcp" || url.path().starts_with("/mcp/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn our_own_entry_is_recognised() {
        let addresses = [SocketAddr::from(([127, 0, 0, 1], 7117)), SocketAddr::from(([0, 0, 0, 0], 9000))];
        let check = |entry: Value, expect: bool| {
            assert_eq!(is_toolwright(&entry, &addresses, &|_| None), expect, "{entry}");
        };
        check(json!({"command": "toolwright", "args": ["serve", "--stdio"]}), true);
        check(json!({"command": "/opt/bin/toolwright", "args": ["--root", "x", "serve"]}), true);
        check(json!({"command": std::env::current_exe().expect("this program"), "args": ["serve"]}), true);
        check(json!({"command": "toolwright", "args": ["--help"]}), false);
        check(json!({"command": "other", "args": ["serve"]}), false);
        check(json!({"url": "http://127.0.0.1:7117/mcp"}), true);
        check(json!({"url": "http://localhost:9000/mcp/git"}), true);
        check(json!({"url": "http://[::1]:7117/mcp"}), true);
        check(json!({"url": "http://127.0.0.1:7118/mcp"}), false);
        check(json!({"url": "http://127.0.0.1:7117/other"}), false);
        check(json!({"url": "https://example.com:7117/mcp"}), false);
    }
}
