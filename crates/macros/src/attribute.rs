//! The keys of the attribute and their kinds of values. A key is a row of [`FIELDS`]; identity and the keys about the
//! generated code are read separately.

use proc_macro2::TokenStream;
use quote::format_ident;
use syn::{Error, Expr, Ident, LitStr, Path, Result, parse_quote};

use crate::kind::Kind;
use crate::syntax::{Json, Setting, SettingValue, Value, camel_case, duplicates, take, unknown};

/// The fields of a definition, with their kinds and an example of each.
pub(crate) const FIELDS: &[(&str, Kind, &str)] = &[
    ("description", Kind::Text, "description = \"Adds two numbers.\""),
    ("title", Kind::OptionalText, "title = \"Add\""),
    ("output_schema", Kind::Schema, "output_schema = {\"type\": \"object\"}"),
    ("tags", Kind::Texts, "tags = [\"math\"]"),
    ("aliases", Kind::Texts, "aliases = [\"plus\"]"),
    ("examples", Kind::Objects, "examples = [{\"a\": 1, \"b\": 2}]"),
    ("strict", Kind::OptionalFlag, "strict or strict = false"),
    ("safe", Kind::Flag, "safe = false"),
    ("effects", Kind::Effects, "effects(read_only, open_world = false)"),
    ("capabilities", Kind::Members, "capabilities = {\"streaming\": true}"),
    ("allowed_roles", Kind::Texts, "allowed_roles = [\"admin\"]"),
    ("mode", Kind::Word("Mode", &["direct", "background", "stateful"]), "mode = background"),
    ("concurrency", Kind::Word("Concurrency", &["safe", "exclusive", "ordered"]), "concurrency = exclusive"),
    ("timeout", Kind::Duration, "timeout = \"30s\""),
    ("idle_timeout", Kind::Duration, "idle_timeout = \"20s\""),
    ("auto_background_after", Kind::Duration, "auto_background_after = \"20s\""),
    ("retries", Kind::Count, "retries = 2"),
    ("max_output", Kind::Bytes, "max_output = 4096"),
    ("queue", Kind::OptionalText, "queue = \"slow\""),
    ("cache_ttl", Kind::Duration, "cache_ttl = \"5m\""),
    ("model_preference", Kind::Models, "model_preference(preferred_model = \"openai/gpt-5\", max_tokens = 500)"),
    ("recommended_threshold", Kind::Percent, "recommended_threshold = 95"),
    ("contribution", Kind::OptionalText, "contribution = \"Do sums with math__add.\""),
    ("documentation", Kind::OptionalText, "documentation = include_str!(\"manual.md\")"),
    ("manual_required", Kind::Flag, "manual_required"),
    ("provider_schema", Kind::Schema, "provider_schema = {\"type\": \"object\"}"),
    ("body_argument", Kind::OptionalText, "body_argument = \"text\""),
    (
        "sandbox_profile",
        Kind::Name("SandboxProfile", &["pure", "read-only", "workspace", "network", "full"]),
        "sandbox_profile = \"read-only\"",
    ),
    ("approval", Kind::OptionalText, "approval = \"always\""),
    ("threat_level", Kind::OptionalText, "threat_level = \"low\""),
    ("cost_hint", Kind::Json, "cost_hint = \"two cents\""),
    ("on_output_mismatch", Kind::Word("OnOutputMismatch", &["warn", "error"]), "on_output_mismatch = error"),
    ("meta", Kind::Members, "meta = {\"owner\": \"core\"}"),
];

/// Keys that are not fields.
const OWN: &[&str] = &["id", "namespace", "name", "version", "type_name", "scope", "crate"];

/// Fields that a tool of a Rust function cannot have, and why.
pub(crate) const ELSEWHERE: &[(&str, &str)] = &[
    ("parameters", "the schema comes from the function's parameters; `provider_schema` is a compact view for models"),
    ("allow_no_schema", "the function's parameters are always a schema"),
    ("no_schema_mode", "the function's parameters are always a schema"),
    ("activity", "the function itself runs the tool"),
    ("delegate", "the function itself runs the tool"),
    ("call_fields", "they are lifted from the schema of a tool without a function"),
    ("declaration", "it is the executable part of a tool without Rust"),
    ("provider_native", "a model provider's own tool has no function here"),
    ("signature", "definitions are signed after they are made"),
    ("signed_by", "definitions are signed after they are made"),
];

