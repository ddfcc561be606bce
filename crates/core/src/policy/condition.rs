//! Conditions of rules: expressions in CEL, the Common Expression Language, which always terminate.
//!
//! [`Condition`] lists the variables and functions. Conditions are compiled, and faults reported, when the policy is
//! read.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use cel::Env;
use cel::common::ast::{ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue};
use regex::Regex;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::pattern::nearest;

/// Bytes of one condition.
pub const MAX_SOURCE: usize = 2000;
/// Brackets inside each other, which the parser follows on its stack.
const MAX_BRACKETS: usize = 8;
/// Levels of the parsed expression, which its evaluation follows on the stack.
const MAX_LEVELS: u32 = 32;
/// Comprehensions (`all`, `exists`, `map`, …) inside each other.
const MAX_DEPTH: u32 = 3;
/// Bound on a condition's cost: the size of the arguments to the power of its nested comprehensions.
const MAX_COST: u64 = 1_000_000;
/// Bytes of one compiled pattern.
const MAX_PATTERN: usize = 1 << 20;

/// The names that a condition may use.
pub(super) const VARIABLES: [&str; 6] = ["args", "tool", "effects", "principal", "workspace", "request"];
/// Types, as operands of `type(x) == …`.
const TYPES: [&str; 9] = ["bool", "int", "uint", "double", "string", "bytes", "list", "map", "null_type"];
/// The functions; operators have other names. `matches` and those after it are our own.
const FUNCTIONS: [&str; 19] = [
    "size",
    "contains",
    "startsWith",
    "endsWith",
    "type",
    "int",
    "uint",
    "double",
    "string",
    "dyn",
    "matches",
    "mentions",
    "links",
    "emails",
    "accounts",
    "addresses",
    "codes",
    "names",
    "switches",
];

/// A condition on a call, in CEL.
///
/// It sees `args` (the resolved arguments), `tool` (`id`, `namespace`, `name`, `tags`), `effects` (`read_only`,
/// `destructive`, `idempotent`, `open_world`), `principal` (`id`, `roles`), `workspace` (`root`, `inside`: whether all
/// that the call writes lies in it, and `configuration`: whether it writes Toolwright's own configuration) and
/// `request` (`known`: whether the user's own words are known, and `amounts`: the numbers among them). `args.x.tainted`
/// says whether the value of an argument, or a part of it, came from an untrusted tool, and `args.tainted` whether any
/// did; `args['tainted']` is the value of an argument called `tainted`. `request.mentions(x)` says whether the user's
/// own words name a value, and is false where they are not known; `links(x)`, `emails(x)`, `accounts(x)` and, of all
/// kinds, `addresses(x)` list addresses in the texts of a value, and `codes(x)` long numbers and encoded data in them;
/// `names(x)` lists the names of members of a value at any depth, and `switches(x)` the boolean ones, as `public=true`;
/// `x.matches('…')` takes a regular expression that may match anywhere. `has(args.x)` tests for an argument: reading a
/// missing one is an error, and an error denies the call.
///
/// Serialised as its source, of at most [`MAX_SOURCE`] bytes.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Condition {
    source: String,
    pub(super) expression: Arc<IdedExpr>,
    /// Whether it reads taint.
    pub(super) asks_taint: bool,
    /// The regular expressions that are written out in it.
    pub(super) patterns: Arc<BTreeMap<String, Regex>>,
    depth: u32,
    names_configuration: bool,
}

impl JsonSchema for Condition {
    fn schema_name() -> Cow<'static, str> {
        "Condition".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "maxLength": MAX_SOURCE, "format": "condition" })
    }
}

/// A fault of a condition.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// It is longer than [`MAX_SOURCE`].
    #[error("the condition has {0} bytes; {MAX_SOURCE} are the most")]
    TooLong(usize),
    /// It is not CEL.
    #[error("the condition cannot be read: {0}")]
    Syntax(String),
    /// A name that does not exist.
    #[error("the condition names `{name}`, which does not exist{hint}")]
    Unknown {
        /// The name.
        name: String,
        /// The available names.
        hint: String,
    },
    /// Too much inside each other.
    #[error(
        "the condition is nested too deeply: it may have {MAX_BRACKETS} brackets, {MAX_LEVELS} operations and {MAX_DEPTH} comprehensions inside each other"
    )]
    TooDeep,
    /// An invalid regular expression.
    #[error("the pattern '{pattern}' is not a regular expression: {reason}")]
    Pattern {
        /// The pattern.
        pattern: String,
        /// Why.
        reason: String,
    },
}

