//! Makes the first exchange with a server: reads its revision and description, explains failures, and remembers the
//! result.

use std::pin::pin;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use toolwright_core::store::ManifestCache;

use super::peer::{AskError, EXPIRED, Params, Peer, Request};
use crate::protocol::convert::unannounced;
use crate::protocol::message::RpcError;
use crate::protocol::revision::{
    CLIENT_CAPABILITIES, CLIENT_INFO, Era, LEGACY_VERSIONS, MODERN_VERSIONS, PROTOCOL_VERSION, SERVER_INFO,
};
use crate::transport::SendError;

/// How long one of two concurrent requests may be answered after the other.
const SECOND_ANSWER_WAIT: Duration = Duration::from_millis(250);

/// A server's self-description.
#[derive(Debug, Clone)]
pub(crate) struct ServerInfo {
    /// The generation that is spoken.
    pub(crate) era: Era,
    /// The revision that is spoken.
    pub(crate) version: &'static str,
    /// `ServerCapabilities`.
    pub(crate) capabilities: Arc<Map<String, Value>>,
    /// Instructions for a model.
    pub(crate) instructions: Option<String>,
    /// `Implementation`: its name and its version.
    pub(crate) program: Option<Value>,
}

impl ServerInfo {
    /// Whether it announces this capability (`tools.listChanged`, `tasks.requests.tools.call`).
    pub(crate) fn offers(&self, path: &str) -> bool {
        let mut keys = path.split('.');
        let first = keys.next().and_then(|key| self.capabilities.get(key));
        keys.fold(first, |value, key| value.and_then(|value| value.get(key)))
            .is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false)))
    }

    /// Whether it announces this extension (2026-07-28).
    pub(crate) fn extends(&self, extension: &str) -> bool {
        self.capabilities
            .get("extensions")
            .and_then(|extensions| extensions.get(extension))
            .is_some_and(Value::is_object)
    }
}

static OUR_INFO: LazyLock<Value> =
    LazyLock::new(|| json!({"name": "toolwright", "title": "Toolwright", "version": env!("CARGO_PKG_VERSION")}));

/// Returns capabilities of a client of any call. A session announces them once for all calls; if a
/// call's client lacks one, the request is refused when the server makes it.
fn legacy_capabilities() -> Value {
    json!({"elicitation": {"form": {}, "url": {}}, "sampling": {"context": {}, "tools": {}}, "roots": {"listChanged": true}})
}

/// Returns the members of `_meta` required in every request of 2026-07-28.
pub(crate) fn modern_meta(capabilities: Map<String, Value>) -> Map<String, Value> {
    let mut meta = Map::with_capacity(6);
    meta.insert(PROTOCOL_VERSION.to_owned(), MODERN_VERSIONS[0].into());
    meta.insert(CLIENT_INFO.to_owned(), OUR_INFO.clone());
    meta.insert(CLIENT_CAPABILITIES.to_owned(), capabilities.into());
    meta
}

/// Performs the handshake of `era`. Without an answer within `bound` it fails with [`Failure::Silent`]; `limit` is the
/// time for all attempts, for the message to the operator.
///
/// # Errors
/// [`Failure`].
pub(crate) async fn handshake(peer: &Peer, era: Era, bound: Duration, limit: Duration) -> Result<ServerInfo, Failure> {
    let shaken = async {
        match era {
            Era::Legacy => initialize(peer).await,
            Era::Modern => discovered(peer, ask_to_discover(peer).await),
        }
    };
    match tokio::time::timeout(bound, shaken).await {
        Ok(shaken) => shaken,
        Err(_) => Err(Failure::Silent(format!(
            "it did not answer `{}` within {}: is it an MCP server, and does it start that slowly (`connect_timeout`)?",
            match era {
                Era::Legacy => "initialize",
                Era::Modern => "server/discover",
            },
            toolwright_core::duration::format(limit),
        ))),
    }
}

