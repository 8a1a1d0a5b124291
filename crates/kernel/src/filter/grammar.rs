//! Tokens into an expression, by recursive descent.

use super::{
    Expression, FilterError,
    lex::{Kind, Operator, Token, tokens},
};

/// Parentheses and negations within each other; more is no person's filter, and would overflow the stack.
pub const DEPTH_MAX: usize = 64;

type Result<T> = std::result::Result<T, FilterError>;

/// A condition of one language.
pub trait Condition: Sized {
    /// Words that begin one, for a message.
    const EXAMPLES: &'static str;

    /// Reads the condition that begins with `word`, which has been taken.
    ///
    /// # Errors
    /// When it is none.
    fn read<'a>(parser: &mut Parser<'a>, word: Token<'a>) -> Result<Self>;
}

/// `None` for a text without words.
pub fn parse<C: Condition>(text: &str) -> Result<Option<Expression<C>>> {
    let mut parser = Parser { text, tokens: tokens(text), at: 0, depth: 0 };
    if parser.peek().kind == Kind::End {
        return Ok(None);
    }
    let expression = parser.any()?;
    let rest = parser.peek();
    match rest.kind {
        Kind::End => Ok(Some(expression)),
        Kind::Close => Err(parser.error(rest, "this ')' has no '(' before it")),
        _ => Err(parser.error(rest, "expected 'and' or 'or' between two conditions")),
    }
}

/// What is left of a text.
pub struct Parser<'a> {
    text: &'a str,
    tokens: Vec<Token<'a>>,
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    /// The next token, which stays.
    pub fn peek(&self) -> Token<'a> {
        self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    /// The next token.
    pub fn take(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// An error at the place of a token.
    pub fn error(&self, token: Token<'_>, message: impl Into<String>) -> FilterError {
        FilterError::new(self.text, token.place(), message)
    }

    /// Conditions of which any must hold.
    fn any<C: Condition>(&mut self) -> Result<Expression<C>> {
        let mut either = vec![self.all()?];
        while self.peek().kind == Kind::Or {
            self.take();
            either.push(self.all()?);
        }
        Ok(if either.len() == 1 { either.remove(0) } else { Expression::Any(either) })
    }

    /// Conditions that must all hold.
    fn all<C: Condition>(&mut self) -> Result<Expression<C>> {
        let mut every = vec![self.one()?];
        while self.peek().kind == Kind::And {
            self.take();
            every.push(self.one()?);
        }
        Ok(if every.len() == 1 { every.remove(0) } else { Expression::All(every) })
    }

    fn one<C: Condition>(&mut self) -> Result<Expression<C>> {
        let token = self.take();
        match token.kind {
            Kind::Not => self.deeper(token, |parser| Ok(Expression::Not(Box::new(parser.one()?)))),
            Kind::Open => self.deeper(token, |parser| {
                let inside = parser.any()?;
                let close = parser.take();
                let closed = close.kind == Kind::Close;
                closed.then_some(inside).ok_or_else(|| parser.error(close, "expected ')' here"))
            }),
            Kind::Word => C::read(self, token).map(Expression::Test),
            Kind::End => Err(self.error(token, "the filter ends where a condition was expected")),
            _ => Err(self
                .error(token, format!("a condition begins with {}, not with '{}'", C::EXAMPLES, token.text))),
        }
    }

    fn deeper<T>(&mut self, token: Token<'_>, inside: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == DEPTH_MAX {
            return Err(self.error(token, format!("more than {DEPTH_MAX} parentheses within each other")));
        }
        self.depth += 1;
        let result = inside(self);
        self.depth -= 1;
        result
    }

    /// A comparison; equality when none is written.
    pub fn operator(&mut self) -> (Operator, Token<'a>) {
        let token = self.peek();
        match token.kind {
            Kind::Operator(operator) => {
                self.take();
                (operator, token)
            }
            _ => (Operator::Equal, token),
        }
    }

    /// The word that follows.
    pub fn value(&mut self) -> Result<Token<'a>> {
        let token = self.take();
        match token.kind {
            Kind::Word => Ok(token),
            Kind::End => Err(self.error(token, "the filter ends where a value was expected")),
            _ => Err(self.error(token, format!("expected a value here, not '{}'", token.text))),
        }
    }

    /// An operator that only says whether, not how much.
    pub fn equality(&mut self, what: &str) -> Result<bool> {
        let (operator, token) = self.operator();
        match operator {
            Operator::Equal => Ok(true),
            Operator::NotEqual => Ok(false),
            _ => Err(self.error(token, format!("{what} knows only '=' and '!='"))),
        }
    }
}
