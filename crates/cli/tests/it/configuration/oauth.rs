//! `oauth` sections, and `mcp ls|login|logout` as far as they need no login page.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use serde_json::{Value, json};
use toolwright::config::Severity::{EntryDisabled, Warning};
use toolwright::oauth::{ClientProof, Grant};

use crate::calls::arguments::answers;
use crate::command_line::cli::{ok, run, stderr};
use crate::configuration::config::broken;
use crate::support::Fixture;

#[test]
fn unusable_sections_give_the_reason() {
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
    let fixture = Fixture::with(
        "mcp_servers:\n\
         \x20 plain: { url: https://h/mcp }\n\
         \x20 keyed: { url: https://h/mcp, headers: { Authorization: Bearer abcdefgh } }\n\
         \x20 off: { url: https://h/mcp, oauth: { enabled: false } }\n\
         \x20 program: { command: x }\n\
         \x20 own:\n\
         \x20   url: https://h/mcp\n\
         \x20   oauth: { grant: client_credentials, client_id: c, client_secret: swordfish-1, authorization_server: https://as }\n",
    );
    let config = fixture.load();
    assert!(config.problems.is_empty(), "{:?}", config.problems);
    let oauth = |name: &str| {
        let server = config.servers.iter().find(|server| server.entry == name).expect("the server");
        server.config.oauth.clone()
    };
    assert_eq!(oauth("plain").map(|settings| settings.grant), Some(Grant::AuthorizationCode));
    for name in ["keyed", "off", "program"] {
        assert_eq!(oauth(name), None, "{name}");
    }
    let own = oauth("own").expect("settings");
    assert!(matches!((own.grant, own.proof), (Grant::ClientCredentials, ClientProof::Secret(_))));
    assert!(config.secrets.iter().any(|secret| secret == "swordfish-1"), "it is redacted");
    assert!(!config.to_redacted_json().to_string().contains("swordfish-1"), "it is not shown");
}

#[test]
fn servers_are_listed_with_their_logins() {
    let fixture = Fixture::with(
        "mcp_servers:\n\
         \x20 docs: { url: \"http://127.0.0.1:1/mcp?key=hidden-key\" }\n\
         \x20 program: { command: never-started }\n",
    );
    let listed: Value = serde_json::from_str(&ok(&fixture, &["mcp", "ls", "--json"])).expect("JSON");
    assert_eq!((&listed[0]["server"], &listed[0]["logged_in"]), (&json!("docs"), &json!(false)));
    assert_eq!(listed[0]["address"], "http://127.0.0.1:1/mcp");
    assert_eq!((&listed[1]["server"], listed[1].get("logged_in")), (&json!("program"), None));
    for (arguments, code, words) in [
        (&["mcp", "login", "nobody", "--json"][..], 3, "mcp ls"),
        (&["mcp", "login", "program", "--json"], 2, "`env`"),
        (&["mcp", "login", "docs", "--no-browser", "--json"], 1, "cannot connect to 127.0.0.1:1"),
        (&["mcp", "logout", "docs", "--json"], 0, "\"removed\":false"),
    ] {
        let (lines, ended) = answers(&fixture, arguments, "");
        assert_eq!(ended, code, "{arguments:?}: {lines:?}");
        assert!(lines[0].to_string().contains(words), "{arguments:?}: {lines:?}");
    }
}

/// A server and its authorization server, which gives tokens with these scopes.
fn authorization_server(scope: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let at = base.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes away early is no concern of ours.
            let _ = answer(stream, &at, scope);
        }
    });
    base
}

fn answer(mut stream: TcpStream, base: &str, scope: &str) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    while reader.read_line(&mut head)? > 2 {
        let line = head.lines().next_back().unwrap_or_default().to_ascii_lowercase();
        length = line.strip_prefix("content-length: ").and_then(|text| text.parse().ok()).unwrap_or(length);
    }
    reader.take(length).read_to_end(&mut Vec::new())?;
    let body = match head.split(' ').nth(1).unwrap_or_default() {
        "/.well-known/oauth-protected-resource/mcp" => {
            json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]})
        }
        "/.well-known/oauth-authorization-server" => json!({"issuer": base, "token_endpoint": format!("{base}/token")}),
        "/token" => json!({"access_token": "token-of-a-client", "token_type": "Bearer", "scope": scope}),
        _ => Value::Null,
    };
    let status = if body.is_null() { "401 Unauthorized" } else { "200 OK" };
    let body = body.to_string();
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}

#[test]
fn authorization_server_text_is_escaped() {
    let base = authorization_server("read \u{1b}]0;pwned\u{7}\u{1b}[2J\u{202e}evil");
    let fixture = Fixture::with(&format!(
        "mcp_servers:\n\
         \x20 docs:\n\
         \x20   url: {base}/mcp\n\
         \x20   oauth: {{ grant: client_credentials, client_id: c, client_secret: swordfish-1, authorization_server: \"{base}\" }}\n"
    ));
    let login = run(&fixture, &["mcp", "login", "docs"]);
    let stderr_text = stderr(&login);
    assert!(login.status.success() && stderr_text.contains("scopes read"), "{stderr_text:?}");
    let listed = ok(&fixture, &["mcp", "ls"]);
    // Nor does a name that is wrong, wherever it was copied from.
    let failed = stderr(&run(&fixture, &["mcp", "login", "do\u{202e}cs"]));
    for shown in [stderr_text, listed, failed] {
        assert!(shown.contains("\\u{202e}"), "{shown:?}");
        assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{shown:?}");
    }
}
