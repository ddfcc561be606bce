//! `oauth` sections, and `mcp ls|login|logout` as far as they need no login page.

use serde_json::{Value, json};
use toolwright::config::Severity::{EntryDisabled, Warning};
use toolwright::providers::oauth::{ClientProof, Grant};

use crate::arguments::answers;
use crate::cli::ok;
use crate::config::broken;
use crate::support::Place;

#[test]
fn sections_that_cannot_be_used_say_why() {
    let broken = |section: &str, key: &str, severity, words: &[&str]| {
        let text = format!("mcp_servers:\n  s: {{ url: https://h/mcp, {section} }}\n");
        broken(&text, 2, &format!("mcp_servers.s.{key}"), severity, words);
    };
    broken("oauth: { grant: client_credentials }", "oauth.client_id", EntryDisabled, &["register one"]);
    broken(
        "oauth: { client_id: c, grant: jwt_bearer }",
        "oauth.assertion_file",
        EntryDisabled,
        &["`assertion` or `assertion_file`"],
    );
    broken("oauth: { client_id: c, grant: identity_assertion }", "oauth.identity_provider", EntryDisabled, &["needs"]);
    broken(
        "oauth: { client_id: c, private_key_file: none.pem }",
        "oauth.private_key_file",
        EntryDisabled,
        &["none.pem"],
    );
    broken("oauth: { client_metadata_url: http://h/c.json }", "oauth.client_metadata_url", EntryDisabled, &["https"]);
    broken("oauth: { client_id: c, client_secret: s }", "oauth.authorization_server", Warning, &["chooses"]);
    broken("headers: { authorization: x }, oauth: { scopes: [a] }", "oauth", EntryDisabled, &["both"]);
}

#[test]
fn sections_are_read_and_secrets_are_known() {
    let place = Place::with(
        "mcp_servers:\n\
         \x20 plain: { url: https://h/mcp }\n\
         \x20 keyed: { url: https://h/mcp, headers: { Authorization: Bearer abcdefgh } }\n\
         \x20 off: { url: https://h/mcp, oauth: { enabled: false } }\n\
         \x20 program: { command: x }\n\
         \x20 own:\n\
         \x20   url: https://h/mcp\n\
         \x20   oauth: { grant: client_credentials, client_id: c, client_secret: swordfish-1, authorization_server: https://as }\n",
    );
    let config = place.load();
    assert!(config.problems.is_empty(), "{:?}", config.problems);
    let oauth = |name: &str| {
        let server = config.servers.iter().find(|server| server.entry == name).expect("the server");
        server.settings.oauth.clone()
    };
    assert_eq!(oauth("plain").map(|settings| settings.grant), Some(Grant::AuthorizationCode));
    for name in ["keyed", "off", "program"] {
        assert_eq!(oauth(name), None, "{name}");
    }
    let own = oauth("own").expect("settings");
    assert!(matches!((own.grant, own.client.proof), (Grant::ClientCredentials, ClientProof::Secret(_))));
    assert!(config.secrets.iter().any(|secret| secret == "swordfish-1"), "it is redacted");
    assert!(!config.shown().to_string().contains("swordfish-1"), "it is not shown");
}

#[test]
fn servers_are_listed_with_their_logins() {
    let place = Place::with(
        "mcp_servers:\n\
         \x20 docs: { url: \"http://127.0.0.1:1/mcp?key=hidden-key\" }\n\
         \x20 program: { command: never-started }\n",
    );
    let listed: Value = serde_json::from_str(&ok(&place, &["mcp", "ls", "--json"])).expect("JSON");
    assert_eq!((&listed[0]["server"], &listed[0]["logged_in"]), (&json!("docs"), &json!(false)));
    assert_eq!(listed[0]["address"], "http://127.0.0.1:1/mcp");
    assert_eq!((&listed[1]["server"], listed[1].get("logged_in")), (&json!("program"), None));
    for (arguments, code, words) in [
        (&["mcp", "login", "nobody", "--json"][..], 3, "mcp ls"),
        (&["mcp", "login", "program", "--json"], 2, "`env`"),
        (&["mcp", "login", "docs", "--no-browser", "--json"], 1, "cannot connect to 127.0.0.1:1"),
        (&["mcp", "logout", "docs", "--json"], 0, "\"removed\":false"),
    ] {
        let (lines, ended) = answers(&place, arguments, "");
        assert_eq!(ended, code, "{arguments:?}: {lines:?}");
        assert!(lines[0].to_string().contains(words), "{arguments:?}: {lines:?}");
    }
}
