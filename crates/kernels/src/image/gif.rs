//! GIF into frames of one size: what a frame leaves uncovered stays as in the frame before.

use super::decode::{Pixels, Room, Samples};
use downpour_graph::{Result, Status};
use gif::{ColorOutput, DecodeOptions, MemoryLimit};
use std::io::Cursor;

/// A frame and where it lies.
struct Frame {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    colors: Vec<u8>,
    indices: Vec<u8>,
}

/// All frames, or the first only; either way on a canvas that holds every frame.
pub(super) fn decode(file: &[u8], all: bool, room: Room<'_>) -> Result<Pixels> {
    let bad = |why: String| {
        Status::invalid_argument(format!("Invalid GIF data (size {}), {why}", file.len()))
    };
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    // Sizes are checked below, frame by frame, against what a tensor may have.
    options.set_memory_limit(MemoryLimit::Unlimited);
    let mut decoder = options
        .read_info(Cursor::new(file))
        .map_err(|e| bad(format!("failed to open gif file: {e}")))?;
    let (mut width, mut height) = (0, 0);
    let mut frames: Vec<Frame> = Vec::new();
    loop {
        let mut frame = match decoder.next_frame_info() {
            Ok(Some(next)) => Frame {
                left: next.left.into(),
                top: next.top.into(),
                width: next.width.into(),
                height: next.height.into(),
                colors: next.palette.clone().unwrap_or_default(),
                indices: Vec::new(),
            },
            Ok(None) => break,
            // What came before a damaged frame is kept.
            Err(_) if !frames.is_empty() => break,
            Err(e) => return Err(bad(format!("failed to slurp gif file: {e}"))),
        };
        let (w, h) = (frame.width.max(width), frame.height.max(height));
        room(&[frames.len() + 1, h, w, 3])?;
        if frame.colors.is_empty() {
            frame.colors = decoder.global_palette().unwrap_or_default().to_vec();
        }
        frame.indices = vec![0; decoder.buffer_size()];
        match decoder.read_into_buffer(&mut frame.indices) {
            Ok(()) => {}
            Err(_) if !frames.is_empty() => break,
            Err(e) => return Err(bad(format!("failed to slurp gif file: {e}"))),
        }
        (width, height) = (w, h);
        frames.push(frame);
    }
    if frames.is_empty() {
        return Err(bad("gif file does not contain any image".to_owned()));
    }
    frames.truncate(if all { frames.len() } else { 1 });
    let size = width * height * 3;
    let mut values: Vec<u8> = Vec::with_capacity(frames.len() * size);
    for (k, frame) in frames.iter().enumerate() {
        if frame.colors.is_empty() {
            return Err(bad(format!("missing color map for frame {k}")));
        }
        let start = k * size;
        match k {
            0 => values.resize(size, 0),
            _ => values.extend_from_within(start - size..start),
        }
        frame
            .draw(&mut values[start..], width, height)
            .map_err(bad)?;
    }
    Ok(Pixels {
        dims: vec![frames.len(), height, width, 3],
        values: Samples::Eight(values),
    })
}

impl Frame {
    /// Draws the part of the frame that lies on the canvas.
    fn draw(&self, canvas: &mut [u8], width: usize, height: usize) -> Result<(), String> {
        let colors = self.colors.as_chunks::<3>().0;
        let rows = self.indices.chunks_exact(self.width.max(1));
        for (y, row) in rows.enumerate().take(height.saturating_sub(self.top)) {
            let columns = width.saturating_sub(self.left);
            for (x, index) in row.iter().enumerate().take(columns) {
                let Some(color) = colors.get(usize::from(*index)) else {
                    return Err(format!(
                        "found color index {index} outside of color map range {}",
                        colors.len()
                    ));
                };
                let at = ((self.top + y) * width + self.left + x) * 3;
                canvas[at..at + 3].copy_from_slice(color);
            }
        }
        Ok(())
    }
}
