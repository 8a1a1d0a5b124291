//! Whether a listener has come to lead back to itself: asked of the kernel now and then, not for every client.

use std::time::{Duration, Instant};

/// Time for which an answer counts.
const EVERY: Duration = Duration::from_secs(1);

/// The last answer.
#[derive(Debug, Default)]
pub(super) struct LoopCheck {
    is_there: bool,
    asked: Option<Instant>,
}

impl LoopCheck {
    /// Whether it leads back. `ask` says nothing when nobody knows: the last answer goes on.
    pub fn is_there(&mut self, now: Instant, ask: impl FnOnce() -> Option<bool>) -> bool {
        let is_fresh = self.asked.is_some_and(|asked| now.saturating_duration_since(asked) < EVERY);
        if !is_fresh && let Some(is_there) = ask() {
            *self = LoopCheck { is_there, asked: Some(now) };
        }
        self.is_there
    }

    /// The next client asks.
    pub fn doubt(&mut self) {
        self.asked = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_a_second_and_longer_when_there_is_no_other() {
        let (mut check, now) = (LoopCheck::default(), Instant::now());
        assert!(!check.is_there(now, || None));
        assert!(check.is_there(now, || Some(true)), "nobody knew before");
        assert!(check.is_there(now + EVERY / 2, || panic!("asked too often")));
        assert!(check.is_there(now + EVERY, || None));
        assert!(!check.is_there(now + EVERY, || Some(false)));
        check.doubt();
        assert!(check.is_there(now + EVERY, || Some(true)));
    }
}
