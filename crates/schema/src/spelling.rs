//! What a mistyped word may have meant.

/// The nearest of `known` to a mistyped `word`, when one is near enough to be meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let scored = known.into_iter().map(|name| (likeness(word, name), name));
    let best = scored.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.75).then_some(best.1)
}

/// From 0 to 1. One slip of the finger (a letter too many, too few, wrong, or two swapped) is always near enough.
fn likeness(word: &str, name: &str) -> f64 {
    let slip = word.len() > 2 && strsim::damerau_levenshtein(word, name) == 1;
    if slip { 0.99 } else { strsim::jaro_winkler(word, name) }
}

/// What to say about a word that is not among `known`.
pub fn unknown<'a>(what: &str, word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let known: Vec<_> = known.into_iter().collect();
    let all = if known.is_empty() { "there are none".to_owned() } else { known.join(", ") };
    match nearest(word, known.iter().copied()) {
        Some(name) => format!("unknown {what} '{word}'; did you mean '{name}'? (known: {all})"),
        None => format!("unknown {what} '{word}' (known: {all})"),
    }
}
