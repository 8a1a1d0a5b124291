//! TOML values into types, with every unknown key found, not only the first, and each fault named by its path.
//!
//! serde's own `deny_unknown_fields` stops at the first unknown key and knows no path. This deserializer walks a
//! [`toml::Value`] with its path; a key that a struct does not have becomes a [`Problem`] with a suggestion and is
//! passed over, so that one reading finds them all.

use serde::de::{
    self, DeserializeOwned, DeserializeSeed, IntoDeserializer, MapAccess, SeqAccess, Visitor,
    value::StrDeserializer,
};
use std::{cell::RefCell, fmt};
use toml::Value;

pub use crate::spelling::unknown;

/// One thing that is wrong with a file that a person wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where: the dotted key.
    pub path: String,
    /// What, and the mend.
    pub message: String,
}

impl Problem {
    /// A problem at `path`.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Problem {
        Problem { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.path {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

/// All of them, one per line, under their count.
pub fn list(problems: &[Problem]) -> String {
    let lines: Vec<_> = problems.iter().map(|problem| format!("  {problem}")).collect();
    let count = if lines.len() == 1 { "1 problem".to_owned() } else { format!("{} problems", lines.len()) };
    format!("{count}\n{}", lines.join("\n"))
}

/// Decodes `value`, found at `path`. Problems are appended; `None` when no value could be made at all.
/// `also` are keys that the caller has taken from the same table: they are suggested, too.
pub fn decode<T: DeserializeOwned>(
    value: &Value,
    path: &str,
    also: &[&str],
    problems: &mut Vec<Problem>,
) -> Option<T> {
    let found = RefCell::new(Vec::new());
    let result = T::deserialize(Decoder { value, path: path.to_owned(), also, problems: &found });
    problems.append(&mut found.into_inner());
    match result {
        Ok(decoded) => Some(decoded),
        Err(fault) => {
            let path = fault.path.unwrap_or_else(|| path.to_owned());
            problems.push(Problem { path, message: with_suggestion(&fault.message) });
            None
        }
    }
}

/// The path of `key` inside `path`. A key that is not plain is quoted, as TOML wants it.
pub fn join(path: &str, key: &str) -> String {
    let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    let shown = if plain { key.to_owned() } else { format!("\"{key}\"") };
    if path.is_empty() { shown } else { format!("{path}.{shown}") }
}

/// serde words its own unknown fields and variants (those inside tagged enums): said here as we say ours.
fn with_suggestion(message: &str) -> String {
    let rewrite = || {
        let (what, rest) = [("unknown field `", "key"), ("unknown variant `", "value")]
            .iter()
            .find_map(|(start, what)| Some((*what, message.strip_prefix(start)?)))?;
        let (word, expected) = rest.split_once('`')?;
        let known: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
        Some(unknown(what, word, known))
    };
    rewrite().unwrap_or_else(|| in_words(&message.replace('`', "'")))
}

/// What serde expects, by Rust's names of types, as people say it.
fn in_words(message: &str) -> String {
    let Some((found, expected)) = message.rsplit_once(", expected ") else { return message.to_owned() };
    let words = match expected {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number, which may be negative",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a string" => "text in quotes",
        "a sequence" => "a list in square brackets",
        other if other.starts_with("struct ") => "a table",
        other => other,
    };
    let found =
        found.replace("invalid type: map", "invalid type: table").replace("type: sequence", "type: list");
    format!("{found}, expected {words}")
}

struct Decoder<'a> {
    value: &'a Value,
    path: String,
    also: &'a [&'a str],
    problems: &'a RefCell<Vec<Problem>>,
}

#[derive(Debug)]
struct Fault {
    path: Option<String>,
    message: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Fault {
        Fault { path: None, message: message.to_string() }
    }
}

impl<'a> Decoder<'a> {
    fn child(&self, key: &str, value: &'a Value) -> Decoder<'a> {
        Decoder { value, path: join(&self.path, key), also: &[], problems: self.problems }
    }

    fn item(&self, index: usize, value: &'a Value) -> Decoder<'a> {
        Decoder { value, path: format!("{}[{index}]", self.path), also: &[], problems: self.problems }
    }

    fn report_unknown(&self, table: &toml::Table, fields: &[&str]) {
        let known = fields.iter().chain(self.also).copied();
        for key in table.keys().filter(|key| !fields.contains(&key.as_str())) {
            let message = unknown("key", key, known.clone());
            self.problems.borrow_mut().push(Problem { path: join(&self.path, key), message });
        }
    }

    fn visit<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::String(text) => visitor.visit_str(text),
            Value::Integer(number) if *number >= 0 => visitor.visit_u64(*number as u64),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Boolean(truth) => visitor.visit_bool(*truth),
            Value::Datetime(date) => visitor.visit_string(date.to_string()),
            Value::Array(items) => {
                let children = items.iter().enumerate().map(|(index, item)| self.item(index, item));
                visitor.visit_seq(Items { children: children.collect::<Vec<_>>().into_iter() })
            }
            Value::Table(table) => visitor.visit_map(self.entries(table.iter())),
        }
    }

