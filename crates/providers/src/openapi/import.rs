//! Imports a document as tools: a pure function of document and settings, except for the document's other files.

use std::collections::HashSet;
use std::sync::Arc;

use http::{HeaderName, Method};
use serde_json::Value;
use toolwright_core::catalogue::{ToolOverride, WithheldTool};
use toolwright_core::pattern::allowed_by;
use toolwright_core::{Effects, ToolDefinition, ToolId};
use toolwright_net::HttpClient;

use crate::openapi::arguments::header_name;
use crate::openapi::config::{OpenApiConfig, Operation};
use crate::openapi::document::{Document, DocumentPart, OpenApiError, Origin, UNREADABLE, Version, of_text, of_value};
use crate::openapi::operation::{self, ResponseSpec, Source};
use crate::openapi::provider::DocumentNames;
use crate::openapi::security::{self, Keyring};
use crate::rest::{Credential, HttpTool, RequestTemplate, ResponseReading, Selection};

/// The most operations of one document that become tools.
const MAX_OPERATIONS: usize = 10_000;
/// The most operations that are examined and reported.
const MAX_SHOWN: usize = 100_000;
/// The most additional methods of one path.
const MAX_ADDITIONAL: usize = 64;
/// The most bytes of a description for the model; the whole is then in the tool's documentation.
const MAX_DESCRIPTION: usize = 2_000;
/// The most bytes of a document's summary.
const MAX_SUMMARY_BYTES: usize = 400;
/// Safe and idempotent, with a body (draft-ietf-httpbis-safe-method-w-body).
const QUERY: &str = "QUERY";
const METHODS: [(&str, Method); 8] = [
    ("get", Method::GET),
    ("put", Method::PUT),
    ("post", Method::POST),
    ("delete", Method::DELETE),
    ("options", Method::OPTIONS),
    ("head", Method::HEAD),
    ("patch", Method::PATCH),
    ("trace", Method::TRACE),
];

/// The result of an import: each of the document's first 100,000 operations is in `tools` or `refused`.
#[derive(Debug, Default)]
pub struct Import {
    /// The number of its operations.
    pub operations: usize,
    /// The tools, in the document's order.
    pub tools: Vec<Imported>,
    /// The operations that are not tools, and why.
    pub refused: Vec<RefusedOperation>,
    /// Warnings for the operator.
    pub warnings: Vec<String>,
    /// Errors for the operator: settings that match nothing in the document, with suggestions.
    pub issues: Vec<String>,
    /// The document's summary: its title and the beginning of its description.
    pub about: Option<String>,
}

/// An operation that became a tool.
pub struct Imported {
    /// Its definition: the contract is from the document, the rest from the operator's settings.
    pub definition: ToolDefinition,
    /// The operator's name for it, and a description if the document has none.
    pub overrides: ToolOverride,
    /// Its unique name at its source: `operationId`, configured name, or method and path.
    pub raw_name: String,
    /// HTTP method.
    pub method: String,
    /// Path template, as in the document.
    pub path: String,
    pub(super) made: RequestParts,
}

/// The parts that make its calls, except the client.
pub(super) struct RequestParts {
    request: RequestTemplate,
    credentials: Vec<Credential>,
    reading: ResponseReading,
}

impl RequestParts {
    pub(super) fn with(self, client: Arc<HttpClient>, settings: Arc<str>) -> HttpTool {
        HttpTool { request: self.request, credentials: self.credentials, reading: self.reading, client, settings }
    }
}

impl std::fmt::Debug for Imported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Imported({}, {} {})", self.definition.id, self.method, self.path)
    }
}

/// An operation that is not a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedOperation {
    /// Its `operationId`, or method and path.
    pub operation: String,
    /// The reason.
    pub reason: String,
    /// Whether no setting excludes it, but its declaration cannot be turned into a callable request.
    pub is_unreadable: bool,
}

impl RefusedOperation {
    fn unreadable(operation: impl Into<String>, reason: String) -> Self {
        Self { operation: operation.into(), reason, is_unreadable: true }
    }
}

impl From<RefusedOperation> for WithheldTool {
    fn from(RefusedOperation { operation, reason, is_unreadable }: RefusedOperation) -> Self {
        Self { name: operation, why: reason, is_unreadable }
    }
}

