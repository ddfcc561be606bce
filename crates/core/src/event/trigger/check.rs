//! Checks a trigger as configured, and computes when it fires.

use std::collections::HashSet;
use std::time::Duration;

use globset::{Glob, GlobBuilder};

use super::schedule::with_jitter;
use super::{CatchUp, MAX_CATCH_UP, Timetable, TriggerConfig, TriggerKind, zone_names};
use crate::duration;
use crate::pattern::nearest;

/// The shortest interval.
pub const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Bytes of a webhook's secret, at least.
pub const MIN_SECRET: usize = 16;
/// Default time within which changes count as one.
const DEBOUNCE: Duration = Duration::from_millis(500);
/// Default of the allowed clock difference to a webhook request's timestamp.
const WINDOW: Duration = Duration::from_secs(300);
/// Secrets of one webhook, and globs of one trigger.
const MAX_SECRETS: usize = 4;
const MAX_GLOBS: usize = 50;
/// Bytes of a prompt.
const MAX_PROMPT: usize = 32 << 10;

/// Why a trigger cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TriggerError {
    /// A key of another type of trigger.
    #[error("`{key}` is for triggers of type {of}, and this one is of type {kind}; leave it out")]
    Misplaced {
        /// The key.
        key: &'static str,
        /// The types that have it.
        of: &'static str,
        /// The trigger's own type.
        kind: &'static str,
    },
    /// A key is not set, or empty.
    #[error("a trigger of type {kind} needs {what}")]
    Missing {
        /// Its type.
        kind: &'static str,
        /// The missing field.
        what: &'static str,
    },
    /// A value is out of bounds.
    #[error("{0}")]
    Bounds(String),
    /// The cron expression is invalid.
    #[error("`{expression}` is no cron expression: {why}; write five fields, like `*/15 8-17 * * MON-FRI`")]
    Cron {
        /// The text as written.
        expression: String,
        /// Why.
        why: String,
    },
    /// The cron expression matches no time.
    #[error("`{expression}` never fires: no date matches it; change its day or month")]
    NeverFires {
        /// The text as written.
        expression: String,
    },
    /// The time zone is not known.
    #[error("`{zone}` is no time zone; write an IANA name, like {}", .nearest.as_deref().unwrap_or("Europe/Oslo"))]
    Zone {
        /// The text as written.
        zone: String,
        /// The name nearest to it.
        nearest: Option<String>,
    },
}

impl TriggerError {
    pub(super) fn unknown_zone(zone: &str) -> Self {
        let names: Vec<String> = zone_names().collect();
        let zone_name = zone.replace(' ', "_");
        let city = |name: &String| name.rsplit('/').next().unwrap_or_default().to_owned();
        let by_city = || {
            let cities: Vec<String> = names.iter().map(city).collect();
            let near = nearest(&zone_name, cities.iter().map(String::as_str))?;
            cities.iter().position(|city| city == near).and_then(|at| names.get(at))
        };
        let near = nearest(&zone_name, names.iter().map(String::as_str));
        Self::Zone { zone: zone.to_owned(), nearest: near.map(str::to_owned).or_else(|| by_city().cloned()) }
    }
}

/// A checked firing condition of a trigger.
#[derive(Debug, Clone)]
pub enum TriggerCondition {
    /// At these times.
    Times(Timetable),
    /// When a message is sent to a channel.
    Message {
        /// The channel.
        channel: String,
        /// Only from this sender.
        from: Option<String>,
    },
    /// When files change.
    Change {
        /// Patterns of paths: `*` does not match `/`.
        globs: Vec<Glob>,
        /// How long no further change may occur before it fires.
        debounce: Duration,
    },
    /// When a signed request arrives.
    Request {
        /// The variables with its secrets.
        secret_env: Vec<String>,
        /// Allowed difference between its timestamp and the current time.
        window: Duration,
    },
}

impl TriggerConfig {
    /// Returns why a webhook with these secrets admits no request where `variable` looks them up, with the remedy: none
    /// is set, or long enough.
    #[must_use]
    pub fn missing_secret(&self, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
        let is_set = |name: &String| variable(name).is_some_and(|secret| secret.len() >= MIN_SECRET);
        let is_missing = self.kind == TriggerKind::Webhook && !self.secret_env.iter().any(is_set);
        is_missing.then(|| {
            let names = self.secret_env.join(" or ");
            format!("no secret is set here: set {names} to at least {MIN_SECRET} bytes where `toolwright serve` runs")
        })
    }

