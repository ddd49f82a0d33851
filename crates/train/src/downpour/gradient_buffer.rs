//! Gradients of several steps on their way to one push: dense ones added up in place, rows of
//! sparse ones put behind each other.

use super::parts::Way;
use downpour_build::{DType, Result, Status, Tensor};
use downpour_client::Run;

/// What was accrued since the last push.
#[derive(Debug, Default)]
pub(super) struct GradientBuffer {
    /// How many steps.
    pub(super) steps: u64,
    /// The oldest version that any of them was computed from.
    pub(super) version: u64,
    sums: Vec<Sum>,
}

#[derive(Debug)]
enum Sum {
    Dense(Tensor),
    Sparse {
        values: Vec<Tensor>,
        indices: Vec<Tensor>,
    },
}

impl GradientBuffer {
    /// Adds a step's gradients, in the order in which [`fetch_gradients`] fetches them.
    pub(super) fn add(&mut self, ways: &[Way], values: Vec<Tensor>, version: u64) -> Result<()> {
        let mut values = values.into_iter();
        let mut next = || {
            values
                .next()
                .ok_or_else(|| Status::internal("a gradient is missing"))
        };
        let is_first = self.steps == 0;
        if is_first {
            self.sums.clear();
        }
        for (i, way) in ways.iter().enumerate() {
            let new = match way {
                Way::Dense { .. } => Sum::Dense(next()?),
                Way::Sparse { .. } => Sum::Sparse {
                    values: vec![next()?],
                    indices: vec![next()?],
                },
            };
            match (self.sums.get_mut(i), new) {
                (None, new) => self.sums.push(new),
                (Some(Sum::Dense(sum)), Sum::Dense(new)) => add_scaled(sum, &new, 1.0)?,
                (
                    Some(Sum::Sparse { values, indices }),
                    Sum::Sparse {
                        values: v,
                        indices: i,
                    },
                ) => {
                    values.extend(v);
                    indices.extend(i);
                }
                _ => return Err(Status::internal("a gradient changed its kind")),
            }
        }
        self.version = match is_first {
            true => version,
            false => self.version.min(version),
        };
        self.steps += 1;
        Ok(())
    }

    /// Feeds the sums to a push; nothing is accrued after it.
    pub(super) fn feed(&mut self, ways: &[Way], run: &mut Run) -> Result<()> {
        for (way, sum) in ways.iter().zip(self.sums.drain(..)) {
            match (way, sum) {
                (Way::Dense { pushed, .. }, Sum::Dense(sum)) => {
                    run.feed(pushed, sum);
                }
                (
                    Way::Sparse {
                        pushed_values,
                        pushed_indices,
                        ..
                    },
                    Sum::Sparse { values, indices },
                ) => {
                    run.feed(pushed_values, behind(values)?);
                    run.feed(pushed_indices, behind(indices)?);
                }
                _ => return Err(Status::internal("a gradient changed its kind")),
            }
        }
        self.steps = 0;
        Ok(())
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.sums.clear();
        self.steps = 0;
    }
}

/// Adds the loss and the gradients to what a step fetches.
pub(super) fn fetch_gradients(ways: &[Way], run: &mut Run) {
    for way in ways {
        match way {
            Way::Dense { gradient, .. } => {
                run.fetch(gradient);
            }
            Way::Sparse {
                values, indices, ..
            } => {
                run.fetch(values);
                run.fetch(indices);
            }
        }
    }
}

/// `sum += scale · new`.
pub(super) fn add_scaled(sum: &mut Tensor, new: &Tensor, scale: f64) -> Result<()> {
    let wrong = |e: downpour_build::TensorError| Status::internal(e.to_string());
    if sum.shape() != new.shape() {
        let text = format!(
            "a gradient of shape {} after one of {}",
            new.shape(),
            sum.shape()
        );
        return Err(Status::invalid_argument(text));
    }
    match sum.dtype() {
        DType::Float => {
            let (new, scale) = (new.as_slice::<f32>().map_err(wrong)?, scale as f32);
            let sum = sum.make_mut::<f32>().map_err(wrong)?;
            sum.iter_mut().zip(new).for_each(|(s, n)| *s += scale * n);
        }
        _ => {
            let new = new.as_slice::<f64>().map_err(wrong)?;
            let sum = sum.make_mut::<f64>().map_err(wrong)?;
            sum.iter_mut().zip(new).for_each(|(s, n)| *s += scale * n);
        }
    }
    Ok(())
}

/// The rows of tensors behind each other.
fn behind(mut parts: Vec<Tensor>) -> Result<Tensor> {
    if let [_] = parts.as_slice() {
        return parts.pop().ok_or_else(|| Status::internal("no rows"));
    }
    let wrong = |e: downpour_build::TensorError| Status::internal(e.to_string());
    let Some(first) = parts.first() else {
        return Err(Status::internal("no rows"));
    };
    let rows: usize = parts
        .iter()
        .map(|p| p.dims().first().copied().unwrap_or(0))
        .sum();
    let mut dims = first.dims().to_vec();
    if let Some(count) = dims.first_mut() {
        *count = rows;
    }
    macro_rules! joined {
        ($t:ty) => {{
            let mut all: Vec<$t> = Vec::new();
            for part in &parts {
                all.extend_from_slice(part.as_slice::<$t>().map_err(wrong)?);
            }
            Tensor::from_vec(all, dims).map_err(wrong)
        }};
    }
    match first.dtype() {
        DType::Float => joined!(f32),
        DType::Double => joined!(f64),
        DType::Int32 => joined!(i32),
        _ => joined!(i64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_behind_each_other_and_sums_keep_their_own() {
        let rows = |v: Vec<f32>| Tensor::from_vec(v, [1, 2]).unwrap();
        let all = behind(vec![rows(vec![1.0, 2.0]), rows(vec![3.0, 4.0])]).unwrap();
        assert_eq!(
            (all.dims(), all.as_slice::<f32>().unwrap()),
            (&[2, 2][..], &[1.0, 2.0, 3.0, 4.0][..])
        );
        let given = Tensor::vector(vec![1.0f64, 2.0]);
        let mut sum = given.clone();
        add_scaled(&mut sum, &Tensor::vector(vec![10.0f64, 20.0]), 0.5).unwrap();
        assert_eq!(sum.as_slice::<f64>().unwrap(), [6.0, 12.0]);
        // Others who hold the first gradient do not see it change.
        assert_eq!(given.as_slice::<f64>().unwrap(), [1.0, 2.0]);
        assert!(add_scaled(&mut sum, &Tensor::vector(vec![1.0f64]), 1.0).is_err());
    }
}
