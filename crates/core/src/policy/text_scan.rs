//! Finds addresses in a text that data may be sent to (links, e-mail addresses, bank accounts), and codes that may
//! carry data out (long numbers, as of accounts, cards and telephones; encoded data and keys). Both are recognised by
//! form alone, with a bias to too many matches.

use std::borrow::Cow;

/// Addresses of one text. More are an error: a condition that saw only some could be led past the others.
pub(crate) const MAX_ADDRESSES: usize = 256;

/// File extensions that are not top-level domains, so that `notes.txt` does not count as a host.
const FILES: [&str; 20] = [
    "txt", "pdf", "csv", "json", "yaml", "yml", "xml", "html", "htm", "png", "jpg", "jpeg", "gif", "doc", "docx",
    "xls", "xlsx", "ppt", "pptx", "toml",
];

/// A kind of address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AddressKind {
    /// A URL, a host name, an IPv4 address.
    Link,
    /// An e-mail address.
    Email,
    /// An account number: an IBAN, in one piece or in groups of four.
    Account,
}

/// Adds the addresses of `kind` in `text` to `found`; `false` if there are more than [`MAX_ADDRESSES`].
pub(crate) fn find(kind: AddressKind, text: &str, found: &mut Vec<String>) -> bool {
    let text = refang(text);
    let words = text.split(|c: char| c.is_whitespace() || c.is_control() || "<>()[]{}\"'`|".contains(c));
    let mut group: Option<String> = None;
    for word in words {
        match kind {
            AddressKind::Link => links(word, found),
            AddressKind::Email => found.extend(word.split([',', ';']).filter_map(email)),
            AddressKind::Account => account(word, &mut group, found),
        }
        if found.len() > MAX_ADDRESSES {
            return false;
        }
    }
    if let Some(group) = group.filter(|group| is_iban(group)) {
        found.push(group);
    }
    found.len() <= MAX_ADDRESSES
}

/// Restores defanged addresses, which people can read but programs do not link: `evil[.]com`,
/// `eve (at) evil (dot) com`.
fn refang(text: &str) -> Cow<'_, str> {
    if !text.contains(['[', '(', '{']) {
        return Cow::Borrowed(text);
    }
    let (mut all, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find(['[', '(', '{']) {
        all.push_str(&rest[..at]);
        let inside = &rest[at + 1..];
        let end = inside.char_indices().take(8).find(|(_, c)| "])}".contains(*c)).map(|(end, _)| end);
        let mark = end.and_then(|end| match &*inside[..end].trim().to_ascii_lowercase() {
            "." | "dot" => Some('.'),
            "@" | "at" => Some('@'),
            ":" => Some(':'),
            "/" => Some('/'),
            _ => None,
        });
        match (mark, end) {
            (Some(mark), Some(end)) => {
                all.truncate(all.trim_end().len());
                all.push(mark);
                rest = inside[end + 1..].trim_start();
            }
            _ => {
                all.push_str(&rest[at..=at]);
                rest = inside;
            }
        }
    }
    all.push_str(rest);
    Cow::Owned(all)
}

fn links(word: &str, found: &mut Vec<String>) {
    if word.contains("://") {
        found.push(bare(word).to_owned());
        return;
    }
    for part in word.split([',', ';']) {
        let part = bare(part);
        if plain(part).split(['&', '=']).any(is_web_address) {
            found.push(part.to_owned());
        }
    }
}

/// Normalises an address as lenient programs do: `\` as `/`, `%2F` decoded, other full stops, invisible characters
/// removed.
fn plain(part: &str) -> Cow<'_, str> {
    if part.bytes().all(|byte| byte.is_ascii() && byte != b'\\' && byte != b'%') {
        return Cow::Borrowed(part);
    }
    let is_visible = |c: &char| !matches!(c, '\u{ad}' | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}');
    let mut text: String = part
        .chars()
        .filter(is_visible)
        .map(|c| match c {
            '\\' | '／' | '⁄' | '∕' => '/',
            '。' | '．' | '｡' | '․' => '.',
            '：' => ':',
            '＠' | '﹫' => '@',
            c => c,
        })
        .collect();
    for (code, mark) in [("%2f", "/"), ("%2F", "/"), ("%5c", "/"), ("%5C", "/"), ("%3a", ":"), ("%3A", ":")] {
        text = text.replace(code, mark);
    }
    Cow::Owned(text.replace("%2e", ".").replace("%2E", "."))
}

