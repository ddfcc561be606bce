//! The fields of a format: a row of the table.

/// A text format: how a model family writes reasoning and tool calls in its text, and how tools, calls and results are
/// written for it. The rows are in this folder.
#[derive(Debug)]
pub struct Format {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// Patterns of model names, see [`crate::for_model`].
    pub(crate) models: &'static [&'static str],
    /// Markers of reasoning.
    pub(crate) reasoning: Option<&'static Reasoning>,
    /// Messages with headers, for models whose response consists of several.
    pub(crate) channels: Option<&'static Channels>,
    /// The forms of a call; the first one is written, all are read.
    pub(crate) calls: &'static [Call],
    /// Words at the beginning of a response to ignore.
    pub(crate) preface: &'static [&'static str],
    /// The end of its prompt templates: the header of the assistant's turn.
    pub(crate) turn: &'static [&'static str],
    /// Control tokens around text, which are dropped.
    pub(crate) noise: &'static [&'static str],
    /// Tokens that end the response, dropped there; elsewhere they are text.
    pub(crate) stops: &'static [&'static str],
    /// White space between text and a call.
    pub(crate) spacing: Spacing,
    /// How JSON responses are written.
    pub(crate) answers: JsonResponseForm,
    /// Template of a result, with `{name}`, `{id}` and `{content}`.
    pub(crate) result: &'static str,
    /// The text around all results of a turn.
    pub(crate) results: (&'static str, &'static str),
    /// A hint in the prompt, in addition to the form of a call.
    pub(crate) hint: &'static str,
    /// Whether every text value can be written.
    pub(crate) values: Values,
}

/// Whether arguments may contain the format's own markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// Any value is read back as written.
    Any,
    /// The format has no escape: a text that holds the tags that end a value is cut there.
    NoMarkers,
}

/// How JSON responses are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JsonResponseForm {
    /// As plain JSON.
    Bare,
    /// In a code block, which is removed if the response contains nothing else.
    FencedJson,
}

/// White space between text and a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spacing {
    /// It belongs to the call.
    Trim,
    /// It belongs to the text.
    Keep,
}

/// Reasoning between markers.
#[derive(Debug)]
pub(crate) struct Reasoning {
    /// Opening markers.
    pub open: &'static [&'static str],
    /// Closing markers.
    pub close: &'static [&'static str],
    /// Markers of other parts, which close it and keep their own meaning.
    pub before: &'static [&'static str],
    /// Whether the prompt has opened it.
    pub prompted: PromptOpening,
    /// Where it may open.
    pub place: Place,
    /// Whether a call at its end closes it: some models omit the closing marker.
    pub yields: EndsReasoning,
    /// White space at its ends.
    pub spacing: Spacing,
}

/// Whether the prompt template ends with the opening marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PromptOpening {
    /// Never: only reasoning opened by the model counts.
    Never,
    /// In some modes: text before a lone closing marker is reasoning.
    Perhaps,
    /// Yes, unless thinking is off: text before a call is reasoning too, and an opening marker is text.
    Always,
}

/// Where reasoning may open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Only before any text.
    First,
    /// Anywhere: the markers are control tokens.
    Anywhere,
}

/// Whether a call ends reasoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndsReasoning {
    /// Never: a call in reasoning belongs to it.
    Never,
    /// Yes.
    ToCalls,
}

/// Messages of a response: a header, a body, an end.
#[derive(Debug)]
pub(crate) struct Channels {
    /// Tokens that begin a header.
    pub opens: &'static [&'static str],
    /// Possible beginnings of a response whose header the prompt has begun.
    pub starts: &'static [&'static str],
    /// Ends the header.
    pub message: &'static str,
    /// End a body.
    pub ends: &'static [&'static str],
    /// The part of the header to omit when reasoning is kept in the text.
    pub silent: &'static str,
    /// Messages that are calls, if their headers say so.
    pub recipient: Option<Recipient>,
    /// A word in the header of a reasoning message.
    pub thought: &'static str,
    /// Template of a message that is a call, with `{name}` and `{call}`.
    pub call: &'static str,
}

