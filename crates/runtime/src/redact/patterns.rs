//! Recognises secrets by their form: prefixes of known issuers, and values in places where a secret is expected.

use std::ops::Range;
use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use base64::Engine as _;

use self::Body::{Base64, Dotted, Hex, Letters, Path, Plain, Upper, Word};

/// How reliable a prefix is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Certainty {
    /// It occurs only in secrets.
    Yes,
    /// It occurs in words, so nothing of the same word may precede it, and the rest must look random.
    Random,
}

/// A prefix, the kind of characters after it, and their least number.
struct Prefix(&'static str, Body, usize, Certainty);

const PREFIXES: &[Prefix] = &[
    // Clouds
    Prefix("AKIA", Upper, 16, Certainty::Random),
    Prefix("ASIA", Upper, 16, Certainty::Random),
    Prefix("ABIA", Upper, 16, Certainty::Random),
    Prefix("ACCA", Upper, 16, Certainty::Random),
    Prefix("AIza", Word, 35, Certainty::Yes),
    Prefix("ya29.", Dotted, 20, Certainty::Yes),
    Prefix("GOCSPX-", Word, 20, Certainty::Yes),
    Prefix("LTAI", Plain, 16, Certainty::Random),
    Prefix("AKID", Plain, 32, Certainty::Random),
    Prefix("dop_v1_", Hex, 40, Certainty::Yes),
    Prefix("doo_v1_", Hex, 40, Certainty::Yes),
    Prefix("dor_v1_", Hex, 40, Certainty::Yes),
    Prefix("dapi", Hex, 32, Certainty::Random),
    Prefix("hvs.", Word, 20, Certainty::Yes),
    Prefix("hvb.", Word, 20, Certainty::Yes),
    Prefix("pul-", Hex, 40, Certainty::Yes),
    Prefix("HRKU-", Word, 30, Certainty::Yes),
    Prefix("sbp_", Hex, 40, Certainty::Yes),
    Prefix("pscale_tkn_", Dotted, 30, Certainty::Yes),
    Prefix("pscale_pw_", Dotted, 30, Certainty::Yes),
    Prefix("pscale_oauth_", Dotted, 30, Certainty::Yes),
    Prefix("vcp_", Plain, 24, Certainty::Random),
    Prefix("nfp_", Plain, 36, Certainty::Random),
    Prefix("dp.pt.", Plain, 40, Certainty::Yes),
    Prefix("dp.st.", Dotted, 40, Certainty::Yes),
    // Code and packages
    Prefix("ghp_", Plain, 36, Certainty::Yes),
    Prefix("gho_", Plain, 36, Certainty::Yes),
    Prefix("ghu_", Plain, 36, Certainty::Yes),
    Prefix("ghs_", Plain, 36, Certainty::Yes),
    Prefix("ghr_", Plain, 36, Certainty::Yes),
    Prefix("github_pat_", Word, 40, Certainty::Yes),
    Prefix("glpat-", Dotted, 20, Certainty::Yes),
    Prefix("gldt-", Dotted, 20, Certainty::Yes),
    Prefix("glrt-", Dotted, 20, Certainty::Yes),
    Prefix("glptt-", Hex, 40, Certainty::Yes),
    Prefix("glcbt-", Word, 20, Certainty::Yes),
    Prefix("glagent-", Word, 20, Certainty::Yes),
    Prefix("glsoat-", Word, 20, Certainty::Yes),
    Prefix("gloas-", Word, 20, Certainty::Yes),
    Prefix("npm_", Plain, 36, Certainty::Yes),
    Prefix("pypi-", Word, 50, Certainty::Yes),
    Prefix("rubygems_", Hex, 48, Certainty::Yes),
    Prefix("dckr_pat_", Word, 20, Certainty::Yes),
    Prefix("dckr_oat_", Word, 20, Certainty::Yes),
    Prefix("ATATT3", Base64, 60, Certainty::Yes),
    Prefix("ATCTT3", Base64, 60, Certainty::Yes),
    Prefix("ATBB", Plain, 24, Certainty::Random),
    Prefix("lin_api_", Plain, 32, Certainty::Yes),
    Prefix("sntrys_", Base64, 40, Certainty::Yes),
    Prefix("sntryu_", Hex, 40, Certainty::Yes),
    Prefix("figd_", Word, 36, Certainty::Yes),
    // Models
    Prefix("sk-ant-", Word, 20, Certainty::Yes),
    Prefix("sk-proj-", Word, 20, Certainty::Yes),
    Prefix("sk-svcacct-", Word, 20, Certainty::Yes),
    Prefix("sk-admin-", Word, 20, Certainty::Yes),
    Prefix("sk-or-v1-", Hex, 32, Certainty::Yes),
    Prefix("sk-", Word, 20, Certainty::Random),
    Prefix("hf_", Plain, 30, Certainty::Random),
    Prefix("api_org_", Letters, 30, Certainty::Yes),
    Prefix("r8_", Plain, 36, Certainty::Random),
    Prefix("gsk_", Plain, 40, Certainty::Random),
    Prefix("xai-", Plain, 60, Certainty::Yes),
    Prefix("pplx-", Plain, 40, Certainty::Yes),
    Prefix("tvly-", Word, 24, Certainty::Random),
    // Messages, money, shops
    Prefix("xoxb-", Word, 20, Certainty::Yes),
    Prefix("xoxp-", Word, 20, Certainty::Yes),
    Prefix("xoxa-", Word, 20, Certainty::Yes),
    Prefix("xoxr-", Word, 20, Certainty::Yes),
    Prefix("xoxs-", Word, 20, Certainty::Yes),
    Prefix("xoxe-", Word, 20, Certainty::Yes),
    Prefix("xoxe.xox", Dotted, 20, Certainty::Yes),
    Prefix("xoxd-", Base64, 20, Certainty::Yes),
    Prefix("xapp-", Word, 20, Certainty::Yes),
    Prefix("hooks.slack.com/services/", Path, 30, Certainty::Yes),
    Prefix("discord.com/api/webhooks/", Path, 60, Certainty::Yes),
    Prefix("SG.", Dotted, 60, Certainty::Yes),
    Prefix("key-", Hex, 32, Certainty::Random),
    Prefix("SK", Hex, 32, Certainty::Random),
    Prefix("sk_live_", Plain, 16, Certainty::Yes),
    Prefix("sk_test_", Plain, 16, Certainty::Yes),
    Prefix("rk_live_", Plain, 16, Certainty::Yes),
    Prefix("rk_test_", Plain, 16, Certainty::Yes),
    Prefix("whsec_", Base64, 24, Certainty::Yes),
    Prefix("shpat_", Hex, 32, Certainty::Yes),
    Prefix("shpca_", Hex, 32, Certainty::Yes),
    Prefix("shppa_", Hex, 32, Certainty::Yes),
    Prefix("shpss_", Hex, 32, Certainty::Yes),
    Prefix("sq0atp-", Word, 22, Certainty::Yes),
    Prefix("sq0csp-", Word, 40, Certainty::Yes),
    Prefix("ntn_", Plain, 40, Certainty::Random),
    Prefix("PMAK-", Word, 40, Certainty::Yes),
    Prefix("NRAK-", Upper, 24, Certainty::Yes),
    Prefix("glsa_", Word, 32, Certainty::Yes),
    Prefix("glc_eyJ", Base64, 32, Certainty::Yes),
    Prefix("dt0c01.", Dotted, 60, Certainty::Yes),
    Prefix("AGE-SECRET-KEY-1", Upper, 50, Certainty::Yes),
    Prefix("ops_eyJ", Base64, 60, Certainty::Yes),
];

/// Names whose values are secrets: in upper or lower case, with `_`, `-` or nothing between their parts, and possibly
/// with more before and after them.
const NAMES: &[&str] = &[
    "password",
    "passwd",
    "passphrase",
    "secret",
    "api_key",
    "api-key",
    "apikey",
    "access_key",
    "access-key",
    "accesskey",
    "access_token",
    "access-token",
    "accesstoken",
    "auth_token",
    "auth-token",
    "authtoken",
    "refresh_token",
    "refreshtoken",
    "private_key",
    "privatekey",
    "account_key",
    "accountkey",
    "security-token",
];

/// Other signs of a secret.
const MARKS: [&str; 5] = ["eyj", "-----begin ", "bearer ", "basic ", "://"];

static FINDER: LazyLock<Option<AhoCorasick>> = LazyLock::new(|| {
    let words = PREFIXES.iter().map(|prefix| prefix.0).chain(NAMES.iter().copied()).chain(MARKS);
    // Every result and argument is searched, and an automaton of this kind does so several times as fast as the usual one.
    AhoCorasick::builder().ascii_case_insensitive(true).kind(Some(AhoCorasickKind::DFA)).build(words).ok()
});

/// Adds the spans of secrets in the text; they may overlap. Takes time linear in the length of any text.
pub(super) fn spans(text: &str, into: &mut Vec<Range<usize>>) {
    let Some(finder) = &*FINDER else { return };
    let mut scan = Scan { text, runs: Runs::default(), parts: Default::default(), value: Run::default(), block: None };
    for found in finder.find_overlapping_iter(text) {
        let (which, start, end) = (found.pattern().as_usize(), found.start(), found.end());
        let marks = PREFIXES.len() + NAMES.len();
        into.extend(match which {
            _ if which < PREFIXES.len() => scan.prefixed(&PREFIXES[which], start),
            _ if which < marks => scan.named(end),
            _ => match which - marks {
                0 => scan.web_token(start, end),
                1 => scan.block(start, end),
                2 => scan.bearer(end),
                3 => basic(text, end),
                _ => userinfo(text, end),
            },
        });
    }
}

/// Returns the beginning of a private key whose end has not arrived yet.
pub(super) fn open_block(text: &str) -> Option<usize> {
    let at = text.rfind("-----BEGIN ")?;
    let end = text[at..].split_once("-----END ").filter(|(_, title)| title.contains("-----"));
    end.is_none().then_some(at)
}

/// A text, and what is already known of it. Matches arrive in the order of their ends, and many may lie in one long run
/// or before one end of a block, so each is measured once.
struct Scan<'t> {
    text: &'t str,
    runs: Runs,
    /// The header, claims and signature of a web token.
    parts: [Run; 3],
    /// The value of a name.
    value: Run,
    /// The start of the latest search for the end of a block, the start of the line with that end, and its end.
    block: Option<(usize, usize, usize)>,
}

