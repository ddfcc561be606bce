//! Prints lists as tables: fitted columns on a terminal, full values in a pipe.

use anstyle::Style;
use serde_json::Value;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::exit::{CommandResult, Exit};
use crate::terminal::screen::{BOLD, DIM, columns, one_line, print_json, print_unwrapped, say, styled, wrapped};

/// The most characters of a cell.
const MAX_CELL: usize = 10_000;
/// The least width of a shortened column.
const LEAST: usize = 8;
/// The width of the last column below which other columns are shortened first.
const MIN_LAST_WIDTH: usize = 24;
const GAP: usize = 2;

/// One cell: a text in a style.
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn of(style: Style, text: impl std::fmt::Display) -> Self {
        Self { text: one_line(text.to_string().trim(), MAX_CELL), style }
    }
}

impl<T: std::fmt::Display> From<T> for Cell {
    fn from(text: T) -> Self {
        Self::of(Style::new(), text)
    }
}

/// The first cell of a row.
pub(crate) fn name(text: impl std::fmt::Display) -> Cell {
    Cell::of(BOLD, text)
}

/// A table with a head. A column whose head ends with `>` is right-aligned.
pub(crate) struct Table {
    head: Vec<String>,
    rows: Vec<Row>,
}

struct Row {
    cells: Vec<Cell>,
    /// Lines below the row that are not cut.
    below: Option<String>,
}

impl Table {
    pub(crate) fn new(head: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row with a cell for each column.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        self.rows.push(Row { cells: cells.into(), below: None });
    }

    /// Adds a row with uncut lines below it.
    pub(crate) fn row_with(&mut self, cells: impl Into<Vec<Cell>>, below: String) {
        self.rows.push(Row { cells: cells.into(), below: Some(below) });
    }

    /// Prints it on standard output: cut to the terminal, or whole without one.
    pub(crate) fn print(&self) -> std::io::Result<()> {
        print_unwrapped(&self.draw(columns()))
    }

    /// Returns the lines, at most `width` columns wide. If that is too narrow for the columns, each row becomes a
    /// paragraph with labels.
    pub(crate) fn draw(&self, width: Option<usize>) -> String {
        let head: Vec<Cell> =
            self.head.iter().map(|head| Cell::of(DIM, head.trim_end_matches('>').to_uppercase())).collect();
        let lines = || std::iter::once(&head).chain(self.rows.iter().map(|row| &row.cells));
        let natural =
            |at: usize| lines().filter_map(|row| row.get(at)).map(|cell| cell.text.width()).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..self.head.len()).map(natural).collect();
        let fits = width.is_none_or(|width| fit(&mut widths, width));
        let mut drawn = if fits { vec![self.line(&head, &widths)] } else { Vec::new() };
        for Row { cells, below } in &self.rows {
            let line = if fits { self.line(cells, &widths) } else { self.paragraph(cells) };
            drawn.push(wrapped(&line, width).into_owned());
            if let Some(below) = below {
                let below: Vec<String> = below.lines().map(|line| format!("  {line}")).collect();
                drawn.push(wrapped(&below.join("\n"), width).into_owned());
            }
        }
        drawn.join("\n")
    }

    fn line(&self, cells: &[Cell], widths: &[usize]) -> String {
        let mut line = String::new();
        for (at, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let text = cut(&cell.text, *width);
            let gap = " ".repeat(width.saturating_sub(text.width()));
            let is_last = at + 1 == widths.len();
            let text = if text.is_empty() { text } else { styled(cell.style, text) };
            match (self.head.get(at).is_some_and(|head| head.ends_with('>')), is_last) {
                (true, _) => line.extend([gap, text]),
                (false, true) => line.push_str(&text),
                (false, false) => line.extend([text, gap]),
            }
            if !is_last {
                line.push_str(&" ".repeat(GAP));
            }
        }
        line.trim_end().to_owned()
    }

    fn paragraph(&self, cells: &[Cell]) -> String {
        let named = self.head.iter().zip(cells).enumerate().filter(|(_, (_, cell))| !cell.text.is_empty());
        let named = named.map(|(at, (head, cell))| match at {
            0 => styled(cell.style, &cell.text),
            _ => format!("{} {}", styled(DIM, head.trim_end_matches('>')), styled(cell.style, &cell.text)),
        });
        named.collect::<Vec<_>>().join(&" ".repeat(GAP))
    }
}

