//! Records requests to models and their answers in a file that can be replayed (`replay:FILE`).

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::Value;
use toolwright_core::Redactor;
use toolwright_core::model::{
    MAX_RECORDED_LINE, MAX_RECORDING, ModelError, ModelErrorKind, ModelRequest, ModelResponse, RECORDING_VERSION,
    RecordedError, RecordedLine,
};

/// Records every request to a model with its result in a file: one redacted line for each request, once recording is
/// started. Cancelled requests are left out.
#[derive(Debug, Default)]
pub struct Recorder {
    to: OnceLock<Mutex<RecordingFile>>,
}

#[derive(Debug)]
struct RecordingFile {
    /// `None` once writing has failed.
    file: Option<File>,
    name: String,
}

impl Recorder {
    /// Starts recording at the end of this file, which is created for the user alone if it does not exist. An
    /// incomplete last line is removed.
    ///
    /// # Errors
    /// The file cannot be written, is too large or not a regular file, or begins with anything except a line of a
    /// recording or transcript; or recording has started already.
    pub fn start(&self, path: &Path) -> io::Result<()> {
        if self.to.get().is_some() {
            return Err(already_recorded());
        }
        // Opening a pipe would block until it has a reader.
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(io::Error::other("it is no regular file"));
        }
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        let bytes = file.metadata()?.len();
        if bytes >= MAX_RECORDING {
            return Err(io::Error::other(format!("it has {} MiB already", MAX_RECORDING >> 20)));
        }
        if bytes > 0 {
            match end(&std::fs::read(path)?)? {
                RecordingEnd::Whole => {}
                RecordingEnd::Open => file.write_all(b"\n")?,
                // A file that is open for appending cannot be truncated on every system.
                RecordingEnd::Torn(at) => OpenOptions::new().write(true).open(path)?.set_len(at as u64)?,
            }
        }
        let target = RecordingFile { file: Some(file), name: path.display().to_string() };
        self.to.set(Mutex::new(target)).map_err(|_| already_recorded())
    }

    /// Returns the request as it will be written and looked up, with the secrets known now redacted; `None` if nothing
    /// is recorded.
    pub(crate) fn recorded_request(&self, request: &ModelRequest, redactor: &dyn Redactor) -> Option<Value> {
        self.to.get()?;
        match serde_json::to_value(request) {
            Ok(request) => Some(redactor.redact_value(&request)),
            Err(error) => {
                tracing::error!("a request to a model cannot be recorded: {error}");
                None
            }
        }
    }

    /// Records a finished request. Secrets learnt meanwhile are redacted too.
    ///
    /// # Errors
    /// The reason why it is not recorded. That nothing more is recorded is reported once.
    pub(crate) fn answered(
        &self,
        model: &str,
        request: Value,
        answer: &Result<ModelResponse, ModelError>,
        redactor: &dyn Redactor,
    ) -> Result<(), String> {
        let Some(target) = self.to.get() else { return Ok(()) };
        let (response, error) = match answer {
            Ok(answer) => (Some(answer.clone()), None),
            Err(error) if error.kind == ModelErrorKind::Canceled => return Ok(()),
            Err(error) => (None, Some(RecordedError::of(error))),
        };
        let line =
            RecordedLine::Exchange { version: RECORDING_VERSION, model: model.to_owned(), request, response, error };
        let line =
            serde_json::to_value(line).map_err(|error| format!("a request to {model} is not recorded: {error}"))?;
        let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
        write(&mut target, redactor.redact_value(&line).to_string())
    }
}

fn already_recorded() -> io::Error {
    io::Error::other("requests are recorded in another file already")
}

/// How an existing file ends.
enum RecordingEnd {
    /// With a complete line.
    Whole,
    /// With a line that lacks only its end.
    Open,
    /// With a part of a line, which begins here, because its writer was killed.
    Torn(usize),
}