/// An operation before it is compiled.
pub(super) struct FoundOperation<'d> {
    pub(super) method: Method,
    pub(super) path: &'d str,
    /// Its path item, with referenced ones.
    pub(super) path_item: Arc<[DocumentPart<'d>]>,
    pub(super) operation: DocumentPart<'d>,
    settings: Operation,
    pub(super) name: String,
}

impl FoundOperation<'_> {
    pub(super) fn label(&self) -> String {
        let stated = self.operation.text("operationId").filter(|id| !id.trim().is_empty());
        stated.map_or_else(|| format!("{} {}", self.method, self.path), str::to_owned)
    }
}

/// Imports the text of a document.
///
/// # Errors
/// [`OpenApiError`] if it is not a document. Errors of single operations are in [`Import::refused`].
pub fn import(config: &OpenApiConfig, text: &str, origin: Origin) -> Result<Import, OpenApiError> {
    let document = Document::read(text, origin)?;
    if config.approved.is_some_and(|approved| approved != document.hash()) {
        return Err(OpenApiError::NotApproved);
    }
    let headers = headers(config)?;
    let mut import = Import { about: about(&document), ..Import::default() };
    let mut found = Vec::new();
    let mut named = DocumentNames::default();
    for entry in operations(&document, config) {
        if import.operations == MAX_SHOWN {
            import.warnings.push(format!("the document has more than {MAX_SHOWN} operations; the others are left out"));
            break;
        }
        import.operations += 1;
        match entry {
            Ok(entry) => {
                named.note(&entry, config, &document);
                if let Some(reason) = exclusion_reason(config, &entry) {
                    import.refused.push(RefusedOperation { operation: entry.label(), reason, is_unreadable: false });
                } else if let Some(reason) = unreadable(&entry, import.operations) {
                    import.refused.push(RefusedOperation::unreadable(entry.label(), reason));
                } else {
                    found.push(entry);
                }
            }
            Err(refused) => import.refused.push(refused),
        }
    }
    import.issues = named.unmatched(config, &document);
    let ids = operation::assign_ids(config, &mut found)?;
    let mut keyring = Keyring::new(config, &document);
    for (entry, id) in found.into_iter().zip(ids) {
        let operation = entry.label();
        let (mark, xml) = (document.budget.mark(), document.xml.mark());
        match compile(&document, config, &headers, &mut keyring, entry, id) {
            Ok(tool) => import.tools.push(tool),
            Err(reason) => {
                document.budget.rewind(mark);
                document.xml.forget(xml);
                import.refused.push(RefusedOperation::unreadable(operation, reason));
            }
        }
    }
    import.warnings.extend(keyring.warnings());
    Ok(import)
}

fn headers(config: &OpenApiConfig) -> Result<Vec<(HeaderName, String)>, OpenApiError> {
    let header = |(name, value): (&String, &String)| {
        let setting = |reason: String| OpenApiError::Setting { field: format!("headers.{name}"), reason };
        let header = header_name(name).map_err(setting)?;
        if http::HeaderValue::from_bytes(value.as_bytes()).is_err() {
            return Err(setting("its value holds a line break or another control character".into()));
        }
        Ok((header, value.clone()))
    };
    config.headers.iter().map(header).collect()
}

