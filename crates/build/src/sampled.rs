//! Losses over very many classes that look only at the right ones and at a sample of the others,
//! with TensorFlow's formulas: a step costs as much as the sample is large, and gradients reach
//! only the rows that were looked at.

use crate::losses::sigmoid_cross_entropy_elements;
use crate::{AttrList, AttrValue, DType, Lookup, Output, Table, concat, embedding_lookup};
use downpour_graph::Status;
use std::panic::Location;

/// Classes that a loss compares the right ones with, the same for all examples of a batch.
///
/// ```
/// use downpour::{Candidates, Graph, Init, Server, ServerConfig, Session, sampled_softmax_loss};
/// let g = Graph::new();
/// let weights = g.variable("weights").shape([4, 2]).init(Init::zeros()).build();
/// let biases = g.variable("biases").shape([4]).init(Init::zeros()).build();
/// let candidates = Candidates::all(&g.constant([[3i64]]), 4);
/// let inputs = g.constant([[1.0f32, 2.0]]);
/// let loss = sampled_softmax_loss(&weights, &biases, &inputs, &candidates).mean(());
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// // Four classes, each as likely as the others.
/// let loss = session.fetch(&loss)?.scalar_value::<f32>()?;
/// assert!((loss - 4f32.ln()).abs() < 1e-5, "{loss}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Candidates {
    /// `[examples, right ones of each]`, int64.
    right: Output,
    /// `[sample]`, int64.
    sample: Output,
    /// How often each is expected in a sample: `[examples, right ones of each]` and `[sample]`.
    expected: (Output, Output),
    size: usize,
}

impl Candidates {
    /// `size` different classes out of `classes`, low numbers more often, as if they were words
    /// sorted by how frequent they are. `right` are the classes of each example, `[examples, n]`.
    #[track_caller]
    pub fn log_uniform(right: &Output, size: usize, classes: usize) -> Candidates {
        let range = [("range_max", AttrValue::Int(classes as i64))];
        Candidates::draw("LogUniformCandidateSampler", right, size, range)
    }

    /// `size` different classes out of `classes`, each as likely as the others.
    #[track_caller]
    pub fn uniform(right: &Output, size: usize, classes: usize) -> Candidates {
        let range = [("range_max", AttrValue::Int(classes as i64))];
        Candidates::draw("UniformCandidateSampler", right, size, range)
    }

    /// `size` different classes, each as likely as its number in `counts` to the power of
    /// `distortion`.
    #[track_caller]
    pub fn unigram(right: &Output, size: usize, counts: &[f32], distortion: f32) -> Candidates {
        let attrs = [
            ("range_max", AttrValue::Int(counts.len() as i64)),
            ("distortion", AttrValue::Float(distortion)),
            (
                "unigrams",
                AttrValue::List(AttrList::Float(counts.to_vec())),
            ),
        ];
        Candidates::draw("FixedUnigramCandidateSampler", right, size, attrs)
    }

    /// Every class, which makes a loss exact, and slow.
    #[track_caller]
    pub fn all(right: &Output, classes: usize) -> Candidates {
        Candidates::draw("AllCandidateSampler", right, classes, [])
    }

    #[track_caller]
    fn draw<const N: usize>(
        sampler: &str,
        right: &Output,
        size: usize,
        attrs: [(&str, AttrValue); N],
    ) -> Candidates {
        let g = right.graph();
        let right = right.cast(DType::Int64);
        let (seed, seed2) = g.seeds(None);
        let op = g.op(sampler).input(&right).attr("unique", true);
        let op = op.attr("num_true", width(&right) as i64);
        let op = op.attr("num_sampled", size as i64);
        let op = op.attr("seed", seed).attr("seed2", seed2);
        let op = attrs
            .into_iter()
            .fold(op, |op, (name, value)| op.attr(name, value));
        match op.outputs().as_slice() {
            [sample, of_right, of_sample] => Candidates {
                sample: sample.clone(),
                expected: (of_right.clone(), of_sample.clone()),
                right,
                size,
            },
            // The graph has kept why it could not be made.
            _ => Candidates {
                sample: right.clone(),
                expected: (right.clone(), right.clone()),
                right,
                size,
            },
        }
    }

