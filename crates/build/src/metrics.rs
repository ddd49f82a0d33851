//! Metrics over many batches: each keeps sums in variables that no checkpoint holds. Running
//! `update` adds a batch; `value` is the metric so far; `reset` begins anew.

use crate::{DType, Graph, Init, Operation, Output, Variable, stack};

/// A value over many batches.
///
/// ```
/// use downpour::{DType, Graph, Server, ServerConfig, Session, metrics::Metric};
/// let g = Graph::new();
/// let labels = g.placeholder("labels", DType::Int64, [None]);
/// let predictions = g.placeholder("predictions", DType::Int64, [None]);
/// let accuracy = Metric::accuracy("accuracy", &labels, &predictions);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&accuracy.reset)?;
/// for (right, given) in [(vec![1i64, 2], vec![1i64, 2]), (vec![3, 4], vec![3, 5])] {
///     let step = session.step().feed(&labels, right).feed(&predictions, given);
///     step.target(&accuracy.update).run()?;
/// }
/// assert_eq!(session.fetch(&accuracy.value)?.scalar_value::<f32>()?, 0.75); // three of four
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Metric {
    /// The value of all batches so far.
    pub value: Output,
    /// Adds a batch.
    pub update: Operation,
    /// Forgets all batches.
    pub reset: Operation,
}

fn counter(g: &Graph, name: &str, size: &[usize]) -> Variable {
    let counter = g.variable(name).shape(size).init(Init::zeros());
    counter.trainable(false).saved(false).build()
}

impl Metric {
    #[track_caller]
    fn new(g: &Graph, value: Output, updates: &[Operation], variables: &[&Variable]) -> Metric {
        let resets: Vec<Operation> = variables.iter().map(|v| v.initializer().clone()).collect();
        Metric {
            value,
            update: g.group("update", updates),
            reset: g.group("reset", &resets),
        }
    }

    /// The mean of all elements.
    #[track_caller]
    pub fn mean(name: &str, values: &Output) -> Metric {
        let g = values.graph().clone();
        g.with_scope(name, || {
            let (total, count) = (counter(&g, "total", &[]), counter(&g, "count", &[]));
            let values = values.cast(DType::Float);
            let size = values.size_op().cast(DType::Float);
            let updates = [total.assign_add(&values.sum(())), count.assign_add(&size)];
            let value = total.div_no_nan(&count);
            Metric::new(&g, value, &updates, &[&total, &count])
        })
    }

    /// How often predictions equal labels.
    #[track_caller]
    pub fn accuracy(name: &str, labels: &Output, predictions: &Output) -> Metric {
        let labels = labels.cast(predictions.dtype());
        Metric::mean(name, &predictions.equal(&labels).cast(DType::Float))
    }

    /// The area under the curve of true against false positives, by the trapezoidal rule over
    /// this many thresholds, as TensorFlow approximates it.
    #[track_caller]
    pub fn auc(name: &str, labels: &Output, predictions: &Output, thresholds: usize) -> Metric {
        const EPSILON: f64 = 1e-7;
        let g = labels.graph().clone();
        let n = thresholds.max(2);
        g.with_scope(name, || {
            let mut steps: Vec<f32> = vec![-EPSILON as f32];
            steps.extend((1..n - 1).map(|i| i as f32 / (n - 1) as f32));
            steps.push(1.0 + EPSILON as f32);
            let names = [
                "true_positives",
                "false_negatives",
                "true_negatives",
                "false_positives",
            ];
            let counts: Vec<Variable> = names.iter().map(|c| counter(&g, c, &[n])).collect();
            let row = |x: &Output| x.cast(DType::Float).reshape(&[1, -1]);
            let (truth, given) = (row(labels), row(predictions));
            let limits = g.constant(steps).reshape(&[-1, 1]);
            let above = given.greater(&limits).cast(DType::Float);
            let (yes, below) = (truth.clone(), 1.0 - &above);
            let no = 1.0 - &truth;
            let batch = [&above * &yes, &below * &yes, &below * &no, &above * &no];
            let updates: Vec<Operation> = counts
                .iter()
                .zip(&batch)
                .map(|(count, batch)| count.assign_add(&batch.sum(1)))
                .collect();
            let [tp, fn_, tn, fp] = [&counts[0], &counts[1], &counts[2], &counts[3]];
            let recall = (&**tp + EPSILON) / (&**tp + &**fn_ + EPSILON);
            let fallout = &**fp / (&**fp + &**tn + EPSILON);
            let (size, ends) = ((n - 1) as i32, |x: &Output, at: i32, n: i32| {
                x.slice(&[at], &[n])
            });
            let width = ends(&fallout, 0, size) - ends(&fallout, 1, size);
            let height = (ends(&recall, 0, size) + ends(&recall, 1, size)) * 0.5;
            let value = (width * height).sum(());
            Metric::new(&g, value, &updates, &[tp, fn_, tn, fp])
        })
    }

    /// The values of several metrics as one vector.
    ///
    /// # Panics
    /// If there are none.
    pub fn values(metrics: &[Metric]) -> Output {
        let values: Vec<Output> = metrics.iter().map(|m| m.value.clone()).collect();
        stack(&values, 0)
    }
}
