//! What people read at a terminal of 80 columns.

use unicode_width::UnicodeWidthStr as _;

use crate::command_line::cli::{ok, run};
use crate::command_line::terminal::Terminal;
use crate::support::{Fixture, until};

/// Lines that pass 80 columns although a space in them would have let them be broken.
pub(crate) fn too_wide(said: &str) -> Vec<String> {
    // What a status line was before it was taken away is not there any more.
    let lines = said.lines().map(|line| line.rsplit("\u{1b}[K").next().unwrap_or_default());
    let is_breakable = |line: &&str| line.split(' ').map(str::len).max().is_some_and(|longest| longest < 60);
    lines
        .map(|line| line.trim_end_matches('\r'))
        .filter(|line| line.width() > 80)
        .filter(is_breakable)
        .map(str::to_owned)
        .collect()
}

/// The program with these arguments at a terminal of 80 columns, where all of its output is.
pub(crate) fn at_terminal(fixture: &Fixture, arguments: &[&str]) -> Terminal {
    Terminal::start_with(fixture, arguments, &[("COLUMNS", String::new())], true)
}

const CONFIG: &str = "mcpServers:
  odd:
    command: MISBEHAVING
    env: {A_VARIABLE_WITH_A_LONG_NAME: '${HOME}', ANOTHER: 'a value of some length, which says nothing'}
  a-server-with-quite-a-long-name: {command: no-such-program-anywhere, args: [serve, --with, many, --words, in, it]}
restTools:
  issue: {description: Reads an issue of the tracker., url: 'https://tracker.example/issues/1'}
policy:
  rules:
  - {effect: allow, tool: 'shell__*'}
  - {effect: ask, tool: 'fs:write'}
";

fn config() -> String {
    CONFIG.replace("MISBEHAVING", &toolwright_testkit::bin("misbehaving-mcp").display().to_string())
}

#[test]
fn every_command_fits_eighty_columns() {
    let fixture = Fixture::with(&config());
    fixture.write("project/a.txt", "some words\n");
    fixture.write(
        "project/tools.jsonl",
        "{\"id\": \"t/1\", \"name\": \"getForecast\", \"description\": \"What the weather will be.\"}\n",
    );
    fixture.write("project/cases.jsonl", "{\"query\": \"weather\", \"tool\": \"t/1\"}\n");
    run(&fixture, &["call", "shell__bash", "command=false"]);
    ok(&fixture, &["call", "fs__read", "path=a.txt"]);
    let evaluated = ["--catalogue", "tools.jsonl"];
    let mut commands: Vec<Vec<&str>> = vec![
        vec!["doctor"],
        vec!["tools", "ls"],
        vec!["tools", "ls", "--tokens"],
        vec!["tools", "search", "read a file"],
        vec!["tools", "show", "fs__read"],
        vec!["pick", "read a file"],
        vec!["pick", "translate a poem into klingon"],
        vec!["demo"],
        vec!["approvals", "ls"],
        vec!["approvals", "ls", "--standing"],
        vec!["jobs", "ls"],
        vec!["trace"],
        vec!["trace", "last"],
        vec!["mcp", "ls"],
        vec!["pins", "ls"],
        vec!["call", "fs__read", "pth=a.txt"],
        vec!["call", "fs__raed"],
        vec!["call", "shell__bash", "command=seq 10000; exit 3", "--max-output", "300"],
        vec!["run", "x"],
    ];
    commands.push([&["eval", "select", "--cases", "cases.jsonl"][..], &evaluated].concat());
    commands.push([&["eval", "tokens", "--task", "cases.jsonl"][..], &evaluated].concat());
    for arguments in commands {
        let mut terminal = at_terminal(&fixture, &arguments);
        if arguments == ["demo"] {
            terminal.types("[y]es, [n]o, [s]kip", "n\n");
        }
        let (code, said) = terminal.ended_whole();
        assert!(code.is_some() && !said.is_empty(), "{arguments:?}: {said}");
        assert_eq!(too_wide(&said), Vec::<String>::new(), "{arguments:?}: {said}");
    }
}

#[test]
fn unapproved_file_notices_fit_eighty_columns() {
    let fixture = Fixture::new();
    fixture.write_as_stranger("project/toolwright.yaml", &config());
    let (_, shown) = at_terminal(&fixture, &["trust", "--show"]).ended_whole();
    assert!(shown.contains("It starts:"), "{shown}");
    let serving = at_terminal(&fixture, &["serve", "--http", "127.0.0.1:0"]);
    until("it asks", || serving.shown_text().contains("[y/N]") || serving.shown_text().contains("ready"));
    for said in [shown, serving.shown_text()] {
        assert_eq!(too_wide(&said), Vec::<String>::new(), "{said}");
    }
}
