//! What the rows are fed: the same numbers as `conformance/bench/native_data.py` makes, bit for bit, so that
//! both sides compute the same losses. Called once, before anything is measured.

use downpour::{Draws, Tensor};

/// Pixels of a digit.
pub(crate) const PIXELS: usize = 784;

/// So many batches of `batch` images shaped like MNIST's, (images, rows of probabilities): ten
/// prototypes, each pixel half the prototype's and half noise.
pub(crate) fn digits(batches: usize, batch: usize) -> Vec<(Tensor, Tensor)> {
    let mut draws = Draws::new(7);
    let prototypes: Vec<f32> = (0..10 * PIXELS).map(|_| draws.uniform()).collect();
    (0..batches)
        .map(|_| {
            let labels: Vec<usize> = (0..batch).map(|_| below(&mut draws, 10)).collect();
            let mut images = Vec::with_capacity(batch * PIXELS);
            let mut rows = vec![0.0f32; batch * 10];
            for (i, label) in labels.iter().enumerate() {
                rows[i * 10 + label] = 1.0;
                let prototype = &prototypes[label * PIXELS..(label + 1) * PIXELS];
                images.extend(prototype.iter().map(|p| 0.5 * p + 0.5 * draws.uniform()));
            }
            (matrix(images, PIXELS), matrix(rows, 10))
        })
        .collect()
}

/// So many batches of `count` row numbers of a table.
pub(crate) fn row_numbers(batches: usize, count: usize, rows: usize) -> Vec<Tensor> {
    let mut draws = Draws::new(11);
    (0..batches)
        .map(|_| {
            let numbers = (0..count).map(|_| below(&mut draws, rows) as i64);
            Tensor::vector(numbers.collect())
        })
        .collect()
}

/// One of `0 .. limit` by arithmetic that numpy has too.
fn below(draws: &mut Draws, limit: usize) -> usize {
    (((draws.next_u64() >> 32) * limit as u64) >> 32) as usize
}

fn matrix(values: Vec<f32>, width: usize) -> Tensor {
    let rows = values.len() / width;
    Tensor::from_vec(values, [rows, width]).expect("as many values as rows of this width hold")
}

#[cfg(test)]
mod tests {
    use super::{digits, row_numbers};

    /// What `native_data.py` makes too: `python -c "import native_data as d; print(d.digits(2, 3)[1])"`.
    #[test]
    fn both_sides_are_fed_the_same() {
        let (images, labels) = &digits(2, 3)[1];
        let images = images.as_slice::<f32>().unwrap();
        assert_eq!(images[..3], [0.532_176_6, 0.780_499, 0.400_020_12]);
        assert_eq!(labels.as_slice::<f32>().unwrap()[8], 1.0);
        let numbers = &row_numbers(2, 3, 1_000_000)[1];
        assert_eq!(
            numbers.as_slice::<i64>().unwrap(),
            [504_614, 165_192, 551_937]
        );
    }
}
