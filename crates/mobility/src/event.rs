//! What a follower tells its log and its audit.

use crate::follower::Wish;
use longfat_kernel::tcb::ControlBlock;

/// What a log and an audit are told.
pub enum Event<'a> {
    /// In words.
    Said(String),
    /// A connection was set.
    Done(Done<'a>),
}

/// One connection that was set, for the audit.
#[derive(Debug, Clone)]
pub struct Done<'a> {
    /// The wish that was fulfilled.
    pub wish: &'a Wish,
    /// Before and after.
    pub blocks: (&'a ControlBlock, &'a ControlBlock),
    /// What is not as asked.
    pub shortfalls: Vec<String>,
}
