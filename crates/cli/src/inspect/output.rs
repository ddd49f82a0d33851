//! Writing what was found: tables that line up, sizes for people, JSON for machines. A reader that
//! goes away ends the command (`refusal::report`); nothing printed here can steer a terminal.

use crate::refusal::clean;
use anyhow::Result;
use serde_json::Value;
use std::io::{BufWriter, Stdout, Write};

/// Standard output.
pub(crate) struct Output(BufWriter<Stdout>);

impl Output {
    pub(crate) fn new() -> Output {
        Output(BufWriter::with_capacity(1 << 16, std::io::stdout()))
    }

    /// One line.
    pub(crate) fn line(&mut self, text: &str) -> Result<()> {
        writeln!(self.0, "{}", clean(text).trim_end())?;
        Ok(())
    }

    /// Text as it is.
    pub(super) fn raw(&mut self, text: &str) -> Result<()> {
        self.0.write_all(text.as_bytes())?;
        Ok(())
    }

    /// One JSON document and a newline.
    pub(super) fn json(&mut self, value: &Value) -> Result<()> {
        serde_json::to_writer_pretty(&mut self.0, value)?;
        writeln!(self.0)?;
        Ok(())
    }

    /// Columns as wide as they must be, two blanks apart.
    pub(crate) fn table(&mut self, table: &Table) -> Result<()> {
        let mut widths = vec![0; table.columns.len()];
        let head: Vec<String> = table.columns.iter().map(|c| c.0.to_owned()).collect();
        let rows = || std::iter::once(&head).chain(&table.rows);
        for row in rows() {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in rows() {
            let mut line = String::new();
            for ((cell, width), (_, align)) in row.iter().zip(&widths).zip(&table.columns) {
                match align {
                    Align::Left => line += &format!("{cell:<width$}  "),
                    Align::Right => line += &format!("{cell:>width$}  "),
                }
            }
            writeln!(self.0, "{}", line.trim_end())?;
        }
        Ok(())
    }

    /// What is buffered goes out.
    pub(crate) fn finish(mut self) -> Result<()> {
        self.0.flush()?;
        Ok(())
    }
}

/// On which side a column's cells stand.
#[derive(Clone, Copy)]
pub(crate) enum Align {
    Left,
    Right,
}

/// Rows under headings.
pub(crate) struct Table {
    columns: Vec<(&'static str, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(columns: &[(&'static str, Align)]) -> Table {
        Table {
            columns: columns.to_vec(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells.iter().map(|c| clean(c)).collect());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }
}

/// `1 tensor`, `2 tensors`.
pub(super) fn count(n: usize, what: &str) -> String {
    match n {
        1 => format!("1 {what}"),
        n => format!("{} {what}s", thousands(n as u64)),
    }
}

/// Digits in groups of three.
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// A size for people.
pub(crate) fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1023.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A number for people: six digits that matter.
pub(super) fn number(x: f64) -> String {
    let size = x.abs();
    if x == 0.0 || !x.is_finite() {
        return format!("{x}");
    }
    if x == x.trunc() && size < 1e15 {
        return format!("{x}");
    }
    if !(1e-4..1e7).contains(&size) {
        return format!("{x:.5e}");
    }
    let digits = 5 - size.log10().floor() as i32;
    let text = format!("{x:.*}", digits.max(0) as usize);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// A number for machines: JSON has no NaN and no infinities, so those are strings.
pub(super) fn json_number(x: f64) -> Value {
    match serde_json::Number::from_f64(x) {
        Some(n) => Value::Number(n),
        None => Value::String(match (x.is_nan(), x > 0.0) {
            (true, _) => "NaN".into(),
            (_, true) => "Infinity".into(),
            (_, false) => "-Infinity".into(),
        }),
    }
}

/// Bytes as text: UTF-8 in quotes where they are, else their number and first bytes.
pub(super) fn preview(data: &[u8], most: usize) -> String {
    let text = std::str::from_utf8(data).ok();
    let printable = text.filter(|t| t.chars().all(|c| !c.is_control() || "\n\t\r".contains(c)));
    match printable {
        Some(text) => {
            let shown: String = text.chars().take(most).collect();
            let more = match shown.len() < text.len() {
                true => "…",
                false => "",
            };
            format!("{:?}{more}", shown)
        }
        None => {
            let shown: String = data
                .iter()
                .take(most / 3)
                .map(|b| format!("{b:02x}"))
                .collect();
            let more = if data.len() > most / 3 { "…" } else { "" };
            format!("0x{shown}{more} ({})", bytes(data.len() as u64))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(
            [0, 999, 1000, 1234567].map(thousands),
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [0, 1023, 1024, 1048575, 1 << 30].map(bytes),
            ["0 B", "1023 B", "1.0 KiB", "1.0 MiB", "1.0 GiB"]
        );
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        let numbers = [
            0.0,
            -0.5,
            1.0 / 3.0,
            1234567.0,
            1e-9,
            123.456789,
            f64::NAN,
            1e300,
        ];
        let want = [
            "0",
            "-0.5",
            "0.333333",
            "1234567",
            "1.00000e-9",
            "123.457",
            "NaN",
            "1.00000e300",
        ];
        assert_eq!(numbers.map(number), want);
    }

    #[test]
    fn bytes_are_shown_as_what_they_are() {
        assert_eq!(preview(b"hello", 9), "\"hello\"");
        assert_eq!(preview(b"hello", 2), "\"he\"…");
        assert_eq!(preview(b"\xff\x00", 9), "0xff00 (2 B)");
        assert_eq!(preview(b"\x1b[31m", 30), "0x1b5b33316d (5 B)");
    }
}
