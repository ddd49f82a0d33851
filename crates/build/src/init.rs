//! How variables begin: TensorFlow's initializers, formulas and seeds.

use crate::{Graph, Output};
use downpour_graph::Status;
use downpour_tensor::{DType, PartialShape, Tensor};
use std::panic::Location;
use std::sync::Arc;

/// What a variable's first value is.
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
