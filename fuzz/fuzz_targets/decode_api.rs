//! Streams of the model APIs: the same answer at every chunking, its pieces the sum of it, and no larger
//! than what was sent.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwright_core::model::{ModelError, ModelEvent, ModelResponse};
use toolwright_fuzz::{decoded::assert_bounded, parameters};
use toolwright_models::{Api, Decoder};

fn decode(mut decoder: Decoder, bytes: &[u8], chunk: usize) -> Result<ModelResponse, ModelError> {
    let (mut text, mut calls) = (String::new(), Vec::new());
    let mut sink = |event| match event {
        ModelEvent::Text(piece) => text.push_str(&piece),
        ModelEvent::Call(call) => calls.push(call),
        ModelEvent::Reasoning(_) | ModelEvent::Opaque(_) => {}
    };
    bytes.chunks(chunk).for_each(|piece| decoder.feed(piece, &mut sink));
    decoder.end(&mut sink);
    let outcome = decoder.finish();
    if let Some(answer) = outcome.as_ref().map_or_else(|error| error.partial.as_deref(), Some) {
        assert_eq!(answer.text, text, "the pieces are not the answer");
        assert!(answer.calls.starts_with(&calls), "{calls:?} went out, {:?} are kept", answer.calls);
        assert!(outcome.is_err() || answer.calls.len() == calls.len(), "{:?}", answer.calls);
        assert_bounded(answer, bytes.len());
    }
    outcome
}

fuzz_target!(|data: &[u8]| {
    let ([choice, chunk], bytes) = parameters(data);
    let api = Api::ALL[choice % Api::ALL.len()];
    let decoder = if choice < 128 { Decoder::new } else { Decoder::detecting };
    match (decode(decoder(api), bytes, bytes.len().max(1)), decode(decoder(api), bytes, 1 + chunk)) {
        (Ok(whole), Ok(chunked)) => assert_eq!(whole, chunked),
        (Err(whole), Err(chunked)) => {
            assert_eq!((whole.kind, whole.partial), (chunked.kind, chunked.partial));
            assert!(whole.message.len() <= 8 << 10, "{}", whole.message);
        }
        (whole, chunked) => panic!("whole {whole:?}, but in chunks {chunked:?}"),
    }
});
