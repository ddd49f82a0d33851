//! A description as it was written: JSON or TOML in one shape, in the order of the text. Nothing is
//! dropped on the way: a key that is given twice is an error, where most readers keep the last.

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Longest text that is read.
pub(crate) const MAX_TEXT: usize = 4 << 20;

/// A value of a description.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConfigValue {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    List(Vec<ConfigValue>),
    Map(Vec<(String, ConfigValue)>),
}

/// Why a text is no description at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// Longer than anybody's cluster.
    #[error("it is longer than {MAX_TEXT} bytes")]
    Long,
    /// Does not parse.
    #[error("not valid {form}: {reason}")]
    Syntax {
        /// JSON or TOML.
        form: &'static str,
        /// The parser's words.
        reason: String,
    },
    /// The same key twice in one place.
    #[error("'{0}' is given twice")]
    Twice(String),
}

impl ConfigValue {
    /// Reads JSON.
    pub(crate) fn from_json(text: &str) -> Result<ConfigValue, TextError> {
        check_length(text)?;
        let value: ConfigValue = serde_json::from_str(text).map_err(|e| TextError::Syntax {
            form: "JSON",
            reason: e.to_string(),
        })?;
        value.check_keys("")?;
        Ok(value)
    }

    /// Reads TOML.
    pub(crate) fn from_toml(text: &str) -> Result<ConfigValue, TextError> {
        check_length(text)?;
        toml::from_str(text).map_err(|e| {
            let line = e.span().map(|span| {
                let before = text.as_bytes().get(..span.start).unwrap_or_default();
                1 + before.iter().filter(|b| **b == b'\n').count()
            });
            let reason = match line {
                Some(line) => format!("{} at line {line}", e.message()),
                None => e.message().to_owned(),
            };
            TextError::Syntax {
                form: "TOML",
                reason,
            }
        })
    }

    /// Reads JSON if it looks like it, TOML otherwise.
    pub(crate) fn parse(text: &str) -> Result<ConfigValue, TextError> {
        match text.trim_start().starts_with('{') {
            true => ConfigValue::from_json(text),
            false => ConfigValue::from_toml(text),
        }
    }

    fn check_keys(&self, path: &str) -> Result<(), TextError> {
        match self {
            ConfigValue::Map(entries) => {
                let mut seen = std::collections::BTreeSet::new();
                for (key, value) in entries {
                    let path = match path {
                        "" => key.clone(),
                        _ => format!("{path}.{key}"),
                    };
                    if !seen.insert(key) {
                        return Err(TextError::Twice(path));
                    }
                    value.check_keys(&path)?;
                }
                Ok(())
            }
            ConfigValue::List(items) => items.iter().try_for_each(|i| i.check_keys(path)),
            _ => Ok(()),
        }
    }
}

fn check_length(text: &str) -> Result<(), TextError> {
    match text.len() > MAX_TEXT {
        true => Err(TextError::Long),
        false => Ok(()),
    }
}

impl fmt::Display for ConfigValue {
    /// As in JSON, but not at length.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConfigValue::Null => f.write_str("null"),
            ConfigValue::Bool(b) => b.fmt(f),
            ConfigValue::Int(n) => n.fmt(f),
            ConfigValue::Float(n) => n.fmt(f),
            ConfigValue::Text(s) => match s.char_indices().nth(100) {
                Some((end, _)) => write!(f, "'{}…'", &s[..end]),
                None => write!(f, "'{s}'"),
            },
            ConfigValue::List(_) => f.write_str("a list"),
            ConfigValue::Map(_) => f.write_str("a table"),
        }
    }
}

impl<'de> Deserialize<'de> for ConfigValue {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<ConfigValue, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = ConfigValue;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<ConfigValue, E> {
        Ok(ConfigValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<ConfigValue, E> {
        Ok(ConfigValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<ConfigValue, E> {
        Ok(ConfigValue::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<ConfigValue, E> {
        Ok(i64::try_from(value).map_or(ConfigValue::Float(value as f64), ConfigValue::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<ConfigValue, E> {
        Ok(ConfigValue::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<ConfigValue, E> {
        Ok(ConfigValue::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<ConfigValue, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            items.push(item);
        }
        Ok(ConfigValue::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<ConfigValue, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = from.next_entry()? {
            entries.push(entry);
        }
        Ok(ConfigValue::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_give_the_same() {
        let json = r#"{"a": [1, true, "x"], "b": {"7": 2.5}}"#;
        let toml = "a = [1, true, 'x']\n[b]\n7 = 2.5\n";
        let value = ConfigValue::parse(json).unwrap();
        assert_eq!(value, ConfigValue::parse(toml).unwrap());
        assert!(matches!(value, ConfigValue::Map(entries) if entries.len() == 2));
    }

    #[test]
    fn a_toml_table_at_the_start_is_no_json_list() {
        let value = ConfigValue::parse("[cluster]\nps = ['h:1']\n").unwrap();
        assert!(matches!(value, ConfigValue::Map(_)));
    }

    #[test]
    fn what_does_not_parse_is_said_with_its_place() {
        for (text, want) in [
            (
                "{",
                "not valid JSON: EOF while parsing an object at line 1 column 1",
            ),
            (r#"{"a": {"b": 1, "b": 2}}"#, "'a.b' is given twice"),
            ("a = 1\na = 2\n", "not valid TOML: duplicate key at line 2"),
        ] {
            assert_eq!(ConfigValue::parse(text).unwrap_err().to_string(), want);
        }
        let long = " ".repeat(MAX_TEXT + 1);
        assert_eq!(ConfigValue::parse(&long), Err(TextError::Long));
    }
}
