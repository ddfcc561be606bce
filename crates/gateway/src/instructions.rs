//! The instructions of an address: the gateway's own text, and what each source says about its tools.

use toolwright_core::pins::is_invisible;

/// The longest text, in UTF-16 units: Claude Code 2.1.285 cuts at 2,048.
const MAX_ALL: usize = 2048;
/// The shortest quote of a source. If there is no room for one of each, the last sources are only counted.
const MIN_QUOTE_LENGTH: usize = 60;
const CUT: &str = " [cut here]";

/// Returns `ours`, then each source's instructions, quoted under its name. Longer quotes use the room that short ones
/// leave. The heading gives the prefix of the source's tools, because its own text does not know it.
pub(crate) fn combine_instructions(ours: &[String], sources: impl Iterator<Item = (String, String)>) -> Option<String> {
    let mut all = shortened(&ours.join("\n\n"), MAX_ALL);
    let texts =
        sources.map(|(name, words)| (name, words.trim().chars().filter(|c| !is_invisible(*c)).collect::<String>()));
    let mut parts: Vec<Part> =
        texts.filter(|(_, words)| !words.is_empty()).map(|(name, words)| Part::new(&name, &words)).collect();
    let room = MAX_ALL.saturating_sub(units(&all));
    // As many quotes as fit.
    let left_out = |count: usize| format!("\n\n({count} more have instructions, for which there is no room.)");
    let least: Vec<usize> = parts.iter().map(|part| part.head + part.words.min(MIN_QUOTE_LENGTH)).collect();
    let mut count = parts.len();
    let needs = |count: usize| {
        let rest = least.len() - count;
        least[..count].iter().sum::<usize>() + if rest > 0 { units(&left_out(rest)) } else { 0 }
    };
    while count > 0 && needs(count) > room {
        count -= 1;
    }
    let rest = parts.split_off(count).len();
    let note = if rest > 0 { left_out(rest) } else { String::new() };
    let heads: usize = parts.iter().map(|part| part.head).sum();
    let share = share(parts.iter().map(|part| part.words), room.saturating_sub(heads + units(&note)));
    for part in &parts {
        all.push_str(&part.text(share));
    }
    if units(&all) + units(&note) <= MAX_ALL {
        all.push_str(&note);
    }
    let all = all.trim_start();
    (!all.is_empty()).then(|| all.to_owned())
}

/// Returns `ours`, then the instructions of the only source of an address.
pub(crate) fn of_one(ours: &[String], instructions: Option<String>) -> Option<String> {
    let mut all = ours.to_vec();
    all.extend(instructions);
    (!all.is_empty()).then(|| shortened(&all.join("\n\n"), MAX_ALL))
}

/// The instructions of one source.
struct Part {
    heading: String,
    /// Quoted, so that no source can write in another's name.
    quoted: String,
    head: usize,
    words: usize,
}

impl Part {
    fn new(name: &str, words: &str) -> Self {
        let heading = format!("\n\n{name} says of its tools, which are called {name}__... here:\n");
        let quoted = words.lines().map(|line| format!("> {line}")).collect::<Vec<_>>().join("\n");
        Self { head: units(&heading), words: units(&quoted), heading, quoted }
    }

    fn text(&self, share: usize) -> String {
        format!("{}{}", self.heading, shortened(&self.quoted, share))
    }
}

/// Returns the largest equal share of `room`; needs below it leave the rest to others.
fn share(needs: impl Iterator<Item = usize>, room: usize) -> usize {
    let mut needs: Vec<usize> = needs.collect();
    needs.sort_unstable();
    let (mut room, mut others) = (room, needs.len());
    for need in needs {
        if need > room / others {
            return room / others;
        }
        (room, others) = (room - need, others - 1);
    }
    usize::MAX
}

fn units(text: &str) -> usize {
    text.chars().map(char::len_utf16).sum()
}

/// Returns a text of at most `most` units, with a mark where it was cut.
fn shortened(words: &str, most: usize) -> String {
    if units(words) <= most {
        return words.to_owned();
    }
    let room = most.saturating_sub(units(CUT));
    let mut used = 0;
    let fits = |c: &char| {
        used += c.len_utf16();
        used <= room
    };
    let mut beginning: String = words.chars().take_while(fits).collect();
    beginning.push_str(CUT);
    beginning
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(ours: &str, said: &[(&str, &str)]) -> Option<String> {
        let ours: Vec<String> = (!ours.is_empty()).then(|| ours.to_owned()).into_iter().collect();
        combine_instructions(&ours, said.iter().map(|(name, words)| ((*name).into(), (*words).into())))
    }

    #[test]
    fn each_source_is_quoted_under_its_name() {
        assert_eq!(check("", &[]), None);
        assert_eq!(check("", &[("a", " \n")]), None);
        let expect = "Ours.\n\na says of its tools, which are called a__... here:\n> Be kind.\n> \n> b says: no\n\n\
                      b says of its tools, which are called b__... here:\n> Be quick.";
        let said = [("a", "Be kind.\n\nb says:\u{202e} no"), ("b", "Be quick.")];
        assert_eq!(check("Ours.", &said).as_deref(), Some(expect));
    }

    #[test]
    fn instructions_share_the_room_of_claude_code() {
        let long = "ä".repeat(3000);
        let said = [("a", &*long), ("b", "Short."), ("c", &*long)];
        let text = check("Ours.", &said).expect("words");
        assert!(text.starts_with("Ours.\n\na says") && text.contains("> Short.") && text.ends_with("ä [cut here]"));
        assert!((MAX_ALL - 2..=MAX_ALL).contains(&units(&text)), "{}", units(&text));
        let of = |name: &str| text.split(&format!("{name}__... here:\n")).nth(1).expect("quoted").matches('ä').count();
        let (a, c) = (text.matches('ä').count() - of("c"), of("c"));
        assert_eq!(a, c);
        // These characters have two UTF-16 units.
        let wide = check("", &[("a", &*"🦀".repeat(2000))]).expect("words");
        assert!(units(&wide) <= MAX_ALL && wide.ends_with("🦀 [cut here]"));
    }

    #[test]
    fn sources_without_room_are_counted() {
        let names: Vec<String> = (0..100).map(|n| format!("server-{n}")).collect();
        let words = "Words. ".repeat(50);
        let said: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &*words)).collect();
        let text = check("Ours.", &said).expect("words");
        assert!(units(&text) <= MAX_ALL && text.contains("more have instructions"), "{text}");
        assert!(text.contains("server-0 says") && !text.contains("server-99 says"));
        let one = of_one(&["Ours.".to_owned()], Some("ä".repeat(3000))).expect("words");
        assert!(one.starts_with("Ours.\n\nä") && units(&one) == MAX_ALL);
    }
}
