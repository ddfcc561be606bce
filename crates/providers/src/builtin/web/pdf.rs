//! Extracts the text of PDF documents. The input may be hostile: its size, time and threads are bounded, and a panic of
//! the reader becomes an error.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use lopdf::content::{Content, Operation};
use lopdf::{Dictionary, Document, Encoding, LoadOptions, Object, ObjectId};
use tokio::sync::{Semaphore, oneshot};

/// Limits concurrent readers. A reader that does not end keeps its place.
static READERS: Semaphore = Semaphore::const_new(2);
/// Time limit of a document; the rest is left out.
const TIME: Duration = Duration::from_secs(20);
/// How long a reader may run beyond that before it is abandoned.
const GRACE: Duration = Duration::from_secs(5);
/// The parser recurses as deep as a document nests, up to a hundred levels.
const STACK: usize = 8 << 20;
/// The most bytes of a decompressed stream or page. Pages with more are left out.
const MAX_STREAM: usize = 8 << 20;
/// The most bytes of text.
const MAX_TEXT: usize = 8 << 20;
/// The most pages that are read.
const MAX_PAGES: usize = 5000;
/// The deepest nesting of forms.
const MAX_FORMS: usize = 4;
/// The gap in a line that counts as a space, in thousandths of the font's size.
const GAP: f32 = -180.0;

/// Returns whether `bytes` begin like a PDF.
pub(super) fn is_pdf(bytes: &[u8]) -> bool {
    // Readers accept a mark that is not quite at the beginning.
    bytes.iter().take(1024).collect::<Vec<_>>().windows(5).any(|five| five.iter().map(|byte| **byte).eq(*b"%PDF-"))
}

/// Returns the text of a document, page by page.
///
/// # Errors
/// The reason why there is none, as a message.
pub(super) async fn text(bytes: Vec<u8>) -> Result<String, String> {
    let wait = |what: &'static str| move |_| what.to_owned();
    let permit = tokio::time::timeout(TIME, READERS.acquire()).await;
    let permit = permit.map_err(wait("other PDF documents are still being read; try again later"))?;
    let permit = permit.map_err(|error| error.to_string())?;
    let (send, read) = oneshot::channel();
    let work = move || {
        let _permit = permit;
        let until = Instant::now() + TIME;
        let read = catch_unwind(AssertUnwindSafe(|| read_text(&bytes, until)));
        // The receiver may have gone.
        let _ = send.send(read.unwrap_or_else(|panic| Err(format!("its reader failed: {}", panic_text(&*panic)))));
    };
    let thread = std::thread::Builder::new().name("pdf".into()).stack_size(STACK);
    thread.spawn(work).map_err(|error| format!("no thread can be started: {error}"))?;
    match tokio::time::timeout(TIME + GRACE, read).await {
        Ok(Ok(text)) => text,
        Ok(Err(_)) => Err("its reader ended without a word".to_owned()),
        Err(_) => Err(format!("reading it took more than {} s", (TIME + GRACE).as_secs())),
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked")
}

fn read_text(bytes: &[u8], until: Instant) -> Result<String, String> {
    let options = LoadOptions { max_decompressed_size: Some(MAX_STREAM), ..LoadOptions::default() };
    let document = Document::load_mem_with_options(bytes, options).map_err(|error| error.to_string())?;
    if document.is_encrypted() {
        return Err("it is encrypted".to_owned());
    }
    let pages: Vec<ObjectId> = document.page_iter().take(MAX_PAGES + 1).collect();
    let count = pages.len();
    let (mut text, mut empty) = (String::new(), true);
    for (at, page) in pages.into_iter().enumerate().take(MAX_PAGES) {
        if Instant::now() > until || text.len() > MAX_TEXT {
            text.push_str(&format!("[The document has {count} pages; those from {} on are left out.]\n", at + 1));
            return Ok(text);
        }
        let words = match page_text(&document, page, until) {
            Ok(words) => words,
            Err(error) => format!("[This page cannot be read: {error}]"),
        };
        empty &= words.trim().is_empty();
        text.push_str(&format!("[Page {}]\n{}\n\n", at + 1, words.trim()));
    }
    match (count, empty) {
        (0, _) => Err("it has no pages".to_owned()),
        (_, true) => Err(format!("it has no text on {count} pages; they may be images")),
        _ => Ok(text),
    }
}

fn page_text(document: &Document, page: ObjectId, until: Instant) -> lopdf::Result<String> {
    let content = Content::decode(&document.get_page_content_with_limit(page, MAX_STREAM)?)?;
    let fonts = encodings(document, document.get_page_fonts(page)?);
    let (own, inherited) = document.get_page_resources(page)?;
    let further = inherited.iter().filter_map(|id| document.get_dictionary(*id).ok());
    let resources: Vec<&Dictionary> = own.into_iter().chain(further).collect();
    let mut writer = Writer { document, until, text: String::new(), line: None };
    writer.write(&content.operations, &fonts, &resources, 0);
    Ok(writer.text)
}

type Fonts<'d> = BTreeMap<Vec<u8>, Encoding<'d>>;

fn encodings<'d>(document: &'d Document, fonts: BTreeMap<Vec<u8>, &'d Dictionary>) -> Fonts<'d> {
    let read = |(name, font): (Vec<u8>, &'d Dictionary)| {
        Some((name, font.get_font_encoding_with_limit(document, MAX_STREAM).ok()?))
    };
    fonts.into_iter().filter_map(read).collect()
}

/// Writes the text of a page, line by line.
struct Writer<'d> {
    document: &'d Document,
    until: Instant,
    text: String,
    /// The height of the last line.
    line: Option<f32>,
}

