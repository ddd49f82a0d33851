//! How variables begin: TensorFlow's initializers, formulas and seeds.

use crate::{Graph, Output};
use downpour_graph::Status;
use downpour_tensor::{DType, PartialShape, Tensor};
use std::panic::Location;
use std::sync::Arc;

/// What a variable's first value is.
///
/// ```
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// let g = Graph::new();
/// let bias = g.variable("bias").shape([3]).init(Init::filled(0.5)).build();
/// let weights = g.variable("weights").shape([100, 3]).init(Init::uniform(-0.1, 0.1)).build();
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(bias.initial_value())?.as_slice::<f32>()?, [0.5; 3]);
/// let weights = session.fetch(weights.initial_value())?;
/// assert_eq!(weights.dims(), [100, 3]);
/// assert!(weights.as_slice::<f32>()?.iter().all(|w| w.abs() <= 0.1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Init(Kind);

#[derive(Clone)]
enum Kind {
    Filled(f64),
    Value(Tensor),
    Uniform {
        low: f64,
        high: f64,
        seed: Option<i64>,
    },
    Normal {
        mean: f64,
        deviation: f64,
        seed: Option<i64>,
    },
    TruncatedNormal {
        mean: f64,
        deviation: f64,
        seed: Option<i64>,
    },
    VarianceScaling {
        scale: f64,
        mode: Fan,
        shape: Distribution,
        seed: Option<i64>,
    },
    Function(Make),
}

/// Builds a first value of a type and shape.
type Make = Arc<dyn Fn(&Graph, DType, &PartialShape) -> Output + Send + Sync>;

/// Which of a layer's ends its variance is scaled by.
///
/// ```
/// use downpour::{Distribution, Fan, Graph, Init, Server, ServerConfig, Session};
/// let g = Graph::new();
/// // A layer of 3 inputs and 12 outputs: uniform within the root of 3 / 3, or of 3 / 12.
/// let [by_in, by_out] = [Fan::In, Fan::Out].map(|fan| {
///     let init = Init::variance_scaling(1.0, fan, Distribution::Uniform).seed(1);
///     g.variable("w").shape([3, 12]).init(init).build()
/// });
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// let largest = |values: &[f32]| values.iter().fold(0.0f32, |most, v| most.max(v.abs()));
/// let [by_in, by_out] = session.step().fetch_all([by_in.initial_value(), by_out.initial_value()])?;
/// assert!(largest(by_in.as_slice()?) > 0.5 && largest(by_in.as_slice()?) <= 1.0);
/// assert!(largest(by_out.as_slice()?) <= 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fan {
    /// Its inputs.
    In,
    /// Its outputs.
    Out,
    /// The mean of both.
    Average,
}

/// From which distribution scaled values come.
///
/// ```
/// use downpour::{Distribution, Fan, Graph, Init, Server, ServerConfig, Session};
/// let g = Graph::new();
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// // 1000 values of variance 1; the largest of them.
/// let largest = |kind| {
///     let init = Init::variance_scaling(1.0, Fan::In, kind).seed(1);
///     let values = g.variable("w").shape([1, 1000]).init(init).build();
///     let values = session.fetch(values.initial_value())?;
///     let sizes = values.as_slice::<f32>()?.iter().map(|v| v.abs());
///     Ok::<f32, Box<dyn std::error::Error>>(sizes.fold(0.0, f32::max))
/// };
/// assert!(largest(Distribution::Uniform)? < 1.733);
/// assert!(largest(Distribution::TruncatedNormal)? < 2.275);
/// assert!(largest(Distribution::Normal)? > 2.275);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// Normal without its tails.
    TruncatedNormal,
    /// Normal.
    Normal,
    /// Uniform.
    Uniform,
}

/// Deviation of a standard normal distribution cut at two deviations.
const TRUNCATED_DEVIATION: f64 = 0.879_625_661_034_239_8;

impl Init {
    /// Zeros.
    pub fn zeros() -> Init {
        Init(Kind::Filled(0.0))
    }

    /// Ones.
    pub fn ones() -> Init {
        Init(Kind::Filled(1.0))
    }

    /// One number everywhere.
    pub fn filled(value: f64) -> Init {
        Init(Kind::Filled(value))
    }