/// Performs the handshake over a pipe with a server of unknown era: first that of 2026-07-28; without an answer
/// by `first`, also the older one in the same process, for at most `beside`. The server may still be
/// starting, or not know the first request. Also returns its late answer to that.
///
/// # Errors
/// As [`handshake`].
pub(crate) async fn handshake_unknown_era(
    peer: &Peer,
    (first, beside): (Duration, Duration),
    limit: Duration,
) -> (Result<ServerInfo, Failure>, DelayedDiscovery) {
    let mut discover_request = pin!(ask_to_discover(peer));
    if let Ok(discover_answer) = tokio::time::timeout(first, &mut discover_request).await {
        return (discovered(peer, discover_answer), DelayedDiscovery::NotReceived);
    }
    let mut initialized = pin!(handshake(peer, Era::Legacy, beside, limit));
    let mut discover_answer = None;
    let shaken = loop {
        let speaks_newest = discover_answer.as_ref().is_some_and(speaks_newest);
        tokio::select! {
            biased;
            answer = &mut discover_request, if discover_answer.is_none() => discover_answer = Some(answer),
            shaken = &mut initialized => break Some(shaken),
            () = tokio::time::sleep(SECOND_ANSWER_WAIT), if speaks_newest => break None,
        }
    };
    if matches!(shaken, Some(Ok(_))) && discover_answer.is_none() {
        // Not every server answers in request order.
        discover_answer = tokio::time::timeout(SECOND_ANSWER_WAIT, &mut discover_request).await.ok();
    }
    let discovery = if discover_answer.as_ref().is_some_and(speaks_newest) {
        DelayedDiscovery::SpeaksNewest
    } else {
        DelayedDiscovery::SpeaksOlder
    };
    match (shaken, discover_answer) {
        (Some(shaken @ (Ok(_) | Err(Failure::Broken(_) | Failure::Unreachable(_)))), _) => (shaken, discovery),
        // A server that supports only the newest refuses or ignores the other request.
        (_, Some(said)) if discovery == DelayedDiscovery::SpeaksNewest => {
            (discovered(peer, said), DelayedDiscovery::NotReceived)
        }
        (Some(shaken), _) => (shaken, discovery),
        (None, _) => (Err(invalid_version()), discovery),
    }
}

/// A server's late answer to the first request, after it was also sent the older one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DelayedDiscovery {
    /// No information beyond the handshake.
    NotReceived,
    /// It supports the newest.
    SpeaksNewest,
    /// It refused, or passed it over.
    SpeaksOlder,
}

fn speaks_newest(discover_answer: &Result<Value, AskError>) -> bool {
    let versions = discover_answer.as_ref().ok().and_then(|result| result.get("supportedVersions")?.as_array());
    versions.is_some_and(|versions| versions.iter().any(|said| said == MODERN_VERSIONS[0]))
}

async fn initialize(peer: &Peer) -> Result<ServerInfo, Failure> {
    let params = json!({
        "protocolVersion": LEGACY_VERSIONS[0], "capabilities": legacy_capabilities(), "clientInfo": &*OUR_INFO,
    });
    let mut result = answered(peer, Request::internal("initialize"), params).await?;
    let server_version = result.get("protocolVersion").and_then(Value::as_str).ok_or_else(invalid_version)?;
    let version = LEGACY_VERSIONS
        .into_iter()
        .find(|version| *version == server_version)
        .ok_or_else(|| no_common_version(&[server_version.to_owned()]))?;
    peer.set_version(version);
    let info = info(&mut result, Era::Legacy, version);
    peer.notify("notifications/initialized", None).await.map_err(unsent)?;
    peer.transport.established(Era::Legacy, version);
    Ok(info)
}

async fn ask_to_discover(peer: &Peer) -> Result<Value, AskError> {
    let version = MODERN_VERSIONS[0];
    let ask = || async {
        let request = Request { version: Some(version), ..Request::internal("server/discover") };
        let mut params = Params::default().with(modern_meta(Map::new()).into());
        peer.ask::<Value>(request, &mut params).await
    };
    match ask().await {
        // A server that refuses a version and yet lists it is asked once more, as the specification says.
        Err(AskError::Rpc(error)) if lists(&error, version) => ask().await,
        asked => asked,
    }
}

fn discovered(peer: &Peer, discover_answer: Result<Value, AskError>) -> Result<ServerInfo, Failure> {
    let version = MODERN_VERSIONS[0];
    let mut result = discover_answer.map_err(failure)?;
    let versions = result.get("supportedVersions").and_then(Value::as_array).ok_or_else(invalid_version)?;
    if !versions.iter().any(|said| said == version) {
        let versions: Vec<_> = versions.iter().filter_map(Value::as_str).map(str::to_owned).collect();
        return Err(no_common_version(&versions));
    }
    peer.set_version(version);
    peer.transport.established(Era::Modern, version);
    Ok(info(&mut result, Era::Modern, version))
}

