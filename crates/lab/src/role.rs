//! What each process of a run is there for. Processes are found by their role; texts and file names follow from it.

use std::fmt;

/// Role of one process of a run: no two processes of a run have the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Role {
    /// Driver of the link of that name.
    Link(String),
    /// Relay of that name.
    Relay(String),
    /// Announces the link of the follow of that name.
    Announcer(String),
    /// Follows an announced link.
    Follower {
        /// Name of the follow.
        follow: String,
        /// Host whose connections follow.
        host: String,
    },
    /// Receiver of every flow to the host of that name.
    Receiver(String),
    /// Sender of the flow of that name.
    Sender(String),
}

impl Role {
    /// Stem of its files: `link-path`.
    pub fn file(&self) -> String {
        match self {
            Role::Link(link) => format!("link-{link}"),
            Role::Relay(relay) => format!("relay-{relay}"),
            Role::Announcer(follow) => format!("announce-{follow}"),
            Role::Follower { follow, host } => format!("follow-{follow}-{host}"),
            Role::Receiver(host) => format!("receiver-{host}"),
            Role::Sender(flow) => format!("sender-{flow}"),
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Role::Link(link) => write!(f, "link '{link}'"),
            Role::Relay(relay) => write!(f, "relay '{relay}'"),
            Role::Announcer(follow) => write!(f, "announcer of '{follow}'"),
            Role::Follower { follow, host } => write!(f, "follower of '{follow}' on '{host}'"),
            Role::Receiver(host) => write!(f, "receiver on '{host}'"),
            Role::Sender(flow) => write!(f, "sender of flow '{flow}'"),
        }
    }
}
