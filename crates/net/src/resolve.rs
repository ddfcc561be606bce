//! Names to addresses, and the check that stands between.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use super::address::not_public;
use super::error::NetError;

/// Addresses tried for one name; a longer answer is cut.
const MAX_ADDRESSES: usize = 16;

/// Resolves host names.
#[async_trait]
pub trait HostResolver: Send + Sync {
    /// The addresses of `host`, best first.
    ///
    /// # Errors
    /// When the name has none, or cannot be asked for.
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>>;
}

/// The operating system's resolver.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

#[async_trait]
impl HostResolver for SystemResolver {
    async fn resolve(&self, host: &str) -> io::Result<Vec<IpAddr>> {
        Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).take(MAX_ADDRESSES).collect())
    }
}

/// The addresses of `host`, none of them refused.
///
/// # Errors
/// [`NetError::Connect`] for a name without addresses, [`NetError::Refused`] for one that has an address
/// which is not public: a name with both kinds has no honest use.
pub(crate) async fn resolve_public(resolver: &dyn HostResolver, host: &str) -> Result<Vec<IpAddr>, NetError> {
    let addresses = resolve_any(resolver, host).await?;
    match addresses.iter().find_map(|address| Some((address, not_public(*address)?))) {
        None => Ok(addresses),
        Some((address, kind)) => {
            Err(NetError::Refused { target: host.to_owned(), reason: format!("it resolves to {address}, {kind}") })
        }
    }
}

async fn resolve_any(resolver: &dyn HostResolver, host: &str) -> Result<Vec<IpAddr>, NetError> {
    let failed = |reason: String| NetError::Connect { host: host.to_owned(), reason };
    let mut addresses = resolver.resolve(host).await.map_err(|error| failed(error.to_string()))?;
    addresses.truncate(MAX_ADDRESSES);
    if addresses.is_empty() { Err(failed("the name has no address".to_owned())) } else { Ok(addresses) }
}

/// What a client asks when it dials.
pub(crate) struct DialResolver {
    /// Who knows.
    pub(crate) resolver: Arc<dyn HostResolver>,
    /// What may be dialled.
    pub(crate) reach: Reach,
}

/// What may be dialled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Public addresses only.
    Public,
    /// Any address.
    Any,
}

impl Resolve for DialResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (resolver, reach) = (Arc::clone(&self.resolver), self.reach);
        Box::pin(async move {
            let addresses = match reach {
                Reach::Public => resolve_public(&*resolver, name.as_str()).await?,
                Reach::Any => resolve_any(&*resolver, name.as_str()).await?,
            };
            // Port 0 takes the URL's port.
            let dialled: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(dialled)
        })
    }
}
