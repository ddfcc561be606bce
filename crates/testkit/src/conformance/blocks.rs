//! Content blocks used by more than one method.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// A PNG of one red pixel, in base64.
pub(super) const PNG: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==";

pub(super) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(super) fn image() -> Value {
    json!({"type": "image", "data": PNG, "mimeType": "image/png"})
}

pub(super) fn resource(uri: &str, mime_type: &str, text: &str) -> Value {
    json!({"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": text}})
}

/// Returns a WAV file of eight silent samples: mono, 8 kHz, 16 bits.
pub(super) fn audio() -> Value {
    const SAMPLES: [u8; 16] = [0; 16];
    let mut wav = b"RIFF\x34\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    wav.extend(8000_u32.to_le_bytes());
    wav.extend(16000_u32.to_le_bytes());
    wav.extend(b"\x02\0\x10\0data\x10\0\0\0");
    wav.extend(SAMPLES);
    json!({"type": "audio", "data": STANDARD.encode(wav), "mimeType": "audio/wav"})
}
