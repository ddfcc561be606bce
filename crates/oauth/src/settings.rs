//! What is configured of one server's OAuth.

use toolwright_core::Secret;

use super::credentials::Client;
use super::grants::SigningKey;

/// How one server's tokens are got. The default asks a person, and registers by itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OAuthSettings {
    /// What a token is asked with.
    pub grant: Grant,
    /// Who asks.
    pub client: ClientSettings,
    /// Scopes that are always asked for, in place of those that the server recommends.
    pub scopes: Vec<String>,
    /// The issuer that may be asked; `None` for the first that the server names.
    pub authorization_server: Option<String>,
    /// Port on this machine that the login page sends back to; `None` for any that is free.
    pub redirect_port: Option<u16>,
    /// Hosts, besides the server's own, that may be asked though they are not public: `host` or `host:port`.
    pub allowed_hosts: Vec<String>,
}

/// Who asks for tokens: an identifier that was given out by hand, the URL of a metadata document, or neither, and
/// then the client registers by itself (RFC 7591).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClientSettings {
    /// `client_id`, where one was given out.
    pub id: Option<String>,
    /// What it proves itself with.
    pub proof: ClientProof,
    /// URL of the client's metadata document, which is its identifier where the authorization server knows such.
    pub metadata_url: Option<String>,
}

impl ClientSettings {
    /// Whether a client that was kept may ask by these settings still.
    pub(crate) fn may_be(&self, client: &Client) -> bool {
        match &self.id {
            Some(id) => client.id == *id,
            None => client.is_registered() || self.metadata_url.as_ref() == Some(&client.id),
        }
    }
}

/// What a configured client proves itself with at the token endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ClientProof {
    /// Nothing: a public client.
    #[default]
    None,
    /// A shared secret.
    Secret(Secret),
    /// Its signature (`private_key_jwt`).
    Key(SigningKey),
}

/// What a token is asked with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Grant {
    /// A person's consent in a browser (OAuth 2.1 section 4.1).
    #[default]
    AuthorizationCode,
    /// The client's own rights (OAuth 2.1 section 4.2).
    ClientCredentials,
    /// A signed statement of somebody the authorization server trusts (RFC 7523 section 2.1): a workload's identity.
    JwtBearer(AssertionSource),
    /// A statement that an enterprise's identity provider exchanges for the person's identity token (RFC 8693; the
    /// MCP extension "enterprise managed authorization").
    IdentityAssertion(IdentityProvider),
}

/// Where an assertion comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AssertionSource {
    /// Itself.
    Value(Secret),
    /// A file that something else keeps fresh, read for every request.
    File(std::path::PathBuf),
}

/// An identity provider that gives out assertions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdentityProvider {
    /// Its token endpoint. The operator wrote it.
    pub token_endpoint: String,
    /// Our identifier there.
    pub client_id: String,
    /// Our secret there, if it wants one.
    pub client_secret: Option<Secret>,
    /// The person's identity token.
    pub identity_token: AssertionSource,
}
