//! The file tools on real files.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_core::catalogue::CallScope;
use toolwright_core::content::joined_text;
use toolwright_core::context::NoFileState;
use toolwright_core::event::Partial;
use toolwright_core::{ContentHash, ErrorKind};
use toolwright_providers::builtin::PathGuard;
use toolwright_testkit::FakeClock;

use crate::files::workspace::Workspace;

const FAILED: ErrorKind = ErrorKind::ExecutionError;

#[tokio::test]
async fn whole_files_come_with_their_facts() {
    let ws = Workspace::new();
    for text in ["one\ntwo\n", "no end", "\u{feff}bom\r\n", "ünï\n"] {
        ws.put("a.txt", text);
        let output = ws.call("fs:read", json!({"path": "a.txt"})).await.expect("reads");
        assert_eq!((output.content.len(), output.content[0].as_text()), (1, Some(text)));
        assert_eq!(output.extras["sha256"], ContentHash::of_bytes(text.as_bytes()).to_hex());
        assert_eq!(output.extras["bytes"], text.len());
    }
    let absolute = ws.path("a.txt");
    assert_eq!(ws.ok("fs:read", json!({"path": absolute})).await, "ünï\n");
}

#[tokio::test]
async fn ranges_and_line_numbers() {
    let ws = Workspace::new();
    ws.put("a.txt", "a\nb\nc\n");
    let part = ws.ok("fs:read", json!({"path": "a.txt", "offset": 2, "limit": 1, "line_numbers": true})).await;
    assert_eq!(part, "     2\tb\n\n[lines 2 to 2 of 3; read on with \"offset\": 3]");
    ws.fails("fs:read", json!({"path": "a.txt", "offset": 4}), FAILED, &["3 lines", "offset 4"]).await;
}

#[tokio::test]
async fn large_files_are_read_in_parts() {
    let ws = Workspace::new();
    let line = format!("{}\n", "x".repeat(99));
    ws.put("big.log", line.repeat(100_000));
    let output = ws.call("fs:read", json!({"path": "big.log", "offset": 90_000, "limit": 2})).await.expect("reads");
    assert_eq!(output.content[0].as_text(), Some(line.repeat(2).as_str()));
    assert_eq!(output.content[1].as_text(), Some("[lines 90000 to 90001; read on with \"offset\": 90002]"));
    assert!(!output.extras.contains_key("sha256"));
    ws.fails("fs:read", json!({"path": "big.log", "offset": 100_001}), FAILED, &["100000 lines"]).await;
    ws.fails("fs:write", json!({"path": "big.log", "content": ""}), FAILED, &["8 MiB"]).await;
}

#[tokio::test]
async fn binary_files_are_refused_with_a_message() {
    let ws = Workspace::new();
    ws.put("bin", b"\x7fELF\0\0");
    ws.put("dir/x", "");
    ws.put("latin1", b"caf\xe9\n");
    ws.fails("fs:read", json!({"path": "bin"}), FAILED, &["binary", "6 bytes"]).await;
    ws.fails("fs:read", json!({"path": "dir"}), FAILED, &["directory", "fs__tree"]).await;
    ws.fails("fs:read", json!({"path": "gone"}), FAILED, &["gone", "fs__glob"]).await;
    ws.fails("fs:read", json!({"path": "a\0b"}), FAILED, &["cannot"]).await;
    assert!(ws.ok("fs:read", json!({"path": "latin1"})).await.contains("not UTF-8"));
    assert_eq!(ws.ok("fs:read", json!({"path": "dir/x"})).await, "[the file is empty]");
    let ws = Workspace::with_guard(PathGuard::Off);
    ws.fails("fs:read", json!({"path": "/dev/zero"}), FAILED, &["not a regular file"]).await;
}

