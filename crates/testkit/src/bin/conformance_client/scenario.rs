//! Runs the client's part of each scenario of the suite.

use std::error::Error;
use std::path::PathBuf;

use serde_json::{Map, Value, json};
use toolwright_core::Secret;
use toolwright_oauth::{ClientProof, Grant, IdentityProviderConfig, OAuthConfig, SigningKey};

use super::arguments;
use super::report;
use super::session::Session;

/// The client id that the suite's authorization server knows as the URL of a metadata document.
const METADATA_URL: &str = "https://conformance-test.local/client-metadata.json";

/// The tool whose listed schema must reach the suite's echo unchanged.
const FOCAL_TOOL: &str = "json_schema_2020_12_tool";

/// A scenario with the suite's data for it.
pub(crate) struct Scenario {
    name: String,
    context: Map<String, Value>,
}

impl Scenario {
    /// Reads the scenario from the environment.
    pub(crate) fn from_env() -> Result<Self, Box<dyn Error>> {
        let name = std::env::var("MCP_CONFORMANCE_SCENARIO").unwrap_or_default();
        let context = match std::env::var("MCP_CONFORMANCE_CONTEXT") {
            Ok(text) => serde_json::from_str(&text)?,
            Err(_) => Map::new(),
        };
        Ok(Self { name, context })
    }

    /// Returns the OAuth configuration for its server.
    pub(crate) fn oauth(&self) -> Result<OAuthConfig, Box<dyn Error>> {
        let text = |key: &str| self.context.get(key).and_then(Value::as_str).map(str::to_owned);
        let secret = |key: &str| text(key).map(Secret::new);
        let mut config = OAuthConfig {
            client_id: text("client_id"),
            client_metadata_url: Some(METADATA_URL.to_owned()),
            authorization_server: text("issuer"),
            ..OAuthConfig::default()
        };
        match self.name.as_str() {
            "auth/client-credentials-jwt" | "auth/client-credentials-basic" => config.grant = Grant::ClientCredentials,
            "auth/wif-jwt-bearer" => {
                config.grant = Grant::JwtBearer;
                config.assertion = Some(secret("valid_jwt").ok_or("the context has no valid_jwt")?);
            }
            "auth/enterprise-managed-authorization" => {
                config.grant = Grant::IdentityAssertion;
                config.identity_provider = Some(IdentityProviderConfig {
                    token_endpoint: text("idp_token_endpoint").ok_or("the context has no idp_token_endpoint")?,
                    client_id: text("idp_client_id").ok_or("the context has no idp_client_id")?,
                    client_secret: None,
                    identity_token_file: PathBuf::new(),
                    identity_token: Some(secret("idp_id_token").ok_or("the context has no token")?),
                });
            }
            _ => {}
        }
        config.proof = match (secret("client_secret"), text("private_key_pem")) {
            (Some(secret), _) => ClientProof::Secret(secret),
            (None, Some(pem)) => {
                let algorithm = text("signing_algorithm").unwrap_or_else(|| "ES256".to_owned());
                ClientProof::Key(SigningKey::from_pem(&pem, &algorithm, None)?)
            }
            (None, None) => ClientProof::None,
        };
        Ok(config)
    }

    /// Lists the tools and makes the scenario's calls.
    pub(crate) async fn play(&self, session: &Session) -> Result<(), Box<dyn Error>> {
        let tools = session.tools();
        report(&format!("{} tools", tools.len()));
        match self.context.get("toolCalls").and_then(Value::as_array) {
            Some(calls) => {
                for call in calls {
                    let name = call["name"].as_str().ok_or("a call without a name")?;
                    session.call(name, arguments::without_nulls(&call["arguments"])).await?;
                }
            }
            None => {
                // These tools are only listed: the scenario checks their schemas.
                let idle = |name: &str| self.name == "json-schema-ref-no-deref" || name == FOCAL_TOOL;
                for (name, schema) in tools.iter().filter(|(name, _)| !idle(name)) {
                    session.call(name, self.arguments(name, schema, &tools)).await?;
                }
            }
        }
        if self.name == "http-standard-headers" {
            self.read_everything(session).await?;
        }
        Ok(())
    }

    fn arguments(&self, name: &str, schema: &Value, tools: &[(String, Value)]) -> Value {
        if name == "json_schema_echo" {
            let focal = tools.iter().find(|(name, _)| name == FOCAL_TOOL);
            return json!({"schema": focal.map(|(_, schema)| schema)});
        }
        arguments::sample(schema)
    }

    /// Calls every method that takes a name or a URI.
    async fn read_everything(&self, session: &Session) -> Result<(), Box<dyn Error>> {
        let listed = session.method("resources/list", json!({})).await?;
        for resource in listed["resources"].as_array().into_iter().flatten() {
            session.method("resources/read", json!({"uri": resource["uri"]})).await?;
        }
        let listed = session.method("prompts/list", json!({})).await?;
        for prompt in listed["prompts"].as_array().into_iter().flatten() {
            session.method("prompts/get", json!({"name": prompt["name"]})).await?;
        }
        Ok(())
    }
}
