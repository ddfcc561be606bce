//! Reads a recording from its file.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use toolwright_core::canonical::ContentHash;
use toolwright_core::model::{
    MAX_RECORDED_LINE, MAX_RECORDING, ModelError, ModelErrorKind, ModelResponse, RECORDING_VERSION, RecordedError,
    RecordedLine,
};
use toolwright_core::redact::MARK;

use super::matching;

/// A request with its response or error.
#[derive(Debug)]
pub(super) struct RecordedExchange {
    /// The line of its request, from 1.
    pub(super) line: usize,
    /// The model, as an index into [`Recording::models`].
    pub(super) model: usize,
    /// The hash of the request's key.
    pub(super) hash: ContentHash,
    /// The key as JSON text, which needs less memory than the value.
    pub(super) key: Box<str>,
    /// Messages of the request.
    pub(super) messages: usize,
    /// Whether the request contains a redacted secret.
    pub(super) is_marked: bool,
    /// The hash of its system prompt, which is only a preference.
    pub(super) system: ContentHash,
    pub(super) answer: Result<ModelResponse, RecordedError>,
}

/// The exchanges of a file, in order.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pub(super) exchanges: Vec<RecordedExchange>,
    /// The models in the order of their first request.
    pub(super) models: Vec<Arc<str>>,
    /// Whether deferred tools were declared to its model.
    pub(super) has_deferred: bool,
    /// The native tools declared to it.
    pub(super) natives: BTreeSet<String>,
    /// Whether the last line is incomplete: its writer was stopped.
    pub(super) is_torn: bool,
    /// Lines that are too long, and left out.
    pub(super) overlong: usize,
}

impl Recording {
    /// Reads a file of lines, at most [`MAX_RECORDING`] bytes.
    ///
    /// # Errors
    /// `Unsupported` for an unreadable or too long file, or an invalid line; the message names file and line.
    pub(super) fn read(path: &str) -> Result<Self, ModelError> {
        let unusable = |what: String| {
            ModelError::new(ModelErrorKind::Unsupported, format!("the recording {path} cannot be played: {what}"))
        };
        let mut text = Vec::new();
        let too_long = || unusable(format!("it is longer than {} MiB", MAX_RECORDING >> 20));
        let file = open(Path::new(path));
        if file.as_ref().ok().and_then(|file| file.metadata().ok()).is_some_and(|found| found.len() > MAX_RECORDING) {
            return Err(too_long());
        }
        // The file may grow meanwhile.
        file.and_then(|file| file.take(MAX_RECORDING + 1).read_to_end(&mut text))
            .map_err(|error| ModelError { source: Some(Box::new(error)), ..unusable("it cannot be read".into()) })?;
        if text.len() as u64 > MAX_RECORDING {
            return Err(too_long());
        }
        let recording = Self::parse(&text).map_err(unusable)?;
        if recording.exchanges.is_empty() {
            let long = match recording.overlong {
                0 => String::new(),
                lines => format!(": {lines} of its lines are longer than {} MiB", MAX_RECORDED_LINE >> 20),
            };
            return Err(unusable(format!("it holds no request to a model with its answer{long}")));
        }
        Ok(recording)
    }

    fn parse(text: &[u8]) -> Result<Self, String> {
        let mut recording = Self::default();
        // The request of a transcript that has no answer yet.
        let mut asked = None;
        let whole = text.ends_with(b"\n");
        let mut lines = (1..).zip(text.split(|byte| *byte == b'\n')).peekable();
        while let Some((number, line)) = lines.next() {
            if line.trim_ascii().is_empty() {
                continue;
            }
            if line.len() > MAX_RECORDED_LINE {
                (recording.overlong, asked) = (recording.overlong + 1, None);
                continue;
            }
            match serde_json::from_slice(line) {
                Ok(RecordedLine::Exchange { version, .. }) if version > RECORDING_VERSION => {
                    return Err(later_version(number, version));
                }
                Ok(line) => recording.line(number, line, &mut asked),
                Err(_) if !whole && lines.peek().is_none() => recording.is_torn = true,
                Err(error) => return Err(unreadable(number, line, &error)),
            }
        }
        Ok(recording)
    }

