//! What the two programs of a dialogue do, and how dialogues are made up.
//!
//! Programs act in slots of [`SLOT`], several round trips of the path: what stands in one slot happens at once, what
//! stands in two happens one after the other at both ends. So most of what the programs see does not depend on chance.

use proptest::{collection::vec, option, prelude::*};
use std::time::Duration;

/// One wait: six round trips of the path.
pub const SLOT: Duration = Duration::from_millis(60);
/// A program that hears at once sees one mark before the next, so many slots later.
pub const SLOTS_APART: u32 = 5;
/// A mark that comes behind more bytes than the urgent pointer can tell (16 bits) is told too early by the kernel.
pub const POINTER_BYTES: u32 = 50_000;

/// Several connections from one client's port to one server.
#[derive(Debug, Clone, PartialEq)]
pub struct Dialogue {
    pub family: Family,
    pub way: Way,
    /// Whether anybody listens at the server's port.
    pub listens: bool,
    /// Receive buffers of the client and of the server, where they are not the kernel's.
    pub client_room: Option<u32>,
    pub server_room: Option<u32>,
    pub talks: Vec<Talk>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// How the relay carries it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Early,
    EarlyQueue,
    AfterServer,
    AfterServerQueue,
}

impl Way {
    pub const ALL: [Way; 4] = [Way::Early, Way::EarlyQueue, Way::AfterServer, Way::AfterServerQueue];

    pub fn is_early(self) -> bool {
        matches!(self, Way::Early | Way::EarlyQueue)
    }
}

/// One connection.
#[derive(Debug, Clone, PartialEq)]
pub struct Talk {
    /// Slots between the end of the one before and this one.
    pub after: u8,
    pub client: Script,
    pub server: Script,
}

