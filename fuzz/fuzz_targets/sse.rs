//! Server-sent events: the same events, last id and delay at every chunking, and none over the bound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwright_core::sse::{Event, Events, TooLong};
use toolwright_fuzz::parameters;

type Read = (Vec<(Vec<u8>, Vec<u8>, bool)>, Option<Vec<u8>>, Option<std::time::Duration>);

fn read(max: usize, bytes: &[u8], chunk: usize) -> Result<Read, TooLong> {
    let (mut events, mut got) = (Events::new(max), Vec::new());
    let mut each = |event: Event<'_>| {
        assert!(event.data.len() <= max, "an event over the bound");
        got.push((event.kind.to_vec(), event.data.to_vec(), event.is_cut));
        Ok(())
    };
    bytes.chunks(chunk).try_for_each(|piece| events.feed(piece, &mut each))?;
    events.finish(&mut each)?;
    Ok((got, events.last_id().map(<[u8]>::to_vec), events.retry()))
}

fuzz_target!(|data: &[u8]| {
    let ([max, chunk], bytes) = parameters(data);
    // A comment past the bound is refused only where it comes in pieces.
    if let (Ok(whole), Ok(chunked)) = (read(max, bytes, bytes.len().max(1)), read(max, bytes, 1 + chunk)) {
        assert_eq!(whole, chunked);
    }
});