impl Condition {
    /// Compiles a condition.
    ///
    /// # Errors
    /// The condition's fault.
    pub fn compile(source: impl Into<String>) -> Result<Self, ConditionError> {
        let source = source.into();
        if source.len() > MAX_SOURCE {
            return Err(ConditionError::TooLong(source.len()));
        }
        if brackets(&source) > MAX_BRACKETS {
            return Err(ConditionError::TooDeep);
        }
        let program = Env::stdlib().compile(&source).map_err(|errors| {
            // The first line has message and position; the others draw an arrow under the source.
            let text = errors.to_string();
            let first = text.lines().next().unwrap_or_default();
            ConditionError::Syntax(first.trim_start_matches("ERROR: <input>:").trim().to_owned())
        })?;
        let mut survey = ExpressionScan::default();
        survey.visit(program.expression())?;
        let patterns =
            survey.patterns.iter().map(|text| Ok(((*text).to_owned(), pattern(text)?))).collect::<Result<_, _>>()?;
        let (depth, names_configuration) = (survey.depth, survey.names_configuration);
        let mut expression = program.expression().clone();
        let asks_taint = point_to_taint(&mut expression);
        let (expression, patterns) = (Arc::new(expression), Arc::new(patterns));
        Ok(Self { source, expression, asks_taint, patterns, depth, names_configuration })
    }

    /// Whether it reads `workspace.configuration`.
    pub(super) fn names_configuration(&self) -> bool {
        self.names_configuration
    }

    /// The expression as written.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether evaluation with arguments of this size is affordable.
    pub(super) fn is_affordable(&self, size: u64) -> bool {
        size.checked_pow(self.depth.max(1)).is_some_and(|cost| cost <= MAX_COST)
    }
}

/// The member that holds a value's taint.
pub(super) const TAINTED: &str = "tainted";
/// The variable with the arguments' taint: nobody can write this name.
pub(super) const TAINT: &str = "@taint";

/// Rewrites every `args.….tainted` to read the taint of the arguments. Returns whether there is any.
fn point_to_taint(expression: &mut IdedExpr) -> bool {
    let mut found = false;
    if let Expr::Select(select) = &mut expression.expr
        && select.field == TAINTED
        && let Some(root) = root_of(&mut select.operand)
        && *root == "args"
    {
        TAINT.clone_into(root);
        found = true;
    }
    for part in parts(&mut expression.expr) {
        found |= point_to_taint(part);
    }
    found
}

/// Returns the variable at the root of a member access.
fn root_of(expression: &mut IdedExpr) -> Option<&mut String> {
    match &mut expression.expr {
        Expr::Ident(name) => Some(name),
        Expr::Select(select) => root_of(&mut select.operand),
        Expr::Call(call) if call.func_name == INDEX => root_of(call.args.first_mut()?),
        _ => None,
    }
}

/// CEL's name of the operator `a[b]`.
const INDEX: &str = cel::common::ast::operators::INDEX;

fn parts(expression: &mut Expr) -> Vec<&mut IdedExpr> {
    match expression {
        Expr::Call(call) => call.target.as_deref_mut().into_iter().chain(&mut call.args).collect(),
        Expr::Select(select) => vec![&mut select.operand],
        Expr::List(list) => list.elements.iter_mut().collect(),
        Expr::Comprehension(each) => {
            let each = &mut **each;
            vec![&mut each.iter_range, &mut each.accu_init, &mut each.loop_cond, &mut each.loop_step, &mut each.result]
        }
        Expr::Map(map) => map.entries.iter_mut().flat_map(entry_parts).collect(),
        Expr::Struct(fields) => fields.entries.iter_mut().flat_map(entry_parts).collect(),
        _ => Vec::new(),
    }
}

fn entry_parts(entry: &mut cel::common::ast::IdedEntryExpr) -> Vec<&mut IdedExpr> {
    match &mut entry.expr {
        EntryExpr::StructField(field) => vec![&mut field.value],
        EntryExpr::MapEntry(entry) => vec![&mut entry.key, &mut entry.value],
    }
}

/// Compiles a regular expression.
pub(super) fn pattern(text: &str) -> Result<Regex, ConditionError> {
    regex::RegexBuilder::new(text).size_limit(MAX_PATTERN).build().map_err(|error| ConditionError::Pattern {
        pattern: text.to_owned(),
        reason: error.to_string().lines().last().unwrap_or_default().to_owned(),
    })
}

/// Maximal nesting of brackets, except in texts.
fn brackets(source: &str) -> usize {
    let (mut open, mut most, mut quote, mut raw, mut escaped, mut before) = (0_usize, 0, None, false, false, ' ');
    for c in source.chars() {
        match quote {
            Some(_) if escaped => escaped = false,
            Some(_) if c == '\\' && !raw => escaped = true,
            Some(mark) if c == mark => quote = None,
            Some(_) => {}
            None => match c {
                '\'' | '"' => (quote, raw) = (Some(c), before.eq_ignore_ascii_case(&'r')),
                '(' | '[' | '{' => {
                    open += 1;
                    most = most.max(open);
                }
                ')' | ']' | '}' => open = open.saturating_sub(1),
                _ => {}
            },
        }
        before = c;
    }
    most
}

/// A walk through an expression.
#[derive(Default)]
struct ExpressionScan<'e> {
    bound: Vec<&'e str>,
    patterns: BTreeSet<&'e str>,
    /// Current and maximal nesting depth of comprehensions.
    level: u32,
    inside: u32,
    depth: u32,
    names_configuration: bool,
}

