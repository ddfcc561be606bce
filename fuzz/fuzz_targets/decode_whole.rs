//! Answers of the model APIs that were not streamed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwright_fuzz::{decoded::assert_bounded, parameters};
use toolwright_models::{Api, decode_whole};

fuzz_target!(|data: &[u8]| {
    let ([api], bytes) = parameters(data);
    match decode_whole(Api::ALL[api % Api::ALL.len()], bytes) {
        Ok(answer) => assert_bounded(&answer, bytes.len()),
        Err(error) => assert!(error.message.len() <= 8 << 10, "{}", error.message),
    }
});
