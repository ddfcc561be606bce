//! Asking for a token: as whom, and how.

use url::Url;

use super::consent::Login;
use super::credentials::{Client, Token};
use super::discovery::Discovered;
use super::error::OAuthError;
use super::grants::unattended;
use super::loopback::Loopback;
use super::registration::{by_document, configured, holds, register};
use super::session::Session;

impl Session {
    /// Gets a token of the authorization server that was found, as the settings want: with `known`, the client of an
    /// earlier registration, where it can be used.
    ///
    /// # Errors
    /// [`OAuthError`].
    pub(crate) async fn ask(
        &self,
        found: &Discovered,
        known: Option<&Client>,
        scopes: &[String],
    ) -> Result<(Client, Token), OAuthError> {
        let settings = &self.settings.client;
        let fixed = match configured(settings, &found.server)? {
            Some(client) => Some(client),
            None => by_document(settings, &found.server),
        };
        let (true, Some(consent)) = (self.needs_person(), &self.consent) else {
            let Some(client) = fixed else {
                let message = "this grant needs a client that is known already: set `oauth.client_id`";
                return Err(OAuthError::Setting(message.to_owned()));
            };
            let grant = &self.settings.grant;
            let token = unattended(&self.wire, grant, found, &client, &settings.proof, scopes).await?;
            return match token {
                Some(token) => Ok((client, token)),
                None => Err(self.login_needed("the server wants you to log in")),
            };
        };
        let (client, loopback) = match fixed {
            Some(client) => (client, Loopback::listen(self.settings.redirect_port).await?),
            None => self.registered(found, known, scopes).await?,
        };
        let login = Login {
            wire: &self.wire,
            found,
            client: &client,
            proof: &settings.proof,
            scopes,
            loopback: &loopback,
            consent: &**consent,
        };
        let token = login.run().await?;
        Ok((client, token))
    }

    /// The client of the earlier registration where it can be used, or else a new one, with its listener: the page
    /// sends back only to the address that was registered.
    async fn registered(
        &self,
        found: &Discovered,
        known: Option<&Client>,
        scopes: &[String],
    ) -> Result<(Client, Loopback), OAuthError> {
        if let Some(client) = known.filter(|client| holds(client))
            && let Some(port) = client.redirect_uri.as_deref().and_then(|uri| Url::parse(uri).ok()?.port())
            && self.settings.redirect_port.is_none_or(|wanted| wanted == port)
            && let Ok(loopback) = Loopback::listen(Some(port)).await
        {
            return Ok((client.clone(), loopback));
        }
        let loopback = Loopback::listen(self.settings.redirect_port).await?;
        let client = register(&self.wire, found, &loopback.redirect_uri(), scopes).await?;
        Ok((client, loopback))
    }
}