    fn line(&mut self, number: usize, line: RecordedLine, asked: &mut Option<(usize, String, Value)>) {
        let answer = match line {
            RecordedLine::Exchange { model, request, response, error, .. } => {
                *asked = Some((number, model, request));
                match (response, error) {
                    (Some(response), _) => Ok(response),
                    (None, Some(error)) => Err(error),
                    (None, None) => return,
                }
            }
            RecordedLine::Request { model, request } => {
                *asked = Some((number, model, request));
                return;
            }
            RecordedLine::Response { response } => Ok(response),
            RecordedLine::ModelError(error) => Err(error),
            RecordedLine::Other => return,
        };
        let Some((line, model, request)) = asked.take() else { return };
        let mut answer = answer;
        let usage = answer.as_mut().map_or_else(|error| &mut error.usage, |answer| &mut answer.usage);
        *usage = usage.bounded();
        let model = self.models.iter().position(|known| **known == *model).unwrap_or_else(|| {
            self.models.push(model.into());
            self.models.len() - 1
        });
        self.has_deferred |= matching::has_deferred(&request);
        self.natives.extend(matching::natives(&request).map(str::to_owned));
        let key = matching::key_of_recorded(&request);
        let text: Box<str> = key.to_string().into();
        self.exchanges.push(RecordedExchange {
            line,
            model,
            hash: ContentHash::of_value(&key),
            messages: matching::messages(&key).len(),
            is_marked: text.contains(MARK),
            system: matching::system_of_recorded(&request),
            key: text,
            answer,
        });
    }
}

/// Describes why a line cannot be read: it may be of a later version.
fn unreadable(number: usize, line: &[u8], error: &serde_json::Error) -> String {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    match serde_json::from_slice(line) {
        Ok(Versioned { version }) if version > RECORDING_VERSION => later_version(number, version),
        _ => format!("line {number} is no line of a recording or transcript: {error}"),
    }
}

fn later_version(number: usize, version: u32) -> String {
    format!(
        "line {number} is of version {version}, and this program plays up to {RECORDING_VERSION}: play it with the \
         program that recorded it, or record it again"
    )
}

