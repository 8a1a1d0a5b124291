//! The interfaces by which SYNs come to those who hold them.

use crate::{
    keeping::{Keeping, record::Holding},
    legs::tun::Tun,
    plan::ConnectionPlan,
};
use std::{
    collections::BTreeMap,
    fs::File,
    os::fd::AsFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Gates of rules that hold, or held before a reload, by the rule's index.
#[derive(Debug, Default)]
pub(crate) struct Gates {
    gates: Mutex<BTreeMap<usize, Gate>>,
    /// How often they were changed.
    changes: AtomicU64,
    /// Numbers of the interfaces that somebody keeps, by the rule's index.
    kept: Mutex<BTreeMap<usize, Vec<u64>>>,
}

/// TUN interfaces of its own for each rule that holds, so that the way back leads to the rule's own listeners: one per
/// worker that holds.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    pub tuns: Arc<Vec<Tun>>,
    pub way: Arc<ConnectionPlan>,
    /// Whether nftables sends SYNs here and takes them back: the rule of that index may not hold any more since a
    /// reload.
    pub is_open: bool,
}

impl Gates {
    /// SYNs come by these gates, and by no others, as soon as the workers have woken.
    pub fn open(&self, prepared: BTreeMap<usize, Gate>) {
        let mut gates = self.lock();
        gates.values_mut().for_each(|gate| gate.is_open = false);
        gates.extend(prepared);
        drop(gates);
        self.changes.fetch_add(1, Ordering::AcqRel);
    }

    pub fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    pub fn all(&self) -> BTreeMap<usize, Gate> {
        self.lock().clone()
    }

    /// The interfaces of a rule's gate.
    pub fn of(&self, rule: usize) -> Option<Arc<Vec<Tun>>> {
        self.lock().get(&rule).map(|gate| Arc::clone(&gate.tuns))
    }

    /// Descriptors kept open: each gate's interfaces, and for each of them a socket prepared for its next dial.
    pub fn descriptors(&self) -> usize {
        self.lock().values().map(|gate| 2 * gate.tuns.len()).sum()
    }

    /// The number of a rule's interface at whoever keeps it.
    pub fn kept_id(&self, rule: usize, holder: usize) -> Option<u64> {
        self.lock_kept().get(&rule)?.get(holder).copied()
    }

    /// The interfaces of each rule's gate, by its index.
    pub fn interfaces(&self) -> Vec<(usize, Arc<Vec<Tun>>)> {
        self.lock().iter().map(|(rule, gate)| (*rule, Arc::clone(&gate.tuns))).collect()
    }

    /// Interfaces of another relay, for rules to find. Of a rule's all are there, or they are of no use.
    pub fn inherit(
        &self,
        interfaces: BTreeMap<usize, BTreeMap<usize, File>>,
        holders: usize,
        way: &Arc<ConnectionPlan>,
    ) {
        let whole = interfaces.into_iter().filter(|(_, files)| files.keys().copied().eq(0..holders));
        let gates = whole.map(|(rule, files)| {
            let tuns = Arc::new(files.into_values().map(Tun::inherited).collect());
            (rule, Gate { tuns, way: Arc::clone(way), is_open: false })
        });
        self.lock().extend(gates);
    }

    /// Puts interfaces that are new where they survive this process.
    pub fn keep(&self, keeping: &Keeping) {
        let mut kept = self.lock_kept();
        for (rule, tuns) in self.interfaces() {
            if !keeping.is_on() || kept.contains_key(&rule) {
                continue;
            }
            let put = |(holder, tun): (usize, &Tun)| {
                let id = keeping.other_id();
                keeping.put(id, &Holding::Interface { rule, holder }, &[tun.file().as_fd()]);
                id
            };
            kept.insert(rule, tuns.iter().enumerate().map(put).collect());
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<usize, Gate>> {
        self.gates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_kept(&self) -> MutexGuard<'_, BTreeMap<usize, Vec<u64>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
