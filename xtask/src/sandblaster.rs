//! `cargo xtask sandblaster`: Sandblaster's L-BFGS beside SciPy's, iterate by iterate; and with
//! `--traffic`, what its coordinator exchanges with other tasks, by the number of parameters: a table
//! in `docs/sandblaster.md`.

use crate::process::{root, run_watched};
use crate::{trial, venv};
use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use std::process::Command;

/// Parameters of the rows.
const SIZES: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];
/// Between these stands the table.
const MARKS: [&str; 2] = ["<!-- traffic -->\n", "<!-- /traffic -->"];

/// Compares with SciPy, or measures traffic.
pub(crate) fn run(args: &[String]) -> Result<String> {
    match args {
        [] => trial::script("sandblaster", &venv::ensure_scipy()?, &[]),
        [flag] if flag == "--traffic" => traffic(),
        _ => bail!("cargo xtask sandblaster takes only --traffic"),
    }
}

/// What `downpour-trial traffic` says.
#[derive(Deserialize)]
struct Traffic {
    parameters: u64,
    /// Of single iterations, in ascending order.
    bytes: Vec<u64>,
}

fn traffic() -> Result<String> {
    let program = trial::build("release")?;
    let mut rows = Vec::new();
    for size in SIZES {
        let mut last = String::new();
        let mut measure = Command::new(&program);
        measure.args(["traffic", &size.to_string()]);
        run_watched(&mut measure, |line| line.clone_into(&mut last))?;
        rows.push(serde_json::from_str::<Traffic>(&last).with_context(|| last.clone())?);
    }
    let page = root().join("docs/sandblaster.md");
    let text = std::fs::read_to_string(&page).context("docs/sandblaster.md")?;
    std::fs::write(&page, replaced(&text, &table(&rows)?)?)?;
    Ok(format!("sandblaster: traffic of {} sizes", rows.len()))
}

fn table(rows: &[Traffic]) -> Result<String> {
    let mut table = "| parameters | one vector, bytes | coordinator, bytes an iteration: least | median | most |\n\
                     |--:|--:|--:|--:|--:|\n"
        .to_owned();
    for row in rows {
        let at = |i: usize| row.bytes.get(i).copied();
        let (Some(least), Some(median), Some(most)) =
            (at(0), at(row.bytes.len() / 2), row.bytes.last())
        else {
            bail!("nothing was measured with {} parameters", row.parameters);
        };
        let (count, vector) = (grouped(row.parameters), grouped(row.parameters * 4));
        table += &format!(
            "| {count} | {vector} | {} | {} | {} |\n",
            grouped(least),
            grouped(median),
            grouped(*most)
        );
    }
    Ok(table)
}

/// The page with another table.
fn replaced(page: &str, table: &str) -> Result<String> {
    let parts = page
        .split_once(MARKS[0])
        .and_then(|(before, rest)| Some((before, rest.split_once(MARKS[1])?.1)));
    let (before, after) = parts.context("the page has no place for the table")?;
    Ok(format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1]))
}

/// 1234567 as 1,234,567.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Traffic, replaced, table};

    #[test]
    fn the_table_takes_the_place_of_the_last_one() {
        let row = Traffic {
            parameters: 10_000,
            bytes: vec![999, 1000, 1_234_567],
        };
        let table = table(&[row]).unwrap();
        let line = "| 10,000 | 40,000 | 999 | 1,000 | 1,234,567 |\n";
        assert!(table.ends_with(line), "{table}");
        let page = "before\n<!-- traffic -->\nold\n<!-- /traffic -->\nafter\n";
        let page = replaced(page, &table).unwrap();
        assert!(page.starts_with("before\n<!-- traffic -->\n| parameters"));
        assert!(page.ends_with("1,234,567 |\n<!-- /traffic -->\nafter\n"));
        assert!(replaced("no place", &table).is_err());
    }
}
