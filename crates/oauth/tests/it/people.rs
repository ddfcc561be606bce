//! Browsers, and the persons before them.

use std::collections::HashMap;

use async_trait::async_trait;
use toolwright_oauth::Consent;
use url::Url;

/// What a browser shows at an address.
async fn page_at(url: &Url) -> Result<reqwest::Response, String> {
    toolwright_net::install_tls();
    let client = reqwest::Client::builder().no_proxy().build().expect("a client");
    client.get(url.clone()).send().await.map_err(|error| error.to_string())
}

/// A browser whose person agrees.
pub(super) struct ConsentingBrowser;

#[async_trait]
impl Consent for ConsentingBrowser {
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String> {
        let page = page_at(url).await?;
        assert!(page.status().is_success(), "the page came back to us: {page:?}");
        Ok(None)
    }
}

/// A browser whose person closes the page.
pub(super) struct ClosingBrowser;

#[async_trait]
impl Consent for ClosingBrowser {
    async fn visit(&self, _: &Url) -> Result<Option<Url>, String> {
        Err("the page was closed".to_owned())
    }
}

/// A browser whose person does not agree.
pub(super) struct Denies;

#[async_trait]
impl Consent for Denies {
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String> {
        let query: HashMap<_, _> = url.query_pairs().into_owned().collect();
        let issuer = format!("{}://{}", url.scheme(), url.authority());
        let answer = [("error", "access_denied"), ("state", &query["state"]), ("iss", &issuer)];
        Ok(Some(Url::parse_with_params(&query["redirect_uri"], answer).expect("a URL")))
    }
}

/// A browser whose person says the address, since it does not lead here.
pub(super) struct Pastes;

#[async_trait]
impl Consent for Pastes {
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String> {
        toolwright_net::install_tls();
        let client = reqwest::Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
        let page = client.expect("a client").get(url.clone()).send().await.expect("a page");
        let location = page.headers()["location"].to_str().expect("text").to_owned();
        Ok(Some(Url::parse(&location).expect("a URL")))
    }
}

/// A browser whose person sees an error on the page and closes it, or reads on.
pub(super) struct SeesErrors;

#[async_trait]
impl Consent for SeesErrors {
    async fn visit(&self, url: &Url) -> Result<Option<Url>, String> {
        let page = page_at(url).await?;
        if page.status().is_success() { Ok(None) } else { Err("it shows an error".to_owned()) }
    }
}
