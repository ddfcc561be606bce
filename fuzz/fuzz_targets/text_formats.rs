//! Answers of models that write their calls as text, after the name of a format or model on a line of its
//! own: the same however they are cut, and no larger than what was written.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use serde_json::json;
use toolwright_core::model::RequestTool;
use toolwright_fuzz::{parameters, text};
use toolwright_textcalls::{Choice, Decoded, Options, Reasoning, TextDecoder, by_name, for_model};

static TOOLS: LazyLock<Arc<[RequestTool]>> = LazyLock::new(|| {
    let parameters = json!({"type": "object", "properties": {
        "arg1": {"type": "integer"}, "location": {"type": "string"}, "code": {"type": "string"},
        "list": {"type": "array", "items": {"type": "number"}}, "any": {}, "nested": {"type": ["object", "null"]},
    }});
    let named = |name: &str| RequestTool {
        name: name.into(),
        parameters: parameters.clone(),
        body_argument: Some("code".into()),
        ..RequestTool::default()
    };
    ["special_function", "python", "get_weather", "a"].map(named).into()
});

fn decode(choice: Choice, options: Options, answer: &[u8], chunk: usize) -> Decoded {
    let mut decoded = Decoded::default();
    let mut decoder = TextDecoder::new(choice, options);
    answer.chunks(chunk).for_each(|piece| decoder.feed(piece, &mut |event| decoded.add(event)));
    decoder.finish(&mut |event| decoded.add(event));
    decoded
}

fuzz_target!(|data: &[u8]| {
    let ([chunk, flags], written) = parameters(data);
    let end = written.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let model = text(&written[..end]);
    let answer = written.get(end + 1..).unwrap_or_default();
    let choice = by_name(&model).or_else(|| for_model(&model)).map_or(Choice::Auto, Choice::Format);
    let prefixes = [None, Some(""), Some("<think>"), Some("\n")];
    let options = Options {
        prefix: prefixes[flags % prefixes.len()].map(str::to_owned),
        reasoning: if flags & 4 == 0 { Reasoning::Split } else { Reasoning::Keep },
        tools: if flags & 8 == 0 { Arc::clone(&TOOLS) } else { Arc::default() },
    };
    let whole = decode(choice, options.clone(), answer, answer.len().max(1));
    let calls: usize = whole.calls.iter().map(|call| call.name.len() + call.arguments.len()).sum();
    let size = whole.text.len() + whole.reasoning.len() + calls;
    assert!(size <= 16 * answer.len() + 1024, "{} bytes become {size}", answer.len());
    assert_eq!(whole, decode(choice, options, answer, 1 + chunk), "{model} in chunks of {}", 1 + chunk);
});
