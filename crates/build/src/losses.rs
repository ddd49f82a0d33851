//! Losses: one number to make small. Each takes the mean over the batch, as TensorFlow's do when
//! all weights are one; [`weighted`] takes weights.

use crate::{DType, Output};

/// Mean of squared differences.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// let labels = g.constant([1.0f32, 2.0]);
/// let predictions = g.constant([2.0f32, 4.0]);
/// let loss = losses::mean_squared_error(&labels, &predictions);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&loss)?.scalar_value::<f32>()?, 2.5); // (1 + 4) / 2
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn mean_squared_error(labels: &Output, predictions: &Output) -> Output {
    predictions.squared_difference(labels).mean(())
}

/// Mean of absolute differences.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// let labels = g.constant([1.0f32, 2.0]);
/// let predictions = g.constant([2.0f32, 4.0]);
/// let loss = losses::absolute_difference(&labels, &predictions);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&loss)?.scalar_value::<f32>()?, 1.5); // (1 + 2) / 2
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn absolute_difference(labels: &Output, predictions: &Output) -> Output {
    (predictions - labels).abs().mean(())
}

/// Mean cross entropy of logits with rows of probabilities.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// let labels = g.constant([[0.5f32, 0.5]]);
/// let logits = g.constant([[1.0f32, 1.0]]);
/// let loss = losses::softmax_cross_entropy(&labels, &logits);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// let loss = session.fetch(&loss)?.scalar_value::<f32>()?;
/// assert!((loss - 2f32.ln()).abs() < 1e-5, "{loss}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn softmax_cross_entropy(labels: &Output, logits: &Output) -> Output {
    logits.softmax_cross_entropy(labels).mean(())
}

/// Mean cross entropy of logits with the numbers of classes.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// let labels = g.constant([1i64]);
/// let logits = g.constant([[0.0f32, 2f32.ln(), 0.0]]);
/// let loss = losses::sparse_softmax_cross_entropy(&labels, &logits);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// // Class 1 has probability 2 / (1 + 2 + 1).
/// let loss = session.fetch(&loss)?.scalar_value::<f32>()?;
/// assert!((loss - 2f32.ln()).abs() < 1e-5, "{loss}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn sparse_softmax_cross_entropy(labels: &Output, logits: &Output) -> Output {
    logits.sparse_softmax_cross_entropy(labels).mean(())
}

/// Cross entropy of each logit with its own probability, computed so that nothing overflows.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// let labels = g.constant([1.0f32, 1.0, 1.0]);
/// let logits = g.constant([0.0f32, 1000.0, -1000.0]);
/// let each = losses::sigmoid_cross_entropy_elements(&labels, &logits);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// let each = session.fetch(&each)?;
/// let each = each.as_slice::<f32>()?;
/// assert!((each[0] - 2f32.ln()).abs() < 1e-5, "{each:?}");
/// assert_eq!(each[1..], [0.0, 1000.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn sigmoid_cross_entropy_elements(labels: &Output, logits: &Output) -> Output {
    logits.relu() - logits * labels + (-logits.abs()).exp().log1p()
}

/// Mean of [`sigmoid_cross_entropy_elements`].
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// let labels = g.constant([1.0f32, 1.0]);
/// let logits = g.constant([0.0f32, 100.0]);
/// let loss = losses::sigmoid_cross_entropy(&labels, &logits);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// // ln 2 where nothing is known, 0 where the answer is sure and right.
/// let loss = session.fetch(&loss)?.scalar_value::<f32>()?;
/// assert!((loss - 2f32.ln() / 2.0).abs() < 1e-5, "{loss}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn sigmoid_cross_entropy(labels: &Output, logits: &Output) -> Output {
    sigmoid_cross_entropy_elements(labels, logits).mean(())
}

/// Mean of `max(0, 1 - ±logit)`, labels being 0 or 1.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// let labels = g.constant([1.0f32, 0.0]);
/// let logits = g.constant([2.0f32, 0.5]);
/// let loss = losses::hinge(&labels, &logits);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&loss)?.scalar_value::<f32>()?, 0.75); // (0 + 1.5) / 2
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn hinge(labels: &Output, logits: &Output) -> Output {
    let signs = labels * 2.0 - 1.0;
    (1.0 - signs * logits).relu().mean(())
}

/// Squared below `delta`, linear above; the mean.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// let labels = g.constant([0.0f32, 0.0]);
/// let predictions = g.constant([0.5f32, 3.0]);
/// let loss = losses::huber(&labels, &predictions, 1.0);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&loss)?.scalar_value::<f32>()?, 1.3125); // (0.125 + 2.5) / 2
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn huber(labels: &Output, predictions: &Output, delta: f64) -> Output {
    let error = (predictions - labels).abs();
    let near = error.minimum(&error.scalar_like(delta));
    let far = &error - &near;
    (near.square() * 0.5 + far * delta).mean(())
}

/// Mean of `-label ln(p + ε) - (1 - label) ln(1 - p + ε)`.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// let labels = g.constant([1.0f32, 0.0]);
/// let predictions = g.constant([0.5f32, 0.5]);
/// let loss = losses::log_loss(&labels, &predictions);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// let loss = session.fetch(&loss)?.scalar_value::<f32>()?;
/// assert!((loss - 2f32.ln()).abs() < 1e-5, "{loss}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn log_loss(labels: &Output, predictions: &Output) -> Output {
    const EPSILON: f64 = 1e-7;
    let yes = labels * (predictions + EPSILON).log();
    let no = (1.0 - labels) * (1.0 - predictions + EPSILON).log();
    -(yes + no).mean(())
}

/// The sum of weighted losses, divided by how many weights are not zero.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// let each = g.constant([1.0f32, 2.0, 6.0]);
/// let loss = losses::weighted(&each, &g.constant([1.0f32, 0.0, 0.5]));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&loss)?.scalar_value::<f32>()?, 2.0); // (1 + 3) / 2
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn weighted(losses: &Output, weights: &Output) -> Output {
    let weighted = losses * weights;
    let present = weights.not_equal(&weights.zeros_like());
    let ones = losses.ones_like() * present.cast(losses.dtype());
    weighted.sum(()).div_no_nan(&ones.sum(()))
}

/// Half the sum of squares of variables, times a factor.
///
/// ```
/// use downpour::{Graph, Init, Server, ServerConfig, Session, losses};
/// let g = Graph::new();
/// g.variable("w").init(Init::value([3.0f32, 4.0])).build();
/// let loss = losses::l2_regularizer(&g.trainable_variables(), 0.5).unwrap();
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// assert_eq!(session.fetch(&loss)?.scalar_value::<f32>()?, 6.25); // (9 + 16) / 2 · 0.5
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn l2_regularizer(variables: &[crate::Variable], factor: f64) -> Option<Output> {
    let parts: Vec<Output> = variables
        .iter()
        .filter(|v| matches!(v.dtype(), DType::Float | DType::Double))
        .map(|v| v.l2_loss())
        .collect();
    crate::ops::add_n(&parts).map(|sum| sum * factor)
}
