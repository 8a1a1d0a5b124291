//! Names of the congestion controls that keep the kernel's own private state across a change.

/// What a wrapper's name begins with: `lfkeep_cubic` runs the kernel's cubic.
pub const PREFIX: &str = "lfkeep_";

/// The kernel's congestion control behind a wrapper of ours.
pub fn wrapped(kernel_name: &str) -> Option<&str> {
    kernel_name.strip_prefix(PREFIX)
}
