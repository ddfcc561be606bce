//! A page that a source wants a person to go to: `elicitation/create` in the mode `url` (MCP 2025-11-25 and 2026-07-28,
//! "Elicitation", "URL Mode"). It is shown and never opened: what happens there is between the person and the page.

use serde_json::Value;
use url::Url;

use crate::protocol::form::MAX_BYTES;

/// Bytes of an address. A longer one cannot be looked at before one goes there.
const MAX_ADDRESS: usize = 4000;

/// What a person is asked to open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// Why, in the words of the source.
    pub message: String,
    /// Where, as browsers read it: a host of other letters stands in its ASCII form.
    pub address: Url,
}

impl Page {
    /// The page that the parameters of `elicitation/create` name.
    ///
    /// # Errors
    /// In words, for what is no address of a web page, or one that hides where it leads.
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
        // What is shown is this: one letter of a path may be nine bytes here.
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

    /// The host, which tells whose page it is.
    #[must_use]
    pub fn host(&self) -> &str {
        self.address.host_str().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_says_where_it_leads() {
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