impl Scan<'_> {
    fn prefixed(&mut self, prefix: &Prefix, start: usize) -> Option<Range<usize>> {
        let &Prefix(word, body, min, sure) = prefix;
        if !self.text[start..].starts_with(word) || (sure == Certainty::Random && !starts_word(self.text, start)) {
            return None;
        }
        let (bytes, from) = (self.text.as_bytes(), start + word.len());
        let end = self.runs.end(body, bytes, from);
        if end - from < min {
            return None;
        }
        let continues = matches!(body, Upper | Hex) && bytes.get(end).is_some_and(u8::is_ascii_alphanumeric);
        let legal = sure == Certainty::Yes || (!continues && is_random(&bytes[from..end]));
        legal.then_some(start..end)
    }

    /// Returns the value after a name that ends at `end`: `name = "value"`, `"name": "value"`, `--name value`,
    /// `name=value&`.
    fn named(&mut self, end: usize) -> Option<Range<usize>> {
        let bytes = self.text.as_bytes();
        // The rest of a longer name, as in `secret_key_base`.
        let mut at = end + bytes[end..].iter().take(24).take_while(|&&byte| Word.has(byte)).count();
        let mut skip = |allowed: &[u8], most: usize| {
            let count = bytes[at..].iter().take(most).take_while(|byte| allowed.contains(byte)).count();
            at += count;
            count
        };
        skip(b"\\\"'`", 4);
        let spaces = skip(b" \t", 4);
        let assigned = skip(b":=>", 3) > 0;
        if !(assigned || (spaces > 0 && is_flag(self.text, end))) {
            return None;
        }
        skip(b" \t", 4);
        skip(b"\\\"'`", 4);
        let continues =
            |byte: u8| byte.is_ascii() && !byte.is_ascii_whitespace() && !b"\"'`,;&<>(){}[]|\\".contains(&byte);
        let value = at..self.value.end(bytes, at, continues);
        let legal = value.len() >= 8 && is_random(&bytes[value.clone()]) && bytes[at] != b'$';
        legal.then_some(value)
    }

    /// Returns `header.claims.signature`, each in Base64, the first two of JSON.
    fn web_token(&mut self, start: usize, end: usize) -> Option<Range<usize>> {
        let bytes = self.text.as_bytes();
        let word = |byte| Word.has(byte);
        let [header, claims, signature] = &mut self.parts;
        let header = start..header.end(bytes, end, word);
        let from = after_dot(bytes, header.end)?;
        let claims = from..claims.end(bytes, from, word);
        let from = after_dot(bytes, claims.end)?;
        let legal = |part: Range<usize>| part.len() > 10 && bytes[part].starts_with(b"eyJ");
        (legal(header) && legal(claims)).then(|| start..signature.end(bytes, from, word))
    }

    /// Returns a private key, up to its end or that of the text.
    fn block(&mut self, start: usize, end: usize) -> Option<Range<usize>> {
        let text = self.text;
        let head = text[start..].strip_prefix("-----BEGIN ")?.as_bytes();
        let head = &head[..head.len().min(MAX_TITLE + RULE.len())];
        let title = &head[..position(head, RULE)?];
        position(title, b"PRIVATE KEY")?;
        Some(start..self.block_end(end))
    }

    /// Returns the end of the first block that ends after `from`, or that of the text.
    fn block_end(&mut self, from: usize) -> usize {
        if let Some((looked, line, end)) = self.block
            && (looked..=line).contains(&from)
        {
            return end;
        }
        let text = self.text;
        let line = text[from..].find(END_LINE).map_or(text.len(), |at| from + at);
        let title = (line + END_LINE.len()).min(text.len());
        let end = text[title..].find("-----").map_or(text.len(), |at| title + at + RULE.len());
        self.block = Some((from, line, end));
        end
    }

    fn bearer(&mut self, end: usize) -> Option<Range<usize>> {
        let at = after_spaces(self.text, end);
        let token = at..self.runs.end(Base64, self.text.as_bytes(), at);
        (token.len() >= 12 && self.text[token.clone()].bytes().any(|byte| byte.is_ascii_digit())).then_some(token)
    }
}

