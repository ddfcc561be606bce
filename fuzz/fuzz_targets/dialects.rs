//! Views of any schema: made the same each time, no larger than they have to be, and a tool is shown or said
//! to be left out.
#![no_main]

use libfuzzer_sys::fuzz_target;
use toolwright_core::model::ShownTool;
use toolwright_models::dialect::{Dialect, translate};

const DIALECTS: [Dialect; 5] =
    [Dialect::OpenAi, Dialect::Anthropic, Dialect::GeminiJsonSchema, Dialect::GeminiDeclaration, Dialect::Ollama];

fuzz_target!(|data: &[u8]| {
    let Some(parameters) = toolwright_fuzz::json(data) else { return };
    let written = parameters.to_string().len();
    let shown = |name: &str, strict| ShownTool {
        name: name.into(),
        parameters: parameters.clone(),
        strict,
        ..ShownTool::default()
    };
    let tools = [shown("left", None), shown("forbidden", Some(false)), shown("asked", Some(true))];
    for dialect in DIALECTS {
        for strict in [false, true] {
            let view = translate(dialect, &tools, strict);
            assert_eq!(view, translate(dialect, &tools, strict));
            for tool in &tools {
                let left_out = view.quarantined.iter().any(|one| one.tool == tool.name);
                assert!(left_out != view.get(&tool.name).is_some(), "{} is neither shown nor left out", tool.name);
            }
            for tool in &view.tools {
                assert!(tool.parameters["type"] == "object", "{}", tool.parameters);
                let size = tool.parameters.to_string().len() + tool.description.len();
                assert!(size <= 64 * written + (64 << 10), "{written} bytes become {size}");
            }
            assert!(view.get("forbidden").is_none_or(|tool| !tool.strict));
        }
    }
});
