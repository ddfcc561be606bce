//! Stores binary tool results that the model cannot read as files, and puts a handle into the conversation.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use toolwright_core::content::ContentBlock;
use toolwright_core::outcome::Outcome;
use toolwright_core::session::SessionId;
use toolwright_core::store::OutputStore;

/// Types of images that models are shown.
const SHOWN_IMAGES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/// Puts handles in place of the binary blocks of `outcomes` that models are not shown. One that cannot be kept stays,
/// and says in the conversation that it is not shown.
pub(super) async fn keep(outcomes: &mut [Outcome], outputs: &dyn OutputStore, session: &SessionId) {
    for block in outcomes.iter_mut().flat_map(|outcome| &mut outcome.content) {
        let Some((what, data, media_type)) = binary(block) else { continue };
        let Ok(bytes) = BASE64_STANDARD.decode(data) else { continue };
        match outputs.put_artifact(session, &bytes, media_type).await {
            Ok(stored) => {
                let text = format!(
                    "[{what}, {media_type}, {} bytes: not shown, kept as a file under the handle {}]",
                    stored.bytes, stored.handle
                );
                *block = ContentBlock::text(text);
            }
            Err(error) => tracing::warn!("a binary result was not kept: {error}"),
        }
    }
}

/// What a block is, its base64 and its media type, if models are not shown it.
fn binary(block: &ContentBlock) -> Option<(String, &str, &str)> {
    match block {
        ContentBlock::Image { data, mime_type, .. } if !SHOWN_IMAGES.contains(&mime_type.as_str()) => {
            Some(("image".into(), data, mime_type))
        }
        ContentBlock::Audio { data, mime_type, .. } => Some(("audio".into(), data, mime_type)),
        ContentBlock::Resource { resource, .. } => {
            let part = |key| resource.get(key).and_then(Value::as_str);
            let what = format!("resource {}", part("uri").unwrap_or("unnamed"));
            Some((what, part("blob")?, part("mimeType").unwrap_or("application/octet-stream")))
        }
        _ => None,
    }
}