const RULE: &[u8] = b"-----";
const END_LINE: &str = "-----END ";
/// The most bytes of a block's title.
const MAX_TITLE: usize = 40;

fn position(bytes: &[u8], needle: &[u8]) -> Option<usize> {
    bytes.windows(needle.len()).position(|window| window == needle)
}

fn after_dot(bytes: &[u8], at: usize) -> Option<usize> {
    (bytes.get(at) == Some(&b'.')).then_some(at + 1)
}

fn after_spaces(text: &str, at: usize) -> usize {
    at + text[at..].bytes().take_while(|&byte| byte == b' ').count()
}

/// Returns whether no part of the same word precedes; an escape (` `, `%3D`) does not count.
fn starts_word(text: &str, start: usize) -> bool {
    let before = &text.as_bytes()[..start];
    match before {
        [.., b'\\', b'n' | b't' | b'r'] => true,
        [.., b'%', high, low] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => true,
        [.., byte] => !byte.is_ascii_alphanumeric() && !matches!(byte, b'_' | b'-' | b'+'),
        [] => true,
    }
}

/// The most bytes by which randomness is judged.
const MAX_JUDGED: usize = 128;

/// Returns whether it looks random: digits among letters, and many different characters.
fn is_random(bytes: &[u8]) -> bool {
    let (mut digits, mut letters, mut counts) = (0u32, 0u32, [0u32; 128]);
    for &byte in bytes.iter().take(MAX_JUDGED).filter(|byte| byte.is_ascii()) {
        digits += u32::from(byte.is_ascii_digit());
        letters += u32::from(byte.is_ascii_alphabetic());
        counts[usize::from(byte)] += 1;
    }
    let total = f64::from(counts.iter().sum::<u32>().max(1));
    let share = |count: u32| f64::from(count) / total;
    let entropy: f64 =
        counts.iter().filter(|&&count| count > 0).map(|&count| -share(count) * share(count).log2()).sum();
    digits > 0 && letters > 0 && entropy >= 2.8
}

