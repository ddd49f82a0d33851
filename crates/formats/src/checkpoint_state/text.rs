//! The text format of the state file: the part of protobuf's text format that one flat message of
//! strings and numbers needs, read leniently and printed exactly as python prints it.

use super::CheckpointState;
use downpour_graph::{Result, Status};

/// Parses a whole file.
pub(super) fn parse(data: &[u8]) -> Result<CheckpointState> {
    let text = std::str::from_utf8(data)
        .map_err(|_| Status::invalid_argument("The checkpoint state is not UTF-8 text"))?;
    let mut parser = Parser {
        rest: text,
        line: 1,
    };
    let mut state = CheckpointState::default();
    while let Some(field) = parser.field()? {
        match field {
            "model_checkpoint_path" => state.model_checkpoint_path = parser.string()?,
            "all_model_checkpoint_paths" => {
                state.all_model_checkpoint_paths.push(parser.string()?);
            }
            "all_model_checkpoint_timestamps" => {
                state.all_model_checkpoint_timestamps.push(parser.number()?);
            }
            "last_preserved_timestamp" => state.last_preserved_timestamp = parser.number()?,
            _ => return Err(parser.error(&format!("unknown field '{field}'"))),
        }
    }
    Ok(state)
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
}

impl<'a> Parser<'a> {
    fn error(&self, what: &str) -> Status {
        Status::invalid_argument(format!("Checkpoint state, line {}: {what}", self.line))
    }

    /// Skips blanks, comments and the separators that may follow a field.
    fn skip(&mut self) {
        loop {
            let trimmed = self.rest.trim_start_matches([' ', '\t', '\r', ',', ';']);
            if let Some(next) = trimmed.strip_prefix('\n') {
                self.line += 1;
                self.rest = next;
            } else if trimmed.starts_with('#') {
                let end = trimmed.find('\n').unwrap_or(trimmed.len());
                self.rest = trimmed.get(end..).unwrap_or_default();
            } else {
                self.rest = trimmed;
                return;
            }
        }
    }

    /// Takes what `accept` accepts off the front.
    fn take_while(&mut self, accept: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !accept(c)).unwrap_or(self.rest.len());
        let (token, rest) = self.rest.split_at(end);
        self.rest = rest;
        token
    }

    /// The name of the next field and its colon; `None` at the end.
    fn field(&mut self) -> Result<Option<&'a str>> {
        self.skip();
        if self.rest.is_empty() {
            return Ok(None);
        }
        let name = self.take_while(|c| c.is_ascii_alphanumeric() || c == '_');
        self.skip();
        match self.rest.strip_prefix(':') {
            Some(rest) if !name.is_empty() => {
                self.rest = rest;
                self.skip();
                Ok(Some(name))
            }
            _ => Err(self.error("expected 'field: value'")),
        }
    }

    fn number(&mut self) -> Result<f64> {
        let token = self.take_while(|c| c.is_ascii_alphanumeric() || "+-._".contains(c));
        let token = token
            .strip_suffix(['f', 'F'])
            .filter(|t| t.parse::<f64>().is_ok())
            .unwrap_or(token);
        token
            .parse()
            .map_err(|_| self.error(&format!("'{token}' is no number")))
    }

    /// One or more quoted strings, joined.
    fn string(&mut self) -> Result<String> {
        let mut bytes = Vec::new();
        let mut any = false;
        while let Some(quote @ ('"' | '\'')) = self.rest.chars().next() {
            self.rest = self.rest.get(1..).unwrap_or_default();
            self.quoted(quote, &mut bytes)?;
            any = true;
            self.skip();
        }
        if !any {
            return Err(self.error("expected a quoted string"));
        }
        String::from_utf8(bytes).map_err(|_| self.error("the string is not UTF-8"))
    }

    /// The rest of a string up to its closing quote.
    fn quoted(&mut self, quote: char, out: &mut Vec<u8>) -> Result<()> {
        loop {
            let plain = self.take_while(|c| c != quote && c != '\\' && c != '\n');
            out.extend_from_slice(plain.as_bytes());
            let mut chars = self.rest.chars();
            match chars.next() {
                Some('\\') => {
                    self.rest = chars.as_str();
                    self.escape(out)?;
                }
                Some(c) if c == quote => {
                    self.rest = chars.as_str();
                    return Ok(());
                }
                _ => return Err(self.error("the string does not end")),
            }
        }
    }

    fn escape(&mut self, out: &mut Vec<u8>) -> Result<()> {
        let mut chars = self.rest.chars();
        let plain = match chars.next() {
            Some('n') => b'\n',
            Some('r') => b'\r',
            Some('t') => b'\t',
            Some('a') => 7,
            Some('b') => 8,
            Some('f') => 12,
            Some('v') => 11,
            Some(c @ ('"' | '\'' | '\\' | '?')) => c as u8,
            Some('x' | 'X') => {
                self.rest = chars.as_str();
                return self.digits(16, 2, out);
            }
            Some('0'..='7') => return self.digits(8, 3, out),
            _ => return Err(self.error("unknown escape in a string")),
        };
        self.rest = chars.as_str();
        out.push(plain);
        Ok(())
    }

    /// A byte of up to `most` digits.
    fn digits(&mut self, radix: u32, most: usize, out: &mut Vec<u8>) -> Result<()> {
        let count = self
            .rest
            .chars()
            .take(most)
            .take_while(|c| c.is_digit(radix))
            .count();
        let (digits, rest) = self.rest.split_at(count);
        let value = u32::from_str_radix(digits, radix).ok();
        let value = value.and_then(|value| u8::try_from(value).ok());
        out.push(value.ok_or_else(|| self.error("a number in a string is no byte"))?);
        self.rest = rest;
        Ok(())
    }
}