/// Opens a regular file. Reading a pipe could block without end.
fn open(path: &Path) -> io::Result<File> {
    let none = || io::Error::other("it is no regular file");
    if !std::fs::metadata(path)?.is_file() {
        return Err(none());
    }
    let file = File::open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(none()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolwright_core::model::ModelErrorKind;

    use super::*;

    /// The text of each answer or the kind of its failure, and whether the end is torn.
    type Read<'a> = (&'a [Result<&'a str, ModelErrorKind>], bool);

    fn check(text: &str, expect: Result<Read<'_>, &str>) {
        match (Recording::parse(text.as_bytes()), expect) {
            (Ok(recording), Ok((answers, is_torn))) => {
                let said = |exchange: &RecordedExchange| match &exchange.answer {
                    Ok(answer) => Ok(answer.text.clone()),
                    Err(error) => Err(error.kind),
                };
                let said: Vec<_> = recording.exchanges.iter().map(said).collect();
                let answers: Vec<_> = answers.iter().map(|answer| answer.map(str::to_owned)).collect();
                assert_eq!((said, recording.is_torn), (answers, is_torn), "{text}");
            }
            (Err(error), Err(part)) => assert!(error.contains(part), "{text}: {error}"),
            (got, expect) => panic!("{text}: {got:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn half_entries_of_recordings_are_left_out() {
        let answer = |text: &str| {
            json!({"text": text, "reasoning": "", "calls": [], "stop": "end", "opaque": [],
            "usage": {"input_tokens": 1, "output_tokens": 2, "cached_tokens": 0}})
        };
        let exchange = |text: &str| {
            json!({"type": "exchange", "model": "p/m", "request": {}, "response": answer(text)}).to_string()
        };
        let request = json!({"type": "request", "turn": 1, "model": "p/m", "request": {"messages": []}}).to_string();
        let response = |text: &str| json!({"type": "response", "turn": 1, "response": answer(text)}).to_string();
        let error = json!({"type": "model_error", "turn": 1, "kind": "quota", "message": "no"}).to_string();
        let other = json!({"type": "report", "status": "success"}).to_string();
        check(&format!("{}\n{}\n", exchange("a"), exchange("b")), Ok((&[Ok("a"), Ok("b")], false)));
        let transcript = [&request, &response("a"), &other, &request, &request, &error, &response("lost"), &other];
        let transcript = transcript.map(String::as_str).join("\n");
        check(&transcript, Ok((&[Ok("a"), Err(ModelErrorKind::Quota)], false)));
        check(&format!("{}\n\n{}", exchange("a"), &exchange("b")[..40]), Ok((&[Ok("a")], true)));
        check(&format!("{}\n{}\n", &exchange("a")[..40], exchange("b")), Err("line 1 is no line"));
        check(&format!("{}\n{{}}\n", exchange("a")), Err("line 2 is no line"));
        let long = "x".repeat(MAX_RECORDED_LINE + 1);
        check(&format!("{long}\n{}\n{long}\n", exchange("a")), Ok((&[Ok("a")], false)));
        check(&format!("{request}\n{long}\n{}\n", response("of what was left out")), Ok((&[], false)));
        let read = Recording::parse(format!("{long}\n{}\n{long}", exchange("a")).as_bytes()).expect("read");
        assert_eq!((read.overlong, read.exchanges[0].line), (2, 2));
    }

    #[test]
    fn unknown_members_pass_later_versions_are_named() {
        let line = |change: Value| {
            let mut line = json!({"type": "exchange", "model": "p/m", "request": {"later": 1}, "response": {
                "text": "a", "reasoning": "", "calls": [], "stop": "end", "opaque": [], "later": {"x": []},
                "usage": {"input_tokens": 1, "output_tokens": 2, "cached_tokens": 0, "later": 1}}});
            change.as_object().expect("members").iter().for_each(|(name, value)| line[name] = value.clone());
            line.to_string()
        };
        let known = line(json!({}));
        check(&line(json!({"later": [1], "version": 1})), Ok((&[Ok("a")], false)));
        check(&format!("{known}\n{}", json!({"type": "of_a_later_kind", "x": 1})), Ok((&[Ok("a")], false)));
        let said = "line 2 is of version 7, and this program plays up to 1: play it with the program that recorded it";
        check(&format!("{known}\n{}\n", line(json!({"version": 7}))), Err(said));
        check(&format!("{known}\n{}\n", line(json!({"version": 7, "response": "another form"}))), Err(said));
        check(&format!("{known}\n{}\n", line(json!({"response": "another form"}))), Err("line 2 is no line"));
    }

    #[test]
    fn implausible_usage_figures_are_ignored() {
        let usage = json!({"input_tokens": u64::MAX, "output_tokens": 2, "cached_tokens": 0});
        let response = json!({"text": "a", "reasoning": "", "calls": [], "stop": "end", "opaque": [], "usage": usage});
        let error = json!({"kind": "bad_response", "message": "cut", "usage": usage});
        for (member, value) in [("response", response), ("error", error)] {
            let line = json!({"type": "exchange", "model": "p/m", "request": {}, member: value}).to_string();
            let read = Recording::parse(line.as_bytes()).expect("read");
            let answer = &read.exchanges[0].answer;
            let used = answer.as_ref().map_or_else(|error| error.usage, |answer| answer.usage);
            assert_eq!((used.input_tokens, used.output_tokens), (toolwright_core::model::MAX_TOKENS, 2), "{member}");
        }
    }

    #[test]
    fn too_large_file_is_not_read() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("r.jsonl");
        let file = File::create(&path).expect("file");
        file.set_len(MAX_RECORDING + 1).expect("length");
        let error = Recording::read(&path.display().to_string()).expect_err("too large");
        assert_eq!(error.kind, ModelErrorKind::Unsupported);
        assert!(error.message.ends_with("r.jsonl cannot be played: it is longer than 64 MiB"), "{error}");
    }
}
