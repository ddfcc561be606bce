//! The streams of a stdio connection: bounded lines in, messages out. A client starts the server with pipes or (Node)
//! sockets. The event loop reads and writes those directly, which saves two thread switches per message and lets the
//! process exit during a pending read. Other streams (a file, a terminal) use tokio's threads.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use bytes::Bytes;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader, BufWriter};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

/// The most messages that are written together.
const TOGETHER: usize = 32;
/// Messages up to this size go out in one write.
const WRITE_BUFFER: usize = 64 << 10;

/// A line.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    /// The line without its end.
    Whole(Vec<u8>),
    /// The line was over the limit and was discarded.
    TooLong,
}

/// Reads lines of at most `max` bytes, and skips blank ones.
pub(super) struct Lines<R> {
    input: BufReader<R>,
    max: usize,
    line: Vec<u8>,
    is_too_long: bool,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn new(input: R, max: usize) -> Self {
        Self { input: BufReader::with_capacity(64 << 10, input), max, line: Vec::new(), is_too_long: false }
    }

    /// Returns the next line; `None` at the end. Cancel-safe.
    pub(super) async fn next(&mut self) -> std::io::Result<Option<Line>> {
        loop {
            let available = self.input.fill_buf().await?;
            if available.is_empty() {
                return Ok(self.take());
            }
            let end = memchr::memchr(b'\n', available);
            let chunk = &available[..end.unwrap_or(available.len())];
            let used = chunk.len() + usize::from(end.is_some());
            self.is_too_long |= self.line.len() + chunk.len() > self.max;
            if self.is_too_long {
                self.line = Vec::new();
            } else {
                self.line.extend_from_slice(chunk);
            }
            self.input.consume(used);
            if end.is_some()
                && let Some(line) = self.take()
            {
                return Ok(Some(line));
            }
        }
    }

    fn take(&mut self) -> Option<Line> {
        let line = std::mem::take(&mut self.line);
        if std::mem::take(&mut self.is_too_long) {
            return Some(Line::TooLong);
        }
        (!line.trim_ascii().is_empty()).then_some(Line::Whole(line))
    }
}

/// Writes messages as lines. Waiting messages go out together, with the answers of calls that are about to end, so that
/// the client wakes up once.
pub(super) async fn write_messages<W: AsyncWrite + Unpin>(
    output: W,
    mut messages: mpsc::Receiver<Bytes>,
    calls: TaskTracker,
) -> std::io::Result<()> {
    let mut output = BufWriter::with_capacity(WRITE_BUFFER, output);
    let mut batch = Vec::with_capacity(TOGETHER);
    while messages.recv_many(&mut batch, TOGETHER).await > 0 {
        if !calls.is_empty() {
            tokio::task::yield_now().await;
            while batch.len() < TOGETHER
                && let Ok(message) = messages.try_recv()
            {
                batch.push(message);
            }
        }
        for message in batch.drain(..) {
            output.write_all(&message).await?;
            output.write_all(b"\n").await?;
        }
        output.flush().await?;
    }
    Ok(())
}

/// The input stream.
pub(super) type Input = Box<dyn AsyncRead + Send + Unpin>;
/// The output stream.
pub(super) type Output = Box<dyn AsyncWrite + Send + Unpin>;

enum Kind {
    Pipe(OwnedFd),
    Socket(UnixStream),
}

/// Opens standard input.
pub(super) fn input() -> Input {
    match kind(&std::io::stdin()) {
        Some(Kind::Pipe(fd)) => match pipe::Receiver::from_owned_fd(fd) {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::io::stdin()),
        },
        Some(Kind::Socket(socket)) => Box::new(socket),
        None => Box::new(tokio::io::stdin()),
    }
}

/// Opens standard output.
pub(super) fn output() -> Output {
    // A descriptor shared with standard error must stay blocking, because logging relies on that.
    if same_file(&std::io::stdout(), &std::io::stderr()) {
        return Box::new(tokio::io::stdout());
    }
    match kind(&std::io::stdout()) {
        Some(Kind::Pipe(fd)) => match pipe::Sender::from_owned_fd(fd) {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::io::stdout()),
        },
        Some(Kind::Socket(socket)) => Box::new(socket),
        None => Box::new(tokio::io::stdout()),
    }
}

fn metadata(stream: &impl AsFd) -> Option<(std::fs::File, std::fs::Metadata)> {
    let file = std::fs::File::from(stream.as_fd().try_clone_to_owned().ok()?);
    let metadata = file.metadata().ok()?;
    Some((file, metadata))
}

fn kind(stream: &impl AsFd) -> Option<Kind> {
    let (file, metadata) = metadata(stream)?;
    if metadata.file_type().is_fifo() {
        return Some(Kind::Pipe(file.into()));
    }
    if metadata.file_type().is_socket() {
        let socket = std::os::unix::net::UnixStream::from(OwnedFd::from(file));
        // A TCP socket has no Unix address and uses tokio's threads.
        socket.local_addr().ok()?;
        socket.set_nonblocking(true).ok()?;
        return UnixStream::from_std(socket).ok().map(Kind::Socket);
    }
    None
}

fn same_file(a: &impl AsFd, b: &impl AsFd) -> bool {
    match (metadata(a), metadata(b)) {
        (Some((_, a)), Some((_, b))) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll};

    use super::*;

    #[tokio::test]
    async fn lines_are_read_and_bounded() {
        let whole = |text: &str| Line::Whole(text.into());
        for (input, expect) in [
            ("a\n\r\nb\nc".to_owned(), vec![whole("a"), whole("b"), whole("c")]),
            (format!("{}\nb\n", "x".repeat(200_000)), vec![Line::TooLong, whole("b")]),
            ("12345678\n123456789\n123456789".to_owned(), vec![whole("12345678"), Line::TooLong, Line::TooLong]),
        ] {
            let mut lines = Lines::new(input.as_bytes(), 8);
            let mut found = Vec::new();
            while let Some(line) = lines.next().await.expect("read") {
                found.push(line);
            }
            assert_eq!(found, expect);
        }
    }

    /// Records each write.
    #[derive(Clone, Default)]
    struct Writes(Arc<Mutex<Vec<String>>>);

    impl AsyncWrite for Writes {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
            self.0.lock().expect("writes").push(String::from_utf8_lossy(bytes).into_owned());
            Poll::Ready(Ok(bytes.len()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn ready_answers_share_one_write() {
        for (others_run, expect) in [(false, vec!["1\n", "2\n3\n"]), (true, vec!["1\n2\n3\n"])] {
            let (calls, writes) = (TaskTracker::new(), Writes::default());
            let other = others_run.then(|| calls.token());
            let (outbox, messages) = mpsc::channel(8);
            let writer = tokio::spawn(write_messages(writes.clone(), messages, calls));
            tokio::task::yield_now().await;
            // The writer wakes before the tasks that send the other messages.
            outbox.send("1".into()).await.expect("taken");
            for message in ["2", "3"] {
                let outbox = outbox.clone();
                tokio::spawn(async move { outbox.send(message.into()).await });
            }
            drop(outbox);
            writer.await.expect("joined").expect("written");
            assert_eq!(*writes.0.lock().expect("writes"), expect);
            drop(other);
        }
    }
}