/// Whether this is an address, with or without a scheme.
fn is_web_address(text: &str) -> bool {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'+' || c == b'-')
    };
    let behind = match text.split_once(':') {
        Some((scheme, rest)) if is_scheme(scheme) => rest,
        _ => text,
    };
    // `//host` is an address of any scheme; after a scheme, many programs do not need `//`.
    let target = behind.trim_start_matches('/');
    if behind.starts_with("//") && !target.is_empty() {
        return true;
    }
    let authority = target.split(['/', '?', '#']).next().unwrap_or_default();
    let host = match authority.rsplit_once('@') {
        // Without a path it is an e-mail address.
        Some((_, host)) if authority.len() == target.len() && !host.contains(':') => return false,
        Some((_, host)) => host,
        None => authority,
    };
    // A path from the root has no host.
    let is_path = behind.starts_with('/') && behind.len() == text.len();
    !is_path && (is_host(host.split(':').next().unwrap_or_default()) || is_v6(target))
}

fn is_v6(text: &str) -> bool {
    text.len() > 2 && text.parse::<std::net::Ipv6Addr>().is_ok()
}

/// Removes the punctuation around a word.
fn bare(word: &str) -> &str {
    word.trim_matches(|c: char| ".,;:!?*_…".contains(c))
}

fn is_host(host: &str) -> bool {
    let mut labels = host.split('.').rev();
    let (Some(last), Some(second)) = (labels.next(), labels.next()) else { return false };
    let label = |label: &str| !label.is_empty() && label.chars().all(|c| c.is_alphanumeric() || c == '-' || c == '_');
    let numbers = host.split('.').count() == 4 && host.split('.').all(|part| part.parse::<u8>().is_ok());
    let top = last.chars().count() >= 2
        && last.chars().all(|c| c.is_alphabetic() || c == '-')
        && !FILES.iter().any(|file| last.eq_ignore_ascii_case(file));
    numbers || ((top || last.starts_with("xn--")) && label(second) && labels.all(label))
}

fn email(word: &str) -> Option<String> {
    let word = bare(word).trim_start_matches("mailto:");
    let read = plain(word);
    let (local, domain) = read.rsplit_once('@')?;
    (!local.is_empty() && is_host(domain)).then(|| word.to_owned())
}

/// Processes a word; `group` holds the start of an account from earlier words.
fn account(word: &str, group: &mut Option<String>, found: &mut Vec<String>) {
    let word = bare(word);
    let plain = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if let Some(begun) = group {
        if plain && word.len() <= 4 && begun.len() < 34 && !word.bytes().any(|byte| byte.is_ascii_lowercase()) {
            begun.push_str(word);
            return;
        }
        found.extend(group.take().filter(|group| is_iban(group)));
    }
    if plain && word.len() == 4 && begins_iban(word) {
        *group = Some(word.to_owned());
    } else if plain && is_iban(word) {
        found.push(word.to_owned());
    } else {
        found.extend(word.split(|c: char| !c.is_ascii_alphanumeric()).filter(|part| is_iban(part)).map(str::to_owned));
    }
}

fn begins_iban(word: &str) -> bool {
    let bytes = word.as_bytes();
    bytes.len() >= 4 && bytes[..2].iter().all(u8::is_ascii_alphabetic) && bytes[2..4].iter().all(u8::is_ascii_digit)
}

/// Two letters, two digits, 10 to 30 more of either.
fn is_iban(word: &str) -> bool {
    (14..=34).contains(&word.len()) && begins_iban(word)
}

/// Digits of a long number.
const DIGITS: usize = 8;
/// Digits of a number that is written in groups.
const GROUPED: usize = 10;
/// Characters of a blob.
const BLOB: usize = 20;

/// Adds the codes in `text` to `found`.
pub(super) fn find_codes(text: &str, found: &mut Vec<String>) {
    let mut groups = DigitGroups::default();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control() || "<>()[]{}\"'`|,;".contains(c)) {
        let word = word.trim_matches(|c: char| ".:!?*…".contains(c));
        if !groups.take(word, found) {
            groups.end(found);
            found.extend(word.split(['&', '?', '#', ':', '@', '%']).filter(|part| is_code(part)).map(str::to_owned));
        }
    }
    groups.end(found);
}

/// Words that are groups of one number.
#[derive(Default)]
struct DigitGroups<'t> {
    words: Vec<&'t str>,
}

impl<'t> DigitGroups<'t> {
    /// Processes a possible group: two to six digits, or an area code with its sign.
    fn take(&mut self, word: &'t str, found: &mut Vec<String>) -> bool {
        let digits = word.trim_start_matches('+');
        let is_group = (2..=6).contains(&digits.chars().count()) && digits.chars().all(char::is_numeric);
        if !is_group {
            return false;
        }
        if word.starts_with('+') {
            self.end(found);
        }
        self.words.push(word);
        true
    }

    fn end(&mut self, found: &mut Vec<String>) {
        let digits: usize = self.words.iter().map(|word| word.chars().filter(|c| c.is_numeric()).count()).sum();
        if self.words.len() > 1 && digits >= GROUPED {
            found.push(self.words.join(" "));
        }
        self.words.clear();
    }
}

