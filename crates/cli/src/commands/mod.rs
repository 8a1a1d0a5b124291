//! One file per subcommand: its arguments, and the call into the crate that does the work.

pub mod analyze;
pub mod avail;
pub mod background;
pub mod capture;
pub mod cc;
pub mod doctor;
pub mod lab;
pub mod link;
pub mod manual;
pub mod mobility;
pub mod path;
pub mod reference;
pub mod relay;
pub mod report;
pub mod tcb;
pub mod transfer;
pub mod why;
