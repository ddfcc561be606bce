//! Resources and prompts of many servers in one list: each keeps its own address where nobody else has it.

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};

/// Scheme of an address that names its server.
const SCHEME: &str = "toolwright-resource://";
/// What must not stand bare in the path of an address: its own marks. Braces stay, a template is one still.
const PATH: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'%').add(b'<').add(b'>').add(b'?').add(b'`');

/// The address of a server's resource, or template, that names the server: for one that another server has too.
#[must_use]
pub fn qualify(server: &str, uri: &str) -> String {
    format!("{SCHEME}{server}/{}", utf8_percent_encode(uri, PATH))
}

/// Server and own address of one that [`qualify`] made.
#[must_use]
pub fn qualified(uri: &str) -> Option<(&str, String)> {
    let (server, path) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    let own = percent_decode_str(path).decode_utf8().ok()?;
    (!server.is_empty() && !own.is_empty()).then(|| (server, own.into_owned()))
}

/// Whether an address can be one of a template (RFC 6570): its literal parts stand in the address, in their order, the
/// first at its beginning and the last at its end. What an expression stands for is the server's to say. Gives the
/// number of literal bytes, so that of several templates the nearest can be told.
#[must_use]
pub fn fits(template: &str, uri: &str) -> Option<usize> {
    let mut literals = Vec::new();
    let mut rest = template;
    while let Some((before, expression)) = rest.split_once('{') {
        literals.push(before);
        rest = expression.split_once('}')?.1;
    }
    let Some(first) = literals.first().copied() else { return (template == uri).then_some(uri.len()) };
    let mut left = uri.strip_prefix(first)?.strip_suffix(rest)?;
    for literal in &literals[1..] {
        left = left.split_once(literal)?.1;
    }
    Some(literals.iter().map(|literal| literal.len()).sum::<usize>() + rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_with_its_server_is_read_back() {
        for uri in ["test://a/b?c=d#e", "file:///ü %20", "x", "note://{id}{?q*}", "toolwright-resource://a/b"] {
            let address = qualify("git-hub", uri);
            assert_eq!(qualified(&address), Some(("git-hub", uri.to_owned())), "{address}");
        }
        assert_eq!(qualify("a", "note://{id}"), "toolwright-resource://a/note://{id}");
        for other in [
            "test://a",
            "toolwright-resource://",
            "toolwright-resource:///x",
            "toolwright-resource://a/",
            "toolwright-resource://a/%ff",
        ] {
            assert_eq!(qualified(other), None, "{other}");
        }
    }

    #[test]
    fn templates_fit_the_addresses_that_they_may_have_made() {
        for (template, uri, expect) in [
            ("test://a", "test://a", Some(8)),
            ("test://a", "test://ab", None),
            ("test://{id}/data", "test://7/data", Some(12)),
            ("test://{id}/data", "test://7/date", None),
            ("test://{id}/data", "test://data", None),
            ("test://{a}/x/{b}", "test://1/x/2", Some(10)),
            ("test://{a}/x/{b}", "test://1/y/2", None),
            ("{+path}", "anything", Some(0)),
            ("a{b}c{d}c", "abcdc", Some(3)),
            ("a{b", "ab", None),
        ] {
            assert_eq!(fits(template, uri), expect, "{template} {uri}");
        }
    }
}
