//! A worker's connections by number. A number is reused, so it carries a generation: events of a connection that has
//! ended meanwhile find nothing.

use super::relayed::Relayed;
use crate::logic::connection::Side;

/// Names a connection of one worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token {
    slot: u32,
    /// 28 bits, so that no token looks like one of those that are no connection's.
    generation: u32,
}

const GENERATIONS: u32 = 1 << 28;

impl Token {
    /// What epoll hands back for a socket of the connection.
    pub fn data(self, side: Side) -> u64 {
        (u64::from(self.generation) << 33) | (u64::from(self.slot) << 1) | side as u64
    }

    pub fn side(data: u64) -> Side {
        if data & 1 == 0 { Side::Client } else { Side::Server }
    }
}

impl From<u64> for Token {
    fn from(data: u64) -> Token {
        Token { slot: (data >> 1) as u32, generation: (data >> 33) as u32 }
    }
}

#[derive(Default)]
pub(crate) struct Slots {
    slots: Vec<(u32, Option<Box<Relayed>>)>,
    free: Vec<u32>,
}

impl Slots {
    pub fn insert(&mut self, connection: Box<Relayed>) -> Token {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let entry = &mut self.slots[slot as usize];
        entry.1 = Some(connection);
        Token { slot, generation: entry.0 }
    }

    pub fn get(&self, token: Token) -> Option<&Relayed> {
        let (generation, connection) = self.slots.get(token.slot as usize)?;
        if *generation == token.generation { connection.as_deref() } else { None }
    }

    pub fn get_mut(&mut self, token: Token) -> Option<&mut Relayed> {
        let (generation, connection) = self.slots.get_mut(token.slot as usize)?;
        if *generation == token.generation { connection.as_deref_mut() } else { None }
    }

    pub fn remove(&mut self, token: Token) -> Option<Box<Relayed>> {
        let (generation, connection) = self.slots.get_mut(token.slot as usize)?;
        if *generation != token.generation {
            return None;
        }
        let removed = connection.take()?;
        *generation = (*generation + 1) % GENERATIONS;
        self.free.push(token.slot);
        Some(removed)
    }

    /// Every living connection.
    pub fn tokens(&self) -> Vec<Token> {
        let living = self.slots.iter().enumerate().filter(|(_, (_, connection))| connection.is_some());
        living.map(|(slot, (generation, _))| Token { slot: slot as u32, generation: *generation }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_survives_epoll_and_never_looks_like_anything_elses() {
        for token in [
            Token { slot: 0, generation: 0 },
            Token { slot: u32::MAX, generation: GENERATIONS - 1 },
            Token { slot: 7, generation: 9 },
        ] {
            for side in [Side::Client, Side::Server] {
                let data = token.data(side);
                assert_eq!((Token::from(data), Token::side(data)), (token, side));
                assert!(data < crate::hold::TOKENS);
            }
        }
    }
}