fn is_code(word: &str) -> bool {
    is_long_number(word) || is_blob(word)
}

/// A run of digits, joined by single marks at the most, that is no date.
fn is_long_number(word: &str) -> bool {
    let mut run = 0;
    let mut longest = 0;
    let mut joint = true;
    for c in word.chars() {
        if c.is_numeric() {
            (run, joint) = (run + 1, false);
        } else if "-./_=".contains(c) && !joint {
            joint = true;
        } else {
            (run, joint) = (0, true);
        }
        longest = longest.max(run);
    }
    longest >= DIGITS && !is_date(word)
}

/// `2024-05-15`, with a time behind it or without, `15.05.2024`, `20240515`.
fn is_date(word: &str) -> bool {
    let date = word.split(['T', '+']).next().unwrap_or_default();
    let mut parts: Vec<&str> = date.split(['-', '.', '/']).collect();
    if let [whole] = parts[..]
        && whole.len() == 8
        && whole.is_ascii()
    {
        parts = vec![&whole[..4], &whole[4..6], &whole[6..]];
    }
    let [a, month, b] = parts[..] else { return false };
    let number =
        |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<u16>().ok()).flatten();
    let is_year = |text: &str| text.len() == 4 && number(text).is_some_and(|year| (1900..2100).contains(&year));
    let is_in = |text: &str, most: u16| text.len() <= 2 && number(text).is_some_and(|n| (1..=most).contains(&n));
    let is_day = (is_year(a) && is_in(month, 12) && is_in(b, 31))
        || (is_year(b) && ((is_in(month, 12) && is_in(a, 31)) || (is_in(a, 12) && is_in(month, 31))));
    // The rest is a time of day, with few digits.
    is_day && word.len() - date.len() <= "T00:00:00.000+00:00".len()
}

