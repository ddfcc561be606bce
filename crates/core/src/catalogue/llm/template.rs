//! Templates: `{{ dotted.path }}` and the rest of Jinja's language, in its strict mode.
//!
//! A missing value is an error, null renders as nothing, and values other than text render as compact JSON.

use std::io;
use std::sync::OnceLock;

use indexmap::IndexMap;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value as Filled};
use serde_json::{Map, Value};

/// Bound on a rendered template, in bytes.
const MAX_BYTES: usize = 16 << 20;
/// Bound on the instructions of one rendering: a loop over a few ten thousand items.
const FUEL: u64 = 1_000_000;

/// Why a template cannot be parsed or rendered, with the line if known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TemplateError(String);

impl TemplateError {
    fn of(error: &Error) -> Self {
        let place = error.line().map(|line| format!(" (line {line} of the template)")).unwrap_or_default();
        let what = match (error.kind(), error.detail()) {
            (ErrorKind::UndefinedError, None) => "it uses a value that is missing".to_owned(),
            (ErrorKind::UndefinedError, Some(detail)) => format!("it uses a value that is missing: {detail}"),
            (ErrorKind::OutOfFuel, _) => "it takes too many steps".to_owned(),
            (ErrorKind::WriteFailure, _) => format!("it comes to more than {MAX_BYTES} bytes"),
            (kind, Some(detail)) => format!("{kind}: {detail}"),
            (kind, None) => kind.to_string(),
        };
        Self(format!("{what}{place}"))
    }
}

fn environment() -> &'static Environment<'static> {
    static ENVIRONMENT: OnceLock<Environment<'static>> = OnceLock::new();
    ENVIRONMENT.get_or_init(|| {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(FUEL));
        environment.set_formatter(|out, _, value| {
            if value.is_none() {
                return Ok(());
            }
            if let Some(text) = value.as_str() {
                return Ok(out.write_str(text)?);
            }
            let json = serde_json::to_string(value)
                .map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
            Ok(out.write_str(&json)?)
        });
        environment
    })
}

/// Checks that `template` parses.
///
/// # Errors
/// [`TemplateError`] with the line.
pub fn check_template(template: &str) -> Result<(), TemplateError> {
    environment().template_from_str(template).map(drop).map_err(|error| TemplateError::of(&error))
}

/// Renders `template` with `values`.
///
/// # Errors
/// [`TemplateError`] for an invalid template, a missing value, more than a million steps or
/// more than 16 MiB of text.
pub fn render(template: &str, values: &Map<String, Value>) -> Result<String, TemplateError> {
    let environment: &Environment<'_> = environment();
    let filled = || -> Result<Vec<u8>, Error> {
        let mut out = BoundedWriter(Vec::new());
        environment.template_from_str(template)?.render_captured_to(Filled::from(Serde(values)), &mut out)?;
        Ok(out.0)
    };
    let bytes = filled().map_err(|error| TemplateError::of(&error))?;
    String::from_utf8(bytes).map_err(|_| TemplateError("it comes to no text".to_owned()))
}

/// Evaluates an entry of `prepare`: an entry with `{{` or `{%` is rendered as a template, any other is evaluated as an
/// expression.
///
/// # Errors
/// As [`render`].
pub fn evaluate(entry: &str, values: &Map<String, Value>) -> Result<Value, TemplateError> {
    if is_text(entry) {
        return render(entry, values).map(Value::String);
    }
    let environment: &Environment<'_> = environment();
    let value = environment
        .compile_expression(entry)
        .and_then(|expression| expression.eval(Filled::from(Serde(values))))
        .map_err(|error| TemplateError::of(&error))?;
    if value.is_undefined() {
        return Err(TemplateError(format!("`{entry}` is a value that is missing")));
    }
    serde_json::to_value(&value).map_err(|error| TemplateError(error.to_string()))
}

