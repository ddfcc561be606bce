//! Renders Markdown at a terminal, each block as soon as it is complete.

use anstyle::Style;
use pulldown_cmark::{CodeBlockKind, Event, HeadingLevel, Options, Parser, Tag, TagEnd};
use unicode_width::UnicodeWidthStr as _;

use crate::terminal::screen::{BOLD, DIM};

/// The most bytes of an incomplete block.
const MAX_BLOCK: usize = 64 << 10;
const CODE: Style = anstyle::AnsiColor::Cyan.on_default();

/// A text that arrives in pieces.
pub(crate) struct Markdown {
    width: usize,
    waiting: String,
    /// Whether any block was shown; blocks are separated by an empty line.
    begun: bool,
}

impl Markdown {
    pub(crate) fn new(width: usize) -> Self {
        Self { width, waiting: String::new(), begun: false }
    }

    /// Adds a piece. Returns what can be shown now.
    pub(crate) fn push(&mut self, text: &str) -> String {
        self.waiting.push_str(text);
        match block_end(&self.waiting) {
            Some(end) => {
                let rest = self.waiting.split_off(end);
                let whole = std::mem::replace(&mut self.waiting, rest);
                self.show(&whole)
            }
            None if self.waiting.len() > MAX_BLOCK => self.end(),
            None => String::new(),
        }
    }

    /// Returns the rest at the end.
    pub(crate) fn end(&mut self) -> String {
        let rest = std::mem::take(&mut self.waiting);
        self.show(&rest)
    }

    fn show(&mut self, text: &str) -> String {
        let shown = render(text, self.width);
        if shown.is_empty() {
            return shown;
        }
        let gap = if std::mem::replace(&mut self.begun, true) { "\n" } else { "" };
        format!("{gap}{shown}\n")
    }
}

/// Returns the end of the last complete block: at an empty line outside of a fence, before a line that is not indented.
fn block_end(text: &str) -> Option<usize> {
    let (mut at, mut end, mut fence, mut empty) = (0, None, None::<&str>, false);
    for line in text.split_inclusive('\n') {
        let body = line.trim();
        if empty && fence.is_none() && !body.is_empty() && !line.starts_with([' ', '\t']) {
            end = Some(at);
        }
        let mark = ["```", "~~~"].into_iter().find(|mark| body.starts_with(mark));
        fence = match (fence, mark) {
            (None, mark) => mark,
            (Some(open), Some(mark)) if open == mark => None,
            (open, _) => open,
        };
        empty = body.is_empty();
        at += line.len();
    }
    end
}

/// Renders whole blocks as lines of at most `width` columns, except code and tables.
pub(crate) fn render(text: &str, width: usize) -> String {
    let mut out = Writer { width, ..Writer::default() };
    let options = Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    for event in Parser::new_ext(text, options) {
        out.event(event);
    }
    out.lines.join("\n").trim_end().to_owned()
}

#[derive(Default)]
struct Writer {
    width: usize,
    lines: Vec<String>,
    /// The current paragraph, heading or cell: pieces of text, each in a style.
    words: Vec<(Style, String)>,
    styles: Vec<Style>,
    /// The next item's number in each enclosing list.
    lists: Vec<Option<u64>>,
    /// The beginning of the next block's first line.
    mark: String,
    quotes: usize,
    code: Option<String>,
    row: Vec<String>,
    table: Vec<Vec<String>>,
    link: Option<String>,
}

