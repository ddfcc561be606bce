//! `validate`: checks arguments against a tool or a schema, and shows the repairs that make them fit.

use std::path::Path;

use serde_json::{Value, json};
use toolwright::core::RawArguments;
use toolwright::core::arguments::{Fitted, Provenance, fit, read_object};
use toolwright::core::json::{fault, repair};
use toolwright::core::name_table::Resolution;
use toolwright::core::schema::{CompiledSchema, suggest};

use crate::app::{config, open};
use crate::args::{DraftName, Global, Validate};
use crate::exit::{Done, Exit, Failure};
use crate::input;
use crate::terminal::screen::print_json;
use crate::use_tools::call::LIST_WAIT;
use crate::use_tools::tools;

/// Against a file, without any configuration. Any JSON value may be an instance.
pub(crate) fn against_schema(file: &Path, validate: &Validate) -> Done {
    let name = file.display();
    let written_schema: Value = serde_json::from_str(&input::read(file)?)
        .map_err(|error| Failure::usage(format!("{name} is not JSON: {}", fault(&error))))?;
    let schema = match validate.draft {
        Some(DraftName(draft)) => CompiledSchema::compile_as(&written_schema, draft),
        None => CompiledSchema::compile(&written_schema),
    }
    .map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let text = written(validate)?;
    let fitted = repair(&text).map_err(|error| error.to_string()).map(|read| {
        let provenance = Provenance { repaired: read.repaired, ..Provenance::default() };
        if validate.coerce {
            fit(&schema, read.value, provenance)
        } else {
            let mut violations = schema.violations(&read.value);
            suggest(&written_schema, &read.value, &mut violations);
            Fitted { arguments: read.value, provenance, pending: Vec::new(), violations }
        }
    });
    answer(&text, fitted)
}

/// Against a tool of the catalogue, as a call of it would be.
pub(crate) async fn against_tool(global: &Global, tool: &str, validate: &Validate) -> Done {
    let text = written(validate)?;
    let app = open(global, config::usable(global)?).await?;
    app.list_for(tool, LIST_WAIT).await;
    let snapshot = app.catalogue().snapshot();
    app.shut_down().await;
    match snapshot.resolve(tool) {
        Resolution::Found(index, matched) => {
            let entry = &snapshot.list()[index];
            let mut fitted = Fitted::to(entry, RawArguments::Text(text.clone()), None);
            let schema = entry.tool.schema().ok().flatten();
            let valid = schema.is_some() && fitted.as_ref().is_ok_and(|fitted| fitted.violations.is_empty());
            // A call by a guessed name that does not fit is a call of no tool.
            if matched.is_guess() && !valid {
                return Err(tools::unknown(&snapshot, tool, std::slice::from_ref(&entry.wire_name)));
            }
            if let (true, Some(schema), Ok(fitted), Some(written)) =
                (validate.no_coerce, schema, &mut fitted, read_object(&text))
                && !fitted.provenance.coerced.is_empty()
            {
                fitted.violations = schema.violations(&written);
                fitted.arguments = written;
                fitted.provenance.coerced.clear();
            }
            answer(&text, fitted.map_err(|unusable| format!("the arguments {}", unusable.message)))
        }
        Resolution::Unknown(near) => Err(tools::unknown(&snapshot, tool, &near)),
    }
}

/// What was written; nothing stands for an empty object.
fn written(validate: &Validate) -> Result<String, Failure> {
    match validate.arguments.as_deref() {
        None => Ok("{}".into()),
        Some("-") => input::read(Path::new("-")),
        Some(text) => Ok(text.into()),
    }
}

/// Prints `{valid, arguments, coerced, repaired, errors}`.
fn answer(text: &str, fitted: Result<Fitted, String>) -> Done {
    let (valid, document) = match fitted {
        Ok(Fitted { arguments, provenance, violations, .. }) => (
            violations.is_empty(),
            json!({
                "valid": violations.is_empty(),
                "arguments": arguments,
                "coerced": provenance.coerced,
                "repaired": provenance.repaired,
                "errors": violations,
            }),
        ),
        Err(message) => (
            false,
            json!({
                "valid": false,
                "arguments": serde_json::from_str(text).unwrap_or_else(|_| Value::from(text)),
                "coerced": [],
                "repaired": false,
                "errors": [{"path": "", "keyword": "parse", "message": message}],
            }),
        ),
    };
    print_json(&document)?;
    Ok(if valid { Exit::Ok } else { Exit::Failed })
}
