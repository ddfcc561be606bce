//! `/metrics`, behind the guard.

use std::sync::Arc;

use reqwest::Method;
use toolwright_gateway::{MetricsSource, Token};

use crate::support::Fixture;

#[derive(Debug)]
struct Echo;

impl MetricsSource for Echo {
    fn read(&self, accept: &str) -> (&'static str, String) {
        ("text/plain; version=0.0.4", format!("# {accept}\n"))
    }
}

#[tokio::test]
async fn a_scraper_gets_its_preferred_format() {
    let fixture = Fixture::new().await;
    let http = fixture
        .http_with(|options| {
            options.metrics = Some(Arc::new(Echo));
            options.token = Token::new("s3cret");
        })
        .await;
    let scrape = || http.client.get(format!("http://{}/metrics", http.addr)).header("accept", "text/plain;q=0.5");
    for (request, expect) in [
        (scrape(), 401),
        (scrape().bearer_auth("wrong"), 401),
        (scrape().bearer_auth("s3cret").header("host", "evil.example"), 403),
        (scrape().bearer_auth("s3cret").header("origin", "https://evil.example"), 403),
    ] {
        let response = request.send().await.expect("response");
        assert_eq!(response.status(), expect);
        assert!(!response.text().await.expect("text").contains("q=0.5"));
    }
    let response = scrape().bearer_auth("s3cret").send().await.expect("response");
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"text/plain; version=0.0.4".parse().expect("value"))
    );
    assert_eq!(response.text().await.expect("text"), "# text/plain;q=0.5\n");
    let post = http.request(Method::POST, "/metrics").bearer_auth("s3cret").send().await.expect("response");
    assert_eq!(post.status(), 405);
}

#[tokio::test]
async fn nothing_is_there_where_nothing_is_counted() {
    let fixture = Fixture::new().await;
    let http = fixture.http().await;
    assert_eq!(http.request(Method::GET, "/metrics").send().await.expect("response").status(), 404);
}
