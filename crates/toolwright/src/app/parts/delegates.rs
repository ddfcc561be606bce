//! Reads the documents of delegates: files of the workspace, and URLs that the configuration allows.

use std::path::Path;

use async_trait::async_trait;
use toolwright_agent::{DelegateDocument, DelegateDocuments, LoadedDelegate};
use toolwright_core::ToolContext;
use toolwright_core::error::{ErrorKind, ToolError};
use toolwright_net::{AddressPolicy, Bounds, HttpClient, HttpOptions, HttpRequest, decode_text};
use url::Url;

use crate::config::DelegatesConfig;

/// The largest document, in bytes.
const MAX_BYTES: usize = 256 << 10;
/// The section with the settings of addresses.
const SETTINGS: &str = "web";

/// The documents that one configuration allows.
pub(super) struct Documents {
    config: DelegatesConfig,
    client: HttpClient,
}

impl Documents {
    pub(super) fn new(config: DelegatesConfig, addresses: AddressPolicy) -> Self {
        Self { config, client: HttpClient::new(addresses, HttpOptions::default()) }
    }

    async fn fetch(&self, url: Url, context: &ToolContext) -> Result<String, ToolError> {
        if !self.config.allows(&url) {
            let message = format!("the delegate {url} is not among `delegates.urls`");
            return Err(ToolError::new(ErrorKind::NotPermitted, message));
        }
        let bounds = Bounds::of(context);
        let response =
            self.client.send_restricted(HttpRequest::get(url.clone()), bounds, |next| self.config.allows(next)).await;
        let response = response.map_err(|error| error.into_tool_error(SETTINGS))?;
        if !response.status().is_success() {
            let message = format!("the delegate {url} answers {}", response.status());
            return Err(ToolError::new(ErrorKind::ExecutionError, message));
        }
        let media_type = response.media_type();
        let body = response.read(MAX_BYTES, bounds).await.map_err(|error| error.into_tool_error(SETTINGS))?;
        if body.cut { Err(too_large(url.as_str())) } else { Ok(decode_text(&body.bytes, media_type.as_ref())) }
    }
}

fn too_large(delegate: &str) -> ToolError {
    ToolError::new(ErrorKind::LimitExceeded, format!("the delegate {delegate} has more than {MAX_BYTES} bytes"))
}

/// Returns the text of a file in the workspace.
fn read_file(root: &Path, file: &str) -> Result<String, ToolError> {
    let failed = |error: std::io::Error| {
        ToolError::new(ErrorKind::ExecutionError, format!("the delegate {file} cannot be read: {error}"))
    };
    let root = root.canonicalize().map_err(failed)?;
    let path = root.join(file).canonicalize().map_err(failed)?;
    if !path.starts_with(&root) {
        let message = format!("the delegate {file} lies outside of the workspace: move it there");
        return Err(ToolError::new(ErrorKind::NotPermitted, message));
    }
    if path.metadata().map_err(failed)?.len() > MAX_BYTES as u64 {
        return Err(too_large(file));
    }
    std::fs::read_to_string(path).map_err(failed)
}

#[async_trait]
impl DelegateDocuments for Documents {
    async fn read(&self, delegate: &str, context: &ToolContext) -> Result<LoadedDelegate, ToolError> {
        let url = Url::parse(delegate).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let (text, is_remote) = match url {
            Some(url) => (self.fetch(url, context).await?, true),
            None => {
                let (root, file) = (context.session.root.clone(), delegate.to_owned());
                let read = tokio::task::spawn_blocking(move || read_file(&root, &file)).await;
                let broke =
                    |error| ToolError::new(ErrorKind::InternalError, format!("reading a delegate broke: {error}"));
                (read.map_err(broke)??, false)
            }
        };
        let document: DelegateDocument = serde_saphyr::from_str(&text).map_err(|error| {
            // The caller may not be allowed to read the file, so none of its content is in the message.
            let line = error.location().map(|at| format!("; see line {}", at.line())).unwrap_or_default();
            let message = format!("the delegate {delegate} is no {{context, schema}} in JSON or YAML{line}");
            ToolError::new(ErrorKind::ExecutionError, message)
        })?;
        Ok(LoadedDelegate { document, is_remote })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_in_the_workspace() {
        let (root, outside) = (tempfile::tempdir().expect("dir"), tempfile::tempdir().expect("dir"));
        std::fs::write(root.path().join("d.yaml"), "context: hello").expect("write");
        std::fs::write(outside.path().join("d.yaml"), "context: other").expect("write");
        assert_eq!(read_file(root.path(), "d.yaml").expect("read"), "context: hello");
        let elsewhere = outside.path().join("d.yaml");
        std::os::unix::fs::symlink(&elsewhere, root.path().join("link.yaml")).expect("link");
        for file in [elsewhere.to_str().expect("path"), "link.yaml"] {
            assert_eq!(
                read_file(root.path(), file).map_err(|error| error.kind()),
                Err(ErrorKind::NotPermitted),
                "{file}"
            );
        }
    }
}
