//! Edits of files: what is matched, what is kept, and what is said where nothing is.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use toolwright_core::ContentHash;
use toolwright_core::error::ErrorKind;
use toolwright_providers::builtin::BuiltinOptions;

use crate::files::workspace::Workspace;

const FAILED: ErrorKind = ErrorKind::ExecutionError;

/// What an edit comes to.
enum Expect<'a> {
    /// The new content, and what the match is reported with.
    Content(&'a [u8], &'a [&'a str]),
    /// Nothing is written, and these words say why.
    Refused(&'a [&'a str]),
    /// Nothing is written, since it was applied already.
    Applied,
}
use Expect::{Applied, Content, Refused};

async fn check(before: &[u8], old: &str, new: &str, all: bool, expect: Expect<'_>) {
    let ws = Workspace::new();
    ws.put("f", before);
    let hash = ContentHash::of_bytes(before).to_hex();
    let arguments =
        json!({"path": "f", "old_string": old, "new_string": new, "replace_all": all, "expected_hash": hash});
    let case = format!("{old:?} -> {new:?}");
    let after = || std::fs::read(ws.path("f")).expect("file");
    match expect {
        Content(content, matched_with) => {
            let output = ws.call("fs:edit", arguments).await.expect(&case);
            assert_eq!(String::from_utf8_lossy(&after()), String::from_utf8_lossy(content), "{case}");
            assert_eq!(after(), content, "{case}");
            assert_eq!(output.extras["matched_with"], json!(matched_with), "{case}");
        }
        Refused(words) => {
            ws.fails("fs:edit", arguments, FAILED, words).await;
            assert_eq!(after(), before, "{case}");
        }
        Applied => {
            let output = ws.call("fs:edit", arguments).await.expect(&case);
            assert_eq!((&output.extras["already_applied"], after()), (&json!(true), before.to_vec()), "{case}");
        }
    }
}

/// A file, the text to replace, its replacement, whether everywhere, and what comes of it.
type EditCase<'a> = (&'a str, &'a str, &'a str, bool, Expect<'a>);

