//! Faults of the relay that dialogues find and that are not mended yet. Each entry goes when its mend comes: what it
//! speaks of is then compared like all else.

use super::script::Dialogue;

/// A fault, and the dialogues that it may spoil.
pub struct Fault {
    pub name: &'static str,
    pub spoils: fn(&Dialogue) -> bool,
}

/// Faults that stand.
pub const FAULTS: [Fault; 0] = [];

/// The fault that may spoil a dialogue.
pub fn fault(dialogue: &Dialogue) -> Option<&'static str> {
    FAULTS.iter().find(|fault| (fault.spoils)(dialogue)).map(|fault| fault.name)
}