/// The attribute as read.
pub(crate) struct Attribute {
    /// Path of the support code.
    pub(crate) support: Path,
    /// Canonical id.
    pub(crate) id: String,
    /// Name of the struct.
    pub(crate) type_name: Ident,
    /// Function behind `Tool::scope`.
    pub(crate) scope: Option<Expr>,
    /// Field of the definition, and its value.
    pub(crate) fields: Vec<(Ident, TokenStream)>,
    /// Example arguments, for a check against the parameters.
    pub(crate) examples: Vec<Json>,
    /// The argument that holds a body, if written as a literal.
    pub(crate) body_argument: Option<LitStr>,
}

impl Attribute {
    /// Whether the attribute sets this field.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.fields.iter().any(|(key, _)| key == field)
    }

    /// Reads the attribute of the tool for `function`. Errors go to `errors` and reading continues, so that all errors
    /// are reported at once.
    pub(crate) fn read(settings: Vec<Setting>, function: &Ident, errors: &mut Vec<Error>) -> Self {
        errors.extend(duplicates(&settings));
        let root = take(&settings, "crate").map(path).transpose().unwrap_or_else(|error| {
            errors.push(error);
            None
        });
        let root = root.unwrap_or_else(|| parse_quote!(::toolwright));
        let support: Path = parse_quote!(#root::__private);
        let mut read = Self {
            id: identity(&settings, function, errors),
            type_name: type_name(&settings, function, errors),
            scope: None,
            fields: Vec::new(),
            examples: Vec::new(),
            body_argument: None,
            support,
        };
        for setting in settings {
            if let Err(error) = read.field(setting) {
                errors.push(error);
            }
        }
        if read.has("manual_required") && !read.has("documentation") {
            errors.push(Error::new(
                function.span(),
                "`manual_required` without a manual: set `documentation = include_str!(\"…\")`",
            ));
        }
        read
    }

    fn field(&mut self, setting: Setting) -> Result<()> {
        let name = setting.key.to_string();
        if let Some((_, kind, sample)) = FIELDS.iter().find(|(key, ..)| *key == name) {
            let value = kind.read(&setting, sample, &self.support)?;
            self.fields.push((setting.key, value));
            match (name.as_str(), setting.value) {
                ("examples", SettingValue::Json(Json { value: Value::List(items), .. })) => self.examples = items,
                ("body_argument", SettingValue::Json(Json { value: Value::Text(text), span })) => {
                    self.body_argument = Some(LitStr::new(&text, span));
                }
                _ => {}
            }
            return Ok(());
        }
        if let Some((_, why)) = ELSEWHERE.iter().find(|(key, _)| *key == name) {
            return Err(Error::new(setting.key.span(), format!("`{name}` has no place on a function: {why}")));
        }
        match (name.as_str(), setting.value) {
            ("scope", SettingValue::Rust(function)) => self.scope = Some(*function),
            ("scope", _) => {
                let message = "`scope` takes the path of a `fn(&Value, &Session) -> CallScope`: `scope = in_workspace`";
                return Err(Error::new(setting.key.span(), message));
            }
            (own, _) if OWN.contains(&own) => {}
            _ => {
                let known: Vec<&str> = FIELDS.iter().map(|(key, ..)| *key).chain(OWN.iter().copied()).collect();
                return Err(unknown(&setting.key, &known));
            }
        }
        Ok(())
    }
}

/// A text that must be a literal.
fn literal<'a>(settings: &'a [Setting], key: &str, errors: &mut Vec<Error>) -> Option<(&'a Setting, &'a str)> {
    let setting = take(settings, key)?;
    if let SettingValue::Json(Json { value: Value::Text(text), .. }) = &setting.value {
        return Some((setting, text));
    }
    errors.push(setting.error(format!("`{key}` is a text in quotes")));
    None
}

