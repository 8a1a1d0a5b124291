//! What goes in behind and out in front, in one piece: what is taken out stays where it is until there is no room.

/// A queue; read as a slice.
#[derive(Debug, Clone)]
pub struct Queue<T> {
    items: Vec<T>,
    /// Number of elements that were taken out.
    first: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { items: Vec::new(), first: 0 }
    }
}

impl<T: PartialEq> PartialEq for Queue<T> {
    fn eq(&self, other: &Queue<T>) -> bool {
        **self == **other
    }
}

impl<T> std::ops::Deref for Queue<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        self.items.get(self.first..).unwrap_or_default()
    }
}

impl<T> std::ops::DerefMut for Queue<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        self.items.get_mut(self.first..).unwrap_or_default()
    }
}

impl<T: Copy> Queue<T> {
    /// Whether nothing is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// The first one.
    #[inline]
    pub fn front(&self) -> Option<T> {
        self.items.get(self.first).copied()
    }

    /// Puts one behind the others.
    #[inline]
    pub fn push(&mut self, item: T) {
        if self.items.len() == self.items.capacity() {
            self.make_room();
        }
        self.items.push(item);
    }

    /// Moves the rest to the beginning, if it is no more than what was taken out: each is moved once, on average.
    #[cold]
    fn make_room(&mut self) {
        if 2 * self.first >= self.items.len() {
            self.items.drain(..self.first);
            self.first = 0;
        }
    }

    /// Takes the first ones out; `count` is no more than there are.
    #[inline]
    pub fn take(&mut self, count: usize) {
        self.first += count;
        if self.first >= self.items.len() {
            self.clear();
        }
    }

    /// Takes the first one out, if it is such a one.
    #[inline]
    pub fn take_if(&mut self, is_such: impl FnOnce(&T) -> bool) -> Option<T> {
        let found = *self.items.get(self.first).filter(|item| is_such(item))?;
        self.take(1);
        Some(found)
    }

    /// Takes all out.
    pub fn clear(&mut self) {
        self.items.clear();
        self.first = 0;
    }

    /// Puts one before the one at `at`, unless more than `most` had to be moved for it.
    pub fn insert(&mut self, at: usize, item: T, most: usize) {
        let behind = self.len() - at;
        if self.first > 0 && at < behind && at <= most {
            self.first -= 1;
            self.items.copy_within(self.first + 1..self.first + 1 + at, self.first);
            self.items[self.first + at] = item;
        } else if behind <= most {
            self.items.insert(self.first + at, item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(crate::cases::cases(512))]

        #[test]
        fn a_queue_holds_what_a_vector_holds(steps in proptest::collection::vec((0u8..7, 0usize..12), 0..200)) {
            let (mut queue, mut vector) = (Queue::default(), Vec::new());
            for (number, (kind, size)) in steps.into_iter().enumerate() {
                let at = size.min(vector.len());
                match kind {
                    0..=2 => {
                        queue.push(number);
                        vector.push(number);
                    }
                    3 => {
                        queue.insert(at, number, usize::MAX);
                        vector.insert(at, number);
                    }
                    4 => {
                        queue.take(at);
                        vector.drain(..at);
                    }
                    5 => {
                        let first = vector.first().copied().filter(|first| first % 2 == 0);
                        prop_assert_eq!(queue.take_if(|first| first % 2 == 0), first);
                        vector.drain(..usize::from(first.is_some()));
                    }
                    _ if size == 0 => {
                        queue.clear();
                        vector.clear();
                    }
                    _ => {}
                }
                prop_assert_eq!(&queue[..], &vector[..]);
                prop_assert_eq!((queue.front(), queue.is_empty()), (vector.first().copied(), vector.is_empty()));
            }
        }
    }

    #[test]
    fn it_takes_no_more_room_than_twice_what_was_in_it_at_once_and_moves_little() {
        let mut queue = Queue::default();
        (0..100).for_each(|number| queue.push(number));
        for number in 100..1_000_000 {
            queue.take(1);
            queue.push(number);
        }
        assert!(queue.items.capacity() <= 512, "{}", queue.items.capacity());
        queue.insert(50, 0, 10);
        assert_eq!((queue.len(), queue[0]), (100, 999_900), "50 had to be moved");
    }
}
