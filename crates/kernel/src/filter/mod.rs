//! What the filters of this crate share: words and signs, `and`, `or`, `not` and parentheses, addresses and ports, and
//! errors that show their place. What a single condition is, each language says itself ([`Condition`]).
//!
//! Pure: text in, an expression or an error out.

mod address;
mod grammar;
pub mod lex;

pub use address::Ports;
#[cfg(test)]
pub use grammar::DEPTH_MAX;
pub use grammar::{Condition, Parser, parse};

use std::fmt;

/// Conditions of one language, put together.
#[derive(Debug, Clone, PartialEq)]
pub enum Expression<T> {
    All(Vec<Expression<T>>),
    Any(Vec<Expression<T>>),
    Not(Box<Expression<T>>),
    Test(T),
}

impl<T> Expression<T> {
    /// Whether it holds, when `test` says it of each condition.
    pub fn holds(&self, test: &impl Fn(&T) -> bool) -> bool {
        match self {
            Expression::All(every) => every.iter().all(|one| one.holds(test)),
            Expression::Any(either) => either.iter().any(|one| one.holds(test)),
            Expression::Not(inside) => !inside.holds(test),
            Expression::Test(one) => test(one),
        }
    }

    /// Every condition, from left to right.
    pub fn tests(&self) -> Vec<&T> {
        match self {
            Expression::All(parts) | Expression::Any(parts) => {
                parts.iter().flat_map(Expression::tests).collect()
            }
            Expression::Not(inside) => inside.tests(),
            Expression::Test(test) => vec![test],
        }
    }
}

/// What is wrong with a filter, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterError {
    text: String,
    /// Byte offset of the part that is wrong.
    pub position: usize,
    length: usize,
    message: String,
}

impl FilterError {
    pub(crate) fn new(
        text: &str,
        (position, length): (usize, usize),
        message: impl Into<String>,
    ) -> FilterError {
        FilterError { text: text.to_owned(), position, length, message: message.into() }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let before = self.text.get(..self.position).unwrap_or_default().chars().count();
        let wrong = self.text.get(self.position..self.position + self.length).unwrap_or_default();
        writeln!(f, "filter, column {}: {}", before + 1, self.message)?;
        writeln!(f, "  {}", self.text.replace(char::is_control, " "))?;
        write!(f, "  {}{}", " ".repeat(before), "^".repeat(wrong.chars().count().max(1)))
    }
}

impl std::error::Error for FilterError {}