/// The recipient in a header.
#[derive(Debug)]
pub(crate) struct Recipient {
    /// Text before the name.
    pub open: &'static str,
    /// A prefix of tool names that is not part of them.
    pub namespace: &'static str,
    /// Recipients that are not tools.
    pub others: &'static [&'static str],
    /// Ends a message that is a call.
    pub end: &'static str,
}

/// A form of a call.
#[derive(Debug)]
pub(crate) struct Call {
    /// Optional markers around one or more calls.
    pub section: Option<(&'static str, &'static str)>,
    /// The syntax of a call.
    pub form: Form,
}

/// The kinds of calls.
#[derive(Debug)]
pub(crate) enum Form {
    /// JSON that holds the name.
    Json(Json),
    /// A name, then JSON.
    Named(Named),
    /// A tag with a tag for each argument, values plain.
    Tagged(Tagged),
    /// Tags inside tags.
    Nested(Nested),
    /// Function calls as in Python.
    Pythonic(Pythonic),
    /// A name and an object with unquoted keys.
    Braces(Braces),
    /// A tag named as the tool, with attributes and a body.
    Markup(Markup),
    /// The text after the marker is the one argument of a known tool.
    Raw(Raw),
}

/// Where a form may occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FormPosition {
    /// Anywhere after its marker.
    Marker,
    /// At the start of the text, without a marker.
    Start,
}

/// JSON: an object, an array of them, or several one after another.
#[derive(Debug)]
pub(crate) struct Json {
    /// Markers before it; empty for [`FormPosition::Start`].
    pub open: &'static [&'static str],
    /// Closing marker; `None` if the JSON itself is the end.
    pub close: Option<&'static str>,
    /// The keys to write. Reading accepts the usual ones of all families.
    pub keys: Keys,
    /// Whether several calls share an array.
    pub shape: Shape,
}

/// Keys of a call object.
#[derive(Debug)]
pub(crate) enum Keys {
    /// `{name: …, arguments: …, id: …}`.
    Named {
        /// Key of the name.
        name: &'static str,
        /// Key of the arguments.
        arguments: &'static str,
        /// Key of the id, if there is one.
        id: Option<&'static str>,
    },
    /// `{"tool": {…}}`: the name is the key.
    NameIsKey,
}

/// Arrangement of calls in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    /// An object.
    Object,
    /// An array of objects.
    Array,
}

/// A name, then JSON.
#[derive(Debug)]
pub(crate) struct Named {
    /// Marker before it; empty for [`FormPosition::Start`].
    pub open: &'static str,
    /// Words between the marker and the name, if there.
    pub skip: &'static str,
    /// Possible ends of the name. The first is used for writing.
    pub name_end: &'static [&'static str],
    /// How the id is written.
    pub id: Id,
    /// Around the JSON.
    pub fence: Option<(&'static str, &'static str)>,
    /// Closing marker; `None` if the JSON itself is the end.
    pub close: Option<&'static str>,
}

/// Position of an id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Id {
    /// Nowhere.
    None,
    /// The id holds the name, between this and a number: `functions.name:0`.
    AroundName(&'static str),
    /// After this marker, before the end of the name.
    After(&'static str),
}

/// A tag with a tag for each argument.
#[derive(Debug)]
pub(crate) struct Tagged {
    /// Tags around one call; a model may forget the opening one.
    pub outer: Option<(&'static str, &'static str)>,
    /// Begins the call, up to its name.
    pub open: &'static str,
    /// End of the name; empty if white space or the next tag ends it.
    pub name_end: &'static str,
    /// End of the tag, after ignored attributes; empty if the name's end is also the tag's.
    pub head_end: &'static str,
    /// Ends the call.
    pub close: &'static str,
    /// Begins an argument, up to its name.
    pub param: &'static str,
    /// Ends the argument's name.
    pub key_end: &'static str,
    /// Start of the value; empty if the name's end is also the value's start.
    pub value_open: &'static str,
    /// Ends the value.
    pub value_close: &'static str,
    /// How the tag states the value's type.
    pub typed: TypeNotation,
    /// The padding around a value.
    pub padding: ValuePadding,
    /// How quoted names are written.
    pub quoting: Quoting,
    /// A tag that may hold all arguments as one JSON object: its beginning, the end of its head, and its end.
    pub json: Option<(&'static str, &'static str, &'static str)>,
    /// The attribute that numbers the calls of a turn.
    pub number: Option<&'static str>,
    /// Line breaks between tags when written.
    pub layout: &'static str,
}

/// The type of a value, by its tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TypeNotation {
    /// Not stated: the tool's schema decides.
    BySchema,
    /// `string="true"` or `string="false"`, and then it is JSON.
    StringFlag,
    /// `type="string"`, or a JSON type.
    TypeName,
}

/// The padding around a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValuePadding {
    /// No padding.
    None,
    /// A line break on either side.
    Newlines,
    /// `<![CDATA[` and `]]>`, if the value needs it.
    Cdata,
}

