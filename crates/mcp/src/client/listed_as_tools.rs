//! Offers resources and prompts of a server as tools, if its entry requests that.

use serde_json::{Map, Value, json};
use toolwright_core::catalogue::ProviderCall;
use toolwright_core::content::ContentBlock;
use toolwright_core::error::ToolError;
use toolwright_core::outcome::ToolOutput;

use super::exchange::{Exchange, OutgoingRequest, transport};
use super::listing::WrappedMethod;
use super::reply::block;

/// Raw names of the tools for resources.
const LIST: &str = "list_resources";
const READ: &str = "read_resource";
/// Prefix of the raw name of a prompt's tool.
const PROMPT: &str = "prompt_";

/// A tool of ours.
#[derive(Debug)]
pub(crate) struct ListedTool {
    /// Its raw name.
    pub(crate) name: String,
    /// Its definition, as a server would list it.
    pub(crate) fields: Map<String, Value>,
    /// The prompt or resource method behind it.
    pub(crate) wrapped_method: WrappedMethod,
}

impl ListedTool {
    fn new(name: String, tool: Value, wrapped_method: WrappedMethod) -> Self {
        let mut fields = match tool {
            Value::Object(fields) => fields,
            _ => Map::new(),
        };
        fields.insert("name".to_owned(), name.as_str().into());
        fields.insert("annotations".to_owned(), json!({"readOnlyHint": true}));
        Self { name, fields, wrapped_method }
    }
}

/// Tools that list and read a server's resources.
pub(crate) fn resources() -> Vec<ListedTool> {
    let list = json!({
        "description": "Lists the resources of this server, with the addresses that can be read.",
        "inputSchema": {"type": "object", "properties": {
            "cursor": {"type": "string", "description": "Where the last list said that the next one begins."},
        }},
    });
    let read = json!({
        "description": "Reads a resource of this server.",
        "inputSchema": {"type": "object", "required": ["uri"], "properties": {
            "uri": {"type": "string", "description": "Address of the resource, as listed or made of a listed template."},
        }},
    });
    vec![
        ListedTool::new(LIST.to_owned(), list, WrappedMethod::Resources),
        ListedTool::new(READ.to_owned(), read, WrappedMethod::Resource),
    ]
}

/// Returns a tool for each prompt. Prompts without a name are skipped.
pub(crate) fn prompts(listed: &[Value]) -> Vec<ListedTool> {
    let prompt_tool = |prompt: &Value| {
        let name = prompt.get("name").and_then(Value::as_str).filter(|name| !name.is_empty())?;
        let mut properties = Map::new();
        let mut required = Vec::new();
        for argument in prompt.get("arguments").and_then(Value::as_array).into_iter().flatten() {
            let Some(name) = argument.get("name").and_then(Value::as_str) else { continue };
            let mut schema = json!({"type": "string"});
            if let Some(description) = argument.get("description").filter(|description| description.is_string()) {
                schema["description"] = description.clone();
            }
            properties.insert(name.to_owned(), schema);
            if argument.get("required").and_then(Value::as_bool) == Some(true) {
                required.push(name);
            }
        }
        let mut tool = json!({
            "inputSchema": {"type": "object", "properties": properties, "required": required},
            "description": prompt.get("description").and_then(Value::as_str).unwrap_or("A prompt of this server."),
        });
        if let Some(title) = prompt.get("title").filter(|title| title.is_string()) {
            tool["title"] = title.clone();
        }
        Some(ListedTool::new(format!("{PROMPT}{name}"), tool, WrappedMethod::Prompt(name.to_owned())))
    };
    listed.iter().filter_map(prompt_tool).collect()
}