    /// Checks the trigger. Intervals count from `created_ms`; `local` is the default time zone of schedules.
    ///
    /// # Errors
    /// [`TriggerError`], which names the remedy.
    pub fn when(&self, created_ms: u64, local: &str) -> Result<TriggerCondition, TriggerError> {
        self.check_keys()?;
        let kind = self.kind.as_str();
        let missing = |what| TriggerError::Missing { kind, what };
        if self.prompt.trim().is_empty() {
            return Err(missing("a `prompt`: what its run is to do"));
        }
        if self.prompt.len() > MAX_PROMPT {
            return Err(TriggerError::Bounds(format!("`prompt` has at most {MAX_PROMPT} bytes")));
        }
        if let CatchUp::All(most) = self.catch_up
            && !(1..=MAX_CATCH_UP).contains(&most)
        {
            let why = format!("`catch_up: {{all: {most}}}` is 1 to {MAX_CATCH_UP}; `none` skips the slots that passed");
            return Err(TriggerError::Bounds(why));
        }
        match self.kind {
            TriggerKind::Timer => {
                let interval = self.interval.ok_or_else(|| missing("an `interval`, like 10m"))?;
                if interval < MIN_INTERVAL {
                    let least = duration::format(MIN_INTERVAL);
                    return Err(TriggerError::Bounds(format!("`interval` is at least {least}")));
                }
                let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
                Ok(TriggerCondition::Times(Timetable::Every {
                    interval_ms,
                    origin_ms: created_ms,
                    immediate: self.immediate,
                }))
            }
            TriggerKind::Schedule => {
                self.schedule(self.time_zone.as_deref().unwrap_or(local)).map(TriggerCondition::Times)
            }
            TriggerKind::Channel => {
                let channel = self.channel.clone().filter(|name| !name.trim().is_empty());
                let channel = channel.ok_or_else(|| missing("a `channel`"))?;
                Ok(TriggerCondition::Message { channel, from: self.from.clone() })
            }
            TriggerKind::File => {
                if self.globs.iter().all(|glob| glob.trim().is_empty()) {
                    return Err(missing("`globs`, like [\"src/**/*.rs\"]"));
                }
                if self.globs.len() > MAX_GLOBS {
                    return Err(TriggerError::Bounds(format!("`globs` has at most {MAX_GLOBS} entries")));
                }
                if let Some(why) = self.globs.iter().find_map(|glob| matches_nothing(glob)) {
                    return Err(TriggerError::Bounds(why));
                }
                let globs = self.globs.iter().map(|glob| compiled(glob)).collect::<Result<_, _>>()?;
                Ok(TriggerCondition::Change { globs, debounce: self.debounce.unwrap_or(DEBOUNCE) })
            }
            TriggerKind::Webhook => {
                let named: HashSet<&str> = self.secret_env.iter().map(|name| name.trim()).collect();
                if named.is_empty() || named.contains("") {
                    return Err(missing(
                        "a secret: name the environment variable that has it under `secret_env`, and set it to at least \
                         16 random bytes",
                    ));
                }
                if named.len() > MAX_SECRETS {
                    return Err(TriggerError::Bounds(format!("`secret_env` has at most {MAX_SECRETS} entries")));
                }
                let window = self.window.unwrap_or(WINDOW);
                Ok(TriggerCondition::Request { secret_env: self.secret_env.clone(), window })
            }
        }
    }

    /// Returns the start time of a slot, in milliseconds since the epoch.
    #[must_use]
    pub fn due_ms(&self, trigger: &str, slot_ms: u64) -> u64 {
        with_jitter(trigger, slot_ms, self.jitter)
    }