/// Returns every operation of the document, in its order.
fn operations<'d>(
    document: &'d Document,
    config: &'d OpenApiConfig,
) -> impl Iterator<Item = Result<FoundOperation<'d>, RefusedOperation>> {
    let paths = document.root().get("paths").into_iter().flat_map(DocumentPart::members);
    paths.filter(|(path, _)| !path.starts_with("x-")).flat_map(move |(path, written)| {
        // Fields beside a reference count too, and override the target's.
        let (items, broken) = document.chain(written);
        let broken = broken.or_else(|| items.last().and_then(|last| no_object(written, *last)));
        let items: Arc<[DocumentPart<'d>]> = items.into();
        let broken = broken.map(|reason| RefusedOperation::unreadable(path, reason));
        let own = METHODS.iter().filter_map(|(name, method)| Some((method.clone(), first(&items, name)?)));
        let (more, refused) = more_operations(document, path, &items);
        let of = |(method, written): (Method, DocumentPart<'d>)| {
            // Large documents keep each operation in its own file.
            let refuse = |reason| RefusedOperation::unreadable(format!("{method} {path}"), reason);
            let operation = document.follow(written).map_err(refuse)?;
            if let Some(reason) = no_object(written, operation) {
                return Err(refuse(reason));
            }
            let stated = operation.text("operationId").filter(|id| !id.trim().is_empty());
            let key = format!("{method} {path}");
            let own = stated.and_then(|id| config.operations.get(id)).or_else(|| config.operations.get(&key));
            let own = own.cloned().unwrap_or_default();
            let settings = Operation { calls: own.calls.or(&config.calls), ..own };
            let name = settings.name.clone().or_else(|| stated.map(str::to_owned));
            let name = name.unwrap_or_else(|| operation::method_and_path(&method, path));
            Ok(FoundOperation { method, path, path_item: Arc::clone(&items), operation, settings, name })
        };
        own.chain(more).map(of).chain(refused.into_iter().chain(broken).map(Err)).collect::<Vec<_>>()
    })
}

/// Returns why a value in the place of a path or an operation is invalid.
fn no_object(written: DocumentPart<'_>, found: DocumentPart<'_>) -> Option<String> {
    let what = match found.value {
        Value::Object(_) => return None,
        Value::Null => "nothing",
        Value::Array(_) => "a list",
        Value::String(_) => "text",
        Value::Bool(_) | Value::Number(_) => "a single value",
    };
    let place = written.text("$ref").map(|reference| format!("$ref `{reference}`: ")).unwrap_or_default();
    Some(format!("{place}{what} stands there, where an object is expected"))
}

/// Returns the first value of these under a name.
fn first<'d>(items: &[DocumentPart<'d>], name: &str) -> Option<DocumentPart<'d>> {
    items.iter().find_map(|item| item.get(name))
}

