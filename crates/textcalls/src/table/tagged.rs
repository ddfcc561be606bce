//! Formats with tags and plain values, and rare formats.

use super::format::{
    Braces, Call, Channels, EndsReasoning, Form, Format, Json, JsonResponseForm, Markup, Nested, Place, PromptOpening,
    Pythonic, Quoting, Reasoning, Recipient, Shape, Spacing, Tagged, TypeNotation, ValuePadding, Values,
};
use super::{CHATML_END, CHATML_TURN, DEEPSEEK_TURN, JSON, ROW, THINK, TOOL_RESPONSE};

/// `<function=name>`, `<parameter=key>`.
const FUNCTION: Tagged = Tagged {
    outer: Some(("<tool_call>", "</tool_call>")),
    open: "<function=",
    name_end: ">",
    head_end: "",
    close: "</function>",
    param: "<parameter=",
    key_end: ">",
    value_open: "",
    value_close: "</parameter>",
    typed: TypeNotation::BySchema,
    padding: ValuePadding::Newlines,
    quoting: Quoting::Plain,
    json: None,
    number: None,
    layout: "\n",
};

/// `<invoke name="…">`, `<parameter name="…">`.
const INVOKE: Tagged = Tagged {
    outer: None,
    open: "<invoke name=\"",
    name_end: "\"",
    head_end: ">",
    close: "</invoke>",
    param: "<parameter name=\"",
    key_end: "\"",
    value_open: ">",
    value_close: "</parameter>",
    padding: ValuePadding::None,
    ..FUNCTION
};

/// Qwen3-Coder, which does not think and at times forgets the outer tag.
pub(super) const QWEN3_CODER: Format = Format {
    name: "qwen3-coder",
    models: &["qwen3-coder", "qwen-3-coder"],
    calls: &[Call::plain(Form::Tagged(FUNCTION))],
    turn: CHATML_TURN,
    stops: CHATML_END,
    spacing: Spacing::Keep,
    result: TOOL_RESPONSE,
    values: Values::NoMarkers,
    ..ROW
};

/// Qwen 3.5, Nemotron 3 and StepFun 3.5: the same, with reasoning.
pub(super) const QWEN3_5: Format = Format {
    name: "qwen3.5",
    models: &["qwen3-5", "qwen-3-5", "qwen3-6", "nemotron-3", "stepfun3-5", "stepfun-3-5", "step-3-5", "step3-5"],
    reasoning: Some(&Reasoning { prompted: PromptOpening::Always, yields: EndsReasoning::ToCalls, ..THINK }),
    ..QWEN3_CODER
};

/// Xiaomi MiMo V2: the same; its prompt may open the reasoning.
pub(super) const MIMO_V2: Format =
    Format { name: "mimo-v2", models: &["mimo-v2"], reasoning: Some(&THINK), ..QWEN3_CODER };

/// ByteDance Seed-OSS: other names for the same tags, values without surrounding line breaks.
pub(super) const SEED_OSS: Format = Format {
    name: "seed-oss",
    models: &["seed-oss", "seed"],
    turn: &["<seed:bos>assistant"],
    reasoning: Some(&Reasoning {
        open: &["<seed:think>"],
        close: &["</seed:think>"],
        prompted: PromptOpening::Never,
        ..THINK
    }),
    calls: &[Call::plain(Form::Tagged(Tagged {
        outer: Some(("<seed:tool_call>", "</seed:tool_call>")),
        padding: ValuePadding::None,
        ..FUNCTION
    }))],
    stops: &["<seed:eos>"],
    values: Values::NoMarkers,
    ..ROW
};

/// Zhipu GLM 4.5 to 4.7, Spark 2.5, Laguna.
pub(super) const GLM: Format = Format {
    name: "glm",
    models: &["glm", "chatglm", "spark", "spark2", "laguna"],
    turn: &["<|assistant|>"],
    reasoning: Some(&THINK),
    calls: &[Call::plain(Form::Tagged(ARG_KEY))],
    stops: &["<|user|>", "<|observation|>", "<|endoftext|>"],
    result: TOOL_RESPONSE,
    values: Values::NoMarkers,
    ..ROW
};