/// Prints a list: JSON for a program, else the table, or `none` if it is empty.
pub(crate) fn print_list(json: bool, rows: Vec<Value>, table: &Table, none: &str) -> CommandResult {
    if json {
        print_json(&Value::Array(rows))?;
    } else if rows.is_empty() {
        say(none);
    } else {
        table.print()?;
    }
    Ok(Exit::Ok)
}

/// Shortens the last column first, then always the widest, until all fit. Returns whether they do.
fn fit(widths: &mut [usize], width: usize) -> bool {
    let over =
        |widths: &[usize]| (widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)).saturating_sub(width);
    if let Some(last) = widths.len().checked_sub(1) {
        let least = MIN_LAST_WIDTH.min(widths[last]);
        widths[last] = widths[last].saturating_sub(over(widths)).max(least);
    }
    while over(widths) > 0 {
        let Some(widest) = widths.iter_mut().max().filter(|widest| **widest > LEAST) else { return false };
        *widest -= 1;
    }
    true
}

/// Cuts the text to at most `width` columns.
fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let (mut out, mut used) = (String::new(), 0);
    for c in text.chars() {
        used += c.width().unwrap_or(0);
        if used >= width {
            break;
        }
        out.push(c);
    }
    out.truncate(out.trim_end().len());
    out.push('…');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(["tool", "tokens>", "description"]);
        table.row([name("fs__read"), 120.into(), "Reads a file of the workspace,\nline by line, with numbers.".into()]);
        table.row([
            name("a_server__with_a_long_name"),
            9.into(),
            "日本語の説明がここにあります、とても長いです".into(),
        ]);
        table
    }

    fn plain(drawn: &str) -> String {
        anstream::adapter::strip_str(drawn).to_string()
    }

    #[test]
    fn a_table_fits_the_terminal() {
        for width in [40, 60, 80, 120] {
            let drawn = plain(&table().draw(Some(width)));
            assert!(drawn.lines().all(|line| line.width() <= width), "{width}: {drawn}");
            assert_eq!(drawn.lines().count(), 3, "{drawn}");
        }
        let drawn = plain(&table().draw(Some(60)));
        assert!(drawn.contains('…') && drawn.contains("a_server__with_a_long_name"), "{drawn}");
    }

    #[test]
    fn text_below_a_row_is_wrapped_uncut() {
        let mut table = Table::new(["id", "tool"]);
        table.row_with(
            [name("q1"), "fs:write".into()],
            "{\"path\": \"a.txt\", \"content\": \"one two\"}\nit writes".into(),
        );
        let drawn = plain(&table.draw(Some(30)));
        assert_eq!(
            drawn,
            "ID  TOOL\nq1  fs:write\n  {\"path\": \"a.txt\", \"content\":\n    \"one two\"}\n  it writes"
        );
    }

    #[test]
    fn a_row_too_wide_becomes_a_paragraph() {
        let mut table = Table::new(["tool", "one>", "two>", "three>", "four>"]);
        table.row(["a:b", "123456789", "", "123456789", "123456789"].map(Cell::from));
        let drawn = plain(&table.draw(Some(30)));
        assert_eq!(drawn, "a:b  one 123456789  three\n  123456789  four 123456789");
        assert_eq!(plain(&table.draw(Some(80))).lines().count(), 2);
    }

    #[test]
    fn a_table_in_a_pipe_is_whole() {
        let drawn = plain(&table().draw(None));
        assert_eq!(
            drawn,
            "TOOL                        TOKENS  DESCRIPTION\n\
             fs__read                       120  Reads a file of the workspace, line by line, with numbers.\n\
             a_server__with_a_long_name       9  日本語の説明がここにあります、とても長いです"
        );
    }
}
