//! Standard input and output without helper threads.
//!
//! A client starts us with pipes or (Node) sockets. Those are read and written by the runtime's own
//! event loop, which saves two thread switches a message and lets the process end while a read is
//! pending. Anything else (a file, a terminal) goes through tokio's threads.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// Where messages come from.
pub(crate) type Input = Box<dyn AsyncRead + Send + Unpin>;
/// Where messages go.
pub(crate) type Output = Box<dyn AsyncWrite + Send + Unpin>;

enum Kind {
    Pipe(OwnedFd),
    Socket(UnixStream),
}

/// Standard input.
pub(crate) fn input() -> Input {
    match kind(&std::io::stdin()) {
        Some(Kind::Pipe(fd)) => match pipe::Receiver::from_owned_fd(fd) {
            Ok(pipe) => Box::new(pipe),
            Err(_) => Box::new(tokio::io::stdin()),
        },
        Some(Kind::Socket(socket)) => Box::new(socket),
        None => Box::new(tokio::io::stdin()),
    }
}

/// Standard output.
pub(crate) fn output() -> Output {
    // A file description shared with standard error must stay blocking: logging relies on that.
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
        // A TCP socket has no Unix address and goes the slow way.
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
