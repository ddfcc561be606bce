//! Resources and prompts of many servers in one list: each keeps its own address where nobody else has it.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

/// Scheme of an address that names its server.
const SCHEME: &str = "toolwright-resource://";
/// What stands bare in no address. Braces stay, a template is one still; and so does all that an address may have, `%`
/// among it: a client that fills in a template encodes what it puts there (RFC 6570), and nobody can tell later who did.
const NEVER: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'<').add(b'>').add(b'`');

/// The address of a server's resource, or template, that names the server: for one that another server has too.
#[must_use]
pub fn qualify(server: &str, uri: &str) -> String {
    format!("{SCHEME}{server}/{}", utf8_percent_encode(uri, NEVER))
}

/// Server and own address of one that [`qualify`] made, or that a client made of such a template. An own address that
/// is none by RFC 3986 (it has blanks, say) comes back percent-encoded: only the list that it stands in has it as it is.
#[must_use]
pub fn qualified(uri: &str) -> Option<(&str, &str)> {
    let (server, own) = uri.strip_prefix(SCHEME)?.split_once('/')?;
    (!server.is_empty() && !own.is_empty()).then_some((server, own))
}

/// Whether an address is this resource, or one below it: its path goes on there, or a query or fragment follows.
#[must_use]
pub fn is_within(resource: &str, uri: &str) -> bool {
    uri.strip_prefix(resource).is_some_and(|rest| {
        rest.is_empty() || (!resource.is_empty() && (resource.ends_with('/') || rest.starts_with(['/', '?', '#'])))
    })
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
        for (uri, expect) in [
            ("test://a/b?c=d#e", "test://a/b?c=d#e"),
            ("x", "x"),
            ("file:///%20", "file:///%20"),
            ("note://{id}{?q*}", "note://{id}{?q*}"),
            ("toolwright-resource://a/b", "toolwright-resource://a/b"),
            ("file:///ü %20", "file:///%C3%BC%20%20"),
        ] {
            let address = qualify("git-hub", uri);
            assert_eq!(qualified(&address), Some(("git-hub", expect)), "{address}");
        }
        assert_eq!(qualify("a", "note://{id}"), "toolwright-resource://a/note://{id}");
        for other in ["test://a", "toolwright-resource://", "toolwright-resource:///x", "toolwright-resource://a/"] {
            assert_eq!(qualified(other), None, "{other}");
        }
    }

    #[test]
    fn what_a_client_fills_in_a_qualified_template_is_the_servers_to_decode() {
        // `{id}` of "note://{id}" by RFC 6570, section 3.2.2.
        for (value, own) in [("a%2Fb", "note://a%2Fb"), ("a%20b~", "note://a%20b~"), ("100%25", "note://100%25")] {
            let filled = qualify("b", "note://{id}").replace("{id}", value);
            assert_eq!(qualified(&filled), Some(("b", own)));
        }
    }

    #[test]
    fn what_is_below_a_resource_is_within_it() {
        for (resource, uri, expect) in [
            ("file:///dir", "file:///dir", true),
            ("file:///dir", "file:///dir/a.txt", true),
            ("file:///dir/", "file:///dir/a.txt", true),
            ("db://t", "db://t?row=1", true),
            ("db://t", "db://t#1", true),
            ("file:///dir", "file:///directory", false),
            ("file:///dir/a.txt", "file:///dir", false),
            ("", "/x", false),
        ] {
            assert_eq!(is_within(resource, uri), expect, "{resource} {uri}");
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
