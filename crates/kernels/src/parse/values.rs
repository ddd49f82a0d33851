//! The values of one feature as they are gathered: floats, integers or strings, which share the
//! memory of the example they stand in.

use super::invalid;
use bytes::Bytes;
use downpour_formats::example::FeatureKind;
use downpour_formats::example::fast::Sink;
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Shape, Tensor};

/// Values of one of the three types an example can hold.
#[derive(Debug, Clone)]
pub(crate) enum Values {
    Floats(Vec<f32>),
    Ints(Vec<i64>),
    Strings(Vec<Bytes>),
}

impl Values {
    /// No values yet.
    pub(super) fn new(dtype: DType) -> Result<Values> {
        Ok(match dtype {
            DType::Float => Values::Floats(Vec::new()),
            DType::Int64 => Values::Ints(Vec::new()),
            DType::String => Values::Strings(Vec::new()),
            other => return invalid(format!("Invalid config dtype: {other}")),
        })
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Values::Floats(v) => v.len(),
            Values::Ints(v) => v.len(),
            Values::Strings(v) => v.len(),
        }
    }

    pub(super) fn kind(&self) -> FeatureKind {
        match self {
            Values::Floats(_) => FeatureKind::Float,
            Values::Ints(_) => FeatureKind::Int64,
            Values::Strings(_) => FeatureKind::Bytes,
        }
    }

    /// A place for the values of a feature of the message `source`.
    pub(super) fn sink<'v>(&'v mut self, source: &'v Bytes) -> FeatureSink<'v> {
        FeatureSink {
            values: self,
            source,
        }
    }

    /// Appends what another part of the batch gathered.
    pub(super) fn append(&mut self, other: Values) {
        match (self, other) {
            (Values::Floats(a), Values::Floats(b)) => join(a, b),
            (Values::Ints(a), Values::Ints(b)) => join(a, b),
            (Values::Strings(a), Values::Strings(b)) => join(a, b),
            _ => debug_assert!(false, "parts of a batch have the same types"),
        }
    }

    /// Appends the elements of a tensor of the same type.
    pub(super) fn extend(&mut self, tensor: &Tensor) -> Result<()> {
        match self {
            Values::Floats(v) => v.extend_from_slice(tensor.as_slice()?),
            Values::Ints(v) => v.extend_from_slice(tensor.as_slice()?),
            Values::Strings(v) => v.extend_from_slice(tensor.as_strings()?),
        }
        Ok(())
    }

    /// Appends some values of another column of the same type.
    pub(super) fn copy(&mut self, other: &Values, range: std::ops::Range<usize>) {
        match (self, other) {
            (Values::Floats(a), Values::Floats(b)) => a.extend_from_slice(&b[range]),
            (Values::Ints(a), Values::Ints(b)) => a.extend_from_slice(&b[range]),
            (Values::Strings(a), Values::Strings(b)) => a.extend_from_slice(&b[range]),
            _ => debug_assert!(false, "a column has one type"),
        }
    }

    /// The values as rows of `width` from the runs that end at `ends`, each filled up with the one
    /// element of `filler`, or with zeros. The caller has checked that so much may be made.
    pub(super) fn padded(
        &self,
        ends: impl Iterator<Item = usize> + Clone,
        width: usize,
        filler: Option<&Tensor>,
    ) -> Result<Values> {
        fn rows<T: Clone>(
            from: &[T],
            ends: impl Iterator<Item = usize> + Clone,
            width: usize,
            filler: T,
        ) -> Vec<T> {
            let mut out = Vec::with_capacity(ends.clone().count() * width);
            let mut start = 0;
            for (i, end) in ends.enumerate() {
                out.extend_from_slice(&from[start..end]);
                out.resize((i + 1) * width, filler.clone());
                start = end;
            }
            out
        }
        Ok(match self {
            Values::Floats(v) => {
                let filler = filler.map(|t| t.scalar_value()).transpose()?;
                Values::Floats(rows(v, ends, width, filler.unwrap_or_default()))
            }
            Values::Ints(v) => {
                let filler = filler.map(|t| t.scalar_value()).transpose()?;
                Values::Ints(rows(v, ends, width, filler.unwrap_or_default()))
            }
            Values::Strings(v) => {
                let filler = match filler.map(|t| t.as_strings()).transpose()? {
                    Some([filler, ..]) => filler.clone(),
                    _ => Bytes::new(),
                };
                Values::Strings(rows(v, ends, width, filler))
            }
        })
    }

    /// The values as a tensor.
    pub(super) fn tensor(self, shape: impl Into<Shape>) -> Result<Tensor> {
        Ok(match self {
            Values::Floats(v) => Tensor::from_vec(v, shape)?,
            Values::Ints(v) => Tensor::from_vec(v, shape)?,
            Values::Strings(v) => Tensor::strings(v, shape)?,
        })
    }

    /// The values as a vector.
    pub(super) fn vector(self) -> Result<Tensor> {
        let n = self.len();
        self.tensor([n])
    }
}