/// Every way out of the workspace that we know of, as a path that exists.
fn escape_paths(ws: &Workspace) -> Vec<String> {
    let outside = ws.outer.path().join("secret");
    std::fs::write(&outside, "secret").expect("file");
    std::fs::create_dir(ws.outer.path().join("ws-other")).expect("folder");
    std::fs::write(ws.outer.path().join("ws-other/secret"), "secret").expect("file");
    symlink(&outside, ws.path("link")).expect("link");
    symlink(ws.outer.path(), ws.path("folder")).expect("link");
    symlink("folder/secret", ws.path("link-to-link")).expect("link");
    ws.put("sub/x", "");
    let outside = outside.display();
    vec![
        "../secret".to_owned(),
        "sub/../../secret".to_owned(),
        "../ws-other/secret".to_owned(),
        outside.to_string(),
        format!("/proc/self/root{outside}"),
        format!("{}/../secret", ws.path("").display()),
        "link".to_owned(),
        "folder/secret".to_owned(),
        "link-to-link".to_owned(),
    ]
}

#[tokio::test]
async fn no_path_escapes_the_workspace() {
    let ws = Workspace::new();
    for path in escape_paths(&ws) {
        let words = ["outside the workspace root", "--root", "defaults.path_guard"];
        ws.fails("fs:read", json!({"path": path}), ErrorKind::NotPermitted, &words).await;
        ws.fails("fs:write", json!({"path": path, "content": "x"}), ErrorKind::NotPermitted, &words).await;
        let edit = json!({"path": path, "old_string": "secret", "new_string": "x"});
        ws.fails("fs:edit", edit, ErrorKind::NotPermitted, &words).await;
        assert_eq!(ws.scope("fs:write", &json!({"path": path})), CallScope::Anywhere, "{path}");
    }
    for path in ["..", "folder", "/", "/proc/self/cwd"] {
        ws.fails("fs:glob", json!({"pattern": "*", "path": path}), ErrorKind::NotPermitted, &[]).await;
        ws.fails("fs:grep", json!({"pattern": "secret", "path": path}), ErrorKind::NotPermitted, &[]).await;
        ws.fails("fs:tree", json!({"path": path}), ErrorKind::NotPermitted, &[]).await;
    }
    assert_eq!(std::fs::read_to_string(ws.outer.path().join("secret")).expect("still there"), "secret");
    assert!(ws.ok("fs:grep", json!({"pattern": "secret"})).await.contains("no match"), "links are not followed");
}

#[tokio::test]
async fn new_files_are_judged_by_their_folder() {
    let ws = Workspace::new();
    escape_paths(&ws);
    symlink(ws.outer.path().join("not-yet"), ws.path("dangling")).expect("link");
    for path in ["../new", "folder/new", "folder/a/b/new", "/proc/self/cwd/../../../../../../../../new"] {
        ws.fails("fs:write", json!({"path": path, "content": "x"}), ErrorKind::NotPermitted, &[]).await;
    }
    for path in ["dangling", "dangling/new", "nowhere/../../new"] {
        ws.fails("fs:write", json!({"path": path, "content": "x"}), FAILED, &[]).await;
    }
    assert_eq!(std::fs::read_dir(ws.outer.path()).expect("folder").count(), 3, "ws, ws-other, secret");
    for (path, scope) in
        [("a/b/new", CallScope::Workspace), ("../new", CallScope::Anywhere), ("dangling", CallScope::Anywhere)]
    {
        assert_eq!(ws.scope("fs:write", &json!({"path": path, "content": ""})), scope, "{path}");
    }
    assert_eq!(ws.scope("fs:tree", &json!({})), CallScope::Workspace);
    assert_eq!(ws.scope("shell:bash", &json!({"command": "true"})), CallScope::Anywhere);
}

#[tokio::test]
async fn the_guard_can_warn_or_be_off() {
    let ws = Workspace::with_guard(PathGuard::Warn);
    for path in escape_paths(&ws) {
        let output = ws.call("fs:read", json!({"path": path})).await.expect("reads");
        assert!(output.extras["path_guard"].as_str().expect("text").contains("outside"), "{path}");
        assert_eq!(ws.scope("fs:read", &json!({"path": path})), CallScope::Anywhere);
    }
    let output = ws.call("fs:read", json!({"path": "sub/../sub/x"})).await.expect("reads");
    assert!(!output.extras.contains_key("path_guard"));

    let ws = Workspace::with_guard(PathGuard::Off);
    for path in escape_paths(&ws) {
        assert_eq!(ws.ok("fs:read", json!({"path": path})).await, "secret");
    }
}

