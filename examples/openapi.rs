//! The operations of an OpenAPI document as tools.
//!
//! `cargo run -p toolwright --example openapi -- examples/openapi/pets.yaml http://127.0.0.1:8080`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use toolwright::Toolwright;
use toolwright::serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let document = arguments.next().unwrap_or_else(|| "examples/openapi/pets.yaml".to_owned());
    let server = arguments.next().unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());

    let tw = Toolwright::builder()
        .openapi("pets", document)
        // Addresses of this machine are out of reach for tools unless they are allowed.
        .settings(json!({"openapi": {"pets": {"base_url": server, "allow_private": true}}}))
        .build()
        .await?;
    for tool in tw.tools().await {
        println!("{}: {}", tool.wire_name, tool.definition().description);
    }
    println!("{}", tw.call("pets__listPets", json!({"limit": 2})).await?.text());
    tw.shut_down().await;
    Ok(())
}
