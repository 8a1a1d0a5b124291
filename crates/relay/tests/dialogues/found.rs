//! Dialogues that once differed, as small as they were found.

use super::script::{Dialogue, Family, Hears, Leave, Marks, Say, Script, Talk, Way};

const AT_ONCE: Hears = Hears { from: 0, piece: 65_536, slowly: false, marks: Marks::Inline };

fn script(says: &[Say], leave: Leave) -> Script {
    Script { says: says.to_vec(), hears: AT_ONCE, leave }
}

fn dialogue(way: Way, talks: &[(Script, Script)]) -> Dialogue {
    let talk = |(client, server): &(Script, Script)| Talk {
        after: 0,
        client: client.clone(),
        server: server.clone(),
    };
    Dialogue {
        family: Family::V4,
        way,
        listens: true,
        client_room: None,
        server_room: None,
        talks: talks.iter().map(talk).collect(),
    }
}

/// What was wrong, and the dialogue.
pub fn dialogues() -> Vec<(&'static str, Dialogue)> {
    let quiet = || script(&[], Leave::Finish);
    let reset_after = |bytes| script(&[Say::Write(bytes)], Leave::Reset);
    let resetting = || (script(&[], Leave::Reset), quiet());
    vec![
        (
            "a client that connects and resets at once never came to the server",
            dialogue(Way::Early, &[resetting()]),
        ),
        (
            "what a client sent and then reset at once was thrown away, by early acceptance",
            dialogue(Way::Early, &[(reset_after(20_000), quiet())]),
        ),
        (
            "what a client sent and then reset at once was thrown away, after the server's answer",
            dialogue(Way::AfterServer, &[(reset_after(8), quiet())]),
        ),
        (
            "what was said before a mark and after it did not arrive",
            dialogue(
                Way::EarlyQueue,
                &[(script(&[Say::Write(4), Say::Mark, Say::Write(4)], Leave::Finish), quiet())],
            ),
        ),
        (
            "of three connections from one port the last two came to the server exchanged, where a SYN met TIME_WAIT",
            dialogue(
                Way::AfterServerQueue,
                &[
                    (script(&[Say::Write(531), Say::Wait(3)], Leave::Close), quiet()),
                    (reset_after(7), quiet()),
                    (reset_after(14), quiet()),
                ],
            ),
        ),
        (
            "bulk data stopped at a mark",
            dialogue(
                Way::AfterServerQueue,
                &[(
                    quiet(),
                    script(
                        &[Say::Write(3_000_000), Say::Mark, Say::Wait(8), Say::Write(3_000_000)],
                        Leave::Finish,
                    ),
                )],
            ),
        ),
    ]
}