async fn check_all(cases: &[EditCase<'_>]) {
    for (before, old, new, all, expect) in cases {
        let expect = match expect {
            Content(content, with) => Content(content, with),
            Refused(words) => Refused(words),
            Applied => Applied,
        };
        check(before.as_bytes(), old, new, *all, expect).await;
    }
}

/// The kinds of edit that public benchmarks of edit tools measure, and the reports of users where such tools fail.
#[tokio::test]
async fn edits_of_public_benchmarks() {
    let exact = &["exact"][..];
    let rust =
        "fn one() {\n    let limit = 10;\n    run(limit);\n}\n\nfn two() {\n    let limit = 10;\n    stop(limit);\n}\n";
    let cases: &[EditCase<'_>] = &[
        // A word, a line, a block, the first and the last line, an insertion, a deletion.
        ("a = 1\nb = 2\n", "b = 2", "b = 3", false, Content(b"a = 1\nb = 3\n", exact)),
        ("one\ntwo\nthree\n", "two\n", "", false, Content(b"one\nthree\n", exact)),
        ("one\nthree\n", "one\n", "one\ntwo\n", false, Content(b"one\ntwo\nthree\n", exact)),
        ("one\ntwo\n", "one", "zero\none", false, Content(b"zero\none\ntwo\n", exact)),
        ("one\ntwo", "two", "two\nthree", false, Content(b"one\ntwo\nthree", exact)),
        ("if (a) {\n  b();\n}\n", "if (a) {\n  b();\n}", "b();", false, Content(b"b();\n", exact)),
        ("x", "x", "", false, Content(b"", exact)),
        // What is special elsewhere is text here: expressions, replacement groups, escapes, long dashes of minus signs.
        ("a.*b $1 \\n %s\n", ".*b $1 \\n", "$0 \\1 \\t", false, Content(b"a$0 \\1 \\t %s\n", exact)),
        (
            "<<<<<<< HEAD\na\n=======\nb\n>>>>>>> x\n",
            "<<<<<<< HEAD\na\n=======\nb\n>>>>>>> x",
            "b",
            false,
            Content(b"b\n", exact),
        ),
        // The same text at several places.
        (rust, "    let limit = 10;", "    let limit = 20;", false, Refused(&["occurs 2 times", "lines 2, 7"])),
        (
            rust,
            "let limit = 10;\n    stop",
            "let limit = 20;\n    stop",
            false,
            Content(rust.replacen("10;\n    stop", "20;\n    stop", 1).as_bytes().to_vec().leak(), exact),
        ),
        (rust, "limit", "most", true, Content(rust.replace("limit", "most").into_bytes().leak(), exact)),
        ("aaaa", "aa", "b", true, Content(b"bb", exact)),
        ("}\n}\n}\nz\n", "}\n}\n", "}\n", false, Refused(&["occurs 2 times", "lines 1, 2"])),
        ("}\r\n}\r\n}\r\nz\r\n", "}\n}\n", "}\n", false, Refused(&["occurs 2 times", "lines 1, 2"])),
        ("}\n}\n}\nz\n", "}\n}\n", "", true, Content(b"}\nz\n", exact)),
        ("b b", "b", "bb", true, Content(b"bb bb", exact)),
    ];
    check_all(cases).await;
}

#[tokio::test]
async fn tabs_and_spaces_match() {
    let cases: &[EditCase<'_>] = &[
        // Spaces for tabs: new lines get the file's tabs, also those that go deeper.
        (
            "\tif x {\n\t\ty();\n\t}\n",
            "    if x {\n        y();\n    }",
            "    if x {\n        z {\n            y();\n        }\n    }",
            false,
            Content(b"\tif x {\n\t\tz {\n\t\t\ty();\n\t\t}\n\t}\n", &["tabs"]),
        ),
        (
            "\tif x {\n\t\ty();\n",
            "  if x {\n    y();\n",
            "  if x {\n    z();\n",
            false,
            Content(b"\tif x {\n\t\tz();\n", &["tabs"]),
        ),
        ("    a:\n        b\n", "\ta:\n\t\tb", "\ta:\n\t\tc", false, Content(b"    a:\n        c\n", &["tabs"])),
        (
            "all:\n\tmake\n",
            "all:\n    make",
            "all: dep\n    make -j",
            false,
            Content(b"all: dep\n\tmake -j\n", &["tabs"]),
        ),
        // Indentation of another depth is no equivalent.
        ("        a\n", "    b\n        a", "x", false, Refused(&["was not found"])),
        (
            "def f():\n    a\n    b\n",
            "def f():\n  a\n  b",
            "def f():\n  c",
            false,
            Refused(&["nearest", "line 1", "-  a", "+    a"]),
        ),
    ];
    check_all(cases).await;
}

#[tokio::test]
async fn spaces_at_line_ends_are_ignored() {
    let cases: &[EditCase<'_>] = &[
        // Space at the ends of lines; lines that are not changed keep theirs.
        ("a  \nb\t\nc\n", "a\nb\nc", "a\nx\nc", false, Content(b"a  \nx\nc\n", &["trailing_space"])),
        ("a\nb\n", "a  \nb ", "a\nc", false, Content(b"a\nc\n", &["trailing_space"])),
        ("ab\n", "a ", "c", false, Refused(&["was not found"])),
        ("a\n\t\nb\n", "a\n\nb", "a\nb", false, Content(b"a\nb\n", &["trailing_space"])),
    ];
    check_all(cases).await;
}

#[tokio::test]
async fn line_ends_of_the_file_are_kept() {
    let exact = &["exact"][..];
    let cases: &[EditCase<'_>] = &[
        // Line ends.
        ("a\r\nb\r\n", "a\nb", "a\nx\nb", false, Content(b"a\r\nx\r\nb\r\n", &["line_ends"])),
        ("a\r\nb\r\n", "b", "b\nc", false, Content(b"a\r\nb\r\nc\r\n", exact)),
        ("a\r\nb\n", "a\nb", "a\nb\nc", false, Content(b"a\r\nb\nc\n", &["line_ends"])),
        ("a\nb\n", "a\r\nb", "a\r\nc", false, Content(b"a\nc\n", &["line_ends"])),
        ("a\r\nb\nc\n", "a\r\n", "a\n", false, Content(b"a\nb\nc\n", exact)),
        ("\tx\r\n\ty\r\n", "    x\n    y", "    x\n    z", false, Content(b"\tx\r\n\tz\r\n", &["line_ends", "tabs"])),
        // A final newline that is missing stays missing.
        ("a\nb", "b\n", "c\n", false, Content(b"a\nc", &["final_newline"])),
        ("a\nb", "a\nb\n", "a\nc\nb\n", false, Content(b"a\nc\nb", &["final_newline"])),
        ("a\nb", "a\n", "x\n", false, Content(b"x\nb", exact)),
        // The byte order mark.
        ("\u{feff}a\n", "a", "b", false, Content("\u{feff}b\n".as_bytes(), exact)),
        ("\u{feff}a\n", "\u{feff}a", "b", false, Content("\u{feff}b\n".as_bytes(), exact)),
    ];
    check_all(cases).await;
}

#[tokio::test]
async fn typographic_characters_match_plain_ones() {
    let exact = &["exact"][..];
    let cases: &[EditCase<'_>] = &[
        // Typographic quotes, dashes and spaces; what the edit does not touch keeps them.
        (
            "say \u{201c}hi\u{201d} now\n",
            "say \"hi\" now",
            "say \"hi\" later",
            false,
            Content("say \u{201c}hi\u{201d} later\n".as_bytes(), &["unicode"]),
        ),
        (
            "it\u{2019}s a\u{a0}b\n",
            "it's a b",
            "it's a c",
            false,
            Content("it\u{2019}s a\u{a0}c\n".as_bytes(), &["unicode"]),
        ),
        ("2020\u{2013}2021\n", "2020-2021", "2020-2022", false, Content("2020\u{2013}2022\n".as_bytes(), &["unicode"])),
        ("say 'hi'\n", "say \u{2018}hi\u{2019}", "say 'ho'", false, Content(b"say 'ho'\n", &["unicode"])),
        (
            "\u{201c}a\u{201d}\nb\n",
            "\"a\"\nb",
            "\"a\"\nc",
            false,
            Content("\u{201c}a\u{201d}\nc\n".as_bytes(), &["unicode"]),
        ),
        ("\"a\" \u{201c}a\u{201d}", "\"a\"", "x", false, Content("x \u{201c}a\u{201d}".as_bytes(), exact)),
        (
            "\u{201c}a\u{201d} \u{201e}a\u{201d}\n",
            "\"a\"",
            "x",
            false,
            Refused(&["occurs 2 times", "but for unicode", "lines 1, 1"]),
        ),
        (
            "größe = \u{201c}x\u{201d}\n",
            "größe = \"x\"",
            "größe = 1",
            false,
            Content("größe = 1\n".as_bytes(), &["unicode"]),
        ),
    ];
    check_all(cases).await;
}

#[tokio::test]
async fn likeness_is_no_match() {
    let cases: &[EditCase<'_>] = &[
        // Likeness is no match, however close.
        (
            "let colour = 1;\n",
            "let color = 1;",
            "let color = 2;",
            false,
            Refused(&["nearest", "-let color", "+let colour"]),
        ),
        ("a,b\n", "a, b", "c", false, Refused(&["was not found"])),
        ("alpha\n", "omega\n", "x", false, Refused(&["was not found", "nor text like it"])),
        ("    12\tlet x;\n", "     1\tlet y;", "z", false, Refused(&["was not found"])),
        // Applied before.
        ("fn new_name() {}\n", "fn old_name() {}", "fn new_name() {}", false, Applied),
        ("\tlet answer = 42;\n", "    let answer = 41;", "    let answer = 42;", false, Applied),
        ("}\n", "foo", "}", false, Refused(&["was not found"])),
        ("a\n", "a", "a", false, Refused(&["nothing would change"])),
        ("a\r\n", "a\n", "a\r\n", false, Refused(&["nothing would change"])),
        // Empty files and long lines.
        ("", "a", "b", false, Refused(&["was not found"])),
    ];
    check_all(cases).await;
}

#[tokio::test]
async fn bytes_that_are_no_text_are_kept() {
    check(b"caf\xe9 a", "a", "b", false, Refused(&["occurs 2 times"])).await;
    check(b"caf\xe9 x", "x", "y", false, Content(b"caf\xe9 y", &["exact"])).await;
    check(b"\tcaf\xe9\n\tx\n", "    x", "    y", false, Content(b"\tcaf\xe9\n\ty\n", &["tabs"])).await;
    check(b"caf\xe9 x", "x", "\u{e9}", false, Refused(&["not UTF-8"])).await;
    check(b"a\0b", "a", "b", false, Refused(&["binary"])).await;
    let long = [vec![b'x'; 200_000], b"\nend\n".to_vec()].concat();
    check(&long, "enb", "y", false, Refused(&["was not found"])).await;
}

#[tokio::test]
async fn results_name_places_and_grade() {
    let ws = Workspace::new();
    ws.put("f", "1\n2\nx\n4\nx\n");
    ws.ok("fs:read", json!({"path": "f"})).await;
    let edit = json!({"path": "f", "old_string": "x", "new_string": "y\ny", "replace_all": true});
    assert_eq!(ws.ok("fs:edit", edit).await, "edited f in 2 places (line 3, 6)");
    let edit = json!({"path": "f", "old_string": "2 \ny", "new_string": "2\nz"});
    assert_eq!(ws.ok("fs:edit", edit).await, "edited f in 1 place (line 2), matched but for trailing_space");
    ws.fails("fs:edit", json!({"path": "new", "old_string": "x", "new_string": "y"}), FAILED, &["fs__write"]).await;
}

/// Three files that have been read.
async fn three() -> Workspace {
    let ws = Workspace::new();
    for (name, text) in [("a", "one\ntwo\n"), ("b", "one\r\n"), ("c", "one")] {
        ws.put(name, text);
        ws.ok("fs:read", json!({"path": name})).await;
    }
    std::fs::set_permissions(ws.path("b"), PermissionsExt::from_mode(0o750)).expect("mode");
    ws
}

fn edit(path: &str, old: &str, new: &str) -> Value {
    json!({"path": path, "old_string": old, "new_string": new})
}

fn contents(ws: &Workspace) -> [String; 3] {
    ["a", "b", "c"].map(|name| ws.get(name))
}

#[tokio::test]
async fn many_edits_are_one_step() {
    let ws = three().await;
    let edits =
        json!([edit("a", "one", "1"), edit("./a", "1\ntwo", "1\n2"), edit("b", "one", "1\n2"), edit("c", "one", "1")]);
    let text = ws.ok("fs:multi_edit", json!({"edits": edits})).await;
    assert!(text.starts_with("changed 3 files\n1. a: in 1 place (line 1)\n2. a: in 1 place (line 1)\n"), "{text}");
    assert_eq!(contents(&ws), ["1\n2\n", "1\r\n2\r\n", "1"]);
    assert_eq!(std::fs::metadata(ws.path("b")).expect("file").permissions().mode() & 0o777, 0o750);
    assert_eq!(std::fs::read_dir(ws.path("")).expect("folder").count(), 3, "no temporary file stays");
    ws.ok("fs:multi_edit", json!({"edits": [edit("a", "1", "one")]})).await;
}

#[tokio::test]
async fn modes_define_the_effect_of_failures() {
    let edits = json!([edit("a", "one", "1"), edit("a", "gone", "x"), edit("b", "one", "1"), edit("d", "x", "y")]);
    for (mode, expect) in [
        ("strict", ["one\ntwo\n", "one\r\n", "one"]),
        ("partial", ["one\ntwo\n", "1\r\n", "one"]),
        ("best_effort", ["1\ntwo\n", "1\r\n", "one"]),
    ] {
        let ws = three().await;
        let dry = json!({"edits": edits, "mode": mode, "dry_run": true});
        if mode == "strict" {
            let words = ["nothing was written", "2 of 4 edits", "2. a: failed", "4. d: failed", "does not exist"];
            ws.fails("fs:multi_edit", dry, FAILED, &words).await;
            ws.fails("fs:multi_edit", json!({"edits": edits}), FAILED, &words).await;
        } else {
            let text = ws.ok("fs:multi_edit", dry).await;
            assert!(text.contains("nothing was written") && text.contains("--- b\n+++ b\n"), "{text}");
            assert_eq!(contents(&ws), ["one\ntwo\n", "one\r\n", "one"]);
            let text = ws.ok("fs:multi_edit", json!({"edits": edits, "mode": mode})).await;
            assert_eq!(text.contains("1. a: left out with its file"), mode == "partial", "{text}");
        }
        assert_eq!(contents(&ws), expect, "{mode}");
    }
}

#[tokio::test]
async fn stale_files_fail_their_edits() {
    let ws = three().await;
    ws.put("b", "one more\n");
    let edits = json!([edit("a", "one", "1"), edit("b", "one", "1")]);
    ws.fails("fs:multi_edit", json!({"edits": edits}), FAILED, &["2. b", "has changed"]).await;
    assert_eq!(ws.get("a"), "one\ntwo\n");
    let mut hashed = edit("b", "one", "1");
    hashed["expected_hash"] = "0".repeat(64).into();
    ws.fails("fs:multi_edit", json!({"edits": [hashed]}), FAILED, &["expected_hash"]).await;
    ws.fails("fs:multi_edit", json!({"edits": [edit("../x", "a", "b")]}), FAILED, &["outside the workspace"]).await;
}

const KILLED: &str = "TOOLWRIGHT_TEST_KILLED_EDIT";
const FILES: usize = 60;

/// The process that is killed below: changes all files from one generation to the next, for ever.
#[tokio::test]
#[ignore = "runs as a child of the test below"]
async fn edits_until_it_is_killed() {
    let Some(root) = std::env::var_os(KILLED).map(PathBuf::from) else { return };
    let ws = at(&root);
    for generation in 0.. {
        let edits = (0..FILES).map(|n| {
            let mut edit = edit(&format!("f{n}"), &format!("<{generation}>"), &format!("<{}>", generation + 1));
            edit["expected_hash"] = ContentHash::of_bytes(format!("<{generation}>").as_bytes()).to_hex().into();
            edit
        });
        ws.ok("fs:multi_edit", json!({"edits": edits.collect::<Vec<_>>()})).await;
    }
}

fn at(root: &Path) -> Workspace {
    let journals = root.join("journals");
    Workspace::at(root.join("ws"), |_| BuiltinOptions { edit_journals: Some(journals), ..BuiltinOptions::default() })
}

#[tokio::test]
async fn a_killed_edit_is_complete_or_undone() {
    let (mut interrupted, mut moved) = (0, 0);
    for round in 0..12 {
        let root = tempfile::tempdir().expect("folder");
        let folder = root.path().join("ws");
        std::fs::create_dir(&folder).expect("root");
        for n in 0..FILES {
            std::fs::write(folder.join(format!("f{n}")), "<0>").expect("file");
        }
        let mut child = Command::new(std::env::current_exe().expect("this test"))
            .args(["--ignored", "--exact", "files::edits::edits_until_it_is_killed"])
            .env(KILLED, root.path())
            .env("TMPDIR", root.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("starts");
        // Once it works, at another moment each time.
        while std::fs::read_to_string(folder.join("f0")).expect("file") == "<0>" {
            assert!(child.try_wait().expect("known").is_none(), "it runs");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(700 * round));
        child.kill().expect("killed");
        child.wait().expect("gone");
        interrupted += std::fs::read_dir(root.path().join("journals")).expect("folder").count();
        let _recovered = at(root.path());
        let all: Vec<_> =
            (0..FILES).map(|n| std::fs::read_to_string(folder.join(format!("f{n}"))).expect("file")).collect();
        assert!(all.iter().all(|text| *text == all[0]), "{all:?}");
        assert_eq!(std::fs::read_dir(&folder).expect("folder").count(), FILES, "nothing is left behind");
        assert_eq!(std::fs::read_dir(root.path().join("journals")).expect("folder").count(), 0);
        moved += usize::from(all[0] != "<0>");
    }
    assert!(interrupted > 0 && moved > 0, "some were killed in the middle: {interrupted}");
}

#[test]
fn a_change_is_shown_before_it_is_made() {
    let ws = Workspace::new();
    ws.put("a.txt", "one\ntwo\n");
    ws.put("b.txt", "three\n");
    ws.put("image", [0, 1, 2]);
    let check = |id: &str, arguments: Value, expect: Option<&str>| {
        assert_eq!(ws.changes(id, &arguments).as_deref(), expect, "{id} {arguments}");
    };
    let edit = |path: &str, old: &str, new: &str| json!({"path": path, "old_string": old, "new_string": new});
    let two = "--- a.txt\n+++ a.txt\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n";
    check("fs:edit", edit("a.txt", "two", "2"), Some(two));
    check("fs:edit", edit("a.txt", "four", "4"), None);
    check("fs:edit", edit("c.txt", "two", "2"), None);
    check("fs:write", json!({"path": "a.txt", "content": "one\n2\n"}), Some(two));
    let created = "--- d/new.txt\n+++ d/new.txt\n@@ -1,0 +1,1 @@\n+hello\n";
    check("fs:write", json!({"path": "d/new.txt", "content": "hello\n"}), Some(created));
    check("fs:write", json!({"path": "image", "content": "x"}), None);
    check("fs:write", json!({"path": "../outside", "content": "x"}), None);
    let both = format!("{two}--- b.txt\n+++ b.txt\n@@ -1,1 +1,1 @@\n-three\n+3\n");
    let edits = json!([edit("a.txt", "two", "zwei"), edit("b.txt", "three", "3"), edit("a.txt", "zwei", "2")]);
    check("fs:multi_edit", json!({"edits": edits, "mode": "strict", "dry_run": false}), Some(&both));
    assert_eq!(ws.get("a.txt"), "one\ntwo\n");
}
