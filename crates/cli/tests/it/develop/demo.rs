//! `toolwright demo`: what a newcomer sees first.

use serde_json::Value;

use crate::command_line::cli::{program, run, stderr};
use crate::support::Fixture;

#[test]
fn the_demo_needs_neither_terminal_key_nor_network() {
    let fixture = Fixture::with("mcpServers:\n  broken:\n    command: no-such-program-anywhere\n");
    let folder = tempfile::tempdir().expect("folder");
    let before: Vec<_> = walk(&fixture.path(""));
    let output = program(&fixture).arg("demo").env("TMPDIR", folder.path()).output().expect("the program runs");
    let said = String::from_utf8(output.stdout.clone()).expect("text");
    assert!(output.status.success(), "{said}{}", stderr(&output));
    for words in [
        "the model is a script",
        "that fit the task",
        "→ weather__forecast",
        "search that for Saturday",
        "✓ output__grep",
        "? shop__order waits for a person's approval",
        "There is no terminal to ask at",
        "Ordered: order 1: 6 x lemonade, 14.40 EUR.",
        "wrote `days` of weather:forecast as \"7\"; it ran with 7",
        "success: 4 turns, 5 calls",
        "$0.0",
        "toolwright run \"TASK\"",
    ] {
        assert!(said.contains(words), "{words:?} is not in: {said}");
    }
    let wide: Vec<&str> = said.lines().filter(|line| line.chars().count() > 80).collect();
    assert!(wide.is_empty(), "{wide:?}");
    assert_eq!(stderr(&output), "");
    assert_eq!(walk(&fixture.path("")), before, "it wrote somewhere");
    assert_eq!(walk(folder.path()).len(), 0, "it left something behind");
}

#[test]
fn the_demo_gives_its_report_as_json() {
    let output = run(&Fixture::new(), &["demo", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).expect("one document");
    assert_eq!((&report["status"], report["calls"].as_array().map(Vec::len)), (&"success".into(), Some(5)), "{report}");
    assert!(stderr(&output).contains("the model is a script"));
}

/// All files below a folder.
fn walk(folder: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .expect("folder")
        .filter_map(Result::ok)
        .flat_map(|entry| if entry.path().is_dir() { walk(&entry.path()) } else { vec![entry.path()] })
        .collect();
    found.sort();
    found
}
