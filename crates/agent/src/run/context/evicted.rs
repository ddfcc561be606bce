//! The note that replaces an evicted result.

use toolwright_core::content::ContentBlock;
use toolwright_core::model::CallResult;
use toolwright_core::output::Readers;

use super::ResultPosition;

/// Files that a note names at most; what is stored of the text names all.
pub(crate) const MAX_FILES: usize = 4;

/// A result that gives way, and where its parts are now.
#[derive(Debug, Clone)]
pub(crate) struct Evicted {
    pub(crate) place: ResultPosition,
    /// Handles of its text: several where parts of it were stored before.
    pub(crate) texts: Vec<String>,
    /// Handles of its images and other files. What is stored of its text names them too.
    pub(crate) files: Vec<String>,
    pub(crate) again: Repeat,
}

/// Whether the call may be made once more for the sake of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    May,
    /// It would, or could, do something a second time.
    MayNot,
}

/// Whether some of these blocks is, or stands for, anything but a file.
pub(crate) fn has_text<'b>(blocks: impl IntoIterator<Item = &'b ContentBlock>) -> bool {
    blocks.into_iter().any(|block| block.binary().is_none() && !block.stand_in().trim().is_empty())
}

impl Evicted {
    /// Whether it can still be had by its handles: its text, where it has any, by these readers; without text, its files.
    pub(crate) fn is_kept(&self, result: &CallResult, readers: &Readers) -> bool {
        self.has_readable_text(readers) || (!self.files.is_empty() && !has_text(&result.content))
    }

    fn has_readable_text(&self, readers: &Readers) -> bool {
        !self.texts.is_empty() && !readers.is_empty()
    }

    /// The note, with `beginning` bytes of the result. `readers` read stored text; without any, nothing is told of its
    /// handles.
    pub(super) fn note(&self, result: &CallResult, readers: &Readers, beginning: usize) -> String {
        let texts = || result.content.iter().filter_map(|block| block.as_text());
        let bytes: usize = texts().map(str::len).sum();
        let mut how = Vec::new();
        if let Some((first, more)) = self.texts.split_first().filter(|_| !readers.is_empty()) {
            how.push(way(first, readers));
            if !more.is_empty() {
                how.push(format!("further parts of it under {}", more.join(", ")));
            }
        }
        if let Some(named) = self.files.get(..self.files.len().min(MAX_FILES)).filter(|files| !files.is_empty()) {
            let rest = match self.files.len() - named.len() {
                0 => String::new(),
                rest => format!(" and {rest} more, which the stored text names"),
            };
            how.push(format!("its images and other files are kept under {}{rest}", named.join(", ")));
        }
        if !self.is_kept(result, readers) {
            let what = if how.is_empty() { "it" } else { "its text" };
            how.push(match self.again {
                Repeat::May => format!("{what} was not kept; call the tool again if you need it"),
                Repeat::MayNot => format!("{what} was not kept, and the call is not to be made again for it"),
            });
        }
        let note = format!("[toolwright took this result, {bytes} bytes, out to make room; {}]", how.join("; "));
        let text = texts().find(|text| !text.trim().is_empty()).filter(|_| beginning > 0);
        match text.map(|text| &text[..text.floor_char_boundary(beginning)]) {
            Some(begins) => format!("{note}\nIt began: {begins}…"),
            None => note,
        }
    }
}

/// One way of reading on is enough, in full: the notes are many.
fn way(handle: &str, readers: &Readers) -> String {
    let Readers { read, grep, extract } = readers.clone();
    if read.is_some() {
        return format!("it is stored. {}", Readers { read, ..Readers::default() }.advice(handle));
    }
    format!("it is stored under the handle {handle}. {}", Readers { read: None, grep, extract }.advice(handle))
}

#[cfg(test)]
mod tests {
    use toolwright_core::ContentBlock;

    use super::*;

    fn named(read: Option<&str>, grep: Option<&str>) -> Readers {
        Readers { read: read.map(str::to_owned), grep: grep.map(str::to_owned), extract: None }
    }

    #[test]
    fn a_note_says_where_the_result_is_and_how_it_is_read() {
        let result = |text: &str| CallResult { content: vec![ContentBlock::text(text)], ..CallResult::default() };
        let (both, grep) = (named(Some("output__read"), Some("output__grep")), named(None, Some("output__grep")));
        let check_of = |text: &str, texts: &[&str], files: &[&str], again, readers: &Readers, expect: &str| {
            let all = |handles: &[&str]| handles.iter().map(|handle| (*handle).to_owned()).collect();
            let place = ResultPosition { message: 0, result: 0 };
            let gone = Evicted { place, texts: all(texts), files: all(files), again };
            let (result, bytes) = (result(text), text.len());
            let note = gone.note(&result, readers, 0);
            assert_eq!(gone.is_kept(&result, readers), !note.contains("not kept"), "{note}");
            assert_eq!(note, format!("[toolwright took this result, {bytes} bytes, out to make room; {expect}]"));
        };
        let check = |texts: &[&str], files: &[&str], again, readers: &Readers, expect: &str| {
            check_of("four", texts, files, again, readers, expect);
        };
        let read = "it is stored. Read it with output__read {\"handle\": \"s/1\", \"offset\": 0}";
        check(&["s/1"], &[], Repeat::May, &both, read);
        check(&["s/1", "s/2", "s/3"], &[], Repeat::May, &both, &format!("{read}; further parts of it under s/2, s/3"));
        let search = "it is stored under the handle s/1. Search it with output__grep {\"handle\": …, \"pattern\": …}";
        check(&["s/1"], &[], Repeat::May, &grep, search);
        let files = "its images and other files are kept under s/2, s/3";
        check_of("", &[], &["s/2", "s/3"], Repeat::May, &both, files);
        check(&["s/1"], &["s/2", "s/3"], Repeat::MayNot, &both, &format!("{read}; {files}"));
        let many =
            "its images and other files are kept under s/2, s/3, s/4, s/5 and 2 more, which the stored text names";
        let all = ["s/2", "s/3", "s/4", "s/5", "s/6", "s/7"];
        check(&["s/1"], &all, Repeat::May, &both, &format!("{read}; {many}"));
        let none = named(None, None);
        let image = "its images and other files are kept under s/2";
        check_of("", &[], &["s/2"], Repeat::May, &none, image);
        // Nobody can read its text, or it could not be stored.
        let lost = format!("{image}; its text was not kept; call the tool again if you need it");
        check(&[], &["s/2"], Repeat::May, &none, &lost);
        check(&["s/1"], &["s/2"], Repeat::May, &none, &lost);
        check(&[], &["s/2"], Repeat::May, &both, &lost);
        let lost = format!("{image}; its text was not kept, and the call is not to be made again for it");
        check(&[], &["s/2"], Repeat::MayNot, &none, &lost);
        check(&["s/1"], &[], Repeat::May, &none, "it was not kept; call the tool again if you need it");
        check(&[], &[], Repeat::MayNot, &both, "it was not kept, and the call is not to be made again for it");
    }

    #[test]
    fn the_beginning_of_a_result_stays_behind_its_note() {
        let result = CallResult { content: vec![ContentBlock::text("größer als alles")], ..CallResult::default() };
        let place = ResultPosition { message: 0, result: 0 };
        let gone = Evicted { place, texts: Vec::new(), files: Vec::new(), again: Repeat::May };
        let note = gone.note(&result, &named(None, None), 3);
        assert!(note.ends_with("if you need it]\nIt began: gr…"), "{note}");
    }
}
