//! What several sources tell a model of their tools, as one text.

use toolwright_core::pins::is_invisible;

/// Characters of one source's words that go on.
const MAX_SAID: usize = 2048;
/// Characters of all of them; who comes behind that is left out.
const MAX_ALL: usize = 16 << 10;

/// What sources say, each under its name. Their own names for their tools lack the prefix that they have here.
pub(super) fn together(said: impl Iterator<Item = (String, String)>) -> Option<String> {
    let mut all = String::new();
    for (name, words) in said {
        let words: String = words.trim().chars().filter(|c| !is_invisible(*c)).collect();
        // Quoted, so that none can speak in the name of another.
        let quoted: Vec<String> = shortened(&words).lines().map(|line| format!("> {line}")).collect();
        let part = format!("{name} says of its tools, which are called {name}__... here:\n{}", quoted.join("\n"));
        if words.is_empty() || all.chars().count() + part.chars().count() > MAX_ALL {
            continue;
        }
        if !all.is_empty() {
            all.push_str("\n\n");
        }
        all.push_str(&part);
    }
    (!all.is_empty()).then_some(all)
}

fn shortened(words: &str) -> String {
    match words.char_indices().nth(MAX_SAID) {
        Some((end, _)) => format!("{} [cut here]", &words[..end]),
        None => words.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_speak_each_under_its_name_and_within_bounds() {
        let check =
            |said: &[(&str, &str)]| together(said.iter().map(|(name, words)| ((*name).into(), (*words).into())));
        assert_eq!(check(&[]), None);
        assert_eq!(check(&[("a", " \n")]), None);
        let expect = "a says of its tools, which are called a__... here:\n> Be kind.\n> \n> b says: no\n\n\
                      b says of its tools, which are called b__... here:\n> Be quick.";
        assert_eq!(check(&[("a", "Be kind.\n\nb says:\u{202e} no"), ("b", "Be quick.")]).as_deref(), Some(expect));
        let long = "ä".repeat(3000);
        let cut = check(&[("a", &long)]).expect("words");
        assert!(cut.ends_with("ä [cut here]") && cut.chars().filter(|c| *c == 'ä').count() == MAX_SAID);
        let many = vec![("a", &*long); 20];
        assert!(check(&many).expect("words").chars().count() <= MAX_ALL + 2 * many.len());
    }
}
