//! Why a request of a facade is refused, and how its API says so.

use serde_json::Value;
use toolwright_core::model::{ModelError, ModelErrorKind};
use toolwright_models::served::{Fault, RequestError, ServedApi, error_body};

/// A reason to refuse a request.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) fault: Fault,
    pub(super) message: String,
    pub(super) field: Option<String>,
    pub(super) retry_after_ms: Option<u64>,
}

impl Refusal {
    pub(super) fn new(fault: Fault, message: impl Into<String>) -> Self {
        Self { fault, message: message.into(), field: None, retry_after_ms: None }
    }

    /// Returns the refusal with the name of the request field that caused it.
    pub(super) fn with_field(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    pub(super) fn of_model(error: &ModelError) -> Self {
        let fault = match error.kind {
            ModelErrorKind::RateLimit | ModelErrorKind::Quota => Fault::RateLimited,
            ModelErrorKind::Unavailable => Fault::Overloaded,
            ModelErrorKind::ContextOverflow | ModelErrorKind::ContentFilter | ModelErrorKind::Invalid => Fault::Invalid,
            ModelErrorKind::Unsupported => Fault::NotFound,
            ModelErrorKind::Auth | ModelErrorKind::BadResponse | ModelErrorKind::Canceled => Fault::Internal,
        };
        Self { retry_after_ms: error.retry_after_ms, ..Self::new(fault, format!("the model: {error}")) }
    }

    pub(super) fn body(&self, api: ServedApi) -> Value {
        error_body(api, self.fault, &self.message, self.field.as_deref())
    }
}

impl From<RequestError> for Refusal {
    fn from(error: RequestError) -> Self {
        Self::new(Fault::Invalid, error.to_string()).with_field(error.field)
    }
}
