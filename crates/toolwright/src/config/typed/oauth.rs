//! How a person or a program logs in to an MCP server.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How tokens for one server are got (OAuth 2.1). Without the section a server at an address that has no
/// `headers.Authorization` is logged in to with `toolwright mcp login`, and nothing has to be written.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct OAuthSection {
    /// Whether it is used. Default true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// What a token is asked with. Default `authorization_code`: a person logs in with `toolwright mcp login`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grant: Option<OAuthGrant>,
    /// Identifier of a client that was registered by hand. Default: one is registered where the server allows it.
    #[serde(skip_serializing_if = "Option::is_none", alias = "clientId")]
    pub client_id: Option<String>,
    /// Its secret; `${VAR}` is filled in.
    #[serde(skip_serializing_if = "Option::is_none", alias = "clientSecret")]
    pub client_secret: Option<String>,
    /// File with its private key (PKCS#8 in PEM), in place of a secret; relative to the configuration's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key_file: Option<String>,
    /// Name of that key, for the header `kid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key_id: Option<String>,
    /// How it signs: ES256, ES384, RS256, RS384, RS512, PS256, PS384, PS512 or `EdDSA`. Default ES256.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signing_algorithm: Option<String>,
    /// Address of the client's metadata document, its identifier where the authorization server knows such.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_metadata_url: Option<String>,
    /// Scopes that are asked for, in place of those that the server recommends.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// The authorization server (its issuer) that may be asked, among those that the server trusts. Default: the
    /// first. Set it with a `client_secret`, so that the server does not choose who sees that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization_server: Option<String>,
    /// Port on this machine that the login page sends back to. Default: one that is free.
    #[serde(skip_serializing_if = "Option::is_none", alias = "callbackPort")]
    pub redirect_port: Option<u16>,
    /// Hosts of authorization servers that may be reached though they are not public: `host` or `host:port`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allowed_hosts: Vec<String>,
    /// The assertion of `jwt_bearer`; `${VAR}` is filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assertion: Option<String>,
    /// File that holds it, read for every request; relative to the configuration's folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub assertion_file: Option<String>,
    /// Who gives out the assertion of `identity_assertion`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity_provider: Option<OAuthIdentityProvider>,
}

/// An enterprise's identity provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OAuthIdentityProvider {
    /// Its token endpoint.
    pub token_endpoint: String,
    /// The client's identifier there.
    pub client_id: String,
    /// The client's secret there; `${VAR}` is filled in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<String>,
    /// File that holds the person's identity token, read for every request; relative to the configuration's folder.
    pub identity_token_file: String,
}

/// What a token is asked with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OAuthGrant {
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
