//! Calls written in any text format are read back, where the format can say any text. Arguments are scalars;
//! lists and objects stand for the texts that they are written as.
#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use toolwright_core::model::{RawToolCall, RequestTool};
use toolwright_fuzz::{parameters, same, text};
use toolwright_textcalls::{Choice, Options, Values, decode, formats};

fuzz_target!(|data: &[u8]| {
    let ([format, body], written) = parameters(data);
    let format = &formats()[format % formats().len()];
    let Some(Value::Object(members)) = toolwright_fuzz::json(text(written).as_bytes()) else { return };
    let (mut arguments, mut properties) = (Map::new(), Map::new());
    for (number, value) in members.into_values().filter(|value| !value.is_null()).take(8).enumerate() {
        let (kind, value) = match value {
            Value::Bool(_) => ("boolean", value),
            Value::Number(_) => ("number", value),
            Value::String(_) => ("string", value),
            other => ("string", other.to_string().into()),
        };
        properties.insert(format!("k{number}"), json!({"type": kind}));
        arguments.insert(format!("k{number}"), value);
    }
    let parameters = json!({"type": "object", "properties": properties});
    let body_argument = (body % 2 == 1 && arguments.get("k0").is_some_and(Value::is_string)).then(|| "k0".to_owned());
    let tools = [RequestTool { name: "t_a".into(), parameters, body_argument, ..RequestTool::default() }];
    let arguments = Value::Object(arguments);
    let call = RawToolCall { id: "abcdefgh9".into(), name: "t_a".into(), arguments: arguments.to_string() };
    let calls = [call.clone(), call];

    let written = format.write_calls(&calls, &tools);
    let options = Options { tools: tools.into(), ..Options::default() };
    let read = decode(&written, Choice::Format(format), options);
    if format.values() == Values::Any {
        assert_eq!(read.calls.len(), 2, "{}: {written:?}\n{read:?}", format.name());
        for call in &read.calls {
            let back = serde_json::from_str(&call.arguments).expect("JSON");
            assert!(
                call.name == "t_a" && same(&back, &arguments),
                "{}: {arguments} in {written:?}\n{back}",
                format.name()
            );
        }
    }
});
