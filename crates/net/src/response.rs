//! HTTP responses with a bounded body.

use std::time::Instant;

use bytes::Bytes;
use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use toolwright_core::{Cancel, ToolContext};
use url::Url;

use super::error::{NetError, without_secrets};

/// Bounds on a request's time: cancellation and a deadline.
#[derive(Debug, Clone, Copy)]
pub struct Bounds<'a> {
    cancel: &'a Cancel,
    deadline: Option<Instant>,
}

impl<'a> Bounds<'a> {
    /// Bounds.
    #[must_use]
    pub fn new(cancel: &'a Cancel, deadline: Option<Instant>) -> Self {
        Self { cancel, deadline }
    }

    /// The bounds of a call.
    #[must_use]
    pub fn of(context: &'a ToolContext) -> Self {
        Self::new(&context.cancel, context.deadline)
    }

    /// Runs `work` until it is done or a bound is reached; then it is dropped.
    ///
    /// # Errors
    /// [`NetError::Canceled`] and [`NetError::Timeout`].
    pub async fn run<T>(self, work: impl Future<Output = T>) -> Result<T, NetError> {
        let expired = async {
            match self.deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            cause = self.cancel.cancelled() => Err(NetError::Canceled(cause)),
            () = expired => Err(NetError::Timeout),
            done = work => Ok(done),
        }
    }
}

/// Bytes of a body.
#[derive(Debug, Clone)]
pub struct Body {
    /// The bytes, decompressed.
    pub bytes: Vec<u8>,
    /// Whether the body was cut at the bound.
    pub cut: bool,
}

/// The head of a response, with its body still to come.
#[derive(Debug)]
pub struct HttpResponse {
    inner: reqwest::Response,
    host: String,
}

impl HttpResponse {
    pub(crate) fn new(inner: reqwest::Response, host: String) -> Self {
        Self { inner, host }
    }

    /// Status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.inner.status()
    }

    /// Headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        self.inner.headers()
    }

    /// The URL that answered, after redirects.
    #[must_use]
    pub fn url(&self) -> &Url {
        self.inner.url()
    }

    /// The final URL without credentials, query and fragment.
    #[must_use]
    pub fn public_url(&self) -> String {
        without_secrets(self.url())
    }

    /// `Content-Type`; `None` when it is missing or malformed.
    #[must_use]
    pub fn media_type(&self) -> Option<MediaType> {
        MediaType::parse(self.headers().get(CONTENT_TYPE)?.to_str().ok()?)
    }

    /// The `Content-Encoding` still applied to the body: requested encodings are decoded, unrequested ones are not.
    #[must_use]
    pub fn encoding(&self) -> Option<String> {
        let encoding = self.headers().get(CONTENT_ENCODING)?;
        let encoding = String::from_utf8_lossy(encoding.as_bytes()).trim().to_ascii_lowercase();
        Some(encoding).filter(|encoding| !encoding.is_empty() && encoding != "identity")
    }

    /// The `Content-Length` header, if present. It does not tell the size of a decoded body.
    #[must_use]
    pub fn stated_length(&self) -> Option<u64> {
        self.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
    }

    /// Reads the next chunk of the body; `None` at its end.
    ///
    /// # Errors
    /// [`NetError`] when the exchange breaks or a bound is reached.
    pub async fn chunk(&mut self, bounds: Bounds<'_>) -> Result<Option<Bytes>, NetError> {
        let chunk = bounds.run(self.inner.chunk()).await?;
        chunk.map_err(|error| NetError::from_reqwest(error, self.host.clone()))
    }

    /// Reads at most `max` bytes of the body. If there is more, the connection is closed.
    ///
    /// # Errors
    /// As [`HttpResponse::chunk`].
    pub async fn read(mut self, max: usize, bounds: Bounds<'_>) -> Result<Body, NetError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk(bounds).await? {
            let room = max - bytes.len();
            bytes.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if chunk.len() > room {
                return Ok(Body { bytes, cut: true });
            }
        }
        Ok(Body { bytes, cut: false })
    }
}

/// Bytes of a page searched for a charset declaration (HTML, "prescan a byte stream").
const PRESCAN: usize = 1024;

/// A `Content-Type`, lower-cased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MediaType {
    /// `type/subtype`.
    pub essence: String,
    /// The `charset` parameter.
    pub charset: Option<String>,
}