    fn schedule(&self, zone: &str) -> Result<Timetable, TriggerError> {
        let set = [self.every.is_some(), self.hourly_at.is_some(), self.daily_at.is_some(), self.cron.is_some()];
        if set.into_iter().filter(|set| *set).count() != 1 {
            return Err(TriggerError::Missing {
                kind: "schedule",
                what: "exactly one of `every`, `hourly_at`, `daily_at` and `cron`",
            });
        }
        if let Some(minutes) = self.every {
            if !(1..=1440).contains(&minutes) {
                return Err(TriggerError::Bounds("`every` is 1 to 1440 minutes".into()));
            }
            return Ok(Timetable::Every { interval_ms: u64::from(minutes) * 60_000, origin_ms: 0, immediate: false });
        }
        if let Some(minute) = self.hourly_at {
            if minute > 59 {
                return Err(TriggerError::Bounds("`hourly_at` is a minute, 0 to 59".into()));
            }
            return Timetable::clock(&format!("{minute} * * * *"), zone);
        }
        if let Some(time) = &self.daily_at {
            let parsed = time.split_once(':').and_then(|(hour, minute)| {
                let (hour, minute): (u8, u8) = (hour.trim().parse().ok()?, minute.trim().parse().ok()?);
                (hour < 24 && minute < 60).then_some((hour, minute))
            });
            let (hour, minute) = parsed
                .ok_or_else(|| TriggerError::Bounds(format!("`{time}` is no time of day; write it like 07:30")))?;
            return Timetable::clock(&format!("{minute} {hour} * * *"), zone);
        }
        Timetable::clock(self.cron.as_deref().unwrap_or_default(), zone)
    }

    /// Refuses keys of other types: they would be without effect.
    fn check_keys(&self) -> Result<(), TriggerError> {
        use TriggerKind::{Channel, File, Schedule, Timer, Webhook};
        let keys: [(&str, bool, &[TriggerKind], &str); 15] = [
            ("interval", self.interval.is_some(), &[Timer], "timer"),
            ("immediate", self.immediate, &[Timer], "timer"),
            ("every", self.every.is_some(), &[Schedule], "schedule"),
            ("hourly_at", self.hourly_at.is_some(), &[Schedule], "schedule"),
            ("daily_at", self.daily_at.is_some(), &[Schedule], "schedule"),
            ("cron", self.cron.is_some(), &[Schedule], "schedule"),
            ("time_zone", self.time_zone.is_some(), &[Schedule], "schedule"),
            ("channel", self.channel.is_some(), &[Channel], "channel"),
            ("from", self.from.is_some(), &[Channel], "channel"),
            ("globs", !self.globs.is_empty(), &[File], "file"),
            ("debounce", self.debounce.is_some(), &[File], "file"),
            ("secret_env", !self.secret_env.is_empty(), &[Webhook], "webhook"),
            ("window", self.window.is_some(), &[Webhook], "webhook"),
            ("jitter", self.jitter.is_some(), &[Timer, Schedule], "timer and schedule"),
            ("catch_up", self.catch_up != Default::default(), &[Timer, Schedule], "timer and schedule"),
        ];
        match keys.into_iter().find(|(_, set, kinds, _)| *set && !kinds.contains(&self.kind)) {
            Some((key, _, _, of)) => Err(TriggerError::Misplaced { key, of, kind: self.kind.as_str() }),
            None => Ok(()),
        }
    }
}

/// Why a glob matches no file that a trigger looks at, with the remedy.
fn matches_nothing(glob: &str) -> Option<String> {
    let part = |is: &str| glob.split('/').any(|part| part == is);
    if glob.starts_with('!') {
        Some(format!("`{glob}` takes nothing out: globs only say which files count; name these, like `src/**/*.rs`"))
    } else if glob.starts_with('/') || part("..") {
        Some(format!("`{glob}` leads out of the workspace; write globs from its root"))
    } else if glob.ends_with('/') {
        Some(format!("`{glob}` is a folder and matches no file; write `{glob}**`"))
    } else if part(".git") {
        Some(format!("`{glob}` matches no file: `.git` is left out; name files of the workspace"))
    } else {
        None
    }
}

