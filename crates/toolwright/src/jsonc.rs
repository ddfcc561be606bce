//! JSON with comments, as VS Code and Zed write it.

/// Removes `//` and `/* */` comments from a text. Line numbers and strings are unchanged.
pub(crate) fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('"', _) => {
                out.push(c);
                while let Some(inner) = chars.next() {
                    out.push(inner);
                    match inner {
                        '\\' => out.extend(chars.next()),
                        '"' => break,
                        _ => {}
                    }
                }
            }
            // After a colon it is part of an address.
            ('/', Some('/')) if !out.ends_with(':') => {
                while chars.peek().is_some_and(|c| *c != '\n') {
                    chars.next();
                }
            }
            ('/', Some('*')) => {
                chars.next();
                let mut last = ' ';
                for inner in chars.by_ref() {
                    if inner == '\n' {
                        out.push('\n');
                    }
                    if last == '*' && inner == '/' {
                        break;
                    }
                    last = inner;
                }
            }
            _ => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_removed_and_strings_kept() {
        let text = "{ // one\n \"a\": \"http://x\", /* two\n three */ \"b\": \"\\\"//\" }";
        assert_eq!(without_comments(text), "{ \n \"a\": \"http://x\", \n \"b\": \"\\\"//\" }");
    }
}
