//! Our congestion controls in the kernel.
//!
//! The same header that [`longfat_cc`] compiles natively is registered as `lf_NAME` by BPF struct_ops. A registration
//! lives as long as somebody holds its link: a pin in bpffs ([`load`]), or a process ([`hold`]). Sockets keep a
//! congestion control they have chosen until they close, registered or not.

mod exec;
mod inbound;
mod list;
pub(crate) mod loaded;
mod record;
mod register;

pub use exec::{Exec, Treatment, exec, means_ours};
pub use inbound::Inbound;
pub use list::{Entry, Origin, Presence, Process, list};
pub use record::{Recorder, record};
pub use register::{
    Loading, Registration, Unloading, ensure, hold, hold_with, kernel_has, load, load_as_set, missing, unload,
};
