//! `downpour inspect checkpoint A --diff B`: which tensors came, went, changed type or shape, and how
//! far values moved. As `diff`, it exits with 1 if anything differs.

use super::checkpoint::Opened;
use super::output::{Align, Output, Table, count, json_number, number};
use super::statistics::{each, python_name};
use anyhow::Result;
use downpour_formats::bundle::StoredTensor;
use downpour_tensor::Tensor;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// How a tensor of one checkpoint compares with that of the other.
enum Change {
    OnlyFirst,
    OnlySecond,
    Kind(String, String),
    Values {
        differing: u64,
        count: u64,
        largest: f64,
        mean: f64,
    },
    /// Values that are no numbers.
    Other,
    Unreadable(String),
}

/// Compares two checkpoints and reports.
pub(super) fn run(
    first: &Opened,
    second: &Opened,
    chosen: &dyn Fn(&str) -> bool,
    tolerance: f64,
    json: bool,
) -> Result<ExitCode> {
    let mut pairs: BTreeMap<&str, (Option<&StoredTensor>, Option<&StoredTensor>)> = BTreeMap::new();
    for tensor in first.tensors() {
        pairs.entry(&tensor.name).or_default().0 = Some(tensor);
    }
    for tensor in second.tensors() {
        pairs.entry(&tensor.name).or_default().1 = Some(tensor);
    }
    let mut equal = 0;
    let mut changes: Vec<(&str, Change)> = Vec::new();
    for (name, pair) in pairs.into_iter().filter(|(name, _)| chosen(name)) {
        let change = match pair {
            (Some(a), Some(b)) => compare((first, a), (second, b), tolerance),
            (Some(_), None) => Some(Change::OnlyFirst),
            _ => Some(Change::OnlySecond),
        };
        match change {
            Some(change) => changes.push((name, change)),
            None => equal += 1,
        }
    }
    let mut out = Output::new();
    match json {
        true => {
            let each = changes.iter().map(|(name, change)| as_json(name, change));
            let changes: Vec<Value> = each.collect();
            out.json(&json!({
                "first": first.prefix, "second": second.prefix, "equal": equal,
                "tolerance": tolerance, "changes": changes,
            }))?;
        }
        false => print(&changes, equal, (first, second), &mut out)?,
    }
    out.finish()?;
    Ok(match changes.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::from(1),
    })
}

fn compare(
    (first, a): (&Opened, &StoredTensor),
    (second, b): (&Opened, &StoredTensor),
    tolerance: f64,
) -> Option<Change> {
    if a.dtype != b.dtype || a.shape != b.shape {
        let kind = |t: &StoredTensor| format!("{} {}", python_name(&t.dtype), t.shape);
        return Some(Change::Kind(kind(a), kind(b)));
    }
    let (a, b) = match (first.read(a), second.read(b)) {
        (Ok(a), Ok(b)) => (a, b),
        (Err(e), _) | (_, Err(e)) => return Some(Change::Unreadable(format!("{e:#}"))),
    };
    values(&a, &b, tolerance)
}

/// How far the values of two tensors of one type and shape are apart; `None` if they are not. Two
/// NaNs are equal: the question is what changed.
fn values(a: &Tensor, b: &Tensor, tolerance: f64) -> Option<Change> {
    if let (Some(a), Some(b)) = (a.buffer(), b.buffer())
        && a.as_bytes() == b.as_bytes()
    {
        return None;
    }
    if let (Ok(a), Ok(b)) = (a.as_strings(), b.as_strings()) {
        return (a != b).then_some(Change::Other);
    }
    let mut left = Vec::with_capacity(a.num_elements());
    let known = each(a, |x| left.push(x));
    let (mut differing, mut count, mut largest, mut sum) = (0, 0u64, 0.0f64, 0.0);
    let mut left = left.into_iter();
    let also = each(b, |y| {
        let x = left.next().unwrap_or(f64::NAN);
        count += 1;
        let same = x == y || x.is_nan() && y.is_nan();
        let distance = match same {
            true => 0.0,
            false => (x - y).abs(),
        };
        if !same && (distance.is_nan() || distance > tolerance) {
            differing += 1;
        }
        // A value that became NaN is as far away as can be.
        largest = largest.max(if distance.is_nan() {
            f64::INFINITY
        } else {
            distance
        });
        sum += distance;
    });
    match (known, also) {
        (Some(()), Some(())) if differing == 0 && tolerance > 0.0 => None,
        // Bytes differ where numbers do not: -0, kinds of NaN, complex numbers turned round.
        (Some(()), Some(())) if differing == 0 => Some(Change::Other),
        (Some(()), Some(())) => Some(Change::Values {
            differing,
            count,
            largest,
            mean: sum / count.max(1) as f64,
        }),
        _ => Some(Change::Other),
    }
}

fn print(
    changes: &[(&str, Change)],
    equal: usize,
    (first, second): (&Opened, &Opened),
    out: &mut Output,
) -> Result<()> {
    out.line(&format!("- {}", first.prefix))?;
    out.line(&format!("+ {}", second.prefix))?;
    let mut table = Table::new(&[
        ("", Align::Left),
        ("NAME", Align::Left),
        ("DIFFERING", Align::Right),
        ("LARGEST", Align::Right),
        ("MEAN", Align::Right),
        ("", Align::Left),
    ]);
    for (name, change) in changes {
        let blank = String::new;
        let (sign, cells) = match change {
            Change::OnlyFirst => ("-", [blank(), blank(), blank(), "only in the first".into()]),
            Change::OnlySecond => (
                "+",
                [blank(), blank(), blank(), "only in the second".into()],
            ),
            Change::Kind(a, b) => ("!", [blank(), blank(), blank(), format!("{a} became {b}")]),
            Change::Other => ("~", [blank(), blank(), blank(), "other contents".into()]),
            Change::Unreadable(why) => ("?", [blank(), blank(), blank(), why.clone()]),
            Change::Values {
                differing,
                count,
                largest,
                mean,
            } => (
                "~",
                [
                    format!("{differing} of {count}"),
                    number(*largest),
                    number(*mean),
                    blank(),
                ],
            ),
        };
        let mut row = vec![sign.to_owned(), (*name).to_owned()];
        row.extend(cells);
        table.row(row);
    }
    if !table.is_empty() {
        out.table(&table)?;
    }
    out.line(&format!(
        "{} equal, {} not",
        count(equal, "tensor"),
        changes.len()
    ))
}

fn as_json(name: &str, change: &Change) -> Value {
    match change {
        Change::OnlyFirst => json!({"name": name, "change": "removed"}),
        Change::OnlySecond => json!({"name": name, "change": "added"}),
        Change::Kind(a, b) => json!({"name": name, "change": "kind", "from": a, "to": b}),
        Change::Other => json!({"name": name, "change": "contents"}),
        Change::Unreadable(why) => json!({"name": name, "change": "unreadable", "why": why}),
        Change::Values {
            differing,
            count,
            largest,
            mean,
        } => json!({
            "name": name, "change": "values", "differing": differing, "count": count,
            "largest": json_number(*largest), "mean": json_number(*mean),
        }),
    }
}
