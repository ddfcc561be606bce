//! Policy with approval: what runs unasked, what is asked about, and who answers.
//!
//! `cargo run -p toolwright --example approval`

#![expect(clippy::print_stdout, reason = "an example prints its result")]

use toolwright::serde_json::json;
use toolwright::{ApprovalDecision, ApprovalRequest, Profile, Rule, Toolwright, tool};

/// Reads the inbox.
#[tool(namespace = "mail", effects(read_only))]
async fn read() -> String {
    "one letter".to_owned()
}

/// Sends a letter.
#[tool(namespace = "mail", effects(destructive = false))]
async fn send(to: String) -> String {
    format!("sent to {to}")
}

/// Deletes all letters.
#[tool(namespace = "mail")]
async fn delete() -> String {
    "gone".to_owned()
}

/// Here a person would be asked.
fn decide(request: &ApprovalRequest) -> ApprovalDecision {
    println!("asked about {}: {}", request.tool.without_version(), request.reason);
    match request.arguments["to"].as_str() {
        Some(to) if to.ends_with("@example.com") => ApprovalDecision::Approve,
        _ => ApprovalDecision::Deny { reason: "only to example.com".to_owned() },
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tw = Toolwright::builder()
        .tool(Read)
        .tool(Send)
        .tool(Delete)
        .policy(Profile::Ask)
        .rule(Rule::deny("mail__delete").because("letters stay"))
        .approver(decide)
        .build()
        .await?;
    for (tool, arguments) in [
        ("mail__read", json!({})),
        ("mail__send", json!({"to": "ann@example.com"})),
        ("mail__send", json!({"to": "bob@elsewhere.org"})),
        ("mail__delete", json!({})),
    ] {
        match tw.call(tool, arguments).await {
            Ok(outcome) => println!("{tool}: {}", outcome.text()),
            Err(error) => println!("{tool}: {error}"),
        }
    }
    tw.shut_down().await;
    Ok(())
}
