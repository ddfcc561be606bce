//! From a written `oauth` section to settings.

use std::path::PathBuf;

use toolwright_mcp::client::{McpServerConfig, McpTransport};
use toolwright_oauth::{
    AssertionSource, ClientProof, ClientSettings, Grant, IdentityProvider, IdentityProviderConfig, OAuthConfig,
    OAuthGrant, OAuthSettings, SigningKey,
};

use super::servers::Resolver;

/// How a private key signs that says nothing else.
const DEFAULT_ALGORITHM: &str = "ES256";

impl Resolver<'_, '_> {
    /// The OAuth of a server at an address; `None` where it has none: it is switched off, or a header is its key.
    pub(super) fn oauth(&mut self, config: &McpServerConfig) -> Option<OAuthSettings> {
        let headers = match &config.transport {
            McpTransport::Stdio { .. } => return None,
            McpTransport::Http { headers, .. }
            | McpTransport::Sse { headers, .. }
            | McpTransport::WebSocket { headers, .. } => headers,
        };
        let keyed = headers.keys().any(|name| name.eq_ignore_ascii_case("authorization"));
        let Some(section) = &config.oauth else {
            return (!keyed).then(OAuthSettings::default);
        };
        if section.enabled == Some(false) {
            return None;
        }
        if keyed {
            let message = "it has both `oauth` and `headers.Authorization`";
            self.fail("oauth", message, "keep the one that is meant");
            return None;
        }
        let id = section.client_id.clone();
        let proof = self.proof(section);
        let metadata_url = section.client_metadata_url.clone();
        if metadata_url.as_deref().is_some_and(|url| !url.starts_with("https://")) {
            self.fail("oauth.client_metadata_url", "it is no https:// address", "publish the document with TLS");
        }
        if id.is_none() && !matches!(proof, ClientProof::None) && metadata_url.is_none() {
            self.fail("oauth.client_id", "a secret or key needs its client", "add the client's identifier");
        }
        let grant = self.grant(section);
        if id.is_none() && metadata_url.is_none() && !matches!(grant, Grant::AuthorizationCode) {
            let message = "this grant needs a client that the authorization server knows";
            self.fail("oauth.client_id", message, "register one there and add its identifier");
        }
        let authorization_server = section.authorization_server.clone();
        if authorization_server.is_none() && matches!(proof, ClientProof::Secret(_)) {
            self.warn(
                "oauth.authorization_server",
                "the server chooses to which authorization server the client's secret goes",
                "set it to the issuer that the client was registered with",
            );
        }
        Some(OAuthSettings {
            grant,
            client: ClientSettings { id, proof, metadata_url },
            scopes: section.scopes.clone(),
            authorization_server,
            redirect_port: section.redirect_port,
            allowed_hosts: section.allowed_hosts.clone(),
        })
    }

    fn proof(&mut self, section: &OAuthConfig) -> ClientProof {
        match (section.client_secret.clone(), &section.private_key_file) {
            (None, None) => ClientProof::None,
            (Some(secret), None) => ClientProof::Secret(secret),
            (Some(_), Some(_)) => {
                let message = "it has both `client_secret` and `private_key_file`";
                self.fail("oauth", message, "keep the one that the client is registered with");
                ClientProof::None
            }
            (None, Some(file)) => self.key(section, &self.beside(file)),
        }
    }

    fn key(&mut self, section: &OAuthConfig, path: &std::path::Path) -> ClientProof {
        let algorithm = section.signing_algorithm.as_deref().unwrap_or(DEFAULT_ALGORITHM);
        let read = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()));
        let key = read.and_then(|pem| {
            SigningKey::from_pem(&pem, algorithm, section.private_key_id.clone()).map_err(|error| error.to_string())
        });
        match key {
            Ok(key) => ClientProof::Key(key),
            Err(reason) => {
                self.fail("oauth.private_key_file", &reason, "write a PKCS#8 key there, and its `signing_algorithm`");
                ClientProof::None
            }
        }
    }

    fn grant(&mut self, section: &OAuthConfig) -> Grant {
        let grant = section.grant.unwrap_or_default();
        match grant {
            OAuthGrant::AuthorizationCode => Grant::AuthorizationCode,
            OAuthGrant::ClientCredentials => Grant::ClientCredentials,
            OAuthGrant::JwtBearer => match (section.assertion.clone(), &section.assertion_file) {
                (Some(value), None) => Grant::JwtBearer(AssertionSource::Value(value)),
                (None, Some(file)) => Grant::JwtBearer(AssertionSource::File(self.beside(file))),
                _ => {
                    let message = "`jwt_bearer` needs either `assertion` or `assertion_file`";
                    self.fail("oauth.assertion_file", message, "name the file that holds the assertion");
                    Grant::AuthorizationCode
                }
            },
            OAuthGrant::IdentityAssertion => match &section.identity_provider {
                Some(provider) => self.identity_provider(provider),
                None => {
                    let message = "`identity_assertion` needs `identity_provider`";
                    self.fail("oauth.identity_provider", message, "say who gives out the assertion");
                    Grant::AuthorizationCode
                }
            },
        }
    }

    fn identity_provider(&self, provider: &IdentityProviderConfig) -> Grant {
        Grant::IdentityAssertion(IdentityProvider {
            token_endpoint: provider.token_endpoint.clone(),
            client_id: provider.client_id.clone(),
            client_secret: provider.client_secret.clone(),
            identity_token: AssertionSource::File(self.beside(&provider.identity_token_file)),
        })
    }

    /// A path as the configuration means it.
    fn beside(&self, path: &str) -> PathBuf {
        self.at.file.parent().map(|folder| folder.join(path)).unwrap_or_else(|| path.into())
    }
}
