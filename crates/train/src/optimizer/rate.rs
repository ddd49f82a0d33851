//! Numbers that an optimizer is given: fixed, or computed by every step.

use downpour_build::{Graph, Output, Variable};

/// A learning rate or another number of an optimizer.
///
/// ```
/// use downpour::train::{GradientDescent, Minimize};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(4.0f32)).build();
/// let rate = g.placeholder("rate", downpour::DType::Float, ());
/// let train = GradientDescent::new(&rate).minimize(&(&*w * 2.0), None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// for (now, expected) in [(0.5f32, 3.0), (0.25, 2.5)] {
///     session.step().feed(&rate, now).target(&train).run()?;
///     assert_eq!(session.fetch(&w)?.scalar_value::<f32>()?, expected);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
