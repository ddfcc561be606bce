use proptest::prelude::*;

use super::chunks::chunks;
use super::*;

/// The clauses of a text, each as the stems that count 1, those that count half in brackets, joins left out.
fn read(text: &str) -> Vec<String> {
    let query = Query::new(text);
    let clause = |uses: &Vec<Use>| {
        let own = uses.iter().filter(|one| !query.terms[one.term].is_joined);
        let stems = own.map(|one| match one.weight {
            1.0 => query.terms[one.term].stem.to_string(),
            _ => format!("({})", query.terms[one.term].stem),
        });
        stems.collect::<Vec<_>>().join(" ")
    };
    query.clauses.iter().map(clause).collect()
}

fn joins(text: &str) -> Vec<String> {
    let query = Query::new(text);
    let used = query.terms.iter().filter(|term| term.is_joined && term.weight > 0.0);
    used.map(|term| format!("{} {}", term.word, term.weight)).collect()
}

#[test]
fn tasks_are_told_apart() {
    let two: &[&str] = &["find cheap flight pari", "book quiet hotel room"];
    for (text, expect) in [
        ("", &[][..]),
        ("the of and", &["the of and"]),
        ("Find cheap flights to Paris", &["find cheap flight pari"]),
        ("Find cheap flights to Paris. Book a quiet hotel room", two),
        (
            "Find cheap flights to Paris! (\"Soon.\") Book a quiet hotel room",
            &["find cheap flight pari", "(soon) book quiet hotel room"],
        ),
        ("Find cheap flights to Paris\nBook a quiet hotel room", two),
        ("Find cheap flights to Paris; book a quiet hotel room", two),
        ("Find cheap flights to Paris and then book a quiet hotel room", two),
        ("Find cheap flights to Paris, and book a quiet hotel room", two),
        ("Find cheap flights to Paris. Finally, book a quiet hotel room", two),
        ("Find cheap flights to Paris, as well as book a quiet hotel room", two),
        (
            "1) Find cheap flights to Paris 2) Book a quiet hotel room",
            &["1 find cheap flight pari", "book quiet hotel room"],
        ),
        ("Find cheap flights and trains, then go", &["find cheap flight train go"]),
        ("Find cheap flights for Dr. Smith and J. Doe", &["find cheap flight dr smith j doe"]),
        (
            "Find cheap flights to Paris, e.g. book a quiet hotel room",
            &["find cheap flight pari e g book quiet hotel room"],
        ),
    ] {
        assert_eq!(read(text), expect, "{text}");
    }
}

#[test]
fn values_count_half() {
    for (text, expect) in [
        ("send \"see you. Then we go\" to bob@example.com", "send (see) (go) (bob) (exampl) (com)"),
        ("open https://example.com/a/b; close", "open (https) (exampl) (com) (b) close"),
        ("say 'good morning', don't shout", "say (good) (morn) shout"),
        ("the user's name isn't 'Ann'", "user name (ann)"),
        ("run `ls -l` and “echo”", "run (ls) (l) (echo)"),
        ("a \"file\" is a file", "file"),
        ("5\" pipes", "5 pipe"),
        ("\"\" '' ``", ""),
        ("mail a@b or @c.d", "mail b c"),
    ] {
        assert_eq!(read(text).join(" | "), expect, "{text}");
    }
}

#[test]
fn neighbours_are_joined() {
    for (text, expect) in [
        ("weather forecast", &["weatherforecast 0.5"][..]),
        ("get the weather", &[]),
        ("type c tools", &[]),
        ("say \"good morning\" world", &["goodmorning 0.25"]),
        (
            "list new log files. Then delete all very old archives",
            &["listnew 0.5", "newlog 0.5", "logfiles 0.5", "oldarchives 0.5"],
        ),
    ] {
        assert_eq!(joins(text), expect, "{text}");
    }
}

#[test]
fn earlier_turns_count_less() {
    let query = Query::conversation(&["lost", "weather", "maps", "files in Paris", "weather in Paris"]);
    let weights: Vec<_> =
        query.terms.iter().filter(|term| !term.is_joined).map(|term| (&*term.stem, term.weight)).collect();
    assert_eq!(weights, [("weather", 1.0), ("pari", 1.0), ("file", 0.5), ("map", 0.25)]);
    assert_eq!(query.clauses(), 1);
    assert_eq!(Query::conversation(&[]).clauses(), 0);
}

#[test]
fn stop_words_are_looked_for_where_there_is_nothing_else() {
    for (turns, expect) in [
        (&["get"][..], "get"),
        (&["Show me."], "show me"),
        (&["show the map"], "map"),
        (&["the weather", "show me more"], "weather"),
        (&["what is this", "show me"], "show me"),
        (&["the weather", ""], "weather"),
        (&["?"], ""),
    ] {
        let query = Query::conversation(turns);
        let stems: Vec<_> = query.terms.iter().filter(|term| !term.is_joined).map(|term| &*term.stem).collect();
        assert_eq!(stems.join(" "), expect, "{turns:?}");
    }
}

#[test]
fn a_long_query_is_cut() {
    let tasks: String = (0..500).map(|n| format!("find{n} cheap{n} flight{n}. ")).collect();
    let query = Query::new(&tasks);
    assert!(query.clauses() <= MAX_CLAUSES && query.terms.len() <= MAX_TERMS);
    assert_eq!(query.clauses(), MAX_CLAUSES);
}

proptest! {
    #[test]
    fn no_text_is_too_odd(text in r#"([a-z@.'"“” \n;,)(`]|and then |\PC){0,80}"#) {
        let cut: String = chunks(&text).map(|chunk| chunk.text).collect();
        let black = |text: &str| text.split_whitespace().collect::<String>();
        prop_assert_eq!(black(&cut), black(&text));
        let query = Query::new(&text);
        prop_assert!(query.terms.iter().all(|term| (0.0..=1.0).contains(&term.weight)));
    }
}
