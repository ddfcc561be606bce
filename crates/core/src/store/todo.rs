//! The to-do list of a session: changed by item id, stored in the session log, shown again to the model.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::session_log::{LogRow, VersionedValue};
use super::values::WrittenValue;

pub use crate::policy::TODO_ID;

/// Wire name of [`TODO_ID`].
pub const TODO: &str = "agent__todo";
/// Path of the list among the values of a session.
pub const TODO_ROOT: &str = "todo";
/// Number of model answers after which the list is shown to the model again.
pub const REMIND_AFTER: u32 = 8;
/// Items of one list.
pub const MAX_ITEMS: usize = 100;
/// Characters of an item's text.
pub const MAX_TEXT: usize = 500;
/// Characters of an item's id.
pub const MAX_ID: usize = 32;

/// Progress of an item.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TodoStatus {
    /// Not started.
    #[default]
    Pending,
    /// Being worked on.
    InProgress,
    /// Done.
    #[serde(alias = "completed")]
    Done,
}

/// An item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TodoItem {
    /// Its id, unique in the list.
    #[serde(default)]
    pub id: String,
    /// The task.
    pub text: String,
    /// Its progress.
    #[serde(default)]
    pub status: TodoStatus,
    /// Its place in the list.
    #[serde(default)]
    order: u64,
}

impl TodoItem {
    fn written(&self) -> WrittenValue {
        let data = json!({"text": self.text, "status": self.status, "order": self.order});
        WrittenValue::set(format!("{TODO_ROOT}.{}", self.id), data)
    }
}

/// A change of one item. Absent fields stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct TodoPatch {
    /// The item; without it, a new one.
    pub id: Option<String>,
    /// The task.
    pub text: Option<String>,
    /// Its progress.
    pub status: Option<TodoStatus>,
    /// Whether it is removed.
    #[serde(default)]
    pub remove: bool,
}

/// The list, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TodoList(Vec<TodoItem>);

impl TodoList {
    /// Reads the list from the value at [`TODO_ROOT`]. Invalid items are skipped.
    #[must_use]
    pub fn of_value(value: Option<Value>) -> Self {
        let Some(Value::Object(members)) = value else { return Self::default() };
        let item = |(id, value): (String, Value)| {
            let item: TodoItem = serde_json::from_value(value).ok()?;
            Some(TodoItem { id, ..item })
        };
        let mut items: Vec<TodoItem> = members.into_iter().filter_map(item).collect();
        items.sort_by(|a, b| (a.order, &a.id).cmp(&(b.order, &b.id)));
        Self(items)
    }

    /// The list, by the rows of a session log at [`TODO_ROOT`].
    #[must_use]
    pub fn of_rows(rows: Vec<LogRow>) -> Self {
        Self::of_value(VersionedValue::of(rows, TODO_ROOT).value)
    }

    /// The items.
    #[must_use]
    pub fn items(&self) -> &[TodoItem] {
        &self.0
    }

