//! What a run may cost: room is taken before a call is made, and given back when it is known what the call came to.

use std::fmt;

/// The bounds of a run, and what is spent and taken of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cap {
    /// US dollars; `None` for any number. Under one that is no amount nothing is made.
    max_cost: Option<f64>,
    /// Requests to models; `None` for any number.
    max_requests: Option<u64>,
    spent_cost: f64,
    spent_requests: u64,
    taken_cost: f64,
    taken_requests: u64,
}

/// Room that is taken; it is given back by [`Cap::settle`].
#[derive(Debug, PartialEq)]
#[must_use = "room that is not given back is lost"]
pub struct Reservation {
    cost: f64,
    requests: u64,
}

impl Reservation {
    /// How many requests it has room for.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests
    }
}

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Refusal {
    /// There may be, once what runs has settled.
    Later,
    /// There will not be: so much is spent, and so much would be needed.
    Never(Short),
}

/// The bound that leaves no room. `Display` says which, what is spent of it, what the call may take, and what sets it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Short {
    /// US dollars.
    Cost {
        /// The bound.
        max: f64,
        /// What is spent.
        spent: f64,
        /// What the call may cost.
        wanted: f64,
    },
    /// Requests to models.
    Requests {
        /// The bound.
        max: u64,
        /// Those that were made.
        spent: u64,
        /// What the call takes at least.
        wanted: u64,
    },
}

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost { max, spent, wanted } => {
                write!(
                    f,
                    "${spent:.4} of ${max} are spent, and a call may cost ${wanted:.4} by estimate; see --max-cost"
                )
            }
            Self::Requests { max, spent, wanted } => {
                write!(f, "{spent} of {max} requests are made, and a call takes {wanted} at least; see --max-requests")
            }
        }
    }
}

impl Cap {
    /// Bounds, of which so much is spent already.
    #[must_use]
    pub fn new(max_cost: Option<f64>, max_requests: Option<u64>, spent_cost: f64, spent_requests: u64) -> Self {
        Self { max_cost, max_requests, spent_cost, spent_requests, ..Self::default() }
    }

    /// US dollars that are spent.
    #[must_use]
    pub fn spent(&self) -> f64 {
        self.spent_cost
    }

    /// Whether there is a bound of requests.
    #[must_use]
    pub fn bounds_requests(&self) -> bool {
        self.max_requests.is_some()
    }

    /// Takes room for a call that may cost so much and make so many requests. Where the bound leaves less than these
    /// but `least` of them, it takes what is left, so that nothing of it is unused.
    ///
    /// # Errors
    /// [`Refusal`] where it does not fit.
    pub fn reserve(&mut self, cost: f64, requests: u64, least: u64) -> Result<Reservation, Refusal> {
        let left = self.max_requests.map_or(u64::MAX, |max| max.saturating_sub(self.spent_requests));
        let requests = if left >= least { requests.min(left) } else { least };
        let alone = (self.spent_cost + cost, self.spent_requests.saturating_add(requests));
        let has = |max: f64, cost: f64| max.is_finite() && cost.is_finite() && cost <= max;
        if let Some(max) = self.max_cost.filter(|max| !has(*max, alone.0)) {
            return Err(Refusal::Never(Short::Cost { max, spent: self.spent_cost, wanted: cost }));
        }
        if let Some(max) = self.max_requests.filter(|max| alone.1 > *max) {
            return Err(Refusal::Never(Short::Requests { max, spent: self.spent_requests, wanted: least }));
        }
        if self.max_cost.is_some_and(|max| !has(max, alone.0 + self.taken_cost))
            || self.max_requests.is_some_and(|max| alone.1.saturating_add(self.taken_requests) > max)
        {
            return Err(Refusal::Later);
        }
        self.taken_cost += cost;
        self.taken_requests = self.taken_requests.saturating_add(requests);
        Ok(Reservation { cost, requests })
    }

    /// Gives room back: the call cost so much and made so many requests.
    pub fn settle(&mut self, reservation: Reservation, cost: f64, requests: u64) {
        let Reservation { cost: taken, requests: taken_requests } = reservation;
        self.taken_cost = (self.taken_cost - taken).max(0.0);
        self.taken_requests = self.taken_requests.saturating_sub(taken_requests);
        self.spent_cost += cost;
        self.spent_requests = self.spent_requests.saturating_add(requests);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_counts_until_it_is_known_what_it_cost() {
        let mut cap = Cap::new(Some(1.0), Some(10), 0.25, 0);
        let first = cap.reserve(0.5, 1, 1).expect("room");
        assert_eq!(cap.reserve(0.5, 1, 1), Err(Refusal::Later));
        assert_eq!(cap.reserve(0.8, 1, 1), Err(Refusal::Never(Short::Cost { max: 1.0, spent: 0.25, wanted: 0.8 })));
        assert_eq!(cap.reserve(0.1, 10, 1), Err(Refusal::Later));
        cap.settle(first, 0.125, 2);
        assert!((cap.spent() - 0.375).abs() < 1e-9);
        let second = cap.reserve(0.5, 8, 1).expect("room");
        cap.settle(second, 0.7, 8);
        assert_eq!(
            cap.reserve(0.0, 1, 1),
            Err(Refusal::Never(Short::Cost { max: 1.0, spent: 1.075, wanted: 0.0 })),
            "it cost more than expected"
        );
        let mut few = Cap::new(Some(1.0), Some(10), 0.0, 9);
        let Err(Refusal::Never(short)) = few.reserve(0.5, 3, 2) else { panic!("no room") };
        assert_eq!(short.to_string(), "9 of 10 requests are made, and a call takes 2 at least; see --max-requests");
        for (max, cost) in [(f64::NAN, 0.0), (f64::INFINITY, 0.0), (-1.0, 0.0), (1.0, f64::NAN)] {
            let refused = Cap::new(Some(max), None, 0.0, 0).reserve(cost, 1, 1);
            assert!(matches!(refused, Err(Refusal::Never(Short::Cost { .. }))), "{max} {cost}");
        }
        let mut open = Cap::new(None, None, 0.0, 0);
        assert!(open.reserve(f64::MAX, u64::MAX, 1).is_ok());
    }

    #[test]
    fn the_end_of_a_bound_of_requests_is_used_too() {
        let mut cap = Cap::new(None, Some(10), 0.0, 0);
        let mut granted = Vec::new();
        while let Ok(room) = cap.reserve(0.0, 4, 2) {
            granted.push(room.requests());
            cap.settle(room, 0.0, 2);
        }
        assert_eq!(granted, [4, 4, 4, 4, 2], "each took two");
        let left = Short::Requests { max: 10, spent: 10, wanted: 2 };
        assert_eq!(cap.reserve(0.0, 4, 2), Err(Refusal::Never(left)));
        // What may still be used by what runs is not given twice.
        let mut two = Cap::new(None, Some(5), 0.0, 0);
        let first = two.reserve(0.0, 4, 1).expect("room");
        assert_eq!(two.reserve(0.0, 4, 1), Err(Refusal::Later));
        two.settle(first, 0.0, 2);
        assert_eq!(two.reserve(0.0, 4, 1).map(|room| room.requests()), Ok(3));
        let mut odd = Cap::new(None, Some(3), 0.0, 2);
        assert_eq!(odd.reserve(0.0, 4, 2), Err(Refusal::Never(Short::Requests { max: 3, spent: 2, wanted: 2 })));
        assert_eq!(odd.reserve(0.0, 4, 1).map(|room| room.requests()), Ok(1));
    }
}
