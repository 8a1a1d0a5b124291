//! Connections on their way from one router to another: what two relays say to each other, and how nobody else can.
//!
//! - [`message`]: what is said, and its reader. Pure.
//! - [`watched`]: what is known of connections that nobody has stepped into. Pure.
//! - [`decisions`]: whose a connection is when a word was lost. Pure.
//! - `channel`: both sides know the same key, and nobody else hears or speaks (Noise, `NNpsk0`).

pub(crate) mod channel;
pub mod decisions;
pub mod message;
pub mod watched;

use std::time::Duration;

/// How long a relay waits for a word of the other one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);
