//! What may differ between plain forwarding and the relay, and all that may not.
//!
//! Everything that the two programs saw is compared: what connect() said, bytes and their order, places of urgent marks
//! and their bytes, how the end came (FIN, reset, another error, silence), how much later, what a write said, and the
//! client's address as the server sees it. A difference stands unless it is one of [`Allowed`], or plain forwarding
//! itself comes to the relay's outcome when it is repeated (the programs' own races: [`super::judge`]).

use super::{
    program::{End, Mark, SILENCE, Seen, byte_at},
    script::{Dialogue, Leave, Marks, SLOT, SLOTS_APART, Script, Talk},
    stage::{Met, Outcome, stream},
};
use longfat_relay::RelayPlan;
use nix::errno::Errno;
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

/// Ends may be heard so much later: buffers in between, a busy machine, and a SYN that is lost costs a second.
const LATE: Duration = Duration::from_millis(1500);

/// What was said last is under way for a round trip at most when nothing holds it up; the two programs' clocks begin as
/// much apart.
const UNDER_WAY: Duration = Duration::from_millis(40);

/// A client that was held and does not come is asked after when so much time has passed.
const ASKING: Duration = Duration::from_secs(2);

/// Receive buffers below this may close to a silly window, with segments of at least so many bytes, each after so long.
const SILLY_ROOM: u32 = 8192;
const SILLY_BYTES: u32 = 512;
const SILLY_WAIT: Duration = Duration::from_millis(250);

/// Every difference that is none, and why.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allowed {
    /// Early acceptance has answered before the server refuses: connect() succeeds, then comes a reset. A client that
    /// leaves before that has a connection, which its own kernel keeps (EADDRNOTAVAIL from the same port).
    RefusedEarly,
    /// A reset overtakes what its sender has not sent yet: how much that is depends on the path's buffers. What
    /// was said long before it must have come, of what was said just before it something.
    CutByReset,
    /// A program that leaves before it hears the end has heard what had come by then, which is a matter of time.
    LeftBefore,
    /// close() sends a reset where unread bytes wait, else a FIN, and what comes later is answered by a reset: where
    /// not all had been heard when a program left, the other end may see either, and be told before it has read all.
    TornByClose,
    /// The path's buffers hold more or less: a write that was taken as a whole is not told that the other has left,
    /// where one that still waited is; of one that fails more or less had been taken.
    TakenBefore,
    /// Small windows are filled in less time, since round trips to the relay are shorter: an end may come sooner.
    Sooner,
    /// What the relay has acknowledged is delivered before a reset, for two seconds at most.
    DeliveredFirst,
    /// The client's own kernel keeps a pair of ports until the last acknowledgement, which the relay sends sooner: the
    /// port can be used again where connect() says EADDRNOTAVAIL with plain forwarding.
    FreedSooner,
    /// Where its own last bytes are still under way when the program leaves, that kernel says EADDRNOTAVAIL to who
    /// connects from the port at once: the end is heard sooner with the relay, or what the relay took was still waiting
    /// for it where plain forwarding had told of the server's reset, or the server happened to hear it all a little
    /// later, or the client left before it was reset, or before what its close() would have answered by a reset, or
    /// before its server's close() had answered by one.
    KeptLonger,
    /// The kernel's own TCP stands still now and then, with a small window and an urgent byte that is taken out of
    /// line: with plain forwarding or on the relay's leg.
    StoodStill,
    /// A receive buffer of a few KB may close to a silly window (RFC 9293, section 3.8.6.2): its sender waits a quarter
    /// of a second for room before each small segment. Where the stream is cut into segments decides whether it does.
    Crawled,
    /// The client's reset overtakes its handshake's last packet: nobody is accepted, and the server, dialled before, is
    /// reset when the relay asks the kernel after the missing client.
    AskedAfter,
    /// TCP has one urgent pointer: a mark that another follows before it was read may be told or not, and its byte
    /// stands in the stream then. A program that does not know of marks wakes for bytes alone, and may find the next
    /// mark there already. What waited in the relay for the server's leg comes without the pauses between marks.
    OvertakenMark,
    /// Marks well apart become one where the program had no processor, by the kernel's own count, for half of
    /// the time between two at least, or the relay: they are one mark by the time it looks.
    MergedMark,
    /// Before a mark that 16 bits cannot tell the kernel shows others, 65,535 bytes after what it has sent.
    FarMark,
    /// Forwarding is done by whoever sends; the relay is a thread, and where a hundred programs and others' builds want
    /// the same two processors it waits for one, by the kernel's own count: for half of what an end comes later at
    /// least, or of what a program stays before its reset cuts off what is not through.
    NoProcessor,
}

