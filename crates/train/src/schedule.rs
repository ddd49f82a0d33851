//! Learning rates that follow the count of steps, computed by every step with TensorFlow's
//! formulas in single precision.

use downpour_build::{DType, Output};

/// How a learning rate changes while training goes on.
///
/// ```
/// use downpour_build::Graph;
/// use downpour_train::{GradientDescent, Schedule, global_step};
/// let g = Graph::new();
/// let step = global_step(&g);
/// let rate = Schedule::exponential(0.1, 1000.0, 0.96).staircase().at(&step);
/// let optimizer = GradientDescent::new(&rate);
/// # g.check().unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    rate: f64,
    steps: f64,
    staircase: bool,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Exponential {
        decay: f64,
    },
    NaturalExp {
        decay: f64,
    },
    InverseTime {
        decay: f64,
    },
    Polynomial {
        end: f64,
        power: f64,
        cycle: bool,
    },
    Cosine {
        alpha: f64,
    },
    CosineRestarts {
        lengthen: f64,
        shrink: f64,
        alpha: f64,
    },
    Piecewise {
        boundaries: Vec<i64>,
        values: Vec<f64>,
    },
}

impl Schedule {
    fn new(rate: f64, steps: f64, kind: Kind) -> Schedule {
        Schedule {
            rate,
            steps,
            staircase: false,
            kind,
        }
    }

    /// `rate · decay^(step / steps)`.
    pub fn exponential(rate: f64, steps: f64, decay: f64) -> Schedule {
        Schedule::new(rate, steps, Kind::Exponential { decay })
    }

    /// `rate · e^(-decay · step / steps)`.
    pub fn natural_exp(rate: f64, steps: f64, decay: f64) -> Schedule {
        Schedule::new(rate, steps, Kind::NaturalExp { decay })
    }

    /// `rate / (1 + decay · step / steps)`.
    pub fn inverse_time(rate: f64, steps: f64, decay: f64) -> Schedule {
        Schedule::new(rate, steps, Kind::InverseTime { decay })
    }

    /// From `rate` to `end` within `steps`, along `(1 - step / steps)^power`.
    pub fn polynomial(rate: f64, steps: f64, end: f64, power: f64) -> Schedule {
        let cycle = false;
        Schedule::new(rate, steps, Kind::Polynomial { end, power, cycle })
    }

    /// From `rate` to `alpha · rate` within `steps`, along half a cosine wave.
    pub fn cosine(rate: f64, steps: f64, alpha: f64) -> Schedule {
        Schedule::new(rate, steps, Kind::Cosine { alpha })
    }

    /// As [`Schedule::cosine`], again and again: each time `lengthen` times as long, from `shrink`
    /// times as high.
    pub fn cosine_restarts(
        rate: f64,
        steps: f64,
        lengthen: f64,
        shrink: f64,
        alpha: f64,
    ) -> Schedule {
        let kind = Kind::CosineRestarts {
            lengthen,
            shrink,
            alpha,
        };
        Schedule::new(rate, steps, kind)
    }

    /// `values[i]` up to and including step `boundaries[i]`, the last value behind. There must be
    /// one value more than there are boundaries.
    pub fn piecewise_constant(boundaries: &[i64], values: &[f64]) -> Schedule {
        let kind = Kind::Piecewise {
            boundaries: boundaries.to_vec(),
            values: values.to_vec(),
        };
        Schedule::new(0.0, 1.0, kind)
    }

    /// Changes every `steps` steps, not at each; for exponential and inverse time.
    pub fn staircase(mut self) -> Schedule {
        self.staircase = true;
        self
    }

    /// Starts over from between, each time longer, when the end is reached; for polynomial.
    pub fn cycle(mut self) -> Schedule {
        if let Kind::Polynomial { cycle, .. } = &mut self.kind {
            *cycle = true;
        }
        self
    }

