//! Requests to the served model APIs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwright_fuzz::parameters;
use toolwright_models::encode;
use toolwright_models::served::{ServedApi, read_request};

fuzz_target!(|data: &[u8]| {
    let ([api], bytes) = parameters(data);
    let api = ServedApi::ALL[api % ServedApi::ALL.len()];
    match read_request(api, bytes) {
        // What is read can be asked of any model.
        Ok(read) => drop(encode(api.api(), &read.request, &read.model).bytes()),
        Err(error) => assert!(!error.field.is_empty() && !error.message.is_empty()),
    }
});