/// Prints a state as python does.
pub(super) fn print(state: &CheckpointState) -> String {
    let mut out = String::new();
    if !state.model_checkpoint_path.is_empty() {
        line(
            &mut out,
            "model_checkpoint_path",
            &quote(&state.model_checkpoint_path),
        );
    }
    for path in &state.all_model_checkpoint_paths {
        line(&mut out, "all_model_checkpoint_paths", &quote(path));
    }
    for time in &state.all_model_checkpoint_timestamps {
        line(&mut out, "all_model_checkpoint_timestamps", &number(*time));
    }
    if state.last_preserved_timestamp != 0.0 {
        line(
            &mut out,
            "last_preserved_timestamp",
            &number(state.last_preserved_timestamp),
        );
    }
    out
}

fn line(out: &mut String, field: &str, value: &str) {
    out.push_str(field);
    out.push_str(": ");
    out.push_str(value);
    out.push('\n');
}

fn quote(text: &str) -> String {
    let mut out = String::from('"');
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '"' | '\'' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            '\0'..='\x1f' | '\x7f' => out.push_str(&format!("\\{:03o}", c as u32)),
            _ => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Python's `repr` of a float: the shortest digits that read back, positional between 1e-4 and
/// 1e16.
fn number(value: f64) -> String {
    if !value.is_finite() {
        let text = if value.is_nan() { "nan" } else { "inf" };
        let sign = if value == f64::NEG_INFINITY { "-" } else { "" };
        return format!("{sign}{text}");
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        // `Debug` keeps the ".0" of whole numbers.
        let text = format!("{value}");
        return if text.contains('.') {
            text
        } else {
            format!("{text}.0")
        };
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_in_python() {
        for (value, text) in [
            (0.0, "0.0"),
            (-1.5, "-1.5"),
            (12345678.0, "12345678.0"),
            (1794736126.7178252, "1794736126.7178252"),
            (1e300, "1e+300"),
            (1e-7, "1e-07"),
            (0.0001, "0.0001"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (f64::INFINITY, "inf"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn lenient_forms_are_read() {
        let text = "# comment\nmodel_checkpoint_path : 'a' \"b\\x41\\101\\303\\274\" ;\n\
                    all_model_checkpoint_timestamps: 1f, all_model_checkpoint_timestamps: -2e3";
        let state = parse(text.as_bytes()).unwrap();
        assert_eq!(state.model_checkpoint_path, "abAAü");
        assert_eq!(state.all_model_checkpoint_timestamps, [1.0, -2000.0]);
    }

    #[test]
    fn nonsense_is_refused_with_its_line() {
        for (text, line) in [
            ("model_checkpoint_path", 1),
            ("\n\nmodel_checkpoint_path: x", 3),
            ("model_checkpoint_path: \"a\nb\"", 1),
            ("model_checkpoint_path: \"\\400\"", 1),
            ("model_checkpoint_path: \"\\xff\"", 1),
            ("model_checkpoint_path: \"\\q\"", 1),
            ("\nother: 3", 2),
            ("last_preserved_timestamp: 1.2.3", 1),
            (": 3", 1),
        ] {
            let status = parse(text.as_bytes()).unwrap_err();
            let expected = format!("Checkpoint state, line {line}: ");
            assert!(status.message.starts_with(&expected), "{text}: {status}");
        }
    }

    #[test]
    fn any_path_round_trips() {
        let state = CheckpointState {
            model_checkpoint_path: (0..300).filter_map(char::from_u32).collect(),
            ..CheckpointState::default()
        };
        assert_eq!(parse(print(&state).as_bytes()).unwrap(), state);
    }
}