fn info(result: &mut Value, era: Era, version: &'static str) -> ServerInfo {
    let mut capabilities = match result.get_mut("capabilities").map(Value::take) {
        Some(Value::Object(capabilities)) => capabilities,
        _ => Map::new(),
    };
    unannounced(&mut capabilities, version);
    let instructions = result.get("instructions").and_then(Value::as_str).map(str::to_owned);
    let own = result.get("serverInfo").or_else(|| result.get("_meta").and_then(|meta| meta.get(SERVER_INFO)));
    if let Some(own) = own {
        tracing::debug!(version, "connected to {own}");
    }
    let program = own.cloned();
    ServerInfo { era, version, capabilities: Arc::new(capabilities), instructions, program }
}

async fn answered(peer: &Peer, request: Request<'_>, params: Value) -> Result<Value, Failure> {
    let Value::Object(params) = params else { return Err(invalid_version()) };
    peer.ask(request, &mut params.into()).await.map_err(failure)
}

fn failure(error: AskError) -> Failure {
    match error {
        AskError::Rpc(error) => refused(&error),
        AskError::Broken(reason) => Failure::Broken(reason),
        AskError::Fault(reason) => Failure::Fault(reason),
        AskError::NotSent(reason) => Failure::Unreachable(reason),
        AskError::Expired => Failure::Unreachable(EXPIRED.to_owned()),
        AskError::Final(reason) => Failure::Final(reason),
        AskError::Ended(_) | AskError::Full => Failure::Broken("it closed the connection".to_owned()),
    }
}

/// Whether an error for a version lists it as supported.
fn lists(error: &RpcError, version: &str) -> bool {
    let supported = error.data.as_ref().and_then(|data| data.get("supported")).and_then(Value::as_array);
    error.code == RpcError::UNSUPPORTED_VERSION
        && supported.is_some_and(|versions| versions.iter().any(|listed| listed == version))
}

fn refused(error: &RpcError) -> Failure {
    let supported = error.data.as_ref().and_then(|data| data.get("supported")).and_then(Value::as_array);
    let versions = supported.map(|versions| versions.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(", "));
    let versions = versions.map_or_else(String::new, |versions| format!("; it supports {versions}"));
    let message = format!("it refused: {} (code {}){versions}", error.message, error.code);
    if error.code == RpcError::INTERNAL { Failure::Fault(message) } else { Failure::Refused(message) }
}

fn unsent(error: SendError) -> Failure {
    match AskError::from(error) {
        AskError::Final(reason) => Failure::Final(reason),
        AskError::Fault(reason) => Failure::Fault(reason),
        AskError::Broken(reason) | AskError::NotSent(reason) => Failure::Broken(reason),
        AskError::Expired => Failure::Broken(EXPIRED.to_owned()),
        AskError::Rpc(_) | AskError::Ended(_) | AskError::Full => invalid_version(),
    }
}

fn no_common_version(versions: &[String]) -> Failure {
    let versions = versions.join(", ");
    Failure::Refused(format!("it speaks only the protocol versions {versions}, none of which Toolwright supports"))
}

fn invalid_version() -> Failure {
    Failure::Broken("its answer to the handshake is not what MCP prescribes; is it an MCP server?".to_owned())
}

/// How an attempt to connect failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server answers, but refuses this era. The process or socket can be used again.
    Refused(String),
    /// The server failed: it may support this era all the same. The process or socket can be used
    /// again.
    Fault(String),
    /// No answer in time.
    Silent(String),
    /// The answer makes no sense, or the connection ended.
    Broken(String),
    /// The server cannot be reached.
    Unreachable(String),
    /// A retry would not help.
    Final(String),
}

/// Key of the stored finding in a manifest.
pub(crate) const KEPT: &str = "generation";

/// The known protocol era of one server.
pub(crate) struct VersionProbe {
    manifests: Arc<dyn ManifestCache>,
    key: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The era of the last connection of this process.
    last: Option<Era>,
    /// The finding of an attempt with both eras.
    found: Option<ProbeResult>,
    was_read: bool,
}

/// Result of trying both eras, and the program's version: another version may support other eras.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProbeResult {
    is_modern: bool,
    program: Option<Value>,
}

/// How certain a handshake is about the newest era of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum EraCertainty {
    /// It also supports the newest, but answered too late for this connection.
    Newer,
    /// The newest was tried, and the server does not speak it.
    Tried,
    /// The newest was not tried, or not for long enough.
    #[default]
    Untried,
}

