//! A server that keeps the bytes it gets and answers with the bytes it is told, and names that resolve
//! as a test says. The tests of `providers` include this file.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use toolwright_net::{HostResolver, HttpOptions, ProxyConfig};

/// A request as it came over the wire.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// Request line.
    pub(crate) line: String,
    head: String,
    /// Body, by its `Content-Length`.
    pub(crate) body: String,
}

impl Received {
    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (found, value) = line.split_once(": ")?;
            found.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

/// What is sent back.
pub(crate) struct Reply {
    parts: Vec<Vec<u8>>,
    hang: bool,
}

impl Reply {
    /// A whole response.
    pub(crate) fn new(status: &str, headers: &str, body: impl AsRef<[u8]>) -> Self {
        let body = body.as_ref();
        let mut bytes =
            format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len())
                .into_bytes();
        bytes.extend_from_slice(body);
        Self { parts: vec![bytes], hang: false }
    }

    /// A 200 of this type.
    pub(crate) fn ok(content_type: &str, body: impl AsRef<[u8]>) -> Self {
        Self::new("200 OK", &format!("Content-Type: {content_type}\r\n"), body)
    }

    /// A redirect.
    pub(crate) fn redirect(status: u16, location: &str) -> Self {
        Self::new(&format!("{status} Elsewhere"), &format!("Location: {location}\r\n"), "")
    }

    /// A 200 whose body comes in pieces, with a pause between them.
    pub(crate) fn pieces(content_type: &str, pieces: &[&str]) -> Self {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nConnection: close\r\n\r\n");
        let parts = std::iter::once(head).chain(pieces.iter().map(|&piece| piece.to_owned()));
        Self { parts: parts.map(String::into_bytes).collect(), hang: false }
    }

    /// The same with another header.
    pub(crate) fn and_header(mut self, header: &str) -> Self {
        let head = String::from_utf8_lossy(&self.parts[0]).replacen("\r\n", &format!("\r\n{header}\r\n"), 1);
        self.parts[0] = head.into_bytes();
        self
    }

    /// The same, but it says that its body has so many bytes.
    pub(crate) fn and_length(mut self, length: usize) -> Self {
        let text = String::from_utf8_lossy(&self.parts[0]).into_owned();
        let (before, after) = text.split_once("Content-Length: ").expect("a length");
        let (_, after) = after.split_once("\r\n").expect("a line");
        self.parts[0] = format!("{before}Content-Length: {length}\r\n{after}").into_bytes();
        self
    }

    /// The same, but it never ends.
    pub(crate) fn then_never_end(self) -> Self {
        Self { hang: true, ..self }
    }
}

/// The server. It runs as long as the test's runtime.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
}

impl Server {
    /// Answers every request with what `reply` makes of it.
    pub(crate) async fn start(reply: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
        let address = listener.local_addr().expect("address");
        let received = Arc::new(Mutex::new(Vec::new()));
        let (log, reply) = (Arc::clone(&received), Arc::new(reply));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (log, reply) = (Arc::clone(&log), Arc::clone(&reply));
                tokio::spawn(async move { serve(stream, &log, &*reply).await });
            }
        });
        Self { address, received }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Everything that came so far.
    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().expect("lock").clone()
    }

    /// The one request that came.
    pub(crate) fn only(&self) -> Received {
        let received = self.received();
        assert_eq!(received.len(), 1, "{received:?}");
        received[0].clone()
    }
}

async fn serve(
    mut stream: TcpStream,
    log: &Mutex<Vec<Received>>,
    reply: &(dyn Fn(&Received) -> Reply + Send + Sync),
) -> Option<()> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
    let mut request = Received { line: head.lines().next()?.to_owned(), head, body: String::new() };
    let length: usize = request.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
    while bytes.len() < end + length {
        stream.read_buf(&mut bytes).await.ok()?;
    }
    request.body = String::from_utf8_lossy(&bytes[end..]).into_owned();
    log.lock().expect("lock").push(request.clone());
    let reply = reply(&request);
    for (index, part) in reply.parts.iter().enumerate() {
        if index > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        stream.write_all(part).await.ok()?;
        stream.flush().await.ok()?;
    }
    if reply.hang {
        std::future::pending::<()>().await;
    }
    stream.shutdown().await.ok()
}

/// Names with the answers they give, one after the other; the last one stays.
#[derive(Default)]
pub(crate) struct Names {
    answers: Mutex<HashMap<String, VecDeque<Vec<IpAddr>>>>,
    /// Names that were asked for.
    pub(crate) asked: Mutex<Vec<String>>,
}

impl Names {
    pub(crate) fn new(names: &[(&str, &[&[&str]])]) -> Arc<Self> {
        let parse = |answer: &&[&str]| answer.iter().map(|address| address.parse().expect("address")).collect();
        let answers = names.iter().map(|(name, answers)| ((*name).to_owned(), answers.iter().map(parse).collect()));
        Arc::new(Self { answers: Mutex::new(answers.collect()), asked: Mutex::default() })
    }
}

#[async_trait]
impl HostResolver for Names {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        self.asked.lock().expect("lock").push(host.to_owned());
        let mut answers = self.answers.lock().expect("lock");
        let queue = answers.get_mut(host).ok_or_else(|| io::Error::other("no such name"))?;
        let answer = if queue.len() > 1 { queue.pop_front() } else { queue.front().cloned() };
        Ok(answer.unwrap_or_default())
    }
}

/// These names and no proxy.
pub(crate) fn options(names: &Arc<Names>) -> HttpOptions {
    HttpOptions { resolver: names.clone(), proxies: ProxyConfig::none() }
}
