//! How the catalogue is put before each model, as configured.

use toolwright_core::select::Exposure;

use super::Config;
use super::typed::{ExposureSetting, ModelOverrides};

impl ExposureSetting {
    /// The exposure; `None` for `auto`.
    #[must_use]
    pub fn exposure(self) -> Option<Exposure> {
        match self {
            Self::Auto => None,
            Self::Direct => Some(Exposure::Direct),
            Self::Pick => Some(Exposure::Pick),
            Self::Deferred => Some(Exposure::Deferred),
            Self::Search => Some(Exposure::Search),
        }
    }
}

impl Config {
    /// How the catalogue is put before `model`, `provider/model`; `None` to choose by cost. What is written for
    /// the model beats what is written for its provider, and both `selection.exposure`.
    #[must_use]
    pub fn exposure(&self, model: &str) -> Option<Exposure> {
        let own = self.of_model(model, |overrides| overrides.exposure);
        own.unwrap_or(self.written.selection.exposure).exposure()
    }

    /// Tokens that `model` takes in, where they are configured for it or its provider.
    #[must_use]
    pub fn window(&self, model: &str) -> Option<usize> {
        self.of_model(model, |overrides| overrides.window)
    }

    fn of_model<T>(&self, model: &str, setting: impl Fn(&ModelOverrides) -> Option<T>) -> Option<T> {
        let by_name = &self.written.models.by_name;
        let of = |name: &str| by_name.get(name).and_then(&setting);
        of(model).or_else(|| of(model.split_once('/')?.0))
    }
}
