//! Header values of 2026-07-28 (basic/transports/http, value encoding).

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http::HeaderValue;

const PREFIX: &str = "=?base64?";
const SUFFIX: &str = "?=";

/// A text as a header's value: as it is where that is safe, else Base64 of its UTF-8 between markers. `None` cannot
/// happen but for texts that no header can carry.
pub(super) fn encoded(text: &str) -> Option<HeaderValue> {
    let is_safe = !text.is_empty()
        && text.trim_ascii() == text
        && !(text.starts_with(PREFIX) && text.ends_with(SUFFIX))
        && text.bytes().all(|byte| byte == b'\t' || (0x20..=0x7e).contains(&byte));
    let wrapped = || format!("{PREFIX}{}{SUFFIX}", BASE64_STANDARD.encode(text));
    if is_safe { HeaderValue::from_str(text) } else { HeaderValue::try_from(wrapped()) }.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_a_header_cannot_carry_are_wrapped() {
        for (text, expect) in [
            ("tools/call", "tools/call"),
            ("a b\tc", "a b\tc"),
            (" a", "=?base64?IGE=?="),
            ("", "=?base64??="),
            ("ä", "=?base64?w6Q=?="),
            ("a\r\nb", "=?base64?YQ0KYg==?="),
            ("=?base64?x?=", "=?base64?PT9iYXNlNjQ/eD89?="),
        ] {
            assert_eq!(encoded(text).expect("value"), expect, "{text:?}");
        }
    }
}
