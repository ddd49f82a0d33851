//! What a table holds: rows of values in one growing store, and keys. Strings are copied out of
//! the tensors they came in, which may be windows on much larger messages.

use crate::strings::printf;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_tensor::{Buffer, DType, ResourceHandle, Shape, Tensor, Variant};
use std::borrow::Cow;

/// Rows of equal length.
#[derive(Clone)]
pub(super) struct Rows {
    dtype: DType,
    width: usize,
    cells: Cells,
    /// Bytes of strings in it.
    text: usize,
}

#[derive(Clone)]
enum Cells {
    /// Bytes, and how many an element has.
    Plain(Vec<u8>, usize),
    Strings(Vec<Bytes>),
    Resources(Vec<ResourceHandle>),
    /// Nothing where no value has been put.
    Variants(Vec<Option<Variant>>),
}

impl Rows {
    /// `count` rows of `width` elements that hold nothing.
    pub(super) fn new(dtype: DType, width: usize, count: usize) -> Rows {
        let n = count.saturating_mul(width);
        let cells = match (dtype, dtype.size()) {
            (_, Some(size)) => Cells::Plain(vec![0; n.saturating_mul(size)], size),
            (DType::String, _) => Cells::Strings(vec![Bytes::new(); n]),
            (DType::Resource, _) => Cells::Resources(vec![ResourceHandle::default(); n]),
            _ => Cells::Variants(vec![None; n]),
        };
        Rows {
            dtype,
            width,
            cells,
            text: 0,
        }
    }

    /// How much memory they take.
    pub(super) fn bytes(&self) -> usize {
        match &self.cells {
            Cells::Plain(cells, _) => cells.len(),
            Cells::Strings(cells) => self.text + size_of_val(&cells[..]),
            Cells::Resources(cells) => size_of_val(&cells[..]),
            Cells::Variants(cells) => size_of_val(&cells[..]),
        }
    }

    /// Puts row `i` of `from` into row `at`, which exists or is the next one.
    pub(super) fn set(&mut self, at: usize, from: &Tensor, i: usize) -> Result<()> {
        let (to, of) = (at * self.width, i * self.width);
        let width = self.width;
        match &mut self.cells {
            Cells::Plain(cells, size) => {
                let bytes = from.buffer().map_or(&[][..], Buffer::as_bytes);
                let row = bytes.get(of * *size..(of + width) * *size);
                let row = row.ok_or_else(outside)?;
                grow(cells, (to + width) * *size, &0);
                cells[to * *size..(to + width) * *size].copy_from_slice(row);
            }
            Cells::Strings(cells) => {
                let row = from.as_strings()?.get(of..of + width).ok_or_else(outside)?;
                grow(cells, to + width, &Bytes::new());
                for (cell, value) in cells[to..].iter_mut().zip(row) {
                    self.text = self.text + value.len() - cell.len();
                    *cell = Bytes::copy_from_slice(value);
                }
            }
            Cells::Resources(cells) => {
                let row = from.as_resources()?.get(of..of + width);
                grow(cells, to + width, &ResourceHandle::default());
                cells[to..to + width].clone_from_slice(row.ok_or_else(outside)?);
            }
            Cells::Variants(cells) => {
                let row = from
                    .as_variants()?
                    .get(of..of + width)
                    .ok_or_else(outside)?;
                grow(cells, to + width, &None);
                for (cell, value) in cells[to..].iter_mut().zip(row) {
                    *cell = Some(value.clone());
                }
            }
        }
        Ok(())
    }

    /// Whether row `at` equals row `i` of `other`; NaN equals nothing.
    pub(super) fn is_same(&self, at: usize, other: &Tensor, i: usize) -> Result<bool> {
        let mine = self.gather(&[Some(at)], other, false, &Shape::from([self.width]))?;
        let Some(theirs) = window(other, i, self.width)? else {
            return Ok(false);
        };
        Ok(match self.dtype {
            DType::Float => mine.as_slice::<f32>()? == theirs.as_slice::<f32>()?,
            DType::Double => mine.as_slice::<f64>()? == theirs.as_slice::<f64>()?,
            DType::String => mine.as_strings()? == theirs.as_strings()?,
            _ => match (mine.buffer(), theirs.buffer()) {
                (Some(a), Some(b)) => a.as_bytes() == b.as_bytes(),
                _ => false,
            },
        })
    }

    /// A tensor of these rows, where missing ones are taken from `defaults`: row for row if `each`
    /// says so, else always its first.
    pub(super) fn gather(
        &self,
        rows: &[Option<usize>],
        defaults: &Tensor,
        each: bool,
        shape: &Shape,
    ) -> Result<Tensor> {
        let width = self.width;
        let default = |i: usize| if each { i * width } else { 0 };
        match &self.cells {
            Cells::Plain(cells, size) => {
                let defaults = defaults.buffer().map_or(&[][..], Buffer::as_bytes);
                let mut out = Tensor::zeros(self.dtype, shape.clone())?;
                let row = width * size;
                if let Some(out) = out.buffer_mut()
                    && row > 0
                {
                    for (i, (to, from)) in out.chunks_exact_mut(row).zip(rows).enumerate() {
                        let from = match from {
                            Some(at) => cells.get(at * row..(at + 1) * row),
                            None => defaults.get(default(i) * size..default(i) * size + row),
                        };
                        to.copy_from_slice(from.ok_or_else(outside)?);
                    }
                }
                Ok(out)
            }
            Cells::Strings(cells) => {
                let out = pick(cells, rows, width, defaults.as_strings()?, default)?;
                Ok(Tensor::strings(out, shape.clone())?)
            }
            Cells::Resources(cells) => {
                let out = pick(cells, rows, width, defaults.as_resources()?, default)?;
                Ok(Tensor::resources(out, shape.clone())?)
            }
            Cells::Variants(cells) => {
                let defaults: Vec<Option<Variant>> =
                    defaults.as_variants()?.iter().cloned().map(Some).collect();
                let out = pick(cells, rows, width, &defaults, default)?;
                variants(out, shape)
            }
        }
    }