/// How a quoted name is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quoting {
    /// Unchanged.
    Plain,
    /// `&`, `"` as entities.
    Entities,
}

/// Nested tags, each behind a token.
#[derive(Debug)]
pub(crate) struct Nested {
    /// The token before every tag.
    pub mark: &'static str,
    /// Begins the call, up to its name.
    pub open: &'static str,
    /// Ends its tag.
    pub head_end: &'static str,
    /// Ends the call.
    pub close: &'static str,
    /// The tag of an array's items.
    pub item: &'static str,
}

/// Function calls as in Python, in a list.
#[derive(Debug)]
pub(crate) struct Pythonic {
    /// Marker before it; empty for [`FormPosition::Start`].
    pub open: &'static str,
    /// Marker after it.
    pub close: Option<&'static str>,
    /// Whether the calls are in brackets.
    pub list: bool,
    /// A suffix after a tool's name to ignore.
    pub suffix: &'static str,
}

/// A name and an object with unquoted keys.
#[derive(Debug)]
pub(crate) struct Braces {
    /// Marker before it.
    pub open: &'static str,
    /// Marker after it.
    pub close: &'static str,
    /// Replacement of the quotation mark around texts.
    pub quote: &'static str,
}

/// A tag named as the tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Markup {
    /// `<name key="value">body</name>` and `<name key="value"/>`.
    Xml,
    /// `[/name]`, lines of `@@key=value`, a body, `[name/]`.
    Bracket,
}

/// Text that is the one argument of a tool.
#[derive(Debug)]
pub(crate) struct Raw {
    /// Marker before it.
    pub open: &'static str,
    /// Tools for it: the first that the request has, else the first.
    pub tools: &'static [&'static str],
    /// The argument's name if the tool's schema does not tell it.
    pub argument: &'static str,
    /// End of the tool's name, if the name is written.
    pub name_end: Option<&'static str>,
    /// The beginning of the next piece; `None` if the text is the rest of the response.
    pub until: Option<&'static str>,
}

impl Call {
    /// A call without a section around it.
    pub(crate) const fn plain(form: Form) -> Self {
        Self { section: None, form }
    }

    /// Calls in a section.
    pub(crate) const fn within(open: &'static str, close: &'static str, form: Form) -> Self {
        Self { section: Some((open, close)), form }
    }

    /// The markers that begin the form itself.
    pub(crate) fn opens(&self) -> Vec<&'static str> {
        match &self.form {
            Form::Json(json) => json.open.to_vec(),
            Form::Named(named) => vec![named.open],
            Form::Tagged(tagged) => tagged.outer.iter().map(|outer| outer.0).chain([tagged.open]).collect(),
            Form::Nested(nested) => vec![nested.open],
            Form::Pythonic(pythonic) => vec![pythonic.open],
            Form::Braces(braces) => vec![braces.open],
            Form::Markup(Markup::Xml) => vec!["<"],
            Form::Markup(Markup::Bracket) => vec!["[/"],
            Form::Raw(raw) => vec![raw.open],
        }
        .into_iter()
        .filter(|open| !open.is_empty())
        .collect()
    }

    /// Where it may occur.
    pub(crate) fn at(&self) -> FormPosition {
        if self.opens().is_empty() { FormPosition::Start } else { FormPosition::Marker }
    }

    /// Closing markers that may follow its end.
    pub(crate) fn trailers(&self) -> Vec<&'static str> {
        let outer = match &self.form {
            Form::Tagged(tagged) => tagged.outer.map(|outer| outer.1),
            _ => None,
        };
        self.section.map(|section| section.1).into_iter().chain(outer).collect()
    }
}
