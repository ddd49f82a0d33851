//! Shapes in a line: `[n,4] [n] [] -> [_]` says what an op takes and gives. Most ops need no more.
//!
//! Left of the arrow stands one shape for each input, right of it one for each output:
//!
//! | written | means |
//! |---|---|
//! | `[a,3,_]` | that many dimensions: one that is called `a` (the same wherever it stands), 3, any |
//! | `[B..,n,n]` | at least two dimensions, what comes before them is called `B` |
//! | `S` | a whole shape, called `S` |
//! | `&S`, `&[n,R..]` | the same for a variable: its own shape, or the one behind its handle |
//! | `~S` | the same, but anything if the op's first input is a handle |
//! | `*` | anything |
//! | `<=1`, `>=2` | at most one, at least two dimensions |
//! | `?` | an output of which nothing is known |
//! | `...` | the one before it, for all that remain |
//!
//! Inputs beyond the last one written may be anything; outputs beyond it are unknown.

use super::dims::{dims_of, merge, merge_dims};
use super::{Context, Dim, Shapes, invalid};
use downpour_graph::Result;
use downpour_tensor::{DType, PartialShape};

/// What the names of a pattern stand for so far.
#[derive(Default)]
struct Names {
    dims: Vec<(char, Dim)>,
    shapes: Vec<(char, PartialShape)>,
}

/// Checks a node's inputs against a pattern and gives the shapes of its outputs.
pub(super) fn apply(pattern: &str, c: &Context<'_>) -> Result<Shapes> {
    let (inputs, outputs) = pattern.split_once("->").unwrap_or((pattern, ""));
    let mut names = Names::default();
    for (i, token) in repeated(inputs, c.num_inputs()) {
        names.read(token, i, c)?;
    }
    let mut shapes = Shapes::from_elem(PartialShape::unknown(), c.num_outputs());
    for (i, token) in repeated(outputs, c.num_outputs()) {
        shapes[i] = names.write(token);
    }
    Ok(shapes)
}

/// The tokens for `count` places; `...` repeats the one before it.
fn repeated(tokens: &str, count: usize) -> impl Iterator<Item = (usize, &str)> {
    let tokens: Vec<&str> = tokens.split_whitespace().collect();
    let given = tokens.len();
    let token = move |i: usize| match tokens.get(i) {
        Some(&"...") | None if given > 1 && tokens[given - 1] == "..." => Some(tokens[given - 2]),
        other => other.copied(),
    };
    (0..count).map_while(move |i| Some((i, token(i)?)))
}

