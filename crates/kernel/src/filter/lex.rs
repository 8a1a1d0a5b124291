//! Text into words and signs, each with its place.

/// A word or a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Word,
    Open,
    Close,
    Not,
    And,
    Or,
    Operator(Operator),
    End,
}

/// A comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A part of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Token<'a> {
    pub kind: Kind,
    pub text: &'a str,
    pub position: usize,
}

impl Token<'_> {
    pub fn place(&self) -> (usize, usize) {
        (self.position, self.text.len())
    }
}

/// Longest first, so that `<=` is not read as `<`.
const SIGNS: [(&str, Kind); 14] = [
    ("&&", Kind::And),
    ("||", Kind::Or),
    ("==", Kind::Operator(Operator::Equal)),
    ("!=", Kind::Operator(Operator::NotEqual)),
    ("<=", Kind::Operator(Operator::LessOrEqual)),
    (">=", Kind::Operator(Operator::GreaterOrEqual)),
    ("=", Kind::Operator(Operator::Equal)),
    ("<", Kind::Operator(Operator::Less)),
    (">", Kind::Operator(Operator::Greater)),
    ("(", Kind::Open),
    (")", Kind::Close),
    ("!", Kind::Not),
    ("&", Kind::And),
    ("|", Kind::Or),
];

fn is_sign(c: char) -> bool {
    "()!<>=&|".contains(c)
}

/// All tokens, [`Kind::End`] last.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut found = Vec::new();
    let mut position = 0;
    while let Some(token) = next(text, position) {
        position = token.position + token.text.len();
        found.push(token);
    }
    found.push(Token { kind: Kind::End, text: "", position: text.len() });
    found
}

fn next(text: &str, from: usize) -> Option<Token<'_>> {
    let rest = text[from..].trim_start();
    let position = text.len() - rest.len();
    if rest.is_empty() {
        return None;
    }
    if let Some((sign, kind)) = SIGNS.iter().find(|(sign, _)| rest.starts_with(sign)) {
        return Some(Token { kind: *kind, text: &rest[..sign.len()], position });
    }
    let end = rest.find(|c: char| c.is_whitespace() || is_sign(c)).unwrap_or(rest.len());
    let word = &rest[..end];
    let kind = match word.to_ascii_lowercase().as_str() {
        "and" => Kind::And,
        "or" => Kind::Or,
        "not" => Kind::Not,
        _ => Kind::Word,
    };
    Some(Token { kind, text: word, position })
}