impl Allowed {
    pub const ALL: [Allowed; 16] = [
        Allowed::RefusedEarly,
        Allowed::CutByReset,
        Allowed::LeftBefore,
        Allowed::TornByClose,
        Allowed::TakenBefore,
        Allowed::Sooner,
        Allowed::DeliveredFirst,
        Allowed::FreedSooner,
        Allowed::KeptLonger,
        Allowed::StoodStill,
        Allowed::Crawled,
        Allowed::AskedAfter,
        Allowed::OvertakenMark,
        Allowed::MergedMark,
        Allowed::FarMark,
        Allowed::NoProcessor,
    ];

    /// Counts it; true.
    fn use_it(self) -> bool {
        USED[self as usize].fetch_add(1, Ordering::Relaxed);
        true
    }

    /// How often it was made use of.
    pub fn used(self) -> usize {
        USED[self as usize].load(Ordering::Relaxed)
    }
}

static USED: [AtomicUsize; Allowed::ALL.len()] = [const { AtomicUsize::new(0) }; Allowed::ALL.len()];

/// A difference that stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    pub talk: usize,
    pub what: String,
}

/// All differences between two runs of a dialogue.
pub fn differences(dialogue: &Dialogue, plain: &Outcome, relayed: &Outcome) -> Vec<Difference> {
    let mut found = Vec::new();
    let outcomes = (plain, relayed);
    for talk in 0..plain.len().min(relayed.len()) {
        let mut say = |what: String| found.push(Difference { talk, what });
        if is_kept_longer(dialogue, talk, outcomes) && Allowed::KeptLonger.use_it() {
            continue;
        }
        meetings(dialogue, talk, outcomes, &mut say);
    }
    found
}

/// What must hold of every run, with or without a relay: whose bytes they are, and that an end without an error means
/// that all has come.
pub fn untruths(dialogue: &Dialogue, outcome: &Outcome) -> Vec<Difference> {
    let mut found = Vec::new();
    for (talk, met) in outcome.iter().enumerate() {
        let mut say = |what: String| found.push(Difference { talk, what });
        if !met.is_from_client {
            say("the server sees another address or port than the client's".into());
        }
        let scripts = &dialogue.talks[talk];
        for (name, heard_by, said_by, scripts, direction) in [
            ("server", &met.server, &met.client, (&scripts.server, &scripts.client), 0),
            ("client", &met.client, &met.server, (&scripts.client, &scripts.server), 1),
        ] {
            if let Some(untruth) = heard_by
                .as_ref()
                .and_then(|hearer| untruth(hearer, said_by.as_ref(), scripts, stream(talk, direction)))
            {
                say(format!("{name}: {untruth}"));
            }
        }
    }
    found
}

fn untruth(hearer: &Seen, sayer: Option<&Seen>, scripts: (&Script, &Script), stream: u32) -> Option<String> {
    let (script, says) = scripts;
    let marks = says.marks();
    let taken_out = if script.is_inline() { &[][..] } else { &marks };
    let is_whole = hearer.end == Some(End::Fin) && hearer.say_error.is_none();
    let said_all = sayer.is_none_or(|sayer| sayer.say_error.is_none()) && says.leave != Leave::Reset;
    let as_said = |taken_out: &[usize]| {
        let all = (0..says.said_bytes() as usize).filter(|at| !taken_out.contains(at));
        let expected: Vec<u8> = all.map(|at| byte_at(stream, at)).collect();
        let same = hearer.heard.iter().zip(&expected).take_while(|(heard, said)| heard == said).count();
        if same < hearer.heard.len() {
            return Some(format!("byte {same} of {} heard is not what was said", hearer.heard.len()));
        }
        (is_whole && said_all && same < expected.len())
            .then(|| format!("an end without an error after {same} of {} bytes", expected.len()))
    };
    let untruth = as_said(taken_out)?;
    let is_overtaken = overtaken(taken_out).any(|still_out| as_said(&still_out).is_none());
    (!(is_overtaken && Allowed::OvertakenMark.use_it())).then_some(untruth)
}

