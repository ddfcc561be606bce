//! The syntax of the attribute: `key`, `key = value`, `key(more, …)`, separated by commas; and JSON written in Rust
//! source, read from tokens, so that each value has a span.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::{Error, Expr, Ident, Lit, LitStr, Result, Token, braced, bracketed, parenthesized};

/// A setting as written.
pub(crate) struct Setting {
    pub(crate) key: Ident,
    pub(crate) value: SettingValue,
}

/// The value of a setting as written.
pub(crate) enum SettingValue {
    /// No value.
    Flag,
    /// `= "text"`, `= 5`, `= [..]`, `= {..}`.
    Json(Json),
    /// `= word`, `= some::path`, `= include_str!(..)`.
    Rust(Box<Expr>),
    /// `(..)`.
    Group(Vec<Setting>),
}

impl Parse for Setting {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let key = input
            .call(Ident::parse_any)
            .map_err(|error| Error::new(error.span(), "expected a setting, like `title = \"…\"`"))?;
        let value = if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            if Json::peek(input) { SettingValue::Json(input.parse()?) } else { SettingValue::Rust(input.parse()?) }
        } else if input.peek(syn::token::Paren) {
            let content;
            parenthesized!(content in input);
            SettingValue::Group(settings(&content)?)
        } else {
            SettingValue::Flag
        };
        Ok(Self { key, value })
    }
}

/// Settings up to the end of `input`.
pub(crate) fn settings(input: ParseStream<'_>) -> Result<Vec<Setting>> {
    Ok(Punctuated::<Setting, Token![,]>::parse_terminated(input)?.into_iter().collect())
}

impl Setting {
    /// An error at the value, or at the key without one.
    pub(crate) fn error(&self, message: impl std::fmt::Display) -> Error {
        let span = match &self.value {
            SettingValue::Flag | SettingValue::Group(_) => self.key.span(),
            SettingValue::Json(json) => json.span,
            SettingValue::Rust(expression) => expression.span(),
        };
        Error::new(span, message)
    }

    /// `true` for the key alone or `= true`, `false` for `= false`; `None` otherwise.
    pub(crate) fn flag(&self) -> Option<bool> {
        match &self.value {
            SettingValue::Flag => Some(true),
            SettingValue::Json(Json { value: Value::Bool(value), .. }) => Some(*value),
            _ => None,
        }
    }
}

/// The setting of this key.
pub(crate) fn take<'a>(settings: &'a [Setting], key: &str) -> Option<&'a Setting> {
    settings.iter().find(|setting| setting.key == key)
}

/// The error for a key that is not among `known`.
pub(crate) fn unknown(key: &Ident, known: &[&str]) -> Error {
    let remedy = match nearest(&key.to_string(), known) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("known are {}", known.join(", ")),
    };
    Error::new(key.span(), format!("unknown setting `{key}`: {remedy}"))
}

/// An error for each key that is given twice, at its second place.
pub(crate) fn duplicates(settings: &[Setting]) -> impl Iterator<Item = Error> {
    settings.iter().enumerate().filter_map(|(index, setting)| {
        let twice = settings[..index].iter().any(|before| before.key == setting.key);
        twice.then(|| Error::new(setting.key.span(), format!("`{}` is given twice", setting.key)))
    })
}

/// `read_file` → `ReadFile`.
pub(crate) fn camel_case(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for word in name.split('_') {
        let mut letters = word.chars();
        out.extend(letters.next().into_iter().flat_map(char::to_uppercase));
        out.push_str(letters.as_str());
    }
    out
}

/// Returns the known word nearest to `word`.
pub(crate) fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let best =
        known.iter().map(|known| (strsim::levenshtein(word, known), *known)).min_by_key(|(distance, _)| *distance)?;
    (best.0 <= word.chars().count().div_ceil(3).max(1)).then_some(best.1)
}

/// A JSON value with its span.
pub(crate) struct Json {
    pub(crate) span: Span,
    pub(crate) value: Value,
}

pub(crate) enum Value {
    Null,
    Bool(bool),
    Integer(TokenStream),
    Float(TokenStream),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(LitStr, Json)>),
}

