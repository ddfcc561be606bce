//! Formats whose calls are a name, and then JSON.

use super::json::{CODE, FUNCTION_TAG, PYTHON};
use super::{CHATML_END, DEEPSEEK_TURN, LLAMA_END, LLAMA_TURN, ROW, THINK};
use crate::format::{Answers, Call, Form, Format, Id, Json, Keys, Named, Prompted, Raw, Reasoning, Shape, Yields};

/// Mistral: a name and JSON (from Small 3.2, Devstral and Magistral on), or an array of calls (before).
pub(super) const MISTRAL: Format = Format {
    name: "mistral",
    models: &["mistral", "ministral", "magistral", "devstral", "codestral", "pixtral", "mixtral"],
    turn: &["[/INST]"],
    reasoning: Some(&Reasoning { open: &["[THINK]"], close: &["[/THINK]"], prompted: Prompted::Never, ..THINK }),
    calls: &[
        Call::plain(Form::Named(Named {
            open: "[TOOL_CALLS]",
            skip: "",
            name_end: &["[ARGS]", "{"],
            id: Id::After("[CALL_ID]"),
            fence: None,
            close: None,
        })),
        Call::plain(Form::Json(Json {
            open: &["[TOOL_CALLS]"],
            close: None,
            keys: Keys::Named { name: "name", arguments: "arguments", id: Some("id") },
            shape: Shape::Array,
        })),
    ],
    stops: &["</s>"],
    result: "[TOOL_RESULTS]{content}[/TOOL_RESULTS]",
    answers: Answers::FencedJson,
    ..ROW
};

const DEEPSEEK_SECTION: (&str, &str) = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>");

/// DeepSeek R1 and V3: JSON in a block of code. The distilled models were given the Hermes form too.
pub(super) const DEEPSEEK_R1: Format = Format {
    name: "deepseek-r1",
    models: &["deepseek-r1", "deepseek-v3", "r1-distill", "deepseek"],
    reasoning: Some(&THINK),
    calls: &[
        Call::within(
            DEEPSEEK_SECTION.0,
            DEEPSEEK_SECTION.1,
            Form::Named(Named {
                open: "<｜tool▁call▁begin｜>",
                skip: "function<｜tool▁sep｜>",
                name_end: &["\n", "<｜tool▁sep｜>"],
                id: Id::None,
                fence: Some(("```json", "```")),
                close: Some("<｜tool▁call▁end｜>"),
            }),
        ),
        Call::plain(Form::Json(Json {
            open: &["<tool_call>"],
            close: Some("</tool_call>"),
            keys: Keys::Named { name: "name", arguments: "arguments", id: None },
            shape: Shape::Object,
        })),
    ],
    turn: DEEPSEEK_TURN,
    stops: &["<｜end▁of▁sentence｜>"],
    result: "<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>",
    results: ("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>"),
    ..ROW
};

/// DeepSeek V3.1.
pub(super) const DEEPSEEK_V3_1: Format = Format {
    name: "deepseek-v3.1",
    models: &["deepseek-v3-1", "deepseek-v3-2-exp"],
    reasoning: Some(&THINK),
    calls: &[Call::within(
        DEEPSEEK_SECTION.0,
        DEEPSEEK_SECTION.1,
        Form::Named(Named {
            open: "<｜tool▁call▁begin｜>",
            skip: "",
            name_end: &["<｜tool▁sep｜>"],
            id: Id::None,
            fence: None,
            close: Some("<｜tool▁call▁end｜>"),
        }),
    )],
    turn: DEEPSEEK_TURN,
    stops: &["<｜end▁of▁sentence｜>"],
    result: "<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>",
    ..ROW
};

/// Moonshot Kimi K2. It is known to call before it has closed its reasoning.
pub(super) const KIMI_K2: Format = Format {
    name: "kimi-k2",
    models: &["kimi", "kimi-k2"],
    reasoning: Some(&Reasoning { prompted: Prompted::Never, yields: Yields::ToCalls, ..THINK }),
    calls: &[Call::within(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        Form::Named(Named {
            open: "<|tool_call_begin|>",
            skip: "",
            name_end: &["<|tool_call_argument_begin|>"],
            id: Id::AroundName("functions."),
            fence: None,
            close: Some("<|tool_call_end|>"),
        }),
    )],
    turn: &["<|im_assistant|>assistant<|im_middle|>"],
    stops: CHATML_END,
    result: "## Return of {id}\n{content}",
    ..ROW
};

/// Functionary 3.1, whose prompt is Llama 3.1's.
pub(super) const FUNCTIONARY_V3_1: Format = Format {
    name: "functionary-v3.1",
    models: &["functionary*v3-1"],
    calls: &[FUNCTION_TAG, PYTHON],
    turn: LLAMA_TURN,
    stops: LLAMA_END,
    ..ROW
};

/// Functionary 3.2: every piece has a recipient, text has `all`. The prompt opens the first one.
pub(super) const FUNCTIONARY_V3_2: Format = Format {
    name: "functionary-v3.2",
    models: &["functionary"],
    calls: &[
        Call::plain(Form::Named(Named {
            open: ">>>",
            skip: "",
            name_end: &["\n"],
            id: Id::None,
            fence: None,
            close: None,
        })),
        Call::plain(Form::Named(Named {
            open: "",
            skip: "",
            name_end: &["\n"],
            id: Id::None,
            fence: None,
            close: None,
        })),
        Call::plain(Form::Raw(Raw { open: ">>>", name_end: Some("\n"), until: Some("\n>>>"), ..CODE })),
        Call::plain(Form::Raw(Raw { open: "", name_end: Some("\n"), until: Some("\n>>>"), ..CODE })),
    ],
    preface: &["all\n"],
    noise: &[">>>all\n"],
    turn: &["<|start_header_id|>assistant<|end_header_id|>

>>>"],
    stops: LLAMA_END,
    ..ROW
};
