//! JSON as it stands in Rust source: the same text, read from tokens, so that each value has its place.

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::ext::IdentExt as _;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Error, Ident, Lit, LitStr, Result, Token, braced, bracketed};

/// A JSON value and where it stands.
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

    /// What it is, for messages.
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
            // A suffix: without one Rust takes a literal for an `i32`.
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