impl Writer<'_> {
    fn write(&mut self, operations: &[Operation], fonts: &Fonts<'_>, resources: &[&Dictionary], depth: usize) {
        let mut font = None;
        // The height of the line, and the line spacing.
        let (mut height, mut leading) = (0.0, 0.0);
        for Operation { operator, operands } in operations {
            if Instant::now() > self.until || self.text.len() > MAX_TEXT {
                return;
            }
            let number = |at: usize| operands.get(at).and_then(|operand| operand.as_float().ok()).unwrap_or_default();
            match operator.as_str() {
                "BT" => height = 0.0,
                "Tf" => font = operands.first().and_then(|name| fonts.get(name.as_name().ok()?)),
                "TL" => leading = number(0),
                "Td" | "TD" => {
                    height += number(1);
                    if operator == "TD" {
                        leading = -number(1);
                    }
                    self.separate();
                }
                "Tm" => {
                    height = number(5);
                    self.separate();
                }
                "T*" => height -= leading,
                "Tj" | "TJ" => self.show(operands, font, height),
                "'" | "\"" => {
                    height -= leading;
                    self.show(&operands[operands.len().saturating_sub(1)..], font, height);
                }
                "ET" => self.separate(),
                "Do" => self.form(operands.first(), resources, depth),
                _ => {}
            }
        }
    }

    /// Separates text in two places by a space, if it is on one line.
    fn separate(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with(char::is_whitespace) {
            self.text.push(' ');
        }
    }

    fn show(&mut self, operands: &[Object], font: Option<&Encoding<'_>>, height: f32) {
        let Some(font) = font else { return };
        if self.line.is_some_and(|line| (line - height).abs() > 1.0) {
            self.text.truncate(self.text.trim_end_matches(' ').len());
            self.text.push('\n');
        }
        self.line = Some(height);
        for operand in operands {
            let single = std::slice::from_ref(operand);
            for piece in operand.as_array().map_or(single, Vec::as_slice) {
                match piece {
                    Object::String(bytes, _) => {
                        self.text.push_str(&Document::decode_text(font, bytes).unwrap_or_default());
                    }
                    gap if gap.as_float().is_ok_and(|gap| gap < GAP) => self.separate(),
                    _ => {}
                }
            }
        }
    }

    /// Writes the text of a form.
    fn form(&mut self, name: Option<&Object>, resources: &[&Dictionary], depth: usize) {
        let form = || {
            let name = name?.as_name().ok()?;
            let forms = resources.iter().filter_map(|resources| {
                self.document.dereference(resources.get(b"XObject").ok()?).ok()?.1.as_dict().ok()
            });
            let form = forms.filter_map(|forms| forms.get(name).ok()).next()?;
            let form = self.document.dereference(form).ok()?.1.as_stream().ok()?;
            form.dict.get(b"Subtype").is_ok_and(|kind| kind.as_name().is_ok_and(|kind| kind == b"Form")).then_some(form)
        };
        let Some(form) = (depth < MAX_FORMS).then(form).flatten() else { return };
        let Ok(bytes) = form.get_plain_content_with_limit(MAX_STREAM) else { return };
        let Ok(content) = Content::decode(&bytes) else { return };
        let document = self.document;
        let own = form.dict.get(b"Resources").ok().and_then(|own| document.dereference(own).ok()?.1.as_dict().ok());
        let fonts = own.and_then(|own| document.dereference(own.get(b"Font").ok()?).ok()?.1.as_dict().ok());
        let fonts = fonts
            .into_iter()
            .flatten()
            .filter_map(|(name, font)| Some((name.clone(), document.dereference(font).ok()?.1.as_dict().ok()?)));
        let fonts = encodings(document, fonts.collect());
        let own: Vec<&Dictionary> = own.into_iter().collect();
        self.write(&content.operations, &fonts, if own.is_empty() { resources } else { &own }, depth + 1);
    }
}