#[tokio::test]
async fn files_must_be_read_before_changes() {
    let ws = Workspace::new();
    ws.put("a.txt", "one\n");
    let write = json!({"path": "a.txt", "content": "two\n"});
    let edit = json!({"path": "a.txt", "old_string": "one", "new_string": "1"});
    ws.fails("fs:write", write.clone(), FAILED, &["has not read it", "fs__read", "expected_hash"]).await;
    ws.fails("fs:edit", edit.clone(), FAILED, &["has not read it"]).await;

    ws.ok("fs:read", json!({"path": "a.txt", "limit": 1})).await;
    ws.put("a.txt", "one more\n");
    ws.fails("fs:write", write.clone(), FAILED, &["has changed"]).await;

    ws.ok("fs:read", json!({"path": "./a.txt"})).await;
    ws.ok("fs:edit", edit).await;
    assert_eq!(ws.ok("fs:write", write.clone()).await, "replaced a.txt: 1 line, 4 bytes");
    ws.ok("fs:write", write).await;
    assert_eq!(ws.get("a.txt"), "two\n");
}

#[tokio::test]
async fn a_matching_hash_replaces_reading_the_file() {
    let mut ws = Workspace::new();
    ws.services().files = std::sync::Arc::new(NoFileState);
    ws.put("a.txt", "one\n");
    let write = |hash: Option<&str>| match hash {
        Some(hash) => json!({"path": "a.txt", "content": "two\n", "expected_hash": hash}),
        None => json!({"path": "a.txt", "content": "two\n"}),
    };
    let read = ws.call("fs:read", json!({"path": "a.txt"})).await.expect("reads");
    ws.fails("fs:write", write(None), FAILED, &["not remembered", "expected_hash"]).await;
    ws.fails("fs:write", write(Some(&"0".repeat(64))), FAILED, &["read it again"]).await;
    ws.ok("fs:write", write(read.extras["sha256"].as_str())).await;
    assert_eq!(ws.get("a.txt"), "two\n");
}

#[tokio::test]
async fn writing_makes_folders_and_keeps_permissions() {
    let ws = Workspace::new();
    let made = ws.call("fs:write", json!({"path": "a/b/c.txt", "content": "x"})).await.expect("writes");
    assert_eq!(
        (made.content[0].as_text(), &made.extras["created"]),
        (Some("created a/b/c.txt: 1 line, 1 byte"), &json!(true))
    );
    let mode = |path: &str| std::fs::metadata(ws.path(path)).expect("file").permissions().mode() & 0o7777;
    std::fs::write(ws.path("plain"), "").expect("file");
    assert_eq!(mode("a/b/c.txt"), mode("plain"), "as the umask says");

    ws.put("run.sh", "#!/bin/sh\n");
    std::fs::set_permissions(ws.path("run.sh"), PermissionsExt::from_mode(0o750)).expect("mode");
    symlink("run.sh", ws.path("alias.sh")).expect("link");
    ws.ok("fs:read", json!({"path": "alias.sh"})).await;
    ws.ok("fs:write", json!({"path": "alias.sh", "content": "#!/bin/bash\n"})).await;
    assert_eq!((ws.get("run.sh").as_str(), mode("run.sh")), ("#!/bin/bash\n", 0o750));
    assert!(ws.path("alias.sh").is_symlink());
    assert_eq!(std::fs::read_dir(ws.path("")).expect("folder").count(), 4, "no temporary file stays");

    ws.fails("fs:write", json!({"path": "a", "content": "x"}), FAILED, &["directory"]).await;
    ws.fails("fs:write", json!({"path": "plain/x", "content": "x"}), FAILED, &["plain/x"]).await;
}

