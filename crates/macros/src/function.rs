//! The annotated function and its signature.

use quote::ToTokens;
use syn::ext::IdentExt as _;
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Error, Expr, FnArg, GenericArgument, Ident, ItemFn, Lit, Meta, Pat, PatType, PathArguments, ReturnType,
    Safety, Token, Type,
};

/// The parts of a function that the macro needs.
pub(crate) struct Function {
    /// The function without the attributes that only the macro understands.
    pub(crate) item: ItemFn,
    /// Its doc comment as a description; empty without one.
    pub(crate) description: String,
    /// The source of each parameter, in order.
    pub(crate) slots: Vec<Slot>,
    /// The form of the arguments.
    pub(crate) arguments: Arguments,
    /// The type of a success; `None` for the unit type.
    pub(crate) success: Option<Type>,
    /// The type of a failure, if any.
    pub(crate) failure: Option<Type>,
}

/// The source of one parameter's value.
pub(crate) enum Slot {
    /// The context, by reference.
    Context,
    /// An owned context.
    OwnContext,
    /// The argument of this name.
    Argument(Ident),
    /// The whole arguments object.
    All,
}

/// The form of the arguments.
pub(crate) enum Arguments {
    /// A single struct.
    Struct(Box<Type>),
    /// A parameter each.
    Each(Vec<Argument>),
}

/// A parameter that is an argument.
pub(crate) struct Argument {
    pub(crate) ident: Ident,
    pub(crate) ty: Type,
    /// Doc comment, `#[serde(…)]` and `#[schemars(…)]`.
    pub(crate) attributes: Vec<Attribute>,
    /// The name a model writes; `None` if the attributes make the parameter something other than one named argument.
    pub(crate) name: Option<String>,
    /// Whether it must be given.
    pub(crate) required: bool,
}

impl Function {
    /// Reads a function. Errors go to `errors`.
    pub(crate) fn read(mut item: ItemFn, errors: &mut Vec<Error>) -> Self {
        refuse(&item, errors);
        let mut slots = Vec::new();
        let mut parameters = Vec::new();
        for input in &mut item.sig.inputs {
            let FnArg::Typed(parameter) = input else { continue };
            let (own, kept) = std::mem::take(&mut parameter.attrs).into_iter().partition(belongs_on_field);
            parameter.attrs = kept;
            match context(&parameter.ty) {
                Some(slot) => {
                    if slots.iter().any(|slot| matches!(slot, Slot::Context | Slot::OwnContext)) {
                        errors.push(Error::new_spanned(&parameter.ty, "one `ToolContext` is enough"));
                    }
                    slots.push(slot);
                }
                None => {
                    slots.push(Slot::All);
                    parameters.push((parameter.clone(), own));
                }
            }
        }
        let arguments = match parameters.as_slice() {
            [(parameter, own)] if own.is_empty() && !is_plain(&parameter.ty) => Arguments::Struct(parameter.ty.clone()),
            _ => Arguments::Each(
                parameters.into_iter().filter_map(|(parameter, own)| argument(&parameter, own, errors)).collect(),
            ),
        };
        if let Arguments::Each(each) = &arguments {
            let all = slots.iter_mut().filter(|slot| matches!(slot, Slot::All));
            all.zip(each).for_each(|(slot, argument)| *slot = Slot::Argument(argument.ident.clone()));
        }
        let (success, failure) = returned(&item.sig.output, errors);
        let description = description(&doc_lines(&item.attrs));
        Self { item, description, slots, arguments, success, failure }
    }
}

/// Rejects a function that cannot be a tool.
fn refuse(item: &ItemFn, errors: &mut Vec<Error>) {
    let signature = &item.sig;
    let mut refuse = |what: &dyn ToTokens, message: &str| errors.push(Error::new_spanned(what, message));
    if signature.asyncness.is_none() {
        refuse(&signature.fn_token, "a tool is an `async fn`: write `async` in front of `fn`");
    }
    if let Some(receiver) = signature.receiver() {
        let message =
            "a tool is a free function, without `self`; a tool with state implements `toolwright::core::Tool`";
        refuse(receiver, message);
    }
    let generic = "a tool has one schema, so its function cannot be generic";
    if !signature.generics.params.is_empty() {
        refuse(&signature.generics, generic);
    } else if let Some(clause) = &signature.generics.where_clause {
        refuse(clause, generic);
    }
    if let Safety::Unsafe(word) = &signature.safety {
        refuse(word, "a tool cannot be `unsafe`: a model calls it");
    }
    if let Some(abi) = &signature.abi {
        refuse(abi, "a tool is a Rust function");
    }
    if let Some(word) = &signature.constness {
        refuse(word, "a tool cannot be `const`");
    }
}

/// Attributes of a parameter that belong on a field.
fn belongs_on_field(attribute: &Attribute) -> bool {
    ["doc", "serde", "schemars"].iter().any(|name| attribute.path().is_ident(name))
}

/// Recognises `ToolContext` and `&ToolContext`, with any path.
fn context(ty: &Type) -> Option<Slot> {
    let named = |ty: &Type| last_segment(ty).is_some_and(|segment| segment.ident == "ToolContext");
    match ty {
        Type::Reference(reference) if reference.mutability.is_none() && named(&reference.elem) => Some(Slot::Context),
        owned if named(owned) => Some(Slot::OwnContext),
        _ => None,
    }
}

fn last_segment(ty: &Type) -> Option<&syn::PathSegment> {
    match ty {
        Type::Path(path) => path.path.segments.last(),
        _ => None,
    }
}

