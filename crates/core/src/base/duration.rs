//! Durations as people write them: `250ms`, `30s`, `5m`, `2h`, `1d`, `1w`; a bare number is milliseconds. And moments in
//! ISO 8601.

use std::time::Duration;

use jiff::Timestamp;

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a duration: write a number with ms, s, m, h, d or w, like 30s (a bare number is milliseconds)")]
pub struct DurationError(pub String);

/// Parses a duration.
///
/// # Errors
/// [`DurationError`] for an unknown unit, a negative number or an overflow.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let fail = || DurationError(text.to_owned());
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number: f64 = number.parse().map_err(|_| fail())?;
    let scale = match unit.trim() {
        "" | "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        _ => return Err(fail()),
    };
    Duration::try_from_secs_f64(number * scale).map_err(|_| fail())
}

/// The shortest exact text of a duration, in the largest unit that divides it; below a millisecond it is cut.
#[must_use]
pub fn format(duration: Duration) -> String {
    let millis = duration.as_millis();
    for (unit, size) in [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)] {
        if millis >= size && millis.is_multiple_of(size) {
            return format!("{}{unit}", millis / size);
        }
    }
    format!("{millis}ms")
}

/// A time in UTC as ISO 8601 has it, to the millisecond; at most the end of the year 9999.
#[must_use]
pub fn iso(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok()).unwrap_or(Timestamp::MAX);
    format!("{time:.3}")
}

/// Serde for `Duration`, as [`option`].
pub mod required {
    use std::time::Duration;

    use serde::{Deserializer, Serializer};

    /// Writes the duration as text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        super::option::serialize(&Some(*value), serializer)
    }

    /// Reads text with a unit, or milliseconds.
    ///
    /// # Errors
    /// A text that is not a duration, or a missing value.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        super::option::deserialize(deserializer)?.ok_or_else(|| serde::de::Error::custom("a duration is missing"))
    }
}

/// Serde for `Option<Duration>`: written as text, read as text or as a number of milliseconds.
pub mod option {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Millis(u64),
        Text(String),
    }

    /// Writes the duration as text.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(value: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            Some(duration) => serializer.serialize_str(&super::format(*duration)),
            None => serializer.serialize_none(),
        }
    }

    /// Reads text with a unit, or milliseconds.
    ///
    /// # Errors
    /// Text that is not a duration.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Ok(match Option::<Written>::deserialize(deserializer)? {
            None => None,
            Some(Written::Millis(millis)) => Some(Duration::from_millis(millis)),
            Some(Written::Text(text)) => Some(super::parse(&text).map_err(serde::de::Error::custom)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_parse_and_print() {
        for (text, millis, printed) in [
            ("250ms", 250, "250ms"),
            ("30s", 30_000, "30s"),
            ("1.5s", 1500, "1500ms"),
            ("5m", 300_000, "5m"),
            ("2 h", 7_200_000, "2h"),
            ("1d", 86_400_000, "1d"),
            ("2w", 1_209_600_000, "2w"),
            ("300000", 300_000, "5m"),
        ] {
            let parsed = parse(text).expect(text);
            assert_eq!(parsed, Duration::from_millis(millis), "{text}");
            assert_eq!(format(parsed), printed);
        }
        for text in ["", "s", "-1s", "1y", "1e400s", "..s"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_iso_8601() {
        for (ms, expect) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199_000, "2024-02-29T23:59:59.000Z"),
            (1_735_689_599_001, "2024-12-31T23:59:59.001Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (u64::MAX, "9999-12-30T22:00:00.999Z"),
        ] {
            assert_eq!(iso(ms), expect);
        }
    }
}
