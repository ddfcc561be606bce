//! What a text may carry off besides addresses: long numbers, as of accounts, cards and telephones, and blobs, as encoded
//! data and keys are. Found by their shape alone, rather too many than too few.

/// Digits of a long number.
const DIGITS: usize = 8;
/// Digits of a number that is written in groups.
const GROUPED: usize = 10;
/// Characters of a blob.
const BLOB: usize = 20;

/// Adds what `text` has of them to `found`.
pub(super) fn find(text: &str, found: &mut Vec<String>) {
    let mut groups = Groups::default();
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
struct Groups<'t> {
    words: Vec<&'t str>,
}

impl<'t> Groups<'t> {
    /// Takes a word that may be a group: two to six digits, an area code with its sign among them.
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
    // What follows is a time of the day, of few digits.
    is_day && word.len() - date.len() <= "T00:00:00.000+00:00".len()
}

/// Letters and digits without a blank that are no words: case or kind changes again and again, as in base64 and hex.
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
    use super::*;
    use proptest::prelude::*;

    fn found(text: &str) -> Vec<String> {
        let mut found = Vec::new();
        find(text, &mut found);
        found
    }

    #[test]
    fn long_numbers_and_blobs_are_found_and_words_dates_and_sums_are_not() {
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
            assert_eq!(found(text), expect, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in ".{0,300}") {
            found(&text);
        }

        #[test]
        fn a_long_number_is_found_wherever_it_stands(before in "[a-z ]{0,20}", n in "[1-9][0-9]{8,20}", after in "[a-z ]{0,20}") {
            let text = format!("{before} {n} {after}");
            prop_assert!(found(&text).contains(&n));
        }

        #[test]
        fn plain_words_are_no_codes(text in "[a-z]{1,12}( [a-z]{1,12}){0,20}") {
            prop_assert_eq!(found(&text), Vec::<String>::new());
        }
    }
}