/// Returns whether the name that ends before `end` is written as an option of a command.
fn is_flag(text: &str, end: usize) -> bool {
    let word = text[..end].rfind(|c: char| c.is_whitespace()).map_or(0, |at| at + 1);
    text[word..].starts_with("--")
}

/// Returns `user:password` in Base64.
fn basic(text: &str, end: usize) -> Option<Range<usize>> {
    let at = after_spaces(text, end);
    let length = text[at..].bytes().take_while(|&byte| Base64.has(byte)).count();
    let engine = base64::engine::general_purpose::STANDARD_NO_PAD;
    let decoded = engine.decode(text[at..at + length].trim_end_matches('=')).ok()?;
    let pair = String::from_utf8(decoded).ok()?;
    (length >= 8 && pair.contains(':') && !pair.contains(char::is_control)).then_some(at..at + length)
}

/// Returns the password before the host of an address.
fn userinfo(text: &str, end: usize) -> Option<Range<usize>> {
    let rest = &text[end..];
    let stops = |c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"' | '\'' | '<' | '>' | '`' | '\\');
    let authority = &rest[..rest.find(stops).unwrap_or(rest.len())];
    let (user, password) = authority.rsplit_once('@')?.0.split_once(':')?;
    let from = end + user.len() + 1;
    (!password.is_empty() && !password.starts_with("${")).then(|| from..from + password.len())
}

