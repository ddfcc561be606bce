//! Resolves the references in a run's calls: to the run's input, and to the values of its session, which are kept in
//! memory.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use toolwright_core::RunInput;
use toolwright_core::catalogue::DefinitionOrigin;
use toolwright_core::session::SessionId;
use toolwright_core::store::{
    LogEntry, LogRow, OutputStore, SCRATCH, STATE, SessionLog, SessionValues, StoreError, ValueWatcher, WrittenValue,
    log_path,
};
use toolwright_core::variables::{KnownValue, VariableKind, Variables};

/// The largest stored output, in bytes, that a reference may resolve to.
pub const MAX_STORED_VALUE: u64 = 16 << 20;
/// The most bytes of stored outputs that one run keeps in memory. For further ones it keeps handles.
const MAX_STORED_VALUES: u64 = 64 << 20;

/// The values that references in one run resolve to. The session's store updates it with the writes of this process.
pub struct RunVariables {
    input: RunInput,
    instances: Vec<String>,
    values: Mutex<StateValues>,
}

/// The values of a session, and the room left for stored outputs.
struct StateValues {
    values: SessionValues,
    room: u64,
}

impl StateValues {
    fn put(&mut self, seq: u64, mut value: WrittenValue) {
        if let Some(handle) = &value.output {
            let bytes = toolwright_core::output::json_bytes(&value.data) as u64;
            match self.room.checked_sub(bytes) {
                Some(left) => self.room = left,
                None => value.data = serde_json::json!({"output": handle}),
            }
        }
        self.values.put(seq, value);
    }
}

impl fmt::Debug for RunVariables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunVariables").field("instances", &self.instances).finish_non_exhaustive()
    }
}

impl RunVariables {
    /// Creates the variables of a run in a session. Reads the session's values once.
    ///
    /// # Errors
    /// [`StoreError`] if they cannot be read. Without a session log the run knows only its own writes.
    pub async fn open(
        log: &dyn SessionLog,
        outputs: &dyn OutputStore,
        session: &SessionId,
        input: RunInput,
    ) -> Result<Arc<Self>, StoreError> {
        let variables = Self::in_memory(input);
        // Registered before reading: a value written meanwhile arrives here too, and counts once.
        let watcher: Weak<dyn ValueWatcher> = Arc::downgrade(&(Arc::clone(&variables) as Arc<dyn ValueWatcher>));
        log.watch(session, watcher);
        match log.values(session, "").await {
            Ok(rows) => {
                for (seq, value) in whole(rows, outputs, session).await {
                    variables.lock().put(seq, value);
                }
            }
            Err(StoreError::Unsupported(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(variables)
    }

    /// Creates variables without a session.
    #[must_use]
    pub fn in_memory(input: RunInput) -> Arc<Self> {
        let instances = input.instances.keys().cloned().collect();
        let values = Mutex::new(StateValues { values: SessionValues::default(), room: MAX_STORED_VALUES });
        Arc::new(Self { input, instances, values })
    }

    /// Returns the whole state of an instance, or the shared state; null if nothing was written.
    #[must_use]
    pub fn state(&self, instance: Option<&str>) -> serde_json::Value {
        self.lock().values.get(STATE, instance).map_or(serde_json::Value::Null, |(value, _)| value)
    }

    fn lock(&self) -> MutexGuard<'_, StateValues> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Variables for RunVariables {
    fn get(&self, kind: VariableKind, path: &[&str], instance: Option<&str>) -> Option<KnownValue> {
        let root = match kind {
            VariableKind::Input => return self.input.get(path, instance),
            VariableKind::State => STATE,
            VariableKind::Scratch => SCRATCH,
        };
        let (value, taint) = self.lock().values.get(&log_path(root, &path.join(".")), instance)?;
        Some(KnownValue { value, taint })
    }

    fn instances(&self) -> &[String] {
        &self.instances
    }

    fn given(&self) -> RunInput {
        self.input.clone()
    }

    fn serve(&self, origin: DefinitionOrigin) -> bool {
        self.input.foreign || origin == DefinitionOrigin::Own
    }

    fn write(&self, value: &WrittenValue) {
        let mut state = self.lock();
        let next = state.values.rows().last().map_or(1, |(seq, _)| seq.saturating_add(1));
        state.put(next, value.clone());
    }
}

impl ValueWatcher for RunVariables {
    fn written(&self, seq: u64, value: &WrittenValue) {
        self.lock().put(seq, value.clone());
    }
}

/// Returns the values in rows of the log. Stored outputs are read whole.
pub async fn whole(rows: Vec<LogRow>, outputs: &dyn OutputStore, session: &SessionId) -> Vec<(u64, WrittenValue)> {
    let mut values = Vec::with_capacity(rows.len());
    for row in rows {
        let LogEntry::Value(mut value) = row.entry else { continue };
        if let Some(handle) = &value.output {
            match read_stored(outputs, session, handle).await {
                Ok(stored) => value.data = stored,
                Err(error) => {
                    tracing::warn!(path = value.path, "a value that is a stored output was not read: {error}")
                }
            }
        }
        values.push((row.seq, value));
    }
    values
}

/// Reads a stored output as a value: JSON if it is an object, an array or a quoted text, else plain text.
///
/// # Errors
/// [`StoreError`] if it does not exist, or is larger than [`MAX_STORED_VALUE`].
pub async fn read_stored(
    outputs: &dyn OutputStore,
    session: &SessionId,
    handle: &str,
) -> Result<serde_json::Value, StoreError> {
    let mut text = String::new();
    loop {
        let slice = outputs.read(session, handle, text.len() as u64, 1 << 20).await?;
        if slice.total_bytes > MAX_STORED_VALUE {
            return Err(StoreError::Quota(format!(
                "it has {} bytes, and {MAX_STORED_VALUE} are the most",
                slice.total_bytes
            )));
        }
        text.push_str(&slice.text);
        if slice.text.is_empty() || text.len() as u64 >= slice.total_bytes {
            break;
        }
    }
    Ok(toolwright_core::outcome::value_of_text(text))
}
