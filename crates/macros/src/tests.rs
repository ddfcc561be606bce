use std::str::FromStr as _;

use proc_macro2::TokenStream;
use toolwright_core::{ToolDefinition, ToolId, duration};

use crate::attribute::{ELSEWHERE, FIELDS};
use crate::{attribute, function, kind, syntax};

/// The messages of the errors that the macro reports, in order.
fn errors(attribute: &str, item: &str) -> Vec<String> {
    let [attribute, item] = [attribute, item].map(|text| TokenStream::from_str(text).expect("tokens"));
    let file: syn::File = syn::parse2(crate::expand(attribute, item)).expect("what comes out is Rust");
    let mut errors = Vec::new();
    for item in file.items {
        if let syn::Item::Macro(call) = item
            && call.mac.path.segments.last().is_some_and(|segment| segment.ident == "compile_error")
        {
            errors.push(call.mac.parse_body::<syn::LitStr>().expect("a message").value());
        }
    }
    errors
}

/// Expects exactly these errors, each identified by a part of its message.
fn check(attribute: &str, item: &str, expect: &[&str]) {
    let found = errors(attribute, item);
    let matches = found.len() == expect.len() && found.iter().zip(expect).all(|(found, part)| found.contains(part));
    assert!(matches, "#[tool({attribute})]\n{item}\nexpected {expect:#?}\nfound {found:#?}");
}

/// The attribute on a function that nothing is wrong with.
fn attribute(attribute: &str, expect: &[&str]) {
    check(&format!("namespace = \"t\", {attribute}"), "/// D.\nasync fn f(a: i64, b: Option<String>) {}", expect);
}

/// A function under a correct attribute.
fn function(item: &str, expect: &[&str]) {
    check("namespace = \"t\"", &format!("/// D.\n{item}"), expect);
}

#[test]
fn functions_that_cannot_become_tools() {
    function("fn f() {}", &["write `async`"]);
    function("async fn f(&self) {}", &["without `self`"]);
    function("async fn f<T>(a: T) {}", &["cannot be generic"]);
    function("async fn f<'a>(context: &'a ToolContext) {}", &["cannot be generic"]);
    function("async fn f() where u8: Copy {}", &["cannot be generic"]);
    function("async fn f(a: impl Copy) {}", &["cannot be generic"]);
    function("async unsafe fn f() {}", &["`unsafe`"]);
    function("async extern \"C\" fn f() {}", &["a Rust function"]);
    function("const async fn f() {}", &["`const`"]);
    function("async fn f(a: &str) {}", &["take a `String`"]);
    function("async fn f(a: &[u8], b: u8) {}", &["by value"]);
    function("async fn f(context: &mut ToolContext) {}", &["`&ToolContext`"]);
    function("async fn f(a: &ToolContext, b: core::ToolContext) {}", &["one `ToolContext`"]);
    function("async fn f(P { x }: P, b: u8) {}", &["needs a name"]);
    function("async fn f(#[serde(default = )] b: u8) {}", &["expected"]);
    function("async fn f() -> impl Copy {}", &["named type"]);
    function("async fn f() -> Result {}", &["`Result<T, ToolError>`"]);
    function("struct S;", &["goes on an `async fn`"]);
    check("namespace = \"t\"", "async fn f() {}", &["`f` has no doc comment"]);
    check("namespace = \"t\"", "/// # Errors\n/// None.\nasync fn f() {}", &["`f` has no doc comment"]);
    check("namespace = \"t\", description = \"D.\"", "async fn f() {}", &[]);
}

#[test]
fn functions_that_become_tools() {
    for item in [
        "async fn f() {}",
        "pub(crate) async fn f(context: &toolwright::core::ToolContext) -> Result<String, ToolError> { todo!() }",
        "async fn f(all: Search) -> Found { todo!() }",
        "async fn f(Search { text, .. }: Search, context: ToolContext) {}",
        "async fn f(/** one value */ all: Search) {}",
        "async fn f(mut a: u8, #[serde(rename(deserialize = \"x\"))] b: u8, #[serde(flatten)] c: C) {}",
        "#[cfg(unix)] #[expect(unused)] async fn f(#[expect(unused)] a: Vec<u8>) {}",
    ] {
        function(item, &[]);
    }
}

