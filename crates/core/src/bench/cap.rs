//! What a run may cost: room is taken before a call is made, and given back when it is known what the call came to.

/// The bounds of a run, and what is spent and taken of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Cap {
    /// US dollars; `None` for any number.
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

/// Why there is no room.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Refusal {
    /// There may be, once what runs has settled.
    Later,
    /// There will not be: so much is spent, and so much would be needed.
    Never {
        /// US dollars spent.
        spent: f64,
        /// US dollars that the call may cost.
        wanted: f64,
    },
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

    /// Takes room for a call that may cost so much and make so many requests.
    ///
    /// # Errors
    /// [`Refusal`] where it does not fit.
    pub fn reserve(&mut self, cost: f64, requests: u64) -> Result<Reservation, Refusal> {
        let fits = |cost: f64, requests: u64| {
            self.max_cost.is_none_or(|max| cost <= max) && self.max_requests.is_none_or(|max| requests <= max)
        };
        let alone = (self.spent_cost + cost, self.spent_requests.saturating_add(requests));
        if !fits(alone.0, alone.1) {
            return Err(Refusal::Never { spent: self.spent_cost, wanted: cost });
        }
        if !fits(alone.0 + self.taken_cost, alone.1.saturating_add(self.taken_requests)) {
            return Err(Refusal::Later);
        }
        self.taken_cost += cost;
        self.taken_requests += requests;
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
        let first = cap.reserve(0.5, 1).expect("room");
        assert_eq!(cap.reserve(0.5, 1), Err(Refusal::Later));
        assert_eq!(cap.reserve(0.8, 1), Err(Refusal::Never { spent: 0.25, wanted: 0.8 }));
        assert_eq!(cap.reserve(0.1, 10), Err(Refusal::Later));
        cap.settle(first, 0.125, 2);
        assert!((cap.spent() - 0.375).abs() < 1e-9);
        let second = cap.reserve(0.5, 8).expect("room");
        cap.settle(second, 0.7, 8);
        assert_eq!(
            cap.reserve(0.0, 1),
            Err(Refusal::Never { spent: 1.075, wanted: 0.0 }),
            "it cost more than expected"
        );
        let mut open = Cap::new(None, None, 0.0, 0);
        assert!(open.reserve(f64::MAX, u64::MAX).is_ok());
    }
}
