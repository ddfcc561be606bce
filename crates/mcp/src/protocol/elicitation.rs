//! `elicitation/create`: a server's question to a person, as a form or as a page that the person opens.
//!
//! The schemas of forms are the flat ones of MCP 2025-06-18 to 2026-07-28 ("Elicitation", "Requested Schema"). A page
//! (the mode `url` of MCP 2025-11-25 and 2026-07-28, "URL Mode") is shown but never opened or fetched by us.

use serde_json::{Map, Value};
use toolwright_core::schema::CompiledSchema;
use url::Url;

/// Fields of a form, and choices of a field.
const MAX_FIELDS: usize = 64;
const MAX_CHOICES: usize = 256;
/// Maximal bytes of a form or of a page's request: nobody reads more before answering.
pub(crate) const MAX_BYTES: usize = 64 << 10;

/// A form for a person.
#[derive(Debug, Clone, PartialEq)]
pub struct Form {
    /// The source's message.
    pub message: String,
    /// The fields in order.
    pub fields: Vec<Field>,
    schema: Value,
}

/// A field of a form.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// Its name in the answer.
    pub name: String,
    /// Its name for people.
    pub title: Option<String>,
    /// Its description.
    pub description: Option<String>,
    /// The type of its value.
    pub kind: Kind,
    /// Whether it must be filled in.
    pub is_required: bool,
    /// Its default value.
    pub default: Option<Value>,
    schema: Value,
}

/// The type of a field's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// A whole number.
    Integer,
    /// A number.
    Number,
    /// Yes or no.
    Boolean,
    /// One choice.
    One(Vec<Choice>),
    /// Any of these.
    Many(Vec<Choice>),
}

/// A choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The value in the answer.
    pub value: String,
    /// The displayed label.
    pub label: String,
}

impl Form {
    /// Reads the form in the parameters of `elicitation/create`.
    ///
    /// # Errors
    /// The reason, if it is no form, or has a field of an unsupported type.
    pub fn of(params: &Value) -> Result<Self, String> {
        let message = text(params, "message").ok_or("it has no message")?;
        Self::new(message, params.get("requestedSchema").ok_or("it has no requestedSchema")?)
    }

    /// Builds a form from a schema.
    ///
    /// # Errors
    /// The reason, if it has a field of an unsupported type, or is larger than 64 KiB.
    pub fn new(message: String, schema: &Value) -> Result<Self, String> {
        if message.len() + schema.to_string().len() > MAX_BYTES {
            return Err(format!("it has more than {MAX_BYTES} bytes"));
        }
        let empty = Map::new();
        let properties = match schema.get("properties") {
            Some(properties) => properties.as_object().ok_or("its properties are no object")?,
            None => &empty,
        };
        if properties.len() > MAX_FIELDS {
            return Err(format!("a form has at most {MAX_FIELDS} fields"));
        }
        let required = schema.get("required").and_then(Value::as_array);
        let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|required| required == name));
        let field = |(name, schema): (&String, &Value)| {
            Ok(Field {
                title: text(schema, "title"),
                description: text(schema, "description"),
                kind: Kind::of(schema).map_err(|why| format!("its field `{name}` {why}"))?,
                is_required: is_required(name),
                default: schema.get("default").filter(|default| !default.is_null()).cloned(),
                name: name.clone(),
                schema: schema.clone(),
            })
        };
        let fields: Result<_, String> = properties.iter().map(field).collect();
        Ok(Self { message, fields: fields?, schema: schema.clone() })
    }

    /// The schema as given.
    #[must_use]
    pub fn schema(&self) -> &Value {
        &self.schema
    }

    /// Checks a filled-in form and adds missing defaults.
    ///
    /// # Errors
    /// All faults.
    pub fn check(&self, mut answers: Map<String, Value>) -> Result<Map<String, Value>, Vec<String>> {
        let mut content = Map::new();
        let mut wrong = Vec::new();
        for field in &self.fields {
            match answers.shift_remove(&field.name).or_else(|| field.default.clone()) {
                Some(value) => match field.check(value) {
                    Ok(value) => drop(content.insert(field.name.clone(), value)),
                    Err(why) => wrong.push(format!("`{}`: {why}", field.name)),
                },
                None if field.is_required => wrong.push(format!("`{}` is missing", field.name)),
                None => {}
            }
        }
        wrong.extend(answers.keys().map(|name| format!("there is no field `{name}`")));
        if wrong.is_empty() { Ok(content) } else { Err(wrong) }
    }
}