/// `<arg_key>`, `<arg_value>` after a bare name.
const ARG_KEY: Tagged = Tagged {
    outer: None,
    open: "<tool_call>",
    name_end: "",
    head_end: "",
    close: "</tool_call>",
    param: "<arg_key>",
    key_end: "</arg_key>",
    value_open: "<arg_value>",
    value_close: "</arg_value>",
    padding: ValuePadding::None,
    ..FUNCTION
};

/// Ling 3: GLM's calls; its prompt opens the reasoning, and it may call without closing it.
pub(super) const LING: Format = Format {
    name: "ling",
    models: &["ling-3", "ring-3", "bailing"],
    turn: &["<role>ASSISTANT</role>"],
    reasoning: Some(&Reasoning {
        prompted: PromptOpening::Always,
        yields: EndsReasoning::ToCalls,
        spacing: Spacing::Keep,
        ..THINK
    }),
    noise: &["<|role_end|>"],
    ..GLM
};

/// MiniMax M2.
pub(super) const MINIMAX_M2: Format = Format {
    name: "minimax-m2",
    models: &["minimax"],
    turn: &["]~b]ai"],
    reasoning: Some(&THINK),
    calls: &[Call::within("<minimax:tool_call>", "</minimax:tool_call>", Form::Tagged(INVOKE))],
    stops: &["[e~["],
    result: "<response>{content}</response>",
    values: Values::NoMarkers,
    ..ROW
};

/// `<｜DSML｜invoke name="…">`, whose values state whether they are texts.
const DSML: Tagged = Tagged {
    open: "<｜DSML｜invoke name=\"",
    close: "</｜DSML｜invoke>",
    param: "<｜DSML｜parameter name=\"",
    value_close: "</｜DSML｜parameter>",
    typed: TypeNotation::StringFlag,
    ..INVOKE
};

/// DeepSeek V3.2. It may call without closing its reasoning.
pub(super) const DEEPSEEK_V3_2: Format = Format {
    name: "deepseek-v3.2",
    models: &["deepseek-v3-2"],
    reasoning: Some(&Reasoning { prompted: PromptOpening::Always, yields: EndsReasoning::ToCalls, ..THINK }),
    calls: &[Call::within("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", Form::Tagged(DSML))],
    turn: DEEPSEEK_TURN,
    stops: &["<｜end▁of▁sentence｜>"],
    result: "<function_results>\n<result>{content}</result>\n</function_results>",
    values: Values::NoMarkers,
    answers: JsonResponseForm::FencedJson,
    ..ROW
};

/// DeepSeek V4, with another name for the section.
pub(super) const DEEPSEEK_V4: Format = Format {
    name: "deepseek-v4",
    models: &["deepseek-v4"],
    calls: &[Call::within("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", Form::Tagged(DSML))],
    result: "<tool_result>{content}</tool_result>",
    ..DEEPSEEK_V3_2
};

/// The form of GigaChat 3.5.
pub(super) const GIGACHAT_MARKUP: Call = Call::within(
    "<｜GCML｜tool_calls>",
    "</｜GCML｜tool_calls>",
    Form::Tagged(Tagged {
        open: "<｜GCML｜invoke name=\"",
        close: "</｜GCML｜invoke>",
        param: "<｜GCML｜parameter name=\"",
        value_close: "</｜GCML｜parameter>",
        typed: TypeNotation::StringFlag,
        ..INVOKE
    }),
);

