//! A relay as a whole: from its start to its end, and what may be asked of it between.

pub(crate) mod answers;
pub(crate) mod commands;
pub mod control;
mod leave;
pub(crate) mod missing;
pub(crate) mod mover;
mod receiver;
mod reload;
pub(crate) mod run;
mod told;
