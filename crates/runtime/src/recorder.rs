//! Requests to models and their answers, as they are made, in a file that can be played (`replay:FILE`).

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::Value;
use toolwright_core::Redactor;
use toolwright_core::model::{
    MAX_RECORDED_LINE, MAX_RECORDING, ModelError, ModelErrorKind, ModelRequest, ModelResponse, RecordedError,
    RecordedLine,
};

/// Writes every request to a model with what became of it, whoever made it: one line a request, redacted, once it was
/// told where to. Requests that were cancelled are left out.
#[derive(Debug, Default)]
pub struct Recorder {
    to: OnceLock<Mutex<Target>>,
}

#[derive(Debug)]
struct Target {
    /// Gone once nothing more can be written.
    file: Option<File>,
    name: String,
    bytes: u64,
}

impl Recorder {
    /// Records from now on, at the end of this file, which is made for the user alone where there is none.
    ///
    /// # Errors
    /// When the file cannot be written or is full, and when it records already.
    pub fn start(&self, path: &Path) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.create(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        let bytes = file.metadata()?.len();
        if bytes >= MAX_RECORDING {
            return Err(io::Error::other(format!("it has {} MiB already", MAX_RECORDING >> 20)));
        }
        let target = Target { file: Some(file), name: path.display().to_string(), bytes };
        self.to.set(Mutex::new(target)).map_err(|_| io::Error::other("requests are recorded in another file already"))
    }

    /// The request as it will be written, redacted by what is known before it is sent, as it will be looked for;
    /// `None` where nothing is recorded.
    pub(crate) fn asked(&self, request: &ModelRequest, redactor: &dyn Redactor) -> Option<Value> {
        self.to.get()?;
        match serde_json::to_value(request) {
            Ok(request) => Some(redactor.redact_value(&request)),
            Err(error) => {
                tracing::error!("a request to a model cannot be recorded: {error}");
                None
            }
        }
    }

    /// The request has ended.
    pub(crate) fn answered(
        &self,
        model: &str,
        request: Value,
        answer: &Result<ModelResponse, ModelError>,
        redactor: &dyn Redactor,
    ) {
        let Some(target) = self.to.get() else { return };
        let (response, error) = match answer {
            Ok(answer) => (Some(answer.clone()), None),
            Err(error) if error.kind == ModelErrorKind::Canceled => return,
            Err(error) => (None, Some(RecordedError { kind: error.kind, message: error.message.clone() })),
        };
        let line = RecordedLine::Exchange { model: model.to_owned(), request: Value::Null, response, error };
        let line = serde_json::to_value(line).map(|line| {
            let mut line = redactor.redact_value(&line);
            line["request"] = request;
            line.to_string()
        });
        let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
        match line {
            Ok(line) => write(&mut target, line),
            Err(error) => tracing::error!("an answer of a model cannot be recorded: {error}"),
        }
    }
}

fn write(target: &mut MutexGuard<'_, Target>, mut line: String) {
    line.push('\n');
    if line.len() > MAX_RECORDED_LINE {
        let most = MAX_RECORDED_LINE >> 20;
        tracing::error!("{}: a request to a model is left out, with its answer it has over {most} MiB", target.name);
        return;
    }
    let bytes = target.bytes + line.len() as u64;
    let full = bytes > MAX_RECORDING;
    let Some(file) = target.file.as_mut() else { return };
    // One write a line: other processes may append to the same file.
    let written = if full { Err(io::Error::other("it is full")) } else { file.write_all(line.as_bytes()) };
    match written {
        Ok(()) => target.bytes = bytes,
        Err(error) => {
            tracing::error!("{}: the recording ends here: {error}", target.name);
            target.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use toolwright_core::context::NoRedaction;

    use super::*;

    fn answer(recorder: &Recorder, text: String) {
        let request = recorder.asked(&ModelRequest::default(), &NoRedaction).expect("it records");
        let answer = ModelResponse { text, ..ModelResponse::default() };
        recorder.answered("p/m", request, &Ok(answer), &NoRedaction);
    }

    #[test]
    fn a_recording_keeps_within_its_bounds() {
        let dir = tempfile::tempdir().expect("folder");
        let path = dir.path().join("r.jsonl");
        let lines = || std::fs::read_to_string(&path).expect("file").lines().count();
        let recorder = Recorder::default();
        assert!(recorder.asked(&ModelRequest::default(), &NoRedaction).is_none(), "nothing is wanted");
        recorder.start(&path).expect("started");
        assert!(recorder.start(&path).is_err(), "once");
        answer(&recorder, "a".into());
        answer(&recorder, "a".repeat(MAX_RECORDED_LINE));
        answer(&recorder, "b".into());
        let request = recorder.asked(&ModelRequest::default(), &NoRedaction).expect("it records");
        let canceled = Err(ModelError::new(ModelErrorKind::Canceled, "by the user"));
        recorder.answered("p/m", request, &canceled, &NoRedaction);
        assert_eq!(lines(), 2, "neither what is too long nor what was cancelled");

        let file = OpenOptions::new().write(true).open(&path).expect("file");
        let length = |recorder: &Recorder, bytes: u64| {
            file.set_len(bytes).expect("length");
            recorder.start(&path)
        };
        let last = Recorder::default();
        length(&last, MAX_RECORDING - 10).expect("room for ten bytes");
        answer(&last, "c".into());
        answer(&last, String::new());
        assert_eq!(file.metadata().expect("file").len(), MAX_RECORDING - 10, "it ends before it is too long");
        assert!(length(&Recorder::default(), MAX_RECORDING).is_err(), "there is no room");
    }
}