/// Returns the operations of a path under methods that OpenAPI 3.2 adds (`query`, `additionalOperations`), and those
/// with an invalid method.
fn more_operations<'d>(
    document: &Document,
    path: &str,
    items: &[DocumentPart<'d>],
) -> (Vec<(Method, DocumentPart<'d>)>, Vec<RefusedOperation>) {
    let (mut more, mut refused) = (Vec::new(), Vec::new());
    if document.version != Version::V32 {
        return (more, refused);
    }
    let query = first(items, "query").map(|operation| (QUERY, operation));
    let additional: Vec<_> = items.iter().filter_map(|item| item.get("additionalOperations")).collect();
    let mut known = HashSet::new();
    let additional = additional.into_iter().flat_map(DocumentPart::members);
    let additional = additional.map(|(name, operation)| (name.as_str(), operation));
    let additional = additional.filter(move |(name, _)| items.len() == 1 || known.insert(*name));
    for (at, (name, operation)) in query.into_iter().chain(additional).enumerate() {
        if at > MAX_ADDITIONAL {
            let reason = format!("it has more than {MAX_ADDITIONAL} additional operations; the others are left out");
            refused.push(RefusedOperation::unreadable(path, reason));
            break;
        }
        let is_taken = METHODS.iter().any(|(known, _)| name.eq_ignore_ascii_case(known));
        match Method::from_bytes(name.as_bytes()) {
            Ok(Method::CONNECT) => {
                let reason = "CONNECT opens a tunnel, which is no request".into();
                refused.push(RefusedOperation::unreadable(format!("{name} {path}"), reason));
            }
            Ok(method) if !is_taken && more.iter().all(|(have, _)| *have != method) => more.push((method, operation)),
            _ => {
                let name: String = name.chars().take(100).collect();
                let reason = format!("`{name}` cannot be the name of an additional method of its path");
                refused.push(RefusedOperation::unreadable(format!("{name} {path}"), reason));
            }
        }
    }
    (more, refused)
}

/// Returns why the operation with number `count` cannot be imported, as far as that is known at once.
fn unreadable(entry: &FoundOperation<'_>, count: usize) -> Option<String> {
    let too_many = || format!("it comes after the first {MAX_OPERATIONS} operations of the document");
    let undescribed = entry.operation.text(UNREADABLE).map(|reason| head(reason, MAX_DESCRIPTION));
    undescribed.or_else(|| (count > MAX_OPERATIONS).then(too_many))
}

/// Returns why an operation is excluded, if a setting or its method does so.
fn exclusion_reason(config: &OpenApiConfig, entry: &FoundOperation<'_>) -> Option<String> {
    let filter = &config.filter;
    let id = entry.operation.text("operationId").unwrap_or(&entry.name);
    let passes =
        |list: &[String], values: &[&str]| list.is_empty() || values.iter().any(|value| allowed_by(list, &[], value));
    if entry.settings.enabled == Some(false) {
        return Some("it is disabled in the configuration".into());
    }
    if !passes(&filter.methods, &[entry.method.as_str()]) {
        return Some(format!("its method is {}: filtered out", entry.method));
    }
    let tags = tags(entry.operation);
    if !passes(&filter.tags, &tags) {
        return Some(format!(
            "its tags are {}: filtered out",
            if tags.is_empty() { "none".into() } else { tags.join(", ") }
        ));
    }
    if !allowed_by(&filter.allowed, &filter.denied, id) && !allowed_by(&filter.allowed, &filter.denied, &entry.name) {
        return Some("its name is filtered out".into());
    }
    if entry.method == Method::TRACE {
        return Some("TRACE is not sent: servers and proxies answer it with what they see".into());
    }
    None
}

pub(super) fn tags(operation: DocumentPart<'_>) -> Vec<&str> {
    operation.get("tags").into_iter().flat_map(DocumentPart::items).filter_map(|tag| tag.value.as_str()).collect()
}

fn compile<'d>(
    document: &'d Document,
    config: &OpenApiConfig,
    headers: &[(HeaderName, String)],
    keyring: &mut Keyring<'d>,
    entry: FoundOperation<'d>,
    id: ToolId,
) -> Result<Imported, String> {
    let base = security::base(config, document, &entry.path_item, entry.operation)?;
    let admission = keyring.admission(entry.operation)?;
    if !base.is_vouched_for && (!admission.credentials.is_empty() || !headers.is_empty()) {
        let place = match &base.led_from {
            Some(from) => format!("where a redirect from {from} led"),
            None => "which is not where the document comes from".to_owned(),
        };
        return Err(format!(
            "its server is {}, {place}: set base_url to say that your credentials may go there",
            base.origin
        ));
    }
    let text = description(entry.operation);
    let own = ["summary", "tags"].iter().filter_map(|key| entry.operation.value.get(key)).map(of_value);
    document.budget.take(1 + 2 * of_text(&text) + own.sum::<usize>() + 2 * of_text(&base.stated))?;
    let ResponseSpec { accept, schema, streams } = operation::answers(document, entry.operation);
    document.budget.take(accept.as_ref().and_then(|accept| accept.to_str().ok()).map_or(0, of_text))?;
    let source = Source {
        document,
        method: entry.method.clone(),
        path: entry.path,
        path_item: &entry.path_item,
        operation: entry.operation,
        base,
        headers,
        admission: &admission,
        content_type: entry.settings.content_type.as_deref(),
        accept,
    };
    let mut compiled = operation::compile(&source)?;
    // Policy rules may use tags, so the document's are pinned like all its content.
    if let Some(tags) = entry.operation.value.get("tags").filter(|_| !tags(entry.operation).is_empty()) {
        document.budget.take(of_value(tags))?;
        compiled.declaration.insert("tags".into(), tags.clone());
    }
    let declaration = compiled.declaration.into();
    let settings = entry.settings;
    let select =
        settings.select.as_deref().map(Selection::parse).transpose().map_err(|reason| format!("select: {reason}"))?;
    let calls = settings.calls;
    let is_kept = config.output_schemas && select.is_none() && calls.response.is_none();
    let schema = schema.filter(|_| is_kept);
    let reading = ResponseReading {
        format: calls.response.unwrap_or_default(),
        max_bytes: config.max_bytes.unwrap_or(crate::rest::MAX_BYTES).max(1),
        structured: schema.is_some(),
        select,
        stream: None,
    };
    let shown = head(&text, MAX_DESCRIPTION);
    let mut definition = ToolDefinition::new(id, shown.clone(), Some(compiled.parameters));
    if shown.len() < text.len() {
        definition.documentation = Some(text);
    }
    definition.title = entry.operation.text("summary").map(str::to_owned);
    definition.output_schema = schema;
    definition.effects = effects(&entry.method);
    definition.tags = tags(entry.operation).into_iter().map(str::to_owned).collect();
    definition.allowed_roles = calls.allowed_roles;
    calls.limits.apply(&mut definition);
    // A setting for the whole document applies to read-only operations; a setting for one operation is explicit.
    let only_reads = settings.effects.unwrap_or(definition.effects).read_only;
    let cache = calls.cache.or(config.calls.cache.filter(|_| only_reads));
    definition.cache_ttl = cache.and_then(|cache| cache.0);
    definition.declaration = Some(declaration);
    if streams {
        definition.capabilities.insert("streaming".into(), Value::Bool(true));
    }
    let otherwise = default_description(entry.operation, &entry.method, entry.path);
    document.budget.take(otherwise.as_deref().map_or(0, of_text))?;
    let shown = ToolOverride {
        title: settings.title,
        // Generated, so not part of the pinned definition.
        description: settings.description.or(otherwise),
        effects: settings.effects,
        tags: settings.tags,
        guidance: settings.guidance,
        ..ToolOverride::default()
    };
    Ok(Imported {
        definition,
        overrides: shown,
        raw_name: entry.name,
        method: entry.method.to_string(),
        path: entry.path.to_owned(),
        made: RequestParts { request: compiled.request, credentials: admission.credentials, reading },
    })
}