impl Kind {
    fn of(schema: &Value) -> Result<Self, String> {
        let listed = |schema: &Value| {
            let (values, titled) = (schema.get("enum"), schema.get("oneOf").or_else(|| schema.get("anyOf")));
            choices(values, schema.get("enumNames"), titled)
        };
        match schema.get("type").and_then(Value::as_str) {
            Some("string") => Ok(listed(schema)?.map_or(Self::Text, Self::One)),
            Some("integer") => Ok(Self::Integer),
            Some("number") => Ok(Self::Number),
            Some("boolean") => Ok(Self::Boolean),
            Some("array") => {
                let items = schema.get("items").unwrap_or(&Value::Null);
                listed(items)?.map(Self::Many).ok_or_else(|| "is a list without choices".into())
            }
            _ => Err("is neither a text, a number, a truth value nor a choice".into()),
        }
    }
}

/// Returns the choices of a schema, if any: plain values with separate names, or titled constants.
fn choices(
    values: Option<&Value>,
    names: Option<&Value>,
    titled: Option<&Value>,
) -> Result<Option<Vec<Choice>>, String> {
    let choice = |value: Option<&Value>, label: Option<&Value>| {
        let value = value.and_then(Value::as_str).ok_or("has a choice that is no text")?;
        let label = label.and_then(Value::as_str).unwrap_or(value);
        Ok::<_, String>(Choice { value: value.to_owned(), label: label.to_owned() })
    };
    let list = |value: &Value| match value.as_array() {
        Some(list) if list.is_empty() || list.len() > MAX_CHOICES => Err(format!("has not 1 to {MAX_CHOICES} choices")),
        Some(list) => Ok(list.clone()),
        None => Err("has choices that are no list".to_owned()),
    };
    if let Some(values) = values {
        let named = list(values)?.into_iter().enumerate();
        return named
            .map(|(at, value)| choice(Some(&value), names.and_then(|names| names.get(at))))
            .collect::<Result<_, _>>()
            .map(Some);
    }
    let Some(titled) = titled else { return Ok(None) };
    let constants = list(titled)?.into_iter().map(|one| choice(one.get("const"), one.get("title")));
    constants.collect::<Result<_, _>>().map(Some)
}

impl Field {
    /// Parses typed text as a value of this field.
    ///
    /// # Errors
    /// Why the text is not valid.
    pub fn read(&self, typed: &str) -> Result<Value, String> {
        let word = typed.trim();
        let value = match &self.kind {
            Kind::Text => typed.trim_end_matches(['\r', '\n']).into(),
            Kind::Integer => word.parse::<i64>().map_err(|_| "a whole number, please")?.into(),
            Kind::Number => match word.parse::<f64>() {
                Ok(number) if number.is_finite() => number.into(),
                _ => return Err("a number, please".into()),
            },
            Kind::Boolean => match word.to_lowercase().as_str() {
                "y" | "yes" | "true" => true.into(),
                "n" | "no" | "false" => false.into(),
                _ => return Err("yes or no, please".into()),
            },
            Kind::One(choices) => chosen(choices, word)?,
            Kind::Many(choices) => {
                let words = word.split(',').map(str::trim).filter(|word| !word.is_empty());
                words.map(|word| chosen(choices, word)).collect::<Result<Value, _>>()?
            }
        };
        self.check(value)
    }