    fn entries<'t>(&self, entries: impl Iterator<Item = (&'t String, &'a Value)>) -> Entries<'a> {
        let entries: Vec<_> = entries.map(|(key, value)| (key.clone(), self.child(key, value))).collect();
        Entries { entries: entries.into_iter(), value: None }
    }
}

/// Says where a fault was found, unless a deeper place is known.
fn at(path: &str) -> impl FnOnce(Fault) -> Fault {
    let path = path.to_owned();
    move |fault| Fault { path: Some(fault.path.unwrap_or(path)), message: fault.message }
}

impl<'de> de::Deserializer<'de> for Decoder<'_> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let path = self.path.clone();
        self.visit(visitor).map_err(at(&path))
    }

    /// A bare number where text is wanted is passed on as text: quantities then say that the unit is missing, and
    /// `"net.ipv4.tcp_sack" = 0` is what it looks like.
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let path = self.path.clone();
        match self.value {
            Value::Integer(number) => visitor.visit_string(number.to_string()).map_err(at(&path)),
            Value::Float(number) => visitor.visit_string(number.to_string()).map_err(at(&path)),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_string(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        let Value::Table(table) = self.value else { return self.deserialize_any(visitor) };
        self.report_unknown(table, fields);
        let known = table.iter().filter(|(key, _)| fields.contains(&key.as_str()));
        visitor.visit_map(self.entries(known)).map_err(at(&self.path))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.value {
            Value::String(text) => {
                let variant: StrDeserializer<'_, Fault> = text.as_str().into_deserializer();
                visitor.visit_enum(variant).map_err(at(&self.path))
            }
            Value::Table(table) if table.len() == 1 => {
                let access = de::value::MapAccessDeserializer::new(self.entries(table.iter()));
                visitor.visit_enum(access).map_err(at(&self.path))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

struct Items<'a> {
    children: std::vec::IntoIter<Decoder<'a>>,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Fault> {
        let Some(child) = self.children.next() else { return Ok(None) };
        let path = child.path.clone();
        seed.deserialize(child).map(Some).map_err(at(&path))
    }
}

struct Entries<'a> {
    entries: std::vec::IntoIter<(String, Decoder<'a>)>,
    value: Option<Decoder<'a>>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Fault> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some(value);
        seed.deserialize(key.into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Fault> {
        match self.value.take() {
            Some(value) => {
                let path = value.path.clone();
                seed.deserialize(value).map_err(at(&path))
            }
            None => Err(de::Error::custom("a value was asked for before its key")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{Rate, Size};
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Inner {
        limit: Option<Size>,
        rates: Option<Vec<Rate>>,
    }

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
    enum Tagged {
        Tail { limit: Size },
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Outer {
        count: u32,
        inner: Option<Inner>,
        tagged: Option<Tagged>,
    }

    fn faults(text: &str) -> Vec<String> {
        let value = Value::Table(text.parse().unwrap());
        let mut problems = Vec::new();
        let _: Option<Outer> = decode(&value, "top", &["taken"], &mut problems);
        problems.iter().map(Problem::to_string).collect()
    }

    #[test]
    fn good_values_are_decoded() {
        let value = Value::Table(
            "count = 3\ninner.limit = '1KB'\ntagged = {kind='tail', limit='2KB'}".parse().unwrap(),
        );
        let mut problems = Vec::new();
        let outer: Outer = decode(&value, "", &[], &mut problems).unwrap();
        assert_eq!(problems, []);
        let inner = Inner { limit: Some(Size(1000)), rates: None };
        assert_eq!(
            outer,
            Outer { count: 3, inner: Some(inner), tagged: Some(Tagged::Tail { limit: Size(2000) }) }
        );
    }

    #[test]
    fn every_unknown_key_is_found_with_its_path_and_a_suggestion() {
        let found = faults("count = 1\ncuont = 2\ntakn = 1\n[inner]\nlimt = '1KB'\nzzz = 1");
        assert_eq!(found.len(), 4, "{found:#?}");
        assert!(found[0].starts_with("top.cuont: unknown key 'cuont'; did you mean 'count'?"), "{found:#?}");
        assert!(found.iter().any(|f| f.starts_with("top.takn") && f.contains("'taken'")), "{found:#?}");
        assert!(found.iter().any(|f| f.starts_with("top.inner.limt") && f.contains("'limit'")), "{found:#?}");
        assert!(found.iter().any(|f| f.starts_with("top.inner.zzz") && !f.contains("mean")), "{found:#?}");
    }

    #[test]
    fn wrong_values_are_named_by_the_deepest_path() {
        let rate = faults("count = 1\ninner.rates = ['1Gbit', 12]");
        assert_eq!(rate, ["top.inner.rates[1]: rate '12' has no unit; write it like '100Mbit' or '1Gbit'"]);
        assert_eq!(faults("count = -1").len(), 1);
        assert_eq!(faults("inner.limit = '1KB'"), ["top: missing field 'count'"]);
        assert_eq!(
            faults("count = 'many'")[0],
            "top.count: invalid type: string \"many\", expected a whole number"
        );
    }

    #[test]
    fn unknown_keys_and_variants_of_tagged_values_get_suggestions_too() {
        let variant = faults("count = 1\ntagged = {kind='tale', limit='1KB'}");
        assert_eq!(variant, ["top.tagged.kind: unknown value 'tale'; did you mean 'tail'? (known: tail)"]);
        let field = faults("count = 1\ntagged = {kind='tail', limits='1KB'}");
        assert!(field[0].contains("did you mean 'limit'"), "{field:?}");
    }
}