impl Writer {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.close(tag),
            Event::Text(text) => match &mut self.code {
                Some(code) => code.push_str(&text),
                None => self.word(&text),
            },
            Event::Code(text) => self.words.push((CODE, text.into_string())),
            Event::SoftBreak => self.word(" "),
            Event::HardBreak => self.word("\n"),
            Event::Rule => self.block(vec![(DIM, "─".repeat(self.width.min(40)))]),
            Event::TaskListMarker(done) => self.word(if done { "[x] " } else { "[ ] " }),
            Event::Html(text) | Event::InlineHtml(text) | Event::FootnoteReference(text) => self.word(&text),
            Event::InlineMath(text) | Event::DisplayMath(text) => self.word(&text),
        }
    }

    fn word(&mut self, text: &str) {
        let style = self
            .styles
            .iter()
            .fold(Style::new(), |style, other| style.effects(style.get_effects() | other.get_effects()));
        self.words.push((style, text.to_owned()));
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => {
                self.styles.push(if level == HeadingLevel::H1 { BOLD.underline() } else { BOLD });
            }
            Tag::Strong => self.styles.push(BOLD),
            Tag::Emphasis => self.styles.push(Style::new().italic()),
            Tag::Strikethrough => self.styles.push(Style::new().strikethrough()),
            Tag::BlockQuote(_) => self.quotes += 1,
            Tag::CodeBlock(kind) => {
                self.flush();
                if let CodeBlockKind::Fenced(language) = kind
                    && !language.is_empty()
                {
                    self.block(vec![(DIM, language.into_string())]);
                    self.lines.pop_if(|line| line.is_empty());
                }
                self.code = Some(String::new());
            }
            Tag::List(first) => {
                self.flush();
                self.lists.push(first);
            }
            Tag::Item => {
                let depth = self.lists.len().saturating_sub(1);
                let mark = match self.lists.last_mut() {
                    Some(Some(number)) => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "• ".to_owned(),
                };
                self.mark = format!("{}{mark}", "  ".repeat(depth));
            }
            Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. } => self.link = Some(dest_url.into_string()),
            _ => {}
        }
    }

    fn close(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::Heading(_) | TagEnd::HtmlBlock => {
                if matches!(tag, TagEnd::Heading(_)) {
                    self.styles.pop();
                }
                self.flush();
                self.gap();
            }
            TagEnd::Strong | TagEnd::Emphasis | TagEnd::Strikethrough => drop(self.styles.pop()),
            TagEnd::BlockQuote(_) => self.quotes = self.quotes.saturating_sub(1),
            TagEnd::Item => self.flush(),
            TagEnd::List(_) => {
                self.lists.pop();
                self.gap();
            }
            TagEnd::CodeBlock => {
                let code = self.code.take().unwrap_or_default();
                let indent = "  ".repeat(self.lists.len());
                self.lines.extend(code.lines().map(|line| format!("{indent}  {CODE}{line}{CODE:#}")));
                self.gap();
            }
            TagEnd::Link | TagEnd::Image => {
                let said: String = self.words.iter().map(|(_, text)| text.as_str()).collect();
                if let Some(to) = self.link.take().filter(|to| !said.ends_with(to.as_str())) {
                    self.words.push((DIM, format!(" ({to})")));
                }
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.words).into_iter().map(|(_, text)| text).collect();
                self.row.push(cell);
            }
            TagEnd::TableRow | TagEnd::TableHead => self.table.push(std::mem::take(&mut self.row)),
            TagEnd::Table => self.draw_table(),
            _ => {}
        }
    }

    /// Writes an empty line, unless there is one, or the items of a list continue.
    fn gap(&mut self) {
        if self.lists.is_empty() && self.lines.last().is_some_and(|line| !line.is_empty()) {
            self.lines.push(String::new());
        }
    }

    fn flush(&mut self) {
        let words = std::mem::take(&mut self.words);
        if !words.is_empty() {
            self.block(words);
        }
    }

    /// Writes words in lines as wide as possible.
    fn block(&mut self, words: Vec<(Style, String)>) {
        let quote = "│ ".repeat(self.quotes);
        let mark = std::mem::take(&mut self.mark);
        let hanging = match (mark.is_empty(), self.lists.len()) {
            (false, _) => " ".repeat(mark.width()),
            (true, depth) => "  ".repeat(depth),
        };
        let first = if mark.is_empty() { hanging.clone() } else { mark };
        let room = self.width.saturating_sub(quote.width() + hanging.width()).max(10);
        let (mut line, mut used) = (format!("{quote}{first}"), 0);
        for (style, text) in words {
            for piece in text.split_inclusive([' ', '\n']) {
                let (word, ends) = (piece.trim_end_matches('\n'), piece.ends_with('\n'));
                if used > 0 && used + word.trim_end().width() > room {
                    self.lines.push(std::mem::replace(&mut line, format!("{quote}{hanging}")).trim_end().to_owned());
                    used = 0;
                }
                if !word.is_empty() {
                    line.push_str(&format!("{style}{word}{style:#}"));
                    used += word.width();
                }
                if ends {
                    self.lines.push(std::mem::replace(&mut line, format!("{quote}{hanging}")));
                    used = 0;
                }
            }
        }
        self.lines.push(line.trim_end().to_owned());
    }

    fn draw_table(&mut self) {
        let rows = std::mem::take(&mut self.table);
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |at: usize| rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.width()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (number, row) in rows.iter().enumerate() {
            let style = if number == 0 { BOLD } else { Style::new() };
            let cells = row.iter().zip(&widths).map(|(cell, width)| {
                format!("{style}{cell}{style:#}{}", " ".repeat(width.saturating_sub(cell.width())))
            });
            self.lines.push(cells.collect::<Vec<_>>().join("  ").trim_end().to_owned());
        }
        self.gap();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(text: &str) -> String {
        anstream::adapter::strip_str(text).to_string()
    }

    #[test]
    fn markdown_is_drawn_for_a_terminal() {
        let text = "# Title\n\nSome **bold** and `code` words that go on over the line.\n\n1. one\n2. two\n   - deep\n\n\
            ```rust\nlet x = 1;\n```\n\n| a | bb |\n|---|---|\n| 1 | 2 |\n\n> quoted\n\n[here](https://h/x)\n";
        assert_eq!(
            plain(&render(text, 30)),
            "Title\n\nSome bold and code words that\ngo on over the line.\n\n1. one\n2. two\n  • deep\n\nrust\n  let x = 1;\n\n\
             a  bb\n1  2\n\n│ quoted\n\nhere (https://h/x)"
        );
        assert!(render("**b**", 30).contains("\u{1b}[1mb"));
    }

    #[test]
    fn chunked_redaction_equals_whole_redaction() {
        let text = "One *two*.\n\n```\na\n\nb\n```\n\n1. x\n\n   more\n\n2. y\n\nEnd";
        let mut whole = Markdown::new(40);
        let mut expect = whole.push(text);
        expect.push_str(&whole.end());
        for size in [1, 3, 7] {
            let (mut pieces, mut shown) = (Markdown::new(40), String::new());
            for piece in text.as_bytes().chunks(size) {
                shown.push_str(&pieces.push(std::str::from_utf8(piece).expect("ascii")));
            }
            shown.push_str(&pieces.end());
            assert_eq!(plain(&shown).replace("\n\n", "\n"), plain(&expect).replace("\n\n", "\n"));
        }
        assert!(plain(&expect).contains("  a\n\n  b") || plain(&expect).contains("  a\n  \n  b"), "{expect}");
    }
}
