//! The equation of an `Einsum`: its grammar, and its labels bound to the shapes of operands.

use downpour_graph::{Result, Status};
use downpour_tensor::Tensor;

/// The name of a dimension.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Label {
    /// A character of the equation.
    Named(u8),
    /// A dimension under an ellipsis, counted from the last.
    Ellipsis(usize),
}

impl Label {
    /// Whether it stands under an ellipsis.
    pub(super) fn is_ellipsis(self) -> bool {
        matches!(self, Label::Ellipsis(_))
    }
}

/// Labels of one operand, `None` where the ellipsis is.
type Subscripts = Vec<Option<u8>>;

/// A parsed equation.
pub(super) struct Equation {
    inputs: Vec<Subscripts>,
    output: Subscripts,
}

/// An equation with the dimensions of its operands.
pub(super) struct Bound {
    /// Label of each dimension of each operand.
    pub(super) inputs: Vec<Vec<Label>>,
    /// Label of each dimension of the output.
    pub(super) output: Vec<Label>,
    /// Labels that are in both operands.
    pub(super) shared: Vec<Label>,
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

impl Equation {
    /// Parses an equation.
    pub(super) fn parse(text: &str) -> Result<Equation> {
        let sides: Vec<&str> = text.split("->").collect();
        let &[left, right] = sides.as_slice() else {
            return invalid(format!(
                "Expecting exactly one '->' in einsum equation: {text}"
            ));
        };
        let lists: Vec<&str> = left.split(',').collect();
        if lists.len() > 2 {
            return invalid(format!(
                "Expecting 1 or 2 input subscripts in equation '{text}' but got: {}",
                lists.len()
            ));
        }
        let inputs = lists
            .iter()
            .map(|s| subscripts(s, "input"))
            .collect::<Result<Vec<_>>>()?;
        let output = subscripts(right, "output")?;
        for label in output.iter().flatten() {
            if !inputs.iter().flatten().any(|l| *l == Some(*label)) {
                return invalid(format!(
                    "Einsum output subscripts for equation '{text}' has label '{}' which is not present in the input subscripts",
                    char::from(*label)
                ));
            }
        }
        Ok(Equation { inputs, output })
    }

    /// Binds labels to the dimensions of operands.
    pub(super) fn bind(&self, tensors: &[Tensor]) -> Result<Bound> {
        if tensors.len() != self.inputs.len() {
            return invalid(format!(
                "Expected {} inputs for equation but got: {}",
                self.inputs.len(),
                tensors.len()
            ));
        }
        let mut sizes: Vec<(Label, usize)> = Vec::new();
        let mut inputs = Vec::new();
        let mut hidden = 0;
        for (i, (t, labels)) in tensors.iter().zip(&self.inputs).enumerate() {
            let named = labels.iter().flatten().count();
            let has_ellipsis = named != labels.len();
            if !has_ellipsis && t.rank() != named {
                return invalid(format!(
                    "Expected input {i} to have rank {named} but got: {}",
                    t.rank()
                ));
            }
            if t.rank() < named {
                return invalid(format!(
                    "Expected input {i} to have rank at least {named} but got: {}",
                    t.rank()
                ));
            }
            let under = t.rank() - named;
            hidden = hidden.max(under);
            let own = expand(labels, under);
            for (axis, label) in own.iter().enumerate() {
                let size = t.dims()[axis];
                match sizes.iter().find(|(l, _)| l == label) {
                    _ if label.is_ellipsis() => {}
                    None => sizes.push((*label, size)),
                    Some(&(_, known)) if known == size => {}
                    Some((_, known)) => {
                        return invalid(format!(
                            "Expected dimension {known} at axis {axis} of the input shaped {} but got dimension {size}",
                            t.shape()
                        ));
                    }
                }
            }
            inputs.push(own);
        }
        if hidden > 0 && !self.output.contains(&None) {
            return invalid(format!(
                "Output contains {hidden} broadcasting dimension(s) but no ellipsis (...) was found in the output subscripts."
            ));
        }
        let output = expand(&self.output, hidden);
        let shared = match inputs.as_slice() {
            [a, b] => a.iter().copied().filter(|l| b.contains(l)).collect(),
            _ => Vec::new(),
        };
        Ok(Bound {
            inputs,
            output,
            shared,
        })
    }
}

/// The labels, with `under` dimensions where the ellipsis is.
fn expand(labels: &Subscripts, under: usize) -> Vec<Label> {
    let mut out = Vec::new();
    for label in labels {
        match label {
            Some(name) => out.push(Label::Named(*name)),
            None => out.extend((0..under).rev().map(Label::Ellipsis)),
        }
    }
    out
}

fn subscripts(text: &str, which: &str) -> Result<Subscripts> {
    let periods = text.bytes().filter(|&b| b == b'.').count();
    let at = text.find("...");
    if periods != 0 && (periods != 3 || at.is_none()) {
        return invalid(format!(
            "Expected at most one ellipsis (...), but found {periods} periods (.) in the {which} subscript: {text}"
        ));
    }
    let mut out: Subscripts = Vec::new();
    // A label is a byte; the text has a character for each.
    for (i, c) in text.char_indices() {
        match c {
            '.' if Some(i) == at => out.push(None),
            '.' => {}
            other => out.push(u8::try_from(other).ok()),
        }
    }
    Ok(out)
}