impl Names {
    fn read(&mut self, token: &str, i: usize, c: &Context<'_>) -> Result<()> {
        let shape = c.input(i);
        if let Some(rank) = token.strip_prefix("<=") {
            return c.at_most(i, rank.parse().unwrap_or(0));
        }
        if let Some(rank) = token.strip_prefix(">=") {
            return c.at_least(i, rank.parse().unwrap_or(0)).map(|_| ());
        }
        if let Some(token) = token.strip_prefix('~') {
            return match c.dtype(0) {
                Some(DType::Resource) => Ok(()),
                _ => self.read(token, i, c),
            };
        }
        let (token, shape) = match token.strip_prefix('&') {
            Some(token) => (token, c.variable(i)),
            None => (token, shape),
        };
        match token.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
            Some(parts) => self.read_dims(parts, &shape),
            None if token == "*" => Ok(()),
            None => self.bind_shape(token, shape),
        }
    }

    fn read_dims(&mut self, parts: &str, shape: &PartialShape) -> Result<()> {
        let parts: Vec<&str> = parts.split(',').filter(|p| !p.is_empty()).collect();
        let open = parts.iter().position(|p| p.ends_with(".."));
        let fixed = parts.len() - usize::from(open.is_some());
        let Some(dims) = shape.dims() else {
            for part in parts.iter().filter(|p| !p.ends_with("..")) {
                self.bind_dim(part, None)?;
            }
            return match open {
                Some(at) => self.bind_shape(parts[at], PartialShape::unknown()),
                None => Ok(()),
            };
        };
        match open {
            None if dims.len() != fixed => {
                return invalid(format!(
                    "Shape must be rank {fixed} but is rank {}",
                    dims.len()
                ));
            }
            Some(_) if dims.len() < fixed => {
                return invalid(format!(
                    "Shape must be at least rank {fixed} but is rank {}",
                    dims.len()
                ));
            }
            _ => {}
        }
        let mut at = 0;
        for part in parts {
            match part.ends_with("..") {
                true => {
                    let end = at + dims.len() - fixed;
                    self.bind_shape(part, PartialShape::from_dims(dims[at..end].iter().copied()))?;
                    at = end;
                }
                false => {
                    self.bind_dim(part, dims[at])?;
                    at += 1;
                }
            }
        }
        Ok(())
    }

    fn bind_dim(&mut self, part: &str, dim: Dim) -> Result<()> {
        if part == "_" {
            return Ok(());
        }
        if let Ok(value) = part.parse::<usize>() {
            return match dim {
                Some(d) if d != value => invalid(format!("Dimension must be {value} but is {d}")),
                _ => Ok(()),
            };
        }
        let name = part.chars().next().unwrap_or('_');
        match self.dims.iter_mut().find(|(n, _)| *n == name) {
            Some((_, known)) => *known = merge_dims(*known, dim)?,
            None => self.dims.push((name, dim)),
        }
        Ok(())
    }

    fn bind_shape(&mut self, part: &str, shape: PartialShape) -> Result<()> {
        let name = part.chars().next().unwrap_or('.');
        if name == '.' {
            return Ok(());
        }
        match self.shapes.iter_mut().find(|(n, _)| *n == name) {
            Some((_, known)) => *known = merge(known, &shape)?,
            None => self.shapes.push((name, shape)),
        }
        Ok(())
    }

    fn write(&self, token: &str) -> PartialShape {
        let Some(parts) = token.strip_prefix('[').and_then(|t| t.strip_suffix(']')) else {
            return self.shape(token);
        };
        let mut out: Vec<Dim> = Vec::new();
        for part in parts.split(',').filter(|p| !p.is_empty()) {
            if part.ends_with("..") {
                let Some(dims) = dims_of(&self.shape(part)) else {
                    return PartialShape::unknown();
                };
                out.extend(dims);
                continue;
            }
            out.push(match part.parse::<usize>() {
                Ok(value) => Some(value),
                Err(_) => {
                    let name = part.chars().next();
                    let known = self.dims.iter().find(|(n, _)| Some(*n) == name);
                    known.and_then(|(_, d)| *d)
                }
            });
        }
        PartialShape::from_dims(out)
    }

    fn shape(&self, part: &str) -> PartialShape {
        let name = part.chars().next();
        let known = self.shapes.iter().find(|(n, _)| Some(*n) == name);
        known.map(|(_, s)| s.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use crate::{DType, Graph};

    #[test]
    fn names_bind_dimensions_across_inputs() {
        let g = Graph::new();
        let inputs = g.placeholder("inputs", DType::Float, [None, Some(4), Some(7)]);
        let lengths = g.placeholder("lengths", DType::Int32, [None]);
        let out = g
            .op("CTCGreedyDecoder")
            .input(&inputs)
            .input(&lengths)
            .outputs();
        assert_eq!(out[0].shape().to_string(), "[?,2]");
        assert_eq!(out[3].shape().to_string(), "[4,1]");
    }

    #[test]
    fn leading_dimensions_pass_through() {
        let g = Graph::new();
        let a = g.placeholder("a", DType::Float, [Some(5), None, Some(3)]);
        let out = g.op("Cholesky").input(&a).output();
        assert_eq!(out.shape().to_string(), "[5,3,3]");
        let v = g.placeholder("v", DType::Float, [Some(5)]);
        let _ = g.op("Cholesky").input(&v).output();
        let error = g.check().unwrap_err();
        assert!(error.message.contains("at least rank 2"), "{error}");
    }

    /// Every name that a pattern gives out was read somewhere, and no pattern is longer than its
    /// op's signature.
    #[test]
    fn patterns_fit_their_ops() {
        use super::super::{Rule, rule};
        let (mut seen, mut wrong) = (0, Vec::new());
        let single =
            |a: &downpour_graph::ArgDef| matches!(a.kind, downpour_graph::ArgKind::Single(_));
        let count = |t: &str| t.split_whitespace().filter(|t| *t != "...").count();
        for op in downpour_graph::op_names() {
            let Some(Rule::Pattern(pattern)) = rule(op) else {
                continue;
            };
            seen += 1;
            let (inputs, outputs) = pattern.split_once("->").unwrap_or((pattern, ""));
            let mut names = outputs.chars().filter(char::is_ascii_alphabetic);
            let def = downpour_graph::find_op(op).unwrap();
            let too_long = |args: &[downpour_graph::ArgDef], tokens: &str| {
                args.iter().all(single) && count(tokens) > args.len()
            };
            // An optimizer's update has no output in its resource form.
            let no_output = def.outputs.is_empty() && op.starts_with("Resource");
            if names.any(|n| !inputs.contains(n))
                || too_long(&def.inputs, inputs)
                || (too_long(&def.outputs, outputs) && !no_output)
            {
                wrong.push(format!("{op}: {pattern}"));
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(seen > 300, "{seen}");
    }
}