impl<'e> ExpressionScan<'e> {
    fn visit(&mut self, node: &'e IdedExpr) -> Result<(), ConditionError> {
        if self.level >= MAX_LEVELS {
            return Err(ConditionError::TooDeep);
        }
        self.level += 1;
        match &node.expr {
            Expr::Unspecified | Expr::Literal(_) => {}
            Expr::Ident(name) => self.name(name)?,
            Expr::Select(select) => {
                let of_workspace = matches!(&select.operand.expr, Expr::Ident(name) if name == "workspace");
                self.names_configuration |= of_workspace && select.field == "configuration";
                self.visit(&select.operand)?;
            }
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.visit(element))?,
            Expr::Map(map) => self.entries(map.entries.iter().map(|entry| &entry.expr))?,
            Expr::Struct(make) => self.entries(make.entries.iter().map(|entry| &entry.expr))?,
            Expr::Call(call) => {
                function(&call.func_name)?;
                if call.func_name == "matches"
                    && let Some(Expr::Literal(LiteralValue::String(text))) = call.args.last().map(|last| &last.expr)
                {
                    self.patterns.insert(text.inner());
                }
                call.target.iter().map(|target| &**target).chain(&call.args).try_for_each(|each| self.visit(each))?;
            }
            Expr::Comprehension(each) => self.comprehension(each)?,
        }
        self.level -= 1;
        Ok(())
    }

    fn comprehension(&mut self, each: &'e ComprehensionExpr) -> Result<(), ConditionError> {
        self.visit(&each.iter_range)?;
        if self.inside == MAX_DEPTH {
            return Err(ConditionError::TooDeep);
        }
        self.inside += 1;
        self.depth = self.depth.max(self.inside);
        let before = self.bound.len();
        self.bound.extend([each.iter_var.as_str(), each.accu_var.as_str()]);
        self.bound.extend(each.iter_var2.as_deref());
        for part in [&each.accu_init, &each.loop_cond, &each.loop_step, &each.result] {
            self.visit(part)?;
        }
        self.bound.truncate(before);
        self.inside -= 1;
        Ok(())
    }

    fn entries(&mut self, mut entries: impl Iterator<Item = &'e EntryExpr>) -> Result<(), ConditionError> {
        entries.try_for_each(|entry| match entry {
            EntryExpr::StructField(field) => self.visit(&field.value),
            EntryExpr::MapEntry(entry) => {
                self.visit(&entry.key)?;
                self.visit(&entry.value)
            }
        })
    }

    fn name(&self, name: &str) -> Result<(), ConditionError> {
        let is_known = self.bound.contains(&name) || VARIABLES.contains(&name) || TYPES.contains(&name);
        if is_known { Ok(()) } else { Err(unknown(name, &VARIABLES)) }
    }
}

/// Accepts operators, which are functions with names that nobody can write.
fn function(name: &str) -> Result<(), ConditionError> {
    let operator = !name.starts_with(|c: char| c.is_ascii_alphabetic());
    if operator || FUNCTIONS.contains(&name) { Ok(()) } else { Err(unknown(name, &FUNCTIONS)) }
}

fn unknown(name: &str, known_names: &[&str]) -> ConditionError {
    let hint = match nearest(name, known_names.iter().copied()) {
        Some(near) => format!("; did you mean `{near}`?"),
        None => format!("; there are {}", known_names.join(", ")),
    };
    ConditionError::Unknown { name: name.to_owned(), hint }
}

impl TryFrom<String> for Condition {
    type Error = ConditionError;

    fn try_from(source: String) -> Result<Self, ConditionError> {
        Self::compile(source)
    }
}

impl From<Condition> for String {
    fn from(condition: Condition) -> Self {
        condition.source
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_conditions_are_found_when_read() {
        for (source, expect) in [
            ("1 +", "cannot be read: 1:4: Syntax error"),
            ("arg.amount > 3", "names `arg`, which does not exist; did you mean `args`?"),
            ("args.x.exists(k, j == 1)", "names `j`"),
            ("matchs(args.x, 'a')", "did you mean `matches`?"),
            ("now() > 1", "there are size, contains"),
            ("args.x.matches('(')", "is not a regular expression"),
            ("args.a.all(a, args.a.all(b, args.a.all(c, args.a.all(d, d))))", "nested too deeply"),
            (&"(".repeat(500), "nested too deeply"),
            (&format!("1{} == 1", "+1".repeat(40)), "nested too deeply"),
            (&format!("{}true", "!".repeat(MAX_SOURCE)), "2004 bytes"),
        ] {
            let error = Condition::compile(source).expect_err(source).to_string();
            assert!(error.contains(expect), "{source}: {error}");
        }
    }

    #[test]
    fn a_condition_is_serialised_as_its_source() {
        let source = r"has(args.x) && args.x.matches(r'^[(\[{(]{9}\\') && !(args.y in ['b', {'c': tool.id}])";
        let condition: Condition = serde_json::from_value(source.into()).expect("a condition");
        assert_eq!(serde_json::to_value(&condition).expect("JSON"), source);
        assert_eq!(condition.patterns.keys().collect::<Vec<_>>(), [r"^[(\[{(]{9}\\"]);
    }
}
