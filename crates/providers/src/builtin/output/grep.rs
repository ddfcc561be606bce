//! `output:grep`: lines of a stored output, by regular expression.

use std::io;

use async_trait::async_trait;
use grep_matcher::Matcher as _;
use grep_regex::RegexMatcher;
use grep_searcher::{Searcher, SearcherBuilder, Sink, SinkContext, SinkMatch};
use serde::Deserialize;
use serde_json::{Value, json};
use toolwright_core::cancel::Cancel;
use toolwright_core::catalogue::CallScope;
use toolwright_core::context::ToolContext;
use toolwright_core::definition::{Effects, ToolDefinition};
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;
use toolwright_core::output::GREP_ID;
use toolwright_core::session::Session;
use toolwright_core::store::OpenOutput;
use toolwright_core::tool::Tool;

use super::{binary, handle_schema, unreadable};
use crate::builtin::{Case, blocking, define, line_matcher, parse};

/// The most bytes of a line that are shown.
const MAX_LINE: usize = 500;
/// Longest line that is searched, in bytes.
const MAX_LINE_BUFFER: usize = 8 * 1024 * 1024;
/// The most bytes that are shown in total.
const MAX_SHOWN: usize = 64 * 1024;

pub(super) struct Grep;

#[derive(Deserialize)]
struct Arguments {
    handle: String,
    pattern: String,
    case_insensitive: bool,
    context: usize,
    max: u64,
}

#[async_trait]
impl Tool for Grep {
    fn definition(&self) -> ToolDefinition {
        let mut definition = define(
            GREP_ID,
            "Search stored output",
            "Searches a tool result that was stored under a handle with a regular expression, line by line. Shows \
             matching lines as line:text; of a long line the part around the match, with the byte offset at which \
             output__read shows more of it.",
            Effects::READ,
            json!({
                "handle": handle_schema(),
                "pattern": {
                    "type": "string", "minLength": 1,
                    "description": "Regular expression in Rust's syntax (no look-around, no back-references); write \\( for a plain bracket.",
                },
                "case_insensitive": {"type": "boolean", "default": false, "description": "Ignore upper and lower case."},
                "context": {"type": "integer", "minimum": 0, "maximum": 20, "default": 0, "description": "Lines to show around each match."},
                "max": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 50, "description": "Matching lines to show at most."},
            }),
            &["handle", "pattern"],
        );
        // As for reading, the result must not be stored as another output.
        definition.max_output = Some(MAX_SHOWN + 2 * 1024);
        definition.examples = vec![json!({"handle": "o7k2m9xq4", "pattern": "ERROR|panic", "context": 2})];
        definition
    }

    async fn run(&self, arguments: Value, context: &ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments: Arguments = parse(arguments)?;
        let open = match context.services.outputs.open(&context.session.id, &arguments.handle).await {
            Ok(open) => open,
            Err(error) => return unreadable(&arguments.handle, error),
        };
        if let Some(media_type) = &open.binary {
            return Ok(ToolOutput::text(binary(&arguments.handle, media_type, open.bytes)));
        }
        let cancel = context.cancel.clone();
        blocking(move || search(&arguments, open, &cancel)).await
    }

    fn scope(&self, _arguments: &Value, _session: &Session) -> CallScope {
        CallScope::Workspace
    }
}

fn search(arguments: &Arguments, open: OpenOutput, cancel: &Cancel) -> Result<ToolOutput, ToolError> {
    let matcher = line_matcher(&arguments.pattern, Case::insensitive(arguments.case_insensitive))?;
    let mut hits = Hits { matcher: &matcher, max: arguments.max, cancel, found: 0, stopped: None, text: String::new() };
    let mut searcher = SearcherBuilder::new()
        .heap_limit(Some(MAX_LINE_BUFFER))
        .before_context(arguments.context)
        .after_context(arguments.context)
        .build();
    let searched = searcher.search_reader(&matcher, open.reader, &mut hits);
    if let Some(cause) = cancel.cause() {
        return Err(ToolError::canceled(cause));
    }
    let Hits { found, stopped, mut text, .. } = hits;
    let note = match (searched, stopped) {
        (Err(error), _) => format!(
            "the search ended early: {error}. A line may be longer than {MAX_LINE_BUFFER} bytes; read it by offset"
        ),
        (Ok(()), Some(why)) => why.to_owned(),
        (Ok(()), None) if found == 0 => format!("no line matches `{}`", arguments.pattern),
        (Ok(()), None) => format!("{found} matching lines"),
    };
    text.push_str(&format!("[{note}]"));
    Ok(ToolOutput::text(text).with_extra("matches", found))
}

/// The results as text.
struct Hits<'a> {
    matcher: &'a RegexMatcher,
    max: u64,
    cancel: &'a Cancel,
    found: u64,
    /// The reason why the search may be incomplete.
    stopped: Option<&'static str>,
    text: String,
}

impl Hits<'_> {
    /// Shows a line, which begins at byte `start` of the output; of a long one the part around the match.
    fn line(&mut self, number: Option<u64>, separator: char, start: u64, bytes: &[u8]) {
        let number = number.unwrap_or_default();
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = bytes.strip_suffix(b"\r").unwrap_or(bytes);
        if bytes.len() <= MAX_LINE {
            self.text.push_str(&format!("{number}{separator}{}\n", String::from_utf8_lossy(bytes)));
            return;
        }
        let matched = self.matcher.find(bytes).ok().flatten().map_or(0, |found| found.start());
        let from = matched.saturating_sub(MAX_LINE / 4).min(bytes.len() - MAX_LINE);
        let part = String::from_utf8_lossy(&bytes[from..from + MAX_LINE]);
        // The rest of a cut character is not text.
        let part = part.trim_matches('\u{fffd}');
        let (cut, at) = (bytes.len() - MAX_LINE, start + from as u64);
        self.text.push_str(&format!(
            "{number}{separator}[at byte {at}; toolwright cut {cut} of {} bytes of this line] …{part}…\n",
            bytes.len()
        ));
    }
}

impl Sink for Hits<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> Result<bool, io::Error> {
        if self.found == self.max {
            self.stopped = Some("there are more matches: narrow the pattern or raise max");
        } else if self.text.len() > MAX_SHOWN - 2 * MAX_LINE {
            self.stopped = Some("there are more matches than can be shown at once: narrow the pattern");
        } else {
            self.found += 1;
            self.line(found.line_number(), ':', found.absolute_byte_offset(), found.bytes());
        }
        Ok(self.stopped.is_none() && !self.cancel.is_cancelled())
    }

    fn context(&mut self, _searcher: &Searcher, around: &SinkContext<'_>) -> Result<bool, io::Error> {
        if self.text.len() <= MAX_SHOWN - 2 * MAX_LINE {
            self.line(around.line_number(), '-', around.absolute_byte_offset(), around.bytes());
        }
        Ok(true)
    }

    fn context_break(&mut self, _searcher: &Searcher) -> Result<bool, io::Error> {
        self.text.push_str("--\n");
        Ok(true)
    }
}
