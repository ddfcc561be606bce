//! The words in the attribute: `key`, `key = value`, `key(more, …)`, with commas between them.

use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned as _;
use syn::{Error, Expr, Ident, Result, Token, parenthesized};

use crate::json::Json;
use crate::text::nearest;

/// One setting, as written.
pub(crate) struct Setting {
    pub(crate) key: Ident,
    pub(crate) value: Written,
}

/// What stands behind a key.
pub(crate) enum Written {
    /// Nothing.
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
            if Json::peek(input) { Written::Json(input.parse()?) } else { Written::Rust(input.parse()?) }
        } else if input.peek(syn::token::Paren) {
            let content;
            parenthesized!(content in input);
            Written::Group(settings(&content)?)
        } else {
            Written::Flag
        };
        Ok(Self { key, value })
    }
}

/// Settings up to the end of `input`.
pub(crate) fn settings(input: ParseStream<'_>) -> Result<Vec<Setting>> {
    Ok(Punctuated::<Setting, Token![,]>::parse_terminated(input)?.into_iter().collect())
}

impl Setting {
    /// An error at the value, or at the key where there is none.
    pub(crate) fn error(&self, message: impl std::fmt::Display) -> Error {
        let span = match &self.value {
            Written::Flag | Written::Group(_) => self.key.span(),
            Written::Json(json) => json.span,
            Written::Rust(expression) => expression.span(),
        };
        Error::new(span, message)
    }

    /// `true` for the key alone or `= true`, `false` for `= false`; `None` for all else.
    pub(crate) fn flag(&self) -> Option<bool> {
        match &self.value {
            Written::Flag => Some(true),
            Written::Json(Json { value: crate::json::Value::Bool(value), .. }) => Some(*value),
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