/// The marks that are still taken out when some have been overtaken by later ones, in all ways.
fn overtaken(marks: &[usize]) -> impl Iterator<Item = Vec<usize>> {
    let overtakable = marks.len().saturating_sub(1);
    (1..1u32 << overtakable).map(move |overtaken| {
        let is_out = |index: &usize| overtaken >> index & 1 == 0;
        (0..marks.len()).filter(is_out).map(|index| marks[index]).collect()
    })
}

fn meetings(dialogue: &Dialogue, talk: usize, outcomes: (&Outcome, &Outcome), say: &mut impl FnMut(String)) {
    let (plain, relayed, before) = (&outcomes.0[talk], &outcomes.1[talk], &outcomes.1[..talk]);
    let is_freed = |talk: usize| {
        outcomes.0[talk].connected == Err(Errno::EADDRNOTAVAIL) && outcomes.1[talk].connected.is_ok()
    };
    // Who came through has the port, and the next one does not.
    let is_taken = plain.connected.is_ok() && relayed.connected == Err(Errno::EADDRNOTAVAIL);
    let is_free = is_freed(talk) || is_taken && (0..talk).any(is_freed);
    if is_refused_early(dialogue, plain, relayed, before) || is_free && Allowed::FreedSooner.use_it() {
        return;
    }
    if plain.connected != relayed.connected {
        return say(format!("connect(): {:?} and {:?}", plain.connected, relayed.connected));
    }
    let scripts = &dialogue.talks[talk];
    for (name, plain, relayed, script, other) in [
        (
            "client",
            (&plain.client, &plain.server),
            (&relayed.client, &relayed.server),
            &scripts.client,
            &scripts.server,
        ),
        (
            "server",
            (&plain.server, &plain.client),
            (&relayed.server, &relayed.client),
            &scripts.server,
            &scripts.client,
        ),
    ] {
        match (plain.0, relayed.0) {
            (Some(one), Some(two)) => {
                let others = (plain.1.as_ref(), relayed.1.as_ref());
                let is_held_server = name == "server" && !dialogue.way.is_early();
                let crawl = crawl(dialogue, scripts);
                let relay_waited = outcomes.1[talk].relay_waited;
                let view = View {
                    plain: one,
                    relayed: two,
                    others,
                    script,
                    other,
                    is_held_server,
                    crawl,
                    relay_waited,
                };
                view.compare(&mut |what| say(format!("{name}: {what}")));
            }
            (None, None) => {}
            (one, two) => say(format!(
                "{name}: a connection {} without the relay, {} with it",
                came(one.is_some()),
                came(two.is_some())
            )),
        }
    }
}

/// The client left its last connection with bytes of its own under way, as it did not with plain forwarding, or for
/// longer.
fn is_kept_longer(dialogue: &Dialogue, talk: usize, (plain, relayed): (&Outcome, &Outcome)) -> bool {
    let is_kept = relayed[talk].connected == Err(Errno::EADDRNOTAVAIL) && plain[talk].connected.is_ok();
    let both_met = |last: &usize| plain[*last].client.is_some() && relayed[*last].client.is_some();
    let Some(last) = (0..talk).rev().find(both_met).filter(|_| is_kept) else { return false };
    let (plain, relayed) = (&plain[last], &relayed[last]);
    let servers = plain.server.as_ref().zip(relayed.server.as_ref());
    let server_heard_later = servers.is_some_and(|(plain, relayed)| relayed.after > plain.after);
    let clients = plain.client.as_ref().zip(relayed.client.as_ref());
    clients.is_some_and(|(plain, client)| {
        let server = relayed.server.as_ref();
        let ended_sooner = client.after < plain.after
            && server.is_some_and(|server| client.after <= server.after + UNDER_WAY);
        let was_taken = plain.say_error.is_some() && client.say_error.is_none() && client.said > plain.said;
        let begins = client.after + SLOT * dialogue.talks[talk].after.into();
        let is_still_heard = server.is_some_and(|server| begins < server.after);
        let was_reset = |seen: &Seen| how(seen) == How::Reset || seen.unread > 0;
        let left_before_reset = was_reset(plain) && how(client) == How::Left && client.unread == 0;
        let server_reset_it =
            servers.is_some_and(|(plain, relayed)| how(plain) == How::Left && how(relayed) != How::Left);
        // The reset that answers what nobody reads comes a little later.
        let is_torn =
            server.is_some_and(|server| how(server) == How::Left && server.heard.len() < client.said);
        ended_sooner
            || is_torn
            || was_taken
            || server_heard_later
            || is_still_heard
            || left_before_reset
            || server_reset_it
    })
}

