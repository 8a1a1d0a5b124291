//! A relay as a whole: from its start to its end, and what may be asked of it between.

pub(crate) mod commands;
pub mod control;
pub(crate) mod leave;
pub(crate) mod reload;
pub(crate) mod run;
