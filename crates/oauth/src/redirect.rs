//! The answer of a login page, and whether it is the one that was waited for (OAuth 2.1 section 4.1.2, RFC 9207).

use url::Url;

use super::error::{OAuthError, excerpt};

/// What the answer must fit.
#[derive(Debug, Clone)]
pub(crate) struct Expected {
    /// `state` of the request.
    pub(crate) state: String,
    /// The authorization server's own name, where it published one.
    pub(crate) issuer: Option<String>,
    /// Whether it names itself in every answer.
    pub(crate) names_itself: bool,
}

impl Expected {
    /// Whether this is an answer to our request at all.
    pub(crate) fn is_answered_by(&self, redirect: &Url) -> bool {
        parameter(redirect, "state").is_some_and(|state| state == self.state)
    }

    /// The code that an answer carries.
    ///
    /// # Errors
    /// [`OAuthError::Redirect`] where it answers something else or comes from another server, and
    /// [`OAuthError::Refused`] where it says no.
    pub(crate) fn code(&self, redirect: &Url) -> Result<String, OAuthError> {
        let refused = |reason: String| Err(OAuthError::Redirect(reason));
        if !self.is_answered_by(redirect) {
            return refused("its `state` is not that of this login".to_owned());
        }
        // Before anything else of it is believed, an error's words included. Names are compared as they stand.
        match (parameter(redirect, "iss"), &self.issuer) {
            (Some(iss), Some(issuer)) if iss != *issuer => {
                return refused(format!("it comes from `{}`, not from `{issuer}` (`iss`)", excerpt(&iss)));
            }
            (None, _) if self.names_itself => {
                return refused("it does not say whom it comes from (`iss`), though the server promises to".to_owned());
            }
            _ => {}
        }
        if let Some(error) = parameter(redirect, "error") {
            let description = parameter(redirect, "error_description").map(|text| excerpt(&text));
            return Err(OAuthError::Refused { what: "login", error: excerpt(&error), description });
        }
        match parameter(redirect, "code") {
            Some(code) if !code.is_empty() => Ok(code),
            _ => refused("it has no `code`".to_owned()),
        }
    }
}

fn parameter(url: &Url, name: &str) -> Option<String> {
    url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_must_be_ours_and_its_servers() {
        for (issuer, names_itself, query, expect) in [
            (Some("https://as"), true, "code=c&state=s&iss=https://as", Ok("c")),
            (Some("https://as"), false, "code=c&state=s", Ok("c")),
            (Some("https://as"), false, "code=c&state=s&iss=https://as", Ok("c")),
            (None, false, "code=c&state=s&iss=x", Ok("c")),
            (Some("https://as"), true, "code=c&state=s", Err("does not say whom")),
            (Some("https://as"), true, "code=c&state=s&iss=https://as/", Err("comes from")),
            (Some("https://as"), true, "code=c&state=s&iss=https://AS", Err("comes from")),
            (Some("https://as"), false, "code=c&state=s&iss=https://evil", Err("comes from")),
            (Some("https://as"), false, "error=x&state=s&iss=https://evil", Err("comes from")),
            (Some("https://as"), false, "error=access_denied&error_description=no&state=s", Err("access_denied (no)")),
            (Some("https://as"), false, "code=c&state=other", Err("state")),
            (Some("https://as"), false, "code=c", Err("state")),
            (Some("https://as"), false, "code=&state=s", Err("no `code`")),
        ] {
            let expected = Expected { state: "s".into(), issuer: issuer.map(str::to_owned), names_itself };
            let url = Url::parse(&format!("http://127.0.0.1:1/callback?{query}")).expect("a URL");
            match (expected.code(&url), expect) {
                (Ok(code), Ok(expect)) => assert_eq!(code, expect, "{query}"),
                (Err(error), Err(expect)) => assert!(error.to_string().contains(expect), "{query}: {error}"),
                (got, _) => panic!("{query}: {got:?}"),
            }
        }
    }
}