/// None at all when both have room for whole segments.
fn crawl(dialogue: &Dialogue, talk: &Talk) -> Duration {
    let is_silly = |room: Option<u32>| room.is_some_and(|room| room < SILLY_ROOM);
    let towards = [(dialogue.client_room, &talk.server), (dialogue.server_room, &talk.client)];
    let silly = towards.into_iter().filter(|(room, _)| is_silly(*room));
    silly.map(|(_, says)| SILLY_WAIT * says.said_bytes().div_ceil(SILLY_BYTES)).sum()
}

fn came(whether: bool) -> &'static str {
    if whether { "came" } else { "did not come" }
}

fn is_refused_early(dialogue: &Dialogue, plain: &Met, relayed: &Met, before: &[Met]) -> bool {
    let is_reset = |seen: &Seen| how(seen) == How::Reset && seen.heard.is_empty();
    // Its own kernel keeps the connection that it had before.
    let had_one = || before.iter().any(|met| met.connected.is_ok());
    dialogue.way.is_early()
        && plain.connected == Err(Errno::ECONNREFUSED)
        && (relayed.connected == Err(Errno::ECONNREFUSED)
            || (relayed.connected == Err(Errno::EADDRNOTAVAIL) && had_one())
            || relayed.client.as_ref().is_some_and(|seen| is_reset(seen) || how(seen) == How::Left))
        && Allowed::RefusedEarly.use_it()
}

/// How a connection ended for a program, by whatever call it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    Fin,
    /// An end, then EPIPE for a write: the other had left.
    FinThenBroken,
    Reset,
    Left,
    Silence,
    Error(Errno),
}

/// The first call after a reset, a write or a reading, is told of it; later ones see EPIPE or an end.
fn how(seen: &Seen) -> How {
    match (seen.end, seen.say_error) {
        (Some(End::Silence), _) => How::Silence,
        (Some(End::Error(Errno::ECONNRESET)), _) | (_, Some(Errno::ECONNRESET)) => How::Reset,
        (Some(End::Fin) | None, Some(Errno::EPIPE)) => How::FinThenBroken,
        (Some(End::Error(errno)), _) | (_, Some(errno)) => How::Error(errno),
        (Some(End::Fin), None) => How::Fin,
        (None, None) => How::Left,
    }
}

/// What one program saw, without and with the relay.
struct View<'a> {
    plain: &'a Seen,
    relayed: &'a Seen,
    /// What the program at the other end saw.
    others: (Option<&'a Seen>, Option<&'a Seen>),
    script: &'a Script,
    other: &'a Script,
    /// The server's, of a way that dials it before the client is accepted.
    is_held_server: bool,
    /// How long all that is said may take through a silly window.
    crawl: Duration,
    /// How long the relay had no processor.
    relay_waited: Duration,
}