#[test]
fn identity() {
    let function = "/// D.\nasync fn read_file() {}";
    for good in
        ["namespace = \"fs\"", "id = \"fs:read@1.0.0\"", "namespace = \"a-b\", name = \"x\", version = \"0.1.2\""]
    {
        check(good, function, &[]);
    }
    check("", function, &["has no id"]);
    check("name = \"x\"", function, &["has no id"]);
    check("id = \"fs:read\"", function, &["expected namespace:name@major.minor.patch"]);
    check("id = \"fs:read@1.0\"", function, &["is not a version"]);
    check("id = 3", function, &["`id` is a text in quotes"]);
    check("id = \"a:b@1.0.0\", version = \"1.0.0\"", function, &["`id` says the `version` already"]);
    check("namespace = \"My Tools\"", function, &["`My Tools` is not a legal namespace"]);
    check("namespace = \"a__b\"", function, &["separates namespace and name"]);
    check("namespace = \"t\", version = \"1\"", function, &["is not a version"]);
    check("namespace = \"t\"", "/// D.\nasync fn grün() {}", &["`grün` is not a legal tool name"]);
    check("namespace = \"t\"", "/// D.\nasync fn Read() {}", &["not a legal tool name", "set `type_name"]);
    check("namespace = \"t\", type_name = \"X\"", function, &["without quotes"]);
    check("namespace = \"t\", type_name = X, crate = toolwright_core", function, &[]);
    check("namespace = \"t\", crate = 3", function, &["`crate` is a path"]);
}

#[test]
fn every_definition_field_is_known() {
    let error =
        serde_json::from_str::<ToolDefinition>("{\"no such field\": 1}").expect_err("unknown field").to_string();
    let mut fields: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
    let mut settings: Vec<&str> =
        FIELDS.iter().map(|(key, ..)| *key).chain(ELSEWHERE.iter().map(|(key, _)| *key)).collect();
    settings.push("id");
    fields.sort_unstable();
    settings.sort_unstable();
    assert_eq!(settings, fields);
}

#[test]
fn wrong_setting_shows_how_it_is_written() {
    attribute("timeot = \"3s\"", &["unknown setting `timeot`: did you mean `timeout`?"]);
    attribute("colour = \"red\"", &["unknown setting `colour`: known are description, "]);
    attribute("title = \"a\", tags = [], title = \"b\"", &["`title` is given twice"]);
    attribute("title", &["`title = \"Add\"`"]);
    attribute("title = 3", &["`title = \"Add\"`"]);
    attribute("tags = \"a\"", &["`tags = [\"math\"]`"]);
    attribute("tags = [1]", &["`tags = [\"math\"]`"]);
    attribute("safe = \"no\"", &["`safe = false`"]);
    attribute("timeout = 30", &["`timeout = \"30s\"`"]);
    attribute("timeout = \"3 years\"", &["is not a duration"]);
    attribute("cache_ttl = \"0s\"", &["leaves no time"]);
    attribute("mode = \"direct\"", &["`mode = background`"]);
    attribute("mode = fast", &["one of direct, background, stateful"]);
    attribute("max_output = -1", &["a number of bytes"]);
    attribute("recommended_threshold = 101", &["from 0 to 100"]);
    attribute("meta = [1]", &["`meta = {\"owner\": \"core\"}`"]);
    attribute("effects = read_only", &["`effects(read_only, open_world = false)`"]);
    attribute("effects(readonly)", &["did you mean `read_only`?"]);
    attribute("effects(read_only, read_only)", &["given twice"]);
    attribute("effects(read_only = 1)", &["`read_only = false`"]);
    attribute("effects(read_only, destructive)", &["both `read_only` and `destructive`"]);
    attribute("model_preference(model = \"a/b\")", &["unknown setting `model`"]);
    attribute("model_preference(max_tokens = \"a\")", &["`max_tokens = 500`"]);
    attribute("model_preference(temperature = \"a\")", &["`temperature = 0.2`"]);
    attribute("model_preference(temperature = 1)", &[]);
    attribute("manual_required", &["without a manual"]);
    attribute("parameters = {}", &["has no place on a function"]);
    attribute("scope = \"x\"", &["the path of a `fn"]);
    attribute("title \"x\"", &["expected `,`"]);
    attribute("\"x\"", &["expected a setting"]);
}

