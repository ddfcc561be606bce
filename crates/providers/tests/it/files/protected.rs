//! Which writes inside the workspace are no ordinary ones.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;
use toolwright_core::Session;
use toolwright_core::catalogue::CallScope;
use toolwright_core::error::ErrorKind;
use toolwright_providers::builtin::{BuiltinOptions, PathGuard};

use crate::files::workspace::Workspace;

/// A write and an edit of each path must have this scope; reading is free everywhere.
fn check(ws: &Workspace, paths: &[&str], expect: CallScope) {
    for path in paths {
        let arguments = json!({"path": path, "content": "", "old_string": "a", "new_string": "b"});
        assert_eq!(ws.scope("fs:write", &arguments), expect, "{path}");
        assert_eq!(ws.scope("fs:edit", &arguments), expect, "{path}");
        assert_eq!(ws.scope("fs:read", &arguments), CallScope::Workspace, "{path}");
    }
}

#[tokio::test]
async fn files_that_start_commands_are_guarded() {
    let ws = Workspace::new();
    ws.put("toolwright.yaml", "policy: {}\n");
    ws.put("sub/x", "");
    ws.put("packages/a/.git/config", "");
    let absolute = ws.path("toolwright.yaml").display().to_string();
    let own =
        ["toolwright.yaml", "sub/../toolwright.yaml", "./toolwright.yml", "toolwright.json", ".mcp.json", &absolute];
    check(&ws, &own, CallScope::Configuration);
    check(&ws, &["sub/.mcp.json", "TOOLWRIGHT.yaml", "new/folder/toolwright.yaml"], CallScope::Configuration);
    let git = [".git", ".git/hooks/post-checkout", "packages/a/.git/config", ".GIT/config", "sub/.git"];
    check(&ws, &git, CallScope::Anywhere);
    for folder in [".vscode", ".claude", ".cursor", ".husky", "packages/a/.vscode"] {
        check(&ws, &[&format!("{folder}/settings.json")], CallScope::Anywhere);
    }
    check(&ws, &[".envrc", ".bashrc", ".ssh/config", ".github/workflows/ci.yml", "AGENTS.md"], CallScope::Anywhere);
    let ordinary = ["a.txt", "sub/x", "git/config", ".gitignore", ".github/CODEOWNERS", "toolwright.yaml.md"];
    check(&ws, &ordinary, CallScope::Workspace);
    assert!(ws.ok("fs:read", json!({"path": "toolwright.yaml"})).await.contains("policy"));
}

#[test]
fn links_to_protected_files_stay_protected() {
    let ws = Workspace::new();
    ws.put(".git/config", "");
    ws.put("dotfiles/vscode/tasks.json", "");
    ws.put("shared/mcp", "{}");
    symlink(".git", ws.path("notes")).expect("link");
    symlink("../.git/config", ws.path("dotfiles/harmless")).expect("link");
    symlink("dotfiles/vscode", ws.path(".vscode")).expect("link");
    symlink("shared/mcp", ws.path(".mcp.json")).expect("link");
    check(&ws, &["notes/hooks/pre-commit", "dotfiles/harmless"], CallScope::Anywhere);
    check(&ws, &[".vscode/tasks.json", "dotfiles/vscode/tasks.json"], CallScope::Anywhere);
    check(&ws, &["shared/mcp", ".mcp.json"], CallScope::Configuration);
    check(&ws, &["dotfiles/other", "shared/other"], CallScope::Workspace);
}

#[test]
fn configuration_files_are_protected_under_any_name() {
    let ws = Workspace::with(|root| BuiltinOptions {
        protected: ["conf/custom.yaml", "given.yaml", "state"].map(|name| root.join(name)).to_vec(),
        ..BuiltinOptions::default()
    });
    ws.put("conf/real.yaml", "");
    symlink("real.yaml", ws.path("conf/custom.yaml")).expect("link");
    symlink("conf", ws.path("elsewhere")).expect("link");
    let all = ["conf/custom.yaml", "elsewhere/real.yaml", "given.yaml", "x/../given.yaml", "state/store.db"];
    ws.put("x/y", "");
    check(&ws, &all, CallScope::Configuration);
    check(&ws, &["conf/other.yaml", "state.md"], CallScope::Workspace);
    // The file that the configuration's link waits for would be configuration.
    std::fs::remove_file(ws.path("conf/real.yaml")).expect("removed");
    check(&ws, &["conf/real.yaml"], CallScope::Configuration);
}

