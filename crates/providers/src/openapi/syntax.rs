//! The text of a document as a value: JSON, or YAML by the core schema of YAML 1.2, as OpenAPI wants it.
//!
//! `yes`, `no`, `on`, `off`, `y` and `n` are texts, and so are dates and times; `010` is ten and `1e3` a thousand. Merge keys
//! (`<<`) are followed, as others do who read such documents. A key that is written twice is an error.

use serde_json::Value;

/// Values of a document and its other files together, where YAML's keys are values too: aliases may make more of them than
/// a text has. A description of 60 MB has some two millions.
pub(super) const MAX_VALUES: usize = 4_000_000;
/// Parts of values that aliases may repeat in any document, and for each byte of its text: a small one must not take the
/// memory of a large one.
const MAX_REPLAYED: usize = 200_000;
const REPLAYED_A_BYTE: usize = 4;
/// Containers inside one another, as many as in JSON.
const MAX_DEPTH: usize = 128;
/// Stack of the thread that reads YAML: each container takes some tens of kilobytes of it while it is read, and a document
/// is another's word.
const STACK: usize = 32 << 20;

/// JSON or YAML of at most `max_values` values, keys among them, where it is YAML: those of JSON are bounded by its bytes.
///
/// # Errors
/// Why it is neither, or has too many.
pub(super) fn parse(text: &str, max_values: usize) -> Result<Value, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') {
        match serde_json::from_str(text) {
            Ok(value) => return Ok(value),
            // YAML's flow style begins alike; what is neither is told in JSON's words.
            Err(error) => return yaml(text, max_values).map_err(|_| format!("it is not JSON: {error}")),
        }
    }
    yaml(text, max_values)
}

fn yaml(text: &str, max_values: usize) -> Result<Value, String> {
    let read = std::thread::scope(|scope| {
        let reader = std::thread::Builder::new().name("yaml".to_owned()).stack_size(STACK);
        let reader = reader.spawn_scoped(scope, || read_yaml(text, max_values));
        let reader = reader.map_err(|error| format!("no thread can be had to read it: {error}"))?;
        reader.join().map_err(|_| "what reads YAML broke off".to_owned())
    });
    read?
}

fn read_yaml(text: &str, max_values: usize) -> Result<Value, String> {
    let replayed = MAX_REPLAYED.saturating_add(text.len().saturating_mul(REPLAYED_A_BYTE)).min(max_values);
    serde_saphyr::from_str_with_options(text, options(max_values, replayed)).map_err(|error| {
        let error = error.without_snippet();
        let message = error.to_string();
        let message = message.lines().next().unwrap_or_default();
        let mut cause = error;
        while let serde_saphyr::Error::AliasError { error, .. } = cause {
            cause = error;
        }
        match cause {
            serde_saphyr::Error::AliasReplayLimitExceeded { .. } => {
                format!("its aliases make more than {replayed} values of {} bytes: {message}", text.len())
            }
            serde_saphyr::Error::Budget { .. } => {
                format!("it is larger than {max_values} values and keys or deeper than {MAX_DEPTH} levels: {message}")
            }
            _ => format!("it is neither JSON nor YAML: {message}"),
        }
    })
}

/// What bounds a document is its size and what its aliases make of it, not how often one of them is used.
fn options(max_values: usize, replayed: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_nodes: max_values,
            max_events: max_values.saturating_mul(3),
            max_aliases: max_values,
            max_anchors: max_values,
            max_recorded_anchor_events: max_values,
            max_depth: MAX_DEPTH,
            enforce_alias_anchor_ratio: false,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: replayed },
    }
}

/// How many values a value has, itself among them.
pub(super) fn values(value: &Value) -> usize {
    let (mut count, mut waiting) = (0_usize, vec![value]);
    while let Some(value) = waiting.pop() {
        count = count.saturating_add(1);
        match value {
            Value::Array(items) => waiting.extend(items),
            Value::Object(members) => waiting.extend(members.values()),
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(text: &str) -> Result<Value, String> {
        parse(text, MAX_VALUES)
    }

    #[test]
    fn what_has_no_quotes_is_what_yaml_1_2_says() {
        for (written, expect) in [
            ("y", json!("y")),
            ("N", json!("N")),
            ("yes", json!("yes")),
            ("No", json!("No")),
            ("on", json!("on")),
            ("OFF", json!("OFF")),
            ("true", json!(true)),
            ("False", json!(false)),
            ("", json!(null)),
            ("~", json!(null)),
            ("Null", json!(null)),
            ("0o17", json!(15)),
            ("0x1F", json!(31)),
            ("010", json!(10.0)),
            ("-5", json!(-5)),
            ("+5", json!(5)),
            ("1e3", json!(1000.0)),
            (".5", json!(0.5)),
            ("18446744073709551616", json!(18446744073709551616.0)),
            ("12:30:45", json!("12:30:45")),
            ("2024-01-02", json!("2024-01-02")),
            ("2024-01-02T03:04:05Z", json!("2024-01-02T03:04:05Z")),
            ("1.2.3", json!("1.2.3")),
            ("'yes'", json!("yes")),
            ("\"1\"", json!("1")),
            ("!!str 1", json!("1")),
            ("|\n  a\n  b", json!("a\nb\n")),
        ] {
            assert_eq!(read(&format!("v: {written}")), Ok(json!({"v": expect})), "{written}");
            assert_eq!(read(&format!("- {written}")), Ok(json!([expect])), "{written}");
        }
        assert_eq!(
            read("y: 1\non: 2\n200: 3\n1.10: 4\ntrue: 5\n2024-01-02: 6\n"),
            Ok(json!({"y": 1, "on": 2, "200": 3, "1.10": 4, "true": 5, "2024-01-02": 6}))
        );
    }

    #[test]
    fn keys_are_merged_and_none_is_written_twice() {
        let merged = read("base: &b {a: 1, c: 2}\nall:\n  <<: *b\n  c: 3\n").expect("merged");
        assert_eq!(merged["all"], json!({"a": 1, "c": 3}));
        let twice = read("get: 1\nget: 2\n").expect_err("twice");
        assert!(twice.contains("get"), "{twice}");
    }

    #[test]
    fn what_yaml_may_be_is_bounded_by_what_it_comes_to() {
        // As many values as a large description has, and one anchor that is used far more often than there are anchors.
        let mut text = String::from("a: &a {type: string}\nall:\n");
        for _ in 0..2_000 {
            text.push_str("- *a\n");
        }
        for index in 0..150_000 {
            text.push_str(&format!("- {{k: {index}}}\n"));
        }
        let large = read(&text).expect("it is a large document");
        assert_eq!(large["all"].as_array().map(Vec::len), Some(152_000));
        assert!(values(&large) > 300_000);
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&format!("a: {}", nested(120))).is_ok());
        assert!(read(&format!("a: {}", nested(200))).is_err());
        // Nine levels of nine would be four hundred million.
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..10 {
            let one = format!("*a{}, ", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", one.repeat(9)));
        }
        assert!(read(&bomb).is_err());
        // Nor does one that stays below what the largest document may come to, but takes the memory of that.
        let small: String = bomb.lines().take(6).map(|line| format!("{line}\n")).collect();
        let bounded = read(&small).expect_err("bounded");
        assert!(bounded.contains("its aliases make more than"), "{bounded}");
        assert!(parse("[1, 2, 3]", 3).expect_err("bounded").contains("larger than"));
    }
}
