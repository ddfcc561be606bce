//! Formats of forms that few share.

use super::{CHATML_END, CHATML_TURN, ROW, THINK};
use crate::format::{
    Answers, Braces, Call, Channels, Form, Format, Json, Keys, Markup, Nested, Place, Prompted, Pythonic, Reasoning,
    Recipient, Shape, Values, Yields,
};

/// Llama 4 and others that were trained on calls as in Python.
pub(super) const PYTHONIC: Format = Format {
    name: "pythonic",
    models: &["llama-4", "llama4", "toolace"],
    turn: &["<|header_start|>assistant<|header_end|>"],
    calls: &[
        Call::plain(Form::Pythonic(Pythonic { open: "", close: None, list: true, suffix: "" })),
        Call::plain(Form::Pythonic(Pythonic {
            open: "<|python_start|>",
            close: Some("<|python_end|>"),
            list: true,
            suffix: "",
        })),
    ],
    stops: &["<|eot|>", "<|eom|>"],
    hint: "Calls are the whole answer: write no other text with them.",
    ..ROW
};

/// Liquid LFM 2 and 2.5: calls as in Python, or JSON where the prompt asks for it.
pub(super) const LFM: Format = Format {
    name: "lfm",
    models: &["lfm", "lfm2"],
    reasoning: Some(&Reasoning { prompted: Prompted::Never, ..THINK }),
    calls: &[
        Call::plain(Form::Pythonic(Pythonic {
            open: "<|tool_call_start|>",
            close: Some("<|tool_call_end|>"),
            list: true,
            suffix: "",
        })),
        Call::plain(Form::Json(Json {
            open: &["<|tool_call_start|>"],
            close: Some("<|tool_call_end|>"),
            keys: Keys::Named { name: "name", arguments: "arguments", id: None },
            shape: Shape::Array,
        })),
    ],
    turn: CHATML_TURN,
    stops: CHATML_END,
    result: "<|tool_response_start|>{content}<|tool_response_end|>",
    ..ROW
};

/// OpenAI gpt-oss: an answer of messages; those to a tool hold its arguments.
pub(super) const HARMONY: Format = Format {
    name: "harmony",
    models: &["gpt-oss", "harmony"],
    turn: &["<|start|>assistant"],
    channels: Some(&Channels {
        opens: &["<|start|>", "<|channel|>"],
        starts: &[" to=", "to="],
        message: "<|message|>",
        ends: &["<|end|>", "<|return|>", "<|call|>"],
        silent: "<|start|>assistant",
        recipient: Some(Recipient {
            open: "to=",
            namespace: "functions.",
            others: &["assistant", "all", "user"],
            end: "<|call|>",
        }),
        thought: "analysis",
        call: "<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{call}<|call|>",
    }),
    result: "<|start|>functions.{name} to=assistant<|channel|>commentary<|message|>{content}<|end|>",
    ..ROW
};

/// MiniMax M3: arguments are tags, whatever they hold.
pub(super) const MINIMAX_M3: Format = Format {
    name: "minimax-m3",
    models: &["minimax-m3"],
    turn: &["]~b]ai"],
    reasoning: Some(&Reasoning { open: &["<mm:think>"], close: &["</mm:think>"], ..THINK }),
    calls: &[Call::within(
        "]<]minimax[>[<tool_call>",
        "]<]minimax[>[</tool_call>",
        Form::Nested(Nested {
            mark: "]<]minimax[>[",
            open: "]<]minimax[>[<invoke name=\"",
            head_end: "\">",
            close: "]<]minimax[>[</invoke>",
            item: "item",
        }),
    )],
    stops: &["[e~["],
    result: "<response>{content}</response>",
    values: Values::NoMarkers,
    answers: Answers::FencedJson,
    ..ROW
};

/// Google Gemma 4 and FunctionGemma.
pub(super) const GEMMA: Format = Format {
    name: "gemma",
    models: &["gemma", "gemma4", "functiongemma"],
    turn: &["<|turn>model", "<start_of_turn>model"],
    reasoning: Some(&Reasoning {
        open: &["<|channel>thought"],
        close: &["<channel|>"],
        prompted: Prompted::Never,
        place: Place::Anywhere,
        yields: Yields::Never,
        ..THINK
    }),
    calls: &[
        Call::plain(Form::Braces(Braces { open: "<|tool_call>call:", close: "<tool_call|>", quote: "<|\"|>" })),
        Call::plain(Form::Braces(Braces {
            open: "<start_function_call>call:",
            close: "<end_function_call>",
            quote: "<escape>",
        })),
    ],
    noise: &["<|channel>", "<channel|>", "<|turn>model\n", "<turn|>"],
    stops: &["<end_of_turn>", "<|tool_response>"],
    result: "<|tool_response>response:{name}{value:<|\"|>{content}<|\"|>}<tool_response|>",
    values: Values::NoMarkers,
    answers: Answers::FencedJson,
    ..ROW
};

/// Brackets, for models that know no form of their own.
pub(super) const BRACKET: Format = Format {
    name: "bracket",
    calls: &[Call::plain(Form::Markup(Markup::Bracket))],
    result: "[result of {name}]\n{content}\n[end of result]",
    hint: "The argument that a tool names as its body goes into the body, as it is; all others go on lines of their \
           own that begin with @@, right after the opening tag. To write the closing tag itself in a body, put a \
           backslash before its slash.",
    ..ROW
};

/// XML, for models that know no form of their own.
pub(super) const XML: Format = Format {
    name: "xml",
    calls: &[Call::plain(Form::Markup(Markup::Xml))],
    result: "<result tool=\"{name}\">\n{content}\n</result>",
    hint: "The argument that a tool names as its body goes into the body, as it is; all others are attributes. A \
           call without a body closes itself. To write the closing tag itself in a body, put a backslash before its \
           slash.",
    ..ROW
};
