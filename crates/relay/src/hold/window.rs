//! How many handshakes may be held for clients that have not shown that they are there. Pure.
//!
//! Each is a connection of nobody's at a server if its SYN was spoofed. Whoever comes beyond them is answered first, by
//! the kernel's cookies if there are many, and his server dialled when he has come. The window widens with clients that
//! come when their servers have answered, like a congestion window with acknowledgements, and closes when one does not.

use crate::logic::shares::Shares;
use std::net::IpAddr;

/// However many SYNs are spoofed, servers have no more connections of nobody's.
pub(crate) const LEAST: usize = 48;

#[derive(Debug)]
pub(crate) struct Window {
    held: Shares,
    size: usize,
    most: usize,
}

impl Window {
    /// Comes to `most` in the best of times.
    pub fn new(most: usize) -> Window {
        Window { held: Shares::default(), size: LEAST.min(most), most }
    }

    /// Whether one more may be held for a client.
    pub fn has_room(&self, client: IpAddr) -> bool {
        self.held.has_room(client, self.size)
    }

    /// One more is held for a client.
    pub fn add(&mut self, client: IpAddr) {
        self.held.add(client);
    }

    /// One less is.
    pub fn remove(&mut self, client: IpAddr) {
        self.held.remove(client);
    }

    /// A client has come. What is not used does not widen.
    pub fn on_client(&mut self) {
        if 4 * self.held.taken() > self.size {
            self.size = (self.size + 1).min(self.most);
        }
    }

    #[cfg(test)]
    pub fn taken(&self) -> usize {
        self.held.taken()
    }

    /// A client has not come, though it would have had time.
    pub fn on_nobody(&mut self) {
        self.size = LEAST.min(self.most);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(window: &mut Window) -> usize {
        let hosts = (0..2000u32).map(|host| IpAddr::from((0x0a00_0001 + (host << 8)).to_be_bytes()));
        let mut count = 0;
        for host in hosts {
            if window.has_room(host) {
                window.add(host);
                count += 1;
            }
        }
        count
    }

    fn empty(window: &mut Window) {
        window.held = Shares::default();
    }

    #[test]
    fn it_widens_with_clients_that_come_and_closes_when_one_does_not() {
        let mut window = Window::new(1024);
        assert_eq!(fill(&mut window), LEAST);
        (0..10).for_each(|_| window.on_client());
        empty(&mut window);
        assert_eq!(fill(&mut window), LEAST + 10);
        window.on_nobody();
        empty(&mut window);
        assert_eq!(fill(&mut window), LEAST);
        empty(&mut window);
        (0..2000).for_each(|_| window.on_client());
        assert_eq!(fill(&mut window), LEAST, "nobody needed more");
        (0..2000).for_each(|_| {
            window.on_client();
            fill(&mut window);
        });
        assert_eq!(window.held.taken(), 1024);
    }
}
