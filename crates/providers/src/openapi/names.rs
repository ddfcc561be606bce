//! Names of operations: each has one that no other has, and so an id.

use std::collections::{HashMap, HashSet};

use http::Method;
use toolwright_core::ToolId;
use toolwright_core::catalogue::foreign_ids;
use toolwright_core::tool_id::short_hash;

use super::error::OpenApiError;
use super::import::{Found, tags};
use super::spec::{GroupBy, OpenApiConfig};

/// Tells the names of `found` apart, and makes their ids.
///
/// # Errors
/// When the namespace is none.
pub(super) fn settle(spec: &OpenApiConfig, found: &mut [Found<'_>]) -> Result<Vec<ToolId>, OpenApiError> {
    let named: Vec<Named<'_>> =
        found.iter().map(|entry| Named { name: &entry.name, method: &entry.method, path: entry.path }).collect();
    let names = distinct(&named);
    for (entry, name) in found.iter_mut().zip(names) {
        entry.name = name;
    }
    ids(spec, found)
}

/// `get_repos_owner_repo` for `GET /repos/{owner}/{repo}`.
pub(super) fn method_and_path(method: &Method, path: &str) -> String {
    let mut name = method.as_str().to_ascii_lowercase();
    for c in path.chars() {
        match c {
            c if c.is_alphanumeric() || c == '-' => name.push(c),
            _ if name.ends_with('_') => {}
            _ => name.push('_'),
        }
    }
    name.trim_end_matches('_').to_owned()
}

/// An operation as it would be called.
struct Named<'a> {
    name: &'a str,
    method: &'a Method,
    path: &'a str,
}

/// How a name is written, each more apart from others than the one before.
#[derive(Debug, Clone, Copy)]
enum Form {
    Own,
    Placed,
    Hashed,
}

impl Named<'_> {
    fn written(&self, form: Form) -> String {
        match form {
            Form::Own => self.name.to_owned(),
            Form::Placed => self.placed(),
            Form::Hashed => self.hashed(),
        }
    }

    /// Its name with method and path, which tells apart what a document calls the same.
    fn placed(&self) -> String {
        let placed = method_and_path(self.method, self.path);
        if placed == self.name { placed } else { format!("{}_{placed}", self.name) }
    }

    /// That, with a hash: paths may differ in what no name has (`/users` and `/users/`).
    fn hashed(&self) -> String {
        format!("{}_{}", self.placed(), short_hash(&format!("{} {}", self.method, self.path), 8))
    }
}

/// A name for each, no two the same. One that nobody else has stays; another does not depend on the order of the
/// operations, unless one of them is named like the hash of another.
fn distinct(named: &[Named<'_>]) -> Vec<String> {
    let mut names: Vec<Option<String>> = vec![None; named.len()];
    let mut taken: HashSet<String> = HashSet::new();
    for form in [Form::Own, Form::Placed, Form::Hashed] {
        let wanted: Vec<Option<String>> =
            named.iter().zip(&names).map(|(named, have)| have.is_none().then(|| named.written(form))).collect();
        let mut count: HashMap<&str, usize> = HashMap::new();
        for name in wanted.iter().flatten() {
            *count.entry(name).or_default() += 1;
        }
        let is_free = |name: &&String| count.get(name.as_str()) == Some(&1) && !taken.contains(*name);
        let free: Vec<Option<String>> = wanted.iter().map(|name| name.as_ref().filter(is_free).cloned()).collect();
        for (name, free) in names.iter_mut().zip(free) {
            if let Some(free) = free {
                taken.insert(free.clone());
                *name = Some(free);
            }
        }
    }
    let numbered = |(name, named): (Option<String>, &Named<'_>)| {
        name.unwrap_or_else(|| {
            let hashed = named.hashed();
            let mut count = 2_usize;
            let mut free = hashed.clone();
            while !taken.insert(free.clone()) {
                free = format!("{hashed}_{count}");
                count += 1;
            }
            free
        })
    };
    names.into_iter().zip(named).map(numbered).collect()
}

fn ids(spec: &OpenApiConfig, found: &[Found<'_>]) -> Result<Vec<ToolId>, OpenApiError> {
    let mut groups: HashMap<String, Vec<usize>> = HashMap::new();
    for (index, entry) in found.iter().enumerate() {
        let namespace = match spec.group_by {
            GroupBy::None => spec.name.clone(),
            GroupBy::Tag => grouped(&spec.name, tags(entry.operation).first().copied().unwrap_or_default()),
        };
        groups.entry(namespace).or_default().push(index);
    }
    let mut ids: Vec<Option<ToolId>> = vec![None; found.len()];
    for (namespace, members) in groups {
        let names: Vec<&str> =
            members.iter().filter_map(|index| found.get(*index)).map(|entry| entry.name.as_str()).collect();
        let made = foreign_ids(&namespace, &names)
            .map_err(|error| OpenApiError::Setting { field: "prefix".into(), reason: error.to_string() })?;
        for (index, id) in members.into_iter().zip(made) {
            if let Some(slot) = ids.get_mut(index) {
                *slot = Some(id);
            }
        }
    }
    Ok(ids.into_iter().flatten().collect())
}

/// The namespace of a tag.
fn grouped(name: &str, tag: &str) -> String {
    let mut slug = String::new();
    for c in tag.chars().flat_map(char::to_lowercase) {
        match c {
            c if c.is_ascii_alphanumeric() => slug.push(c),
            _ if slug.is_empty() || slug.ends_with('-') => {}
            _ => slug.push('-'),
        }
    }
    let slug = slug.trim_end_matches('-');
    if slug.is_empty() { name.to_owned() } else { format!("{name}-{slug}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_of_one_name_are_told_apart_until_they_are() {
        let check = |operations: &[(&str, &str, &str)], expect: &[&str]| {
            let method = |method: &str| Method::from_bytes(method.as_bytes()).expect("method");
            let own: Vec<(Method, String)> = operations
                .iter()
                .map(|(name, verb, path)| {
                    let name = if name.is_empty() { method_and_path(&method(verb), path) } else { (*name).to_owned() };
                    (method(verb), name)
                })
                .collect();
            let named = |reversed: bool| {
                let mut named: Vec<Named<'_>> = own
                    .iter()
                    .zip(operations)
                    .map(|((method, name), (.., path))| Named { name, method, path })
                    .collect();
                if reversed {
                    named.reverse();
                }
                distinct(&named)
            };
            let (names, mut reversed) = (named(false), named(true));
            reversed.reverse();
            assert_eq!(names, reversed, "the order of a document names nothing");
            let shown: Vec<String> = names
                .iter()
                .zip(operations)
                .map(|(name, (_, method, path))| name.replace(&short_hash(&format!("{method} {path}"), 8), "#"))
                .collect();
            assert_eq!(shown, expect);
        };
        check(&[("a", "GET", "/x"), ("b", "GET", "/x")], &["a", "b"]);
        check(&[("", "GET", "/users"), ("", "GET", "/users/")], &["get_users_#", "get_users_#"]);
        check(&[("", "GET", "/a.json"), ("", "GET", "/a/json")], &["get_a_json_#", "get_a_json_#"]);
        check(&[("", "GET", "/a/{b}"), ("", "GET", "/a/b")], &["get_a_b_#", "get_a_b_#"]);
        check(
            &[("x", "GET", "/a"), ("x", "GET", "/b"), ("x_get_a", "GET", "/c")],
            &["x_get_a_#", "x_get_b", "x_get_a"],
        );
        check(&[("x", "GET", "/a"), ("x", "GET", "/a/")], &["x_get_a_#", "x_get_a_#"]);
    }
}
