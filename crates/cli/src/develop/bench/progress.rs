//! How far the run is: a bar at a terminal.

use std::fmt::Display;
use std::time::{Duration, Instant};

use toolwright::core::duration;
use toolwright_eval::Measured;

use crate::terminal::screen::{StatusLine, one_line, say};

/// Characters of the bar.
const WIDTH: usize = 24;
/// Characters of what ended last.
const LAST: usize = 40;
/// How often the bar is drawn at most.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) struct Progress {
    total: usize,
    /// Those that were measured before this run.
    before: usize,
    ended: usize,
    unmeasured: usize,
    started: Instant,
    drawn: Option<Instant>,
    status: StatusLine,
    last: String,
}

impl Progress {
    pub(super) fn new(total: usize, before: usize) -> Self {
        Self {
            total,
            before,
            ended: 0,
            unmeasured: 0,
            started: Instant::now(),
            drawn: None,
            status: StatusLine::default(),
            last: String::new(),
        }
    }

    /// A call ended; so much is spent in all.
    pub(super) fn ended(&mut self, measured: &Measured, spent: f64) {
        self.ended += 1;
        self.unmeasured += usize::from(!measured.done);
        self.last = format!("{} {} {}", measured.model, measured.tool, measured.case);
        self.show(spent);
    }

    /// Shows how far it is, where that is due.
    pub(super) fn show(&mut self, spent: f64) {
        let done = self.before + self.ended;
        if self.drawn.is_none_or(|drawn| drawn.elapsed() >= PAUSE) || done >= self.total {
            self.drawn = Some(Instant::now());
            let full = WIDTH * done / self.total.max(1);
            let bar = format!("{}{}", "━".repeat(full.min(WIDTH)), "─".repeat(WIDTH - full.min(WIDTH)));
            let (figures, last) = (self.figures(done, spent), one_line(&self.last, LAST));
            self.status.show(&format!("{bar} {figures} {last}"));
        }
    }

    /// A line beside the bar.
    pub(super) fn say(&mut self, line: impl Display) {
        self.status.clear();
        say(line);
        self.drawn = None;
    }

    /// Takes the bar away.
    pub(super) fn end(&mut self) {
        self.status.clear();
    }

    fn figures(&self, done: usize, spent: f64) -> String {
        let mut figures = format!("{done} of {} calls", self.total);
        if spent > 0.0 {
            figures.push_str(&format!(", ${spent:.4}"));
        }
        if self.unmeasured > 0 {
            figures.push_str(&format!(", {} came to nothing", self.unmeasured));
        }
        if let Some(left) = self.left(done) {
            figures.push_str(&format!(", {} to go", duration::format(left)));
        }
        figures
    }

    /// How long the rest takes if it goes on like this, in seconds.
    fn left(&self, done: usize) -> Option<Duration> {
        let rest = self.total.checked_sub(done).filter(|rest| *rest > 0)?;
        let each = self.started.elapsed().checked_div(u32::try_from(self.ended).ok().filter(|ended| *ended > 0)?)?;
        let left = each.saturating_mul(u32::try_from(rest).unwrap_or(u32::MAX)).as_secs();
        (left > 0).then(|| Duration::from_secs(left))
    }
}