    /// The value, if this field can have it.
    fn check(&self, value: Value) -> Result<Value, String> {
        let compiled = CompiledSchema::compile(&self.schema).map_err(|error| error.to_string())?;
        match compiled.violations(&value).into_iter().next() {
            Some(violation) => Err(violation.message),
            None => Ok(value),
        }
    }
}

/// A choice by its number from 1, its value or its label.
fn chosen(choices: &[Choice], word: &str) -> Result<Value, String> {
    let by_word = choices.iter().find(|choice| choice.value == word || choice.label.eq_ignore_ascii_case(word));
    let by_number = || choices.get(word.parse::<usize>().ok()?.checked_sub(1)?);
    let choice = by_word.or_else(by_number).ok_or_else(|| format!("one of 1 to {}, please", choices.len()))?;
    Ok(choice.value.as_str().into())
}

fn text(of: &Value, key: &str) -> Option<String> {
    of.get(key).and_then(Value::as_str).map(str::to_owned)
}

/// Maximal bytes of an address. Nobody can check a longer one before opening it.
const MAX_ADDRESS: usize = 4000;

/// A page for a person to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The source's message.
    pub message: String,
    /// The address in normalised form: an international host name is in ASCII form.
    pub address: Url,
}

impl Page {
    /// Reads the page in the parameters of `elicitation/create`.
    ///
    /// # Errors
    /// The reason, if it is no web address, or hides its target.
    pub fn of(params: &Value) -> Result<Self, String> {
        let text = |key: &str| params.get(key).and_then(Value::as_str);
        let message = text("message").ok_or("it has no message")?;
        if message.len() > MAX_BYTES {
            return Err(format!("its message has more than {MAX_BYTES} bytes"));
        }
        let address = text("url").ok_or("it has no url")?;
        let too_long = || format!("its url has more than {MAX_ADDRESS} bytes");
        if address.len() > MAX_ADDRESS {
            return Err(too_long());
        }
        let address = Url::parse(address).map_err(|error| format!("its url cannot be read: {error}"))?;
        // The normalised form is shown: one letter of a path may take nine bytes in it.
        if address.as_str().len() > MAX_ADDRESS {
            return Err(too_long());
        }
        if !matches!(address.scheme(), "https" | "http") {
            return Err("its url is neither https nor http".into());
        }
        if !address.username().is_empty() || address.password().is_some() {
            return Err("its url has a user name before the host, which hides where it leads".into());
        }
        Ok(Self { message: message.to_owned(), address })
    }

