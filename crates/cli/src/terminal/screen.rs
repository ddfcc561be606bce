//! Output: answers on standard output, everything else on standard error. Colours and wrapping only at a terminal.

use std::borrow::Cow;
use std::io::{IsTerminal as _, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use anstyle::{AnsiColor, Style};
use serde_json::Value;
use tokio::sync::{Mutex, MutexGuard};
use toolwright::core::Redactor as _;
use toolwright::core::tool_id::{ToolId, wire_candidate};
use toolwright::runtime::{Catalogue, SecretRedactor};
use unicode_width::UnicodeWidthStr as _;
use url::Url;

/// Toolwright's redactor, once it exists, through which all output passes.
static REDACTOR: OnceLock<Arc<SecretRedactor>> = OnceLock::new();

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const WARN: Style = AnsiColor::Yellow.on_default();

/// The screen of a run: one writer at a time, and tools under the names that commands take.
pub(crate) struct Screen {
    turn: Mutex<()>,
    catalogue: Arc<Catalogue>,
}

impl Screen {
    pub(crate) fn new(catalogue: Arc<Catalogue>) -> Self {
        Self { turn: Mutex::default(), catalogue }
    }

    /// Locks the screen for writing.
    pub(crate) async fn hold(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Returns the present number of tools.
    pub(crate) fn tools(&self) -> usize {
        self.catalogue.snapshot().list().len()
    }

    /// Returns the tool's wire name; for a removed tool, the name it would have.
    pub(crate) fn name(&self, tool: &ToolId) -> String {
        match self.catalogue.snapshot().get(tool.as_str()) {
            Some(entry) => entry.wire_name.clone(),
            None => wire_candidate(tool.namespace(), tool.name()),
        }
    }
}

/// From now on redacts output by this redactor.
pub(crate) fn redact_with(redactor: &Arc<SecretRedactor>) {
    // A process opens only one instance.
    let _ = REDACTOR.set(Arc::clone(redactor));
}

/// Returns the text without secrets.
pub(crate) fn redacted(text: &str) -> Cow<'_, str> {
    REDACTOR.get().map_or(Cow::Borrowed(text), |redactor| redactor.redact(text))
}

/// Returns the value without secrets.
pub(crate) fn redacted_value(value: &Value) -> Value {
    REDACTOR.get().map_or_else(|| value.clone(), |redactor| redactor.redact_value(value))
}

/// Returns standard output, which removes styles unless it is a terminal.
pub(crate) fn stdout() -> impl Write {
    anstream::stdout()
}

/// Prints a line on standard error. A failure is ignored.
pub(crate) fn say(line: impl std::fmt::Display) {
    clear_status();
    let line = line.to_string();
    let _ = writeln!(anstream::stderr(), "{}", wrapped(&redacted(&line), error_columns()));
}

/// Prints an error on standard error. Problems of a file already contain file, line and severity.
pub(crate) fn say_error(message: &str) {
    say_under(BAD, "error:", message);
}

/// Prints a warning.
pub(crate) fn say_warning(message: &str) {
    say_under(WARN, "warning:", message);
}

fn say_under(style: Style, label: &str, message: &str) {
    if has_severity(message) {
        say(styled(style, message));
    } else {
        say(format_args!("{} {message}", styled(style, label)));
    }
}

/// Returns whether a message begins with `error: …`, or with `FILE:LINE: error: …` as problems of the configuration do.
fn has_severity(message: &str) -> bool {
    let severities = ["error: ", "warning: ", "entry left out: "];
    let behind_place = || {
        let (place, rest) = message.split_once(": ")?;
        let is_place = !place.contains([' ', '\n']);
        Some(is_place && severities.iter().any(|severity| rest.starts_with(severity)))
    };
    severities.iter().any(|severity| message.starts_with(severity)) || behind_place().unwrap_or(false)
}

/// Returns text in a style, for a stream that removes unsupported styles.
pub(crate) fn styled(style: Style, text: impl std::fmt::Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Prints text on standard output, wrapped for a terminal, and a line feed.
pub(crate) fn print_text(text: &str) -> std::io::Result<()> {
    print_unwrapped(&wrapped(&redacted(text), columns()))
}

/// Like [`print_text`], for lines that must not be wrapped.
pub(crate) fn print_unwrapped(text: &str) -> std::io::Result<()> {
    clear_status();
    writeln!(stdout(), "{}", redacted(text))
}

/// Like [`print_text`], for a tool's own result: only this instance's secrets are redacted.
pub(crate) fn print_result_text(text: &str) -> std::io::Result<()> {
    let known = REDACTOR.get().map(|redactor| redactor.of_known_values());
    print_foreign(&known.as_ref().map_or(Cow::Borrowed(text), |known| known.redact(text)))
}

/// Like [`print_text`], for text that a tool has written: unchanged for a program, made harmless for a terminal.
pub(crate) fn print_written(text: &str) -> std::io::Result<()> {
    print_foreign(&redacted(text))
}

fn print_foreign(text: &str) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    if out.is_terminal() { writeln!(out, "{}", sanitize(text)) } else { writeln!(out, "{text}") }
}

/// Like [`print_json`], for a tool's own result: except in `error`, only this instance's secrets are redacted.
pub(crate) fn print_result_json(result: &Value) -> std::io::Result<()> {
    print_safe_json(&REDACTOR.get().map_or_else(|| result.clone(), |redactor| redactor.redact_result(result)))
}

/// Prints a JSON document on standard output: indented for a person, in one line for a program.
pub(crate) fn print_json(value: &Value) -> std::io::Result<()> {
    print_safe_json(&redacted_value(value))
}

fn print_safe_json(value: &Value) -> std::io::Result<()> {
    // Not through `stdout`, which would remove bytes that are valid in JSON, such as U+007F.
    let mut out = std::io::stdout();
    if out.is_terminal() { writeln!(out, "{}", seen_json(&format!("{value:#}"))) } else { writeln!(out, "{value}") }
}

/// Returns whether a person can be asked: both ends are a terminal.
pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Returns the columns of the terminal at standard output; `None` without one.
pub(crate) fn columns() -> Option<usize> {
    let out = std::io::stdout();
    out.is_terminal().then(|| width_of(terminal_size::terminal_size_of(&out)))
}

/// Returns the same for standard error.
fn error_columns() -> Option<usize> {
    let err = std::io::stderr();
    err.is_terminal().then(|| width_of(terminal_size::terminal_size_of(&err)))
}

/// Returns `COLUMNS`, the terminal's width, or the minimum of all terminals.
fn width_of(size: Option<(terminal_size::Width, terminal_size::Height)>) -> usize {
    let configured = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    configured.or(size.map(|(width, _)| usize::from(width.0))).filter(|width| *width > 0).unwrap_or(80)
}

/// A status line at the end of the screen. It is redrawn, and disappears before other output. Not shown without a
/// terminal.
#[derive(Default)]
pub(crate) struct StatusLine(());

/// Whether a status line is shown.
static STATUS: AtomicBool = AtomicBool::new(false);

impl StatusLine {
    /// Replaces the shown status.
    pub(crate) fn show(&mut self, text: &str) {
        let Some(width) = error_columns() else { return };
        let line = styled(DIM, redacted(&one_line(text, width.saturating_sub(2))));
        // A failure is ignored.
        let _ = write!(std::io::stderr(), "\r\u{1b}[K");
        let _ = write!(anstream::stderr(), "{line}");
        let _ = std::io::stderr().flush();
        STATUS.store(true, Ordering::Relaxed);
    }

    /// Removes the status line.
    pub(crate) fn clear(&mut self) {
        clear_status();
    }
}

fn clear_status() {
    if STATUS.swap(false, Ordering::Relaxed) {
        let _ = write!(std::io::stderr(), "\r\u{1b}[K");
        let _ = std::io::stderr().flush();
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Returns the text on one line of at most `max` characters; otherwise as [`sanitize`].
pub(crate) fn one_line(text: &str, max: usize) -> String {
    let spaced = |c: char| if matches!(c, '\n' | '\t' | '\r' | '\u{1b}') { ' ' } else { c };
    let mut out = sanitize(&text.chars().take(max).map(spaced).collect::<String>());
    if text.chars().nth(max).is_some() {
        out.push('…');
    }
    out
}

/// Makes a text safe to show: characters that would move the cursor, change the writing direction or be invisible are
/// written as `\u{…}`. Line feeds and tabs stay; carriage returns and colour escapes are removed.
pub(crate) fn sanitize(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut before = ' ';
    for c in text.chars() {
        match c {
            '\r' | '\u{1b}' => {}
            '\n' | '\t' => out.push(c),
            _ if is_unseen(c) && !(is_joiner(c) && !before.is_ascii() && !is_unseen(before)) => {
                out.extend(c.escape_unicode());
            }
            _ => out.push(c),
        }
        if !is_joiner(c) {
            before = c;
        }
    }
    out
}

/// Makes JSON safe to show without changing its meaning: invisible characters in its strings are written as `\uXXXX`.
pub(crate) fn seen_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        if c != '\n' && is_unseen(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                out.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            out.push(c);
        }
    }
    out
}

/// Prepares a model's text for its reader or another program: unchanged except that control characters other than line
/// feeds and tabs are removed. Applying it to the pieces of a stream gives the same result.
pub(crate) fn prose(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

/// Returns whether the text contains invisible characters.
pub(crate) fn has_invisible(text: &str) -> bool {
    text.chars().any(is_unseen)
}

/// Returns whether a character is a control character, or an invisible one of Unicode: these join, hide, change the
/// writing direction or choose a variant.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}')
}

/// Returns whether a character is a joiner or variant selector. After a non-ASCII letter these belong to the spelling
/// of many scripts and to emoji; elsewhere they only hide.
fn is_joiner(c: char) -> bool {
    matches!(c, '\u{200c}' | '\u{200d}' | '\u{fe00}'..='\u{fe0f}' | '\u{e0100}'..='\u{e01ef}')
}

/// Formats bytes for people.
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

/// The indentation of continued lines.
const HANGING: usize = 2;

/// Wraps the text to lines of at most `width` columns between words. Longer words, such as paths and addresses, stay
/// whole for copying. `None`: no terminal, so the text is unchanged.
pub(crate) fn wrapped(text: &str, width: Option<usize>) -> Cow<'_, str> {
    match width {
        Some(width) if text.lines().any(|line| visible(line) > width) => {
            Cow::Owned(text.split('\n').map(|line| broken(line, width)).collect::<Vec<_>>().join("\n"))
        }
        _ => Cow::Borrowed(text),
    }
}

