//! The pins of an instance's sources.

use std::sync::Arc;
use std::time::Duration;

use toolwright_core::pins::{Pin, PinSource};
use toolwright_core::store::{PinStore, StoreError};

use super::Toolwright;

/// How often decisions of other processes about pins are looked for.
const POLL: Duration = Duration::from_secs(1);

impl Toolwright {
    /// What is pinned of others' definitions, of all sources that the state directory knows.
    #[must_use]
    pub fn pins(&self) -> Arc<dyn PinStore> {
        Arc::clone(&self.store) as _
    }

    /// What is pinned of the sources that there are, see [`Toolwright::pins_of`].
    ///
    /// # Errors
    /// What the store says.
    pub async fn pins_in_force(&self) -> Result<Vec<Pin>, StoreError> {
        self.pins_of(self.catalogue.sources().iter().map(|provider| PinSource::of(&**provider)).collect()).await
    }

    /// What is pinned of these sources, by provider and tool, each as this source's own: what is decided about one is
    /// decided for it alone.
    ///
    /// # Errors
    /// What the store says.
    pub async fn pins_of(&self, mut sources: Vec<PinSource>) -> Result<Vec<Pin>, StoreError> {
        sources.sort();
        sources.dedup();
        let mut all = Vec::new();
        for source in sources {
            let pins = self.store.pins(Some(&source)).await?;
            all.extend(pins.into_iter().map(|pin| Pin { source: source.clone(), ..pin }));
        }
        Ok(all)
    }

    /// Follows, from now on, what anybody decides about pins, in this process or another. For processes that stay.
    pub fn follow_pins(self: &Arc<Self>) {
        let (pins, catalogue) = (Arc::clone(&self.pins), Arc::downgrade(&self.catalogue));
        tokio::spawn(async move {
            // Whatever was decided since the first lists were judged counts.
            let mut known = None;
            loop {
                tokio::time::sleep(POLL).await;
                let Some(catalogue) = catalogue.upgrade() else { return };
                let decisions = pins.decisions().await;
                if decisions.is_some() && decisions != known {
                    catalogue.recheck_pins().await;
                    known = decisions;
                }
            }
        });
    }
}
