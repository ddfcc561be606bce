//! What operators were told of servers that list things not as MCP has it: each mistake once, not with each listing.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use toolwright_core::catalogue::Provider;
use toolwright_mcp::list_validation;
use toolwright_mcp::merge::Kind;

/// Mistakes of one source's list that are remembered; of more nothing is told.
const MAX_TOLD: usize = 256;

/// What was told so far.
#[derive(Default)]
pub(crate) struct Careless(Mutex<HashMap<(String, Kind), Told>>);

/// Of one list.
struct Told {
    /// Another may have its name meanwhile.
    of: Weak<dyn Provider>,
    mistakes: HashSet<String>,
}

impl Careless {
    /// What is to be told of these mistakes in a source's list, if any of them is new.
    pub(crate) fn news(&self, provider: &Arc<dyn Provider>, kind: Kind, mut mistakes: Vec<String>) -> Option<String> {
        // Most make none, and then nothing is looked up.
        if mistakes.is_empty() {
            return None;
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|_, told| told.of.strong_count() > 0);
        let of_new = || Told { of: Arc::downgrade(provider), mistakes: HashSet::new() };
        let told = all.entry((provider.name().to_owned(), kind)).or_insert_with(of_new);
        if !std::ptr::addr_eq(told.of.as_ptr(), Arc::as_ptr(provider)) {
            *told = of_new();
        }
        let known = &mut told.mistakes;
        mistakes.retain(|mistake| known.len() < MAX_TOLD && known.insert(mistake.clone()));
        list_validation::told(provider.name(), kind.words(), &mistakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use toolwright_core::catalogue::ProviderKind;
    use toolwright_core::tool::StaticProvider;

    #[test]
    fn a_mistake_is_told_once_for_each_list_of_each_source() {
        let provider = |name: &str| {
            let provider = StaticProvider::new(name, ProviderKind::Mcp, Vec::new()).expect("a provider");
            Arc::new(provider) as Arc<dyn Provider>
        };
        let (careless, first) = (Careless::default(), provider("a"));
        let check = |of: &Arc<dyn Provider>, kind: Kind, mistakes: &[&str], expect: Option<&str>| {
            let line = careless.news(of, kind, mistakes.iter().map(|one| (*one).to_owned()).collect());
            let told = line.as_ref().map(|line| line.rsplit_once(": ").expect("a line").1);
            assert_eq!(told, expect, "{mistakes:?}");
        };
        check(&first, Kind::Prompts, &[], None);
        check(&first, Kind::Prompts, &["x", "x", "y"], Some("x, y"));
        check(&first, Kind::Prompts, &["x", "z"], Some("z"));
        check(&first, Kind::Prompts, &["y", "z", "x"], None);
        check(&first, Kind::Resources, &["x"], Some("x"));
        check(&provider("b"), Kind::Prompts, &["x"], Some("x"));
        check(&provider("a"), Kind::Prompts, &["x"], Some("x"));
        check(&first, Kind::Prompts, &["x"], Some("x"));
        for at in 0..2 * MAX_TOLD {
            careless.news(&first, Kind::Prompts, vec![at.to_string()]);
        }
        check(&first, Kind::Prompts, &["more"], None);
    }
}
