//! The daemon's log: one line per event on standard error, as text or JSON, no more than somebody can read.

use longfat_relay::{LogFormat, LogLevel, LogPlan};
use longfat_schema::text::one_line;
use serde_json::{Map, Value};
use std::{
    io::Write,
    sync::{Mutex, PoisonError},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

/// Lines of one level per second; what is more is counted.
const LINES_PER_SECOND: u32 = 100;

/// See above.
pub struct Log {
    format: LogFormat,
    level: LogLevel,
    /// Whether the journal reads along: it knows the time, and levels as `<N>`.
    journal: bool,
    limits: Mutex<[Limit; 4]>,
}

/// How many lines were said this second.
#[derive(Debug, Clone, Copy, Default)]
struct Limit {
    since: Option<Instant>,
    said: u32,
    suppressed: u32,
}

impl Limit {
    /// Whether one more may be said now, and how many were not since one last was.
    fn admit(&mut self, now: Instant) -> Option<u32> {
        if self.since.is_none_or(|since| now.duration_since(since).as_secs() >= 1) {
            (self.since, self.said) = (Some(now), 0);
        }
        if self.said == LINES_PER_SECOND {
            self.suppressed += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.suppressed))
    }
}

impl Log {
    pub fn new(plan: &LogPlan) -> Log {
        Log {
            format: plan.format,
            level: plan.level,
            journal: std::env::var_os("JOURNAL_STREAM").is_some(),
            limits: Mutex::default(),
        }
    }

    pub fn wants(&self, level: LogLevel) -> bool {
        level <= self.level
    }

    fn line(&self, level: LogLevel, event: &str, text: &str, facts: Value) -> String {
        match self.format {
            LogFormat::Text if self.journal => format!("<{}>{text}", priority(level)),
            LogFormat::Text => format!("{} {}: {text}", name(level), event),
            LogFormat::Json => {
                let time_us =
                    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_micros() as u64);
                let mut line = Map::new();
                line.insert("time_unix_us".into(), time_us.into());
                line.insert("level".into(), name(level).into());
                line.insert("event".into(), event.into());
                line.insert("message".into(), text.into());
                if let Value::Object(facts) = facts {
                    line.extend(facts.into_iter().filter(|(key, _)| key != "event" && key != "level"));
                }
                Value::Object(line).to_string()
            }
        }
    }

    /// Says `text` about an event of that name, with its facts.
    pub fn say(&self, level: LogLevel, event: &str, text: &str, facts: Value) {
        if !self.wants(level) {
            return;
        }
        let mut limits = self.limits.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(suppressed) = limits[level as usize].admit(Instant::now()) else { return };
        let mut lines = self.line(level, event, &one_line(&text.replace('\n', "; ")), facts) + "\n";
        if suppressed > 0 {
            let text = format!("{suppressed} lines of level {} were not said", name(level));
            let facts = serde_json::json!({ "count": suppressed });
            lines = self.line(level, "suppressed", &text, facts) + "\n" + &lines;
        }
        // A closed standard error is no reason to stop relaying.
        let _ = std::io::stderr().write_all(lines.as_bytes());
    }
}

fn name(level: LogLevel) -> &'static str {
    match level {
        LogLevel::Error => "error",
        LogLevel::Warning => "warning",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
    }
}

/// Priorities of syslog (RFC 5424, section 6.2.1).
fn priority(level: LogLevel) -> u8 {
    match level {
        LogLevel::Error => 3,
        LogLevel::Warning => 4,
        LogLevel::Info => 6,
        LogLevel::Debug => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_storm_of_lines_is_cut_and_counted() {
        let start = Instant::now();
        let mut limit = Limit::default();
        let admitted = (0..1000).filter(|_| limit.admit(start).is_some()).count();
        assert_eq!(admitted, LINES_PER_SECOND as usize);
        assert_eq!(limit.admit(start + Duration::from_secs(1)), Some(900));
        assert_eq!(limit.admit(start + Duration::from_secs(1)), Some(0));
    }

    #[test]
    fn a_line_is_one_line_in_either_format() {
        let log = |format| Log { format, level: LogLevel::Info, journal: false, limits: Mutex::default() };
        let facts = || serde_json::json!({ "rules": ["a"] });
        let json = log(LogFormat::Json).line(LogLevel::Info, "reloaded", "two\nlines", facts());
        let read: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&read["event"], &read["rules"][0]), (&"reloaded".into(), &"a".into()));
        assert!(!json.contains('\n'));
        assert_eq!(log(LogFormat::Text).line(LogLevel::Error, "e", "t", facts()), "error e: t");
        assert!(!log(LogFormat::Text).wants(LogLevel::Debug));
    }
}
