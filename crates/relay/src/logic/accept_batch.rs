//! How many of those who wait at one place are served in a turn.

/// Most of them, so that a storm does not stop the data, nor keep answered dials waiting.
pub(crate) const BATCH: usize = 64;

/// The round of the worker in which somebody waited last.
#[derive(Debug, Default)]
pub(crate) struct AcceptBatch {
    round: u64,
}

impl AcceptBatch {
    /// Somebody waits in this round: mostly one, whom another look would only delay; more when there was one in the
    /// last round, too.
    pub fn turn(&mut self, round: u64) -> usize {
        let is_crowded = std::mem::replace(&mut self.round, round) + 1 == round;
        if is_crowded { BATCH } else { 1 }
    }
}
