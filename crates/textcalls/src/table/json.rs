//! Formats with JSON calls: an object with the name, or a name followed by the arguments.

use super::format::{
    Call, EndsReasoning, Form, Format, Id, Json, JsonResponseForm, Keys, Named, PromptOpening, Pythonic, Raw,
    Reasoning, Shape, Values,
};
use super::tagged::GIGACHAT_MARKUP;
use super::{CHATML_END, CHATML_TURN, DEEPSEEK_TURN, JSON, LLAMA_END, LLAMA_TURN, NAMED, ROW, THINK, TOOL_RESPONSE};

/// Nous Hermes 2 and 3, and followers: Qwen 2.5 and 3, QwQ, Granite 4, Reka Edge.
pub(super) const HERMES: Format = Format {
    name: "hermes",
    models: &[
        "hermes",
        "hermes-2",
        "hermes-3",
        "hermes-4",
        "deephermes",
        "llama-3-groq",
        "qwen2",
        "qwen-2",
        "qwen3",
        "qwen-3",
        "qwq",
        "reka",
        "granite-4",
        "mimo",
        "exaone",
        "bielik",
        "ling",
        "ring",
        "smollm3",
    ],
    reasoning: Some(&THINK),
    calls: &[Call::plain(Form::Json(Json { open: &["<tool_call>"], close: Some("</tool_call>"), ..JSON }))],
    turn: CHATML_TURN,
    stops: CHATML_END,
    result: TOOL_RESPONSE,
    ..ROW
};

/// Llama 3, by its own template: JSON with `parameters`, bare or after a token; code after that
/// token; built-in tools in Python syntax.
pub(super) const LLAMA: Format = Format {
    name: "llama",
    models: &["llama-3", "llama3"],
    calls: &[
        Call::plain(Form::Json(Json {
            open: &[],
            keys: Keys::Named { name: "name", arguments: "parameters", id: None },
            ..JSON
        })),
        Call::plain(Form::Json(Json {
            open: &["<|python_tag|>"],
            keys: Keys::Named { name: "name", arguments: "parameters", id: None },
            ..JSON
        })),
        Call::plain(Form::Pythonic(Pythonic { open: "<|python_tag|>", close: None, list: false, suffix: ".call" })),
        Call::plain(Form::Pythonic(Pythonic { open: "", close: None, list: true, suffix: "" })),
        FUNCTION_TAG,
        PYTHON,
    ],
    turn: LLAMA_TURN,
    stops: LLAMA_END,
    hint: "A call is the whole answer: write no other text with it, and several calls one after another.",
    ..ROW
};

/// `<function=name>{…}</function>`, which Llama 3.1 and Functionary share.
const FUNCTION_TAG: Call =
    Call::plain(Form::Named(Named { open: "<function=", name_end: &[">"], close: Some("</function>"), ..NAMED }));

/// Code for an interpreter.
const CODE: Raw = Raw {
    open: "<|python_tag|>",
    tools: &["python", "ipython", "code_interpreter"],
    argument: "code",
    name_end: None,
    until: None,
};

/// Code after a token.
const PYTHON: Call = Call::plain(Form::Raw(CODE));

/// Cohere Command R7B, Command A and Cohere2 MoE: everything is between tokens.
pub(super) const COMMAND_A: Format = Format {
    name: "command-a",
    models: &["command-r7b", "command-a", "cohere2", "north"],
    turn: &["<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"],
    reasoning: Some(&Reasoning {
        open: &["<|START_THINKING|>"],
        close: &["<|END_THINKING|>"],
        before: &["<|START_RESPONSE|>", "<|START_TEXT|>", "<|START_ACTION|>"],
        ..THINK
    }),
    calls: &[Call::plain(Form::Json(Json {
        open: &["<|START_ACTION|>"],
        close: Some("<|END_ACTION|>"),
        keys: Keys::Named { name: "tool_name", arguments: "parameters", id: Some("tool_call_id") },
        shape: Shape::Array,
    }))],
    noise: &[
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ],
    result: "<|START_TOOL_RESULT|>[{\"tool_call_id\": \"{id}\", \"results\": {\"0\": {json}}}]<|END_TOOL_RESULT|>",
    ..ROW
};

