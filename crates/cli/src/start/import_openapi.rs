//! `import openapi`: shows the operations of a document as tools, or adds them to the configuration.

use std::path::Path;

use serde_json::{Map, Value, json};
use toolwright::core::name_table::{NameTable, NamedTool};
use toolwright::core::tool_id::{MAX_WIRE_NAME, RESERVED_NAMESPACES};
use toolwright::import::edit::{EditError, Entries, add_entries};
use toolwright::net::{HttpClient, HttpOptions};
use toolwright::providers::openapi::{self, Filter, GroupBy, Imported, OpenApiConfig, OpenApiError, Origin};

use crate::app::trust::{target, write};
use crate::app::{GlobalOptions, cwd, read};
use crate::exit::{CommandResult, Exit, Failure};
use crate::start::edit::{Import, at, text_of};
use crate::terminal::screen::{DIM, WARN, print_json, print_text, sanitize, say, say_warning, styled};

/// The most refusals that are shown to a person; the JSON has all.
const SHOWN: usize = 20;

pub(crate) async fn command(global: &GlobalOptions, import: &Import) -> CommandResult {
    let Some(document) = import.file.as_deref().and_then(Path::to_str) else {
        return Err(Failure::usage("give the document: toolwright import openapi FILE|URL"));
    };
    let options = &import.document;
    let origin = Origin::from(document.to_owned()).within(&cwd()?);
    let mut api_config = OpenApiConfig::new("", origin.clone());
    api_config.base_url.clone_from(&options.base_url);
    api_config.filter = Filter { tags: options.tag.clone(), methods: options.method.clone(), ..Filter::default() };
    api_config.group_by = if options.group_by_tag { GroupBy::Tag } else { GroupBy::None };
    let config = read(global)?;
    let named = options.prefix.clone().unwrap_or_else(|| name_of(&origin));
    if let Some(problem) = config.unusable_for_document(&named) {
        return Err(Failure::usage(format!("{problem}; choose another with --prefix")));
    }
    api_config.address = config.sections.web.address;
    let client = HttpClient::new(api_config.address.clone(), HttpOptions::default());
    let failed = |error: OpenApiError| {
        let remedy = match &error {
            OpenApiError::Unfetchable { .. } => "; web.allowed_hosts opens a host that is not public",
            _ => "",
        };
        Failure::usage(format!("{document}: {error}{remedy}"))
    };
    let fetched = openapi::text(&api_config, &client).await.map_err(failed)?;
    api_config.name.clone_from(&named);
    let found = openapi::import(&api_config, &fetched.text, fetched.origin).map_err(failed)?;
    let path = target(global, import.target.user)?;
    let is_written = !import.dry_run && !found.tools.is_empty();
    if is_written {
        let entry = document_entry(document, &origin, &path, import);
        let text = add_entries(&text_of(&path)?, Entries::Documents, &[(named.clone(), entry)]);
        let text = text.map_err(|error| match error {
            EditError::Exists(_) => Failure::usage(format!("{}: {error} with --prefix", path.display())),
            other => at(&path)(other),
        })?;
        write(global, &path, &text)?;
    }
    for warning in found.issues.iter().chain(&found.warnings) {
        say(styled(WARN, format_args!("note: {}", sanitize(warning))));
    }
    if global.json {
        let mut answer = json!({
            "operations": found.operations,
            "imported": listed(&found.tools),
            "refused": found.refused.iter().map(|refused| json!({"operation": refused.operation, "reason": refused.reason})).collect::<Vec<_>>(),
        });
        if let (Some(answer), false) = (answer.as_object_mut(), import.dry_run) {
            answer.extend([("file".to_owned(), json!(path)), ("written".to_owned(), is_written.into())]);
        }
        print_json(&answer)?;
    } else {
        show_document(&found, import, &named, &path)?;
    }
    // A document without tools is an error, except in a dry run, which has answered its question.
    Ok(if found.tools.is_empty() && !import.dry_run { Exit::Usage } else { Exit::Ok })
}

fn show_document(found: &openapi::Import, import: &Import, name: &str, path: &Path) -> std::io::Result<()> {
    for refused in found.refused.iter().take(SHOWN) {
        say_warning(&sanitize(&format!("left out {}: {}", refused.operation, refused.reason)));
    }
    if found.refused.len() > SHOWN {
        say(format_args!("and {} more; --json shows all", found.refused.len() - SHOWN));
    }
    let (imported, all) = (found.tools.len(), found.operations);
    if import.dry_run {
        let text = |tool: &Value, key: &str| tool.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        for tool in listed(&found.tools) {
            let call = format!("{} {}", text(&tool, "method"), text(&tool, "path"));
            print_text(&format!("{}  {}", text(&tool, "wire_name"), styled(DIM, sanitize(&call))))?;
        }
    }
    match (import.dry_run, imported) {
        (_, 0) if all == 0 => say("nothing to add: the document has no operations under `paths`"),
        (_, 0) => say(format_args!("nothing to add: none of {all} operations can be a tool, for the reasons above")),
        (true, _) => say(sanitize(&format!("would add {imported} of {all} operations as {name}__…"))),
        (false, _) => {
            say(sanitize(&format!("added {imported} of {all} operations as {name}__… to {}", path.display())))
        }
    }
    Ok(())
}

fn listed(tools: &[Imported]) -> Vec<Value> {
    let named: Vec<NamedTool<'_>> = tools
        .iter()
        .map(|tool| NamedTool {
            provider: 0,
            id: &tool.definition.id,
            raw_name: &tool.raw_name,
            aliases: &tool.definition.aliases,
        })
        .collect();
    let table = NameTable::build(&named, MAX_WIRE_NAME);
    tools
        .iter()
        .enumerate()
        .map(|(index, tool)| {
            let wire_name = table.wire_name(index);
            json!({"id": tool.definition.id, "wire_name": wire_name, "method": tool.method, "path": tool.path})
        })
        .collect()
}

/// Returns the configuration entry. A file's path is relative if it is beside or below the configuration.
fn document_entry(written: &str, origin: &Origin, configuration: &Path, import: &Import) -> Value {
    let options = &import.document;
    let mut entry = Map::new();
    let document = match origin {
        Origin::Url(_) => written.to_owned(),
        Origin::File(file) => {
            let near = configuration.parent().and_then(|folder| file.strip_prefix(folder).ok());
            near.unwrap_or(file).display().to_string()
        }
    };
    entry.insert("document".into(), document.into());
    if let Some(url) = &options.base_url {
        entry.insert("base_url".into(), url.as_str().into());
    }
    if !options.tag.is_empty() {
        entry.insert("tags".into(), options.tag.clone().into());
    }
    if !options.method.is_empty() {
        entry.insert("methods".into(), options.method.clone().into());
    }
    if options.group_by_tag {
        entry.insert("group_by".into(), "tag".into());
    }
    entry.into()
}

/// Returns a namespace from the document's file name or host.
fn name_of(origin: &Origin) -> String {
    let source = match origin {
        Origin::File(path) => path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default(),
        Origin::Url(url) => url.host_str().unwrap_or_default().trim_start_matches("api.").to_owned(),
    };
    let mut name = String::new();
    for c in source.chars().flat_map(char::to_lowercase) {
        match c {
            c if c.is_ascii_alphanumeric() => name.push(c),
            _ if name.is_empty() || name.ends_with('-') => {}
            _ => name.push('-'),
        }
    }
    let name = name.trim_matches('-');
    if name.is_empty() || RESERVED_NAMESPACES.contains(&name) {
        format!("api-{name}").trim_end_matches('-').to_owned()
    } else {
        name.to_owned()
    }
}
