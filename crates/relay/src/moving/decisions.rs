//! Decisions to whom a connection belongs: the receiver decides once, and remembers it.
//!
//! The sender keeps its sockets, and keeps them quiet, until it has heard that the receiver took the connection. If it
//! did not hear it, it asks. Whoever is asked about a connection that was not taken never takes it: the word that would
//! make it the receiver's may still be on its way.

use std::{
    collections::{HashMap, VecDeque},
    time::{Duration, Instant},
};

/// A sender that does not ask for so long has given up, and has reset what it was not sure of.
const REMEMBERED: Duration = Duration::from_secs(120);

/// A connection of a move: the session's name, and the number at its sender.
pub type Id = (u64, u32);

/// What was decided, for a while.
#[derive(Debug, Default)]
pub struct Decisions {
    taken: HashMap<Id, bool>,
    order: VecDeque<(Instant, Id)>,
}

impl Decisions {
    /// The sender says that a connection is the receiver's: whether it is.
    pub fn take(&mut self, id: Id, now: Instant) -> bool {
        self.decide(id, true, now)
    }

    /// The sender did not hear an answer: whether the connection was taken. If not, it never will be.
    pub fn ask(&mut self, id: Id, now: Instant) -> bool {
        self.decide(id, false, now)
    }

    fn decide(&mut self, id: Id, wanted: bool, now: Instant) -> bool {
        let is_old = |(since, _): &mut (Instant, Id)| now.saturating_duration_since(*since) >= REMEMBERED;
        while let Some((_, old)) = self.order.pop_front_if(is_old) {
            self.taken.remove(&old);
        }
        *self.taken.entry(id).or_insert_with(|| {
            self.order.push_back((now, id));
            wanted
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_asked_for_first_is_never_taken_and_what_was_taken_stays_so() {
        let (mut decisions, now) = (Decisions::default(), Instant::now());
        assert!(decisions.take((1, 1), now) && decisions.ask((1, 1), now));
        assert!(!decisions.ask((1, 2), now) && !decisions.take((1, 2), now));
        assert!(decisions.take((2, 2), now), "of another session");
        let later = now + REMEMBERED;
        assert!(decisions.take((1, 3), later));
        assert_eq!((decisions.taken.len(), decisions.order.len()), (1, 1), "the others are forgotten");
    }

    proptest! {
        /// Words come in any order and any number: all answers about one connection are alike.
        #[test]
        fn nobody_hears_two_answers(words in prop::collection::vec((0u32..3, any::<bool>()), 0..40)) {
            let (mut decisions, now) = (Decisions::default(), Instant::now());
            let mut heard = HashMap::new();
            for (number, is_go) in words {
                let answer = match is_go {
                    true => decisions.take((7, number), now),
                    false => decisions.ask((7, number), now),
                };
                prop_assert_eq!(*heard.entry(number).or_insert(answer), answer);
            }
        }
    }
}