fn end(text: &[u8]) -> io::Result<RecordingEnd> {
    let is_line = |line: &[u8]| serde_json::from_slice::<RecordedLine>(line).is_ok();
    let mut lines = text.split(|byte| *byte == b'\n');
    // A line that is too long cannot be replayed, but does not prevent recording.
    let first = lines.find(|line| !line.trim_ascii().is_empty()).unwrap_or_default();
    if !first.is_empty() && first.len() <= MAX_RECORDED_LINE && !is_line(first) {
        return Err(io::Error::other("it is not a recording: its first line is not a line of one"));
    }
    let at = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    Ok(match &text[at..] {
        [] => RecordingEnd::Whole,
        last if is_line(last) => RecordingEnd::Open,
        _ => RecordingEnd::Torn(at),
    })
}

fn write(target: &mut RecordingFile, mut line: String) -> Result<(), String> {
    line.push('\n');
    let Some(file) = target.file.as_mut() else { return Ok(()) };
    if line.len() > MAX_RECORDED_LINE {
        let most = MAX_RECORDED_LINE >> 20;
        return Err(format!(
            "{}: a request to a model is left out, with its answer it has over {most} MiB",
            target.name
        ));
    }
    // Other processes may append to the same file, each line in one write.
    let written = file.metadata().and_then(|found| {
        if found.len() + line.len() as u64 > MAX_RECORDING {
            return Err(io::Error::other("it is full"));
        }
        file.write_all(line.as_bytes())
    });
    written.map_err(|error| {
        target.file = None;
        format!("{}: the recording ends here: {error}", target.name)
    })
}

#[cfg(test)]
mod tests {
    use toolwright_core::context::NoRedaction;

    use super::*;

    fn answer(recorder: &Recorder, text: String) -> Result<(), String> {
        let request = recorder.recorded_request(&ModelRequest::default(), &NoRedaction).expect("it records");
        let answer = ModelResponse { text, ..ModelResponse::default() };
        recorder.answered("p/m", request, &Ok(answer), &NoRedaction)
    }

    /// Records to a file with this content. Returns the content then, without the end of its new line, or the error.
    fn appended(text: &str) -> Result<String, String> {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("r.jsonl");
        std::fs::write(&path, text).expect("file");
        let recorder = Recorder::default();
        let started = recorder.start(&path).map_err(|error| error.to_string());
        let wrote = started.and_then(|()| answer(&recorder, "new".into()));
        let text = std::fs::read_to_string(&path).expect("file");
        wrote.map(|()| {
            text.lines().map(|line| format!("{}\n", if line.contains("new") { "new" } else { line })).collect()
        })
    }

    #[test]
    fn a_recording_continues_after_the_last_whole_line() {
        let line = r#"{"type":"request","model":"p/m","request":{}}"#;
        let torn = &line[..30];
        let expect = |text: &str| Ok(format!("{text}new\n"));
        assert_eq!(appended(""), expect(""));
        assert_eq!(appended(&format!("{line}\n")), expect(&format!("{line}\n")));
        assert_eq!(appended(line), expect(&format!("{line}\n")), "it lacked only its end");
        assert_eq!(appended(&format!("{line}\n{torn}")), expect(&format!("{line}\n")));
        assert_eq!(appended(&format!("\n{line}\né{torn}")), expect(&format!("\n{line}\n")));
        for other in ["# Notes", "# Notes\n", "{}\n", "[1]\n", torn] {
            let refused = appended(other).expect_err("refused");
            assert!(refused.contains("it is not a recording"), "{other}: {refused}");
        }
        let dir = tempfile::tempdir().expect("folder");
        let refused = Recorder::default().start(dir.path()).expect_err("a folder").to_string();
        assert_eq!(refused, "it is no regular file");
        #[cfg(unix)]
        assert!(Recorder::default().start(Path::new("/dev/null")).is_err());
    }