/// The characters that may follow a prefix.
#[derive(Clone, Copy)]
enum Body {
    /// Letters and digits.
    Plain,
    /// Letters.
    Letters,
    /// Upper-case letters and digits.
    Upper,
    Hex,
    /// Letters, digits, `_` and `-`.
    Word,
    /// [`Body::Word`] and `.`.
    Dotted,
    /// Letters, digits, `+`, `/`, `=`, `_`, `-` and `.`.
    Base64,
    /// [`Body::Word`] and `/`.
    Path,
}

/// Kinds of [`Body`].
const BODIES: usize = Body::Path as usize + 1;

impl Body {
    pub(super) fn has(self, byte: u8) -> bool {
        let plain = byte.is_ascii_alphanumeric();
        match self {
            Self::Plain => plain,
            Self::Letters => byte.is_ascii_alphabetic(),
            Self::Upper => byte.is_ascii_uppercase() || byte.is_ascii_digit(),
            Self::Hex => byte.is_ascii_hexdigit(),
            Self::Word => plain || matches!(byte, b'_' | b'-'),
            Self::Dotted => plain || matches!(byte, b'_' | b'-' | b'.'),
            Self::Base64 => plain || matches!(byte, b'+' | b'/' | b'=' | b'_' | b'-' | b'.'),
            Self::Path => plain || matches!(byte, b'_' | b'-' | b'/'),
        }
    }
}

/// The last measured run of one kind of bytes.
#[derive(Default)]
struct Run(Option<Range<usize>>);

impl Run {
    /// Returns the end of the bytes that continue from `at`. If it is always called with the same bytes and
    /// `continues`, and with non-decreasing positions, it reads each byte only once in total.
    fn end(&mut self, bytes: &[u8], at: usize, continues: impl Fn(u8) -> bool) -> usize {
        match &self.0 {
            Some(last) if last.start <= at && at <= last.end => last.end,
            _ => {
                let end = at + bytes[at..].iter().take_while(|&&byte| continues(byte)).count();
                self.0 = Some(at..end);
                end
            }
        }
    }
}

/// The last run of each kind.
#[derive(Default)]
struct Runs([Run; BODIES]);

impl Runs {
    /// Like [`Run::end`].
    fn end(&mut self, body: Body, bytes: &[u8], at: usize) -> usize {
        self.0[body as usize].end(bytes, at, |byte| body.has(byte))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn check(text: &str, secret: &str) {
        let mut found = Vec::new();
        spans(text, &mut found);
        let found = super::super::merged(found);
        let texts: Vec<&str> = found.into_iter().map(|span| &text[span]).collect();
        let expect: Vec<&str> = Some(secret).filter(|secret| !secret.is_empty()).into_iter().collect();
        assert_eq!(texts, expect, "{text}");
    }

    /// Returns letters and digits in a random order that is the same at every run.
    fn random(length: usize, alphabet: &[u8]) -> String {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            alphabet[(state >> 33) as usize % alphabet.len()]
        };
        (0..length).map(|_| char::from(next())).collect()
    }

    #[test]
    fn possible_secret_prefixes_are_held_back() {
        for &Prefix(word, body, min, _) in PREFIXES {
            let alphabet: Vec<u8> = (0..128).filter(|&byte| body.has(byte) && byte != b'-' && byte != b'.').collect();
            let secret = format!("{word}{}", random(min.max(20), &alphabet));
            for text in [
                secret.clone(),
                format!("key: {secret}, and"),
                format!("\"line\\n{secret}\""),
                format!("?k={secret}&x=1"),
            ] {
                let mut found = Vec::new();
                spans(&text, &mut found);
                let found = super::super::merged(found);
                let at = text.find(&secret).expect("there");
                assert!(
                    found.iter().any(|span| span.start <= at && span.end >= at + secret.len()),
                    "{text}: {found:?}"
                );
            }
        }
    }