    /// The host, which identifies the page's owner.
    #[must_use]
    pub fn host(&self) -> &str {
        self.address.host_str().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn field(schema: Value) -> Field {
        let params = json!({"message": "m", "requestedSchema": {"type": "object", "properties": {"a": schema}}});
        Form::of(&params).expect("a form").fields.remove(0)
    }

    #[test]
    fn typed_text_is_read_by_field_type() {
        let check = |schema: Value, typed: &str, expect: Option<Value>| {
            assert_eq!(field(schema.clone()).read(typed).ok(), expect, "{schema} {typed}");
        };
        check(json!({"type": "string"}), " a b ", Some(json!(" a b ")));
        check(json!({"type": "string", "maxLength": 2}), "abc", None);
        check(json!({"type": "integer", "minimum": 3}), " 4 ", Some(json!(4)));
        check(json!({"type": "integer", "minimum": 3}), "2", None);
        check(json!({"type": "integer"}), "1.5", None);
        check(json!({"type": "number"}), "1.5", Some(json!(1.5)));
        check(json!({"type": "number"}), "inf", None);
        check(json!({"type": "boolean"}), "Yes", Some(json!(true)));
        check(json!({"type": "boolean"}), "maybe", None);
        let named = json!({"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]});
        check(named.clone(), "2", Some(json!("g")));
        check(named.clone(), "red", Some(json!("r")));
        check(named.clone(), "0", None);
        check(named, "blue", None);
        let titled =
            json!({"type": "string", "oneOf": [{"const": "1", "title": "One"}, {"const": "2", "title": "Two"}]});
        check(titled, "two", Some(json!("2")));
        let several = json!({"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 2});
        check(several.clone(), "a, 3", Some(json!(["a", "c"])));
        check(several.clone(), "", Some(json!([])));
        check(several, "a,b,c", None);
    }

    #[test]
    fn forms_are_checked_by_field_with_defaults() {
        let schema = json!({"type": "object", "required": ["name", "n"], "properties": {
            "name": {"type": "string", "minLength": 2},
            "n": {"type": "integer", "default": 3},
            "of": {"type": "string", "enum": ["a", "b"]},
        }});
        let form = Form::new("m".into(), &schema).expect("a form");
        for (given, expect) in [
            (json!({"name": "Ann"}), Ok(json!({"name": "Ann", "n": 3}))),
            (json!({"name": "Ann", "n": 4, "of": "b"}), Ok(json!({"name": "Ann", "n": 4, "of": "b"}))),
            (json!({"n": "4", "of": "c", "x": 1}), Err(["`name` is missing", "`n`: ", "`of`: ", "`x`"])),
        ] {
            let checked = form.check(given.as_object().cloned().expect("object"));
            match (checked, expect) {
                (Ok(content), Ok(expect)) => assert_eq!(Value::from(content), expect),
                (Err(wrong), Err(says)) => {
                    assert_eq!(wrong.len(), says.len(), "{wrong:?}");
                    wrong.iter().zip(says).for_each(|(wrong, says)| assert!(wrong.contains(says), "{wrong}"));
                }
                (checked, _) => panic!("{given}: {checked:?}"),
            }
        }
    }

    #[test]
    fn forms_that_are_not_flat_are_refused() {
        for (params, says) in [
            (json!({}), "no message"),
            (json!({"message": "m"}), "no requestedSchema"),
            (json!({"message": "m", "requestedSchema": {"properties": {"a": {"type": "object"}}}}), "`a`"),
            (
                json!({"message": "m", "requestedSchema": {"properties": {"a": {"type": "array", "items": {}}}}}),
                "choices",
            ),
            (
                json!({"message": "m", "requestedSchema": {"properties": {"a": {"type": "string", "enum": []}}}}),
                "1 to 256",
            ),
            (json!({"message": "m".repeat(MAX_BYTES), "requestedSchema": {}}), "65536 bytes"),
            (json!({"message": "m", "requestedSchema": {"title": "m".repeat(MAX_BYTES)}}), "65536 bytes"),
        ] {
            let why = Form::of(&params).expect_err("refused");
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn a_page_shows_its_host() {
        for (address, expect) in [
            ("https://bank.example/link?id=1", Ok("bank.example")),
            ("http://127.0.0.1:8080/", Ok("127.0.0.1")),
            ("https://b\u{430}nk.example/", Ok("xn--bnk-6cd.example")),
            ("https://bank.example@evil.example/", Err("user name")),
            ("javascript:alert(1)", Err("neither https nor http")),
            ("file:///etc/passwd", Err("neither https nor http")),
            ("/login", Err("cannot be read")),
        ] {
            let page = Page::of(&json!({"mode": "url", "message": "m", "url": address}));
            match (&page, expect) {
                (Ok(page), Ok(host)) => assert_eq!(page.host(), host),
                (Err(why), Err(says)) => assert!(why.contains(says), "{address}: {why}"),
                _ => panic!("{address}: {page:?}"),
            }
        }
        for params in [
            json!({"url": "https://h"}),
            json!({"message": "m"}),
            json!({"message": "m".repeat(MAX_BYTES + 1), "url": "https://h/"}),
            json!({"message": "m", "url": "https://h/".to_owned() + &"x".repeat(MAX_ADDRESS)}),
            // It is shorter as it is written than as it is shown.
            json!({"message": "m", "url": "https://h/".to_owned() + &"\u{4e00}".repeat(MAX_ADDRESS / 6)}),
        ] {
            assert!(Page::of(&params).is_err(), "{params}");
        }
    }
}
