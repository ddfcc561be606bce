//! Output: answers on standard output, everything else on standard error; colours only on a terminal.

use std::borrow::Cow;
use std::io::{IsTerminal as _, Write};
use std::sync::{Arc, OnceLock};

use anstyle::{AnsiColor, Style};
use serde_json::Value;
use toolwright::core::Redactor as _;
use toolwright::runtime::SecretRedactor;

/// The redactor of the house, once there is one: the boundary that all output of the program passes.
static REDACTOR: OnceLock<Arc<SecretRedactor>> = OnceLock::new();

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();

/// From now on, what this redactor knows is not printed.
pub(crate) fn redact_with(redactor: &Arc<SecretRedactor>) {
    // A process opens one house.
    let _ = REDACTOR.set(Arc::clone(redactor));
}

/// The text without secrets.
pub(crate) fn redacted(text: &str) -> Cow<'_, str> {
    REDACTOR.get().map_or(Cow::Borrowed(text), |redactor| redactor.redact(text))
}

/// Standard output, styles taken out unless it is a terminal.
pub(crate) fn stdout() -> impl Write {
    anstream::stdout()
}

/// One line on standard error. A standard error that is gone is nobody's to tell.
pub(crate) fn say(line: impl std::fmt::Display) {
    let _ = writeln!(anstream::stderr(), "{}", redacted(&line.to_string()));
}

/// Text in a style, for a stream that takes styles out where they do not belong.
pub(crate) fn styled(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Text on standard output, and a line feed.
pub(crate) fn print_text(text: &str) -> std::io::Result<()> {
    writeln!(stdout(), "{}", redacted(text))
}

/// One JSON document on standard output: indented for a person, one line for a program.
pub(crate) fn print_json(value: &Value) -> std::io::Result<()> {
    let value =
        &REDACTOR.get().map_or_else(|| Cow::Borrowed(value), |redactor| Cow::Owned(redactor.redact_value(value)));
    let mut out = stdout();
    if std::io::stdout().is_terminal() { writeln!(out, "{value:#}") } else { writeln!(out, "{value}") }
}

/// Whether a person can be asked: both ends are a terminal.
pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// The text on one line, at most `max` characters; control characters, which could move a terminal's
/// cursor, become spaces.
pub(crate) fn one_line(text: &str, max: usize) -> String {
    let mut out: String = text.chars().take(max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(max).is_some() {
        out.push('…');
    }
    out
}

/// The text with control characters, other than line feeds and tabs, taken out.
pub(crate) fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// Bytes as people read them.
pub(crate) fn size(bytes: usize) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} kB", kilo(bytes)),
        _ => format!("{:.1} MB", kilo(bytes / 1024)),
    }
}

fn kilo(bytes: usize) -> f64 {
    f64::from(u32::try_from(bytes).unwrap_or(u32::MAX)) / 1024.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_made_harmless() {
        assert_eq!(one_line("a\nb\u{1b}[2J", 4), "a b …");
        assert_eq!(harmless("a\n\u{1b}[2Jb\r"), "a\n[2Jb");
        assert_eq!((size(7), size(2048), size(5 << 20)), ("7 B".into(), "2.0 kB".into(), "5.0 MB".into()));
    }
}
