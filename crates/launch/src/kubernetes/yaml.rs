//! JSON written as YAML, for people and for `kubectl apply`. Texts that YAML could read as something else are quoted.

use serde_json::Value;
use std::fmt::Write as _;

/// Writes a document.
pub(crate) fn write(out: &mut String, value: &Value) {
    block(out, value, 0, false);
}

/// `is_inline`: the cursor stands behind `- `, so the first entry needs no indentation.
fn block(out: &mut String, value: &Value, depth: usize, is_inline: bool) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (at, (key, value)) in map.iter().enumerate() {
                if at > 0 || !is_inline {
                    indent(out, depth);
                }
                let _ = write!(out, "{}:", text(key));
                entry(out, value, depth);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for value in list {
                indent(out, depth);
                out.push('-');
                match value {
                    Value::Object(map) if !map.is_empty() => {
                        out.push(' ');
                        block(out, value, depth + 1, true);
                    }
                    _ => entry(out, value, depth),
                }
            }
        }
        other => {
            let _ = writeln!(out, "{}", scalar(other));
        }
    }
}

/// What follows a key or a dash.
fn entry(out: &mut String, value: &Value, depth: usize) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            block(out, value, depth + 1, false);
        }
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            // Deeper, so that a list within a list is one.
            block(out, value, depth + 1, false);
        }
        other => {
            let _ = writeln!(out, " {}", scalar(other));
        }
    }
}

fn indent(out: &mut String, depth: usize) {
    for _ in 0..depth {
        out.push_str("  ");
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(word) => text(word),
        // Empty lists and objects are the same in both.
        other => other.to_string(),
    }
}

/// Plain where nothing else could be read, else as JSON has it, which YAML reads alike.
fn text(word: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    let begins = word.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/');
    let means = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    let is_plain =
        begins && word.chars().all(fits) && !means.contains(&word.to_ascii_lowercase().as_str());
    match is_plain {
        true => word.to_owned(),
        false => Value::from(word).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_written_reads_as_it_was() {
        let value = json!({
            "plain": "word", "a/b": "me/x", "number": 1, "word of a number": "1", "yes": "no", "empty": "",
            "lines": "a\nb: c # d", "list": [1, "x", [], [[2, {"deep": [{}]}], "y"], {"a": [], "b": {"c": null}}],
            "odd": "\u{1f600}\t\\ \"", "colon": "a: b", "dash": "- x", "at": "@x", "float": 0.5, "off": true,
        });
        let mut out = String::new();
        write(&mut out, &value);
        let read: Value = yaml_serde::from_str(&out).unwrap();
        assert_eq!(read, value, "{out}");
    }
}
