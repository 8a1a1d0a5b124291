//! Words of earlier versions: each is answered with the word that took its place.

/// A word of the command line that has a new name.
struct Renamed {
    /// The subcommands before the word.
    under: &'static [&'static str],
    /// The old word: a subcommand, or an option with its dashes.
    old: &'static str,
    new: &'static str,
}

const fn renamed(under: &'static [&'static str], old: &'static str, new: &'static str) -> Renamed {
    Renamed { under, old, new }
}

const RENAMED: [Renamed; 5] = [
    renamed(&[], "plan", "path"),
    renamed(&["lab"], "plan", "list"),
    renamed(&["lab", "run"], "--plan", "--only"),
    renamed(&["tcb"], "congest", "mark-ce"),
    renamed(&["relay"], "--nap", "--coalesce"),
];

impl Renamed {
    fn is_in(&self, words: &[String]) -> bool {
        let under = words.iter().zip(self.under).filter(|(word, under)| word == *under).count();
        if under < self.under.len() {
            return false;
        }
        let mut rest = words[under..].iter().take_while(|word| *word != "--");
        if self.old.starts_with("--") {
            rest.any(|word| word.split('=').next() == Some(self.old))
        } else {
            rest.next().is_some_and(|word| word == self.old)
        }
    }

    fn advice(&self) -> String {
        let line = |word| [&["longfat"], self.under, &[word]].concat().join(" ");
        format!("'{}' is called '{}' now", line(self.old), line(self.new))
    }
}

/// What to say about the command line when a word of it has a new name.
pub fn advice(words: &[String]) -> Option<String> {
    RENAMED.iter().find(|renamed| renamed.is_in(words)).map(Renamed::advice)
}

#[cfg(test)]
mod tests {
    use super::advice;

    fn said(line: &str) -> Option<String> {
        advice(&line.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn an_old_word_is_answered_with_the_new_one() {
        for (line, old, new) in [
            ("plan --rate 1Gbit --rtt 28ms", "longfat plan", "longfat path"),
            ("lab plan a.toml", "longfat lab plan", "longfat lab list"),
            ("lab run a.toml -o d --plan 3", "longfat lab run --plan", "longfat lab run --only"),
            ("lab run a.toml -o d --plan=3", "longfat lab run --plan", "longfat lab run --only"),
            ("tcb congest sport 80", "longfat tcb congest", "longfat tcb mark-ce"),
            ("relay --intercept lan0 --nap 0", "longfat relay --nap", "longfat relay --coalesce"),
        ] {
            assert_eq!(said(line), Some(format!("'{old}' is called '{new}' now")), "{line}");
        }
    }

    #[test]
    fn what_only_looks_like_an_old_word_is_left_to_the_parser() {
        for line in [
            "path --rate 1Gbit",
            "lab list plan",
            "lab check plan",
            "link run --plan a.json -- true",
            "link run -- longfat --plan",
            "relay run --napping",
            "cc exec reno -- longfat plan",
        ] {
            assert_eq!(said(line), None, "{line}");
        }
    }
}
