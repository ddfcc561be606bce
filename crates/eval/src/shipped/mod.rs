//! The cases that come with Toolwright, for the six tools that do. They are our own.

use super::case::{CaseError, Suite};
use super::written::parse;

const FILES: [(&str, &str); 6] = [
    ("summarize.yaml", include_str!("summarize.yaml")),
    ("classify.yaml", include_str!("classify.yaml")),
    ("score.yaml", include_str!("score.yaml")),
    ("structure.yaml", include_str!("structure.yaml")),
    ("clarify.yaml", include_str!("clarify.yaml")),
    ("fact-extract.yaml", include_str!("fact-extract.yaml")),
];

/// The cases of the shipped tools, in their order.
///
/// # Errors
/// What is wrong with a file; a test holds that nothing is.
pub fn shipped_cases() -> Result<Vec<Suite>, Vec<CaseError>> {
    let mut suites = Vec::new();
    for (file, text) in FILES {
        suites.extend(parse(text, file)?);
    }
    Ok(suites)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use serde_json::json;

    use super::*;
    use crate::case::Kind;
    use toolwright_core::llm::shipped;
    use toolwright_core::schema::CompiledSchema;

    #[test]
    fn what_other_words_have_in_them_meets_nothing() {
        let suites = shipped_cases().unwrap_or_else(|faults| panic!("{}", faults[0]));
        let cases = || suites.iter().flat_map(|suite| &suite.cases);
        let of = |case: &str, summary: &str, check: usize| {
            let case = cases().find(|known| known.id == case).expect("the case");
            case.checks[check].kind.verdict(&json!({"summary": summary})).expect("no judge").value
        };
        assert!(of("closes-the-mark", "The library extends its hours from April.", 0) < 1.0);
        assert_eq!(of("closes-the-mark", "Open until ten from April.", 0), 1.0);
        assert_eq!(of("nothing-is-added", "Notice of the ship came in a letter; the price is unknown.", 1), 1.0);
        assert_eq!(of("nothing-is-added", "It was crushed by the ice.", 1), 0.0);
    }

    #[test]
    fn there_are_good_cases_for_each_of_the_six() {
        let suites = shipped_cases().unwrap_or_else(|faults| panic!("{}", faults[0]));
        let tools = shipped();
        let ids: Vec<String> = tools.iter().map(|tool| tool.source().id.without_version().to_owned()).collect();
        assert_eq!(
            suites.iter().map(|suite| suite.tool.clone()).collect::<HashSet<_>>(),
            ids.iter().cloned().collect()
        );
        for tool in &tools {
            let id = tool.source().id.without_version();
            let cases = suites.iter().filter(|suite| suite.tool == id).flat_map(|suite| &suite.cases);
            let parameters = CompiledSchema::compile(&tool.source().parameters).expect("compiles");
            let (mut count, mut judged) = (0, 0);
            for case in cases {
                count += 1;
                let violation = parameters.violations(&case.input).into_iter().next();
                assert!(violation.is_none(), "{id} {}: {violation:?}", case.id);
                let plain = case.checks.iter().filter(|check| !matches!(check.kind, Kind::Rubric { .. })).count();
                assert!(plain > 0, "{id} {}: without a judge it says nothing", case.id);
                judged += usize::from(case.is_judged());
            }
            assert!(count >= 12, "{id} has {count} cases");
            assert!(id != "llm:summarize" || judged > 0, "prose wants a judge");
        }
    }
}
