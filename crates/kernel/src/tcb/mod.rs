//! Live control blocks: seen, chosen by a filter, traced at every ACK, and set.
//!
//! - [`Query`]: every connection of one or all network namespaces, by sock_diag(7); no privilege, no BPF.
//! - [`Filter`]: `dst 10.0.0.0/8 and cc cubic and rtt > 50ms`; pure.
//! - [`field`]: what can be shown, sorted by and filtered on.
//! - [`Setter`]: control blocks read and set under the socket's lock, of any process and namespace; [`Change`] and
//!   [`plan`] say, purely, what a change means for one connection; [`Moment`] says when what was sent before has
//!   arrived; [`Saved`] keeps one in a file.
//! - [`trace`]: every ACK, retransmission and change of state.
//! - [`limit`]: what keeps a connection from sending more; pure.

mod block;
mod change;
pub mod field;
mod filter;
mod keep;
mod query;
mod saved;
mod seal;
mod set;
pub mod trace;

pub use crate::sockets::{
    connection::{CcName, Connection, Process, SocketMemory, State},
    descriptor_of,
    diag::{Endings, Finder},
    limit::{self, Limit},
    namespace::{NetNamespace, Scope},
};
pub use block::{ControlBlock, Moment, PrivateState, UNLIMITED_CLAMP, UNLIMITED_SSTHRESH};
pub use change::{CcKind, Change, ChangeError, Keep, Refusal, Route, Step, plan};
pub use filter::{Filter, FilterError};
pub use query::Query;
pub use saved::{SAVED_VERSION, Saved, SavedBlocks};
pub use seal::HostKey;
pub use set::{Answer, Setter, missing_rto_max};
