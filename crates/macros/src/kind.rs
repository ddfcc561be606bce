//! The kinds of settings: the values they accept, and the expressions generated for them.

use std::time::Duration;

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::{Error, Expr, Path, Result};

use crate::syntax::{Json, Setting, SettingValue, Value, camel_case, duplicates, unknown};

/// The kind of a field of `ToolDefinition`.
pub(crate) enum Kind {
    /// A text: a literal, a constant, `include_str!`.
    Text,
    /// Like `Text`, optional in the definition.
    OptionalText,
    /// A list of texts.
    Texts,
    /// A list of JSON objects.
    Objects,
    /// A JSON object as a map.
    Members,
    /// A JSON object as a value.
    Schema,
    /// Any JSON.
    Json,
    /// The key alone, or true or false.
    Flag,
    /// Like `Flag`, optional in the definition.
    OptionalFlag,
    /// One word of an enum.
    Word(&'static str, &'static [&'static str]),
    /// Like `GuardWord`, optional in the definition and stored as text, with words joined by hyphens.
    Name(&'static str, &'static [&'static str]),
    /// A duration.
    Duration,
    /// A number of bytes.
    Bytes,
    /// A count.
    Count,
    /// A number.
    Number,
    /// A number up to 100.
    Percent,
    /// `Effects`.
    Effects,
    /// `ModelPreference`.
    Models,
}

impl Kind {
    /// Returns the value as an expression of the field's type. `sample` is an example for the error message.
    ///
    /// # Errors
    /// At the value, when it is of another kind.
    pub(crate) fn read(&self, setting: &Setting, sample: &str, support: &Path) -> Result<TokenStream> {
        let mismatch = || setting.error(format!("`{}` is written like this: `{sample}`", setting.key));
        let json = match &setting.value {
            SettingValue::Json(json) => Some(&json.value),
            _ => None,
        };
        Ok(match self {
            Self::Text | Self::OptionalText => {
                let text = match &setting.value {
                    SettingValue::Json(Json { value: Value::Text(text), .. }) => quote!(#text),
                    SettingValue::Rust(expression) => quote!(#expression),
                    _ => return Err(mismatch()),
                };
                let text = quote!(::std::string::String::from(#text));
                if matches!(self, Self::Text) { text } else { some(&text) }
            }
            Self::Texts => {
                let texts = texts(json).ok_or_else(mismatch)?;
                quote!(::std::vec![#(::std::string::String::from(#texts)),*])
            }
            Self::Objects => {
                let Some(Value::List(items)) = json else { return Err(mismatch()) };
                if let Some(item) = items.iter().find(|item| !matches!(item.value, Value::Object(_))) {
                    let message = format!("an example is an object with the arguments, not {}", item.kind());
                    return Err(Error::new(item.span, message));
                }
                let items = items.iter().map(Json::tokens);
                quote!(::std::vec![#(#support::json!(#items)),*])
            }
            Self::Members | Self::Schema | Self::Json => {
                let SettingValue::Json(value) = &setting.value else { return Err(mismatch()) };
                if !matches!((self, &value.value), (Self::Json, _) | (_, Value::Object(_))) {
                    return Err(mismatch());
                }
                let value = value.tokens();
                let value = quote!(#support::json!(#value));
                if matches!(self, Self::Members) { quote!(#support::members(#value)) } else { some(&value) }
            }
            Self::Flag | Self::OptionalFlag => {
                let flag = setting.flag().ok_or_else(mismatch)?;
                if matches!(self, Self::Flag) { quote!(#flag) } else { some(&quote!(#flag)) }
            }
            Self::Word(enumeration, words) => {
                let SettingValue::Rust(expression) = &setting.value else { return Err(mismatch()) };
                let word = match &**expression {
                    Expr::Path(path) => path.path.get_ident(),
                    _ => None,
                };
                let word = word
                    .filter(|word| words.iter().any(|known| word == known))
                    .ok_or_else(|| setting.error(format!("`{}` is one of {}", setting.key, words.join(", "))))?;
                let (enumeration, variant) =
                    (format_ident!("{enumeration}"), format_ident!("{}", camel_case(&word.to_string())));
                quote!(#support::#enumeration::#variant)
            }
            Self::Name(enumeration, names) => {
                let Some(Value::Text(text)) = json else { return Err(mismatch()) };
                let name = names
                    .iter()
                    .find(|name| **name == text.as_str())
                    .ok_or_else(|| setting.error(format!("`{}` is one of {}", setting.key, names.join(", "))))?;
                let (enumeration, variant) =
                    (format_ident!("{enumeration}"), format_ident!("{}", camel_case(&name.replace('-', "_"))));
                some(&quote!(#support::#enumeration::#variant))
            }
            Self::Duration => {
                let Some(Value::Text(text)) = json else { return Err(mismatch()) };
                let duration = duration(text).map_err(|reason| setting.error(reason))?;
                let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
                some(&quote!(#support::Duration::new(#seconds, #nanos)))
            }
            Self::Bytes => {
                let Some(Value::Integer(number)) = json else { return Err(mismatch()) };
                let bytes: u32 = integer(number).ok_or_else(|| setting.error("a number of bytes under 4 GiB"))?;
                some(&quote!(#bytes as usize))
            }
            Self::Count => {
                let Some(Value::Integer(number)) = json else { return Err(mismatch()) };
                let count: u32 = integer(number).ok_or_else(|| setting.error("a number under 2^32"))?;
                some(&quote!(#count))
            }
            Self::Number => match json {
                Some(Value::Float(number)) => some(number),
                Some(Value::Integer(number)) => some(&quote!(#number as f64)),
                _ => return Err(mismatch()),
            },
            Self::Percent => {
                let Some(Value::Integer(number)) = json else { return Err(mismatch()) };
                let percent = integer::<u8>(number).filter(|percent| *percent <= 100);
                let percent = percent.ok_or_else(|| setting.error("a number from 0 to 100"))?;
                quote!(#percent)
            }
            Self::Effects => effects(setting, mismatch, support)?,
            Self::Models => models(setting, mismatch, support)?,
        })
    }
}

fn some(value: &TokenStream) -> TokenStream {
    quote!(::std::option::Option::Some(#value))
}

fn texts(json: Option<&Value>) -> Option<Vec<&str>> {
    let Some(Value::List(items)) = json else { return None };
    items.iter().map(|item| if let Value::Text(text) = &item.value { Some(text.as_str()) } else { None }).collect()
}

/// A whole number that fits.
fn integer<T: std::str::FromStr<Err: std::fmt::Display>>(number: &TokenStream) -> Option<T> {
    syn::parse2::<syn::LitInt>(number.clone()).ok()?.base10_parse().ok()
}

/// Hints that are not given default to the unsafe value, except that a read-only tool is not destructive and is
/// idempotent.
fn effects(setting: &Setting, mismatch: impl Fn() -> Error, support: &Path) -> Result<TokenStream> {
    const HINTS: &[&str] = &["read_only", "destructive", "idempotent", "open_world"];
    let hints = group(setting, HINTS, mismatch)?;
    let given = |name: &str| match hints.iter().find(|hint| hint.key == name) {
        Some(hint) => hint.flag().map(Some).ok_or_else(|| hint.error(format!("`{name}` or `{name} = false`"))),
        None => Ok(None),
    };
    let read_only = given("read_only")?.unwrap_or(false);
    let destructive = given("destructive")?.unwrap_or(!read_only);
    if read_only && destructive {
        return Err(Error::new(setting.key.span(), "a tool cannot be both `read_only` and `destructive`"));
    }
    let idempotent = given("idempotent")?.unwrap_or(read_only);
    let open_world = given("open_world")?.unwrap_or(true);
    Ok(quote!(#support::Effects {
        read_only: #read_only,
        destructive: #destructive,
        idempotent: #idempotent,
        open_world: #open_world,
    }))
}

/// The fields of `ModelPreference`, with their kinds and an example of each.
const PREFERENCES: &[(&str, Kind, &str)] = &[
    ("preferred_model", Kind::OptionalText, "preferred_model = \"openai/gpt-5\""),
    ("fallback_models", Kind::Texts, "fallback_models = [\"ollama/qwen3\"]"),
    ("max_tokens", Kind::Count, "max_tokens = 500"),
    ("temperature", Kind::Number, "temperature = 0.2"),
];

fn models(setting: &Setting, mismatch: impl Fn() -> Error, support: &Path) -> Result<TokenStream> {
    let keys: Vec<&str> = PREFERENCES.iter().map(|(key, ..)| *key).collect();
    let fields = group(setting, &keys, mismatch)?.iter().filter_map(|inner| {
        let (_, kind, sample) = PREFERENCES.iter().find(|(key, ..)| inner.key == key)?;
        let key = &inner.key;
        Some(kind.read(inner, sample, support).map(|value| quote!(#key: #value)))
    });
    let fields = fields.collect::<Result<Vec<_>>>()?;
    Ok(some(&quote!(#support::ModelPreference { #(#fields,)* ..::core::default::Default::default() })))
}

/// The settings in the parentheses of this one, each of them known and given once.
fn group<'s>(setting: &'s Setting, known: &[&str], mismatch: impl Fn() -> Error) -> Result<&'s [Setting]> {
    let SettingValue::Group(group) = &setting.value else { return Err(mismatch()) };
    if let Some(twice) = duplicates(group).next() {
        return Err(twice);
    }
    match group.iter().find(|inner| !known.iter().any(|key| inner.key == key)) {
        Some(inner) => Err(unknown(&inner.key, known)),
        None => Ok(group),
    }
}

/// A duration with its unit, as `toolwright_core::duration` reads it; a bare number is milliseconds.
pub(crate) fn duration(text: &str) -> std::result::Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration: write a number with ms, s, m, h, d or w, like 30s");
    let trimmed = text.trim();
    let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(split);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "" | "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        "w" => 604_800.0,
        _ => return Err(wrong()),
    };
    let duration = Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
    if duration.is_zero() {
        return Err(format!("`{text}` leaves no time at all"));
    }
    Ok(duration)
}
