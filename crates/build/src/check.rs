//! Whether gradients are right: the builder's beside what small steps measure. Nothing runs here;
//! whoever calls brings what can evaluate a graph.

use crate::{DType, Differentiate, Gradient, Output, Tensor};
use downpour_graph::{Result, Status};

/// Computes tensors of a graph; a session, for one.
///
/// ```
/// use downpour::{DType, Evaluate, Graph, Server, ServerConfig, Session, Tensor};
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, ());
/// let y = x.square();
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// let values = (&session).evaluate(&[y], &[(x, Tensor::scalar(3.0f32))])?;
/// assert_eq!(values[0].scalar_value::<f32>()?, 9.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Evaluate {
    /// The values of `outputs`, with these fed.
    fn evaluate(&mut self, outputs: &[Output], feeds: &[(Output, Tensor)]) -> Result<Vec<Tensor>>;
}

/// How far the builder's gradient and the measured one are apart.
///
/// ```
/// use downpour::{DType, Graph, Server, ServerConfig, Session, Tensor, check_gradients};
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Double, [2]);
/// // A wrong rule: 3x instead of 2x.
/// let rule = |b: &downpour::Back| Ok(vec![Some((b.dy(0) * b.x(0) * 3.0).into())]);
/// let y = g.with_gradient("Square", rule, || x.square());
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// let point = Tensor::vector(vec![1.0, 2.0]);
/// let found = check_gradients(&mut &session, &y, &x, &[(x.clone(), point)], 1e-3)?;
/// // For x[1] = 2 it says 6, but 4 is right.
/// assert!((found.max_error - 2.0).abs() < 1e-6);
/// assert_eq!(found.at, (1, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientCheck {
    /// The largest difference between two elements.
    pub max_error: f64,
    /// The element of `y` and the element of `x` whose derivative it is.
    pub at: (usize, usize),
}

/// Compares all derivatives of `y` by `x` with central differences of width `2 * step`, at the
/// point that `feeds` describe; `x` is among them. Both are float or double.
///
/// Adds to the graph, so that a session must learn of it.
///
/// ```
/// use downpour_build::{DType, Evaluate, Graph, Output, Result, Tensor, check_gradients};
/// # struct Square;
/// # impl Evaluate for Square {
/// #     fn evaluate(&mut self, out: &[Output], feeds: &[(Output, Tensor)]) -> Result<Vec<Tensor>> {
/// #         let x = feeds[0].1.as_slice::<f64>().unwrap()[0];
/// #         Ok(vec![Tensor::vector(vec![if out[0].name() == "y:0" { x * x } else { 2.0 * x }])])
/// #     }
/// # }
/// # let mut session = Square;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Double, [1]);
/// let y = x.square().named("y");
/// let found = check_gradients(&mut session, &y, &x, &[(x.clone(), Tensor::vector(vec![3.0]))], 1e-3)?;
/// assert!(found.max_error < 1e-6);
/// # Ok::<(), downpour_build::Status>(())
/// ```
pub fn check_gradients(
    evaluator: &mut dyn Evaluate,
    y: &Output,
    x: &Output,
    feeds: &[(Output, Tensor)],
    step: f64,
) -> Result<GradientCheck> {
    let Some(place) = feeds.iter().position(|(fed, _)| fed == x) else {
        return Err(Status::invalid_argument(format!(
            "'{}' is not among the feeds",
            x.name()
        )));
    };
    let dy = y.graph().placeholder("check/dy", y.dtype(), y.shape());
    let dx = Differentiate {
        ys: std::slice::from_ref(y),
        dys: &[Some(Gradient::Dense(dy.clone()))],
        xs: std::slice::from_ref(x),
        ..Default::default()
    };
    let dx = dx.run()?.into_iter().next().flatten();
    let dx = dx.map(|gradient| gradient.to_dense());
    y.graph().check()?;
    let point = numbers(&feeds[place].1)?;
    let measured = measure(evaluator, y, feeds, place, &point, step)?;
    let like = single(evaluator.evaluate(std::slice::from_ref(y), feeds)?)?;
    let mut worst = GradientCheck {
        max_error: 0.0,
        at: (0, 0),
    };
    for row in 0..like.num_elements() {
        let told = match &dx {
            None => vec![0.0; point.len()],
            Some(dx) => {
                let mut one_hot = vec![0.0; like.num_elements()];
                one_hot[row] = 1.0;
                let mut feeds = feeds.to_vec();
                feeds.push((dy.clone(), tensor(&one_hot, &like)?));
                numbers(&single(
                    evaluator.evaluate(std::slice::from_ref(dx), &feeds)?,
                )?)?
            }
        };
        for (column, derivatives) in measured.iter().enumerate() {
            let (Some(told), Some(seen)) = (told.get(column), derivatives.get(row)) else {
                return Err(Status::internal(
                    "the gradient has another size than its tensor",
                ));
            };
            let error = (told - seen).abs();
            // NaN on one side only must not pass for no difference.
            if error > worst.max_error || (error.is_nan() && !worst.max_error.is_nan()) {
                worst = GradientCheck {
                    max_error: error,
                    at: (row, column),
                };
            }
        }
    }
    Ok(worst)
}