    #[test]
    fn secrets_learnt_later_leave_the_recorded_request() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("r.jsonl");
        let recorder = Recorder::default();
        recorder.start(&path).expect("started");
        let request = ModelRequest { system: "It is hunter2.".into(), ..ModelRequest::default() };
        let request = recorder.recorded_request(&request, &NoRedaction).expect("it records");
        recorder
            .answered("p/m", request, &Ok(ModelResponse::default()), &toolwright_testkit::FakeRedactor("hunter2"))
            .expect("written");
        let text = std::fs::read_to_string(&path).expect("file");
        assert!(text.contains("It is [secret].") && !text.contains("hunter2"), "{text}");
    }

    /// Several processes each make requests at once.
    #[test]
    fn concurrent_requests_are_recorded_whole() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("r.jsonl");
        let recorders = [Recorder::default(), Recorder::default()];
        recorders.iter().for_each(|recorder| recorder.start(&path).expect("started"));
        let long = "é".repeat(20_000);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (recorder, long) = (&recorders[thread % 2], &long);
                scope.spawn(move || {
                    (0..20).for_each(|n| answer(recorder, format!("{thread}-{n} {long}")).expect("written"))
                });
            }
        });
        let text = std::fs::read_to_string(&path).expect("file");
        let said = |line: &str| match serde_json::from_str(line).expect("a whole line") {
            RecordedLine::Exchange { response: Some(response), .. } => {
                response.text.split(' ').next().map(str::to_owned)
            }
            other => panic!("{other:?}"),
        };
        let said: std::collections::BTreeSet<_> = text.lines().map(said).collect();
        assert_eq!((text.lines().count(), said.len()), (160, 160));
    }

    #[test]
    fn failures_are_recorded_with_usage_and_partial_answer() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("r.jsonl");
        let recorder = Recorder::default();
        recorder.start(&path).expect("started");
        let request = recorder.recorded_request(&ModelRequest::default(), &NoRedaction).expect("it records");
        let usage = toolwright_core::model::Usage { input_tokens: 9, ..Default::default() };
        let partial = ModelResponse { text: "half".into(), usage, ..ModelResponse::default() };
        let error = ModelError {
            usage,
            partial: Some(Box::new(partial)),
            ..ModelError::new(ModelErrorKind::BadResponse, "it broke off")
        };
        recorder.answered("p/m", request, &Err(error), &NoRedaction).expect("written");
        let line: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("file")).expect("json");
        assert_eq!((&line["model"], &line["error"]["usage"]["input_tokens"]), (&"p/m".into(), &9.into()));
        assert_eq!((&line["error"]["partial"]["text"], line.get("version")), (&"half".into(), None));
    }

    #[test]
    fn a_recording_stays_within_its_bounds() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("r.jsonl");
        let lines = || std::fs::read_to_string(&path).expect("file").lines().count();
        let recorder = Recorder::default();
        assert!(recorder.recorded_request(&ModelRequest::default(), &NoRedaction).is_none(), "nothing is wanted");
        recorder.start(&path).expect("started");
        assert!(recorder.start(&path).is_err(), "once");
        answer(&recorder, "a".into()).expect("written");
        let left_out = answer(&recorder, "a".repeat(MAX_RECORDED_LINE)).expect_err("too long");
        assert!(left_out.contains("over 8 MiB"), "{left_out}");
        answer(&recorder, "b".into()).expect("written");
        let request = recorder.recorded_request(&ModelRequest::default(), &NoRedaction).expect("it records");
        let canceled = Err(ModelError::new(ModelErrorKind::Canceled, "by the user"));
        recorder.answered("p/m", request, &canceled, &NoRedaction).expect("left out by rule");
        assert_eq!(lines(), 2, "neither what is too long nor what was cancelled");

        // Lines of other processes in the same file count.
        let file = OpenOptions::new().write(true).open(&path).expect("file");
        file.set_len(MAX_RECORDING - 10).expect("length");
        let full = answer(&recorder, "c".into()).expect_err("full");
        assert!(full.contains("the recording ends here: it is full"), "{full}");
        answer(&recorder, String::new()).expect("said once");
        assert_eq!(file.metadata().expect("file").len(), MAX_RECORDING - 10, "it ends before it is too long");
        file.set_len(MAX_RECORDING).expect("length");
        assert!(Recorder::default().start(&path).is_err(), "there is no room");
    }
}
