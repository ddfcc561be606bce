//! The composed schema for any schema, a line, and a call by it: made the same each time, no larger than it has
//! to be, a schema itself, and a call comes back as it was written.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwright_core::model::{RawToolCall, RequestTool};
use toolwright_core::schema::CompiledSchema;
use toolwright_fuzz::{same, schema_and_instance};
use toolwright_textcalls::composed::{Composed, ComposedCall, ComposedTool, Transport};

fuzz_target!(|data: &[u8]| {
    let Some((parameters, arguments)) = schema_and_instance(data) else { return };
    let written = parameters.to_string();
    // References by address stay as they are, and dynamic ones need not lead anywhere.
    let is_plain = ["\"$id\"", "\"id\"", "namicRef\"", "rsiveRef\""].iter().all(|keyword| !written.contains(keyword));
    let compiles = is_plain && CompiledSchema::compile(&parameters).is_ok();
    let written = written.len();
    let tool = RequestTool { name: "a".into(), parameters: parameters.clone(), ..RequestTool::default() };
    let tools = [ComposedTool { tool: &tool, latent: None }, ComposedTool { tool: &tool, latent: Some(&parameters) }];
    for (output, tool) in [(None, 0), (Some(&parameters), 1)] {
        let transport = Transport::new(output, &tools[tool..=tool]);
        assert_eq!(transport, Transport::new(output, &tools[tool..=tool]));
        let size = transport.schema().to_string().len();
        assert!(size <= 64 * written + (64 << 10), "{written} bytes become {size}");
        if compiles {
            let compiled = CompiledSchema::compile(transport.schema());
            assert!(compiled.is_ok(), "{}: {} of {parameters}", compiled.expect_err("no schema"), transport.schema());
        }
        if arguments.is_object() {
            let call = RawToolCall { id: "call_0".into(), name: "a".into(), arguments: arguments.to_string() };
            let call = ComposedCall { call, reasoning: None, output: None };
            let answer = Composed { output: None, calls: vec![call], complete: true };
            let read = transport.decode(&transport.encode(&answer)).expect("an answer");
            let back = serde_json::from_str(&read.calls[0].call.arguments).expect("JSON");
            assert!(same(&back, &arguments), "{arguments} comes back as {back}");
        }
    }
});
