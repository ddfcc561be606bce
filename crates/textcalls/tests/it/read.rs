//! The text formats: cases of our own, the published ones where they are at hand, any chunking, prose.

use std::path::PathBuf;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use toolwright_core::json::repair;
use toolwright_core::model::RequestTool;
use toolwright_testkit::test_data;
use toolwright_textcalls::{
    Choice, Decoded, Format, Options, Reasoning, TextDecoder, by_name, decode, for_model, formats,
};

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

fn tools(value: &Value) -> Arc<[RequestTool]> {
    let tools = value.as_array().map(Vec::as_slice).unwrap_or_default();
    tools.iter().map(|tool| serde_json::from_value(tool.clone()).unwrap()).collect()
}

const SIZES: [usize; 8] = [1, 2, 3, 5, 7, 16, 64, usize::MAX];

/// The published cases: the visible half of llama.cpp's chat tests.
#[test]
fn published_cases_are_read_at_any_chunking() {
    let Some(folder) = test_data("tool_calls/text_formats") else { return };
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
    /// Whether a call may turn out to be a thought or text.
    doubt: bool,
    input: String,
    want: Value,
}

/// The cases of the files in `fixtures`: `=== format [options]: title`, the input, `---`, JSON.
fn own_cases() -> Vec<Case> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
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
                    "prefix" => options.prefix = words.next().map(|word| word.replace("\\n", "\n")),
                    "tools" => options.tools = words.next().map(|_| Arc::default()).unwrap(),
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
fn own_cases_are_read_at_any_chunking() {
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
fn cut_answer_adds_no_calls() {
    for case in own_cases().into_iter().filter(|case| !case.doubt) {
        let choice = Choice::Format(case.format);
        let whole = decode(&case.input, choice, case.options.clone()).calls;
        for (at, _) in case.input.char_indices() {
            let cut = decode(&case.input[..at], choice, case.options.clone()).calls;
            // Code has no end but the answer's.
            let code = ["<|python_tag|>", "python\n"].iter().any(|marker| case.input.contains(marker));
            let code = code && cut.iter().all(|call| call.name == "python");
            assert!(code || whole.starts_with(&cut), "{} cut at {at}: {cut:?}", case.title);
        }
    }
}

/// Pieces of all cases, put together at random: whatever comes out, it does not depend on the chunking,
/// and nothing panics.
#[test]
fn chunking_never_changes_what_is_read() {
    let cases = own_cases();
    let tools = cases[0].options.tools.clone();
    let pieces_of = |name: Option<&str>| {
        let mut pieces: Vec<Vec<u8>> = vec![b"\xff".to_vec(), b"\xe2\x82".to_vec(), b"```\n".to_vec(), b"`".to_vec()];
        for case in cases.iter().filter(|case| name.is_none_or(|name| case.format.name() == name)) {
            let mut rest = case.input.as_str();
            while let Some(at) = rest[rest.len().min(1)..].find(['<', '[', '{', '}', ']', '\n', '>']) {
                let (piece, after) = rest.split_at(rest.ceil_char_boundary(at + 1));
                pieces.push(piece.as_bytes().to_vec());
                rest = after;
            }
            pieces.push(rest.as_bytes().to_vec());
        }
        let name = name.map(str::to_owned);
        let text = prop::collection::vec(prop::sample::select(pieces), 0..24).prop_map(|pieces| pieces.concat());
        text.prop_map(move |text| {
            (name.clone().and_then(|name| by_name(&name)).map_or(Choice::Auto, Choice::Format), text)
        })
    };
    let of_formats = formats().iter().map(|format| pieces_of(Some(format.name())).boxed());
    let input = prop::strategy::Union::new(of_formats.chain([pieces_of(None).boxed()]));
    let prefix = prop::option::of(prop::sample::select(vec!["", "<think>", "<|channel|>analysis<|message|>"]));
    let input = (input, prefix, any::<bool>(), 1usize..12);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) };
    let run = |bytes: &[u8], size: usize, choice, options| {
        let mut decoded = Decoded::default();
        let mut decoder = TextDecoder::new(choice, options);
        bytes.chunks(size).for_each(|chunk| decoder.feed(chunk, &mut |event| decoded.add(event)));
        decoder.finish(&mut |event| decoded.add(event));
        decoded
    };
    prop::test_runner::TestRunner::new(config)
        .run(&input, |((choice, bytes), prefix, keep, size)| {
            let reasoning = if keep { Reasoning::Keep } else { Reasoning::Split };
            let options = Options { prefix: prefix.map(str::to_owned), reasoning, tools: tools.clone() };
            let whole = run(&bytes, bytes.len().max(1), choice, options.clone());
            let cut = run(&bytes, size, choice, options);
            let text = String::from_utf8_lossy(&bytes);
            prop_assert_eq!(cut, whole, "{:?} by {}: {:?}", choice, size, text);
            Ok(())
        })
        .unwrap();
}