    /// Logits of the right classes and of the sample, corrected by how likely each was to be
    /// there.
    #[track_caller]
    fn logits<W, B>(&self, (weights, biases): (&W, &B), inputs: &Output) -> (Output, Output)
    where
        W: Table + ?Sized,
        B: Table + ?Sized,
    {
        let (size, each) = (self.size as i32, width(&self.right) as i32);
        let ids = concat(&[self.sample.clone(), self.right.reshape(&[-1])], 0);
        let rows = embedding_lookup(weights, &ids, Lookup::Div);
        let biases = embedding_lookup(biases, &ids, Lookup::Div).reshape(&[-1]);
        let sampled = inputs.matmul_as(&rows.slice(&[0, 0], &[size, -1]), false, true);
        let sampled = sampled + biases.slice(&[0], &[size]);
        let of_right = rows.slice(&[size, 0], &[-1, -1]);
        let of_right = of_right.reshape(&[-1, each, width(inputs) as i32]);
        let right = (inputs.expand_dims(1) * of_right).sum(2);
        let right = right + biases.slice(&[size], &[-1]).reshape(&[-1, each]);
        let (of_right, of_sampled) = (&self.expected.0, &self.expected.1);
        (right - of_right.log(), sampled - of_sampled.log())
    }

    /// 1 where a class of the sample is one of the example's right ones.
    #[track_caller]
    fn accidents(&self) -> Output {
        let same = self.right.expand_dims(2).equal(&self.sample);
        same.any(1).cast(DType::Float)
    }
}

/// Length of the last dimension.
#[track_caller]
fn width(x: &Output) -> usize {
    let known = x.shape().dims().and_then(|d| d.last().copied().flatten());
    known.unwrap_or_else(|| {
        let error = Status::invalid_argument(format!(
            "'{}' has shape {}: sampled losses need two dimensions, the second of known length",
            x.name(),
            x.shape()
        ));
        x.graph().fail(error, Location::caller());
        1
    })
}

/// Noise-contrastive estimation: for each of `inputs`, how badly its right classes are told from
/// the sample. `weights` is `[classes, features]`, `biases` `[classes]`; each may be in parts.
///
/// ```
/// use downpour_build::{Candidates, DType, Graph, nce_loss};
/// let g = Graph::new();
/// let weights = g.variable("weights").shape([10_000, 64]).build();
/// let biases = g.variable("biases").shape([10_000]).build();
/// let words = g.placeholder("words", DType::Float, [None, Some(64)]);
/// let next = g.placeholder("next", DType::Int64, [None, Some(1)]);
/// let candidates = Candidates::log_uniform(&next, 16, 10_000);
/// let loss = nce_loss(&weights, &biases, &words, &candidates).mean(());
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn nce_loss<W, B>(weights: &W, biases: &B, inputs: &Output, candidates: &Candidates) -> Output
where
    W: Table + ?Sized,
    B: Table + ?Sized,
{
    let g = inputs.graph();
    g.with_scope("nce_loss", || {
        let (right, sampled) = candidates.logits((weights, biases), inputs);
        let share = right.ones_like() * (1.0 / width(&right) as f64);
        let labels = concat(&[share, sampled.zeros_like()], 1);
        sigmoid_cross_entropy_elements(&labels, &concat(&[right, sampled], 1)).sum(1)
    })
}

/// Softmax cross entropy as if there were only the right classes and the sample. Right ones that
/// happen to be in the sample do not count as wrong. With [`Candidates::all`] it is exact.
///
/// ```
/// use downpour_build::{Candidates, DType, Graph, sampled_softmax_loss};
/// let g = Graph::new();
/// let weights = g.variable("weights").shape([10_000, 64]).build();
/// let biases = g.variable("biases").shape([10_000]).build();
/// let words = g.placeholder("words", DType::Float, [None, Some(64)]);
/// let next = g.placeholder("next", DType::Int64, [None, Some(1)]);
/// let candidates = Candidates::log_uniform(&next, 16, 10_000);
/// let loss = sampled_softmax_loss(&weights, &biases, &words, &candidates).mean(());
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn sampled_softmax_loss<W, B>(
    weights: &W,
    biases: &B,
    inputs: &Output,
    candidates: &Candidates,
) -> Output
where
    W: Table + ?Sized,
    B: Table + ?Sized,
{
    let g = inputs.graph();
    g.with_scope("sampled_softmax_loss", || {
        let (right, sampled) = candidates.logits((weights, biases), inputs);
        let sampled = sampled + candidates.accidents() * f64::from(f32::MIN);
        let share = right.ones_like() * (1.0 / width(&right) as f64);
        let labels = concat(&[share, sampled.zeros_like()], 1).stop_gradient();
        concat(&[right, sampled], 1).softmax_cross_entropy(&labels)
    })
}