/// Returns the possible effects of a method (RFC 9110 section 9.2). It is not a hint of an untrusted party, because the
/// operator named the document.
fn effects(method: &Method) -> Effects {
    match *method {
        Method::GET | Method::HEAD | Method::OPTIONS => Effects::FETCH,
        _ if method.as_str() == QUERY => Effects::FETCH,
        Method::PUT | Method::DELETE => Effects { idempotent: true, ..Effects::UNKNOWN },
        _ => Effects::UNKNOWN,
    }
}

/// Returns the document's summary and description of an operation, if present.
fn summary_and_description<'d>(operation: DocumentPart<'d>) -> [Option<&'d str>; 2] {
    ["summary", "description"].map(|key| operation.text(key).map(str::trim).filter(|text| !text.is_empty()))
}

fn description(operation: DocumentPart<'_>) -> String {
    let whole = match summary_and_description(operation) {
        [Some(summary), Some(description)] if description.starts_with(summary) => description.to_owned(),
        [Some(summary), Some(description)] => format!("{summary}\n\n{description}"),
        [Some(only), None] | [None, Some(only)] => only.to_owned(),
        [None, None] => String::new(),
    };
    deprecated(operation, whole)
}

/// Returns a description of an operation for which the document has none.
fn default_description(operation: DocumentPart<'_>, method: &Method, path: &str) -> Option<String> {
    let whole = || format!("Sends the HTTP request `{method} {}`.", head(path, MAX_DESCRIPTION));
    (summary_and_description(operation) == [None, None]).then(|| deprecated(operation, whole()))
}

fn deprecated(operation: DocumentPart<'_>, whole: String) -> String {
    match operation.value.get("deprecated") {
        Some(Value::Bool(true)) => format!("Deprecated. {whole}").trim_end().to_owned(),
        _ => whole,
    }
}

/// Returns the beginning of a text, cut after a word.
fn head(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max.saturating_sub(6));
    let end = text[..end].rfind(char::is_whitespace).unwrap_or(end);
    format!("{} […]", text[..end].trim_end())
}

fn about(document: &Document) -> Option<String> {
    let info = document.root().get("info")?;
    let title = info.text("title")?.trim();
    let first = info.text("description").map(|text| text.trim().split("\n\n").next().unwrap_or_default().trim());
    let about = match first.filter(|text| !text.is_empty()) {
        Some(first) => format!("{title}: {first}"),
        None => title.to_owned(),
    };
    Some(head(&about, MAX_SUMMARY_BYTES))
}
