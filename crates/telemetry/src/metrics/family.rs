//! An instrument and what it has counted, by attributes.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// What is measured, and how.
#[derive(Debug, PartialEq)]
pub struct Instrument {
    /// Name, as OpenTelemetry writes it.
    pub name: &'static str,
    /// In words.
    pub help: &'static str,
    /// Unit, by UCUM: `s`, or an annotation like `{call}`.
    pub unit: &'static str,
    /// How it counts.
    pub kind: Kind,
    /// Names of the attributes that tell its series apart.
    pub labels: &'static [&'static str],
}

/// How an instrument counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Up only.
    Counter,
    /// Up and down.
    Gauge,
    /// Values into buckets with these upper bounds, ascending, and one above them.
    Histogram(&'static [f64]),
}

/// What one instrument has counted.
#[derive(Debug, Clone)]
pub struct Family {
    instrument: &'static Instrument,
    /// By the values of its labels; an empty one is a label not given.
    series: BTreeMap<Vec<Arc<str>>, Point>,
}

/// What one series has counted.
#[derive(Debug, Clone, PartialEq)]
pub enum Point {
    /// Of a counter or gauge.
    Number(i64),
    /// Of a histogram.
    Histogram(Histogram),
}

/// Values in buckets.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Histogram {
    /// How many values are in each bucket and in no lower one: one more than there are bounds.
    pub buckets: Vec<u64>,
    /// How many there are in all.
    pub count: u64,
    /// Their sum.
    pub sum: f64,
}

impl Family {
    pub(super) fn new(instrument: &'static Instrument) -> Self {
        Self { instrument, series: BTreeMap::new() }
    }

    /// The instrument.
    #[must_use]
    pub fn instrument(&self) -> &'static Instrument {
        self.instrument
    }

    /// Its series: what is known of each, empty values left out, and what it has counted.
    pub fn series(&self) -> impl Iterator<Item = (Vec<(&'static str, &str)>, &Point)> {
        self.series.iter().map(|(values, point)| {
            let labels = self.instrument.labels.iter().copied().zip(values.iter().map(|value| &**value));
            (labels.filter(|(_, value)| !value.is_empty()).collect(), point)
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.series.clear();
    }

    pub(super) fn add(&mut self, labels: &[&str], count: u64) {
        self.change(labels, i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(super) fn change(&mut self, labels: &[&str], by: i64) {
        if let Point::Number(number) = self.point(labels) {
            *number = number.saturating_add(by);
        }
    }

    pub(super) fn record(&mut self, labels: &[&str], value: f64) {
        let Kind::Histogram(bounds) = self.instrument.kind else { return };
        if let Point::Histogram(histogram) = self.point(labels) {
            histogram.buckets[bounds.partition_point(|bound| *bound < value)] += 1;
            histogram.count += 1;
            histogram.sum += value;
        }
    }

    fn point(&mut self, labels: &[&str]) -> &mut Point {
        debug_assert_eq!(labels.len(), self.instrument.labels.len(), "{}", self.instrument.name);
        let kind = self.instrument.kind;
        self.series.entry(labels.iter().map(|&label| label.into()).collect()).or_insert_with(|| match kind {
            Kind::Counter | Kind::Gauge => Point::Number(0),
            Kind::Histogram(bounds) => {
                Point::Histogram(Histogram { buckets: vec![0; bounds.len() + 1], ..Histogram::default() })
            }
        })
    }
}

/// Names that are told apart: the first so many, of at most 128 bytes each.
#[derive(Debug)]
pub(super) struct Names {
    known: HashSet<Arc<str>>,
    max: usize,
}

impl Names {
    const MAX_LENGTH: usize = 128;

    pub(super) fn new(max: usize) -> Self {
        Self { known: HashSet::new(), max }
    }

    /// The name itself, or `other` when there are too many.
    pub(super) fn bounded(&mut self, name: &str) -> Arc<str> {
        let name = &name[..name.floor_char_boundary(Self::MAX_LENGTH)];
        if let Some(known) = self.known.get(name) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.max {
            return "other".into();
        }
        let name: Arc<str> = name.into();
        self.known.insert(Arc::clone(&name));
        name
    }
}