/// Cohere Command R and R+: an action in a block of code.
pub(super) const COMMAND_R: Format = Format {
    name: "command-r",
    models: &["command-r"],
    turn: &["<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>"],
    calls: &[Call::plain(Form::Json(Json {
        open: &["Action: ```json", "Action:```json", "Action:\n```json"],
        close: Some("```"),
        keys: Keys::Named { name: "tool_name", arguments: "parameters", id: None },
        shape: Shape::Array,
    }))],
    stops: &["<|END_OF_TURN_TOKEN|>"],
    result: "<results>\n{content}\n</results>",
    ..ROW
};

/// IBM Granite 3.
pub(super) const GRANITE: Format = Format {
    name: "granite",
    models: &["granite", "granite-3", "phi-4"],
    turn: &["<|start_of_role|>assistant<|end_of_role|>", "<|assistant|>"],
    reasoning: Some(&Reasoning {
        close: &["</think>"],
        before: &["<response>"],
        prompted: PromptOpening::Never,
        ..THINK
    }),
    calls: &[Call::plain(Form::Json(Json { open: &["<|tool_call|>", "<tool_call>"], shape: Shape::Array, ..JSON }))],
    noise: &["<response>", "</response>", "<|/tool_call|>"],
    stops: &["<|end_of_text|>", "<|end|>"],
    ..ROW
};

/// NVIDIA Nemotron Nano 2 and Super.
pub(super) const NEMOTRON: Format = Format {
    name: "nemotron",
    models: &["nemotron", "llama-3*nemotron"],
    turn: &["<SPECIAL_11>Assistant", "<|start_header_id|>assistant<|end_header_id|>"],
    reasoning: Some(&THINK),
    calls: &[Call::plain(Form::Json(Json {
        open: &["<TOOLCALL>"],
        close: Some("</TOOLCALL>"),
        shape: Shape::Array,
        ..JSON
    }))],
    stops: &["<SPECIAL_12>", "<|eot_id|>"],
    result: "<TOOL_RESPONSE>[{json}]</TOOL_RESPONSE>",
    ..ROW
};

/// ServiceNow Apriel 1.5 and 1.6, and Jamba.
pub(super) const APRIEL: Format = Format {
    name: "apriel",
    models: &["apriel", "apriel*nemotron", "jamba"],
    turn: &["<|assistant|>", "<|begin_assistant|>"],
    reasoning: Some(&Reasoning {
        open: &["Here are my reasoning steps:\n", "<thinking>"],
        close: &["[BEGIN FINAL RESPONSE]", "</thinking>"],
        ..THINK
    }),
    calls: &[Call::plain(Form::Json(Json {
        open: &["<tool_calls>"],
        close: Some("</tool_calls>"),
        keys: Keys::Named { name: "name", arguments: "arguments", id: Some("id") },
        shape: Shape::Array,
    }))],
    noise: &["[END FINAL RESPONSE]"],
    stops: &["<|end|>"],
    ..ROW
};

/// MiniMax M1: a line of JSON for each call.
pub(super) const MINIMAX_M1: Format = Format {
    name: "minimax-m1",
    models: &["minimax-m1", "minimax-text"],
    reasoning: Some(&THINK),
    calls: &[Call::plain(Form::Json(Json { open: &["<tool_calls>"], close: Some("</tool_calls>"), ..JSON }))],
    turn: &["<beginning_of_sentence>ai name=MiniMax AI"],
    stops: &["<end_of_sentence>"],
    ..ROW
};

/// Reka Flash 3, with another name for reasoning.
pub(super) const REKA_FLASH: Format = Format {
    name: "reka-flash-3",
    models: &["reka-flash-3"],
    reasoning: Some(&Reasoning { open: &["<reasoning>"], close: &["</reasoning>"], ..THINK }),
    turn: &["assistant:"],
    stops: &["<sep>", "<|endoftext|>"],
    ..HERMES
};

/// Swiss AI Apertus: the name is the key.
pub(super) const APERTUS: Format = Format {
    name: "apertus",
    models: &["apertus"],
    turn: &["<|assistant_start|>"],
    reasoning: Some(&Reasoning {
        open: &["<|inner_prefix|>"],
        close: &["<|inner_suffix|>"],
        prompted: PromptOpening::Never,
        ..THINK
    }),
    calls: &[Call::plain(Form::Json(Json {
        open: &["<|tools_prefix|>"],
        close: Some("<|tools_suffix|>"),
        keys: Keys::NameIsKey,
        shape: Shape::Array,
    }))],
    stops: &["<|assistant_end|>"],
    result: "[{json}]",
    ..ROW
};

