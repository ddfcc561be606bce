//! An instrument and its series by attributes.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use hashbrown::hash_map::EntryRef;
use hashbrown::{Equivalent, HashMap};

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
    series: HashMap<Vec<Arc<str>>, Place>,
    points: Vec<Point>,
}

/// Where a family has a series, as long as it is not cleared.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place(usize);

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
        Self { instrument, series: HashMap::new(), points: Vec::new() }
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
        series.into_iter().filter_map(|(values, place)| {
            let labels = self.instrument.labels.iter().copied().zip(values.iter().map(|value| &**value));
            Some((labels.filter(|(_, value)| !value.is_empty()).collect(), self.points.get(place.0)?))
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.series.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.series.clear();
        self.points.clear();
    }

    pub(super) fn add(&mut self, labels: &[&str], count: u64) {
        let place = self.place(labels);
        self.add_at(place, count);
    }

    pub(super) fn change(&mut self, labels: &[&str], by: i64) {
        let place = self.place(labels);
        self.change_at(place, by);
    }

    /// What somebody else has counted. Nothing at all is not shown.
    pub(super) fn set(&mut self, count: u64) {
        if count == 0 && self.points.is_empty() {
            return;
        }
        let Place(at) = self.place(&[]);
        if let Some(Point::Number(number)) = self.points.get_mut(at) {
            *number = i64::try_from(count).unwrap_or(i64::MAX);
        }
    }

    pub(super) fn record(&mut self, labels: &[&str], value: f64) {
        let place = self.place(labels);
        self.record_at(place, value);
    }

    pub(super) fn add_at(&mut self, place: Place, count: u64) {
        self.change_at(place, i64::try_from(count).unwrap_or(i64::MAX));
    }

    fn change_at(&mut self, place: Place, by: i64) {
        if let Some(Point::Number(number)) = self.points.get_mut(place.0) {
            *number = number.saturating_add(by);
        }
    }

    pub(super) fn record_at(&mut self, place: Place, value: f64) {
        let Kind::Histogram(bounds) = self.instrument.kind else { return };
        if let Some(Point::Histogram(histogram)) = self.points.get_mut(place.0) {
            histogram.buckets[bounds.partition_point(|bound| *bound < value)] += 1;
            histogram.count += 1;
            histogram.sum += value;
        }
    }

    /// The place of the series with these labels, which is there from now on.
    pub(super) fn place(&mut self, labels: &[&str]) -> Place {
        debug_assert_eq!(labels.len(), self.instrument.labels.len(), "{}", self.instrument.name);
        // Without labels there is one series at most.
        if labels.is_empty() && !self.points.is_empty() {
            return Place(0);
        }
        match self.series.entry_ref(&Labels(labels)) {
            EntryRef::Occupied(known) => *known.get(),
            EntryRef::Vacant(vacant) => {
                let place = Place(self.points.len());
                self.points.push(match self.instrument.kind {
                    Kind::Counter | Kind::Gauge => Point::Number(0),
                    Kind::Histogram(bounds) => {
                        Point::Histogram(Histogram { buckets: vec![0; bounds.len() + 1], ..Histogram::default() })
                    }
                });
                vacant.insert_with_key(labels.iter().map(|&label| label.into()).collect(), place);
                place
            }
        }
    }
}
