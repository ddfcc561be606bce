//! A policy in a file of its own, for trying it out before it goes into a configuration.

use std::path::Path;
use std::sync::Arc;

use super::check::check;
use super::node::{Data, Node};
use super::problem::{At, Problem, Severity};
use super::schema;
use super::typed::PolicySection;

/// Reads the text of `file`: what would stand in the `policy` section of a configuration, by itself or under
/// `policy`, with anything beside it; so a whole configuration will do.
///
/// # Errors
/// Everything that is wrong with it, with lines.
pub fn policy_file(text: &str, file: &Path) -> Result<PolicySection, Vec<Problem>> {
    let file: Arc<Path> = file.into();
    let mut node = Node::parse(text, &file).map_err(|problem| vec![problem])?;
    if !matches!(node.data, Data::Map(_)) {
        let remedy = "write `profile` and `rules`, as in the policy section of a configuration";
        let message = format!("it holds {}, where a mapping belongs", node.kind());
        return Err(vec![Problem::new(Severity::Error, &node.at, "", message, remedy)]);
    }
    if let Some(section) = node.take("policy") {
        node = section.value;
    }
    let mut problems = Vec::new();
    check(&mut node, schema::section("policy"), &mut problems);
    if !problems.is_empty() {
        return Err(problems);
    }
    serde_json::from_value(node.to_value()).map_err(|error| {
        let remedy = "compare it with `toolwright config schema`";
        vec![Problem::new(Severity::Error, &At { file, line: 0 }, "policy", error.to_string(), remedy)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<PolicySection, Vec<Problem>> {
        policy_file(text, Path::new("p.yaml"))
    }

    #[test]
    fn a_policy_stands_by_itself_or_in_a_configuration() {
        let bare = "profile: ask\nrules:\n- effect: deny\n  when: has(args.x)\ntools:\n- tool: 'a:*'\n  tags: [t]\n";
        let whole =
            format!("server: {{http: x}}\npolicy:\n{}", bare.replace('\n', "\n  ").replace("profile", "  profile"));
        let policy = read(bare).expect("a policy");
        assert_eq!((policy.rules.len(), policy.tools.len()), (1, 1));
        assert_eq!(read(&whole).expect("a policy"), policy);
    }

    #[test]
    fn what_is_wrong_is_said_with_file_line_and_field() {
        for (text, expect) in [
            (
                "rules:\n- effect: ask\n  when: args.",
                "p.yaml:3: error: rules.0.when: the condition cannot be read: 1:6",
            ),
            ("rules:\n- effect: ask\n  when: arg.x == 1", "names `arg`, which does not exist; did you mean `args`?"),
            ("rules:\n- effect: ask\n  whne: 'true'", "rules.0.whne: unknown key `whne`; did you mean `when`?"),
            ("- a", "holds a list, where a mapping belongs"),
            ("rules: [", "p.yaml"),
        ] {
            let problems = read(text).expect_err(text);
            let told = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            assert!(told.contains(expect), "{text}: {told}");
        }
    }
}
