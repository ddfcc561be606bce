//! Content for clients of older revisions. Their SDKs take a closed list of kinds, and refuse the whole result for the
//! sake of one block that came later.

use serde_json::{Map, Value};
use toolwright_core::content::ContentBlock;

/// The first revision with sound.
const AUDIO: &str = "2025-03-26";
/// The first revision with links to resources, and with structured content.
const LINKS: &str = "2025-06-18";

/// Whether clients of this legacy revision know `structuredContent`; to the others a result is its content.
#[must_use]
pub fn has_structured(version: &str) -> bool {
    // Revisions are dates: in the order of time as they are in that of texts.
    version >= LINKS
}

fn knows(version: &str, kind: &str) -> bool {
    match kind {
        "audio" => version >= AUDIO,
        "resource_link" => version >= LINKS,
        _ => true,
    }
}

/// Puts a line of text in the place of each block that a client of this legacy revision does not know.
pub fn content(version: &str, blocks: &mut [ContentBlock]) {
    for block in blocks {
        let kind = match block {
            ContentBlock::Audio { .. } => "audio",
            ContentBlock::Link { .. } => "resource_link",
            _ => continue,
        };
        if !knows(version, kind) {
            *block = ContentBlock::text(block.placeholder());
        }
    }
}

/// The same for the messages of a result of `prompts/get`.
pub fn prompt(version: &str, result: &mut Map<String, Value>) {
    for message in result.get_mut("messages").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(block) = message.get_mut("content") else { continue };
        let Some(kind) = block.get("type").and_then(Value::as_str).filter(|kind| !knows(version, kind)) else {
            continue;
        };
        let unnamed = || format!("[{kind}, not shown]");
        let text =
            serde_json::from_value::<ContentBlock>(block.clone()).map_or_else(|_| unnamed(), |one| one.placeholder());
        *block = serde_json::json!({"type": "text", "text": text});
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_client_gets_the_kinds_of_content_that_its_revision_has() {
        let sound = json!({"type": "audio", "data": "AA==", "mimeType": "audio/wav"});
        let link = json!({"type": "resource_link", "uri": "a:b", "name": "n"});
        let text = json!({"type": "text", "text": "t", "_meta": {"k": 1}});
        let no_sound = json!({"type": "text", "text": "[audio, audio/wav, 4 bytes of base64, not shown]"});
        let no_link = json!({"type": "text", "text": "[link to n: a:b]"});
        for (version, expect) in [
            ("2024-11-05", [&text, &no_sound, &no_link]),
            ("2025-03-26", [&text, &sound, &no_link]),
            ("2025-06-18", [&text, &sound, &link]),
            ("2025-11-25", [&text, &sound, &link]),
        ] {
            let given = json!([text, sound, link]);
            let mut blocks: Vec<ContentBlock> = serde_json::from_value(given.clone()).expect("blocks");
            content(version, &mut blocks);
            assert_eq!(serde_json::to_value(&blocks).expect("json"), json!(expect), "{version}");
            let messages = |blocks: Value| {
                let messages =
                    blocks.as_array().expect("a list").iter().map(|one| json!({"role": "user", "content": one}));
                json!({"messages": messages.collect::<Value>(), "description": "d"})
                    .as_object()
                    .cloned()
                    .expect("object")
            };
            let mut result = messages(given);
            prompt(version, &mut result);
            assert_eq!(result, messages(json!(expect)), "{version}");
            assert_eq!(has_structured(version), version >= "2025-06-18");
        }
        let mut broken = json!({"messages": [{"content": {"type": "audio"}}, {"content": 5}, 7]});
        prompt("2024-11-05", broken.as_object_mut().expect("object"));
        assert_eq!(broken["messages"][0]["content"]["text"], "[audio, not shown]");
    }
}
