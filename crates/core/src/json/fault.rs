//! What is wrong with a text that is no JSON: where first, then what was expected there.

/// `line 1, column 8: expected a value`.
#[must_use]
pub fn fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let said = text.strip_suffix(&place).unwrap_or(&text);
    let what = match said {
        "EOF while parsing a value" => "the text ends where a value is expected",
        "EOF while parsing an object" => "the text ends inside an object: expected `,` or `}`",
        "EOF while parsing a list" => "the text ends inside an array: expected `,` or `]`",
        "EOF while parsing a string" => "the text ends inside a string: expected `\"`",
        "expected value" => "expected a value",
        "expected ident" => "expected a value: `true`, `false`, `null`, a number, or a text in double quotes",
        "key must be a string" => "expected a name in double quotes",
        "trailing comma" => "expected another member after the comma",
        "trailing characters" => "expected nothing more: the value has ended",
        "invalid escape" => "expected an escape that JSON knows after `\\`",
        said if said.starts_with("control character") => {
            "expected no line break or tab in a string: write `\\n` or `\\t`"
        }
        said => said,
    };
    if error.line() == 0 {
        what.to_owned()
    } else {
        format!("line {}, column {}: {what}", error.line(), error.column())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_begins_with_its_place() {
        for (text, expect) in [
            ("{\"a\": 1,\n \"b\" 2}", "line 2, column 6: expected `:`"),
            ("{\"a\": }", "line 1, column 7: expected a value"),
            ("{\"a\": 1,}", "line 1, column 9: expected another member after the comma"),
            ("{a: 1}", "line 1, column 2: expected a name in double quotes"),
            ("{\"a\": 1}}", "line 1, column 9: expected nothing more: the value has ended"),
            ("nope", "line 1, column 2: expected a value: `true`"),
            ("{\"a\": 1", "line 1, column 7: the text ends inside an object: expected `,` or `}`"),
            ("\"a", "line 1, column 2: the text ends inside a string"),
            ("\"a\nb\"", "line 2, column 0: expected no line break or tab in a string"),
            ("", "line 1, column 0: the text ends where a value is expected"),
        ] {
            let error = serde_json::from_str::<serde_json::Value>(text).expect_err("no JSON");
            assert!(fault(&error).starts_with(expect), "{text}: {}", fault(&error));
        }
    }
}