impl MediaType {
    /// Parses a header value; `None` unless it begins with `type/subtype`.
    #[must_use]
    pub fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split(';');
        let essence = parts.next()?.trim().to_ascii_lowercase();
        let (kind, subtype) = essence.split_once('/')?;
        if kind.is_empty() || subtype.is_empty() {
            return None;
        }
        let charset = parts.find_map(|parameter| {
            let (name, value) = parameter.split_once('=')?;
            name.trim().eq_ignore_ascii_case("charset").then(|| value.trim().trim_matches('"').to_ascii_lowercase())
        });
        Some(Self { essence, charset })
    }

    /// HTML or XHTML.
    #[must_use]
    pub fn is_html(&self) -> bool {
        matches!(self.essence.as_str(), "text/html" | "application/xhtml+xml")
    }

    /// Whether it is JSON, or has a `+json` suffix (RFC 6839).
    #[must_use]
    pub fn is_json(&self) -> bool {
        self.essence == "application/json" || self.essence == "text/json" || self.essence.ends_with("+json")
    }

    /// Something that reads as text.
    #[must_use]
    pub fn is_text(&self) -> bool {
        const TEXT: [&str; 12] = [
            "application/ecmascript",
            "application/graphql",
            "application/javascript",
            "application/jsonl",
            "application/sql",
            "application/toml",
            "application/x-javascript",
            "application/x-ndjson",
            "application/x-sh",
            "application/x-www-form-urlencoded",
            "application/xml",
            "application/yaml",
        ];
        self.essence.starts_with("text/")
            || self.is_json()
            || self.essence.ends_with("+xml")
            || self.essence.ends_with("+yaml")
            || self.essence == "application/x-yaml"
            || TEXT.contains(&self.essence.as_str())
    }
}

/// Decodes `bytes`: by byte order mark, else by the charset of the type, else by the one
/// that an HTML page declares, else UTF-8, else Windows-1252. Malformed sequences become U+FFFD.
#[must_use]
pub fn decode_text(bytes: &[u8], media_type: Option<&MediaType>) -> String {
    let stated = media_type.and_then(|media_type| Encoding::for_label(media_type.charset.as_deref()?.as_bytes()));
    let declared = || media_type.filter(|media_type| media_type.is_html()).and_then(|_| declared_charset(bytes));
    let guess = || if valid_utf8_prefix(bytes) { UTF_8 } else { WINDOWS_1252 };
    // `decode` gives precedence to a byte order mark.
    stated.or_else(declared).unwrap_or_else(guess).decode(bytes).0.into_owned()
}

/// Whether `bytes` are UTF-8, ignoring a character cut at the end.
fn valid_utf8_prefix(bytes: &[u8]) -> bool {
    match std::str::from_utf8(bytes) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    }
}

/// `<meta charset="…">` or `<meta http-equiv content="…charset=…">`.
fn declared_charset(bytes: &[u8]) -> Option<&'static Encoding> {
    let head: String = bytes.iter().take(PRESCAN).map(|&byte| char::from(byte).to_ascii_lowercase()).collect();
    head.split("<meta").skip(1).find_map(|rest| {
        let tag = rest.split('>').next()?;
        let value = tag.split_once("charset")?.1.trim_start().strip_prefix('=')?;
        let label = value.trim_start().trim_start_matches(['"', '\'']);
        let end = label.find(|c: char| !c.is_ascii_alphanumeric() && !"-_:.".contains(c)).unwrap_or(label.len());
        Encoding::for_label(&label.as_bytes()[..end])
    })
}

#[cfg(test)]
mod media_tests {
    use super::*;

    #[test]
    fn media_types_are_classified() {
        for (value, html, json, text) in [
            ("text/html; charset=utf-8", true, false, true),
            ("Application/Problem+JSON", false, true, true),
            ("image/svg+xml", false, false, true),
            ("application/pdf", false, false, false),
            ("application/octet-stream", false, false, false),
        ] {
            let parsed = MediaType::parse(value).expect(value);
            assert_eq!((parsed.is_html(), parsed.is_json(), parsed.is_text()), (html, json, text), "{value}");
        }
        assert_eq!(MediaType::parse("nonsense"), None);
    }

    #[test]
    fn text_is_decoded_by_what_is_known() {
        let check = |bytes: &[u8], content_type: &str, expect: &str| {
            assert_eq!(decode_text(bytes, MediaType::parse(content_type).as_ref()), expect, "{content_type}");
        };
        check("é".as_bytes(), "text/plain", "é");
        check(b"\xe9", "text/plain; charset=\"ISO-8859-1\"", "é");
        check(b"\xff\xfeA\0", "text/plain; charset=utf-8", "A");
        check(b"<meta charset='windows-1251'>\xcf", "text/html", "<meta charset='windows-1251'>П");
        check(
            b"<meta http-equiv=x content=\"text/html; charset=koi8-r\">\xf0",
            "text/html",
            "<meta http-equiv=x content=\"text/html; charset=koi8-r\">П",
        );
        check(b"caf\xe9 x", "text/plain", "café x");
        check(b"caf\xc3", "text/plain", "caf\u{fffd}");
        check(b"a\xffb", "text/plain; charset=nonsense", "aÿb");
    }
}
