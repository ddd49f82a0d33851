//! Numbers that an optimizer is given: fixed, or computed by every step.

use downpour_build::{Graph, Output, Variable};

/// A learning rate or another number of an optimizer.
#[derive(Clone, Debug)]
pub struct Rate(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Fixed(f64),
    Computed(Output),
}

impl Rate {
    /// The number as a scalar of a variable's type, where the variable is.
    ///
    /// As in TensorFlow a fixed number passes through single precision whatever the type.
    pub fn for_variable(&self, variable: &Variable) -> Output {
        match &self.0 {
            Kind::Fixed(value) => {
                let graph: &Graph = variable.handle().graph();
                graph.filled(variable.dtype(), (), f64::from(*value as f32))
            }
            Kind::Computed(output) => output.cast(variable.dtype()),
        }
    }
}

impl From<f64> for Rate {
    fn from(value: f64) -> Rate {
        Rate(Kind::Fixed(value))
    }
}

impl From<&Output> for Rate {
    fn from(output: &Output) -> Rate {
        Rate(Kind::Computed(output.clone()))
    }
}

impl From<Output> for Rate {
    fn from(output: Output) -> Rate {
        Rate(Kind::Computed(output))
    }
}

impl From<&Variable> for Rate {
    fn from(variable: &Variable) -> Rate {
        Rate(Kind::Computed(variable.value().clone()))
    }
}
