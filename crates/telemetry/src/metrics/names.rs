//! Bounds the number of names that distinguish series.

use std::sync::Arc;

use hashbrown::HashMap;

/// The names that are distinguished: a bounded number of at most 128 bytes each.
#[derive(Debug)]
pub(super) struct Names {
    known: HashMap<Arc<str>, Name>,
    texts: Vec<Arc<str>>,
    max: usize,
}

/// One of them, cheap to compare: its place among them. All that are too many are one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Name(usize);

impl Names {
    const MAX_LENGTH: usize = 128;

    pub(super) fn new(max: usize) -> Self {
        Self { known: HashMap::new(), texts: Vec::new(), max }
    }

    /// Which one a text is.
    pub(super) fn name(&mut self, text: &str) -> Name {
        let text = &text[..text.floor_char_boundary(Self::MAX_LENGTH)];
        if let Some(known) = self.known.get(text) {
            return *known;
        }
        let name = Name(self.texts.len());
        if name.0 < self.max {
            let text: Arc<str> = text.into();
            self.known.insert(Arc::clone(&text), name);
            self.texts.push(text);
        }
        name
    }

    /// The name itself, or `other` when there are too many.
    pub(super) fn text(&self, name: Name) -> &str {
        self.texts.get(name.0).map_or("other", |text| text)
    }

    /// The text that stands for this one: itself, cut, or `other`.
    pub(super) fn bounded(&mut self, text: &str) -> Arc<str> {
        let name = self.name(text);
        self.texts.get(name.0).map_or_else(|| "other".into(), Arc::clone)
    }
}