    /// Whether items are open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.0.iter().any(|item| item.status != TodoStatus::Done)
    }

    /// Applies changes in order. Returns the rows to write, one for each changed item.
    ///
    /// # Errors
    /// The first invalid change; then nothing must be written.
    pub fn patch(&mut self, changes: Vec<TodoPatch>) -> Result<Vec<WrittenValue>, String> {
        let mut written = Vec::with_capacity(changes.len());
        for change in changes {
            written.push(self.change(change)?);
        }
        Ok(written)
    }

    fn change(&mut self, change: TodoPatch) -> Result<WrittenValue, String> {
        let TodoPatch { id, text, status, remove } = change;
        let id = id.unwrap_or_else(|| self.free_id());
        let is_id =
            !id.is_empty() && id.len() <= MAX_ID && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
        if !is_id {
            return Err(format!("`{id}` is no id: it has letters, digits, `_` and `-`, {MAX_ID} at most"));
        }
        if remove {
            let at = self.0.iter().position(|item| item.id == id).ok_or_else(|| self.unknown(&id))?;
            self.0.remove(at);
            return Ok(WrittenValue::delete(format!("{TODO_ROOT}.{id}")));
        }
        if let Some(item) = self.0.iter_mut().find(|item| item.id == id) {
            item.text = text.unwrap_or_else(|| std::mem::take(&mut item.text));
            item.status = status.unwrap_or(item.status);
            return Ok(item.written());
        }
        let Some(text) = text else { return Err(format!("{} A new item needs `text`.", self.unknown(&id))) };
        if self.0.len() >= MAX_ITEMS {
            return Err(format!("the list has {MAX_ITEMS} items, the maximum: remove some that are done"));
        }
        let order = self.0.iter().map(|item| item.order + 1).max().unwrap_or(0);
        let item = TodoItem { id, text, status: status.unwrap_or_default(), order };
        let written = item.written();
        self.0.push(item);
        Ok(written)
    }

    fn free_id(&self) -> String {
        let taken = |id: &String| self.0.iter().any(|item| item.id == *id);
        (1..).map(|n: u64| n.to_string()).find(|id| !taken(id)).unwrap_or_default()
    }

    fn unknown(&self, id: &str) -> String {
        let ids: Vec<&str> = self.0.iter().map(|item| &*item.id).collect();
        let there = if ids.is_empty() { "the list is empty".into() } else { format!("it has {}", ids.join(", ")) };
        format!("There is no item `{id}`: {there}.")
    }

    /// The list as lines of text.
    #[must_use]
    pub fn text(&self) -> String {
        if self.0.is_empty() {
            return "The to-do list is empty.".into();
        }
        let line = |item: &TodoItem| {
            let mark = match item.status {
                TodoStatus::Pending => "[ ]",
                TodoStatus::InProgress => "[>]",
                TodoStatus::Done => "[x]",
            };
            format!("{mark} {}: {}", item.id, item.text)
        };
        self.0.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// The list for programs.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let item = |item: &TodoItem| json!({"id": item.id, "text": item.text, "status": item.status});
        json!({"items": self.0.iter().map(item).collect::<Vec<_>>()})
    }
}

#[cfg(test)]
mod tests {
    use super::super::values::fold;
    use super::*;

    #[test]
    fn patches_change_only_what_they_name() {
        let check = |start: &[Value], change: Value, expect: Result<&str, &str>| {
            let mut list = TodoList::default();
            let mut rows = Vec::new();
            let patches = |values: &[Value]| serde_json::from_value(Value::Array(values.to_vec())).expect("patches");
            rows.extend(list.patch(patches(start)).expect("starts"));
            match (list.patch(patches(&[change])), expect) {
                (Ok(more), Ok(text)) => {
                    rows.extend(more);
                    assert_eq!(list.text(), text);
                    assert_eq!(
                        TodoList::of_value(fold(rows.iter(), TODO_ROOT, None)),
                        list,
                        "what is written reads as the list"
                    );
                }
                (Err(why), Err(words)) => assert!(why.contains(words), "{why}"),
                (got, _) => panic!("{got:?}"),
            }
        };
        let two = [json!({"text": "write"}), json!({"id": "t", "text": "test", "status": "in_progress"})];
        check(&two, json!({"id": "1", "status": "done"}), Ok("[x] 1: write\n[>] t: test"));
        check(&two, json!({"id": "1", "text": "write it"}), Ok("[ ] 1: write it\n[>] t: test"));
        check(&two, json!({"id": "1", "remove": true}), Ok("[>] t: test"));
        check(&two, json!({"text": "ship"}), Ok("[ ] 1: write\n[>] t: test\n[ ] 2: ship"));
        check(&two, json!({"id": "x", "status": "done"}), Err("it has 1, t"));
        check(&two, json!({"id": "x.y", "text": "a"}), Err("is no id"));
        check(&[], json!({"id": "x", "remove": true}), Err("the list is empty"));
    }
}
