//! Carries a dialogue out both ways and judges what was seen.

use super::{
    differences::{Difference, differences, untruths},
    known,
    script::Dialogue,
    stage::{Outcome, Stage},
};

/// Where the programs race with each other, plain forwarding itself comes to several outcomes: it is repeated so often.
const REPETITIONS: usize = 6;

/// What came of a dialogue.
#[derive(Debug, Clone, PartialEq)]
pub enum Judgement {
    Same,
    /// The relay's outcome is one of those that plain forwarding comes to.
    Race,
    /// The run differs, and this fault is known.
    Known(&'static str),
    /// The run differs; everything about it.
    Differs(String),
}

impl Judgement {
    pub fn name(&self) -> String {
        match self {
            Judgement::Same => "same".into(),
            Judgement::Race => "same as another run without the relay".into(),
            Judgement::Known(name) => format!("known: {name}"),
            Judgement::Differs(_) => "DIFFERS".into(),
        }
    }
}

/// Carries a dialogue out both ways.
pub fn judge(stage: &Stage<'_>, dialogue: &Dialogue, lane: u8) -> Judgement {
    let (plain, relayed) = stage.both(dialogue, lane);
    let lies = untruths(dialogue, &plain);
    if !lies.is_empty() {
        let text = told(dialogue, &lies, &plain, &relayed);
        return Judgement::Differs(format!("without any relay, by a mistake of this program: {text}"));
    }
    let mut found = untruths(dialogue, &relayed);
    let is_untrue = !found.is_empty();
    found.extend(differences(dialogue, &plain, &relayed));
    if found.is_empty() {
        return Judgement::Same;
    }
    if let Some(name) = known::fault(dialogue) {
        return Judgement::Known(name);
    }
    let is_race = || {
        let again = stage.plain(dialogue, lane);
        differences(dialogue, &again, &relayed).is_empty()
    };
    if !is_untrue && (0..REPETITIONS).any(|_| is_race()) {
        return Judgement::Race;
    }
    Judgement::Differs(told(dialogue, &found, &plain, &relayed))
}

/// The dialogue as Rust, what differs, and what was seen.
pub fn told(dialogue: &Dialogue, found: &[Difference], plain: &Outcome, relayed: &Outcome) -> String {
    let mut text = format!("{}\n", as_rust(dialogue));
    for Difference { talk, what } in found {
        text += &format!("  connection {talk}: {what}\n");
    }
    for (name, outcome) in [("without", plain), ("with", relayed)] {
        for (number, met) in outcome.iter().enumerate() {
            text += &format!(
                "  {name} the relay, connection {number}: connect() {:?}, the relay waited {} ms for a processor\n    \
                 client {:?}\n    server {:?}\n",
                met.connected,
                met.relay_waited.as_millis(),
                met.client,
                met.server
            );
        }
    }
    text
}

/// As a regression test has it.
pub fn as_rust(dialogue: &Dialogue) -> String {
    format!("{dialogue:?}").replace('[', "vec![")
}
