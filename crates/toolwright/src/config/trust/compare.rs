//! Decides which changes of an approved configuration need a new approval. Pure.

use serde_json::{Map, Value, json};
use toolwright_core::tool_id::server_namespace;

/// Sections whose entries only add tools, so that their removal is harmless.
const SOURCES: [&str; 4] = ["mcp_servers", "rest_tools", "openapi", "catalogues"];

/// A change that waits for approval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its place, like `mcp_servers.git.args`.
    pub path: String,
    /// The approved value.
    pub approved: Option<Value>,
    /// The current value.
    pub current: Option<Value>,
}

impl Change {
    /// Returns the change for JSON answers, without secrets.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let (was, is) = self.masked();
        json!({"path": self.path, "was": was, "is": is})
    }

    /// Returns both values without secrets. A value is secret if its key names a secret.
    #[must_use]
    pub fn masked(&self) -> (Option<Value>, Option<Value>) {
        let mask = |value: &Option<Value>| {
            let value = value.as_ref()?;
            let nested = self.path.rsplit('.').fold(value.clone(), |inner, key| json!({ key: inner }));
            let masked = crate::config::masked(&nested);
            self.path.split('.').try_fold(masked, |outer, key| outer.get(key).cloned())
        };
        (mask(&self.approved), mask(&self.current))
    }
}

/// Returns the changes from an approved configuration to another that wait for approval; none if all are harmless.
/// Harmless are removed or disabled sources, further denials, a stricter profile, and descriptions. All others wait.
/// Both values are from [`super::Content::value`].
#[must_use]
pub fn waiting(approved: &Value, new: &Value) -> Vec<Change> {
    let mut changes = Vec::new();
    compare(&mut Vec::new(), Some(approved), Some(new), new, &mut changes);
    changes
}

fn compare<'v>(
    path: &mut Vec<&'v str>,
    was: Option<&'v Value>,
    is: Option<&'v Value>,
    new: &Value,
    out: &mut Vec<Change>,
) {
    if was == is || is_harmless(path, was, is, new) {
        return;
    }
    // A missing section counts as empty. A new or removed entry is one change.
    let members = match (was, is) {
        (Some(Value::Object(was)), Some(Value::Object(is))) => Some((Some(was), Some(is))),
        _ if path.len() > 1 => None,
        (Some(Value::Object(was)), None) => Some((Some(was), None)),
        (None, Some(Value::Object(is))) => Some((None, Some(is))),
        _ => None,
    };
    let Some((was_members, is_members)) = members else {
        out.push(Change { path: path.join("."), approved: was.cloned(), current: is.cloned() });
        return;
    };
    let is_new = |key: &&String| !was_members.is_some_and(|was| was.contains_key(*key));
    let added = is_members.into_iter().flat_map(Map::keys).filter(is_new);
    let keys: Vec<&str> = was_members.into_iter().flat_map(Map::keys).chain(added).map(String::as_str).collect();
    for key in keys {
        let (was, is) = (was.and_then(|was| was.get(key)), is.and_then(|is| is.get(key)));
        path.push(key);
        compare(path, was, is, new, out);
        path.pop();
    }
}

/// Keys of an entry that only locate its source.
const LOCATION_KEYS: [&str; 8] = ["command", "args", "env", "cwd", "url", "headers", "type", "description"];

fn is_harmless(path: &[&str], was: Option<&Value>, is: Option<&Value>, new: &Value) -> bool {
    match (path, is) {
        ([section, name], None) if SOURCES.contains(section) => {
            // A file of lower priority may have the entry too, and would then lose the restrictions of this one: that
            // it is disabled, sandboxed, or has fewer tools.
            let keys = was.and_then(Value::as_object).into_iter().flat_map(Map::keys);
            keys.into_iter().all(|key| LOCATION_KEYS.contains(&key.as_str())) && is_prefix_free(name, section, new)
        }
        // No entry names it any more.
        (["documents" | "agent_files" | "skill_files", _], None) => true,
        (["mcp_servers", _, "description"], _) => true,
        (["agents" | "agent_files", _, "enabled"], Some(Value::Bool(false))) => true,
        ([section, _, "enabled"], Some(Value::Bool(false))) => SOURCES.contains(section),
        (["mcp_servers", _, "disabled"], Some(Value::Bool(true))) => true,
        (["mcp_servers", _, "tools_denied"] | ["defaults", "builtins_denied" | "withheld_env"], _) => {
            // A new list replaces that of a file of lower priority.
            was.is_some() && items(was).iter().all(|item| items(is).contains(item))
        }
        (["policy", "profile"], Some(Value::String(profile))) => profile == "ask",
        (["policy", "rules"], _) => is_stricter(items(was), items(is)),
        _ => false,
    }
}

