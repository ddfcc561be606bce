//! The table. A format is a row; its source is the chat template that its model was published with.
//! Nothing outside this folder knows a family or its markers.

mod json;
mod named;
mod other;
mod tagged;

use super::grammar::{Answers, Format, Place, Prompted, Reasoning, Spacing, Values, Yields};

/// All rows. Where several know a marker and the format is not known, the first that makes sense of the
/// text wins. The first row is the default: the form that most open models were trained on.
pub(super) static FORMATS: [Format; 37] = [
    json::HERMES,
    tagged::QWEN3_CODER,
    tagged::QWEN3_5,
    tagged::MIMO_V2,
    tagged::GLM,
    tagged::LING,
    json::LLAMA,
    other::PYTHONIC,
    named::MISTRAL,
    named::DEEPSEEK_R1,
    named::DEEPSEEK_V3_1,
    tagged::DEEPSEEK_V3_2,
    tagged::DEEPSEEK_V4,
    other::HARMONY,
    named::KIMI_K2,
    tagged::KIMI_K3,
    tagged::MINIMAX_M2,
    other::MINIMAX_M3,
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
    named::FUNCTIONARY_V3_1,
    named::FUNCTIONARY_V3_2,
    other::LFM,
    other::GEMMA,
    other::BRACKET,
    other::XML,
];

/// How control tokens begin. A model writes them only for what they mean, whatever stands around them; other
/// markers are ordinary text too.
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

/// What most rows have in common.
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
    answers: Answers::Bare,
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
    prompted: Prompted::Perhaps,
    place: Place::First,
    yields: Yields::Never,
    spacing: Spacing::Trim,
};

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
/// How most families show a result.
const TOOL_RESPONSE: &str = "<tool_response>\n{content}\n</tool_response>";
