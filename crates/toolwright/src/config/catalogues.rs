//! From a written `catalogues` entry to what its provider takes.

use std::collections::BTreeMap;

use toolwright_core::tool_id::{RESERVED_NAMESPACES, ToolId};
use toolwright_net::AddressPolicy;
use toolwright_providers::catalogue::{CatalogueSpec, PublicKey};
use url::Url;

use super::fill::{Holds, Scope};
use super::node::Member;
use super::typed::CatalogueEntry;

/// Resolves one entry; `None`, with the reason among the problems, when it is switched off or cannot be used. `taken` says
/// whether a namespace is another source's.
pub(crate) fn resolve(
    member: &Member,
    written: &CatalogueEntry,
    taken: &dyn Fn(&str) -> bool,
    scope: &mut Scope<'_>,
) -> Option<CatalogueSpec> {
    if written.enabled == Some(false) {
        return None;
    }
    let (at, entry, name) = (&member.at, format!("catalogues.{}", member.key), &member.key);
    let before = scope.problems.len();
    if let Err(error) = ToolId::format(name, "x", "1.0.0") {
        scope.leave_out(at, &entry, error.to_string(), "name it as the catalogue's namespace is called");
    } else if RESERVED_NAMESPACES.contains(&name.as_str()) || taken(name) {
        let message = format!("the namespace `{name}` is reserved or another source's");
        scope.leave_out(at, &entry, message, "rename the other one; a catalogue has the name that is signed");
    }
    let mut address = written.url.clone();
    scope.fill(at, &format!("{entry}.url"), &mut address, Holds::Setting);
    let url = match Url::parse(&address) {
        Ok(url) => Some(url),
        Err(error) => {
            let message = format!("it is not an address: {error}");
            scope.leave_out(at, &format!("{entry}.url"), message, "write it like https://host/catalogue.json");
            None
        }
    };
    let mut keys: Vec<PublicKey> = Vec::with_capacity(written.keys.len());
    for key in &written.keys {
        match key.parse() {
            Ok(key) => keys.push(key),
            Err(error) => {
                scope.leave_out(at, &format!("{entry}.keys"), format!("{error}"), "ask its publisher for the key");
            }
        }
    }
    if written.keys.is_empty() {
        let remedy = "list the publisher's public key";
        scope.leave_out(at, &format!("{entry}.keys"), "without keys no catalogue is believed".to_owned(), remedy);
    }
    let mut secrets = BTreeMap::new();
    for name in &written.secrets {
        let mut value = format!("${{{name}}}");
        scope.fill(at, &format!("{entry}.secrets"), &mut value, Holds::OwnKey(name));
        secrets.insert(name.clone(), value);
    }
    if scope.problems.len() > before {
        return None;
    }
    let default = CatalogueSpec::new(name, url?, keys);
    Some(CatalogueSpec {
        defined_in: scope.places.of(at),
        refresh: written.refresh.map_or(default.refresh, |span| span.0),
        max_bytes: written.max_bytes.unwrap_or(default.max_bytes),
        secrets,
        address: AddressPolicy {
            allow_private: written.allow_private.unwrap_or(false),
            allowed_hosts: written.allowed_hosts.clone(),
        },
        insecure_loopback: written.insecure_loopback.unwrap_or(false),
        tools_allowed: written.tools_allowed.clone(),
        tools_denied: written.tools_denied.clone(),
        shown: written.tools.clone(),
        trusted: written.trusted.unwrap_or(false),
        ..default
    })
}