#[tokio::test]
async fn withheld_files_are_unreachable() {
    for path_guard in [PathGuard::Block, PathGuard::Warn, PathGuard::Off] {
        let withheld = |root: &Path| vec![root.join(".state")];
        let options =
            |root: &Path| BuiltinOptions { path_guard, withheld: withheld(root), ..BuiltinOptions::default() };
        let ws = Workspace::with(options);
        ws.put(".state/oauth/a.json", "refresh");
        ws.put(".statement", "refresh it");
        ws.put("x/y", "");
        symlink(".state", ws.path("way")).expect("link");
        for path in [".state", ".state/oauth/a.json", "./x/../.state/oauth/a.json", "way/oauth/a.json"] {
            let arguments =
                json!({"path": path, "content": "", "old_string": "a", "new_string": "b", "pattern": "refresh"});
            for tool in ["fs:read", "fs:write", "fs:edit", "fs:glob", "fs:grep", "fs:tree"] {
                let known = ws.definition(tool).parameters.expect("schema")["properties"].clone();
                let mut arguments = arguments.clone();
                arguments.as_object_mut().expect("object").retain(|name, _| known.get(name).is_some());
                ws.fails(tool, arguments, ErrorKind::NotPermitted, &["logins"]).await;
            }
        }
        for (tool, arguments) in [
            ("fs:grep", json!({"pattern": "refresh", "hidden": true})),
            ("fs:glob", json!({"pattern": "**/*", "hidden": true})),
            ("fs:tree", json!({"hidden": true})),
        ] {
            let found = ws.ok(tool, arguments).await;
            assert!(found.contains(".statement") && !found.contains("a.json"), "{tool}: {found}");
        }
        // Whoever makes it the root means it.
        let inside = Session { root: ws.path(".state/oauth"), ..(*ws.context.session).clone() };
        let mut ws = ws;
        ws.context.session = Arc::new(inside);
        assert!(ws.ok("fs:read", json!({"path": "a.json"})).await.contains("refresh"));
    }
}

#[test]
fn the_roots_own_name_does_not_matter() {
    let mut ws = Workspace::new();
    ws.put(".cursor/worktrees/a/x", "");
    let root = ws.path(".cursor/worktrees/a");
    ws.context.session = Arc::new(Session { root: root.clone(), ..(*ws.context.session).clone() });
    check(&ws, &["x", "new/y", &root.join("x").display().to_string()], CallScope::Workspace);
    check(&ws, &[".cursor/rules"], CallScope::Anywhere);
}

#[tokio::test]
async fn a_hard_link_is_replaced_not_written_through() {
    let ws = Workspace::new();
    ws.put("toolwright.yaml", "policy: {}\n");
    std::fs::hard_link(ws.path("toolwright.yaml"), ws.path("copy.txt")).expect("link");
    ws.ok("fs:read", json!({"path": "copy.txt"})).await;
    ws.ok("fs:write", json!({"path": "copy.txt", "content": "new"})).await;
    assert_eq!((ws.get("copy.txt").as_str(), ws.get("toolwright.yaml").as_str()), ("new", "policy: {}\n"));
    assert!(Path::new(&ws.path("copy.txt")).is_file());
}

#[tokio::test]
async fn redirected_paths_are_not_written() {
    let mut ws = Workspace::new();
    ws.put("a/config", "old");
    ws.put(".git/config", "old");
    let known = toolwright_core::ContentHash::of_bytes(b"old").to_hex();
    let arguments = json!({"path": "way/config", "content": "new", "expected_hash": known});
    symlink("a", ws.path("way")).expect("link");
    ws.context.scope = ws.scope("fs:write", &arguments);
    assert_eq!(ws.context.scope, CallScope::Workspace);
    std::fs::remove_file(ws.path("way")).expect("removed");
    symlink(".git", ws.path("way")).expect("link");
    ws.fails("fs:write", arguments, ErrorKind::NotPermitted, &["leads elsewhere"]).await;
    assert_eq!(ws.get(".git/config"), "old");
}
