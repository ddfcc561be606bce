//! A bare HTTP/1.1 client on one kept connection: no more than what is needed to time a server.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::Failure;

/// How long a server may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// A connection.
pub(super) struct Http {
    stream: BufReader<TcpStream>,
    head: String,
}

/// What came back.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) session: Option<String>,
    pub(super) body: Vec<u8>,
}

impl Http {
    /// Connects; every request goes to `path` with these header lines (each ends with CRLF).
    pub(super) fn connect(addr: SocketAddr, path: &str, headers: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(addr)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE))?;
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{headers}"
        );
        Ok(Self { stream: BufReader::new(stream), head })
    }

    /// One request and the whole of its answer.
    pub(super) fn post(&mut self, body: &str) -> Result<Answer, Failure> {
        let request = format!("{}Content-Length: {}\r\n\r\n{body}", self.head, body.len());
        self.stream.get_mut().write_all(request.as_bytes())?;
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or("no HTTP answer")?;
        let (mut session, mut length, mut chunked) = (None, 0, false);
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse()?,
                "transfer-encoding" => chunked = value.contains("chunked"),
                "mcp-session-id" => session = Some(value.trim().to_owned()),
                _ => {}
            }
        }
        let mut body = Vec::new();
        if !chunked {
            body.resize(length, 0);
            self.stream.read_exact(&mut body)?;
            return Ok(Answer { status, session, body });
        }
        loop {
            let size = usize::from_str_radix(self.line()?.trim(), 16)?;
            let start = body.len();
            body.resize(start + size, 0);
            self.stream.read_exact(&mut body[start..])?;
            self.line()?;
            if size == 0 {
                return Ok(Answer { status, session, body });
            }
        }
    }

    fn line(&mut self) -> Result<String, Failure> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err("the server closed the connection".into());
        }
        Ok(line.trim_end().to_owned())
    }
}
