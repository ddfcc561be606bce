//! The official test suite of JSON Schema: a selection that lies here, and the whole where it is.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{CompiledSchema, Draft};

/// What came of the tests of one draft.
#[derive(Debug, Default)]
struct Tally {
    passed: usize,
    refused: usize,
    failed: Vec<String>,
}

impl Tally {
    /// One group of tests, as the suite writes them: `{description, schema, tests: [{data, valid}]}`.
    fn group(&mut self, draft: Draft, group: &Value) {
        let title = format!("draft {}: {}", draft.as_str(), group["description"]);
        let tests = group["tests"].as_array().expect("tests");
        let compiled = match CompiledSchema::compile_as(&group["schema"], draft) {
            Ok(compiled) => compiled,
            Err(error) if error.message.contains("http://localhost:1234/") && error.message.contains("refused") => {
                self.refused += tests.len();
                return;
            }
            Err(error) => return self.failed.push(format!("{title}: {error}")),
        };
        for test in tests {
            let valid = test["valid"].as_bool();
            let agree = Some(compiled.is_valid(&test["data"])) == valid
                && Some(compiled.violations(&test["data"]).is_empty()) == valid;
            match agree {
                true => self.passed += 1,
                false => self.failed.push(format!("{title}: {}", test["description"])),
            }
        }
    }
}

fn read(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).expect("a file of the suite");
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_selection_passes() {
    let selection: BTreeMap<String, Vec<Value>> =
        serde_json::from_str(include_str!("fixtures/json_schema_suite.json")).expect("the selection");
    for draft in Draft::ALL {
        let mut tally = Tally::default();
        for group in &selection[draft.as_str()] {
            tally.group(draft, group);
        }
        assert_eq!(tally.failed, Vec::<String>::new());
        assert!(tally.passed > 0 && tally.refused > 0, "draft {}: {tally:?}", draft.as_str());
    }
}

/// `TOOLWRIGHT_JSON_SCHEMA_SUITE` names the suite's folder, which has `tests` in it.
#[test]
fn the_whole_suite_passes_where_it_is() {
    let Some(folder) = std::env::var_os("TOOLWRIGHT_JSON_SCHEMA_SUITE").map(PathBuf::from) else { return };
    let mut failed = Vec::new();
    for draft in Draft::ALL {
        let mut tally = Tally::default();
        let files = std::fs::read_dir(folder.join("tests").join(format!("draft{}", draft.as_str()))).expect("a folder");
        for file in files.map(|file| file.expect("a file").path()).filter(|file| file.is_file()) {
            for group in read(&file) {
                tally.group(draft, &group);
            }
        }
        let Tally { passed, refused, .. } = tally;
        println!("draft {}: {passed} passed, {refused} refused, {} failed", draft.as_str(), tally.failed.len());
        failed.append(&mut tally.failed);
    }
    assert_eq!(failed, Vec::<String>::new());
}