#[test]
fn examples_are_json_and_fit_the_parameters() {
    attribute("examples = [{\"a\": 1}, {\"a\": -2, \"b\": null}]", &[]);
    attribute("examples = [{\"a\": 18446744073709551615}]", &[]);
    attribute("examples = [{\"a\": 18446744073709551616}]", &["64 bits"]);
    attribute("examples = [{\"a\": -9223372036854775809}]", &["64 bits"]);
    attribute("examples = [{\"a\": 1u8}]", &["expected JSON"]);
    attribute("examples = [{\"a\": x}]", &["expected JSON"]);
    attribute("examples = [{a: 1}]", &["a text in quotes"]);
    attribute("examples = [{\"a\": 1, \"a\": 2}]", &["given twice"]);
    attribute("examples = {\"a\": 1}", &["`examples = [{"]);
    attribute("examples = [3]", &["not a whole number"]);
    attribute("examples = [{\"b\": \"x\"}]", &["lacks `a`"]);
    attribute("examples = [{\"a\": 1, \"c\": 2}]", &["no argument `c`, only `a`, `b`"]);
    attribute("examples = [{\"a\": \"1\"}]", &["a whole number (`i64`), and this is a text"]);
    attribute("body_argument = \"text\"", &["no argument `text`"]);
    let renamed = "/// D.\nasync fn f(#[serde(rename = \"x\")] a: i64, #[serde(default)] b: bool) {}";
    check("namespace = \"t\", examples = [{\"x\": 1}]", renamed, &[]);
    check("namespace = \"t\", examples = [{\"a\": 1}]", renamed, &["lacks `x`", "no argument `a`"]);
    let all = "/// D.\nasync fn f(all: Search) {}";
    check("namespace = \"t\", examples = [{\"anything\": 1}]", all, &[]);
    check("namespace = \"t\", examples = [{\"a\": 1}]", "/// D.\nasync fn f() {}", &["takes no arguments"]);
}

#[test]
fn all_faults_are_reported_at_once() {
    check(
        "timeot = 1, mode = fast",
        "fn f<T>(a: &str) {}",
        &[
            "write `async`",
            "cannot be generic",
            "take a `String`",
            "has no id",
            "did you mean `timeout`?",
            "one of direct",
            "no doc comment",
        ],
    );
}

#[test]
fn descriptions_are_prose_up_to_the_first_heading() {
    for (comment, expect) in [
        (&["One."][..], "One."),
        (&["One", "sentence.", "", "", "Another."], "One sentence.\n\nAnother."),
        (&["List:", "- a", "  goes on", "- b", "1. c", "2nd"], "List:\n- a goes on\n- b\n1. c 2nd"),
        (&["Code:", "```", "# x", "", "  y", "```", "after"], "Code:\n```\n# x\n\n  y\n```\nafter"),
        (&["| a | b |", "|---|---|"], "| a | b |\n|---|---|"),
        (&["One.", "", "# Errors", "None."], "One."),
        (&["", "# Errors"], ""),
    ] {
        let lines: Vec<String> = comment.iter().map(|line| (*line).to_owned()).collect();
        assert_eq!(function::description(&lines), expect);
    }
}

#[test]
fn ids_and_durations_match_core() {
    for id in [
        "a:b@1.0.0",
        "a:b",
        "a:b@1",
        "a:b@1.0.0.0",
        "A:b@1.0.0",
        "a__b:c@1.0.0",
        ":b@1.0.0",
        "a:b@c@1.0.0",
        "a:b__c@1.0.0",
        "a:b@1..0",
        "",
    ] {
        assert_eq!(attribute::id(id).is_ok(), ToolId::parse(id).is_ok(), "{id}");
    }
    for span in [
        "250ms",
        "30s",
        "1.5s",
        "2 h",
        "1d",
        "2w",
        "300",
        "",
        "s",
        "-1s",
        "1y",
        "1e400s",
        "..s",
        "99999999999999999999w",
    ] {
        assert_eq!(kind::duration(span).ok(), duration::parse(span).ok(), "{span}");
    }
}

#[test]
fn suggestions_are_near() {
    let known = ["timeout", "title", "tags"];
    for (word, expect) in [("timout", Some("timeout")), ("tag", Some("tags")), ("tilte", Some("title")), ("x", None)] {
        assert_eq!(syntax::nearest(word, &known), expect, "{word}");
    }
}