fn project() -> Workspace {
    let ws = Workspace::new();
    ws.put("src/main.rs", "fn main() {\n    // TODO one\n    run();\n}\n");
    ws.put("src/deep/lib.rs", "// todo two\n// TODO three\n");
    ws.put("README.md", "# Title\n");
    ws.put(".gitignore", "target/\n*.log\n");
    ws.put(".hidden/notes.rs", "TODO hidden\n");
    ws.put(".git/config", "TODO never\n");
    ws.put("target/out.rs", "TODO ignored\n");
    ws.put("x.log", "TODO ignored\n");
    ws.put("bin.dat", b"TODO\0\0");
    ws
}

#[tokio::test]
async fn glob_finds_files_by_path() {
    let ws = project();
    for (arguments, expect) in [
        (json!({"pattern": "*.rs"}), "src/deep/lib.rs\nsrc/main.rs\n"),
        (json!({"pattern": "src/*.rs"}), "src/main.rs\n"),
        (json!({"pattern": "./**/lib.*"}), "src/deep/lib.rs\n"),
        (json!({"pattern": "*.{md,rs}", "path": "src/deep"}), "src/deep/lib.rs\n"),
        (json!({"pattern": "*.rs", "hidden": true}), ".hidden/notes.rs\nsrc/deep/lib.rs\nsrc/main.rs\n"),
        (
            json!({"pattern": "*.rs", "limit": 1}),
            "src/deep/lib.rs\n[the first 1 of 2 files: narrow the pattern or raise limit]",
        ),
        (json!({"pattern": "*.py"}), "[no file matches `*.py` in .]"),
        (json!({"pattern": "main.rs", "path": "src/main.rs"}), "src/main.rs\n"),
    ] {
        assert_eq!(ws.ok("fs:glob", arguments.clone()).await, expect, "{arguments}");
    }
    ws.fails("fs:glob", json!({"pattern": "a{b"}), ErrorKind::InvalidParameters, &["not a glob"]).await;
    ws.fails("fs:glob", json!({"pattern": "/etc/*"}), ErrorKind::InvalidParameters, &["absolute"]).await;
    ws.fails("fs:glob", json!({"pattern": "*", "path": "gone"}), FAILED, &["gone"]).await;
}

#[tokio::test]
async fn grep_finds_text_in_files() {
    let ws = project();
    for (arguments, expect) in [
        (json!({"pattern": "TODO"}), "src/deep/lib.rs:2:// TODO three\nsrc/main.rs:2:    // TODO one\n"),
        (json!({"pattern": "todo", "case_insensitive": true, "mode": "count"}), "src/deep/lib.rs:2\nsrc/main.rs:1\n"),
        (json!({"pattern": "TODO", "mode": "files", "glob": "main*"}), "src/main.rs\n"),
        (
            json!({"pattern": "run", "context": 1}),
            "src/main.rs-2-    // TODO one\nsrc/main.rs:3:    run();\nsrc/main.rs-4-}\n",
        ),
        (json!({"pattern": "^# \\w+$", "path": "README.md"}), "README.md:1:# Title\n"),
        (
            json!({"pattern": "(?i)todo", "path": "src", "limit": 1}),
            "src/deep/lib.rs:1:// todo two\n[the first 1 matches: narrow the search or raise limit]",
        ),
        (json!({"pattern": "TODO", "mode": "files", "limit": 2}), "src/deep/lib.rs\nsrc/main.rs\n"),
        (
            json!({"pattern": "TODO", "mode": "files", "limit": 1}),
            "src/deep/lib.rs\n[the first 1 files: narrow the search or raise limit]",
        ),
        (json!({"pattern": "nowhere"}), "[no match for `nowhere` in .]"),
        (json!({"pattern": "hidden", "hidden": true}), ".hidden/notes.rs:1:TODO hidden\n"),
        (json!({"pattern": "t", "type": "md", "case_insensitive": true}), "README.md:1:# Title\n"),
        (json!({"pattern": "todo", "type": "py"}), "[no match for `todo` in .]"),
        (
            json!({"pattern": "main.*run", "multiline": true}),
            "src/main.rs:1:fn main() {\nsrc/main.rs:2:    // TODO one\nsrc/main.rs:3:    run();\n",
        ),
        (json!({"pattern": "^// \\w+ three$", "multiline": true, "mode": "count"}), "src/deep/lib.rs:1\n"),
    ] {
        assert_eq!(ws.ok("fs:grep", arguments.clone()).await, expect, "{arguments}");
    }
    ws.fails("fs:grep", json!({"pattern": "("}), ErrorKind::InvalidParameters, &["regular expression"]).await;
    let error = ErrorKind::InvalidParameters;
    ws.fails("fs:grep", json!({"pattern": "x", "type": "rusty"}), error, &["no type of files", "`rust`"]).await;
    ws.put("long.txt", format!("TODO{}\n", "ä".repeat(1000)));
    assert!(
        ws.ok("fs:grep", json!({"pattern": "TODO", "path": "long.txt"}))
            .await
            .contains("toolwright cut 1504 of 2004 bytes")
    );
}

