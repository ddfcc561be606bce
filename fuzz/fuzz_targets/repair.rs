//! Broken JSON: JSON stays as it is, and whatever is read can be written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use toolwright_core::json::{Repaired, repair};
use toolwright_fuzz::{same, text};

fuzz_target!(|data: &[u8]| {
    let text = text(data);
    let lossless = serde_json::from_str::<Value>(&text).ok();
    let Ok(read) = repair(&text) else {
        return assert!(lossless.is_none(), "JSON is always read");
    };
    if let Some(value) = lossless {
        return assert_eq!(read, Repaired { value, repaired: false, cut: None });
    }
    assert!(read.repaired);
    let written = read.value.to_string();
    assert!(written.len() <= 8 * text.len() + 64, "{} bytes become {}", text.len(), written.len());
    let again = repair(&written).expect("a value is read again");
    assert!(!again.repaired && same(&again.value, &read.value), "{written} becomes {}", again.value);
});
