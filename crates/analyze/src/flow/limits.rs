//! What limited a sender, as time passes: how long it was which [`Limit`].

use super::series::{LIMITS, Limit, Series};

/// Time under each limit.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Nanoseconds under each [`Limit`].
    pub spent_ns: [i64; LIMITS],
    /// Until when it is known what limited the sender: from the first payload on.
    accounted_ns: i64,
    /// What does, unless it has finished, and since when; not put down yet.
    limited: Option<Limit>,
    since_ns: i64,
}

impl Limits {
    /// Time counts from here on.
    pub fn begin(&mut self, now_ns: i64) {
        self.accounted_ns = now_ns;
    }

    /// Until now it was this. Nearly always it is what it was before: time is put down when that changes.
    #[inline]
    pub fn account(
        &mut self,
        now_ns: i64,
        limit: impl FnOnce() -> Option<Limit>,
        series: &mut Option<Box<Series>>,
    ) {
        if now_ns <= self.accounted_ns {
            return;
        }
        let since = std::mem::replace(&mut self.accounted_ns, now_ns);
        let limit = limit();
        if limit != self.limited {
            self.put_down(since, series);
            (self.limited, self.since_ns) = (limit, since);
        }
    }

    fn put_down(&mut self, until_ns: i64, series: &mut Option<Box<Series>>) {
        let Some(limit) = self.limited.take() else { return };
        self.spent_ns[limit as usize] += until_ns - self.since_ns;
        if let Some(series) = series {
            series.spend(self.since_ns, until_ns, limit);
        }
    }

    /// Ends the last span: no packet comes any more.
    pub fn finish(&mut self, series: &mut Option<Box<Series>>) {
        self.put_down(self.accounted_ns, series);
    }
}