/// Evaluates the entries of `prepare` in order, each with access to the earlier ones, and adds them to `values`.
///
/// # Errors
/// The entry that fails, and why.
pub(super) fn prepare(
    entries: &IndexMap<String, String>,
    values: &mut Map<String, Value>,
) -> Result<(), (String, TemplateError)> {
    for (key, entry) in entries {
        let value = evaluate(entry, values).map_err(|error| (format!("prepare.{key}"), error))?;
        values.insert(key.clone(), value);
    }
    Ok(())
}

/// Checks that an entry of `prepare` parses.
///
/// # Errors
/// [`TemplateError`].
pub(super) fn check_entry(entry: &str) -> Result<(), TemplateError> {
    if is_text(entry) {
        return check_template(entry);
    }
    environment().compile_expression_owned(entry.to_owned()).map(drop).map_err(|error| TemplateError::of(&error))
}

fn is_text(entry: &str) -> bool {
    entry.contains("{{") || entry.contains("{%")
}

/// Accepts at most [`MAX_BYTES`].
struct BoundedWriter(Vec<u8>);

impl io::Write for BoundedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_BYTES {
            return Err(io::Error::other("too long"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn values() -> Map<String, Value> {
        let values = json!({
            "name": "Ada", "nothing": null, "n": 3, "x": 1.5, "yes": true, "of": {"b": 1, "a": ["ü", null]},
            "list": ["one", "two"], "html": "<b> & \"c\"", "tricky": "{{ name }}",
        });
        values.as_object().expect("an object").clone()
    }

    #[test]
    fn a_template_is_filled_in() {
        for (template, expect) in [
            ("Hello {{ name }}!", Ok("Hello Ada!")),
            ("[{{ nothing }}]", Ok("[]")),
            ("{{ n }} {{ x }} {{ yes }}", Ok("3 1.5 true")),
            ("{{ of }}", Ok(r#"{"b":1,"a":["ü",null]}"#)),
            ("{{ of.a }} {{ of.b }}", Ok(r#"["ü",null] 1"#)),
            ("{{ html }}", Ok("<b> & \"c\"")),
            ("{{ tricky }}", Ok("{{ name }}")),
            ("{% for item in list %}{{ loop.index0 }}={{ item }};{% endfor %}", Ok("0=one;1=two;")),
            ("{% if missing is defined %}a{% else %}b{% endif %}", Ok("b")),
            ("{% if nothing %}a{% else %}b{% endif %}", Ok("b")),
            ("{{ missing }}", Err("that is missing")),
            ("{{ of.missing }}", Err("that is missing")),
            ("{{ missing.deep.er }}", Err("that is missing")),
            ("{% if missing %}a{% endif %}", Err("that is missing")),
            ("one\n{{ name", Err("line 2")),
            ("{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}", Err("too many steps")),
            ("{{ 'x' * 20000000 }}", Err("more than")),
        ] {
            match (render(template, &values()), expect) {
                (Ok(text), Ok(expect)) => assert_eq!(text, expect, "{template}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{template}: {error}"),
                (got, expect) => panic!("{template}: {got:?}, not {expect:?}"),
            }
        }
    }

    #[test]
    fn prepare_entry_is_expression_or_text() {
        for (entry, expect) in [
            ("list | length", Ok(json!(2))),
            ("list", Ok(json!(["one", "two"]))),
            ("of.b + 1", Ok(json!(2))),
            ("'none' if nothing is none else nothing", Ok(json!("none"))),
            ("{{ n }}", Ok(json!("3"))),
            ("Dear {{ name }}", Ok(json!("Dear Ada"))),
            ("missing", Err("that is missing")),
            ("1 +", Err("syntax")),
        ] {
            match (evaluate(entry, &values()), expect) {
                (Ok(value), Ok(expect)) => assert_eq!(value, expect, "{entry}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{entry}: {error}"),
                (got, expect) => panic!("{entry}: {got:?}, not {expect:?}"),
            }
        }
        assert!(check_entry("1 +").is_err() && check_entry("{{").is_err() && check_entry("a.b | length").is_ok());
    }
}
