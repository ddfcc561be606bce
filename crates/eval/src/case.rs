//! Cases: an input of a tool, and what is to be true of the output.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// The cases of one tool.
#[derive(Debug, Clone, PartialEq)]
pub struct Suite {
    /// The tool, as it is called: id with or without version, wire name, alias.
    pub tool: String,
    /// The mode in which it asks.
    pub mode: Option<String>,
    /// How often each case is measured; without it as often as the run says.
    pub repeat: Option<u32>,
    /// The cases, in order; no two have one id.
    pub cases: Vec<Case>,
    /// The file that they stand in, for messages.
    pub file: String,
    /// Where it names the tool.
    pub tool_at: Spot,
    /// Where it names the mode; where it names the tool if it names none.
    pub mode_at: Spot,
}

/// Where something stands in a file of cases.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Spot {
    /// Line, from 1.
    pub line: u32,
    /// Key, like `cases[2].mode`.
    pub key: String,
}

/// One case.
#[derive(Debug, Clone, PartialEq)]
pub struct Case {
    /// Its name: as written, else made of its input.
    pub id: String,
    /// The arguments of the call.
    pub input: Value,
    /// Its share in the mean.
    pub weight: f64,
    /// What is looked at besides the tool's own output schema.
    pub checks: Vec<Check>,
    /// The line that it stands on.
    pub line: u32,
    /// Its key in the file, like `cases[2]`; empty where it is the whole line.
    pub key: String,
}

/// One thing that is looked at.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Its share in the case.
    pub weight: f64,
    /// What it is.
    #[serde(flatten)]
    pub kind: Kind,
}

/// What a check looks at. Every `path` is a JSON Pointer into the output, empty for all of it; the output of a tool
/// without a structured result is its text.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The value is one of these. Numbers are equal by their value.
    Exact {
        /// Where.
        path: String,
        /// The values that will do, one at least.
        one_of: Vec<Value>,
        /// Whether the order of a list counts.
        order: Order,
    },
    /// A number is within bounds.
    Numeric {
        /// Where.
        path: String,
        /// Which number is taken of what is there.
        of: Of,
        /// The least that will do.
        min: f64,
        /// The most that will do.
        max: f64,
    },
    /// A text has these parts. What is no text is looked at as compact JSON.
    Contains {
        /// Where.
        path: String,
        /// Each of them: the share that is there counts.
        all: Vec<String>,
        /// One of them at least.
        any: Vec<String>,
        /// None of them: where one is, nothing else counts.
        none: Vec<String>,
        /// Whether upper and lower case are the same.
        ignore_case: bool,
        /// Whether they are whole words: neither a letter nor a digit stands before or behind them.
        words: bool,
    },
    /// A value fits a JSON Schema.
    Schema {
        /// The schema.
        schema: Value,
    },
    /// Another model judges, by `llm:score`.
    Rubric {
        /// Where the text is that is judged.
        path: String,
        /// What the output was to do, for the judge.
        task: String,
        /// What it is judged by; without any, by what `llm:score` judges by itself.
        criteria: Vec<String>,
        /// The judge's score, 0 to 100, below which it counts for nothing.
        min: f64,
    },
}

/// Whether the order of a list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// It does.
    Given,
    /// It does not.
    Any,
}

/// Which number a numeric check takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Of {
    /// The number that is there.
    Value,
    /// How many words a text has.
    Words,
    /// How many characters a text has.
    Characters,
    /// How many items a list has, or members an object.
    Items,
}

impl Kind {
    /// The word for it in files and reports.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Self::Exact { .. } => "exact",
            Self::Numeric { .. } => "numeric",
            Self::Contains { .. } => "contains",
            Self::Schema { .. } => "schema",
            Self::Rubric { .. } => "rubric",
        }
    }
}

impl Case {
    /// Whether a judge is asked for it.
    #[must_use]
    pub fn is_judged(&self) -> bool {
        self.checks.iter().any(|check| matches!(check.kind, Kind::Rubric { .. }))
    }
}

/// What is wrong with a file of cases. `Display` is `file:line: key: message; remedy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CaseError {
    /// The file.
    pub file: String,
    /// Line, from 1; 0 where it is not known.
    pub line: u32,
    /// The key, like `cases[2].checks[0].numeric`; empty for the whole file.
    pub key: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: &'static str,
}

impl fmt::Display for CaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, key, message, remedy } = self;
        f.write_str(file)?;
        if *line > 0 {
            write!(f, ":{line}")?;
        }
        f.write_str(": ")?;
        if !key.is_empty() {
            write!(f, "{key}: ")?;
        }
        write!(f, "{message}; {remedy}")
    }
}

impl std::error::Error for CaseError {}
