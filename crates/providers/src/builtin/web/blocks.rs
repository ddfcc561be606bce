//! Writes Markdown from a stream of events: pending line breaks, prefixes of lists and quotes, and marks that open at
//! the first word and close before the last space.

/// Nested lists and quotes beyond this depth are flattened.
const MAX_CONTAINERS: usize = 12;
/// Nested marks beyond this number are left out.
const MAX_MARKS: usize = 16;

/// A mark on running text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum InlineMark {
    /// `**`
    Strong,
    /// `*`
    Emphasis,
    /// A backtick.
    Code,
    /// A link to this URL.
    Link(String),
}

/// The kind of a mark, without its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkKind {
    Strong,
    Emphasis,
    Code,
    Link,
}

impl InlineMark {
    fn kind(&self) -> MarkKind {
        match self {
            Self::Strong => MarkKind::Strong,
            Self::Emphasis => MarkKind::Emphasis,
            Self::Code => MarkKind::Code,
            Self::Link(_) => MarkKind::Link,
        }
    }

    fn opener(&self) -> &'static str {
        match self {
            Self::Strong => "**",
            Self::Emphasis => "*",
            Self::Code => "`",
            Self::Link(_) => "[",
        }
    }

    fn closer(&self) -> String {
        match self {
            Self::Link(url) => format!("]({url})"),
            other => other.opener().to_owned(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Not written yet: it opens at the next word.
    Pending,
    Open,
    /// It ended with the block that it was in.
    Done,
}

#[derive(Debug)]
enum Container {
    Quote,
    /// Its next number, if it is numbered.
    List(Option<u64>),
    /// The marker until it is written, and its width.
    Item {
        marker: Option<String>,
        width: usize,
    },
}

/// The writer.
#[derive(Debug)]
pub(super) struct Writer {
    out: String,
    limit: usize,
    full: bool,
    containers: Vec<Container>,
    marks: Vec<(InlineMark, Progress)>,
    /// Pending line feeds before the next content.
    breaks: usize,
    /// Whether a space is pending before the next word.
    space: bool,
    /// Text at the beginning of the next line, once.
    lead: &'static str,
    /// Whether it is inside a table's cell, where everything stays on one line.
    flat: bool,
}

impl Writer {
    /// Creates a writer of at most `limit` bytes; the rest is left out.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            out: String::new(),
            limit,
            full: false,
            containers: Vec::new(),
            marks: Vec::new(),
            breaks: 1,
            space: false,
            lead: "",
            flat: false,
        }
    }

    /// Returns the text, and whether the limit left something out.
    pub(super) fn finish(mut self) -> (String, bool) {
        self.close_open_marks();
        (self.out, self.full)
    }

    /// Writes running text; white space counts as one space.
    pub(super) fn text(&mut self, text: &str) {
        for (index, word) in text.split(|c: char| c.is_whitespace()).enumerate() {
            self.space |= index > 0;
            if !word.is_empty() {
                self.begin();
                if self.flat { self.push(&word.replace('|', "\\|")) } else { self.push(word) }
            }
        }
    }

    /// Ends the line, or with `feeds` 2 the paragraph.
    pub(super) fn boundary(&mut self, feeds: usize) {
        if self.flat {
            self.space = true;
            return;
        }
        self.close_open_marks();
        self.breaks = self.breaks.max(feeds);
    }

    /// Handles `<br>`: two of them end the paragraph.
    pub(super) fn line_break(&mut self) {
        if self.flat || !self.lead.is_empty() {
            self.space = true;
        } else {
            self.breaks = (self.breaks + 1).min(2);
        }
    }

    /// Begins a heading.
    pub(super) fn heading(&mut self, lead: &'static str) {
        self.boundary(2);
        if !self.flat {
            self.lead = lead;
        }
    }

    /// Ends a heading.
    pub(super) fn end_heading(&mut self) {
        self.lead = "";
        self.boundary(2);
    }

    /// Writes a thematic break.
    pub(super) fn rule(&mut self) {
        self.boundary(2);
        if !self.flat {
            self.start_line();
            self.push("---");
            self.breaks = 2;
        }
    }

    /// Begins a quotation.
    pub(super) fn quote(&mut self) {
        self.boundary(2);
        self.enter(Container::Quote);
    }

    /// Ends a quotation, with everything open in it.
    pub(super) fn end_quote(&mut self) {
        self.boundary(2);
        self.leave(|container| matches!(container, Container::Quote));
    }

    /// Begins a list; `first` is its first number.
    pub(super) fn list(&mut self, first: Option<u64>) {
        self.boundary(if self.in_list() { 1 } else { 2 });
        self.enter(Container::List(first));
    }

    /// Ends a list, with its last item.
    pub(super) fn end_list(&mut self) {
        self.boundary(1);
        self.leave(|container| matches!(container, Container::List(_)));
        self.boundary(if self.in_list() { 1 } else { 2 });
    }

    /// Begins an item of the innermost list, and ends the previous one.
    pub(super) fn item(&mut self) {
        self.boundary(1);
        let list = self.containers.iter().rposition(|container| matches!(container, Container::List(_)));
        let marker = match list.map(|list| (list, &mut self.containers[list])) {
            Some((index, Container::List(number))) => {
                let marker = number.map_or_else(|| "- ".to_owned(), |number| format!("{number}. "));
                *number = number.map(|number| number.saturating_add(1));
                self.containers.truncate(index + 1);
                marker
            }
            _ => "- ".to_owned(),
        };
        let width = marker.len();
        self.enter(Container::Item { marker: Some(marker), width });
    }

    /// Writes a block of code, verbatim.
    pub(super) fn code_block(&mut self, language: &str, code: &str) {
        if self.flat {
            self.text(code);
            return;
        }
        self.boundary(2);
        let longest = code.split(|c| c != '`').map(str::len).max().unwrap_or(0);
        let fence = "`".repeat(3.max(longest + 1));
        self.start_line();
        self.push(&fence);
        self.push(language);
        for line in code.trim_end().lines().chain([fence.as_str()]) {
            self.breaks = 1;
            self.start_line();
            self.push(line);
        }
        self.breaks = 2;
    }

    /// Writes text unchanged, as one word.
    pub(super) fn word(&mut self, word: &str) {
        self.begin();
        self.push(word);
    }

    /// Begins a mark.
    pub(super) fn open(&mut self, mark: InlineMark) {
        if self.marks.len() < MAX_MARKS {
            self.marks.push((mark, Progress::Pending));
        }
    }

    /// Ends the innermost mark of this kind, and those inside it.
    pub(super) fn close(&mut self, kind: MarkKind) {
        let Some(index) = self.marks.iter().rposition(|(mark, _)| mark.kind() == kind) else { return };
        for (mark, progress) in self.marks.split_off(index).into_iter().rev() {
            if progress == Progress::Open {
                self.push(&mark.closer());
            }
        }
    }

    /// Begins a table's cell: writes a bar, and stays on one line from now on.
    pub(super) fn cell(&mut self) {
        self.end_cell();
        if self.breaks == 0 {
            self.push(" ");
        }
        self.start_line();
        self.push("|");
        self.space = true;
        self.flat = true;
    }

    /// Ends a row; the first one gets its rule.
    pub(super) fn end_row(&mut self, cells: usize, position: RowPosition) {
        self.end_cell();
        self.push(" |");
        self.breaks = 1;
        if position == RowPosition::First {
            self.start_line();
            self.push("|");
            self.push(&" --- |".repeat(cells.min(64)));
            self.breaks = 1;
        }
    }

    fn end_cell(&mut self) {
        self.close_open_marks();
        self.flat = false;
        self.space = false;
    }

    fn in_list(&self) -> bool {
        self.containers.iter().any(|container| matches!(container, Container::List(_)))
    }

    fn enter(&mut self, container: Container) {
        if self.containers.len() < MAX_CONTAINERS {
            self.containers.push(container);
        }
    }

    fn leave(&mut self, is: impl Fn(&Container) -> bool) {
        if let Some(index) = self.containers.iter().rposition(is) {
            self.containers.truncate(index);
        }
    }

    fn close_open_marks(&mut self) {
        for index in (0..self.marks.len()).rev() {
            if self.marks[index].1 == Progress::Open {
                self.marks[index].1 = Progress::Done;
                let closer = self.marks[index].0.closer();
                self.push(&closer);
            }
        }
    }

    /// Writes the pending breaks, with the prefixes of the new line.
    fn start_line(&mut self) {
        if self.breaks == 0 {
            return;
        }
        if !self.out.is_empty() {
            for feed in 1..=self.breaks {
                self.push("\n");
                if feed < self.breaks {
                    let prefix = self.blank_prefix();
                    self.push(prefix.trim_end());
                }
            }
        }
        self.breaks = 0;
        self.space = false;
        let prefix = self.prefix();
        self.push(&prefix);
        let lead = std::mem::take(&mut self.lead);
        self.push(lead);
    }

    /// Writes what is pending before a word: breaks or a space, then marks.
    fn begin(&mut self) {
        self.start_line();
        if std::mem::take(&mut self.space) {
            self.push(" ");
        }
        for index in 0..self.marks.len() {
            if self.marks[index].1 == Progress::Pending {
                self.marks[index].1 = Progress::Open;
                let opener = self.marks[index].0.opener();
                self.push(opener);
            }
        }
    }

    fn prefix(&mut self) -> String {
        let mut prefix = String::new();
        for container in &mut self.containers {
            match container {
                Container::Quote => prefix.push_str("> "),
                Container::List(_) => {}
                Container::Item { marker, width } => match marker.take() {
                    Some(marker) => prefix.push_str(&marker),
                    None => prefix.extend(std::iter::repeat_n(' ', *width)),
                },
            }
        }
        prefix
    }

    /// Returns the prefix of a blank line, which must not consume an item's marker.
    fn blank_prefix(&self) -> String {
        let mut prefix = String::new();
        for container in &self.containers {
            match container {
                Container::Quote => prefix.push_str("> "),
                Container::List(_) => {}
                Container::Item { marker: Some(_), .. } => break,
                Container::Item { marker: None, width } => prefix.extend(std::iter::repeat_n(' ', *width)),
            }
        }
        prefix
    }

    fn push(&mut self, text: &str) {
        if self.out.len() + text.len() > self.limit {
            self.full = true;
        } else {
            self.out.push_str(text);
        }
    }
}

/// The position of a row in its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RowPosition {
    First,
    Later,
}
