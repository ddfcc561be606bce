//! `WWW-Authenticate` (RFC 9110 section 11.6.1), as far as it concerns bearer tokens (RFC 6750 section 3).

/// What a server says of the token it wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct BearerChallenge {
    /// `error`.
    pub(crate) error: Option<String>,
    /// `error_description`.
    pub(crate) description: Option<String>,
    /// `scope`, its words.
    pub(crate) scopes: Vec<String>,
    /// `resource_metadata` (RFC 9728 section 5.1).
    pub(crate) resource_metadata: Option<String>,
}

impl BearerChallenge {
    /// The first bearer challenge among the header's values; `None` if there is none.
    pub(crate) fn of(headers: &[String]) -> Option<Self> {
        headers.iter().find_map(|header| Self::in_header(header))
    }

    fn in_header(header: &str) -> Option<Self> {
        let mut found: Option<Self> = None;
        for item in items(header) {
            match item {
                Item::Scheme(_) if found.is_some() => break,
                Item::Scheme(scheme) => found = scheme.eq_ignore_ascii_case("bearer").then(Self::default),
                Item::Parameter(name, value) => {
                    if let Some(challenge) = &mut found {
                        challenge.take(&name, value);
                    }
                }
            }
        }
        found
    }

    fn take(&mut self, name: &str, value: String) {
        match name.to_ascii_lowercase().as_str() {
            "error" => self.error = Some(value),
            "error_description" => self.description = Some(value),
            "scope" => self.scopes = value.split_ascii_whitespace().map(str::to_owned).collect(),
            "resource_metadata" => self.resource_metadata = Some(value),
            _ => {}
        }
    }
}

enum Item {
    Scheme(String),
    Parameter(String, String),
}

/// Schemes and parameters in order. What is no part of either is passed over: a header is never refused whole.
fn items(header: &str) -> Vec<Item> {
    let mut items = Vec::new();
    let mut rest = header;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        let end = rest.find([' ', '\t', ',', '=', '"']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if rest.is_empty() {
            return items;
        }
        if word.is_empty() {
            // A stray `=` or quotation mark.
            rest = after.get(1..).unwrap_or_default();
            continue;
        }
        let spaced = after.trim_start_matches([' ', '\t']);
        match spaced.strip_prefix('=') {
            // A scheme's `token68` may end in `=`: what follows is not a value then.
            Some(value) if !value.trim_start().is_empty() && !value.starts_with(['=', ',']) => {
                let (value, after) = value_of(value.trim_start_matches([' ', '\t']));
                items.push(Item::Parameter(word.to_owned(), value));
                rest = after;
            }
            Some(padding) => rest = padding.trim_start_matches('='),
            None => {
                items.push(Item::Scheme(word.to_owned()));
                rest = after;
            }
        }
    }
}

/// A token or quoted string, and what follows it.
fn value_of(text: &str) -> (String, &str) {
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\t', ',']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &quoted[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, escaped)| escaped)),
            _ => value.push(c),
        }
    }
    (value, "")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[&str], expect: Option<(&[&str], Option<&str>, Option<&str>)>) {
        let headers: Vec<_> = headers.iter().map(|header| (*header).to_owned()).collect();
        let found = BearerChallenge::of(&headers);
        let shown = found.as_ref().map(|challenge| {
            let scopes: Vec<_> = challenge.scopes.iter().map(String::as_str).collect();
            (scopes, challenge.error.as_deref(), challenge.resource_metadata.as_deref())
        });
        assert_eq!(shown, expect.map(|(scopes, error, metadata)| (scopes.to_vec(), error, metadata)), "{headers:?}");
    }

    #[test]
    fn bearer_challenges_are_found_among_others() {
        check(&[], None);
        check(&["Basic realm=\"a, Bearer b\""], None);
        check(&["Bearer"], Some((&[], None, None)));
        check(
            &["bearer scope=\"a b\", resource_metadata=\"https://x/y\""],
            Some((&["a", "b"], None, Some("https://x/y"))),
        );
        check(
            &["Basic realm=\"x\", Bearer error=insufficient_scope , scope = \"a\\\"b\", DPoP scope=\"other\""],
            Some((&["a\"b"], Some("insufficient_scope"), None)),
        );
        check(&["Negotiate abc==", "Bearer scope=\"a"], Some((&["a"], None, None)));
        check(&["Negotiate abc==, Bearer scope=a"], Some((&["a"], None, None)));
        check(&["=,\"\",=Bearer error=x"], Some((&[], Some("x"), None)));
    }
}
