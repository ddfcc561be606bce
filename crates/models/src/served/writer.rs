//! Writes answers, streamed as server-sent events and whole, from the same pieces, with equal content.

use serde_json::Value;

use super::chat::ChatWriter;
use super::messages::MessagesWriter;
use super::responses_writer::ResponsesWriter;
use super::{ResponseEnd, ResponseHead, ResponsePiece, ServedApi};

/// Writes the answers of one API.
pub(super) trait Writer: Send {
    /// Replaces lost fields among those that the answer repeats by the API's defaults.
    fn forget(&mut self, _lost: &[&str]) {}

    /// Begins the stream.
    fn begin(&mut self, out: &mut String);

    /// Adds a piece.
    fn piece(&mut self, piece: &ResponsePiece, out: &mut String);

    /// Ends the stream.
    fn end(&mut self, end: ResponseEnd, out: &mut String);

    /// Ends the stream with an error, and the answer with it.
    fn fail(&mut self, error: &Value, out: &mut String) {
        self.interrupt(error, out);
    }

    /// Ends the stream and the answer, because it was cancelled.
    fn cancel(&mut self, error: &Value, out: &mut String) {
        self.fail(error, out);
    }

    /// Ends the stream with an error, but not the answer.
    fn interrupt(&self, error: &Value, out: &mut String);

    /// The whole answer.
    fn body(&self) -> Value;
}

/// Writes a server-sent event.
pub(super) fn event(name: Option<&str>, body: &Value, out: &mut String) {
    if let Some(name) = name {
        out.push_str("event: ");
        out.push_str(name);
        out.push('\n');
    }
    out.push_str("data: ");
    out.push_str(&body.to_string());
    out.push_str("\n\n");
}

/// Writes an answer: [`begin`](Self::begin), then each [`piece`](Self::piece), then [`end`](Self::end) or
/// [`fail`](Self::fail). Each returns the events of a stream; [`body`](Self::body) is the whole answer so far.
pub struct ResponseWriter {
    writer: Box<dyn Writer>,
}

impl std::fmt::Debug for ResponseWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ResponseWriter").finish_non_exhaustive()
    }
}

impl ResponseWriter {
    /// A writer of one answer.
    #[must_use]
    pub fn new(api: ServedApi, head: ResponseHead) -> Self {
        let writer: Box<dyn Writer> = match api {
            ServedApi::Chat => Box::new(ChatWriter::new(head)),
            ServedApi::Responses => Box::new(ResponsesWriter::new(head)),
            ServedApi::Messages => Box::new(MessagesWriter::new(head)),
        };
        Self { writer }
    }

    /// Replaces what the model is not sent, among the fields that the answer repeats, by the API's defaults.
    pub fn forget(&mut self, lost: &[&str]) {
        self.writer.forget(lost);
    }

    /// Begins the answer.
    pub fn begin(&mut self) -> String {
        let mut out = String::new();
        self.writer.begin(&mut out);
        out
    }

    /// Adds a piece.
    pub fn piece(&mut self, piece: &ResponsePiece) -> String {
        let mut out = String::new();
        self.writer.piece(piece, &mut out);
        out
    }

    /// Ends the answer.
    pub fn end(&mut self, end: ResponseEnd) -> String {
        let mut out = String::new();
        self.writer.end(end, &mut out);
        out
    }

    /// Ends the answer with an error in the API's form; see [`error_body`](super::error_body).
    pub fn fail(&mut self, error: &Value) -> String {
        let mut out = String::new();
        self.writer.fail(error, &mut out);
        out
    }

    /// Ends the answer because it was cancelled; an API without such an end has the error.
    pub fn cancel(&mut self, error: &Value) -> String {
        let mut out = String::new();
        self.writer.cancel(error, &mut out);
        out
    }

    /// Writes an error that ends the stream while the answer continues: further pieces are in [`body`](Self::body)
    /// alone.
    #[must_use]
    pub fn interrupt(&self, error: &Value) -> String {
        let mut out = String::new();
        self.writer.interrupt(error, &mut out);
        out
    }

    /// The whole answer so far.
    #[must_use]
    pub fn body(&self) -> Value {
        self.writer.body()
    }
}