    /// This value; the variable takes its shape and type.
    pub fn value(value: impl crate::IntoTensor) -> Init {
        Init(Kind::Value(value.into_tensor()))
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(low: f64, high: f64) -> Init {
        Init(Kind::Uniform {
            low,
            high,
            seed: None,
        })
    }

    /// Normal.
    pub fn normal(mean: f64, deviation: f64) -> Init {
        Init(Kind::Normal {
            mean,
            deviation,
            seed: None,
        })
    }

    /// Normal, without what lies beyond two deviations.
    pub fn truncated_normal(mean: f64, deviation: f64) -> Init {
        Init(Kind::TruncatedNormal {
            mean,
            deviation,
            seed: None,
        })
    }

    /// Scaled by the number of a layer's inputs or outputs.
    pub fn variance_scaling(scale: f64, mode: Fan, shape: Distribution) -> Init {
        Init(Kind::VarianceScaling {
            scale,
            mode,
            shape,
            seed: None,
        })
    }

    /// Glorot's uniform initialization: the usual one of dense layers.
    pub fn glorot_uniform() -> Init {
        Init::variance_scaling(1.0, Fan::Average, Distribution::Uniform)
    }

    /// Glorot's normal initialization.
    pub fn glorot_normal() -> Init {
        Init::variance_scaling(1.0, Fan::Average, Distribution::TruncatedNormal)
    }

    /// He's normal initialization, for rectifiers.
    pub fn he_normal() -> Init {
        Init::variance_scaling(2.0, Fan::In, Distribution::TruncatedNormal)
    }

    /// Whatever a function builds.
    pub fn function(
        make: impl Fn(&Graph, DType, &PartialShape) -> Output + Send + Sync + 'static,
    ) -> Init {
        Init(Kind::Function(Arc::new(make)))
    }

    /// The same with a seed of its own.
    pub fn seed(mut self, value: i64) -> Init {
        match &mut self.0 {
            Kind::Uniform { seed, .. }
            | Kind::Normal { seed, .. }
            | Kind::TruncatedNormal { seed, .. }
            | Kind::VarianceScaling { seed, .. } => *seed = Some(value),
            Kind::Filled(_) | Kind::Value(_) | Kind::Function(_) => {}
        }
        self
    }

    /// The type and shape of a given value.
    pub(crate) fn given(&self) -> Option<(DType, PartialShape)> {
        match &self.0 {
            Kind::Value(value) => Some((value.dtype(), value.shape().into())),
            _ => None,
        }
    }

    /// Builds the first value of a variable, or of the part of one whose shape as a whole is
    /// `full`.
    #[track_caller]
    pub(crate) fn build(
        &self,
        g: &Graph,
        dtype: DType,
        shape: &PartialShape,
        full: &PartialShape,
    ) -> Output {
        match &self.0 {
            Kind::Filled(value) => g.filled(dtype, shape, *value),
            Kind::Value(value) => g.constant(value),
            Kind::Uniform { low, high, seed } => {
                g.random_uniform(dtype, shape, *seed) * (high - low) + *low
            }
            Kind::Normal {
                mean,
                deviation,
                seed,
            } => g.random_normal(dtype, shape, *seed) * *deviation + *mean,
            Kind::TruncatedNormal {
                mean,
                deviation,
                seed,
            } => g.truncated_normal(dtype, shape, *seed) * *deviation + *mean,
            Kind::VarianceScaling {
                scale,
                mode,
                shape: kind,
                seed,
            } => {
                let Some((inputs, outputs)) = fans(full) else {
                    let error = Status::invalid_argument(format!(
                        "variance scaling needs a known shape, not {shape}"
                    ));
                    g.fail(error, Location::caller());
                    return g.invalid();
                };
                let fan = match mode {
                    Fan::In => inputs.max(1.0),
                    Fan::Out => outputs.max(1.0),
                    Fan::Average => ((inputs + outputs) / 2.0).max(1.0),
                };
                let variance = scale / fan;
                match kind {
                    Distribution::TruncatedNormal => {
                        let deviation = variance.sqrt() / TRUNCATED_DEVIATION;
                        g.truncated_normal(dtype, shape, *seed) * deviation
                    }
                    Distribution::Normal => g.random_normal(dtype, shape, *seed) * variance.sqrt(),
                    Distribution::Uniform => {
                        let limit = (3.0 * variance).sqrt();
                        g.random_uniform(dtype, shape, *seed) * (2.0 * limit) - limit
                    }
                }
            }
            Kind::Function(make) => make(g, dtype, shape),
        }
    }
}

/// Inputs and outputs of a layer with weights of this shape.
fn fans(shape: &PartialShape) -> Option<(f64, f64)> {
    let shape = shape.to_shape()?;
    Some(match shape.dims() {
        [] => (1.0, 1.0),
        [n] => (*n as f64, *n as f64),
        [window @ .., inputs, outputs] => {
            let field: f64 = window.iter().map(|d| *d as f64).product();
            (*inputs as f64 * field, *outputs as f64 * field)
        }
    })
}
