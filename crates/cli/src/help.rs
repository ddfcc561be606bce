//! Help texts: grouped commands, one line per option with `--help`, everything with `toolwright help COMMAND`.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::builder::styling::Styles;
use clap::{CommandFactory as _, FromArgMatches as _};

use crate::args::Cli;
use crate::terminal::screen::{BOLD, columns, styled};

/// The commands by what they are for. A command that stands nowhere is listed in the last group.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Start", &["demo", "init", "add", "import", "remove", "trust", "config", "doctor"]),
    ("Use", &["serve", "run", "chat", "call", "tools", "pick"]),
    ("Operate", &["approvals", "jobs", "trace", "policy", "pins", "mcp"]),
    ("Develop", &["validate", "encode", "decode", "eval", "bench", "catalogue", "completions", "help"]),
];

/// Examples of commands, by their path.
const EXAMPLES: [(&str, &[&str]); 18] = [
    (
        "add",
        &[
            "toolwright add git -- uvx mcp-server-git",
            "toolwright add tickets --url https://host/mcp --header 'Authorization: Bearer ${TOKEN}'",
        ],
    ),
    (
        "import",
        &[
            "toolwright import cursor --dry-run",
            "toolwright import openapi ./api.yaml --prefix shop --tag orders --method get",
        ],
    ),
    (
        "serve",
        &[
            "toolwright serve --stdio                       # started by an MCP client",
            "toolwright serve --http 127.0.0.1:7117         # one server for several clients",
        ],
    ),
    (
        "run",
        &[
            "toolwright run --policy workspace \"List every TODO in todo.md\"",
            "git diff | toolwright run --policy ask - --format markdown > review.md",
        ],
    ),
    ("chat", &["toolwright chat --model openai/gpt-5-mini --policy workspace"]),
    (
        "call",
        &[
            "toolwright call fs__grep pattern=TODO path=src",
            "toolwright call fs__read '{\"path\": \"Cargo.toml\"}' --json",
            "toolwright call shell__bash command=\"make -j2 all\" --background",
        ],
    ),
    ("tools", &["toolwright tools ls", "toolwright tools search \"read a file\"", "toolwright tools show fs__read"]),
    ("tools ls", &["toolwright tools ls --namespace fs", "toolwright tools ls --tokens"]),
    ("pick", &["toolwright pick \"tell me when it rains in Oslo\" --max 5 --json"]),
    ("approvals", &["toolwright approvals ls", "toolwright approvals approve ID"]),
    ("jobs", &["toolwright jobs ls --open", "toolwright jobs show ID --wait 30s", "toolwright jobs stop ID"]),
    ("trace", &["toolwright trace", "toolwright trace last"]),
    ("policy", &["toolwright policy test fs:write '{\"path\": \"a.txt\"}'"]),
    ("pins", &["toolwright pins ls --waiting", "toolwright pins diff", "toolwright pins approve github/search"]),
    ("mcp", &["toolwright mcp ls", "toolwright mcp login tickets"]),
    ("validate", &["toolwright validate --tool fs__read \"{path: 'Cargo.toml', limit: '5',}\""]),
    ("encode", &["toolwright encode --api openai-chat --tools tools.json --strict"]),
    ("decode", &["toolwright decode --format anthropic --tools tools.json answer.txt"]),
];

const LAYOUT: &str = "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}\
    \u{1b}[1mOptions:\u{1b}[0m\n{options}{after-help}";

/// Columns of help at most.
const WIDEST: usize = 100;
/// Where all of it stands.
const MORE: &str = "`toolwright COMMAND --help` is short; `toolwright help COMMAND` says everything.";

/// The definition of the command line, with its help.
pub(crate) fn command() -> clap::Command {
    let mut command = shortened(Cli::command(), "");
    let groups = groups(&command);
    // Its own text of the groups, so the list that clap would write is left out.
    command = command.help_template(LAYOUT).before_help(StyledStr::from(groups.clone())).before_long_help(groups);
    command = command.styles(Styles::styled().header(BOLD).usage(BOLD));
    let exit_codes = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    command.after_help(MORE).after_long_help(format!("{exit_codes}\n\n{MORE}"))
}