fn join<T>(a: &mut Vec<T>, mut b: Vec<T>) {
    if a.is_empty() {
        *a = b;
    } else {
        a.append(&mut b);
    }
}

/// Puts the values of a feature into [`Values`] of the same type.
pub(super) struct FeatureSink<'v> {
    values: &'v mut Values,
    source: &'v Bytes,
}

impl FeatureSink<'_> {
    pub(super) fn len(&self) -> usize {
        self.values.len()
    }
}

impl<'v> Sink<'v> for FeatureSink<'v> {
    fn float(&mut self, value: f32) {
        if let Values::Floats(v) = self.values {
            v.push(value);
        }
    }

    fn packed(&mut self, values: &[[u8; 4]]) {
        if let Values::Floats(v) = self.values {
            v.extend(values.iter().map(|x| f32::from_le_bytes(*x)));
        }
    }

    fn int(&mut self, value: i64) {
        if let Values::Ints(v) = self.values {
            v.push(value);
        }
    }

    fn bytes(&mut self, value: &'v [u8]) {
        if let Values::Strings(v) = self.values {
            // A long string stays where it is; a short one must not keep a whole example alive.
            const SHARED: usize = 128;
            v.push(if value.len() >= SHARED {
                self.source.slice_ref(value)
            } else {
                Bytes::copy_from_slice(value)
            });
        }
    }
}

/// The type of a feature's list.
pub(super) fn type_of(kind: FeatureKind) -> DType {
    match kind {
        FeatureKind::Bytes => DType::String,
        FeatureKind::Float => DType::Float,
        FeatureKind::Int64 => DType::Int64,
    }
}

/// Row splits of a ragged tensor: 0 and then `ends`.
pub(super) fn splits(dtype: DType, ends: impl Iterator<Item = usize>) -> Result<Tensor> {
    let all = std::iter::once(0).chain(ends);
    Ok(match dtype {
        DType::Int32 => {
            let narrow = all.map(|e| {
                i32::try_from(e)
                    .map_err(|_| Status::invalid_argument(format!("{e} does not fit into int32")))
            });
            Tensor::vector(narrow.collect::<Result<Vec<i32>>>()?)
        }
        _ => Tensor::vector(all.map(|e| e as i64).collect()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_filled_up() {
        let values = Values::Ints(vec![1, 2, 3]);
        let filler = Tensor::vector(vec![9i64]);
        let padded = values.padded([2, 2, 3].into_iter(), 2, Some(&filler));
        let t = padded.unwrap().tensor([3, 2]).unwrap();
        assert_eq!(t.as_slice::<i64>().unwrap(), [1, 2, 9, 9, 3, 9]);
        let words = Values::Strings(vec![Bytes::from_static(b"a")]);
        let t = words.padded([0, 1].into_iter(), 1, None).unwrap();
        assert_eq!(
            t.vector().unwrap().as_strings().unwrap(),
            [&b""[..], &b"a"[..]]
        );
        assert!(splits(DType::Int32, [1 << 40].into_iter()).is_err());
    }
}