/// Types of the language and its library, which are never the struct of all arguments.
fn is_plain(ty: &Type) -> bool {
    const NAMES: &[&str] = &[
        "bool", "char", "String", "f32", "f64", "i8", "i16", "i32", "i64", "i128", "isize", "u8", "u16", "u32", "u64",
        "u128", "usize", "Option", "Vec", "VecDeque", "HashMap", "BTreeMap", "IndexMap", "HashSet", "BTreeSet",
        "IndexSet", "PathBuf", "Duration", "Value", "Map",
    ];
    last_segment(ty).is_none_or(|segment| NAMES.iter().any(|name| segment.ident == name))
}

fn argument(parameter: &PatType, attributes: Vec<Attribute>, errors: &mut Vec<Error>) -> Option<Argument> {
    let ident = match &*parameter.pat {
        Pat::Ident(pattern) if pattern.subpat.is_none() && pattern.by_ref.is_none() => pattern.ident.clone(),
        pattern => {
            errors.push(Error::new_spanned(
                pattern,
                "an argument needs a name: a pattern only stands for the struct of all",
            ));
            return None;
        }
    };
    if let Type::Reference(reference) = &*parameter.ty {
        let message = match last_segment(&reference.elem) {
            Some(segment) if segment.ident == "ToolContext" => "the context is shared: take `&ToolContext`",
            Some(segment) if segment.ident == "str" => "an argument owns its data: take a `String`",
            _ => "an argument owns its data: take it by value",
        };
        errors.push(Error::new_spanned(reference, message));
        return None;
    }
    if let Type::ImplTrait(ty) = &*parameter.ty {
        errors.push(Error::new_spanned(ty, "a tool has one schema, so its function cannot be generic"));
        return None;
    }
    let optional = last_segment(&parameter.ty).is_some_and(|segment| segment.ident == "Option");
    let mut argument = Argument {
        name: Some(ident.unraw().to_string()),
        ident,
        ty: (*parameter.ty).clone(),
        attributes: Vec::new(),
        required: !optional,
    };
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("serde")) {
        argument.apply_serde(attribute, errors);
    }
    argument.attributes = attributes;
    Some(argument)
}

impl Argument {
    /// Applies `#[serde(…)]`: the name, and whether the argument is required.
    fn apply_serde(&mut self, attribute: &Attribute, errors: &mut Vec<Error>) {
        let list = match attribute.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated) {
            Ok(list) => list,
            Err(error) => return errors.push(error),
        };
        for meta in list {
            let word = meta.path().get_ident().map(ToString::to_string).unwrap_or_default();
            match (word.as_str(), &meta) {
                ("default", _) => self.required = false,
                ("rename", Meta::NameValue(pair)) => self.name = text(&pair.value),
                ("rename" | "flatten" | "skip" | "skip_deserializing", _) => (self.name, self.required) = (None, false),
                _ => {}
            }
        }
    }
}

fn text(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// The lines of the doc comment, without the space that follows the slashes.
fn doc_lines(attributes: &[Attribute]) -> Vec<String> {
    let mut lines = Vec::new();
    for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("doc")) {
        if let Meta::NameValue(pair) = &attribute.meta
            && let Some(text) = text(&pair.value)
        {
            lines.extend(text.split('\n').map(|line| line.strip_prefix(' ').unwrap_or(line).to_owned()));
        }
    }
    lines
}

/// Returns the type of a success, and that of a failure (the whole type if it is an alias).
fn returned(output: &ReturnType, errors: &mut Vec<Error>) -> (Option<Type>, Option<Type>) {
    let ReturnType::Type(_, ty) = output else { return (None, None) };
    if let Type::ImplTrait(ty) = &**ty {
        errors.push(Error::new_spanned(ty, "a tool returns a named type: its schema is asked for"));
        return (None, None);
    }
    let Some(segment) = last_segment(ty).filter(|segment| segment.ident == "Result") else {
        return (Some((**ty).clone()), None);
    };
    let mut types = match &segment.arguments {
        PathArguments::AngleBracketed(list) => list.args.iter().collect::<Vec<_>>(),
        _ => Vec::new(),
    }
    .into_iter()
    .filter_map(|argument| if let GenericArgument::Type(ty) = argument { Some(ty.clone()) } else { None });
    let success = types.next();
    if success.is_none() {
        errors.push(Error::new_spanned(ty, "the type of a success must stand here: `Result<T, ToolError>`"));
    }
    (success, Some(types.next().unwrap_or_else(|| (**ty).clone())))
}

/// The prose of a doc comment up to its first heading: the lines of a paragraph joined, blank lines between
/// paragraphs, lists, tables, quotes and code line by line.
pub(crate) fn description(lines: &[String]) -> String {
    let mut out = String::new();
    let mut fenced = false;
    let mut joinable = false;
    for line in lines.iter().map(|line| line.trim_end()) {
        let text = line.trim_start();
        let fence = text.starts_with("```");
        if text.starts_with('#') && !fenced {
            break;
        }
        let own_line = fenced || fence || line.starts_with("    ") || starts_own_line(text);
        if text.is_empty() && !fenced {
            if !out.is_empty() && !out.ends_with("\n\n") {
                out.push_str("\n\n");
            }
            joinable = false;
        } else {
            if !out.is_empty() && !out.ends_with("\n\n") {
                out.push(if joinable && !own_line { ' ' } else { '\n' });
            }
            out.push_str(if fenced { line } else { text });
            joinable = !fenced && !fence;
        }
        fenced ^= fence;
    }
    out.trim_end().to_owned()
}

/// Lists, tables and quotes.
fn starts_own_line(text: &str) -> bool {
    let numbered = text.trim_start_matches(|c: char| c.is_ascii_digit());
    ["- ", "* ", "+ ", "|", "> "].iter().any(|mark| text.starts_with(mark))
        || (numbered.len() < text.len() && (numbered.starts_with(". ") || numbered.starts_with(") ")))
}
