//! An instrument and what it has counted, by attributes.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hashbrown::hash_map::EntryRef;
use hashbrown::{Equivalent, HashMap, HashSet};

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
    series: HashMap<Vec<Arc<str>>, Point>,
}

/// The values of a series' labels, to find it by: nothing is allocated for one that there is.
struct Labels<'a>(&'a [&'a str]);

impl Hash for Labels<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl Equivalent<Vec<Arc<str>>> for Labels<'_> {
    fn equivalent(&self, known: &Vec<Arc<str>>) -> bool {
        self.0.iter().copied().eq(known.iter().map(|label| &**label))
    }
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
        Self { instrument, series: HashMap::new() }
    }

    /// The instrument.
    #[must_use]
    pub fn instrument(&self) -> &'static Instrument {
        self.instrument
    }

    /// Its series, in the order of their labels: what is known of each, empty values left out, and what it has counted.
    pub fn series(&self) -> impl Iterator<Item = (Vec<(&'static str, &str)>, &Point)> {
        let mut series: Vec<_> = self.series.iter().collect();
        series.sort_unstable_by_key(|(values, _)| *values);
        series.into_iter().map(|(values, point)| {
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
        let empty = || match kind {
            Kind::Counter | Kind::Gauge => Point::Number(0),
            Kind::Histogram(bounds) => {
                Point::Histogram(Histogram { buckets: vec![0; bounds.len() + 1], ..Histogram::default() })
            }
        };
        match self.series.entry_ref(&Labels(labels)) {
            EntryRef::Occupied(known) => known.into_mut(),
            EntryRef::Vacant(place) => {
                place.insert_with_key(labels.iter().map(|&label| label.into()).collect(), empty())
            }
        }
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
