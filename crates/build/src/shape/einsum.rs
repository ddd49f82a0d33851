//! The shape of an Einstein summation: letters name dimensions, an ellipsis those that broadcast.

use super::dims::{broadcast, merge_dims, shape};
use super::{Context, Dim, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use std::collections::HashMap;

pub(super) fn einsum(c: &mut Context<'_>) -> Result<Shapes> {
    let equation: String = c.attrs().str("equation")?.split_whitespace().collect();
    let Some((inputs, output)) = equation.split_once("->") else {
        return invalid(format!(
            "Expecting exactly one '->' in einsum equation: {equation}"
        ));
    };
    let inputs: Vec<&str> = inputs.split(',').collect();
    if inputs.len() != c.num_inputs() || inputs.is_empty() || inputs.len() > 2 {
        return invalid(format!(
            "Expected {} inputs for equation {equation} but got: {}",
            inputs.len(),
            c.num_inputs()
        ));
    }
    let mut named: HashMap<char, Dim> = HashMap::new();
    let mut batch = shape([]);
    for (i, labels) in inputs.iter().enumerate() {
        let own = read(labels, &c.input(i), &mut named)?;
        batch = broadcast(&batch, &own)?;
    }
    let (before, after) = split(output)?;
    let mut out: Vec<Dim> = Vec::new();
    let put = |out: &mut Vec<Dim>, labels: &str| -> Result<()> {
        for label in labels.chars() {
            let Some(dim) = named.get(&label) else {
                return invalid(format!(
                    "Einsum output subscripts for equation '{equation}' has label '{label}' which \
                     is not present in the input subscripts"
                ));
            };
            out.push(*dim);
        }
        Ok(())
    };
    put(&mut out, before)?;
    match (after, batch.dims()) {
        (Some(_), None) => return one(PartialShape::unknown()),
        (Some(after), Some(dims)) => {
            out.extend(dims);
            put(&mut out, after)?;
        }
        (None, Some(dims)) if !dims.is_empty() => {
            return invalid(format!(
                "the ellipsis of an input of '{equation}' stands for dimensions, but the output \
                 has none"
            ));
        }
        _ => {}
    }
    one(shape(out))
}

/// The labels before and behind the ellipsis, if there is one.
fn split(labels: &str) -> Result<(&str, Option<&str>)> {
    let Some((before, after)) = labels.split_once("...") else {
        return match labels.contains('.') {
            true => invalid(format!("Periods must be part of an ellipsis: {labels}")),
            false => Ok((labels, None)),
        };
    };
    if before.contains('.') || after.contains('.') {
        return invalid(format!("Only one ellipsis is allowed: {labels}"));
    }
    Ok((before, Some(after)))
}

/// Gives an input's labels their dimensions; what its ellipsis stands for.
fn read(labels: &str, of: &PartialShape, named: &mut HashMap<char, Dim>) -> Result<PartialShape> {
    let (before, after) = split(labels)?;
    let tail = after.unwrap_or_default();
    let (head, count) = (
        before.chars().count(),
        before.chars().count() + tail.chars().count(),
    );
    let mut bind = |label: char, dim: Dim| -> Result<()> {
        let known = named.entry(label).or_insert(None);
        *known = merge_dims(*known, dim)?;
        Ok(())
    };
    let Some(dims) = of.dims() else {
        before
            .chars()
            .chain(tail.chars())
            .try_for_each(|l| bind(l, None))?;
        return Ok(match after {
            Some(_) => PartialShape::unknown(),
            None => shape([]),
        });
    };
    if dims.len() < count || (after.is_none() && dims.len() != count) {
        return invalid(format!(
            "Shape must be rank {count} but is rank {} for subscripts '{labels}'",
            dims.len()
        ));
    }
    let open = dims.len() - count;
    for (i, label) in before.chars().chain(tail.chars()).enumerate() {
        bind(label, dims[if i < head { i } else { i + open }])?;
    }
    Ok(shape(dims[head..head + open].iter().copied()))
}
