//! Recognises Toolwright's own entry in another client's file. If it were imported, Toolwright would serve itself.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::config::Variables;

/// Whether an entry, in our keys, is Toolwright itself: `toolwright serve` under whatever path, or the
/// endpoint of one that listens at one of `addresses`.
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
    fn our_own_entry_is_told_from_others() {
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