fn compiled(glob: &str) -> Result<Glob, TriggerError> {
    let glob = glob.trim_start_matches("./");
    GlobBuilder::new(glob).literal_separator(true).build().map_err(|error| {
        let why = error.kind();
        TriggerError::Bounds(format!(
            "`{glob}` is no glob: {why}; write it like `src/**/*.rs`, and `[[]` for a bracket"
        ))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(written: Value, expect: &str) {
        let config: TriggerConfig = serde_json::from_value(written.clone()).expect("it reads");
        let when = config.when(0, "UTC");
        let said = when.map_or_else(|error| error.to_string(), |_| "ok".to_owned());
        assert!(said.contains(expect), "{written}: {said}");
    }

    #[test]
    fn unusable_triggers_are_refused_with_their_remedy() {
        check(json!({"type": "timer", "prompt": "p", "interval": "10m"}), "ok");
        check(json!({"type": "timer", "prompt": "p"}), "needs an `interval`");
        check(json!({"type": "timer", "prompt": "p", "interval": "10ms"}), "at least 1s");
        check(json!({"type": "timer", "prompt": " ", "interval": "10m"}), "needs a `prompt`");
        let caught_up = |all: u32| json!({"type": "timer", "prompt": "p", "interval": "1h", "catch_up": {"all": all}});
        check(caught_up(0), "1 to 1000; `none` skips");
        check(caught_up(1001), "1 to 1000");
        check(caught_up(1000), "ok");
        check(
            json!({"type": "timer", "prompt": "p", "interval": "10m", "cron": "* * * * *"}),
            "`cron` is for triggers of type schedule",
        );
        check(json!({"type": "schedule", "prompt": "p", "daily_at": "07:30", "time_zone": "Europe/Oslo"}), "ok");
        check(json!({"type": "schedule", "prompt": "p", "daily_at": "25:00"}), "like 07:30");
        check(json!({"type": "schedule", "prompt": "p"}), "exactly one of");
        check(json!({"type": "schedule", "prompt": "p", "every": 5, "hourly_at": 3}), "exactly one of");
        check(json!({"type": "schedule", "prompt": "p", "cron": "0 0 30 2 *"}), "never fires");
        check(json!({"type": "schedule", "prompt": "p", "cron": "hourly"}), "five fields");
        check(json!({"type": "schedule", "prompt": "p", "cron": "0 0 0 1 1 *"}), "five fields");
        check(json!({"type": "schedule", "prompt": "p", "every": 5, "time_zone": "Europe/Olso"}), "ok");
        check(
            json!({"type": "schedule", "prompt": "p", "hourly_at": 5, "time_zone": "Europe/Olso"}),
            "like Europe/Oslo",
        );
        check(
            json!({"type": "schedule", "prompt": "p", "hourly_at": 5, "time_zone": "new york"}),
            "like America/New_York",
        );
        check(json!({"type": "channel", "prompt": "p"}), "needs a `channel`");
        check(json!({"type": "file", "prompt": "p"}), "needs `globs`");
        check(json!({"type": "file", "prompt": "p", "globs": ["../x"]}), "out of the workspace");
        check(json!({"type": "file", "prompt": "p", "globs": []}), "needs `globs`");
        check(json!({"type": "file", "prompt": "p", "globs": [" "]}), "needs `globs`");
        check(json!({"type": "file", "prompt": "p", "globs": ["!x"]}), "takes nothing out");
        check(json!({"type": "file", "prompt": "p", "globs": ["src/**", "!src/x"]}), "takes nothing out");
        check(json!({"type": "file", "prompt": "p", "globs": ["src/"]}), "write `src/**`");
        check(json!({"type": "file", "prompt": "p", "globs": [".git/HEAD"]}), "`.git` is left out");
        check(json!({"type": "file", "prompt": "p", "globs": ["./src/**/*.{rs,md}"]}), "ok");
        check(
            json!({"type": "file", "prompt": "p", "globs": ["*.rs", "["]}),
            "`[` is no glob: unclosed character class",
        );
        check(json!({"type": "file", "prompt": "p", "globs": ["{a"]}), "`{a` is no glob");
        check(json!({"type": "webhook", "prompt": "p"}), "needs a secret");
        check(json!({"type": "webhook", "prompt": "p", "secret_env": ["HOOK"]}), "ok");
    }

    #[test]
    fn a_trigger_reads_back_as_written() {
        let written = json!({"type": "schedule", "prompt": "p", "cron": "*/5 * * * *", "catch_up": {"all": 9}, "overlap": "skip"});
        let config: TriggerConfig = serde_json::from_value(written.clone()).expect("it reads");
        assert_eq!(serde_json::to_value(&config).expect("it writes"), written);
        assert!(serde_json::from_value::<TriggerConfig>(json!({"type": "timer", "prompt": "p", "x": 1})).is_err());
    }
}
