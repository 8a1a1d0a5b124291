//! The event queue: one time per entity, the earliest first.
//!
//! Packets in flight wait inside the path model, in order; only who acts next stands here: directions of links,
//! connections, sources, the sampler. So the heap is small, and moving an entity costs a few comparisons. Equal
//! times are served in order of entity number: the order of events depends on the scenario alone.

/// No time at all.
pub const NEVER: u64 = u64::MAX;

/// Children per node: four fit a cache line.
const ARITY: usize = 4;

/// An indexed heap over the entities 0 .. n.
#[derive(Debug)]
pub struct Timers {
    heap: Vec<(u64, u32)>,
    place: Vec<u32>,
}

impl Timers {
    /// `entities` timers, none set.
    pub fn new(entities: usize) -> Timers {
        let numbers = 0..u32::try_from(entities).unwrap_or(u32::MAX);
        Timers { heap: numbers.clone().map(|entity| (NEVER, entity)).collect(), place: numbers.collect() }
    }

    /// The earliest time and whose it is.
    pub fn first(&self) -> (u64, u32) {
        self.heap.first().copied().unwrap_or((NEVER, 0))
    }

    /// When `entity` acts.
    pub fn get(&self, entity: u32) -> u64 {
        self.heap[self.place[entity as usize] as usize].0
    }

    /// Sets when `entity` acts; [`NEVER`] clears it.
    pub fn set(&mut self, entity: u32, at_ns: u64) {
        let place = self.place[entity as usize] as usize;
        let before_ns = self.heap[place].0;
        if at_ns < before_ns {
            self.rise(place, (at_ns, entity));
        } else if at_ns > before_ns {
            self.sink(place, (at_ns, entity));
        }
    }

    fn put(&mut self, place: usize, entry: (u64, u32)) {
        self.heap[place] = entry;
        self.place[entry.1 as usize] = place as u32;
    }

    fn rise(&mut self, mut place: usize, entry: (u64, u32)) {
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.heap[parent] <= entry {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    fn sink(&mut self, mut place: usize, entry: (u64, u32)) {
        loop {
            let first = place * ARITY + 1;
            let end = (first + ARITY).min(self.heap.len());
            let Some(least) = (first..end).min_by_key(|child| self.heap[*child]) else { break };
            if self.heap[least] >= entry {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_first_is_always_the_least_of_all_set_times(sets in prop::collection::vec((0u32..17, 0u64..50), 1..300)) {
            let mut timers = Timers::new(17);
            let mut times = [NEVER; 17];
            for (entity, at) in sets {
                let at = if at == 0 { NEVER } else { at };
                timers.set(entity, at);
                times[entity as usize] = at;
                let least = times.iter().enumerate().map(|(e, t)| (*t, e as u32)).min().unwrap();
                prop_assert_eq!(timers.first(), least);
                prop_assert_eq!(timers.get(entity), at);
            }
        }
    }
}
