//! Tests: answers that were cut at their token limit.

use super::*;

fn cut(text: &str, calls: &[(&str, &str, &str)]) -> ModelResponse {
    ModelResponse { stop: StopReason::MaxTokens, ..response(text, calls) }
}

#[test]
fn a_call_that_was_cut_is_mentioned_where_nothing_else_was_whole() {
    let mut state = begin(Limits::default());
    model(&mut state, cut("", &[]));
    let told = text_of(request(&state).messages.last().expect("message"));
    assert!(told.contains("cut at its token limit") && told.contains("shorter") && !told.contains("empty"), "{told}");

    let mut shorter = state.clone();
    model(&mut shorter, response("", &[("a", "fs__read", "{}")]));
    answer(&mut shorter, "read");
    model(&mut shorter, cut(" ", &[]));
    assert!(matches!(shorter.step(), Step::CallModel(_)), "progress earns another word");

    model(&mut state, cut("", &[]));
    let end = result(&state);
    assert!(end.status == Status::Partial && end.reason.is_some_and(|why| why.contains("cut at its token limit")));
}

#[test]
fn a_call_that_was_cut_is_mentioned_after_those_that_were_whole() {
    let mut state = begin(Limits::default());
    model(&mut state, cut("", &[("a", "fs__read", "{}"), ("b", "fs__read", "{}")]));
    answer(&mut state, "read");
    let texts: Vec<String> =
        last_results(&state).iter().map(|result| toolwright_core::content::joined_text(&result.content)).collect();
    assert!(texts[0] == "read" && texts[1].contains("cut at its token limit"), "{texts:?}");

    let mut refused = begin(Limits { calls: Some(1), ..Limits::default() });
    model(&mut refused, cut("", &[("a", "fs__read", "{}"), ("b", "fs__read", "{}")]));
    answer(&mut refused, "read");
    assert!(text_of(&refused.messages()[2]).contains("cut at its token limit"), "also after a refused call");
}
