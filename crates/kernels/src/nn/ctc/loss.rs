//! `CTCLoss`: the negative log-probability of the labels, by forward and backward sums, and its
//! gradient.

use super::{Inputs, floats, invalid, log_add};
use crate::args::ints;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, parallel_ranges};
use downpour_tensor::Tensor;

#[derive(Clone, Copy)]
struct Options {
    collapse: bool,
    merge: bool,
    ignore_longer: bool,
}

pub(super) fn build(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let options = Options {
        collapse: attrs.bool("preprocess_collapse_repeated")?,
        merge: attrs.bool("ctc_merge_repeated")?,
        ignore_longer: attrs.bool("ignore_longer_outputs_than_inputs")?,
    };
    Built::costly(move |ctx| run(ctx, options))
}

fn run(ctx: &mut OpContext<'_>, o: Options) -> Result<()> {
    let (inputs, places, values, lengths) =
        (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
    let (dtype, shape) = (inputs.dtype(), inputs.shape().clone());
    let inputs = Inputs::new(inputs)?;
    if lengths.rank() != 1 {
        return invalid("sequence_length is not a vector");
    }
    let &[rows, columns] = places.dims() else {
        return invalid("labels_indices is not a matrix");
    };
    if columns < 2 {
        return invalid(format!(
            "labels_indices second dimension must be >= 1. Received {columns}"
        ));
    }
    if values.rank() != 1 {
        return invalid("labels_values is not a vector");
    }
    if inputs.time == 0 {
        return invalid("Max time or first dimension of input cannot be 0.");
    }
    let batch = inputs.batch;
    if lengths.num_elements() != batch {
        return invalid(format!(
            "len(sequence_length) != batch_size.  len(sequence_length):  {} batch_size: {batch}",
            lengths.num_elements()
        ));
    }
    if rows != values.num_elements() {
        return invalid(format!(
            "labels_indices and labels_values must contain the same number of rows, but saw shapes: {} vs. {}",
            places.shape(),
            values.shape()
        ));
    }
    if batch == 0 {
        return invalid("batch_size must not be 0");
    }
    let labels = labels(places, columns, values, batch)?;
    let lengths = ints(lengths)?;
    for (b, &n) in lengths.iter().enumerate() {
        if n > inputs.time as i64 {
            return invalid(format!("sequence_length({b}) <= {}", inputs.time));
        }
    }
    if let Some(b) = lengths.iter().position(|n| *n < 0) {
        return invalid(format!("seq_len({b}) < 0"));
    }
    let mut work: Vec<Entry> = Vec::with_capacity(batch);
    for (b, label) in labels.iter().enumerate() {
        work.push(Entry::new(
            b,
            label,
            lengths[b] as usize,
            inputs.classes,
            o,
        )?);
    }
    parallel_ranges(&mut work, 1, 1, |_, entries| {
        entries.iter_mut().for_each(|e| e.compute(&inputs, o.merge));
    });
    let mut gradient = vec![0.0; inputs.values.len()];
    for (b, entry) in work.iter().enumerate() {
        for (t, row) in entry.gradient.chunks(inputs.classes.max(1)).enumerate() {
            let start = (t * batch + b) * inputs.classes;
            gradient[start..start + row.len()].copy_from_slice(row);
        }
    }
    let losses = work.iter().map(|e| e.loss).collect();
    ctx.set_output(0, floats(dtype, losses, [batch])?);
    ctx.set_output(1, floats(dtype, gradient, shape)?);
    Ok(())
}

/// The labels of each batch entry, of a sparse tensor in order.
fn labels(places: &Tensor, columns: usize, values: &Tensor, batch: usize) -> Result<Vec<Vec<i64>>> {
    let rows: Vec<&[i64]> = places.as_slice::<i64>()?.chunks(columns).collect();
    let width = rows
        .iter()
        .map(|r| r[1].saturating_add(1))
        .max()
        .unwrap_or(0)
        .max(0);
    let limits = [batch as i64, width];
    let mut out = vec![Vec::new(); batch];
    for (i, (row, value)) in rows.iter().zip(ints(values)?).enumerate() {
        let bad = |what: &str| {
            let list: Vec<String> = row.iter().map(i64::to_string).collect();
            invalid(format!(
                "label SparseTensor is not valid: indices[{i}] = [{}] {what}",
                list.join(",")
            ))
        };
        if columns != 2 {
            return Err(Status::invalid_argument(format!(
                "Index rank ({columns}) and shape rank (2) do not match"
            )));
        }
        if row.iter().zip(limits).any(|(at, n)| !(0..n).contains(at)) {
            return bad(&format!(
                "is out of bounds: need 0 <= index < [{batch},{width}]"
            ));
        }
        if i > 0 && rows[i - 1] == *row {
            return bad("is repeated");
        }
        if i > 0 && rows[i - 1] > *row {
            return bad(
                "is out of order. Many sparse ops require sorted indices.\n    Use `tf.sparse.reorder` to create a correctly ordered copy.\n\n",
            );
        }
        out[row[0] as usize].push(value);
    }
    Ok(out)
}

/// One sequence: what to find and what was found.
struct Entry {
    batch: usize,
    time: usize,
    /// Labels with blanks around and between them; `None` where nothing is computed.
    path: Option<Vec<usize>>,
    loss: f64,
    gradient: Vec<f64>,
}

impl Entry {
    fn new(batch: usize, label: &[i64], time: usize, classes: usize, o: Options) -> Result<Entry> {
        let join = |l: &[i64]| l.iter().map(i64::to_string).collect::<Vec<_>>().join(",");
        if label.is_empty() {
            return invalid(format!("Labels length is zero in batch {batch}"));
        }
        let blank = classes as i64 - 1;
        let (mut kept, mut ended) = (Vec::new(), false);
        for (i, &l) in label.iter().enumerate() {
            if i > 0 && o.collapse && l == label[i - 1] {
                continue;
            }
            if l >= blank {
                ended = true;
            } else if ended {
                return invalid(format!(
                    "Saw a non-null label (index >= num_classes - 1) following a null label, batch: {batch} num_classes: {classes} labels: {} labels seen so far: {}",
                    join(label),
                    join(&kept)
                ));
            } else {
                kept.push(l);
            }
        }
        if kept.iter().any(|l| *l < 0) {
            return invalid(format!(
                "All labels must be nonnegative integers, batch: {batch} labels: {}",
                join(&kept)
            ));
        }
        if !o.ignore_longer && label.len() > time {
            return invalid(format!(
                "Not enough time for target transition sequence (required: {}, available: {time}){batch}You can turn this error into a warning by using the flag ignore_longer_outputs_than_inputs",
                label.len()
            ));
        }
        let blank = blank as usize;
        let with_blanks = kept
            .iter()
            .flat_map(|&l| [blank, l as usize])
            .chain([blank]);
        let path = (time > 0 && label.len() <= time).then(|| with_blanks.collect());
        Ok(Entry {
            batch,
            time,
            path,
            loss: 0.0,
            gradient: Vec::new(),
        })
    }

    fn compute(&mut self, inputs: &Inputs, merge: bool) {
        let Some(path) = &self.path else { return };
        let (time, classes, steps) = (self.time, inputs.classes, path.len());
        // Logarithms of the probabilities.
        let mut y = Vec::with_capacity(time * classes);
        for t in 0..time {
            let row = inputs.at(t, self.batch);
            let top = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|v| (v - top).exp()).sum();
            y.extend(row.iter().map(|v| v - top - sum.ln()));
        }
        let blank = classes - 1;
        // Whether a path may go from place u to place u + 2.
        let skips = |u: usize| path[u + 2] != blank && !(merge && path[u] == path[u + 2]);
        let stays = |u: usize| merge || path[u] == blank;
        let none = f64::NEG_INFINITY;
        let reachable = |u: usize, t: usize| u + 2 * (time - t) >= steps && u < 2 * (t + 1);
        let mut alpha = vec![none; time * steps];
        let mut beta = vec![none; time * steps];
        for (u, a) in alpha.iter_mut().take(2.min(steps)).enumerate() {
            *a = y[path[u]];
        }
        for t in 1..time {
            for u in (0..steps).filter(|&u| reachable(u, t)) {
                let before = &alpha[(t - 1) * steps..];
                let mut sum = if stays(u) { before[u] } else { none };
                if u > 0 {
                    sum = log_add(sum, before[u - 1]);
                }
                if u > 1 && skips(u - 2) {
                    sum = log_add(sum, before[u - 2]);
                }
                alpha[t * steps + u] = sum + y[t * classes + path[u]];
            }
        }
        for u in steps.saturating_sub(2)..steps {
            beta[(time - 1) * steps + u] = 0.0;
        }
        if steps == 1 && time > 1 {
            // Nothing but blanks: TensorFlow starts two places of the last step, and the second,
            // which such a path lacks, is that of the step before. Its losses show it.
            beta[time - 2] = 0.0;
        }
        for t in (0..time - 1).rev() {
            for u in (0..steps).filter(|&u| reachable(u, t)) {
                let after = |u: usize| beta[(t + 1) * steps + u] + y[(t + 1) * classes + path[u]];
                let mut sum = if stays(u) { after(u) } else { none };
                if u + 1 < steps {
                    sum = log_add(sum, after(u + 1));
                }
                if u + 2 < steps && path[u] != blank && skips(u) {
                    sum = log_add(sum, after(u + 2));
                }
                beta[t * steps + u] = log_add(beta[t * steps + u], sum);
            }
        }
        let total = (0..steps).fold(none, |s, u| log_add(s, alpha[u] + beta[u]));
        self.loss = -total;
        self.gradient = y.iter().map(|v| v.exp()).collect();
        if total == none {
            return;
        }
        for t in 0..time {
            let mut found = vec![none; classes];
            for (u, &label) in path.iter().enumerate() {
                let through = alpha[t * steps + u] + beta[t * steps + u];
                found[label] = log_add(found[label], through);
            }
            let row = &mut self.gradient[t * classes..(t + 1) * classes];
            for (g, f) in row.iter_mut().zip(found) {
                *g -= (f - total).exp();
            }
        }
    }
}