fn broken(line: &str, width: usize) -> Cow<'_, str> {
    if visible(line) <= width {
        return Cow::Borrowed(line);
    }
    let plain = anstream::adapter::strip_str(line).to_string();
    let indent = plain.len() - plain.trim_start_matches(' ').len() + HANGING;
    let indent = if indent > width / 2 { HANGING } else { indent };
    let (mut out, mut used, mut has_word) = (String::with_capacity(line.len() + 8), 0, false);
    for (number, word) in line.split(' ').enumerate() {
        let columns = visible(word);
        if number > 0 && has_word && columns > 0 && used + 1 + columns > width {
            out.truncate(out.trim_end_matches(' ').len());
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            (used, has_word) = (indent, false);
        } else if number > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += columns;
        has_word |= columns > 0;
    }
    Cow::Owned(out)
}

/// Returns the columns of a text; styles take none.
fn visible(text: &str) -> usize {
    if text.contains('\u{1b}') { anstream::adapter::strip_str(text).to_string().width() } else { text.width() }
}

/// Opens a page in the user's browser, without waiting for it. Returns whether a browser was found.
pub(crate) fn open_page(url: &Url) -> bool {
    let (program, before): (_, &[&str]) = if cfg!(target_os = "macos") {
        ("open", &[])
    } else if cfg!(windows) {
        ("rundll32", &["url.dll,FileProtocolHandler"])
    } else {
        ("xdg-open", &[])
    };
    let mut command = Command::new(program);
    command.args(before).arg(url.as_str()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::terminal::screen::{BOLD, WARN, styled};

    use super::*;

    #[test]
    fn text_is_made_harmless() {
        assert_eq!(one_line("a\nb\u{1b}[2J", 4), "a b …");
        assert_eq!(sanitize("a\n\u{1b}[2Jb\r"), "a\n[2Jb");
        assert_eq!(sanitize("rm \u{202e}cod/\u{200b}x\u{7f}\u{e0041}"), "rm \\u{202e}cod/\\u{200b}x\\u{7f}\\u{e0041}");
        assert_eq!(one_line("a\u{2066}b\u{ad}", 9), "a\\u{2066}b\\u{ad}");
        // Persian and emoji keep their joiners; after ASCII the same character hides.
        for kept in ["می\u{200c}خواهم", "👩\u{200d}🚀", "❤\u{fe0f}\u{200d}🔥"] {
            assert_eq!(sanitize(kept), kept);
        }
        assert_eq!(prose("\u{fe0f}\u{200f}x\u{1b}[2J\n"), "\u{fe0f}\u{200f}x[2J\n");
        assert_eq!(sanitize("a\u{200d}b"), "a\\u{200d}b");
        let value = json!({"a\u{202e}": ["\u{9b}2J\n", "\u{e0041}\u{7f}é"]});
        let shown = seen_json(&format!("{value:#}"));
        assert!(!has_invisible(&shown.replace('\n', "")) && shown.contains("\\u009b2J"), "{shown}");
        assert_eq!(serde_json::from_str::<Value>(&shown).ok(), Some(value));
        assert_eq!((size(7), size(2048), size(5 << 20)), ("7 B".into(), "2.0 kB".into(), "5.0 MB".into()));
    }

    #[test]
    fn lines_break_between_words_and_keep_their_styles() {
        let text = format!("  {} was started {}", styled(BOLD, "server"), styled(WARN, "but it does not answer"));
        let shown = wrapped(&text, Some(24));
        let plain = anstream::adapter::strip_str(&shown).to_string();
        assert_eq!(plain, "  server was started but\n    it does not answer");
        assert_eq!(shown.replace("\n    ", " "), text, "nothing is lost");
        for whole in ["short", "a https://a.example/an/address/that/is/long"] {
            assert_eq!(wrapped(whole, None), whole);
        }
        assert_eq!(
            wrapped("see https://a.example/an/address now", Some(12)),
            "see\n  https://a.example/an/address\n  now"
        );
        assert_eq!(wrapped("日本語の 説明がここ", Some(12)), "日本語の\n  説明がここ");
    }
}
