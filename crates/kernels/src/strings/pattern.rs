//! RE2's regular expressions, checked in RE2's words and rewritten for the `regex` crate.
//!
//! Both engines are automata with leftmost-first matching over UTF-8, so a pattern means the same
//! once its spelling agrees. What differs is spelled out here: RE2's `\d \s \w \b` are ASCII,
//! `{` and `]` may stand for themselves, `&&` and friends have no meaning in classes, `\Q…\E`,
//! `\C` and octal escapes exist, and look-around, `(?x)`, `(?<name>` and `x**` do not.

use std::iter::Peekable;
use std::str::CharIndices;

/// Most repetitions RE2 allows.
const MAX_REPEAT: u32 = 1000;

/// Rewrites a pattern, or says what is wrong with it as RE2 would.
pub(super) fn translate(pattern: &str) -> Result<String, String> {
    let mut t = Translator {
        pattern,
        chars: pattern.char_indices().peekable(),
        out: String::with_capacity(pattern.len() + 16),
        depth: 0,
    };
    t.all()?;
    Ok(t.out)
}

struct Translator<'a> {
    pattern: &'a str,
    chars: Peekable<CharIndices<'a>>,
    out: String,
    depth: usize,
}

impl Translator<'_> {
    fn at(&mut self) -> usize {
        self.chars.peek().map_or(self.pattern.len(), |(i, _)| *i)
    }

    fn rest(&mut self) -> &str {
        let at = self.at();
        &self.pattern[at..]
    }

    fn peek(&mut self) -> Option<char> {
        self.chars.peek().map(|(_, c)| *c)
    }

    fn skip(&mut self, bytes: usize) {
        let end = self.at() + bytes;
        while self.at() < end && self.chars.next().is_some() {}
    }

    fn all(&mut self) -> Result<(), String> {
        // Where the last repetition operator began, if nothing stands between it and here.
        let mut repeated: Option<usize> = None;
        // Whether there is something to repeat.
        let mut atom = false;
        while let Some((at, c)) = self.chars.next() {
            let operator = match c {
                '*' | '+' | '?' => Some(None),
                '{' => self.counted(at).map(Some),
                _ => None,
            };
            if let Some(counts) = operator {
                self.repetition(at, c, counts, atom, repeated)?;
                repeated = Some(at);
                continue;
            }
            repeated = None;
            atom = true;
            match c {
                '(' => {
                    self.group(at)?;
                    atom = false;
                    // `(?i)` opens nothing and leaves nothing to repeat.
                }
                ')' => {
                    if self.depth == 0 {
                        return Err(format!("unexpected ): {}", self.pattern));
                    }
                    self.depth -= 1;
                    self.out.push(')');
                }
                '|' => {
                    self.out.push('|');
                    atom = false;
                }
                '[' => self.class(at)?,
                '\\' => self.escape(at)?,
                '.' | '^' | '$' => self.out.push(c),
                c => self.literal(c),
            }
        }
        if self.depth > 0 {
            return Err(format!("missing ): {}", self.pattern));
        }
        Ok(())
    }

    fn literal(&mut self, c: char) {
        self.out
            .push_str(&regex::escape(c.encode_utf8(&mut [0; 4])));
    }

    /// The bounds of `{n}`, `{n,}` or `{n,m}` at `at`, or `None` if the brace is a literal.
    fn counted(&mut self, at: usize) -> Option<(u32, Option<u32>, usize)> {
        let body = self.pattern[at + 1..].split_once('}')?.0;
        let number = |text: &str| {
            let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
            digits.then(|| text.parse().unwrap_or(u32::MAX))
        };
        let (low, high) = match body.split_once(',') {
            None => (number(body)?, Some(number(body)?)),
            Some((low, "")) => (number(low)?, None),
            Some((low, high)) => (number(low)?, Some(number(high)?)),
        };
        Some((low, high, body.len() + 1))
    }

    fn repetition(
        &mut self,
        at: usize,
        c: char,
        counts: Option<(u32, Option<u32>, usize)>,
        atom: bool,
        repeated: Option<usize>,
    ) -> Result<(), String> {
        let length = counts.map_or(1, |(_, _, n)| n + 1);
        self.skip(length - 1);
        if self.peek() == Some('?') {
            self.chars.next();
        }
        let end = self.at();
        let text = &self.pattern[at..end];
        if let Some(first) = repeated {
            return Err(format!(
                "bad repetition operator: {}",
                &self.pattern[first..end]
            ));
        }
        if !atom {
            let operator = &self.pattern[at..at + length];
            return Err(format!("no argument for repetition operator: {operator}"));
        }
        if let Some((low, high, _)) = counts {
            let bad = low > MAX_REPEAT || high.is_some_and(|h| h > MAX_REPEAT || h < low);
            if bad {
                let operator = &self.pattern[at..at + length];
                return Err(format!("invalid repetition size: {operator}"));
            }
        } else {
            debug_assert!(matches!(c, '*' | '+' | '?'));
        }
        self.out.push_str(text);
        Ok(())
    }

    /// What follows `(`, which is at `at`.
    fn group(&mut self, at: usize) -> Result<(), String> {
        if self.peek() != Some('?') {
            self.out.push('(');
            self.depth += 1;
            return Ok(());
        }
        let rest = &self.pattern[at..];
        if rest.starts_with("(?P<") {
            let Some(end) = rest.find('>') else {
                return Err(format!("invalid named capture group: {rest}"));
            };
            let name = &rest[4..end];
            let sound = |c: char| c.is_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(sound) {
                return Err(format!("invalid named capture group: {}", &rest[..=end]));
            }
            // Names play no part in matching, and rewrites count groups.
            self.out.push('(');
            self.depth += 1;
            self.skip(end);
            return Ok(());
        }
        let mut end = 2;
        let mut negative = false;
        let mut any = false;
        for c in rest[2..].chars() {
            end += c.len_utf8();
            match c {
                'i' | 'm' | 's' | 'U' => any = true,
                '-' if !negative => {
                    negative = true;
                    any = false;
                }
                ':' | ')' if !negative || any => {
                    self.out.push_str(&rest[..end]);
                    if c == ':' {
                        self.depth += 1;
                    }
                    self.skip(end - 1);
                    return Ok(());
                }
                _ => return Err(format!("invalid perl operator: {}", &rest[..end])),
            }
        }
        Err(format!("invalid perl operator: {rest}"))
    }

    /// What follows `\` outside a class.
    fn escape(&mut self, at: usize) -> Result<(), String> {
        let Some((_, c)) = self.chars.next() else {
            return Err("trailing \\".into());
        };
        match c {
            'b' => self.out.push_str("(?-u:\\b)"),
            'B' => self.out.push_str("(?-u:\\B)"),
            'A' | 'z' => {
                self.out.push('\\');
                self.out.push(c);
            }
            'C' => self.out.push_str("(?s-u:.)"),
            'Q' => {
                let rest = self.rest();
                let quoted = rest.split_once("\\E").map_or(rest, |(q, _)| q).to_owned();
                self.out.push_str("(?:");
                quoted.chars().for_each(|c| self.literal(c));
                self.out.push(')');
                self.skip(quoted.len() + 2);
            }
            // `\E` without `\Q` means nothing.
            'E' => {}
            _ => {
                if !self.class_escape(at, c)? {
                    let code = self.code(at, c)?;
                    self.literal(code);
                }
            }
        }
        Ok(())
    }

    /// Writes the set that `\c` stands for, if it stands for a set.
    fn class_escape(&mut self, at: usize, c: char) -> Result<bool, String> {
        self.out.push_str(match c {
            'd' => "[0-9]",
            'D' => "[^0-9]",
            's' => "[\\t\\n\\x0c\\r ]",
            'S' => "[^\\t\\n\\x0c\\r ]",
            'w' => "[0-9A-Za-z_]",
            'W' => "[^0-9A-Za-z_]",
            'p' | 'P' => {
                let rest = self.rest().to_owned();
                let length = match rest.strip_prefix('{') {
                    Some(inner) => inner.find('}').map(|n| n + 2),
                    None => rest.chars().next().map(char::len_utf8),
                };
                let Some(length) = length else {
                    let text = &self.pattern[at..];
                    return Err(format!("invalid character class range: {text}"));
                };
                let text = format!("\\{c}{}", &rest[..length]);
                if text != "\\pN" && regex::Regex::new(&text).is_err() {
                    return Err(format!("invalid character class range: {text}"));
                }
                self.out.push_str(&text);
                self.skip(length);
                return Ok(true);
            }
            _ => return Ok(false),
        });
        Ok(true)
    }

    /// The character that `\c` stands for.
    fn code(&mut self, at: usize, c: char) -> Result<char, String> {
        let octal = |c: char| c.is_digit(8);
        let next = self.peek();
        match c {
            '1'..='7' if next.is_none_or(|n| !octal(n)) => {}
            '0'..='7' => {
                let mut code = c.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    match self.peek().and_then(|c| c.to_digit(8)) {
                        Some(d) => {
                            code = code * 8 + d;
                            self.chars.next();
                        }
                        None => break,
                    }
                }
                if let Some(c) = char::from_u32(code) {
                    return Ok(c);
                }
            }
            'x' => {
                let rest = self.rest().to_owned();
                let (digits, length) = match rest.strip_prefix('{') {
                    Some(inner) => match inner.find('}') {
                        Some(n) => (&inner[..n], n + 2),
                        None => ("", 0),
                    },
                    None => (rest.get(..2).unwrap_or(""), 2),
                };
                let sound = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
                let code = u32::from_str_radix(digits, 16).ok().filter(|_| sound);
                if let Some(c) = code.and_then(char::from_u32) {
                    self.skip(length);
                    return Ok(c);
                }
                let shown = rest.chars().next().map_or(0, char::len_utf8);
                let end = self.at() + shown;
                return Err(format!(
                    "invalid escape sequence: {}",
                    &self.pattern[at..end]
                ));
            }
            'a' => return Ok('\x07'),
            'f' => return Ok('\x0c'),
            'n' => return Ok('\n'),
            'r' => return Ok('\r'),
            't' => return Ok('\t'),
            'v' => return Ok('\x0b'),
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => return Ok(c),
            _ => {}
        }
        let end = at + 1 + c.len_utf8();
        Err(format!(
            "invalid escape sequence: {}",
            &self.pattern[at..end]
        ))
    }

    /// A class, whose `[` is at `at`.
    fn class(&mut self, at: usize) -> Result<(), String> {
        let missing = |pattern: &str| format!("missing ]: {}", &pattern[at..]);
        self.out.push('[');
        if self.peek() == Some('^') {
            self.out.push('^');
            self.chars.next();
        }
        let mut first = true;
        loop {
            let Some((start, c)) = self.chars.next() else {
                return Err(missing(self.pattern));
            };
            match c {
                ']' if !first => {
                    self.out.push(']');
                    return Ok(());
                }
                '[' if self.peek() == Some(':') && self.rest().contains(":]") => {
                    self.named_class(start)?;
                }
                _ => self.range(start, c)?,
            }
            first = false;
        }
    }

    /// `[:name:]`, whose `[` is at `at`.
    fn named_class(&mut self, at: usize) -> Result<(), String> {
        const NAMES: [&str; 14] = [
            "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print",
            "punct", "space", "upper", "word", "xdigit",
        ];
        let length = self.rest().find(":]").map_or(0, |n| n + 2);
        let text = &self.pattern[at..at + 1 + length];
        let name = text.trim_start_matches("[:").trim_start_matches('^');
        if !NAMES.contains(&name.trim_end_matches(":]")) {
            return Err(format!("invalid character class range: {text}"));
        }
        self.out.push_str(text);
        self.skip(length);
        Ok(())
    }

    /// One character or range of a class, or a set in it.
    fn range(&mut self, start: usize, c: char) -> Result<(), String> {
        let Some(low) = self.class_char(start, c)? else {
            return Ok(());
        };
        let rest = self.rest();
        let ranged = rest.starts_with('-') && !rest.starts_with("-]") && rest.len() > 1;
        if !ranged {
            self.literal(low);
            return Ok(());
        }
        self.chars.next();
        let Some((at, c)) = self.chars.next() else {
            return Ok(());
        };
        let before = self.out.len();
        let high = self.class_char(at, c)?;
        let end = self.at();
        let bad = format!(
            "invalid character class range: {}",
            &self.pattern[start..end]
        );
        match high {
            Some(high) if high >= low => {
                self.literal(low);
                self.out.push('-');
                self.literal(high);
                Ok(())
            }
            _ => {
                self.out.truncate(before);
                Err(bad)
            }
        }
    }

    /// The character at `at`, or `None` if it was a set and has been written.
    fn class_char(&mut self, at: usize, c: char) -> Result<Option<char>, String> {
        if c != '\\' {
            return Ok(Some(c));
        }
        let Some((_, c)) = self.chars.next() else {
            return Err("trailing \\".into());
        };
        if self.class_escape(at, c)? {
            return Ok(None);
        }
        self.code(at, c).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full(pattern: &str, text: &str) -> bool {
        let pattern = format!("\\A(?:{})\\z", translate(pattern).unwrap());
        regex::bytes::Regex::new(&pattern)
            .unwrap()
            .is_match(text.as_bytes())
    }

    /// Each answer is TensorFlow's.
    #[test]
    fn patterns_mean_what_they_mean_to_re2() {
        for (pattern, text, expect) in [
            ("a.*c", "abc", true),
            ("a|abc", "abc", true),
            ("(?P<x>a)", "a", true),
            ("a.", "a\n", false),
            (".", "é", true),
            ("..", "é", false),
            (r"\w", "é", false),
            (r"\d", "٣", false),
            ("(?i)é", "É", true),
            (r"\Qabc\E", "abc", true),
            (r"\Cbc", "abc", true),
            (r"\pL", "Σ", true),
            (r"\p{Greek}", "a", false),
            ("[[:alpha:]]", "a", true),
            ("[[:word:]]", "a", true),
            (r"\s", "\x0b", false),
            (r"\s", "\u{a0}", false),
            ("a{,2}", "a", false),
            ("a{,2}", "a{,2}", true),
            ("[]a]+", "a]", true),
            ("[&&a]+", "&&", true),
            ("[a~~b]+", "~~", true),
            ("[[a]+", "[", true),
            (r"a\z", "a", true),
            (r"\Aa$", "a", true),
            (r"[a\-]+", "a-", true),
            ("(?i:A)", "a", true),
            (r"\x61", "a", true),
            (r"\x{61}", "a", true),
            (r"\141", "a", true),
            (r"\ba\Bb", "ab", true),
            (r"\_", "_", true),
            (r"\<a", "a", false),
            ("(|a)+", "", true),
        ] {
            assert_eq!(full(pattern, text), expect, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn errors_read_as_re2s() {
        for (pattern, expect) in [
            ("(", "missing ): ("),
            ("a\\", "trailing \\"),
            ("[a", "missing ]: [a"),
            ("*a", "no argument for repetition operator: *"),
            ("a{2000}", "invalid repetition size: {2000}"),
            ("(?<x>a)", "invalid perl operator: (?<"),
            (r"\1", r"invalid escape sequence: \1"),
            ("(?=a)", "invalid perl operator: (?="),
            ("a**", "bad repetition operator: **"),
            ("a++", "bad repetition operator: ++"),
            ("(?x)a b", "invalid perl operator: (?x"),
            (r"a\Z", r"invalid escape sequence: \Z"),
            (r"\u0061", r"invalid escape sequence: \u"),
            (r"\é", r"invalid escape sequence: \é"),
            ("(?-u)a", "invalid perl operator: (?-u"),
            ("(?i", "invalid perl operator: (?i"),
        ] {
            assert_eq!(translate(pattern).unwrap_err(), expect, "{pattern:?}");
        }
    }
}
