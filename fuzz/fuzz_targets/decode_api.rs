//! Streams of the model APIs: the same answer at every chunking, its pieces the sum of it, and no larger
//! than what was sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwright_core::model::{ModelError, ModelEvent, ModelResponse};
use toolwright_fuzz::{decoded::assert_bounded, parameters};
use toolwright_models::{Api, Decoder};

fn decode(api: Api, bytes: &[u8], chunk: usize) -> Result<ModelResponse, ModelError> {
    let mut decoder = Decoder::new(api);
    let (mut text, mut calls) = (String::new(), Vec::new());
    let mut sink = |event| match event {
        ModelEvent::Text(piece) => text.push_str(&piece),
        ModelEvent::Call(call) => calls.push(call),
        ModelEvent::Reasoning(_) => {}
    };
    bytes.chunks(chunk).for_each(|piece| decoder.feed(piece, &mut sink));
    decoder.end(&mut sink);
    let answer = decoder.finish()?;
    assert_eq!((&answer.text, &answer.calls), (&text, &calls), "the pieces are not the answer");
    assert_bounded(&answer, bytes.len());
    Ok(answer)
}

fuzz_target!(|data: &[u8]| {
    let ([api, chunk], bytes) = parameters(data);
    let api = Api::ALL[api % Api::ALL.len()];
    match (decode(api, bytes, bytes.len().max(1)), decode(api, bytes, 1 + chunk)) {
        (Ok(whole), Ok(chunked)) => assert_eq!(whole, chunked),
        (Err(whole), Err(chunked)) => {
            assert_eq!((whole.kind, whole.partial), (chunked.kind, chunked.partial));
            assert!(whole.message.len() <= 8 << 10, "{}", whole.message);
        }
        (whole, chunked) => panic!("whole {whole:?}, but in chunks {chunked:?}"),
    }
});