/// What one program does with one connection: it says and hears at the same time, then leaves.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    pub says: Vec<Say>,
    pub hears: Hears,
    pub leave: Leave,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Say {
    Write(u32),
    /// One byte with MSG_OOB.
    Mark,
    /// Slots.
    Wait(u8),
    /// Waits until so many bytes have been heard, or the end.
    Hear(u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hears {
    /// Slots in which nothing is read: the window may shut.
    pub from: u8,
    /// Bytes of one reading at most.
    pub piece: u32,
    /// Whether it rests for a millisecond after each reading.
    pub slowly: bool,
    pub marks: Marks,
}

/// What is done about urgent data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marks {
    /// SO_OOBINLINE.
    Inline,
    /// The byte is taken out of the stream, by MSG_OOB.
    Apart,
    /// As by a program that does not know of them: the kernel takes the byte out of the stream, nobody asks for it.
    Unread,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leave {
    /// shutdown(SHUT_WR) when all is said, close() when the end is heard.
    Finish,
    /// close() when all is said and the end is heard.
    Follow,
    /// close() when all is said, whatever still comes.
    Close,
    /// close() with SO_LINGER of 0 when all is said.
    Reset,
}

impl Script {
    pub fn is_inline(&self) -> bool {
        self.hears.marks == Marks::Inline
    }

    pub fn said_bytes(&self) -> u32 {
        self.says.iter().map(Say::bytes).sum()
    }

    /// Places of the marks in what it says.
    pub fn marks(&self) -> Vec<usize> {
        let mut at = 0;
        let mut marks = Vec::new();
        for say in &self.says {
            if *say == Say::Mark {
                marks.push(at);
            }
            at += say.bytes() as usize;
        }
        marks
    }

    /// Whether all that it does after its last byte, until it leaves, lasts for two slots at least.
    pub fn leaves_after_a_while(&self) -> bool {
        self.slots_after_last_byte() >= 2
    }

    /// How long it stays after its last byte at least.
    pub fn stays(&self) -> Duration {
        SLOT * self.slots_after_last_byte()
    }

    fn slots_after_last_byte(&self) -> u32 {
        let after = self.says.iter().rev().take_while(|say| say.bytes() == 0);
        after.map(Say::slots).sum()
    }

    /// Whether it leaves so long after its last byte that the other end, which reads at once, has it all.
    pub fn leaves_when_settled(&self, hearer: &Script) -> bool {
        const BYTES_PER_SLOT: u32 = 1 << 16;
        let slots = 2 + self.said_bytes() / BYTES_PER_SLOT + u32::from(hearer.hears.from);
        self.slots_after_last_byte() >= slots
    }

    /// Whether each mark is alone on its way: the other end reads it before the next is sent.
    pub fn marks_are_apart(&self, hearer: &Script) -> bool {
        let mut since = u32::MAX;
        let is_apart = self.says.iter().all(|say| {
            let is_good = *say != Say::Mark || since >= SLOTS_APART;
            since = if *say == Say::Mark { 0 } else { since.saturating_add(say.slots()) };
            is_good
        });
        is_apart && (hearer.hears_at_once() || self.marks().len() < 2)
    }

    /// Marks that another follows before a program could see them that does not know of marks: it wakes for bytes
    /// alone. By their places in its stream, which the marks' own bytes are taken out of.
    pub fn unseen_marks(&self) -> Vec<usize> {
        let (mut at, mut unseen) = (0, Vec::new());
        // The last mark, and for how many slots bytes behind it have been there.
        let mut last: Option<(usize, Option<u32>)> = None;
        for say in &self.says {
            match (say, &mut last) {
                (Say::Mark, _) => {
                    let is_unseen = |(_, slots): &(usize, Option<u32>)| slots.is_none_or(|slots| slots < 2);
                    unseen.extend(last.filter(is_unseen).map(|(place, _)| place));
                    last = Some((at, None));
                }
                (Say::Write(_), Some((_, slots))) => drop(slots.get_or_insert(0)),
                (Say::Wait(more), Some((_, Some(slots)))) => *slots += u32::from(*more),
                _ => {}
            }
            at += if *say == Say::Mark { 0 } else { say.bytes() as usize };
        }
        unseen
    }

    fn hears_at_once(&self) -> bool {
        self.hears.from == 0 && !self.hears.slowly
    }

    /// Whether a mark comes behind more than the urgent pointer can tell.
    pub fn has_far_marks(&self) -> bool {
        self.marks().iter().any(|at| *at > POINTER_BYTES as usize)
    }
}

impl Say {
    pub fn bytes(&self) -> u32 {
        match self {
            Say::Write(bytes) => *bytes,
            Say::Mark => 1,
            Say::Wait(_) | Say::Hear(_) => 0,
        }
    }

    fn slots(&self) -> u32 {
        match self {
            Say::Wait(slots) => (*slots).into(),
            _ => 0,
        }
    }
}

/// Any dialogue.
pub fn dialogues() -> impl Strategy<Value = Dialogue> {
    let family = prop_oneof![Just(Family::V4), Just(Family::V6)];
    let way = prop::sample::select(Way::ALL.to_vec());
    let listens = prop_oneof![30 => Just(true), 1 => Just(false)];
    let talks = prop_oneof![4 => vec(talk(), 1..=1), 1 => vec(talk(), 2..=3)];
    (family, way, listens, room(), room(), talks).prop_map(
        |(family, way, listens, client_room, server_room, talks)| {
            let marks = talks[0].server.hears.marks;
            let mut talks: Vec<Talk> = talks.into_iter().map(|talk| tidied(talk, marks)).collect();
            talks[0].after = 0;
            for talk in &mut talks {
                fit(&mut talk.client.says, server_room);
                fit(&mut talk.server.says, client_room);
            }
            Dialogue { family, way, listens, client_room, server_room, talks }
        },
    )
}

fn room() -> impl Strategy<Value = Option<u32>> {
    option::weighted(0.2, prop_oneof![Just(4096u32), 4096..65_536u32])
}

fn talk() -> impl Strategy<Value = Talk> {
    let after = prop_oneof![3 => Just(0u8), 1 => 1..=3u8];
    (after, script(), script()).prop_map(|(after, client, server)| Talk { after, client, server })
}

fn script() -> impl Strategy<Value = Script> {
    let leave = prop_oneof![
        4 => Just(Leave::Finish),
        2 => Just(Leave::Follow),
        2 => Just(Leave::Close),
        2 => Just(Leave::Reset),
    ];
    (vec(say(), 0..=6), hears(), leave).prop_map(|(says, hears, leave)| Script { says, hears, leave })
}

fn say() -> impl Strategy<Value = Say> {
    let bytes = prop_oneof![
        4 => 1..10u32,
        3 => 100..3000u32,
        2 => 10_000..POINTER_BYTES,
        1 => 100_000..400_000u32,
    ];
    prop_oneof![
        6 => bytes.prop_map(Say::Write),
        2 => Just(Say::Mark),
        4 => (1..=3u8).prop_map(Say::Wait),
        1 => (1..5000u32).prop_map(Say::Hear),
    ]
}

fn hears() -> impl Strategy<Value = Hears> {
    let from = prop_oneof![4 => Just(0u8), 1 => 1..=6u8];
    let piece = prop_oneof![3 => Just(1u32 << 16), 1 => 1..3000u32];
    let slowly = prop_oneof![6 => Just(false), 1 => Just(true)];
    let marks = prop_oneof![Just(Marks::Inline), Just(Marks::Apart), Just(Marks::Unread)];
    (from, piece, slowly, marks).prop_map(|(from, piece, slowly, marks)| Hears { from, piece, slowly, marks })
}

/// Says so little to a small window that it is through in a second, at a window per round trip of 20 ms.
fn fit(says: &mut [Say], room: Option<u32>) {
    let most = room.map_or(u32::MAX, |room| 3 * room);
    for say in says {
        if let Say::Write(bytes) = say {
            *bytes = (*bytes).min(most);
        }
    }
}

/// Takes out what would never end, or would end by chance even without a relay.
fn tidied(mut talk: Talk, marks: Marks) -> Talk {
    let Talk { client, server, .. } = &mut talk;
    // One listener, whose option all connections inherit.
    server.hears.marks = marks;
    // Two programs that wait for each other.
    if client.leave == Leave::Follow && server.leave == Leave::Follow {
        client.leave = Leave::Finish;
    }
    let most = client.said_bytes();
    client.says.retain(|say| !matches!(say, Say::Hear(_)));
    server.says.retain(|say| !matches!(say, Say::Hear(bytes) if *bytes > most));
    let (client_hears, server_hears) = (client.hears, server.hears);
    for (says, by) in [(&mut client.says, server_hears), (&mut server.says, client_hears)] {
        keep_readable_marks(says, by);
    }
    // A hundred readings take at most two tenths of a second.
    server.hears.piece = server.hears.piece.max(client.said_bytes() / 100 + 1);
    client.hears.piece = client.hears.piece.max(server.said_bytes() / 100 + 1);
    talk
}

/// Without SO_OOBINLINE the kernel drops the byte of a mark that another one follows before it is read, and so it does
/// with what is behind a pointer that cannot reach the mark: what is dropped is a matter of time.
fn keep_readable_marks(says: &mut Vec<Say>, by: Hears) {
    if by.marks == Marks::Inline {
        return;
    }
    let (mut since, mut bytes) = (u32::MAX, 0);
    says.retain(|say| {
        if *say != Say::Mark {
            since = since.saturating_add(say.slots());
            bytes += say.bytes();
            return true;
        }
        let is_alone = since == u32::MAX || (since >= 5 && by.from == 0 && !by.slowly);
        let is_good = is_alone && bytes <= POINTER_BYTES;
        if is_good {
            since = 0;
        }
        is_good
    });
}
