use serde_json::json;

use super::resolve::MAX_COMPLAINTS;
use super::*;

fn values() -> Values {
    Values(json!({
        "state": {"user": {"name": "Ada", "tags": ["x", "y"], "off": false, "none": null}, "text": "†input.city"},
        "input": {"city": "Turin", "n": 3},
    }))
}

fn check(written: Value, expect: Value) -> ResolvedArguments {
    let mut value = written.clone();
    let resolved = resolve(&mut value, VariableReader::of(&values()));
    assert_eq!(value, expect, "{written}");
    resolved
}

#[test]
fn only_whole_text_references_are_replaced() {
    check(json!({"a": "†state.user.name", "b": ["†input.n"]}), json!({"a": "Ada", "b": [3]}));
    check(json!(" †state.user.tags.1 "), json!(" †state.user.tags.1 "));
    check(json!("†state.user.tags.1"), json!("y"));
    check(json!("†state.user.tags[1]"), json!("y"));
    for text in ["Dear †state.user.name", "† footnote", "†", "†other.x", "†state", "†state..x", "†state.a b"]
    {
        assert_eq!(check(json!({"a": text}), json!({"a": text})), ResolvedArguments::default());
    }
}

#[test]
fn named_references_have_place_and_variables() {
    let found = named_references(&json!({"a": "†state.x[0].y", "b": ["text", "††x", "†input.n && †state.z || 1"]}));
    let path = |steps: &[&str]| steps.iter().map(|step| (*step).to_owned()).collect::<Vec<_>>();
    let named = |kind, steps: &[&str]| NamedVariable { kind, path: path(steps) };
    assert_eq!(
        found,
        [
            NamedReference {
                path: "/a".into(),
                alternatives: vec![vec![named(VariableKind::State, &["x", "0", "y"])]],
                is_plain: true
            },
            NamedReference {
                path: "/b/2".into(),
                alternatives: vec![
                    vec![named(VariableKind::Input, &["n"]), named(VariableKind::State, &["z"])],
                    Vec::new()
                ],
                is_plain: false
            },
        ]
    );
    assert_eq!(referenced_variables("†state.a[x]"), [named(VariableKind::State, &["a[x]"])]);
    assert!(referenced_variables("plain").is_empty());
}

#[test]
fn doubled_mark_escapes_and_values_are_final() {
    check(json!("††state.user.name"), json!("†state.user.name"));
    // The arguments that run differ from those written.
    assert_eq!(check(json!({"a": "†††x"}), json!({"a": "††x"})).replaced, ["/a"]);
    check(json!("†state.text"), json!("†input.city"));
}

#[test]
fn alternatives_apply_in_order_and_gates_stop() {
    check(json!("†input.none || †input.city"), json!("Turin"));
    check(json!("†state.user.off || \"Rome\""), json!("Rome"));
    check(json!("†state.user.none||†state.user.off"), json!(false));
    check(json!("†input.n && †state.user.name"), json!("Ada"));
    check(json!("†state.user.off && †input.n || 7"), json!(7));
    check(json!(r#"†input.none || "a || \" && b" "#.trim()), json!("a || \" && b"));
    check(json!(r#"†input.n && {"q": "x && y"} || 1"#), json!({"q": "x && y"}));
    check(json!(r#"†input.none || "a || b"#), json!(r#"†input.none || "a || b"#));
    let closed = check(json!({"a": "†state.user.off && †input.n", "b": ["†input.x && 1"]}), json!({"b": [null]}));
    assert_eq!(closed.replaced, ["/a", "/b/0"]);
}

#[test]
fn texts_that_begin_like_references_are_malformed() {
    for (text, expect) in [
        ("†state.a.result || none", true),
        ("†state.a ||", true),
        ("†state[\"a\"]", true),
        ("†state.a.result + 1", true),
        ("†input..x", true),
        ("†state", true),
        ("†state.a.result || \"none\"", false),
        ("†state.a", false),
        ("††state.a ||", false),
        ("†state of mind", false),
        ("†Input.x", false),
        ("Dear †state.a ||", false),
    ] {
        assert_eq!(is_malformed(text), expect, "{text}");
    }
}

#[test]
fn gates_of_failed_calls_have_no_value() {
    let values = values();
    let without = ExceptPaths::new(&values, [("user", None), ("of", Some("①"))]);
    for (reference, put, missing) in [
        ("†state.user.name && 1", None, 1),
        ("†state.user && 1", None, 1),
        ("†state.user && 1 || 2", Some(json!(2)), 0),
        ("†state.text && 1", Some(json!(1)), 0),
        // It is left out: a value lost by another instance does not matter to this one.
        ("†state.none && 1", None, 0),
        ("†state.of && 1", None, 0),
    ] {
        let mut value = json!({"a": reference});
        let hole = PendingReference { path: "/a".into(), reference: reference.into() };
        let found = resolve_at(&mut value, &[hole], VariableReader::of(&without), Completeness::Closed);
        assert_eq!(found.missing.len(), missing, "{reference}");
        assert_eq!(value.get("a").filter(|_| missing == 0), put.as_ref(), "{reference}");
    }
}

#[test]
fn missing_values_wait_or_fail() {
    let resolved = check(
        json!({"a/b": "†state.later", "c": "†input.later", "d": "†state.later || 1"}),
        json!({"a/b": "†state.later", "c": "†input.later", "d": "†state.later || 1"}),
    );
    let paths = |holes: &[PendingReference]| holes.iter().map(|hole| hole.path.clone()).collect::<Vec<_>>();
    assert_eq!(
        (paths(&resolved.pending), paths(&resolved.missing)),
        (vec!["/a~1b".into(), "/d".into()], vec!["/c".into()])
    );

    let mut value = json!({"a/b": "†state.later", "d": "†state.later || 1", "e": "†state.user.name"});
    let later = Values(json!({"state": {"later": "†input.city"}}));
    let landed = resolve_at(&mut value, &resolved.pending, VariableReader::of(&later), Completeness::Open);
    assert_eq!(value, json!({"a/b": "†input.city", "d": "†input.city", "e": "†state.user.name"}));
    assert_eq!(landed.replaced.len(), 2);

    let mut value = json!({"a/b": "†state.later", "d": "†state.later || 1"});
    let closed = resolve_at(&mut value, &resolved.pending, VariableReader::of(&values()), Completeness::Closed);
    assert_eq!((value["d"].clone(), paths(&closed.missing)), (json!(1), vec!["/a~1b".to_owned()]));
}

#[test]
fn references_cannot_ask_for_unbounded_values() {
    let values = Values(json!({"state": {"large": "x".repeat(1 << 20), "small": 1}}));
    for reference in ["†state.large", "†state.large && 1", "†input.none || †state.large"] {
        let mut value = json!({"all": vec![reference; 1000], "last": "†state.small"});
        let resolved = resolve(&mut value, VariableReader::of(&values));
        assert!(value.to_string().len() < 17 << 20, "{reference}");
        assert_eq!(resolved.violations().len(), MAX_COMPLAINTS);
        assert_eq!(resolved.oversized.last().map(|hole| hole.path.as_str()), Some("/last"));
    }
}
