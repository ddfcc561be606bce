//! A secret that does not print.

use std::fmt;

use serde::Deserialize;

/// A secret text. It never prints and is not written out by itself; [`Secret::expose`] is the one way to it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The secret itself, for what carries or keeps it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_read_and_does_not_print() {
        let secret: Secret = serde_json::from_str(r#""sesame""#).expect("a text");
        assert_eq!((secret.expose(), format!("{:?}", Some(&secret))), ("sesame", "Some(Secret(***))".to_owned()));
    }
}
