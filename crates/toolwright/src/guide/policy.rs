//! Policy: what may run, and who is asked.
//!
//! Each call is checked against the rules in order; the first rule that matches decides. If none matches, the profile
//! decides:
//!
//! | profile | runs unasked | all else |
//! |---|---|---|
//! | [`Ask`](crate::Profile::Ask) | tools that only read | is asked about |
//! | [`Workspace`](crate::Profile::Workspace) | that, and writes inside the workspace | is asked about |
//! | [`Trusted`](crate::Profile::Trusted) | everything | |
//!
//! Without [`Builder::policy`](crate::Builder::policy), the program's own calls run (it is the owner), agents and HTTP
//! clients have the profile `Ask`.
//!
//! ```
//! use toolwright::{ApprovalDecision, ApprovalRequest, Toolwright, Profile, Rule, serde_json::json, tool};
//!
//! /// Sends a letter.
//! #[tool(namespace = "mail", effects(destructive = false))]
//! async fn send(to: String) -> String {
//!     format!("sent to {to}")
//! }
//!
//! fn decide(request: &ApprovalRequest) -> ApprovalDecision {
//!     match request.arguments["to"].as_str() {
//!         Some(to) if to.ends_with("@example.com") => ApprovalDecision::Approve,
//!         _ => ApprovalDecision::Deny { reason: "only to example.com".to_owned() },
//!     }
//! }
//!
//! # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let tw = Toolwright::builder()
//!     .tool(Send)
//!     .policy(Profile::Ask)
//!     .rule(Rule::deny("shell__*").because("no shell here"))
//!     .approver(decide)
//!     .build()
//!     .await?;
//! assert_eq!(tw.call("mail__send", json!({"to": "ann@example.com"})).await?.text(), "sent to ann@example.com");
//! let denied = tw.call("mail__send", json!({"to": "bob@elsewhere.org"})).await.expect_err("denied");
//! assert!(denied.to_string().contains("only to example.com"));
//! # tw.shut_down().await;
//! # Ok(()) }
//! ```
//!
//! Any [`Approver`](crate::Approver) can answer: a function, as here, or a type that asks a person and waits. Without
//! one, such calls are denied with the remedy. An answer applies only to the call with exactly these arguments and this
//! definition of the tool.
//!
//! What a third-party server declares about its own tools does not loosen the policy: that a tool "only reads" counts
//! only if you set `trusted: true` for the server, or its effects under `policy.tools`. Rules can contain an
//! expression:
//!
//! ```
//! use toolwright::{Toolwright, serde_json::json};
//!
//! let builder = Toolwright::builder().settings(json!({"policy": {"rules": [
//!     {"effect": "deny", "tool": "bank__pay", "when": "has(args.amount) && args.amount > 100", "reason": "too much"},
//! ]}}));
//! ```
