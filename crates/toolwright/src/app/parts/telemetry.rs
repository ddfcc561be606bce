//! Sends an instance's events to telemetry receivers while it runs.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use toolwright_core::Cancel;
use toolwright_core::cancel::CancelCause;
use toolwright_gateway::MetricsSource;
use toolwright_runtime::{EventHub, SqliteStore};
use toolwright_telemetry::{Content, Metrics, Observer, TextFormat};

/// How long sending the last spans and metrics may take at shutdown.
const FLUSH: Duration = Duration::from_secs(2);

/// Observes from the start if telemetry is sent, else from the first request for metrics, because unobserved events
/// cost nothing.
#[derive(Debug)]
pub(in crate::app) struct Telemetry {
    events: Arc<EventHub>,
    /// The ledger, whose state the metrics include.
    ledger: Arc<SqliteStore>,
    resource: Vec<(String, String)>,
    metrics: OnceLock<Arc<Metrics>>,
    stop: Cancel,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    /// A runtime on its own thread, so that telemetry does not delay calls. `None` if it cannot start.
    runtime: OnceLock<Option<Runtime>>,
}

impl Telemetry {
    pub(in crate::app) fn start(
        settings: &toolwright_telemetry::Telemetry,
        events: &Arc<EventHub>,
        ledger: Arc<SqliteStore>,
    ) -> Self {
        let mut settings = settings.clone();
        // Distinguishes two programs of the same name.
        let instance = ("service.instance.id".to_owned(), uuid::Uuid::new_v4().to_string());
        if settings.otlp.resource.iter().all(|(key, _)| *key != instance.0) {
            settings.otlp.resource.push(instance);
        }
        let telemetry = Self {
            events: Arc::clone(events),
            ledger,
            resource: settings.otlp.resource.clone(),
            metrics: OnceLock::new(),
            stop: Cancel::new(),
            tasks: Mutex::default(),
            runtime: OnceLock::new(),
        };
        if settings.is_sent() {
            telemetry.send(settings);
        }
        telemetry
    }

    /// Returns the metrics, counted from now on if not before.
    pub(in crate::app) fn metrics(&self) -> &Arc<Metrics> {
        self.metrics.get_or_init(|| {
            let metrics = self.counting();
            self.observe(Observer::new(Arc::clone(&metrics)), Content::Omitted);
            metrics
        })
    }

    fn counting(&self) -> Arc<Metrics> {
        let metrics = Arc::new(Metrics::default());
        metrics.watch_ledger(Arc::clone(&self.ledger) as _);
        metrics
    }

    /// Returns the text of the metrics, for `/metrics`.
    pub(in crate::app) fn source(&self) -> Arc<dyn MetricsSource> {
        Arc::new(ScrapedMetrics { metrics: Arc::clone(self.metrics()), target: self.resource.clone() })
    }

    /// Sends the rest within [`FLUSH`].
    pub(in crate::app) async fn shut_down(&self) {
        self.stop.cancel(CancelCause::Shutdown);
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        let ended = tokio::time::timeout(FLUSH, futures_util::future::join_all(&mut tasks)).await;
        if ended.is_err() {
            tasks.iter().for_each(JoinHandle::abort);
        }
    }

    fn observe(&self, observer: Observer, content: Content) {
        let events = match content {
            Content::Recorded => self.events.subscribe(),
            Content::Omitted => self.events.subscribe_brief(),
        };
        self.spawn(observer.run(events, self.stop.clone()));
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let runtime = self.runtime.get_or_init(|| {
            let started = Builder::new_multi_thread().worker_threads(1).thread_name("telemetry").enable_all().build();
            started.inspect_err(|error| tracing::warn!("telemetry has no thread of its own: {error}")).ok()
        });
        let task = match runtime {
            Some(runtime) => runtime.spawn(task),
            None => tokio::spawn(task),
        };
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    #[cfg(feature = "telemetry")]
    fn send(&self, settings: toolwright_telemetry::Telemetry) {
        use toolwright_telemetry::Spans;
        use toolwright_telemetry::otlp::{Exporter, SPAN_QUEUE};

        let metrics = self.counting();
        match Exporter::new(settings.otlp, Arc::clone(&metrics)) {
            Ok(exporter) => {
                let (taker, spans) = tokio::sync::mpsc::channel(SPAN_QUEUE);
                let observer = Observer::new(Arc::clone(&metrics)).with_spans(Spans::new(settings.spans), taker);
                self.metrics.get_or_init(|| metrics);
                self.observe(observer, settings.spans.content);
                self.spawn(exporter.run(spans));
            }
            // Toolwright then opens without telemetry.
            Err(error) => tracing::error!("no telemetry is sent: {error}"),
        }
    }

    /// The configuration has warned that it has no effect.
    #[cfg(not(feature = "telemetry"))]
    fn send(&self, _settings: toolwright_telemetry::Telemetry) {}
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        // A runtime cannot wait for another one to end.
        if let Some(runtime) = self.runtime.take().flatten() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Debug)]
struct ScrapedMetrics {
    metrics: Arc<Metrics>,
    target: Vec<(String, String)>,
}

impl MetricsSource for ScrapedMetrics {
    fn read(&self, accept: &str) -> (&'static str, String) {
        let format = TextFormat::accepted(accept);
        (format.content_type(), self.metrics.text(format, &self.target))
    }
}