#[tokio::test]
async fn tree_lists_folders() {
    let ws = project();
    symlink("src", ws.path("link")).expect("link");
    let all = "./\n  README.md\n  bin.dat\n  link -> src\n  src/\n    deep/\n      lib.rs\n    main.rs\n";
    for (arguments, expect) in [
        (json!({}), all),
        (json!({"path": "src", "depth": 1}), "src/\n  deep/\n  main.rs\n"),
        (
            json!({"path": "src", "limit": 1}),
            "src/\n  deep/\n[the first 1 entries: list a folder below, or raise limit]",
        ),
    ] {
        assert_eq!(ws.ok("fs:tree", arguments.clone()).await, expect, "{arguments}");
    }
    std::fs::create_dir(ws.path("empty")).expect("folder");
    assert!(ws.ok("fs:tree", json!({"path": "empty"})).await.contains("is empty"));
    ws.fails("fs:tree", json!({"path": "README.md"}), FAILED, &["fs__read"]).await;
}

#[tokio::test]
async fn searches_report_how_much_they_covered() {
    let mut ws = Workspace::new();
    (0..40).for_each(|n| ws.put(&format!("d{}/f{n:02}", n / 10), "x\n"));
    let whole = json!(true);
    for (tool, arguments) in
        [("fs:glob", json!({"pattern": "nowhere"})), ("fs:grep", json!({"pattern": "nowhere"})), ("fs:tree", json!({}))]
    {
        let output = ws.call(tool, arguments).await.expect("searches");
        assert_eq!((&output.extras["complete"], &output.extras["looked_at"]), (&whole, &json!(44)), "{tool}");
    }
    ws.services().clock = Arc::new(FakeClock::ticking());
    for (tool, arguments, expect) in [
        ("fs:glob", json!({"pattern": "*", "timeout_ms": 9000}), "d0/f00\n"),
        ("fs:glob", json!({"pattern": "nowhere", "timeout_ms": 9000}), "so far: no file matches"),
        ("fs:grep", json!({"pattern": "x", "timeout_ms": 20_000}), "d0/f00:1:x\n"),
        ("fs:grep", json!({"pattern": "nowhere", "timeout_ms": 20_000}), "so far: no match for"),
        ("fs:tree", json!({"timeout_ms": 9000}), "./\n  d0/\n    f00\n"),
    ] {
        let output = ws.call(tool, arguments.clone()).await.expect("searches");
        let text = joined_text(&output.content);
        for words in [expect, "not finished: stopped after", "entries looked at, before `d0", "raise timeout_ms"] {
            assert!(text.contains(words), "{tool} {arguments}: {words:?} is not in {text}");
        }
        assert_eq!(output.extras["complete"], json!(false), "{tool} {arguments}");
    }
}