/// Whether letters and digits form no word: case or kind changes repeatedly, as in base64 and hex.
fn is_blob(word: &str) -> bool {
    let word = word.trim_start_matches(['-', '_', '/']);
    let padded = word.ends_with('=');
    let word = word.trim_end_matches('=');
    let all = word.chars().count();
    if all < BLOB || !word.chars().all(|c| c.is_ascii_alphanumeric() || "+/_-".contains(c)) {
        return false;
    }
    let kind = |c: char| match c {
        'a'..='z' => 0,
        'A'..='Z' => 1,
        '0'..='9' => 2,
        _ => 3,
    };
    let kinds: Vec<u8> = word.chars().map(kind).collect();
    let has = |wanted: u8| kinds.iter().filter(|kind| **kind == wanted).count();
    let letters = has(0) + has(1);
    // `CamelCase` and `snake_case_2` change rarely, and at words.
    let changes = kinds.windows(2).filter(|pair| pair[0] != pair[1] && pair[0] != 3 && pair[1] != 3).count();
    let is_mixed = changes * 5 >= all * 2 && letters > 0;
    let is_upper = has(1) > 0 && has(2) > 1 && has(0) == 0 && has(3) * 8 < all;
    let is_hex = has(2) >= 4 && letters > 0 && word.chars().all(|c| c.is_ascii_hexdigit());
    let is_lower = all >= 26 && has(2) >= 4 && has(3) == 0 && changes >= 8;
    padded || is_mixed || is_upper || is_hex || is_lower
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(kind: AddressKind, text: &str, expect: &[&str]) {
        let mut found = Vec::new();
        assert!(find(kind, text, &mut found));
        assert_eq!(found, expect, "{text}");
    }

    #[test]
    fn addresses_are_found_by_their_shape() {
        for (text, links) in [
            ("Look: www.some-site.com.", &["www.some-site.com"][..]),
            (
                "[here](https://a.example/x?y=1,2) and a.example:8080/z",
                &["https://a.example/x?y=1,2", "a.example:8080/z"],
            ),
            ("see notes.txt, v1.2, 98.70, e.g. this", &[]),
            ("10.0.0.1 or x.zip, y.io;z.dev", &["10.0.0.1", "x.zip", "y.io", "z.dev"]),
            ("mail bob@example.com", &[]),
            ("xn--80ak6aa92e.xn--p1ai and пример.рф", &["xn--80ak6aa92e.xn--p1ai", "пример.рф"]),
            ("ftp://host", &["ftp://host"]),
            ("//host/x and \\\\host\\x", &["//host/x", "\\\\host\\x"]),
            ("https:evil.example/x, https:/evil.example", &["https:evil.example/x", "https:/evil.example"]),
            ("https%3A%2F%2Fevil.example%2Fx", &["https%3A%2F%2Fevil.example%2Fx"]),
            ("evil。com/x and ev\u{200b}il.com", &["evil。com/x", "ev\u{200b}il.com"]),
            ("me@evil.com/p.png, me@evil.com", &["me@evil.com/p.png"]),
            ("hxxps evil[.]com, evil (dot) com/x (or [this])", &["evil.com", "evil.com/x"]),
            ("hxxps[:]//evil{.}com and evil[.com", &["hxxps://evil.com"]),
            ("u=evil.com&x=1 [2001:db8::7]", &["u=evil.com&x=1", "2001:db8::7"]),
            ("/home/me/run.sh, src/main.rs, 10:30, note: this, std::io", &[]),
            ("", &[]),
        ] {
            check(AddressKind::Link, text, links);
        }
        check(
            AddressKind::Email,
            "to: bob@example.com,eve@b.org; <mailto:x@y.co>. a@b eve@evil。com, eve [at] evil[.]com",
            &["bob@example.com", "eve@b.org", "x@y.co", "eve@evil。com", "eve@evil.com"],
        );
        check(
            AddressKind::Account,
            "pay GB29NWBK60161331926819; or GB29 NWBK 6016 1331 9268 19 for us22. ;SE3550000000054910000003;50.0;",
            &["GB29NWBK60161331926819", "GB29NWBK60161331926819", "SE3550000000054910000003"],
        );
        check(AddressKind::Account, "ends in DE89 3704 0044 0532 0130 00", &["DE89370400440532013000"]);
        check(AddressKind::Account, "room AB12 is free", &[]);
    }

    #[test]
    fn too_many_addresses_are_reported() {
        assert!(!find(AddressKind::Link, &"a.example ".repeat(MAX_ADDRESSES + 1), &mut Vec::new()));
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in ".{0,200}") {
            for kind in [AddressKind::Link, AddressKind::Email, AddressKind::Account] {
                find(kind, &text, &mut Vec::new());
            }
        }

        #[test]
        fn links_are_found_anywhere_in_text(before in "[a-z ]{0,20}", after in "[a-z ]{0,20}") {
            let mut found = Vec::new();
            find(AddressKind::Link, &format!("{before} https://x.example/p {after}"), &mut found);
            prop_assert!(found.iter().any(|link| link == "https://x.example/p"));
        }
    }

    fn codes_in(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        find_codes(text, &mut found);
        found
    }

    #[test]
    fn codes_are_found_but_not_plain_words() {
        for (text, expect) in [
            ("to account 12345678, please", &["12345678"][..]),
            ("card 4111 1111 1111 1111 works", &["4111 1111 1111 1111"]),
            ("card 4111-1111-1111-1111.", &["4111-1111-1111-1111"]),
            ("call +44 20 7946 0958 now", &["+44 20 7946 0958"]),
            ("ssn 078-05-1120", &["078-05-1120"]),
            ("٤١١١١١١١١١١١١١١١", &["٤١١١١١١١١١١١١١١١"]),
            ("key sk-proj4fQx9ZkLm2Vt8", &["sk-proj4fQx9ZkLm2Vt8"]),
            ("VGhlIHBhc3N3b3JkIGlzIGh1bnRlcjI=", &["VGhlIHBhc3N3b3JkIGlzIGh1bnRlcjI="]),
            ("see deadbeef0123456789abcdef0123", &["deadbeef0123456789abcdef0123"]),
            ("JBSWY3DPEBLW64TMMQQQ2345", &["JBSWY3DPEBLW64TMMQQQ2345"]),
            ("bc1qxy2kgdygjrsqtzq2n0yrf2493p83kkfjhx0wlh", &["bc1qxy2kgdygjrsqtzq2n0yrf2493p83kkfjhx0wlh"]),
            ("on 2024-05-15 at 10:30, or 15.05.2024, 05/15/2024, 20240515", &[]),
            ("2024-05-15T10:30:00.000+02:00", &[]),
            ("98.70 of 1,050,000.00 is 12% of 2026", &[]),
            ("state-of-the-art-and-well-known-things", &[]),
            ("getMostRecentTransactionsByAccount", &[]),
            ("docs/quarterly_report_2024_final.txt", &[]),
            ("INTERNATIONALIZATION_SETTINGS", &[]),
            ("room 12 34, seats 5 6 7 8", &[]),
            ("", &[]),
        ] {
            assert_eq!(codes_in(text), expect, "{text}");
        }
    }

    proptest! {
        #[test]
        fn codes_are_looked_for_in_any_text(text in ".{0,300}") {
            codes_in(&text);
        }

        #[test]
        fn long_numbers_are_found_anywhere_in_text(before in "[a-z ]{0,20}", n in "[1-9][0-9]{8,20}", after in "[a-z ]{0,20}") {
            let text = format!("{before} {n} {after}");
            prop_assert!(codes_in(&text).contains(&n));
        }

        #[test]
        fn plain_words_are_no_codes(text in "[a-z]{1,12}( [a-z]{1,12}){0,20}") {
            prop_assert_eq!(codes_in(&text), Vec::<String>::new());
        }
    }
}
