//! Normalization over a batch, or over the features of each example.

use crate::literal::Axes;
use crate::{Graph, Init, Operation, Output, Variable};

/// Normalizes each feature over the batch; remembers means for later.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, layers::BatchNorm};
/// let g = Graph::new();
/// let mut norm = BatchNorm::new(&g, "norm", 1);
/// norm.momentum = 0.5;
/// let (y, update) = norm.train(&g.constant([[1.0f32], [3.0]])); // mean 2, variance 1
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// let y = session.step().target(&update).fetch(&y)?;
/// let y = y.as_slice::<f32>()?;
/// assert!((y[0] + 1.0).abs() < 1e-3 && (y[1] - 1.0).abs() < 1e-3, "{y:?}");
/// assert_eq!(session.fetch(&norm.moving_mean)?.as_slice::<f32>()?, [1.0]); // from 0 half way to 2
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// Scale.
    pub gamma: Variable,
    /// Shift.
    pub beta: Variable,
    /// Running mean.
    pub moving_mean: Variable,
    /// Running variance.
    pub moving_variance: Variable,
    /// How slowly the running values change.
    pub momentum: f64,
    /// What keeps the divisor from zero.
    pub epsilon: f64,
}

impl BatchNorm {
    /// A layer for tensors whose last dimension is `features`.
    #[track_caller]
    pub fn new(g: &Graph, name: &str, features: usize) -> BatchNorm {
        g.with_scope(name, || {
            let make = |name: &str, init: Init, trainable: bool| {
                let made = g.variable(name).shape([features]).init(init);
                made.trainable(trainable).build()
            };
            BatchNorm {
                gamma: make("gamma", Init::ones(), true),
                beta: make("beta", Init::zeros(), true),
                moving_mean: make("moving_mean", Init::zeros(), false),
                moving_variance: make("moving_variance", Init::ones(), false),
                momentum: 0.99,
                epsilon: 1e-3,
            }
        })
    }

    /// Normalizes by the batch's own mean and variance. The operation, which a training step must
    /// run, brings the running values up to date.
    #[track_caller]
    pub fn train(&self, x: &Output) -> (Output, Operation) {
        let axes = Axes(Some((0..x.rank().unwrap_or(2) as i32 - 1).collect()));
        let mean = x.mean(axes.clone());
        let variance = x.squared_difference(&x.mean_keep(axes.clone()).stop_gradient());
        let variance = variance.mean(axes);
        let y = self.normalize(x, &mean, &variance);
        let g = x.graph();
        let toward = |moving: &Variable, now: &Output| {
            g.with_colocation(&moving.handle().operation(), || {
                moving.assign_sub(&((moving.value() - now) * (1.0 - self.momentum)))
            })
        };
        let updates = [
            toward(&self.moving_mean, &mean),
            toward(&self.moving_variance, &variance),
        ];
        (y, g.group("update_moments", &updates))
    }

    /// Normalizes by the running values.
    #[track_caller]
    pub fn infer(&self, x: &Output) -> Output {
        self.normalize(x, &self.moving_mean, &self.moving_variance)
    }

    #[track_caller]
    fn normalize(&self, x: &Output, mean: &Output, variance: &Output) -> Output {
        let scale = (variance + self.epsilon).rsqrt() * &*self.gamma;
        x * &scale + (&*self.beta - mean * &scale)
    }
}

/// Normalizes the features of each example.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, layers::LayerNorm};
/// let g = Graph::new();
/// let norm = LayerNorm::new(&g, "norm", 2);
/// let y = norm.apply(&g.constant([[1.0f32, 3.0], [30.0, 10.0]]));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// let y = session.fetch(&y)?;
/// for (y, expected) in y.as_slice::<f32>()?.iter().zip([-1.0, 1.0, 1.0, -1.0]) {
///     assert!((y - expected).abs() < 1e-3, "{y}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// Scale.
    pub gamma: Variable,
    /// Shift.
    pub beta: Variable,
    /// What keeps the divisor from zero.
    pub epsilon: f64,
}

impl LayerNorm {
    /// A layer for tensors whose last dimension is `features`.
    #[track_caller]
    pub fn new(g: &Graph, name: &str, features: usize) -> LayerNorm {
        g.with_scope(name, || LayerNorm {
            gamma: g
                .variable("gamma")
                .shape([features])
                .init(Init::ones())
                .build(),
            beta: g
                .variable("beta")
                .shape([features])
                .init(Init::zeros())
                .build(),
            epsilon: 1e-3,
        })
    }

    /// Applies it over the last dimension.
    #[track_caller]
    pub fn apply(&self, x: &Output) -> Output {
        let mean = x.mean_keep(-1);
        let centred = x - &mean;
        let variance = centred.square().mean_keep(-1);
        centred * (variance + self.epsilon).rsqrt() * &*self.gamma + &*self.beta
    }
}
