//! Configures how a person or a program logs in to an MCP server.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use toolwright_core::Secret;

use super::credentials::Client;
use super::grants::SigningKey;

/// How tokens for one server are got (OAuth 2.1). Without the section a server at an address that has no
/// `headers.Authorization` is logged in to with `toolwright mcp login`, and nothing has to be written.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OAuthConfig {
    /// Whether it is used. Default true.
    pub enabled: bool,
    /// The grant that tokens are requested with. Default `authorization_code`: a person logs in with `toolwright mcp
    /// login`.
    pub grant: Grant,
    /// Client id, if you registered a client yourself. Default: Toolwright registers one where the server allows it.
    #[serde(alias = "clientId")]
    #[schemars(extend("x-variables" = "setting"))]
    pub client_id: Option<String>,
    /// What the client proves itself with: `client_secret`, or the key of `private_key_file`.
    #[serde(skip)]
    pub proof: ClientProof,
    /// The client secret; `${VAR}` is filled in.
    // It is in `proof` once it is loaded.
    #[serde(alias = "clientSecret")]
    #[schemars(with = "Option<String>", extend("x-variables" = "secret"))]
    pub client_secret: Option<Secret>,
    /// File with the client's private key (PKCS#8 in PEM), instead of a secret; relative to the configuration's folder.
    #[schemars(with = "Option<String>", extend("x-variables" = "setting"))]
    pub private_key_file: Option<PathBuf>,
    /// Id of the private key, sent as the header `kid`.
    pub private_key_id: Option<String>,
    /// Algorithm that the private key signs with: ES256, ES384, RS256, RS384, RS512, PS256, PS384, PS512 or `EdDSA`.
    /// Default ES256.
    pub signing_algorithm: Option<String>,
    /// Address of the client's metadata document. It serves as the client id where the authorization server supports
    /// such documents.
    #[schemars(extend("x-variables" = "setting"))]
    pub client_metadata_url: Option<String>,
    /// Scopes to request, instead of those that the server recommends.
    pub scopes: Vec<String>,
    /// Issuer of the authorization server to use, one of those that the server names. Default: the first. Set it
    /// whenever you set `client_secret`; otherwise the server chooses who receives the secret.
    #[schemars(extend("x-variables" = "setting"))]
    pub authorization_server: Option<String>,
    /// Local port that the login page redirects to. Default: any free port.
    #[serde(alias = "callbackPort")]
    pub redirect_port: Option<u16>,
    /// Hosts of authorization servers that may be reached although their addresses are private: `host` or `host:port`.
    pub allowed_hosts: Vec<String>,
    /// The assertion of `jwt_bearer`; `${VAR}` is filled in.
    #[schemars(with = "Option<String>", extend("x-variables" = "secret"))]
    pub assertion: Option<Secret>,
    /// File that holds the assertion; relative to the configuration's folder. It is read for every request.
    // Absolute once it is loaded.
    #[schemars(with = "Option<String>", extend("x-variables" = "setting"))]
    pub assertion_file: Option<PathBuf>,
    /// The identity provider that issues the assertion for `identity_assertion`.
    pub identity_provider: Option<IdentityProviderConfig>,
}

impl Default for OAuthConfig {
    /// The defaults: a person logs in, and the client registers itself.
    fn default() -> Self {
        Self {
            enabled: true,
            grant: Grant::AuthorizationCode,
            client_id: None,
            proof: ClientProof::None,
            client_secret: None,
            private_key_file: None,
            private_key_id: None,
            signing_algorithm: None,
            client_metadata_url: None,
            scopes: Vec::new(),
            authorization_server: None,
            redirect_port: None,
            allowed_hosts: Vec::new(),
            assertion: None,
            assertion_file: None,
            identity_provider: None,
        }
    }
}

impl OAuthConfig {
    /// Whether these settings still allow a stored client.
    pub(crate) fn may_be(&self, client: &Client) -> bool {
        match &self.client_id {
            Some(id) => client.id == *id,
            None => client.is_registered() || self.client_metadata_url.as_ref() == Some(&client.id),
        }
    }
}

/// The credentials of a configured client at the token endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ClientProof {
    /// No credentials: a public client.
    #[default]
    None,
    /// A shared secret.
    Secret(Secret),
    /// Its signature (`private_key_jwt`).
    Key(SigningKey),
}

/// An enterprise's identity provider.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct IdentityProviderConfig {
    /// The token endpoint of the identity provider.
    #[schemars(extend("x-variables" = "setting"))]
    pub token_endpoint: String,
    /// The client id at the identity provider.
    #[schemars(extend("x-variables" = "setting"))]
    pub client_id: String,
    /// The client secret at the identity provider; `${VAR}` is filled in.
    #[serde(default)]
    #[schemars(with = "Option<String>", extend("x-variables" = "secret"))]
    pub client_secret: Option<Secret>,
    /// File that holds the person's identity token; relative to the configuration's folder. It is read for every
    /// request.
    // Absolute once it is loaded.
    #[schemars(with = "String", extend("x-variables" = "setting"))]
    pub identity_token_file: PathBuf,
    /// That token itself, in place of a file.
    #[serde(skip)]
    pub identity_token: Option<Secret>,
}

/// What a token is asked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// A person's consent in a browser.
    #[default]
    AuthorizationCode,
    /// The client's own rights: `client_id` with `client_secret` or `private_key_file`.
    ClientCredentials,
    /// A signed statement of somebody the authorization server trusts: `assertion` or `assertion_file`.
    JwtBearer,
    /// A statement that an identity provider gives for a person's identity token: `identity_provider`.
    IdentityAssertion,
}
