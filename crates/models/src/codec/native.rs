//! Reads from answers the tools that the model's provider ran itself: uses, cited sources, files. The source is the
//! items that are sent back unchanged; formats as the official SDKs have them (anthropic-sdk-python, openai-python,
//! python-genai).

use serde_json::Value;
use toolwright_core::model::{Artifact, Citation, NativeOutput, NativeTool, NativeUse};

/// Reads an item of an answer.
pub(super) fn note(item: &Value, out: &mut NativeOutput) {
    match item["type"].as_str() {
        Some("server_tool_use") => {
            let tool = match text(&item["name"]) {
                "web_search" => NativeTool::WebSearch,
                "code_execution" | "bash_code_execution" | "text_editor_code_execution" => NativeTool::CodeExecution,
                _ => return,
            };
            used(tool, item, &item["input"], true, out);
        }
        Some(kind) if kind.ends_with("_tool_result") => anthropic_result(item, out),
        Some("text") => {
            for citation in list(&item["citations"]) {
                cite(&citation["title"], &citation["url"], out);
            }
        }
        Some("web_search_call") => used(NativeTool::WebSearch, item, &item["action"], completed(item), out),
        Some("file_search_call") => used(NativeTool::FileSearch, item, &item["queries"], completed(item), out),
        Some("code_interpreter_call") => {
            used(NativeTool::CodeExecution, item, &item["code"], completed(item), out);
            for output in list(&item["outputs"]) {
                data_url(text(&output["url"]), out);
            }
        }
        Some("image_generation_call") => {
            used(NativeTool::ImageGen, item, &item["revised_prompt"], completed(item), out);
            let format = item["output_format"].as_str().unwrap_or("png");
            let media_type = if format == "svg" { "image/svg+xml".to_owned() } else { format!("image/{format}") };
            file(media_type, item["result"].as_str(), &item["id"], out);
        }
        // The annotations of a message.
        Some("message") => list(&item["annotations"]).for_each(|annotation| annotated(annotation, out)),
        Some(_) => {}
        None => gemini(item, out),
    }
}

/// Reads a result of Anthropic's native tools, with the files of a program.
fn anthropic_result(item: &Value, out: &mut NativeOutput) {
    let (content, id) = (&item["content"], text(&item["tool_use_id"]));
    if let Some(used) = out.uses.iter_mut().rev().find(|used| used.id == id) {
        used.ok = content["error_code"].is_null();
    }
    for output in list(&content["content"]).filter(|output| output["file_id"].is_string()) {
        let id = text(&output["file_id"]);
        let path = is_id(id).then(|| format!("/v1/files/{id}/content"));
        stored(&output["file_id"], path, out);
    }
}

fn annotated(annotation: &Value, out: &mut NativeOutput) {
    match annotation["type"].as_str() {
        Some("url_citation") => cite(&annotation["title"], &annotation["url"], out),
        Some("file_citation") => cite(&annotation["filename"], &Value::Null, out),
        Some("container_file_citation") => {
            let (container, id) = (text(&annotation["container_id"]), text(&annotation["file_id"]));
            let path = (is_id(container) && is_id(id)).then(|| format!("/containers/{container}/files/{id}/content"));
            stored(&annotation["filename"], path, out);
        }
        _ => {}
    }
}

/// Reads a part of Gemini that is neither text nor a call, or the grounding of its answer.
fn gemini(item: &Value, out: &mut NativeOutput) {
    if let Some(code) = item.get("executableCode") {
        used(NativeTool::CodeExecution, code, &code["code"], true, out);
    } else if let Some(result) = item.get("codeExecutionResult") {
        let is_code = |used: &&mut NativeUse| used.tool == NativeTool::CodeExecution;
        if let Some(used) = out.uses.iter_mut().rev().find(is_code) {
            used.ok = text(&result["outcome"]) == "OUTCOME_OK";
        }
    } else if let Some(data) = item.get("inlineData") {
        file(text(&data["mimeType"]).to_owned(), data["data"].as_str(), &Value::Null, out);
    } else if let Some(call) = item.get("toolCall") {
        if text(&call["toolType"]).starts_with("GOOGLE_SEARCH") {
            used(NativeTool::WebSearch, call, &call["args"], true, out);
        }
    } else if let Some(grounding) = item.get("groundingMetadata") {
        // If the answer has calls, the queries are theirs.
        if out.uses.iter().all(|used| used.tool != NativeTool::WebSearch) {
            for query in list(&grounding["webSearchQueries"]) {
                used(NativeTool::WebSearch, grounding, query, true, out);
            }
        }
        for chunk in list(&grounding["groundingChunks"]) {
            cite(&chunk["web"]["title"], &chunk["web"]["uri"], out);
        }
    }
}

fn used(tool: NativeTool, item: &Value, input: &Value, ok: bool, out: &mut NativeOutput) {
    out.uses.push(NativeUse { tool, id: text(&item["id"]).to_owned(), input: input.clone(), ok });
}

fn completed(item: &Value) -> bool {
    text(&item["status"]) != "failed"
}

fn cite(title: &Value, url: &Value, out: &mut NativeOutput) {
    let url = url.as_str().map(str::to_owned);
    let title = match text(title) {
        "" => url.clone().unwrap_or_default(),
        title => title.to_owned(),
    };
    if !title.is_empty() {
        out.cite(Citation { title, url });
    }
}

/// Records a file stored at the provider.
fn stored(name: &Value, path: Option<String>, out: &mut NativeOutput) {
    let media_type = "application/octet-stream".to_owned();
    keep(Artifact { media_type, data: None, name: text(name).to_owned(), path }, out);
}

/// Whether an id is a single path segment, because ids are put into addresses.
fn is_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn file(media_type: String, data: Option<&str>, name: &Value, out: &mut NativeOutput) {
    keep(Artifact { media_type, data: data.map(str::to_owned), name: text(name).to_owned(), path: None }, out);
}

fn keep(artifact: Artifact, out: &mut NativeOutput) {
    // A file without bytes and name cannot be fetched.
    if (artifact.data.is_some() || !artifact.name.is_empty()) && !out.artifacts.contains(&artifact) {
        out.artifacts.push(artifact);
    }
}

/// Reads a program's picture whose bytes are in a data URL.
fn data_url(url: &str, out: &mut NativeOutput) {
    if let Some((media_type, data)) = url.strip_prefix("data:").and_then(|url| url.split_once(";base64,")) {
        file(media_type.to_owned(), Some(data), &Value::Null, out);
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