    /// An algorithm of quadratic time would take half a minute or more here.
    #[test]
    fn any_text_is_scanned_quickly() {
        let check = |unit: &str, length: usize| {
            let (text, began) = (unit.repeat(length / unit.len()), Instant::now());
            spans(&text, &mut Vec::new());
            assert!(began.elapsed() < Duration::from_secs(10), "{unit:?} took {:?}", began.elapsed());
        };
        for word in PREFIXES.iter().map(|prefix| prefix.0).chain(NAMES.iter().copied()) {
            check(word, 100_000);
        }
        for unit in [
            "sk-",
            "SK",
            "eyJ",
            "eyJ.",
            "secret",
            "secret=",
            "--secret ",
            "secret=a1b2c3d4e5",
            "-----BEGIN ",
            "-----BEGIN PRIVATE KEY-----",
            "Bearer ",
            "Basic ",
            "https://a:",
            "://a:b@",
        ] {
            check(unit, 1_000_000);
        }
        let half = "-----BEGIN PRIVATE KEY-----".repeat(20_000);
        check(&format!("{half}-----END {}", "x".repeat(500_000)), 1_100_000);
        let half = "eyJhbGciOiJIUzI1NiJ9".repeat(20_000);
        check(&format!("{half}.{half}.{half}"), 1_300_000);
    }

    #[test]
    fn an_end_line_ends_the_blocks_before_it() {
        let one = "-----BEGIN PRIVATE KEY-----\na\n-----END PRIVATE KEY-----";
        let mut found = Vec::new();
        spans(&format!("{one} b {one} c -----BEGIN PRIVATE KEY-----"), &mut found);
        assert_eq!(super::super::merged(found), [0..55, 58..113, 116..143]);
    }

    #[test]
    fn secrets_are_found_by_their_place() {
        check("Authorization: Bearer 0a1b2c3d4e5f6a7b", "0a1b2c3d4e5f6a7b");
        check("authorization: Basic dXNlcjpodW50ZXIy", "dXNlcjpodW50ZXIy");
        check("postgres://app:s3cr3t@db/x", "s3cr3t");
        check("https://u:p@ss@host/x", "p@ss");
        check(r#"{"api_key": "9f8e7d6c5b4a"}"#, "9f8e7d6c5b4a");
        check(r#"{\"client_secret\":\"Zx81kQ22pLm0\"}"#, "Zx81kQ22pLm0");
        check("DB_PASSWORD=tr0ub4dor&3", "tr0ub4dor");
        check("run --password Tr0ub4dor3x now", "Tr0ub4dor3x");
        check("GET /x?access_token=a8F3kd02LmQp9&y=1", "a8F3kd02LmQp9");
        check(
            "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzz9zzKEY",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzzz9zzKEY",
        );
        let token = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dozjgNryP4J3jVmNHl0w5N";
        check(&format!("got {token}."), token);
        let key = "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----";
        check(&format!("a {key} b"), key);
        check("a -----BEGIN PRIVATE KEY-----\nMIIE", "-----BEGIN PRIVATE KEY-----\nMIIE");
    }

    #[test]
    fn ordinary_text_is_unchanged() {
        for text in [
            "The password must have eight characters; enter your password: it is kept secret.",
            "let password = read_password()?; let secret: String = env::var(\"SECRET\")?;",
            "token_count: 12345678, max_tokens=4096, next_page_token: abc",
            "commit 9fceb02d0ae598e95dc970b74767f19372d61af8 and 550e8400-e29b-41d4-a716-446655440000",
            "sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
            "Basic authentication and Bearer authentication are supported; Basic usage: see below",
            "risk-assessment-of-the-whole-project task-list-for-next-week sk-loading-spinner-container-element",
            "class=\"sk-circle-fade-dot-animation-wrapper\" desk-reservation-system-for-offices",
            "https://example.com:8080/path?query=1#fragment ssh://git@github.com/a/b.git",
            "-----BEGIN CERTIFICATE-----\nMIIDdzCCAl+gAwIBAgIE\n-----END CERTIFICATE-----",
            "SKU SKELETON skip hf_transfer key-value key-frame monkey-patching api-key-header",
            "AKIA is the prefix; eyJ begins a token; ghp_ too; AIza as well; xoxb- and npm_config_registry",
            "password=${DB_PASSWORD} api_key: $API_KEY secret={{ secret }} \"secret\": {\"type\": \"string\"}",
            "access_key_id rotation secret_name=production password: required passwords: 3",
            "سلام secret: 秘密の値です password=пароль12345",
        ] {
            check(text, "");
        }
    }
}