/// Moonshot Kimi K3: everything is in tags of control tokens, with the values' types.
pub(super) const KIMI_K3: Format = Format {
    name: "kimi-k3",
    models: &["kimi-k3"],
    turn: &["<|open|>message role=\"assistant\"<|sep|>"],
    reasoning: Some(&Reasoning {
        open: &["<|open|>think<|sep|>"],
        close: &["<|close|>think<|sep|>"],
        before: &["<|open|>response<|sep|>"],
        yields: EndsReasoning::ToCalls,
        ..THINK
    }),
    calls: &[Call::within(
        "<|open|>tools<|sep|>",
        "<|close|>tools<|sep|>",
        Form::Tagged(Tagged {
            outer: None,
            open: "<|open|>call tool=\"",
            name_end: "\"",
            head_end: "<|sep|>",
            close: "<|close|>call<|sep|>",
            param: "<|open|>argument key=\"",
            key_end: "\"",
            value_open: "<|sep|>",
            value_close: "<|close|>argument<|sep|>",
            typed: TypeNotation::TypeName,
            padding: ValuePadding::None,
            quoting: Quoting::Entities,
            json: Some(("<|open|>json", "<|sep|>", "<|close|>json<|sep|>")),
            number: Some("index"),
            layout: "",
        }),
    )],
    noise: &[
        "<|open|>message role=\"assistant\"<|sep|>",
        "<|open|>response<|sep|>",
        "<|close|>response<|sep|>",
        "<|close|>message<|sep|>",
        "<|end_of_msg|>",
    ],
    result: "<|open|>message role=\"tool\" tool=\"{name}\"<|sep|>{content}<|close|>message<|sep|><|end_of_msg|>",
    values: Values::NoMarkers,
    ..ROW
};

/// MiniCPM 5. A value with tags is in CDATA.
pub(super) const MINICPM: Format = Format {
    name: "minicpm",
    models: &["minicpm-5", "minicpm5"],
    reasoning: Some(&THINK),
    calls: &[Call::plain(Form::Tagged(Tagged {
        outer: None,
        open: "<function name=\"",
        close: "</function>",
        param: "<param name=\"",
        value_close: "</param>",
        padding: ValuePadding::Cdata,
        layout: "",
        ..INVOKE
    }))],
    turn: CHATML_TURN,
    stops: CHATML_END,
    result: TOOL_RESPONSE,
    ..ROW
};

/// Muse: an answer of messages, with tags in those to a tool.
pub(super) const MUSE: Format = Format {
    name: "muse",
    models: &["muse"],
    turn: &["<|start|>assistant"],
    channels: Some(&Channels {
        opens: &["<|start|>"],
        starts: &[" to=", "to=", "<|message|>"],
        message: "<|message|>",
        ends: &["<|eom|>", "<|eot|>"],
        silent: "",
        recipient: None,
        thought: "to=self",
        call: "<|start|>assistant to={name}<|message|>{call}<|eom|>",
    }),
    calls: &[Call::within(
        "<atem:function_calls>",
        "</atem:function_calls>",
        Form::Tagged(Tagged {
            open: "<atem:invoke name=\"",
            close: "</atem:invoke>",
            param: "<atem:parameter name=\"",
            value_close: "</atem:parameter>",
            ..INVOKE
        }),
    )],
    values: Values::NoMarkers,
    answers: JsonResponseForm::FencedJson,
    ..ROW
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

/// Liquid LFM 2 and 2.5: calls in Python syntax, or JSON if the prompt requests it.
pub(super) const LFM: Format = Format {
    name: "lfm",
    models: &["lfm", "lfm2"],
    reasoning: Some(&Reasoning { prompted: PromptOpening::Never, ..THINK }),
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
            shape: Shape::Array,
            ..JSON
        })),
    ],
    turn: CHATML_TURN,
    stops: CHATML_END,
    result: "<|tool_response_start|>{content}<|tool_response_end|>",
    ..ROW
};

/// OpenAI gpt-oss: an answer of messages; a message to a tool holds its arguments.
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

/// MiniMax M3: all arguments are tags.
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
    answers: JsonResponseForm::FencedJson,
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
        prompted: PromptOpening::Never,
        place: Place::Anywhere,
        yields: EndsReasoning::Never,
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
    answers: JsonResponseForm::FencedJson,
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
