//! The table of formats. Formats of JSON are in `json.rs` (`HERMES` is that of Qwen 2.5, Qwen 3 and QwQ), those of tags in
//! `tagged.rs` (Qwen3-Coder, Qwen 3.5). The source of each row is its model's published chat template. Nothing outside this
//! folder knows a model family or its markers.

pub(crate) mod format;
mod json;
mod tagged;

use self::format::{
    EndsReasoning, Format, Id, Json, JsonResponseForm, Keys, Named, Place, PromptOpening, Reasoning, Shape, Spacing,
    Values,
};

/// All rows. If the format is unknown and several rows share a marker, the first that can read the text wins. The first
/// row is the default: the format that most open models were trained on.
pub(super) static FORMATS: [Format; 37] = [
    json::HERMES,
    tagged::QWEN3_CODER,
    tagged::QWEN3_5,
    tagged::MIMO_V2,
    tagged::GLM,
    tagged::LING,
    json::LLAMA,
    tagged::PYTHONIC,
    json::MISTRAL,
    json::DEEPSEEK_R1,
    json::DEEPSEEK_V3_1,
    tagged::DEEPSEEK_V3_2,
    tagged::DEEPSEEK_V4,
    tagged::HARMONY,
    json::KIMI_K2,
    tagged::KIMI_K3,
    tagged::MINIMAX_M2,
    tagged::MINIMAX_M3,
    tagged::SEED_OSS,
    tagged::MINICPM,
    tagged::MUSE,
    json::COMMAND_A,
    json::COMMAND_R,
    json::GRANITE,
    json::NEMOTRON,
    json::APRIEL,
    json::MINIMAX_M1,
    json::REKA_FLASH,
    json::APERTUS,
    json::GIGACHAT,
    json::FIREFUNCTION,
    json::FUNCTIONARY_V3_1,
    json::FUNCTIONARY_V3_2,
    tagged::LFM,
    tagged::GEMMA,
    tagged::BRACKET,
    tagged::XML,
];

/// The beginnings of control tokens. A model writes them only for their meaning; other markers may also be ordinary text.
const CONTROL: [&str; 13] = [
    "<|",
    "<｜",
    "</｜",
    "[TOOL_CALLS]",
    "[THINK]",
    "[/THINK]",
    "]<]minimax[>[",
    "<start_function_call>",
    "<channel|>",
    "<turn|>",
    "<end_of_turn>",
    "<SPECIAL_",
    "[e~[",
];

/// Whether `marker` is a control token.
pub(super) fn is_control(marker: &str) -> bool {
    CONTROL.iter().any(|start| marker.starts_with(start))
}

/// The defaults of a row.
const ROW: Format = Format {
    name: "",
    models: &[],
    reasoning: None,
    channels: None,
    calls: &[],
    preface: &[],
    turn: &[],
    noise: &[],
    stops: &[],
    spacing: Spacing::Trim,
    answers: JsonResponseForm::Bare,
    result: "{content}",
    results: ("", ""),
    hint: "",
    values: Values::Any,
};

/// Reasoning in `<think>`, which some prompts open.
const THINK: Reasoning = Reasoning {
    open: &["<think>"],
    close: &["</think>"],
    before: &[],
    prompted: PromptOpening::Perhaps,
    place: Place::First,
    yields: EndsReasoning::Never,
    spacing: Spacing::Trim,
};

/// An object with `name` and `arguments`, which no marker ends.
const JSON: Json = Json {
    open: &[],
    close: None,
    keys: Keys::Named { name: "name", arguments: "arguments", id: None },
    shape: Shape::Object,
};

/// A name without an id, and then JSON that no marker ends.
const NAMED: Named = Named { open: "", skip: "", name_end: &[], id: Id::None, fence: None, close: None };

/// The end of a turn in ChatML.
const CHATML_END: &[&str] = &["<|im_end|>", "<|endoftext|>"];
/// The header of a turn in ChatML.
const CHATML_TURN: &[&str] = &["<|im_start|>assistant"];
/// The header of a turn of Llama 3.
const LLAMA_TURN: &[&str] = &["<|start_header_id|>assistant<|end_header_id|>"];
/// The header of a turn of DeepSeek.
const DEEPSEEK_TURN: &[&str] = &["<｜Assistant｜>"];
/// The end of a turn of Llama 3.
const LLAMA_END: &[&str] = &["<|eot_id|>", "<|eom_id|>"];
/// The result format of most families.
const TOOL_RESPONSE: &str = "<tool_response>\n{content}\n</tool_response>";

/// Returns the format of the model called `name`, if its family is known. Case, punctuation, folders, vendors
/// and file extensions are ignored: `Qwen/Qwen3-Coder-30B` and `qwen3_coder.jinja` are the same family.
#[must_use]
pub fn for_model(name: &str) -> Option<&'static Format> {
    let plain = plain(name);
    let matches = FORMATS.iter().flat_map(|format| format.models.iter().map(move |pattern| (format, *pattern)));
    let best = matches.filter(|(_, pattern)| fits(&plain, pattern)).max_by_key(|(_, pattern)| pattern.len());
    best.map(|(format, _)| format)
}

/// Letters and digits, with a dash for anything in between.
fn plain(name: &str) -> String {
    let words = name.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(str::to_ascii_lowercase).collect();
    format!("-{}-", words.join("-"))
}

/// Whether the parts of `pattern`, separated by stars, occur in `name` in order, each at the start of
/// a word.
fn fits(name: &str, pattern: &str) -> bool {
    let mut rest = name;
    pattern.split('*').all(|part| match rest.find(&format!("-{part}")) {
        Some(at) => {
            rest = &rest[at + 1 + part.len()..];
            true
        }
        None => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_words_in_their_order() {
        let check =
            |name: &str, pattern: &str, expect| assert_eq!(fits(&plain(name), pattern), expect, "{name} {pattern}");
        check("Vendor/Some_Model-3.5.gguf", "some-model-3-5", true);
        check("awesome-model", "some-model", false);
        check("family-medium-v3.1.jinja", "family*v3-1", true);
        check("v3.1-family", "family*v3-1", false);
    }
}