/// Returns whether no other server takes over the tool prefix of the removed one, which rules may name.
fn is_prefix_free(name: &str, section: &str, new: &Value) -> bool {
    let namespace = |name: &str| server_namespace(name, &|_| false);
    let others = new.get(section).and_then(Value::as_object);
    !others.into_iter().flat_map(Map::keys).any(|other| namespace(other) == namespace(name))
}

fn items(list: Option<&Value>) -> &[Value] {
    list.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Returns whether rules only gained denials and lost allowances. The first rule that matches decides, so neither
/// allows anything new.
fn is_stricter(was: &[Value], is: &[Value]) -> bool {
    let effect = |rule: &Value, effect: &str| rule.get("effect").and_then(Value::as_str) == Some(effect);
    let (mut was, mut is) = (was, is);
    loop {
        (was, is) = match (was, is) {
            ([], []) => return true,
            ([old, was @ ..], [new, is @ ..]) if old == new => (was, is),
            ([old, was @ ..], is) if effect(old, "allow") && !is.contains(old) => (was, is),
            (was, [new, is @ ..]) if effect(new, "deny") => (was, is),
            _ => return false,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(was: Value, is: Value, expect: &[&str]) {
        let changes = waiting(&was, &is);
        let paths: Vec<&str> = changes.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(paths, expect, "{was} -> {is}");
    }

    #[test]
    fn changes_to_commands_wait() {
        let git = |more: Value| {
            let mut entry = json!({"command": "uvx", "args": ["git"]});
            entry.as_object_mut().expect("object").extend(more.as_object().cloned().unwrap_or_default());
            json!({"mcp_servers": {"git": entry}})
        };
        check(git(json!({})), git(json!({})), &[]);
        check(json!({}), git(json!({})), &["mcp_servers.git"]);
        for (more, path) in [
            (json!({"command": "sh"}), "mcp_servers.git.command"),
            (json!({"args": ["git", "--evil"]}), "mcp_servers.git.args"),
            (json!({"env": {"LD_PRELOAD": "x"}}), "mcp_servers.git.env"),
            (json!({"cwd": "sub"}), "mcp_servers.git.cwd"),
            (json!({"url": "https://e"}), "mcp_servers.git.url"),
            (json!({"headers": {"A": "b"}}), "mcp_servers.git.headers"),
            (json!({"trusted": true}), "mcp_servers.git.trusted"),
            (json!({"sandbox": "full"}), "mcp_servers.git.sandbox"),
            (json!({"enabled": true}), "mcp_servers.git.enabled"),
        ] {
            check(git(json!({})), git(more), &[path]);
        }
        check(json!({"mcp_servers": {"git": {"enabled": false}}}), json!({}), &["mcp_servers.git"]);
        // A file of lower priority may have the same server, or its own denials.
        check(json!({"mcp_servers": {"git": {"tools_denied": ["*"]}}}), json!({}), &["mcp_servers.git"]);
        check(json!({}), json!({"defaults": {"withheld_env": []}}), &["defaults.withheld_env"]);
        // The other server would get the prefix that rules name.
        let two = json!({"mcp_servers": {"mcp-a": {"command": "x"}, "A": {"command": "y"}}});
        check(two, json!({"mcp_servers": {"A": {"command": "y"}}}), &["mcp_servers.mcp-a"]);
    }

    #[test]
    fn looser_policy_tokens_and_views_wait() {
        let deny = json!({"effect": "deny", "tool": "*:delete_*"});
        let (allow, ask) = (json!({"effect": "allow", "tool": "fs:*"}), json!({"effect": "ask", "tool": "x"}));
        let rules = |rules: &[&Value]| json!({"policy": {"rules": rules}});
        check(rules(&[&deny]), json!({}), &["policy.rules"]);
        check(rules(&[&deny]), rules(&[&allow, &deny]), &["policy.rules"]);
        check(rules(&[&deny, &allow]), rules(&[&allow, &deny]), &["policy.rules"]);
        check(rules(&[&deny]), rules(&[&ask, &deny]), &["policy.rules"]);
        check(rules(&[&ask]), rules(&[]), &["policy.rules"]);
        check(rules(&[]), rules(&[&deny]), &[]);
        check(rules(&[&allow, &ask]), rules(&[&deny, &ask, &deny]), &[]);
        check(rules(&[&allow, &deny]), rules(&[&deny]), &[]);
        check(rules(&[&allow]), rules(&[&deny, &allow]), &[]);
        check(json!({}), json!({"policy": {"profile": "trusted"}}), &["policy.profile"]);
        check(json!({"policy": {"profile": "client"}}), json!({"policy": {"profile": "ask"}}), &[]);
        check(json!({"policy": {"profile": "ask"}}), json!({}), &["policy.profile"]);
        check(json!({}), json!({"server": {"token": "t"}}), &["server.token"]);
        check(json!({"views": {"a": {"deny": ["x"]}}}), json!({}), &["views.a"]);
        check(
            json!({"views": {"a": {"deny": ["x"]}}}),
            json!({"views": {"a": {"deny": ["x", "y"]}}}),
            &["views.a.deny"],
        );
        check(json!({}), json!({"web": {"allow_private": true}}), &["web.allow_private"]);
        check(json!({}), json!({"models": {"endpoints": {"o": {"base_url": "http://e"}}}}), &["models.endpoints"]);
        check(json!({"files": {"a.md": "x"}}), json!({"files": {"a.md": "y"}}), &["files.a.md"]);
        check(json!({"documents": {"a": "x"}}), json!({"documents": {"a": "y"}}), &["documents.a"]);
        check(json!({"documents": {"a": "x"}}), json!({"documents": {"a": null}}), &["documents.a"]);
    }

    #[test]
    fn harmless_changes_do_not_wait() {
        let was = json!({
            "mcp_servers": {"a": {"command": "x", "description": "old"}, "b": {"command": "y", "tools_denied": ["x"]}},
            "rest_tools": {"r": {"url": "https://e"}},
            "defaults": {"builtins_denied": ["web__*"]},
        });
        let mut fewer = was.clone();
        fewer["mcp_servers"]["a"]["description"] = json!("new");
        fewer["rest_tools"] = json!({});
        check(was.clone(), fewer.clone(), &[]);
        fewer["mcp_servers"].as_object_mut().expect("object").remove("a");
        check(was.clone(), fewer, &[]);
        let mut is = was.clone();
        is["mcp_servers"]["a"]["enabled"] = json!(false);
        is["mcp_servers"]["b"]["tools_denied"] = json!(["x", "*"]);
        is["defaults"] = json!({"builtins_denied": ["shell__*", "web__*"]});
        check(was, is.clone(), &[]);
        let was = is.clone();
        is["mcp_servers"]["b"]["tools_denied"] = json!([]);
        check(was, is, &["mcp_servers.b.tools_denied"]);
    }

    #[test]
    fn secrets_are_masked() {
        let changes = waiting(&json!({}), &json!({"server": {"token": "t0ken"}}));
        assert_eq!(changes[0].to_json(), json!({"path": "server.token", "was": null, "is": "[secret]"}));
    }

    #[test]
    fn changed_variables_that_select_code_are_shown() {
        let env = |pairs: Value| json!({"mcp_servers": {"a": {"command": "x", "env": pairs}}});
        let (was, is) =
            (json!({"PATH": "/bin", "KEY": "k", "T": "${A}"}), json!({"PATH": "./evil:/bin", "KEY": "l", "T": "${B}"}));
        let reported: Vec<Value> = waiting(&env(was), &env(is)).iter().map(Change::to_json).collect();
        assert_eq!(
            reported,
            [
                json!({"path": "mcp_servers.a.env.PATH", "was": "/bin", "is": "./evil:/bin"}),
                json!({"path": "mcp_servers.a.env.KEY", "was": "[secret]", "is": "[secret]"}),
                json!({"path": "mcp_servers.a.env.T", "was": "${A}", "is": "${B}"}),
            ]
        );
        let whole = waiting(&env(json!({"LD_PRELOAD": "a.so"})), &json!({"mcp_servers": {"a": {"command": "x"}}}));
        assert_eq!(whole[0].to_json()["was"], json!({"LD_PRELOAD": "a.so"}));
    }
}
