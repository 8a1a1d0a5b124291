//! Connections that shall pass unrelayed for a while, until the rules are told.

use crate::{
    Fail,
    logic::{
        Pair,
        one_way::{ONE_WAY_SECONDS, OneWay},
    },
    observe::journal::{Journal, Once},
};
use std::sync::{Mutex, PoisonError};

/// Between two looks of the thread that tells nftables.
const MOST: usize = 256;

/// What was noted since somebody last asked.
pub(crate) struct Bypass<'a> {
    fail: Fail,
    journal: &'a Journal<'a>,
    noted: Mutex<Vec<OneWay>>,
}

impl<'a> Bypass<'a> {
    pub fn new(fail: Fail, journal: &'a Journal<'a>) -> Bypass<'a> {
        Bypass { fail, journal, noted: Mutex::default() }
    }

    /// Lets connections pass unrelayed for a while, and says the cause once.
    pub fn note(&self, way: OneWay, cause: impl FnOnce() -> String) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if noted.len() < MOST && !noted.contains(&way) {
            noted.push(way);
        }
        drop(noted);
        self.journal.warn_once(Once::OneWay, || {
            format!("{}; {} pass unrelayed for {ONE_WAY_SECONDS} s", cause(), way.describe())
        });
    }

    /// Notes a client that has been answered again and again and is not heard of: it is not there, or what it sends
    /// takes another way. Whose address a SYN bears need not be who sent it: a client that has connections is left
    /// alone.
    pub fn note_unheard(&self, pair: Pair, has_any: bool) {
        if self.fail == Fail::Closed || has_any {
            return;
        }
        self.note(OneWay::of_port(pair), || {
            let (client, server) = pair;
            format!(
                "nothing of {client} has come back to this host when its SYN for {server} was answered: it is not there, or its \
                 packets take another way (asymmetric routing), which no relay can carry"
            )
        });
    }

    /// Pairs noted since this was last asked.
    pub fn take(&self) -> Vec<OneWay> {
        std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
