//! Uncompressed BMP of 8, 24 or 32 bits, which is what TensorFlow reads.

use super::decode::{Pixels, Room, Samples};
use downpour_graph::{Result, Status};

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// The pixels of a file.
pub(super) fn decode(file: &[u8], wanted: usize, room: Room<'_>) -> Result<Pixels> {
    if file.len() < 32 {
        return invalid(format!(
            "Incomplete bmp content, requires at least 32 bytes to find the header size, width, height, and bpp, got {} bytes",
            file.len()
        ));
    }
    let word = |at: usize| i32::from_le_bytes([file[at], file[at + 1], file[at + 2], file[at + 3]]);
    let (header, width, height) = (word(10), word(18), word(22));
    let depth = i16::from_le_bytes([file[28], file[29]]);
    let given = depth / 8;
    if !matches!(given, 1 | 3 | 4) {
        return invalid(format!(
            "Number of channels inherent in the image must be 1, 3 or 4, was {given}"
        ));
    }
    let given = given as usize;
    let channels = if wanted == 0 { given } else { wanted };
    if width <= 0 {
        return invalid("Width must be positive");
    }
    if height == 0 {
        return invalid("Height must be nonzero");
    }
    if header < 0 {
        return invalid("header size must be nonnegative");
    }
    let (rows, columns) = (i64::from(height).abs(), i64::from(width));
    if rows * columns >= i64::from(i32::MAX / 8) {
        return invalid("Total possible pixel bytes must be less than 2^30");
    }
    let row = (given as i64 * columns + 3) / 4 * 4;
    let spare = file.len() as i64 - i64::from(header) - row * rows;
    if spare != 0 {
        return invalid(format!(
            "Input size should match (header_size + row_size * abs_height) but they differ by {spare}"
        ));
    }
    let (rows, columns, row) = (rows as usize, columns as usize, row as usize);
    room(&[rows, columns, channels])?;
    let mut values = Vec::with_capacity(rows * columns * channels);
    let lines = &file[header as usize..];
    for y in 0..rows {
        // From the bottom up, unless the height is negative.
        let y = if height < 0 { y } else { rows - 1 - y };
        let line = &lines[y * row..(y + 1) * row];
        for pixel in line.chunks_exact(given).take(columns) {
            match (pixel, channels) {
                (&[v], 1) => values.push(v),
                (&[v], 3) => values.extend([v; 3]),
                (&[v], _) => values.extend([v, v, v, 255]),
                (&[b, g, r], 4) => values.extend([r, g, b, 255]),
                (&[b, g, r, ..], 3) => values.extend([r, g, b]),
                (&[b, g, r, a, ..], _) => values.extend([r, g, b, a]),
                _ => values.extend(std::iter::repeat_n(0, channels)),
            }
        }
    }
    Ok(Pixels {
        dims: vec![rows, columns, channels],
        values: Samples::Eight(values),
    })
}
