//! Checks several agents together: finds cycles of destinations, and names of agents and tools that do not exist.

use std::collections::BTreeMap;

use super::config::AgentConfig;
use crate::pattern::{glob_match, nearest};

/// Returns the first cycle of destinations: the names of its agents, the first one repeated at the end.
#[must_use]
pub fn find_cycle(agents: &[AgentConfig]) -> Option<Vec<String>> {
    let by_name: BTreeMap<&str, &AgentConfig> = agents.iter().map(|agent| (agent.name.as_str(), agent)).collect();
    let mut done: Vec<&str> = Vec::new();
    for agent in agents {
        // The current path of the search, each agent with its unvisited destinations.
        let mut path = vec![(agent.name.as_str(), agent.router.destinations.iter())];
        while let Some((name, left)) = path.last_mut() {
            let Some(next) = left.next() else {
                done.push(name);
                path.pop();
                continue;
            };
            let next = next.agent.as_str();
            if let Some(at) = path.iter().position(|(name, _)| *name == next) {
                let names = path[at..].iter().map(|(name, _)| (*name).to_owned());
                return Some(names.chain([next.to_owned()]).collect());
            }
            if let Some(agent) = by_name.get(next).filter(|_| !done.contains(&next)) {
                path.push((&agent.name, agent.router.destinations.iter()));
            }
        }
    }
    None
}

/// Formats the error for an unknown agent, with the nearest name among `defined_names`.
#[must_use]
pub fn unknown_agent<'n>(name: &str, defined_names: impl Iterator<Item = &'n str> + Clone) -> String {
    let hint = match nearest(name, defined_names.clone()) {
        Some(near) => format!("did you mean `{near}`?"),
        None if defined_names.clone().next().is_none() => {
            "none is defined: `toolwright agents new` writes a first one".into()
        }
        None => format!("there are {}", defined_names.collect::<Vec<_>>().join(", ")),
    };
    format!("there is no agent `{name}`; {hint}")
}

/// Globs of the agent that no tool of these names matches, with the nearest name. `names` are ids without version and wire
/// names.
#[must_use]
pub fn unknown_tools<'n>(
    agent: &AgentConfig,
    names: impl Iterator<Item = &'n str> + Clone,
) -> Vec<(String, Option<&'n str>)> {
    let globs = agent.tools.iter().flatten().chain(&agent.disallowed_tools);
    let unknown = globs.filter(|glob| !names.clone().any(|name| glob_match(glob, name)));
    unknown.map(|glob| (glob.clone(), nearest(glob, names.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::{HandoffDestination, History};

    fn agent(name: &str, destinations: &[&str]) -> AgentConfig {
        let destination = |agent: &&str| HandoffDestination {
            agent: (*agent).to_owned(),
            history: History::All,
            may_return: false,
            description: String::new(),
        };
        let mut config = AgentConfig { name: name.to_owned(), ..AgentConfig::default() };
        config.router.destinations = destinations.iter().map(destination).collect();
        config
    }

    #[test]
    fn cycles_are_found() {
        let check = |agents: &[(&str, &[&str])], expect: Option<&[&str]>| {
            let agents: Vec<AgentConfig> = agents.iter().map(|(name, to)| agent(name, to)).collect();
            assert_eq!(find_cycle(&agents), expect.map(|names| names.iter().map(|&name| name.to_owned()).collect()));
        };
        check(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &[])], None);
        check(&[("a", &["a"])], Some(&["a", "a"]));
        check(&[("a", &["b"]), ("b", &["c", "d"]), ("c", &[]), ("d", &["b"])], Some(&["b", "d", "b"]));
        check(&[("a", &["none"])], None);
        // There are 65536 paths through sixteen layers of two agents.
        let layers: Vec<(String, Vec<String>)> = (0..16)
            .flat_map(|n| {
                ["x", "y"].map(|side| (format!("{side}{n}"), vec![format!("x{}", n + 1), format!("y{}", n + 1)]))
            })
            .collect();
        let agents: Vec<AgentConfig> =
            layers.iter().map(|(name, to)| agent(name, &to.iter().map(String::as_str).collect::<Vec<_>>())).collect();
        assert_eq!(find_cycle(&agents), None);
    }

    #[test]
    fn unknown_tools_get_a_suggestion() {
        let config = AgentConfig {
            tools: Some(vec!["fs__raed".into(), "fs:*".into()]),
            disallowed_tools: vec!["github__*".into()],
            ..AgentConfig::default()
        };
        let unknown = unknown_tools(&config, ["fs__read", "fs:read"].into_iter());
        assert_eq!(unknown, [("fs__raed".to_owned(), Some("fs__read")), ("github__*".to_owned(), None)]);
    }
}