/// The command line of this process.
///
/// # Errors
/// Help, the version, or a command line that is none.
pub(crate) fn parse() -> Result<Cli, clap::Error> {
    let mut command = command().term_width(columns().map_or(WIDEST, |columns| columns.min(WIDEST)));
    let matches = command.try_get_matches_from_mut(std::env::args_os())?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// The command and those below it: the short help of each thing is its first sentence, the long one is all.
fn shortened(command: clap::Command, path: &str) -> clap::Command {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    let mut command = command;
    if let Some(about) = about {
        command = command.about(first_sentence(&about).to_owned()).long_about(about);
    }
    if let Some((_, examples)) = EXAMPLES.iter().find(|(of, _)| *of == path) {
        let mut text = styled(BOLD, "Examples:");
        for example in *examples {
            let _ = write!(text, "\n  {example}");
        }
        if let Some(more) = command.get_after_long_help().or(command.get_after_help()).cloned() {
            command = command.after_long_help(format!("{text}\n\n{more}"));
        }
        command = command.after_help(text);
    }
    command = command.mut_args(|arg| match arg.get_long_help().or(arg.get_help()).map(ToString::to_string) {
        Some(help) => arg.help(first_sentence(&help).to_owned()).long_help(help),
        None => arg,
    });
    command.mut_subcommands(|sub| {
        let path = if path.is_empty() { sub.get_name().to_owned() } else { format!("{path} {}", sub.get_name()) };
        shortened(sub, &path)
    })
}

/// Up to the first full stop before a capital letter, without it, or the end of the paragraph.
fn first_sentence(text: &str) -> &str {
    let paragraph = text.split("\n\n").next().unwrap_or(text);
    let ends = paragraph.match_indices(". ").map(|(at, _)| at);
    let is_end = |at: &usize| paragraph[at + 2..].starts_with(|c: char| c.is_uppercase() || c == '`');
    ends.into_iter().find(is_end).map_or(paragraph.trim_end_matches('.'), |at| &paragraph[..at])
}

/// The groups, each with its commands and what they do.
fn groups(command: &clap::Command) -> String {
    let known = |name: &str| GROUPS.iter().any(|(_, names)| names.contains(&name));
    let visible = || command.get_subcommands().filter(|sub| !sub.is_hide_set());
    let mut text = String::new();
    for (number, (group, names)) in GROUPS.iter().enumerate() {
        let _ = writeln!(text, "{}", styled(BOLD, format_args!("{group}:")));
        let mut line = |name: &str, about: &str| {
            let _ = writeln!(text, "  {}  {about}", styled(BOLD, format_args!("{name:<11}")));
        };
        let listed = names.iter().filter_map(|name| visible().find(|sub| sub.get_name() == *name));
        let others = visible().filter(|sub| number + 1 == GROUPS.len() && !known(sub.get_name()));
        for sub in listed.chain(others) {
            line(sub.get_name(), &sub.get_about().map(ToString::to_string).unwrap_or_default());
        }
        if names.contains(&"help") {
            line("help", "Print everything about a command");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_short_help_is_the_first_sentence() {
        for (text, expect) in [
            ("Lists tools.", "Lists tools"),
            ("Listens here. Default: `x`.", "Listens here"),
            ("As e.g. this one. `a` is b", "As e.g. this one"),
            ("One paragraph\n\nAnother. Third", "One paragraph"),
        ] {
            assert_eq!(first_sentence(text), expect);
        }
    }

    /// The words of an example, up to what belongs to the shell.
    fn words(example: &str) -> Vec<String> {
        let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
        for c in example.chars() {
            match (c, quote) {
                ('#' | '>', None) => break,
                (' ', None) => words.extend(word.take()),
                ('"' | '\'', None) => (quote, word) = (Some(c), Some(word.unwrap_or_default())),
                (c, Some(open)) if c == open => quote = None,
                (c, _) => word.get_or_insert_default().push(c),
            }
        }
        words.extend(word);
        words
    }

    #[test]
    fn every_example_is_a_command_line() {
        for example in EXAMPLES.iter().flat_map(|(_, examples)| *examples) {
            let ours = example.split_once("| ").map_or(*example, |(_, ours)| ours);
            let parsed = command().try_get_matches_from(words(ours));
            assert!(parsed.is_ok(), "{example}: {}", parsed.err().map(|error| error.to_string()).unwrap_or_default());
        }
    }

    #[test]
    fn help_of_every_command_fits_eighty_columns() {
        fn check(mut command: clap::Command, path: &str) {
            let help = command.clone().term_width(80).render_help().to_string();
            for line in help.lines().filter(|line| !line.starts_with("  toolwright ") && !line.starts_with("Usage:")) {
                assert!(line.chars().count() <= 80, "{path}: {line}");
            }
            command.build();
            for sub in command.get_subcommands() {
                check(sub.clone(), &format!("{path} {}", sub.get_name()));
            }
        }
        check(command(), "toolwright");
    }
}
