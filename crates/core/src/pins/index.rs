//! The pins of a source, to be looked up.

use std::cell::OnceCell;
use std::collections::HashMap;

use super::Pin;
use crate::tool_id::ToolId;

/// The pins of one source.
///
/// Pins go by the name at the source. Policy, scripts and people go by the id, which several such names may come to
/// (`get`, `Get`): a name without a pin whose id is that of a pinned tool takes that tool's place, and is judged by its pin.
#[derive(Debug)]
pub struct PinIndex<'a> {
    pins: &'a [Pin],
    by_tool: HashMap<&'a str, &'a Pin>,
    by_id: OnceCell<HashMap<String, &'a Pin>>,
}

impl<'a> PinIndex<'a> {
    /// Of these.
    #[must_use]
    pub fn new(pins: &'a [Pin]) -> Self {
        let by_tool = pins.iter().map(|pin| (pin.tool.as_str(), pin)).collect();
        Self { pins, by_tool, by_id: OnceCell::new() }
    }

    /// The pin by which a tool of this name and id is judged: its own, or that of the tool whose place it takes.
    #[must_use]
    pub fn of(&self, tool: &str, id: &ToolId) -> Option<&'a Pin> {
        let own = self.by_tool.get(tool).copied();
        // Most have one of their own.
        own.or_else(|| self.by_id.get_or_init(|| self.ids()).get(id.without_version()).copied())
    }

    /// By the ids that the pinned tools had, and by those that they would have while no other has theirs.
    fn ids(&self) -> HashMap<String, &'a Pin> {
        let mut by_id: HashMap<String, &Pin> = HashMap::with_capacity(self.pins.len());
        for pin in self.pins {
            by_id.entry(pin.id.without_version().to_owned()).or_insert(pin);
        }
        for pin in self.pins {
            if let Ok(plain) = ToolId::foreign(pin.id.namespace(), &pin.tool) {
                by_id.entry(plain.without_version().to_owned()).or_insert(pin);
            }
        }
        by_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pins::PinSource;

    #[test]
    fn a_name_without_a_pin_is_judged_by_that_of_the_tool_whose_id_it_has() {
        let pin = |tool: &str, id: &str| Pin {
            source: PinSource::unscoped("s"),
            tool: tool.into(),
            id: ToolId::parse(id).expect("id"),
            approved: None,
            waiting: None,
            renamed: None,
        };
        let pins = [
            pin("get", "s:get@0.0.0"),
            // Both were listed at once.
            pin("Put", "s:put_11111111@0.0.0"),
            pin("put", "s:put_22222222@0.0.0"),
            pin("a.b", "s:a_b@0.0.0"),
            pin("greet", "s:greet@1.0.0"),
        ];
        let book = PinIndex::new(&pins);
        for (tool, id, expect) in [
            ("get", "s:get@0.0.0", Some("get")),
            ("Get", "s:get@0.0.0", Some("get")),
            ("put", "s:put@0.0.0", Some("put")),
            ("PUT", "s:put@0.0.0", Some("Put")),
            ("put_22222222", "s:put_22222222@0.0.0", Some("put")),
            ("a b", "s:a_b@0.0.0", Some("a.b")),
            ("Greet", "s:greet@2.0.0", Some("greet")),
            // Listed beside `get`, it has an id of its own.
            ("Get", "s:get_33333333@0.0.0", None),
            ("Get", "s-admin:get@0.0.0", None),
            ("gets", "s:gets@0.0.0", None),
        ] {
            let id = ToolId::parse(id).expect("id");
            assert_eq!(book.of(tool, &id).map(|pin| pin.tool.as_str()), expect, "{tool} {id}");
        }
    }
}