impl VersionProbe {
    /// Starts with only the manifest under `key`.
    pub(crate) fn new(manifests: Arc<dyn ManifestCache>, key: String) -> Arc<Self> {
        Arc::new(Self { manifests, key, state: Mutex::default() })
    }

    /// Returns the era to try first.
    pub(crate) async fn known_era(&self) -> Option<Era> {
        let (last, was_read) = {
            let state = self.lock();
            (state.last, state.was_read)
        };
        if last.is_some() || was_read {
            return last;
        }
        // A store that cannot be read costs a try.
        let stored_manifest = self.manifests.manifest(&self.key).await.ok().flatten();
        let found = stored_manifest.as_ref().and_then(|kept| ProbeResult::deserialize(kept.get(KEPT)?).ok());
        let mut state = self.lock();
        state.was_read = true;
        state.found = state.found.take().or(found);
        state.found.as_ref().map(|found| if found.is_modern { Era::Modern } else { Era::Legacy })
    }

    /// Records the result of a handshake.
    pub(crate) fn note(&self, server: &ServerInfo, certainty: EraCertainty) {
        let mut state = self.lock();
        let newest = if certainty == EraCertainty::Newer { Era::Modern } else { server.era };
        state.last = Some(newest);
        let now = ProbeResult { is_modern: newest == Era::Modern, program: server.program.clone() };
        // Support of the newest is final; an older result is valid only for the same program.
        let still_holds = now.is_modern || certainty == EraCertainty::Tried || state.found.as_ref() == Some(&now);
        state.found = still_holds.then_some(now);
    }

    /// Returns the finding to store with the manifest.
    pub(crate) fn found(&self) -> Option<ProbeResult> {
        self.lock().found.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod version_probe_tests {
    use super::*;
    use async_trait::async_trait;
    use serde_json::{Map, json};
    use toolwright_core::store::StoreError;

    struct FixedManifest(Value);

    #[async_trait]
    impl ManifestCache for FixedManifest {
        async fn manifest(&self, _: &str) -> Result<Option<Value>, StoreError> {
            Ok(Some(self.0.clone()))
        }
        async fn set_manifest(&self, _: &str, _: &Value) -> Result<(), StoreError> {
            Ok(())
        }
    }

    fn discovered_info(era: Era, program: &str) -> ServerInfo {
        let (version, instructions) = ("2025-11-25", None);
        let (capabilities, program) = (Arc::new(Map::new()), Some(json!({"version": program})));
        ServerInfo { era, version, capabilities, instructions, program }
    }

    #[tokio::test]
    async fn found_versions_hold_for_their_program() {
        let old = json!({"is_modern": false, "program": {"version": "1"}});
        for (kept, known, said, certainty, keeps) in [
            (json!({}), None, discovered_info(Era::Legacy, "1"), EraCertainty::Tried, Some(old.clone())),
            (json!({}), None, discovered_info(Era::Legacy, "1"), EraCertainty::Untried, None),
            (
                json!({}),
                None,
                discovered_info(Era::Legacy, "1"),
                EraCertainty::Newer,
                Some(json!({"is_modern": true, "program": {"version": "1"}})),
            ),
            (
                json!({KEPT: old}),
                Some(Era::Legacy),
                discovered_info(Era::Legacy, "1"),
                EraCertainty::Untried,
                Some(old.clone()),
            ),
            (json!({KEPT: old}), Some(Era::Legacy), discovered_info(Era::Legacy, "2"), EraCertainty::Untried, None),
            (
                json!({KEPT: old}),
                Some(Era::Legacy),
                discovered_info(Era::Modern, "2"),
                EraCertainty::Untried,
                Some(json!({"is_modern": true, "program": {"version": "2"}})),
            ),
            (json!({KEPT: "?"}), None, discovered_info(Era::Legacy, "1"), EraCertainty::Tried, Some(old.clone())),
        ] {
            let generation = VersionProbe::new(Arc::new(FixedManifest(kept.clone())), "k".to_owned());
            assert_eq!(generation.known_era().await, known, "{kept}");
            generation.note(&said, certainty);
            let found = generation.found().map(|found| serde_json::to_value(found).expect("JSON"));
            assert_eq!(found, keeps, "{kept} {said:?} {certainty:?}");
            let last = if certainty == EraCertainty::Newer { Era::Modern } else { said.era };
            assert_eq!(generation.known_era().await, Some(last), "of this process");
        }
    }
}