#[test]
fn models_are_known_by_their_names() {
    for (model, format) in [
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3-coder"),
        ("qwen3.5-4b", "qwen3.5"),
        ("Qwen/Qwen3-8B", "hermes"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "hermes"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama"),
        ("meta-llama/Llama-4-Scout-17B-16E", "pythonic"),
        ("nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "nemotron"),
        ("nvidia/NVIDIA-Nemotron-3-Nano-30B", "qwen3.5"),
        ("deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V3-0324", "deepseek-r1"),
        ("deepseek-ai/DeepSeek-V3.1-Terminus", "deepseek-v3.1"),
        ("deepseek-ai/DeepSeek-V3.2", "deepseek-v3.2"),
        ("deepseek-v4-flash", "deepseek-v4"),
        ("moonshotai/Kimi-K2-Thinking", "kimi-k2"),
        ("Kimi-K3.jinja", "kimi-k3"),
        ("GigaChat3.1-10B-A1.8B.jinja", "gigachat"),
        ("openai/gpt-oss-20b", "harmony"),
        ("zai-org/GLM-4.6", "glm"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2"),
        ("MiniMax-M3", "minimax-m3"),
        ("functionary-small-v3.2", "functionary-v3.2"),
        ("meetkai/functionary-medium-v3.1", "functionary-v3.1"),
        ("LFM2-1.2B", "lfm"),
        ("microsoft/Phi-4-mini-instruct", "granite"),
        ("CohereLabs/c4ai-command-a-03-2025", "command-a"),
        ("c4ai-command-r-plus", "command-r"),
        ("ibm-granite/granite-4.0-h-small", "hermes"),
        ("inclusionAI/Ling-3.0-flash", "ling"),
        ("stepfun-ai/Step-3.5-Flash", "qwen3.5"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek-v3.1"),
        ("ServiceNow-AI/Apriel-Nemotron-15b-Thinker", "apriel"),
        ("NousResearch/DeepHermes-3-Llama-3-8B-Preview", "hermes"),
        ("MiniMaxAI/MiniMax-M1-80k", "minimax-m1"),
        ("XiaomiMiMo/MiMo-V2-Flash", "mimo-v2"),
        ("RekaAI/reka-flash-3", "reka-flash-3"),
        ("openbmb/MiniCPM5-1B", "minicpm"),
    ] {
        assert_eq!(for_model(model).map(Format::name), Some(format), "{model}");
    }
    for model in ["a-model-of-ours", "stepfun-ai/step3", "openbmb/MiniCPM3-4B"] {
        assert!(for_model(model).is_none(), "{model}");
    }
    assert!(formats().iter().all(|format| by_name(format.name()).is_some_and(|found| found.name() == format.name())));
}

/// What a batch in a text is called with when its text breaks off in an item: the check is to find that out.
#[test]
fn batch_cut_in_an_item_stays_cut() {
    let whole = r#"{"items": [{"tool": "a", "parameters": {"n": 1}}, {"tool": "b", "parameters": {"n": 2}}]}"#;
    let shown = json!([{"name": "agent__batch", "description": "", "parameters": {
        "type": "object", "properties": {"items": {"type": "array", "items": {"type": "object"}}},
    }}]);
    let mut called = [0; 5];
    for end in whole.find("}, {").unwrap() + 4..whole.len() - 2 {
        let (json, list) = (&whole[..end], &whole[r#"{"items": "#.len()..end]);
        let cases = [
            ("hermes", format!("<tool_call>{{\"name\": \"agent__batch\", \"arguments\": {json}</tool_call>")),
            (
                "hermes",
                format!("<tool_call>{{\"function\": {{\"name\": \"agent__batch\", \"arguments\": {json}</tool_call>"),
            ),
            ("hermes", format!("<tool_call>[{{\"name\": \"agent__batch\", \"arguments\": {json}</tool_call>")),
            (
                "kimi-k2",
                format!(
                    "<|tool_calls_section_begin|><|tool_call_begin|>functions.agent__batch:0<|tool_call_argument_begin|>\
                 {json}<|tool_call_end|><|tool_calls_section_end|>"
                ),
            ),
            (
                "qwen3-coder",
                format!(
                    "<tool_call>\n<function=agent__batch>\n<parameter=items>\n{list}\n</parameter>\n</function>\n</tool_call>"
                ),
            ),
        ];
        for (called, (format, text)) in called.iter_mut().zip(cases) {
            let options = Options { tools: tools(&shown), ..Options::default() };
            let decoded = decode(&text, Choice::Format(by_name(format).unwrap()), options);
            // Where an open text has swallowed the end, there is no call at all.
            for call in decoded.calls {
                *called += 1;
                let read = repair(&call.arguments).unwrap();
                let in_the_item = read.cut.is_some_and(|cut| cut.starts_with("/items/1"));
                assert!(in_the_item || read.value["items"] == json!(list), "{text}: {}", call.arguments);
            }
        }
    }
    assert!(called.iter().all(|called| *called > 10), "{called:?}");
}

#[test]
fn white_space_before_unmarked_calls_is_bounded() {
    let llama = by_name("llama").unwrap();
    for (blanks, calls) in [(1000, 1), (1025, 0)] {
        let answer = format!("{}{{\"name\": \"a\", \"parameters\": {{}}}}", "\n".repeat(blanks));
        for size in [1, 7, usize::MAX] {
            let read = in_pieces(&answer, size, Choice::Format(llama), Options::default());
            assert_eq!(read.calls.len(), calls, "{blanks} in chunks of {size}");
        }
    }
}
