//! The text formats: cases of our own, the published ones where they are at hand, any chunking, prose.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_core::model::ShownTool;
use toolwright_models::text::{Choice, Decoded, Options, TextDecoder, decode, for_model};

/// Decodes in pieces of `size` bytes.
pub(crate) fn in_pieces(text: &str, size: usize, choice: Choice, options: Options) -> Decoded {
    let mut decoded = Decoded::default();
    let mut decoder = TextDecoder::new(choice, options);
    for chunk in text.as_bytes().chunks(size) {
        decoder.feed(chunk, &mut |event| decoded.add(event));
    }
    decoder.finish(&mut |event| decoded.add(event));
    decoded
}

fn as_json(decoded: &Decoded) -> Value {
    let calls: Vec<Value> = decoded
        .calls
        .iter()
        .map(|call| {
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!(call.arguments));
            json!({"name": call.name, "arguments": arguments, "id": call.id})
        })
        .collect();
    json!({"text": decoded.text, "reasoning": decoded.reasoning, "calls": calls})
}

fn tools(value: &Value) -> Arc<[ShownTool]> {
    let tools = value.as_array().map(Vec::as_slice).unwrap_or_default();
    tools.iter().map(|tool| serde_json::from_value(tool.clone()).unwrap()).collect()
}

const SIZES: [usize; 8] = [1, 2, 3, 5, 7, 16, 64, usize::MAX];

/// The published cases: the visible half of llama.cpp's chat tests.
#[test]
fn published_cases_are_read_at_any_chunking() {
    let Some(folder) = std::env::var_os("TOOLWRIGHT_TEST_DATA").map(PathBuf::from) else { return };
    let folder = folder.join("tool_calls/text_formats");
    let known: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("tools.json")).unwrap()).unwrap();
    let (mut total, mut passed) = (0, 0);
    for line in std::fs::read_to_string(folder.join("cases.jsonl")).unwrap().lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        if case["fair"] != json!(true) {
            continue;
        }
        total += 1;
        let names = case["tools"].as_array().unwrap();
        let shown: Vec<Value> = names.iter().map(|name| known[name.as_str().unwrap()].clone()).collect();
        let format = for_model(case["template"].as_str().unwrap()).expect("a known model");
        let options = Options { tools: tools(&json!(shown)), ..Options::default() };
        let input = case["input"].as_str().unwrap();
        let expected = &case["expected"];
        let field = |names: [&str; 2]| names.iter().find_map(|name| expected[*name].as_str()).unwrap_or_default();
        let calls: Vec<Value> = expected["tool_calls"]
            .as_array()
            .unwrap()
            .iter()
            .map(|call| {
                let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
                json!({"name": call["name"], "arguments": arguments, "id": call["id"]})
            })
            .collect();
        let want = json!({
            "text": field(["text", "content"]),
            "reasoning": field(["reasoning", "reasoning_content"]),
            "calls": calls,
        });
        let whole = decode(input, Choice::Format(format), options.clone());
        for size in SIZES {
            let pieces = in_pieces(input, size, Choice::Format(format), options.clone());
            assert_eq!(pieces, whole, "{} by {size}", case["id"]);
        }
        let got = as_json(&whole);
        if got == want {
            passed += 1;
        } else {
            println!(
                "{} {} as {}\n  input {input:?}\n  want {want}\n  got  {got}",
                case["id"],
                case["template"],
                format.name()
            );
        }
    }
    assert!(passed * 100 >= total * 95, "{passed} of {total} cases");
    println!("{passed} of {total} cases");
}