/// For each element of `x`, the derivative of each element of `y`.
fn measure(
    evaluator: &mut dyn Evaluate,
    y: &Output,
    feeds: &[(Output, Tensor)],
    place: usize,
    point: &[f64],
    step: f64,
) -> Result<Vec<Vec<f64>>> {
    let mut feeds = feeds.to_vec();
    let mut out = Vec::with_capacity(point.len());
    for i in 0..point.len() {
        let mut sides = [Vec::new(), Vec::new()];
        for (side, sign) in sides.iter_mut().zip([1.0, -1.0]) {
            let mut moved = point.to_vec();
            moved[i] += sign * step;
            feeds[place].1 = tensor(&moved, &feeds[place].1)?;
            *side = numbers(&single(
                evaluator.evaluate(std::slice::from_ref(y), &feeds)?,
            )?)?;
        }
        let [above, below] = sides;
        let slope = |(a, b): (&f64, &f64)| (a - b) / (2.0 * step);
        out.push(above.iter().zip(&below).map(slope).collect());
    }
    Ok(out)
}

fn single(values: Vec<Tensor>) -> Result<Tensor> {
    let none = || Status::internal("the evaluator gave no value");
    values.into_iter().next().ok_or_else(none)
}

/// The elements of a float or double tensor.
fn numbers(value: &Tensor) -> Result<Vec<f64>> {
    let wrong = || {
        let name = value.dtype().name();
        Status::invalid_argument(format!(
            "gradients are checked of float and double, not {name}"
        ))
    };
    match value.dtype() {
        DType::Float => {
            let values = value.as_slice::<f32>().map_err(|_| wrong())?;
            Ok(values.iter().map(|v| f64::from(*v)).collect())
        }
        DType::Double => Ok(value.as_slice::<f64>().map_err(|_| wrong())?.to_vec()),
        _ => Err(wrong()),
    }
}

/// Numbers in another tensor's type and shape.
fn tensor(values: &[f64], like: &Tensor) -> Result<Tensor> {
    let flat = match like.dtype() {
        DType::Float => Tensor::vector(values.iter().map(|v| *v as f32).collect::<Vec<_>>()),
        _ => Tensor::vector(values.to_vec()),
    };
    flat.reshaped(like.shape().clone())
        .map_err(|e| Status::internal(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Graph;

    /// Evaluates `y = x³`, and as its gradient `factor * x² * dy`.
    struct Cube {
        factor: f64,
        y: Output,
    }

    impl Evaluate for Cube {
        fn evaluate(&mut self, out: &[Output], feeds: &[(Output, Tensor)]) -> Result<Vec<Tensor>> {
            let x = numbers(&feeds[0].1)?;
            let out = match out[0] == self.y {
                true => x.iter().map(|x| x.powi(3)).collect(),
                false => {
                    let dy = numbers(&feeds[1].1)?;
                    let pairs = x.iter().zip(dy);
                    pairs.map(|(x, dy)| self.factor * x * x * dy).collect()
                }
            };
            Ok(vec![Tensor::vector::<f64>(out)])
        }
    }

    fn checked(factor: f64) -> GradientCheck {
        let g = Graph::new();
        let x = g.placeholder("x", DType::Double, [2]);
        let y = &x * &x * &x;
        let feeds = [(x.clone(), Tensor::vector(vec![1.0, 2.0]))];
        let mut evaluator = Cube {
            factor,
            y: y.clone(),
        };
        check_gradients(&mut evaluator, &y, &x, &feeds, 1e-4).unwrap()
    }

    #[test]
    fn a_right_gradient_passes() {
        assert!(checked(3.0).max_error < 1e-6);
    }

    #[test]
    fn a_wrong_gradient_is_found_and_located() {
        let found = checked(3.5);
        assert!((found.max_error - 2.0).abs() < 1e-6, "{found:?}");
        assert_eq!(found.at, (1, 1));
        assert!(checked(f64::NAN).max_error.is_nan());
    }

    #[test]
    fn what_is_not_fed_cannot_be_checked() {
        let g = Graph::new();
        let x = g.placeholder("x", DType::Double, [2]);
        let y = x.square();
        let mut evaluator = Cube {
            factor: 1.0,
            y: y.clone(),
        };
        assert!(check_gradients(&mut evaluator, &y, &x, &[], 1e-4).is_err());
    }
}
