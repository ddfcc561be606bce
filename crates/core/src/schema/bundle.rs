//! Bundles a JSON Schema with the documents that it refers to, before anything is validated by it: at run time no
//! reference is followed.

use indexmap::IndexMap;
use serde_json::{Map, Value};

/// Documents that one schema may refer to.
const MAX_DOCUMENTS: usize = 200;
/// Nesting depth of a schema that is searched.
const MAX_DEPTH: usize = 128;
/// Keywords whose values are data.
const DATA: [&str; 4] = ["const", "enum", "default", "examples"];

/// Loads a document, given the name of the referring document and the reference without its fragment. Returns
/// its name and content.
pub type LoadDocument<'a> = dyn FnMut(&str, &str) -> Result<(String, Value), String> + 'a;

/// `schema`, called `name`, with all documents that it refers to under `$defs`.
///
/// # Errors
/// A reference that leads nowhere, in words.
pub fn bundle(schema: &Value, name: &str, load: &mut LoadDocument<'_>) -> Result<Value, String> {
    let mut bundler = Bundler { documents: IndexMap::new(), load };
    bundler.documents.insert(name.to_owned(), Document { place: "#".to_owned(), content: schema.clone() });
    let mut next = 0;
    while let Some((name, document)) = bundler.documents.get_index(next) {
        let (name, place) = (name.clone(), document.place.clone());
        let mut content = document.content.clone();
        bundler.rewrite(&mut content, &name, &place, 0)?;
        bundler.documents[next].content = content;
        next += 1;
    }
    let mut documents = bundler.documents.into_values();
    let mut whole = documents.next().map(|root| root.content).unwrap_or_default();
    let others: Map<String, Value> = documents
        .map(|document| (document.place.rsplit('/').next().unwrap_or_default().to_owned(), document.content))
        .collect();
    if let (Value::Object(root), false) = (&mut whole, others.is_empty())
        && let Value::Object(defs) = root.entry("$defs").or_insert_with(|| Value::Object(Map::new()))
    {
        defs.extend(others);
    }
    Ok(whole)
}

struct Document {
    /// Its place in the bundle, as a reference.
    place: String,
    content: Value,
}

struct Bundler<'a, 'l> {
    /// Documents by name, the schema itself first.
    documents: IndexMap<String, Document>,
    load: &'a mut LoadDocument<'l>,
}

impl Bundler<'_, '_> {
    fn rewrite(&mut self, value: &mut Value, name: &str, place: &str, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("{name} is nested deeper than {MAX_DEPTH} levels"));
        }
        match value {
            Value::Object(members) => {
                if place != "#" && depth == 0 {
                    // They would change the meaning of references.
                    members.retain(|key, _| key != "$id" && key != "$schema");
                }
                if let Some(Value::String(reference)) = members.get_mut("$ref") {
                    *reference = self.moved(reference, name, place)?;
                }
                let schemas = members.iter_mut().filter(|(key, _)| !DATA.contains(&key.as_str()));
                for (_, member) in schemas {
                    self.rewrite(member, name, place, depth + 1)?;
                }
                Ok(())
            }
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.rewrite(item, name, place, depth + 1)),
            _ => Ok(()),
        }
    }

    /// Rewrites a reference for the bundle.
    fn moved(&mut self, reference: &str, name: &str, place: &str) -> Result<String, String> {
        let (document, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let place = if document.is_empty() { place.to_owned() } else { self.place_of(document, name)? };
        match fragment {
            "" => Ok(place),
            pointer if pointer.starts_with('/') => Ok(format!("{place}{pointer}")),
            anchor if place == "#" => Ok(format!("#{anchor}")),
            anchor => Err(format!(
                "`{reference}` in {name} names the anchor `{anchor}` of another document: use a JSON Pointer"
            )),
        }
    }

    fn place_of(&mut self, document: &str, name: &str) -> Result<String, String> {
        let (found, content) = (self.load)(name, document).map_err(|why| format!("`{document}` in {name}: {why}"))?;
        if let Some(loaded) = self.documents.get(&found) {
            return Ok(loaded.place.clone());
        }
        if self.documents.len() > MAX_DOCUMENTS {
            return Err(format!("it refers to more than {MAX_DOCUMENTS} documents"));
        }
        let place = format!("#/$defs/document-{}", self.documents.len());
        self.documents.insert(found, Document { place: place.clone(), content });
        Ok(place)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn bundled(schema: Value) -> Result<Value, String> {
        let files = json!({
            "a.json": {"$id": "https://x/a.json", "properties": {"b": {"$ref": "b.json#/x"}, "me": {"$ref": "#"}}},
            "b.json": {"x": {"type": "integer"}, "root": {"$ref": "root.json"}, "odd": {"$ref": "a.json#there"}},
            "root.json": schema.clone(),
        });
        bundle(&schema, "root.json", &mut |_, name| match files.get(name) {
            Some(file) if name != "b.json" || !schema.to_string().contains("plain") => {
                Ok((name.to_owned(), file.clone()))
            }
            Some(_) => Ok((name.to_owned(), json!({"x": true}))),
            None => Err("there is none".to_owned()),
        })
    }

    #[test]
    fn references_stay_in_one_document() {
        let schema = json!({"title": "plain", "items": {"$ref": "a.json"}, "const": {"$ref": "kept"}});
        let whole = bundled(schema).expect("bundled");
        assert_eq!(whole["items"], json!({"$ref": "#/$defs/document-1"}));
        assert_eq!(whole["const"], json!({"$ref": "kept"}));
        let properties = json!({"b": {"$ref": "#/$defs/document-2/x"}, "me": {"$ref": "#/$defs/document-1"}});
        assert_eq!(whole["$defs"], json!({"document-1": {"properties": properties}, "document-2": {"x": true}}));
    }

    #[test]
    fn unresolved_references_are_named() {
        for (schema, expect) in [
            (json!({"$ref": "gone.json"}), "`gone.json` in root.json: there is none"),
            (json!({"$ref": "b.json"}), "the anchor `there` of another document"),
        ] {
            let why = bundled(schema).expect_err(expect);
            assert!(why.contains(expect), "{why}");
        }
    }
}