    /// A tensor of all of `rows`.
    pub(super) fn tensor(&self, rows: &[usize], shape: &Shape) -> Result<Tensor> {
        let rows: Vec<Option<usize>> = rows.iter().copied().map(Some).collect();
        let nothing = match self.dtype {
            DType::Variant => Tensor::variants(Vec::new(), [0])?,
            dtype => Tensor::zeros(dtype, [0])?,
        };
        self.gather(&rows, &nothing, false, shape)
    }

    /// How an error shows the single element of row `at`.
    pub(super) fn text(&self, at: usize) -> Result<String> {
        Ok(element_text(
            &self.tensor(&[at], &Shape::from([self.width]))?,
        ))
    }
}

fn outside() -> Status {
    Status::internal("a row outside of a table")
}

fn grow<T: Clone>(cells: &mut Vec<T>, length: usize, with: &T) {
    if cells.len() < length {
        cells.resize(length, with.clone());
    }
}

/// Row `i` of `width` elements of a tensor.
fn window(tensor: &Tensor, i: usize, width: usize) -> Result<Option<Tensor>> {
    let count = tensor.num_elements() / width.max(1);
    Ok(tensor.clone().reshaped([count, width])?.rows(i, 1))
}

fn pick<T: Clone>(
    cells: &[T],
    rows: &[Option<usize>],
    width: usize,
    defaults: &[T],
    default: impl Fn(usize) -> usize,
) -> Result<Vec<T>> {
    let mut out = Vec::with_capacity(rows.len() * width);
    for (i, row) in rows.iter().enumerate() {
        let from = match row {
            Some(at) => cells.get(at * width..(at + 1) * width),
            None => defaults.get(default(i)..default(i) + width),
        };
        out.extend_from_slice(from.ok_or_else(outside)?);
    }
    Ok(out)
}

fn variants(cells: Vec<Option<Variant>>, shape: &Shape) -> Result<Tensor> {
    let whole: Option<Vec<Variant>> = cells.into_iter().collect();
    let whole =
        whole.ok_or_else(|| Status::unimplemented("a table with empty variants has no export"))?;
    Ok(Tensor::variants(whole, shape.clone())?)
}

/// How an error shows the first element of a tensor.
pub(super) fn element_text(tensor: &Tensor) -> String {
    let float = |v: f64| {
        let spec = printf::Spec::default();
        printf::float(v, printf::Notation::Shortest, spec)
    };
    let first = |text: Option<String>| text.unwrap_or_default();
    match tensor.dtype() {
        DType::Float => first(
            tensor
                .as_slice::<f32>()
                .ok()
                .and_then(|s| Some(float(f64::from(*s.first()?)))),
        ),
        DType::Double => first(
            tensor
                .as_slice::<f64>()
                .ok()
                .and_then(|s| Some(float(*s.first()?))),
        ),
        DType::Bool => first(
            tensor
                .as_slice::<bool>()
                .ok()
                .and_then(|s| Some(u8::from(*s.first()?).to_string())),
        ),
        DType::Int32 => first(
            tensor
                .as_slice::<i32>()
                .ok()
                .and_then(|s| Some(s.first()?.to_string())),
        ),
        DType::Int64 => first(
            tensor
                .as_slice::<i64>()
                .ok()
                .and_then(|s| Some(s.first()?.to_string())),
        ),
        DType::String => first(
            tensor
                .as_strings()
                .ok()
                .and_then(|s| Some(String::from_utf8_lossy(s.first()?).into_owned())),
        ),
        _ => String::new(),
    }
}

/// The elements of a tensor of keys: integers of any width as i64, or strings.
pub(super) enum Keys<'a> {
    Ints(Cow<'a, [i64]>),
    Strings(&'a [Bytes]),
}

impl<'a> Keys<'a> {
    pub(super) fn of(tensor: &'a Tensor) -> Result<Keys<'a>> {
        Ok(match tensor.dtype() {
            DType::Int64 => Keys::Ints(Cow::Borrowed(tensor.as_slice()?)),
            DType::Int32 => {
                let narrow = tensor.as_slice::<i32>()?.iter();
                Keys::Ints(narrow.map(|&k| k.into()).collect())
            }
            DType::String => Keys::Strings(tensor.as_strings()?),
            other => {
                return Err(Status::internal(format!(
                    "a table has no keys of type {other}"
                )));
            }
        })
    }

    /// How an error shows key `i`.
    pub(super) fn text(&self, i: usize) -> String {
        match self {
            Keys::Ints(keys) => keys.get(i).map(i64::to_string).unwrap_or_default(),
            Keys::Strings(keys) => {
                let key = keys.get(i).map(|k| String::from_utf8_lossy(k).into_owned());
                key.unwrap_or_default()
            }
        }
    }
}

/// Integers that are keys of `dtype`, as a tensor.
pub(super) fn int_keys(dtype: DType, keys: Vec<i64>, shape: impl Into<Shape>) -> Result<Tensor> {
    crate::args::int_tensor(dtype, keys, shape)
}
