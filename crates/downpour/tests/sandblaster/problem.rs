//! Logistic regression with a penalty: convex, with one minimum, and easily computed in one piece.

use downpour::train::sandblaster::{Plan, Sandblaster};
use downpour::{DType, Draws, Graph, Init, Output, Result, Run, Tensor};
use std::time::Duration;

/// Features of an example; the parameters are as many weights and an offset.
pub(crate) const WIDTH: usize = 12;
pub(crate) const EXAMPLES: usize = 480;
/// Not a divisor of the examples: portions differ in size.
pub(crate) const PORTIONS: usize = 17;
pub(crate) const PENALTY: f64 = 1.0;

/// Examples, the same in every process.
pub(crate) struct Data {
    pub(crate) x: Vec<f64>,
    pub(crate) y: Vec<f64>,
}

impl Data {
    pub(crate) fn new() -> Data {
        let mut draws = Draws::new(2012);
        let mut number = || f64::from(draws.uniform()) * 2.0 - 1.0;
        let truth: Vec<f64> = (0..WIDTH).map(|_| 3.0 * number()).collect();
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for _ in 0..EXAMPLES {
            let row: Vec<f64> = (0..WIDTH).map(|i| number() * (1 + i % 4) as f64).collect();
            let score: f64 = row.iter().zip(&truth).map(|(x, w)| x * w).sum();
            y.push(f64::from(score + 2.0 * number() > 0.3));
            x.extend(row);
        }
        Data { x, y }
    }

    pub(crate) fn portion(&self, i: usize) -> std::ops::Range<usize> {
        i * EXAMPLES / PORTIONS..(i + 1) * EXAMPLES / PORTIONS
    }

    /// Objective and gradient, in one piece.
    pub(crate) fn whole(&self, parameters: &[f64]) -> (f64, Vec<f64>) {
        let (w, b) = (&parameters[..WIDTH], parameters[WIDTH]);
        let square: f64 = parameters.iter().map(|p| p * p).sum();
        let mut value = 0.5 * PENALTY * square;
        let mut gradient: Vec<f64> = parameters.iter().map(|p| PENALTY * p).collect();
        for (row, y) in self.x.chunks(WIDTH).zip(&self.y) {
            let z: f64 = row.iter().zip(w).map(|(x, w)| x * w).sum::<f64>() + b;
            value += z.max(0.0) - z * y + (-z.abs()).exp().ln_1p();
            let slope = 1.0 / (1.0 + (-z).exp()) - y;
            for (g, x) in gradient.iter_mut().zip(row) {
                *g += slope * x;
            }
            gradient[WIDTH] += slope;
        }
        (value, gradient)
    }
}

/// The problem as one process builds it.
pub(crate) struct Model {
    pub(crate) x: Output,
    y: Output,
    weights: Output,
    offset: Output,
    pub(crate) plan: Plan,
    pub(crate) data: Data,
}

impl Model {
    /// Weights on one ps, the offset on another; the rest on a worker.
    pub(crate) fn new(worker: usize) -> Model {
        let g = Graph::new();
        let zeros = |name: &str, task: usize, dims: &[usize]| {
            g.with_device(&format!("/job:ps/task:{task}"), || {
                let made = g.variable(name).shape(dims).dtype(DType::Double);
                made.init(Init::zeros()).build()
            })
        };
        let (w, b) = (zeros("weights", 0, &[WIDTH, 1]), zeros("offset", 1, &[]));
        g.with_device(&format!("/job:worker/task:{worker}"), || {
            let x = g.placeholder("x", DType::Double, [None, Some(WIDTH)]);
            let y = g.placeholder("y", DType::Double, [None]);
            let z = (x.matmul(&w) + &*b).reshape(&[-1]);
            let loss = z.softplus() - &z * &y;
            let plan = Sandblaster::new(PORTIONS)
                .l2(PENALTY)
                .iterations(200)
                .small_gradient(1e-6)
                .small_decrease(0.0)
                .lease(Duration::from_millis(500))
                .build(&loss.sum(()));
            Model {
                x,
                y,
                weights: w.value().clone(),
                offset: b.value().clone(),
                plan: plan.unwrap(),
                data: Data::new(),
            }
        })
    }

    pub(crate) fn feed(&self, portion: usize, run: &mut Run) -> Result<()> {
        let rows = self.data.portion(portion);
        let x = self.data.x[rows.start * WIDTH..rows.end * WIDTH].to_vec();
        let x = Tensor::from_vec(x, [rows.len(), WIDTH]).unwrap();
        run.feed(&self.x, x)
            .feed(&self.y, self.data.y[rows].to_vec());
        Ok(())
    }

    /// The parameters in one piece.
    pub(crate) fn parameters(&self, session: &downpour::Session) -> Result<Vec<f64>> {
        let [w, b] = session.step().fetch_all([&self.weights, &self.offset])?;
        Ok([w, b]
            .iter()
            .flat_map(|t| t.as_slice::<f64>().unwrap().to_vec())
            .collect())
    }

    /// The batch's gradient in one piece.
    pub(crate) fn gradient(&self, session: &downpour::Session) -> Result<Vec<f64>> {
        let mut found = Vec::new();
        for (_, gradient) in self.plan.gradients() {
            found.extend_from_slice(session.fetch(&gradient)?.as_slice::<f64>().unwrap());
        }
        Ok(found)
    }
}

pub(crate) fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(1.0f64, |m, e| m.max(e.abs()));
    for (a, b) in found.iter().zip(expected) {
        assert!(
            (a - b).abs() <= tolerance * scale,
            "{what}: {found:?} instead of {expected:?}"
        );
    }
}
