//! Parts as one body: what stands between them, and how the whole is named (RFC 2046, section 5.1).

use bytes::Bytes;
use toolwright_core::tool_id::short_hash;

/// One part as it is sent, with its head.
pub(super) struct Written {
    pub(super) content_type: String,
    pub(super) bytes: Vec<u8>,
}

/// A name between quotes: quotes and line breaks as HTML writes them ("multipart/form-data encoding algorithm"), a
/// backslash as a quoted pair (RFC 2183). HTML leaves it as it is, and so do browsers; but readers of quoted pairs then
/// lose it, and at the end of a name the quote after it, while readers that know of no pairs have it twice at worst.
pub(super) fn quoted(name: &str) -> String {
    name.replace('\\', r"\\").replace('\r', "%0D").replace('\n', "%0A").replace('"', "%22")
}

/// A boundary that no part holds; the same for the same parts, so that a repeated request is the same.
pub(super) fn boundary(parts: &[Written]) -> String {
    let all = parts.iter().map(|part| String::from_utf8_lossy(&part.bytes)).collect::<Vec<_>>().join("\n");
    let mut attempt = 0_u32;
    loop {
        let boundary = format!("toolwright-{}", short_hash(&format!("{attempt}\n{all}"), 32));
        if parts.iter().all(|part| memchr::memmem::find(&part.bytes, boundary.as_bytes()).is_none()) {
            return boundary;
        }
        attempt += 1;
    }
}

/// The parts with the boundary between them.
pub(super) fn joined(parts: &[Written], boundary: &str) -> Bytes {
    let mut body = Vec::with_capacity(parts.iter().map(|part| part.bytes.len() + boundary.len() + 8).sum());
    for part in parts {
        body.extend_from_slice(format!("--{boundary}\r\n").as_bytes());
        body.extend_from_slice(&part.bytes);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
    body.into()
}

/// The media type of the whole: what the document states, with this boundary for any of its own. Where the first part is
/// what the others belong to, its type is named too, unless the document does (RFC 2387, section 3.1).
pub(super) fn content_type(stated: &str, boundary: &str, parts: &[Written]) -> String {
    let (essence, parameters) = pieces(stated);
    let is = |parameter: &str, name: &str| {
        parameter.split('=').next().is_some_and(|stated| stated.trim().eq_ignore_ascii_case(name))
    };
    let kept: Vec<&str> = parameters.into_iter().filter(|parameter| !is(parameter, "boundary")).collect();
    let mut whole = essence.to_owned();
    for parameter in &kept {
        whole.push_str("; ");
        whole.push_str(parameter);
    }
    whole.push_str("; boundary=");
    whole.push_str(boundary);
    let is_related = essence.eq_ignore_ascii_case("multipart/related");
    if let Some(root) = parts.first().filter(|_| is_related && !kept.iter().any(|parameter| is(parameter, "type"))) {
        let kind = root.content_type.replace('\\', r"\\").replace('"', r#"\""#);
        whole.push_str(&format!("; type=\"{kind}\""));
    }
    whole
}

/// A media type without its parameters, and these.
fn pieces(stated: &str) -> (&str, Vec<&str>) {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let mut pieces = stated.split(|c| {
        let is_between = c == ';' && !is_quoted;
        is_quoted ^= c == '"' && !is_escaped;
        is_escaped = c == '\\' && is_quoted && !is_escaped;
        is_between
    });
    let essence = pieces.next().unwrap_or_default().trim();
    (essence, pieces.map(str::trim).filter(|parameter| !parameter.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_has_one_boundary_and_the_type_of_its_root_once() {
        let of = |kind: &str| [Written { content_type: kind.to_owned(), bytes: Vec::new() }];
        for (stated, root, expect) in [
            ("multipart/form-data", "a/b", "multipart/form-data; boundary=B"),
            ("multipart/mixed ; Boundary = x;;a=b ", "a/b", "multipart/mixed; a=b; boundary=B"),
            (
                r#"multipart/mixed; a="\";boundary=y"; boundary="\"x;""#,
                "a/b",
                r#"multipart/mixed; a="\";boundary=y"; boundary=B"#,
            ),
            ("Multipart/Related", "a/b", r#"Multipart/Related; boundary=B; type="a/b""#),
            ("multipart/related; TYPE=c/d", "a/b", "multipart/related; TYPE=c/d; boundary=B"),
            ("multipart/related", r#"a/b\; c="d""#, r#"multipart/related; boundary=B; type="a/b\\; c=\"d\"""#),
        ] {
            assert_eq!(content_type(stated, "B", &of(root)), expect, "{stated}");
        }
        assert_eq!(content_type("multipart/related", "B", &[]), "multipart/related; boundary=B");
    }
}