/// Sber GigaChat 3, 3.1 (a token before the JSON) and 3.5 (tags).
pub(super) const GIGACHAT: Format = Format {
    name: "gigachat",
    models: &["gigachat"],
    turn: &["assistant<|role_sep|>"],
    reasoning: Some(&Reasoning { prompted: PromptOpening::Never, ..THINK }),
    calls: &[
        Call::plain(Form::Json(Json {
            open: &[
                "<|message_sep|>\n\nfunction call<|role_sep|>\n",
                "function call<|role_sep|>\n",
                "<|function_call|>",
            ],
            ..JSON
        })),
        GIGACHAT_MARKUP,
    ],
    preface: &["assistant<|role_sep|>\n"],
    noise: &["<|message_sep|>"],
    stops: &["</s>"],
    ..ROW
};

/// Fireworks FireFunction 2.
pub(super) const FIREFUNCTION: Format = Format {
    name: "firefunction",
    models: &["firefunction"],
    calls: &[Call::plain(Form::Json(Json { open: &["functools"], shape: Shape::Array, ..JSON }))],
    turn: LLAMA_TURN,
    stops: LLAMA_END,
    values: Values::Any,
    ..ROW
};

/// Mistral: a name and JSON (from Small 3.2, Devstral and Magistral on), or an array of calls (before).
pub(super) const MISTRAL: Format = Format {
    name: "mistral",
    models: &["mistral", "ministral", "magistral", "devstral", "codestral", "pixtral", "mixtral"],
    turn: &["[/INST]"],
    reasoning: Some(&Reasoning { open: &["[THINK]"], close: &["[/THINK]"], prompted: PromptOpening::Never, ..THINK }),
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
            keys: Keys::Named { name: "name", arguments: "arguments", id: Some("id") },
            shape: Shape::Array,
            ..JSON
        })),
    ],
    stops: &["</s>"],
    result: "[TOOL_RESULTS]{content}[/TOOL_RESULTS]",
    answers: JsonResponseForm::FencedJson,
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
                fence: Some(("```json", "```")),
                close: Some("<｜tool▁call▁end｜>"),
                ..NAMED
            }),
        ),
        Call::plain(Form::Json(Json { open: &["<tool_call>"], close: Some("</tool_call>"), ..JSON })),
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
            name_end: &["<｜tool▁sep｜>"],
            close: Some("<｜tool▁call▁end｜>"),
            ..NAMED
        }),
    )],
    turn: DEEPSEEK_TURN,
    stops: &["<｜end▁of▁sentence｜>"],
    result: "<｜tool▁output▁begin｜>{content}<｜tool▁output▁end｜>",
    ..ROW
};

/// A call of Kimi K2.
const KIMI_CALL: Form = Form::Named(Named {
    open: "<|tool_call_begin|>",
    name_end: &["<|tool_call_argument_begin|>"],
    id: Id::AroundName("functions."),
    close: Some("<|tool_call_end|>"),
    ..NAMED
});

/// Moonshot Kimi K2. It is known to call before it has closed its reasoning, and to write the singular for the section.
pub(super) const KIMI_K2: Format = Format {
    name: "kimi-k2",
    models: &["kimi", "kimi-k2"],
    reasoning: Some(&Reasoning { prompted: PromptOpening::Never, yields: EndsReasoning::ToCalls, ..THINK }),
    calls: &[
        Call::within("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", KIMI_CALL),
        Call::within("<|tool_call_section_begin|>", "<|tool_call_section_end|>", KIMI_CALL),
    ],
    turn: &["<|im_assistant|>assistant<|im_middle|>"],
    stops: CHATML_END,
    result: "## Return of {id}\n{content}",
    ..ROW
};

/// Functionary 3.1, with Llama 3.1's prompt.
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
        Call::plain(Form::Named(Named { open: ">>>", name_end: &["\n"], ..NAMED })),
        Call::plain(Form::Named(Named { open: "", name_end: &["\n"], ..NAMED })),
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
