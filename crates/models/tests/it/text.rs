//! The text formats: cases of our own, the published ones where they are at hand, any chunking, prose.

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use toolwright_core::model::ShownTool;
use toolwright_models::text::{Choice, Decoded, Format, Options, Reasoning, TextDecoder, by_name, decode, for_model};

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

/// A case of our own: what the header says, the input, the expectation.
struct Case {
    title: String,
    format: &'static Format,
    options: Options,
    /// Whether the text alone says the format.
    auto: bool,
    /// Whether a call may turn out to be a thought.
    doubt: bool,
    input: String,
    want: Value,
}

/// The cases of the files in `fixtures/text`: `=== format [options]: title`, the input, `---`, JSON.
fn own_cases() -> Vec<Case> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/text");
    let shown: Value = serde_json::from_str(&std::fs::read_to_string(folder.join("tools.json")).unwrap()).unwrap();
    let shown = tools(&shown);
    let mut cases = Vec::new();
    for file in ["json.txt", "named.txt", "tagged.txt", "other.txt"] {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        for case in text.split("=== ").skip(1) {
            let (header, rest) = case.split_once('\n').unwrap();
            let (input, want) = rest.split_once("\n---\n").unwrap();
            let (words, title) = header.split_once(": ").unwrap();
            let mut words = words.split(' ');
            let format = by_name(words.next().unwrap()).expect(header);
            let mut options = Options { tools: shown.clone(), ..Options::default() };
            let (mut auto, mut doubt) = (true, false);
            while let Some(word) = words.next() {
                match word {
                    "prefix" => options.prefix = words.next().map(str::to_owned),
                    "keep" => options.reasoning = Reasoning::Keep,
                    "noauto" => auto = false,
                    "doubt" => doubt = true,
                    other => assert_eq!(other, "", "an option of {header}"),
                }
            }
            let want: Value = serde_json::from_str(want).expect(header);
            let mut full = json!({"text": "", "reasoning": "", "calls": []});
            for (key, value) in want.as_object().unwrap() {
                full[key] = value.clone();
            }
            for call in full["calls"].as_array_mut().unwrap() {
                call.as_object_mut().unwrap().entry("id").or_insert(json!(""));
            }
            let title = format!("{}: {title}", format.name());
            cases.push(Case { title, format, options, auto, doubt, input: input.to_owned(), want: full });
        }
    }
    assert!(cases.len() > 70);
    cases
}

#[test]
fn our_cases_are_read_at_any_chunking_and_by_the_text_alone() {
    let mut wrong = Vec::new();
    for case in own_cases() {
        for choice in [Choice::Format(case.format), Choice::Auto] {
            if matches!(choice, Choice::Auto) && !case.auto {
                continue;
            }
            let whole = decode(&case.input, choice, case.options.clone());
            let got = as_json(&whole);
            if got != case.want {
                wrong.push(format!("{} ({choice:?})\n  want {}\n  got  {got}", case.title, case.want));
            }
            for size in SIZES {
                assert_eq!(
                    in_pieces(&case.input, size, choice, case.options.clone()),
                    whole,
                    "{} by {size}",
                    case.title
                );
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_cut_answer_has_no_call_that_the_whole_has_not() {
    for case in own_cases().into_iter().filter(|case| !case.doubt) {
        let choice = Choice::Format(case.format);
        let whole = decode(&case.input, choice, case.options.clone()).calls;
        for (at, _) in case.input.char_indices() {
            let cut = decode(&case.input[..at], choice, case.options.clone()).calls;
            // Code has no end but the answer's.
            let code = case.input.contains("<|python_tag|>") && cut.iter().all(|call| call.name == "python");
            assert!(code || whole.starts_with(&cut), "{} cut at {at}: {cut:?}", case.title);
        }
    }
}
