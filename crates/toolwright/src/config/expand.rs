//! Variables in configuration strings: `${VAR}`, `${VAR:-default}`, `${env:VAR}`. `${parameters.x}`
//! belongs to REST templates and is left alone; `$${` is a plain `${`.

/// Looks a variable up.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// A string after expansion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expanded {
    pub(crate) text: String,
    /// Name and value of every variable that went into it.
    pub(crate) used: Vec<(String, String)>,
}

/// Why a string cannot be expanded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ExpandError {
    #[error("the variable {0} is not set")]
    Missing(String),
    #[error("`${{{0}}}` is a placeholder of another program")]
    Foreign(String),
    #[error("`${{` is not closed")]
    Unclosed,
}

impl ExpandError {
    pub(crate) fn remedy(&self) -> String {
        match self {
            Self::Missing(name) => format!("set {name}, or write ${{{name}:-default}}"),
            Self::Foreign(_) => "write the value, ${VAR} for an environment variable, or $${ for a plain ${".to_owned(),
            Self::Unclosed => "add the closing `}`".to_owned(),
        }
    }
}

/// Expands one string, once: what a variable holds is not expanded again.
pub(crate) fn expand(text: &str, variables: Variables<'_>) -> Result<Expanded, ExpandError> {
    let mut out = String::with_capacity(text.len());
    let mut used = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        let body = &rest[start + 2..];
        if let Some(before) = rest[..start].strip_suffix('$') {
            out.push_str(before);
            out.push_str("${");
            rest = body;
            continue;
        }
        out.push_str(&rest[..start]);
        let end = body.find('}').ok_or(ExpandError::Unclosed)?;
        let expression = &body[..end];
        rest = &body[end + 1..];
        if expression.starts_with("parameters.") {
            out.push_str("${");
            out.push_str(expression);
            out.push('}');
            continue;
        }
        let (name, default) = match expression.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (expression, None),
        };
        let name = name.strip_prefix("env:").unwrap_or(name);
        if !is_name(name) {
            return Err(ExpandError::Foreign(expression.to_owned()));
        }
        // As in a shell: with a default, an empty variable counts as unset.
        let value = variables(name).filter(|value| default.is_none() || !value.is_empty());
        match (value, default) {
            (Some(value), _) => {
                out.push_str(&value);
                used.push((name.to_owned(), value));
            }
            (None, Some(default)) => out.push_str(default),
            (None, None) => return Err(ExpandError::Missing(name.to_owned())),
        }
    }
    out.push_str(rest);
    Ok(Expanded { text: out, used })
}

pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expect: Result<&str, &str>) {
        let variables = |name: &str| match name {
            "A" => Some("1".to_owned()),
            "B" => Some("${A}".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        match (expand(text, &variables), expect) {
            (Ok(got), Ok(want)) => assert_eq!(got.text, want, "{text}"),
            (Err(error), Err(fragment)) => assert!(error.to_string().contains(fragment), "{text}: {error}"),
            (got, want) => panic!("{text}: got {got:?}, want {want:?}"),
        }
    }

    #[test]
    fn variables_expand_once() {
        check("x${A}y${env:A}", Ok("x1y1"));
        check("${B}", Ok("${A}"));
        check("${C:-d}${A:-d}${EMPTY:-e}${EMPTY}", Ok("d1e"));
        check("${C:-}", Ok(""));
        check("${parameters.id}/${A}", Ok("${parameters.id}/1"));
        check("$A {A} plain", Ok("$A {A} plain"));
        check("echo $${A%x} ${A}", Ok("echo ${A%x} 1"));
        check("${C}", Err("variable C is not set"));
        check("${input:token}", Err("placeholder of another program"));
        check("${A", Err("not closed"));
    }
}