    /// The rate at a step; usually the global step.
    #[track_caller]
    pub fn at(&self, step: &Output) -> Output {
        let g = step.graph();
        let name = match self.kind {
            Kind::Exponential { .. } | Kind::NaturalExp { .. } => "ExponentialDecay",
            Kind::InverseTime { .. } => "InverseTimeDecay",
            Kind::Polynomial { .. } => "PolynomialDecay",
            Kind::Cosine { .. } => "CosineDecay",
            Kind::CosineRestarts { .. } => "SGDRDecay",
            Kind::Piecewise { .. } => "PiecewiseConstant",
        };
        g.with_scope(name, || self.build(step))
    }

    #[track_caller]
    fn build(&self, step: &Output) -> Output {
        let g = step.graph();
        let number = |value: f64| g.constant(value as f32);
        let rate = number(self.rate);
        let now = step.cast(DType::Float);
        let fraction = || {
            let passed = &now / self.steps;
            match self.staircase {
                true => passed.floor(),
                false => passed,
            }
        };
        match &self.kind {
            Kind::Exponential { decay } => rate * number(*decay).pow(&fraction()),
            Kind::NaturalExp { decay } => {
                let base = (-(*decay as f32)).exp();
                rate * g.constant(base).pow(&fraction())
            }
            Kind::InverseTime { decay } => rate / (number(*decay) * fraction() + 1.0),
            Kind::Polynomial { end, power, cycle } => {
                let steps = number(self.steps);
                let (now, steps) = match cycle {
                    false => (now.minimum(&steps), steps),
                    true => {
                        let rounds = (&now / &steps).ceil();
                        let first = now.equal(&number(0.0));
                        (now, steps * first.select(&number(1.0), &rounds))
                    }
                };
                let left = (1.0 - now / steps).pow(&number(*power));
                (rate - *end) * left + *end
            }
            Kind::Cosine { alpha } => {
                let done = now.minimum(&number(self.steps)) / self.steps;
                rate * faded(&wave(&done), *alpha)
            }
            Kind::CosineRestarts {
                lengthen,
                shrink,
                alpha,
            } => {
                let (round, done) = restarts(&(now / self.steps), *lengthen);
                let height = number(*shrink).pow(&round);
                rate * faded(&(wave(&done) * height), *alpha)
            }
            Kind::Piecewise { boundaries, values } => piecewise(step, boundaries, values),
        }
    }
}

/// From 1 to 0 along half a cosine wave.
#[track_caller]
fn wave(done: &Output) -> Output {
    ((done * std::f64::consts::PI).cos() + 1.0) * 0.5
}

/// Between `alpha` and 1 instead of 0 and 1.
#[track_caller]
fn faded(wave: &Output, alpha: f64) -> Output {
    wave * (1.0 - alpha) + alpha
}

/// Which round this is, and how much of it is done.
#[track_caller]
fn restarts(done: &Output, lengthen: f64) -> (Output, Output) {
    if lengthen == 1.0 {
        let round = done.floor();
        let rest = done - &round;
        return (round, rest);
    }
    let factor = done.graph().constant(lengthen as f32);
    let round = ((1.0 - done * (1.0 - &factor)).log() / factor.log()).floor();
    let length = factor.pow(&round);
    let before = (1.0 - &length) / (1.0 - &factor);
    let rest = (done - before) / length;
    (round, rest)
}

#[track_caller]
fn piecewise(step: &Output, boundaries: &[i64], values: &[f64]) -> Output {
    let g = step.graph();
    if boundaries.len() + 1 != values.len() {
        // As an operation that cannot be made, so that the line is named.
        let wrong = g.constant(vec![0.0f32; boundaries.len() + 1]);
        return wrong + g.constant(vec![0.0f32; values.len()]);
    }
    // As many boundaries as lie behind say which value counts.
    let all = g.constant(values.iter().map(|v| *v as f32).collect::<Vec<_>>());
    let ends = g.constant(boundaries.to_vec());
    let behind = step.cast(DType::Int64).greater(&ends);
    all.gather(&behind.cast(DType::Int32).sum(()), 0)
}
