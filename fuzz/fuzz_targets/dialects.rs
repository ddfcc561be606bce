//! Views of any schema, a line, and a call by it: made the same each time, no larger than they have to be; a
//! tool is shown or said to be left out, and a call means the same in the view and out of it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use toolwright_core::model::RequestTool;
use toolwright_core::schema::CompiledSchema;
use toolwright_fuzz::{same, schema_and_instance};
use toolwright_models::dialect::{Dialect, translate};

/// Where strict tools cannot leave a property out, null says so; so null itself comes back as nothing.
fn leave_nulls_out(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(leave_nulls_out),
        Value::Object(members) => members.retain(|_, member| {
            leave_nulls_out(member);
            !member.is_null()
        }),
        _ => {}
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((parameters, mut arguments)) = schema_and_instance(data) else { return };
    leave_nulls_out(&mut arguments);
    let written = parameters.to_string().len();
    let compiled = CompiledSchema::compile(&parameters);
    let is_call = arguments.is_object() && compiled.as_ref().is_ok_and(|compiled| compiled.is_valid(&arguments));
    let shown = |name: &str, strict| {
        let (name, parameters) = (name.to_owned(), parameters.clone());
        RequestTool { name, parameters, strict, ..RequestTool::default() }
    };
    let tools = [shown("open", None), shown("forbidden", Some(false)), shown("asked", Some(true))];
    for dialect in Dialect::ALL {
        for strict in [false, true] {
            let set = translate(dialect, &tools, strict);
            assert_eq!(set, translate(dialect, &tools, strict));
            for tool in &tools {
                let left_out = set.quarantined.iter().any(|one| one.tool == tool.name);
                assert!(left_out != set.get(&tool.name).is_some(), "{} is neither shown nor left out", tool.name);
            }
            for view in &set.tools {
                let kind = view.parameters.get("type").and_then(Value::as_str).unwrap_or("object");
                assert!(kind.eq_ignore_ascii_case("object"), "{}", view.parameters);
                let size = view.parameters.to_string().len() + view.description.len();
                assert!(size <= 64 * written + (64 << 10), "{written} bytes become {size}");
                if compiled.is_ok() {
                    let view = CompiledSchema::compile(&view.parameters);
                    assert!(view.is_ok(), "{dialect:?}: {} of {parameters}", view.expect_err("no schema"));
                }
                let shown = set.replay(&view.name, &arguments).unwrap_or_else(|| arguments.clone());
                let restored = set.restore(&view.name, &shown.to_string());
                let restored = restored.map_or(shown, |text| serde_json::from_str(&text).expect("JSON"));
                assert!(!is_call || same(&restored, &arguments), "{dialect:?}: {arguments} comes back as {restored}");
            }
            assert!(set.get("forbidden").is_none_or(|view| !view.strict));
        }
    }
});
