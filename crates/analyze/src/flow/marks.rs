//! How an end tells the other of packets that were marked: by ECE (RFC 3168), or by a count of them (AccECN, RFC 9768)
//! in the three flags that were ECE, CWR and AE.

use crate::segment::{Segment, flag};

/// The count begins with this (RFC 9768, 3.2.1).
const FIRST: u8 = 5;
/// New marks that one packet may report at most: more come from an older packet that was late.
const MOST_NEW: u8 = 4;

/// What the flags of one end's packets mean.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum Marks {
    /// ECE.
    #[default]
    Echo,
    /// The count, behind a first packet that tells what became of the answer to the SYN.
    CountBehindFirst,
    /// The count, and what it was last.
    Count(u8),
}

impl Marks {
    /// AccECN is agreed on.
    pub fn agree(&mut self, is_client: bool) {
        if *self == Marks::Echo {
            *self = if is_client { Marks::CountBehindFirst } else { Marks::Count(FIRST) };
        }
    }

    /// Whether this packet tells of marks that none before it did.
    pub fn are_told_by(&mut self, segment: &Segment) -> bool {
        if segment.has(flag::SYN) {
            return false;
        }
        let count = (segment.flags >> 6 & 7) as u8;
        match *self {
            // Nothing else uses this flag.
            Marks::Echo if segment.has(flag::AE) => *self = Marks::Count(count),
            Marks::Echo => return segment.has(flag::ECE),
            Marks::CountBehindFirst => *self = Marks::Count(FIRST),
            Marks::Count(last) => {
                let new = count.wrapping_sub(last) & 7;
                let is_told = (1..=MOST_NEW).contains(&new);
                *self = Marks::Count(if is_told { count } else { last });
                return is_told;
            }
        }
        false
    }
}