fn identity(settings: &[Setting], function: &Ident, errors: &mut Vec<Error>) -> String {
    let parts = ["namespace", "name", "version"];
    if let Some((setting, text)) = literal(settings, "id", errors) {
        if let Err(reason) = id(text) {
            errors.push(setting.error(reason));
        }
        for part in parts.iter().filter_map(|part| take(settings, part)) {
            errors.push(Error::new(part.key.span(), format!("`id` says the `{}` already", part.key)));
        }
        return text.to_owned();
    }
    if take(settings, "id").is_none() && take(settings, "namespace").is_none() {
        let message =
            "the tool has no id: write `#[tool(namespace = \"…\")]`, or `#[tool(id = \"namespace:name@1.0.0\")]`";
        errors.push(Error::new(function.span(), message));
    }
    let mut part = |key: &str, default: String| match literal(settings, key, errors) {
        Some((setting, text)) => {
            let checked = if key == "version" { version(text) } else { id_part(key, text) };
            if let Err(reason) = checked {
                errors.push(setting.error(reason));
            }
            text.to_owned()
        }
        None => default,
    };
    let (namespace, numbers) = (part("namespace", "tool".to_owned()), part("version", "1.0.0".to_owned()));
    let own_name = syn::ext::IdentExt::unraw(function).to_string();
    let name = part("name", own_name.clone());
    if take(settings, "name").is_none() && id_part("name", &own_name).is_err() {
        let message = format!("`{own_name}` is not a legal tool name (a-z, 0-9, `_`, `-`): set `name = \"…\"`");
        errors.push(Error::new(function.span(), message));
    }
    format!("{namespace}:{name}@{numbers}")
}

fn type_name(settings: &[Setting], function: &Ident, errors: &mut Vec<Error>) -> Ident {
    match take(settings, "type_name") {
        Some(setting) => match &setting.value {
            SettingValue::Rust(expression) => {
                if let Expr::Path(path) = &**expression
                    && let Some(ident) = path.path.get_ident()
                {
                    return ident.clone();
                }
                errors.push(setting.error("`type_name` is a name: `type_name = AddTool`"));
            }
            _ => errors.push(setting.error("`type_name` is a name, without quotes: `type_name = AddTool`")),
        },
        None => {
            let name = syn::ext::IdentExt::unraw(function).to_string();
            let camel = camel_case(&name);
            if camel != name && camel != "Self" && camel.starts_with(|c: char| c.is_alphabetic()) {
                return Ident::new(&camel, function.span());
            }
            let message = format!("the struct of the tool would be called `{camel}`: set `type_name = …`");
            errors.push(Error::new(function.span(), message));
        }
    }
    format_ident!("Tool")
}

fn path(setting: &Setting) -> Result<Path> {
    match &setting.value {
        SettingValue::Rust(expression) => match &**expression {
            Expr::Path(path) => Ok(path.path.clone()),
            _ => Err(setting.error("`crate` is a path: `crate = toolwright_core`")),
        },
        SettingValue::Json(Json { value: Value::Text(text), span }) => LitStr::new(text, *span).parse(),
        _ => Err(setting.error("`crate` is a path: `crate = toolwright_core`")),
    }
}

// Ids follow `toolwright_core::tool_id`; a test holds the two together.

/// Whether a namespace or name is legal: `[a-z0-9_-]`, at least one.
pub(crate) fn id_part(part: &str, text: &str) -> std::result::Result<(), String> {
    let legal = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '_' | '-');
    if text.is_empty() || !text.chars().all(legal) {
        return Err(format!("`{text}` is not a legal {part}: only a-z, 0-9, `_` and `-` are allowed, at least one"));
    }
    if part == "namespace" && text.contains("__") {
        return Err(format!("namespace `{text}` may not contain `__`: it separates namespace and name in wire names"));
    }
    Ok(())
}

/// Whether a version is three numbers.
pub(crate) fn version(text: &str) -> std::result::Result<(), String> {
    let numbers: Vec<&str> = text.split('.').collect();
    let legal = |number: &&str| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    if numbers.len() != 3 || !numbers.iter().all(legal) {
        return Err(format!("`{text}` is not a version: expected three numbers, like 1.0.0"));
    }
    Ok(())
}

/// Whether a text is a canonical id.
pub(crate) fn id(text: &str) -> std::result::Result<(), String> {
    let parts = text.split_once(':').and_then(|(namespace, rest)| Some((namespace, rest.rsplit_once('@')?)));
    let Some((namespace, (name, numbers))) = parts else {
        return Err(format!("`{text}` is not a tool id: expected namespace:name@major.minor.patch"));
    };
    id_part("namespace", namespace)?;
    id_part("name", name)?;
    version(numbers)
}