/// Runs a tool that stands for a prompt or resource method.
///
/// # Errors
/// As [`Exchange::run`].
pub(crate) async fn run(
    exchange: Exchange<'_>,
    wrapped_method: &WrappedMethod,
    call: ProviderCall<'_>,
) -> Result<ToolOutput, ToolError> {
    let arguments = match call.arguments {
        Value::Object(arguments) => arguments,
        _ => Map::new(),
    };
    let content = match wrapped_method {
        WrappedMethod::Resources => {
            let is_first = !arguments.contains_key("cursor");
            let listed = ask(&exchange, "resources/list", None, arguments).await?;
            let mut content: Vec<_> = entries(&exchange, &listed, "resources")?.iter().map(link).collect();
            if is_first && exchange.connection.server().offers("resources") {
                // A server need not know the method.
                if let Ok(templates) = ask(&exchange, "resources/templates/list", None, Map::new()).await {
                    content.extend(entries(&exchange, &templates, "resourceTemplates")?.iter().map(template));
                }
            }
            let next = listed.get("nextCursor").and_then(Value::as_str);
            if let Some(cursor) = next.filter(|next| exchange.connection.server().era.has_next_page(next)) {
                let cursor = if cursor.is_empty() { "\"\"" } else { cursor };
                content.push(ContentBlock::text(format!("[there are more: call again with the cursor {cursor}]")));
            }
            if content.is_empty() {
                content.push(ContentBlock::text("[there are no resources]"));
            }
            content
        }
        WrappedMethod::Resource => {
            let uri = arguments.get("uri").and_then(Value::as_str).unwrap_or_default().to_owned();
            let read = ask(&exchange, "resources/read", Some(&uri), arguments).await?;
            let resource = |resource: &Value| ContentBlock::Resource { resource: resource.clone(), extra: Map::new() };
            entries(&exchange, &read, "contents")?.iter().map(resource).collect()
        }
        WrappedMethod::Prompt(name) => {
            let params =
                Map::from_iter([("name".to_owned(), name.as_str().into()), ("arguments".to_owned(), arguments.into())]);
            let prompt = ask(&exchange, "prompts/get", Some(name), params).await?;
            let messages = entries(&exchange, &prompt, "messages")?;
            let alone = messages.len() == 1;
            let mut content = Vec::with_capacity(messages.len() * 2);
            for message in messages {
                if !alone {
                    let role = message.get("role").and_then(Value::as_str).unwrap_or("user");
                    content.push(ContentBlock::text(format!("[{role}]")));
                }
                match message.get("content") {
                    Some(Value::Array(blocks)) => content.extend(blocks.iter().cloned().map(block)),
                    Some(one) => content.push(block(one.clone())),
                    None => {}
                }
            }
            content
        }
    };
    Ok(ToolOutput { content, ..ToolOutput::default() })
}

async fn ask(
    exchange: &Exchange<'_>,
    method: &str,
    name: Option<&str>,
    params: Map<String, Value>,
) -> Result<Value, ToolError> {
    exchange.run(OutgoingRequest::of(method, name, params)).await
}

fn entries<'a>(exchange: &Exchange<'_>, result: &'a Value, key: &str) -> Result<&'a [Value], ToolError> {
    let list = result.get(key).and_then(Value::as_array);
    list.map(Vec::as_slice).ok_or_else(|| transport(exchange.server, &format!("its answer has no list of {key}")))
}

fn link(resource: &Value) -> ContentBlock {
    let mut fields = resource.as_object().cloned().unwrap_or_default();
    fields.insert("type".to_owned(), "resource_link".into());
    block(Value::Object(fields))
}

fn template(template: &Value) -> ContentBlock {
    let text = |key: &str| template.get(key).and_then(Value::as_str).unwrap_or_default();
    ContentBlock::text(format!("{} (template {}): {}", text("name"), text("uriTemplate"), text("description")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_a_tool_of_texts() {
        let listed = [
            json!({"name": "review", "title": "Review", "description": "d", "arguments": [
                {"name": "code", "description": "c", "required": true}, {"name": "style"}, {"description": "nameless"},
            ]}),
            json!({"title": "nameless"}),
        ];
        let shown = prompts(&listed);
        assert_eq!(shown.len(), 1);
        assert_eq!(
            (shown[0].name.as_str(), &shown[0].wrapped_method),
            ("prompt_review", &WrappedMethod::Prompt("review".into()))
        );
        let expect = json!({
            "type": "object", "required": ["code"],
            "properties": {"code": {"type": "string", "description": "c"}, "style": {"type": "string"}},
        });
        assert_eq!(shown[0].fields["inputSchema"], expect);
    }
}
