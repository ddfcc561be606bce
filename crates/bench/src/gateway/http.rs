//! A minimal HTTP/1.1 client on one persistent connection, for timing servers.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use serde_json::Value;

use super::front::ANSWER;
use crate::Failure;

/// A connection.
pub(super) struct Http {
    stream: BufReader<TcpStream>,
    /// A request without its method and length.
    head: String,
}

/// A response.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) session: Option<String>,
    body: Vec<u8>,
}

impl Answer {
    /// Returns the body, or the data of the last event of an event stream; an error unless the status is 200.
    pub(super) fn message(&self) -> Result<&[u8], Failure> {
        if self.status != 200 {
            let text = String::from_utf8_lossy(self.body.get(..200).unwrap_or(&self.body));
            return Err(format!("HTTP {}: {}", self.status, text.trim()).into());
        }
        let mut events = self.body.split(|byte| *byte == b'\n').filter_map(|line| line.strip_prefix(b"data:"));
        Ok(events.rfind(|data| data.iter().any(|byte| !byte.is_ascii_whitespace())).unwrap_or(&self.body))
    }

    /// Returns the message as JSON.
    pub(super) fn json(&self) -> Result<Value, Failure> {
        Ok(serde_json::from_slice(self.message()?)?)
    }
}

impl Http {
    /// Connects. Every request goes to `path` with these header lines (each ends with CRLF).
    pub(super) fn connect(addr: SocketAddr, path: &str, headers: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect_timeout(&addr, ANSWER)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
        let head = format!(
            "{path} HTTP/1.1\r\nHost: {addr}\r\nContent-Type: application/json\r\n\
             Accept: application/json, text/event-stream\r\n{headers}"
        );
        Ok(Self { stream: BufReader::new(stream), head })
    }

    /// Sends a request without a body and reads the response.
    pub(super) fn get(&mut self) -> Result<Answer, Failure> {
        self.exchange(&format!("GET {}\r\n", self.head))
    }

    /// Sends a request and reads the whole response.
    pub(super) fn post(&mut self, body: &str) -> Result<Answer, Failure> {
        self.exchange(&format!("POST {}Content-Length: {}\r\n\r\n{body}", self.head, body.len()))
    }

    fn exchange(&mut self, request: &str) -> Result<Answer, Failure> {
        self.sent_and_answered(request).map_err(|error| match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            // Systems name the error of a read timeout differently.
            Some(io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                format!("not answered within {} s", ANSWER.as_secs()).into()
            }
            _ => error,
        })
    }

    fn sent_and_answered(&mut self, request: &str) -> Result<Answer, Failure> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_final_message_is_the_last_event() {
        let answer = |status: u16, body: &str| Answer { status, session: None, body: body.into() };
        let check = |body: &str, expect: &str| {
            let answer = answer(200, body);
            assert_eq!(String::from_utf8_lossy(answer.message().expect("a message")).trim(), expect, "{body:?}");
        };
        check("{\"id\":1}", "{\"id\":1}");
        check("event: message\ndata: {\"id\":1}\n\n", "{\"id\":1}");
        check("data:\nid: 1\n\ndata: {\"method\":\"m\"}\n\nid: 2\ndata: {\"id\":2}\n\n", "{\"id\":2}");
        let refused = answer(429, "slow down\n").json().expect_err("no success");
        assert_eq!(refused.to_string(), "HTTP 429: slow down");
    }
}
