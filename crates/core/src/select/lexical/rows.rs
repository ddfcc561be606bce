//! Rows of different lengths in one vector.

use super::interner::number;

/// Lists by position, one after the other.
#[derive(Clone)]
pub(super) struct Rows<T> {
    /// Where each row ends.
    ends: Vec<u32>,
    items: Vec<T>,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self { ends: Vec::new(), items: Vec::new() }
    }
}

impl<T: Copy> Rows<T> {
    pub(super) fn with_capacity(rows: usize, items: usize) -> Self {
        Self { ends: Vec::with_capacity(rows), items: Vec::with_capacity(items) }
    }

    /// Adds a row.
    pub(super) fn push(&mut self, row: impl IntoIterator<Item = T>) {
        self.items.extend(row);
        self.ends.push(number(self.items.len()));
    }

    /// A row; empty past the last.
    pub(super) fn get(&self, row: usize) -> &[T] {
        let Some(&end) = self.ends.get(row) else { return &[] };
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.items[start as usize..end as usize]
    }

    pub(super) fn items(&self) -> usize {
        self.items.len()
    }

    pub(super) fn shrink(&mut self) {
        self.items.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Bytes of heap that they hold.
    pub(super) fn bytes(&self) -> usize {
        self.ends.capacity() * size_of::<u32>() + self.items.capacity() * size_of::<T>()
    }
}