impl View<'_> {
    fn compare(&self, say: &mut impl FnMut(String)) {
        if self.stood_still() && Allowed::StoodStill.use_it()
            || self.crawled_to_silence() && Allowed::Crawled.use_it()
        {
            return;
        }
        self.compare_end(say);
        self.compare_bytes(say);
        self.compare_marks(say);
    }

    /// Whether the view stood still. All that has come is among what must hold of every run.
    fn stood_still(&self) -> bool {
        let goes_on = |still: &Seen, other: &Seen| {
            how(still) == How::Silence && how(other) == How::Fin && other.heard.len() > still.heard.len()
        };
        let is_either = goes_on(self.plain, self.relayed) || goes_on(self.relayed, self.plain);
        is_either && !self.other.marks().is_empty() && !self.script.is_inline()
    }

    /// One of the programs took the other for silent before all had come.
    fn crawled_to_silence(&self) -> bool {
        let all = [Some(self.plain), Some(self.relayed), self.others.0, self.others.1];
        self.crawl > SILENCE && all.iter().flatten().any(|seen| how(seen) == How::Silence)
    }

    fn has_left(&self) -> bool {
        let may_leave = matches!(self.script.leave, Leave::Close | Leave::Reset);
        may_leave && (how(self.plain) == How::Left || how(self.relayed) == How::Left)
    }

    fn compare_end(&self, say: &mut impl FnMut(String)) {
        let (plain, relayed) = (self.plain, self.relayed);
        let (one, two) = (how(plain), how(relayed));
        if one != two {
            if !(self.has_left() && Allowed::LeftBefore.use_it() || self.is_torn() || self.was_taken_before())
            {
                say(format!("its end was {one:?} without the relay, {two:?} with it"));
            }
        } else if plain.after.abs_diff(relayed.after) > LATE
            && !(relayed.after < plain.after && Allowed::Sooner.use_it()
                || self.was_delivered_first() && Allowed::DeliveredFirst.use_it()
                || plain.after.abs_diff(relayed.after) <= self.crawl && Allowed::Crawled.use_it()
                || self.was_asked_after() && Allowed::AskedAfter.use_it()
                || self.has_left() && Allowed::LeftBefore.use_it()
                || self.had_no_processor(relayed.after.saturating_sub(plain.after))
                    && Allowed::NoProcessor.use_it())
        {
            let [plain, relayed] = [plain, relayed].map(|seen| seen.after.as_millis());
            say(format!("its end, {one:?}, came after {plain} ms without the relay, {relayed} ms with it"));
        }
        if plain.said != relayed.said {
            let has_failed = plain.say_error.is_some() || relayed.say_error.is_some();
            if !(has_failed && Allowed::TakenBefore.use_it()) {
                say(format!(
                    "its writes took {} bytes without the relay, {} with it",
                    plain.said, relayed.said
                ));
            }
        }
    }

    fn is_torn(&self) -> bool {
        let is_unheard = |sayer: &Seen, hearer: Option<&Seen>| {
            hearer.is_some_and(|hearer| hearer.heard.len() < sayer.said)
        };
        let is_told_by_close =
            |seen: &Seen| matches!(how(seen), How::Fin | How::FinThenBroken | How::Reset | How::Left);
        self.other.leave == Leave::Close
            && is_told_by_close(self.plain)
            && is_told_by_close(self.relayed)
            && (is_unheard(self.plain, self.others.0) || is_unheard(self.relayed, self.others.1))
            && Allowed::TornByClose.use_it()
    }

    fn was_delivered_first(&self) -> bool {
        let more = self.relayed.heard.len() > self.plain.heard.len();
        let most = RelayPlan::DEFAULT_RESET_WAIT + LATE;
        more && how(self.relayed) == How::Reset && self.relayed.after < self.plain.after + most
    }

    /// For half of this time at least.
    fn had_no_processor(&self, time: Duration) -> bool {
        self.relay_waited >= time / 2
    }

    fn was_asked_after(&self) -> bool {
        let is_overtaking = self.other.leave == Leave::Reset && !self.other.leaves_after_a_while();
        self.is_held_server
            && is_overtaking
            && self.relayed.after < ASKING + LATE
            && how(self.relayed) == How::Reset
            && self.relayed.heard.is_empty()
    }

    fn was_taken_before(&self) -> bool {
        let all = self.script.said_bytes() as usize;
        let was_told = |one: &Seen, two: &Seen| {
            how(one) == How::FinThenBroken
                && how(two) == How::Fin
                && two.said == all
                && two.say_error.is_none()
        };
        (was_told(self.plain, self.relayed) || was_told(self.relayed, self.plain))
            && Allowed::TakenBefore.use_it()
    }

    /// Bytes were compared with what was said (see [`untruths`]); here it is how many.
    fn compare_bytes(&self, say: &mut impl FnMut(String)) {
        let (one, two) = (self.plain.heard.len(), self.relayed.heard.len());
        if one == two || self.has_left() && Allowed::LeftBefore.use_it() {
            return;
        }
        let is_reset = |seen: &Seen| matches!(how(seen), How::Reset | How::FinThenBroken);
        if one.abs_diff(two) < self.other.marks().len() && self.were_merged() {
            return;
        }
        let may_be_cut = is_reset(self.plain) && is_reset(self.relayed) || self.is_torn();
        if !(may_be_cut && self.is_well_cut(one, two) && Allowed::CutByReset.use_it()) {
            say(format!("it heard {one} bytes without the relay, {two} with it"));
        }
    }

    /// What was said long before the reset has come, if it was read at once; of what was said just before it something
    /// has.
    fn is_well_cut(&self, plain: usize, relayed: usize) -> bool {
        // Who is told of the reset by a write no longer reads what came before it, nor does who leaves.
        let no_longer_reads = self.relayed.say_error == Some(Errno::ECONNRESET)
            || matches!(self.script.leave, Leave::Close | Leave::Reset);
        let said = self.other.said_bytes() as usize;
        let has_settled = self.other.leave == Leave::Reset
            && self.other.leaves_when_settled(self.script)
            && !self.script.hears.slowly
            && plain == said
            && !(self.had_no_processor(self.other.stays()) && Allowed::NoProcessor.use_it());
        no_longer_reads || if has_settled { relayed == said } else { plain == 0 || relayed > 0 }
    }

    fn compare_marks(&self, say: &mut impl FnMut(String)) {
        let (plain, relayed) = (self.told(self.plain), self.told(self.relayed));
        if plain != relayed && !self.were_merged() {
            say(format!("marks {plain:?} without the relay, {relayed:?} with it"));
        }
    }

    /// Whether a mark may have come while the one before it had not been looked for: TCP has one urgent pointer.
    fn were_merged(&self) -> bool {
        let waited = self.plain.waited.max(self.relayed.waited).max(self.relay_waited);
        let is_starved = waited >= SLOT * SLOTS_APART / 2;
        is_starved && self.other.marks().len() > 1 && Allowed::MergedMark.use_it()
    }

    /// The marks of a run that must be told, before the byte where either run ended.
    fn told(&self, seen: &Seen) -> Vec<Mark> {
        let both = self.plain.heard.len().min(self.relayed.heard.len());
        let said = self.other.marks();
        let is_strict = self.other.marks_are_apart(self.script);
        let is_unknowing = self.script.hears.marks == Marks::Unread;
        let unseen = if is_unknowing { self.other.unseen_marks() } else { Vec::new() };
        let must_be_told = |mark: &&Mark| {
            if unseen.contains(&mark.at) {
                return !Allowed::OvertakenMark.use_it();
            }
            if !self.script.is_inline() || said.last() == Some(&mark.at) {
                return true;
            }
            if !said.contains(&mark.at) {
                return !(self.other.has_far_marks() && Allowed::FarMark.use_it());
            }
            is_strict || !Allowed::OvertakenMark.use_it()
        };
        let is_whole = how(self.plain) == How::Fin && how(self.relayed) == How::Fin;
        let byte = |mark: &Mark| Mark { byte: mark.byte.filter(|_| is_whole), ..*mark };
        seen.marks.iter().filter(|mark| mark.at < both).filter(must_be_told).map(byte).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::script::{Hears, Say},
        *,
    };

    #[test]
    fn marks_well_apart_may_only_merge_for_a_program_that_had_no_processor() {
        let hears = Hears { from: 0, piece: 65_536, slowly: false, marks: Marks::Inline };
        let script = |says| Script { says, hears, leave: Leave::Finish };
        let other = script(vec![Say::Mark, Say::Wait(SLOTS_APART as u8), Say::Mark, Say::Write(1)]);
        let seen = |marks: &[usize], waited| Seen {
            heard: vec![0; 3],
            marks: marks.iter().map(|at| Mark { at: *at, byte: None }).collect(),
            end: Some(End::Fin),
            waited,
            ..Seen::default()
        };
        let said = |waited| {
            let mut said = Vec::new();
            let view = View {
                plain: &seen(&[0, 1], Duration::ZERO),
                relayed: &seen(&[1], waited),
                others: (None, None),
                script: &script(Vec::new()),
                other: &other,
                is_held_server: false,
                crawl: Duration::ZERO,
                relay_waited: Duration::ZERO,
            };
            view.compare(&mut |what| said.push(what));
            said
        };
        assert_eq!(said(SLOT).len(), 1, "{:?}", said(SLOT));
        assert_eq!(said(SLOT * SLOTS_APART), Vec::<String>::new());
    }
}