#[tokio::test]
async fn first_results_are_reported_early() {
    let ws = project();
    for (tool, arguments, first) in [
        ("fs:glob", json!({"pattern": "*.rs"}), "src/deep/lib.rs\n"),
        ("fs:grep", json!({"pattern": "TODO"}), "src/deep/lib.rs:2:// TODO three\n"),
        ("fs:tree", json!({}), "./\n  README.md\n"),
    ] {
        ws.ok(tool, arguments).await;
        let reports = std::mem::take(&mut *ws.reports.0.lock().expect("lock"));
        assert_eq!(reports.first(), Some(&Partial::Text(first.to_owned())), "{tool}");
    }
}

/// Cancels its call with the first report.
struct CancelsAtFirst(Cancel);

impl toolwright_core::context::PartialSink for CancelsAtFirst {
    fn send(&self, _partial: Partial) {
        self.0.cancel(CancelCause::User);
    }
}

#[tokio::test]
async fn first_results_come_before_searches_end() {
    let mut ws = Workspace::new();
    (0..3_000).for_each(|n| ws.put(&format!("d{:02}/f{n}.txt", n / 100), "some words\n"));
    for (tool, arguments) in [
        ("fs:glob", json!({"pattern": "*.txt"})),
        ("fs:grep", json!({"pattern": "words"})),
        ("fs:tree", json!({"limit": 10_000})),
    ] {
        ws.context.cancel = Cancel::new();
        ws.context.partials = Arc::new(CancelsAtFirst(ws.context.cancel.clone()));
        let error = ws.call(tool, arguments).await.expect_err("a report came before the end");
        assert_eq!(error.cancel_cause(), Some(CancelCause::User), "{tool}");
    }
}

#[tokio::test]
async fn walks_stop_when_cancelled() {
    let ws = project();
    ws.context.cancel.cancel(CancelCause::User);
    for (id, arguments) in
        [("fs:glob", json!({"pattern": "*"})), ("fs:grep", json!({"pattern": "x"})), ("fs:tree", json!({}))]
    {
        let error = ws.call(id, arguments).await.expect_err("cancelled");
        assert_eq!(error.cancel_cause(), Some(CancelCause::User));
    }
}

/// Takes the time of the first report.
struct FirstReport(Instant, std::sync::Mutex<Option<Duration>>);

impl toolwright_core::context::PartialSink for FirstReport {
    fn send(&self, _partial: Partial) {
        self.1.lock().expect("lock").get_or_insert_with(|| self.0.elapsed());
    }
}

/// Prints times; `cargo test -p toolwright-providers --release --test it large_tree -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "makes 500,000 files"]
async fn figures_of_a_large_tree() {
    let mut ws = Workspace::new();
    for folder in 0..1000 {
        let path = ws.path(&format!("d{:02}/s{:02}", folder / 20, folder % 20));
        std::fs::create_dir_all(&path).expect("folders");
        (0..500).for_each(|n| std::fs::write(path.join(format!("f{n:03}.txt")), "some words\n").expect("file"));
    }
    ws.put("d25/s10/rare.rs", "needle\n");
    for (tool, arguments) in [
        ("fs:glob", json!({"pattern": "*.txt", "timeout_ms": 60_000})),
        ("fs:glob", json!({"pattern": "*.rs", "timeout_ms": 60_000})),
        ("fs:grep", json!({"pattern": "words", "limit": 10_000, "timeout_ms": 60_000})),
        ("fs:grep", json!({"pattern": "needle", "timeout_ms": 60_000})),
        ("fs:grep", json!({"pattern": "needle", "type": "rust", "timeout_ms": 60_000})),
        ("fs:grep", json!({"pattern": "nowhere"})),
        ("fs:tree", json!({"limit": 10_000})),
    ] {
        let report = Arc::new(FirstReport(Instant::now(), std::sync::Mutex::default()));
        ws.context.partials = report.clone();
        let output = ws.call(tool, arguments.clone()).await.expect("searches");
        let (first, all) = (*report.1.lock().expect("lock"), report.0.elapsed());
        let looked_at = &output.extras["looked_at"];
        eprintln!("{tool} {arguments}: first {first:?}, all {all:?}, looked at {looked_at}");
    }
}