impl Json {
    /// Whether JSON starts here; anything else is Rust.
    pub(crate) fn peek(input: ParseStream<'_>) -> bool {
        let null = || input.fork().call(Ident::parse_any).is_ok_and(|word| word == "null");
        let bracket = || input.peek(syn::token::Bracket) || input.peek(syn::token::Brace);
        input.peek(Lit) || input.peek(Token![-]) || bracket() || null()
    }

    /// The kind of the value, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self.value {
            Value::Null => "null",
            Value::Bool(_) => "true or false",
            Value::Integer(_) => "a whole number",
            Value::Float(_) => "a number",
            Value::Text(_) => "a text",
            Value::List(_) => "a list",
            Value::Object(_) => "an object",
        }
    }

    /// The value as the input of `serde_json::json!`.
    pub(crate) fn tokens(&self) -> TokenStream {
        match &self.value {
            Value::Null => quote!(null),
            Value::Bool(value) => quote!(#value),
            Value::Integer(number) | Value::Float(number) => number.clone(),
            Value::Text(text) => quote!(#text),
            Value::List(items) => {
                let items = items.iter().map(Self::tokens);
                quote!([#(#items),*])
            }
            Value::Object(members) => {
                let members = members.iter().map(|(key, value)| {
                    let value = value.tokens();
                    quote!(#key: #value)
                });
                quote!({#(#members),*})
            }
        }
    }
}

impl Parse for Json {
    fn parse(input: ParseStream<'_>) -> Result<Self> {
        let span = input.span();
        let value = if input.peek(syn::token::Bracket) {
            let content;
            bracketed!(content in input);
            Value::List(Punctuated::<Self, Token![,]>::parse_terminated(&content)?.into_iter().collect())
        } else if input.peek(syn::token::Brace) {
            let content;
            braced!(content in input);
            Value::Object(members(&content)?)
        } else if input.peek(Token![-]) {
            input.parse::<Token![-]>()?;
            number(&input.parse()?, true)?
        } else if input.peek(Lit) {
            match input.parse()? {
                Lit::Str(text) => Value::Text(text.value()),
                Lit::Bool(value) => Value::Bool(value.value),
                literal => number(&literal, false)?,
            }
        } else {
            let word = input.call(Ident::parse_any).map_err(|error| Error::new(error.span(), EXPECTED))?;
            if word != "null" {
                return Err(Error::new(word.span(), EXPECTED));
            }
            Value::Null
        };
        Ok(Self { span, value })
    }
}

const EXPECTED: &str = "expected JSON: a text in quotes, a number, true, false, null, [..] or {..}";

fn members(input: ParseStream<'_>) -> Result<Vec<(LitStr, Json)>> {
    let mut members: Vec<(LitStr, Json)> = Vec::new();
    while !input.is_empty() {
        let key: LitStr =
            input.parse().map_err(|error| Error::new(error.span(), "a key of a JSON object is a text in quotes"))?;
        if members.iter().any(|(have, _)| have.value() == key.value()) {
            return Err(Error::new(key.span(), format!("the key `{}` is given twice", key.value())));
        }
        input.parse::<Token![:]>()?;
        members.push((key, input.parse()?));
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(members)
}

fn number(literal: &Lit, negative: bool) -> Result<Value> {
    let sign = negative.then(|| quote!(-));
    match literal {
        Lit::Int(digits) if digits.suffix().is_empty() => {
            let too_big = || Error::new(digits.span(), "this number does not fit into 64 bits");
            let magnitude: u64 = digits.base10_parse().map_err(|_| too_big())?;
            // Without a suffix Rust takes a literal for an `i32`.
            match i64::try_from(magnitude) {
                Ok(value) => Ok(Value::Integer(quote!(#sign #value))),
                Err(_) if negative => Err(too_big()),
                Err(_) => Ok(Value::Integer(quote!(#magnitude))),
            }
        }
        Lit::Float(digits) if digits.suffix().is_empty() => {
            let value: f64 = digits.base10_parse()?;
            if value.is_infinite() {
                return Err(Error::new(digits.span(), "this number is too large"));
            }
            Ok(Value::Float(quote!(#sign #value)))
        }
        other => Err(Error::new(other.span(), EXPECTED)),
    }
}
