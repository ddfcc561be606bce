//! Events from a hub to metrics and spans.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{broadcast, mpsc};
use toolwright_core::cancel::{Cancel, CancelCause};
use toolwright_telemetry::{Metrics, Observer, Point, SpanOptions, Spans};

use crate::support::{finished, op, started};

const TOOL: &str = "x:echo@1.0.0";

fn number(metrics: &Metrics, name: &str) -> i64 {
    let families = metrics.families();
    let points = families.iter().filter(|family| family.instrument().name == name).flat_map(|family| {
        family.series().map(|(_, point)| match point {
            Point::Number(number) => *number,
            Point::Histogram(histogram) => i64::try_from(histogram.count).expect("few"),
        })
    });
    points.sum()
}

#[tokio::test]
async fn stop_drains_events_and_open_spans() {
    let (events, _keep) = broadcast::channel(64);
    let (taker, mut spans) = mpsc::channel(64);
    let (metrics, stop) = (Arc::new(Metrics::default()), Cancel::new());
    let observer = Observer::new(Arc::clone(&metrics)).with_spans(Spans::new(SpanOptions::default()), taker);
    let from = events.subscribe();
    events.send(Arc::new(started(&op(1, 0), TOOL))).expect("sent");
    events.send(Arc::new(started(&op(2, 1), TOOL))).expect("sent");
    events.send(Arc::new(finished(&op(2, 1), TOOL, None, 1))).expect("sent");
    stop.cancel(CancelCause::Shutdown);
    observer.run(from, stop).await;
    let mut given = Vec::new();
    while let Some(span) = spans.recv().await {
        given.push(span.id.get());
    }
    assert_eq!(given, [2, 1]);
    assert_eq!(number(&metrics, "toolwright.tool.calls"), 1);
}

#[tokio::test]
async fn lagging_observers_count_lost_events() {
    let (events, _keep) = broadcast::channel(16);
    let (taker, mut spans) = mpsc::channel(4);
    let metrics = Arc::new(Metrics::default());
    let observer = Observer::new(Arc::clone(&metrics)).with_spans(Spans::new(SpanOptions::default()), taker);
    let from = events.subscribe();
    for n in 1..=100 {
        events.send(Arc::new(finished(&op(n, 0), TOOL, None, 1))).expect("sent");
    }
    drop((events, _keep));
    observer.run(from, Cancel::new()).await;
    assert_eq!(number(&metrics, "toolwright.events.lost"), 84);
    assert_eq!(number(&metrics, "toolwright.tool.calls"), 16);
    assert_eq!(number(&metrics, "toolwright.spans.lost"), 12);
    assert_eq!(spans.recv().await.map(|span| span.id.get()), Some(85));
}

#[tokio::test]
async fn a_stop_ends_the_watcher_despite_events() {
    let (events, _keep) = broadcast::channel(1024);
    let stop = Cancel::new();
    let observing = tokio::spawn(Observer::new(Arc::default()).run(events.subscribe(), stop.clone()));
    let noise = tokio::spawn(async move {
        for n in 1.. {
            if events.send(Arc::new(started(&op(n, 0), TOOL))).is_err() || n > 1_000_000 {
                break;
            }
            if n % 100 == 0 {
                tokio::task::yield_now().await;
            }
        }
    });
    stop.cancel(CancelCause::Shutdown);
    tokio::time::timeout(Duration::from_secs(20), observing).await.expect("in time").expect("no panic");
    noise.abort();
}
