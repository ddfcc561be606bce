//! What stands in place of a result that gave way.

use toolwright_core::model::CallResult;
use toolwright_core::output::Readers;

use super::Place;

/// A result that gives way, and where its parts are now.
#[derive(Debug, Clone)]
pub(crate) struct GivenUp {
    pub(crate) place: Place,
    /// Handle of its text.
    pub(crate) text: Option<String>,
    /// Handles of its images and other files.
    pub(crate) files: Vec<String>,
    pub(crate) again: Again,
}

/// Whether the call may be made once more for the sake of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    May,
    /// It would, or could, do something a second time.
    MayNot,
}

impl GivenUp {
    /// The note. `readers` read stored text; without any, nothing is told of its handle.
    pub(super) fn note(&self, result: &CallResult, readers: &Readers) -> String {
        let bytes: usize = result.content.iter().filter_map(|block| block.as_text()).map(str::len).sum();
        let mut how = Vec::new();
        if let Some(handle) = self.text.as_ref().filter(|_| !readers.is_empty()) {
            how.push(way(handle, readers));
        }
        if !self.files.is_empty() {
            how.push(format!("its images and other files are kept under {}", self.files.join(", ")));
        }
        if how.is_empty() {
            how.push(match self.again {
                Again::May => "it was not kept; call the tool again if you need it".to_owned(),
                Again::MayNot => "it was not kept, and the call is not to be made again for it".to_owned(),
            });
        }
        format!("[toolwright took this result, {bytes} bytes, out to make room; {}]", how.join("; "))
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
        let result = CallResult { content: vec![ContentBlock::text("four")], ..CallResult::default() };
        let (both, grep) = (named(Some("output__read"), Some("output__grep")), named(None, Some("output__grep")));
        let check = |text: Option<&str>, files: &[&str], again, readers: &Readers, expect: &str| {
            let files = files.iter().map(|file| (*file).to_owned()).collect();
            let place = Place { message: 0, result: 0 };
            let note = GivenUp { place, text: text.map(str::to_owned), files, again }.note(&result, readers);
            assert_eq!(note, format!("[toolwright took this result, 4 bytes, out to make room; {expect}]"));
        };
        let read = "it is stored. Read it with output__read {\"handle\": \"s/1\", \"offset\": 0}";
        check(Some("s/1"), &[], Again::May, &both, read);
        let search = "it is stored under the handle s/1. Search it with output__grep {\"handle\": …, \"pattern\": …}";
        check(Some("s/1"), &[], Again::May, &grep, search);
        let files = "its images and other files are kept under s/2, s/3";
        check(None, &["s/2", "s/3"], Again::May, &both, files);
        check(Some("s/1"), &["s/2", "s/3"], Again::MayNot, &both, &format!("{read}; {files}"));
        let none = named(None, None);
        check(Some("s/1"), &[], Again::May, &none, "it was not kept; call the tool again if you need it");
        check(None, &[], Again::MayNot, &both, "it was not kept, and the call is not to be made again for it");
    }
}
