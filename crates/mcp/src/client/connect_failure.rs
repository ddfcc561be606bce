//! Why a server cannot be used.

/// How an attempt to connect ended without a connection.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answers, but not to this generation. What carries the connection may be used again.
    Refused(String),
    /// Something went wrong on the server's side: it may speak this generation all the same. What carries the connection
    /// may be used again.
    Fault(String),
    /// No answer in time.
    Silent(String),
    /// The answer makes no sense, or the connection ended.
    Broken(String),
    /// Nothing could be sent.
    Unreachable(String),
    /// Another attempt would fare no better.
    Final(String),
}
