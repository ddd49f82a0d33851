//! Rectangular parts of a tensor: TensorFlow's `0,5:-` notation, the shapes they cut out, and the
//! copying of the common part of two of them.

use downpour_graph::{Result, Status};
use downpour_tensor::Shape;
use downpour_wire::proto;
use std::fmt;

/// One dimension of a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The whole dimension, whatever its size.
    Full,
    /// `length` elements from `start`; both not negative.
    Range {
        /// First element.
        start: i64,
        /// Number of elements.
        length: i64,
    },
}

impl Extent {
    /// Start and length, if the extent is not the whole dimension.
    pub fn range(self) -> Option<(i64, i64)> {
        match self {
            Extent::Full => None,
            Extent::Range { start, length } => Some((start, length)),
        }
    }
}

/// A rectangular part of a tensor.
#[derive(Clone, PartialEq, Eq)]
pub struct TensorSlice(Vec<Extent>);

impl TensorSlice {
    /// All of a tensor of this rank.
    pub fn full(rank: usize) -> TensorSlice {
        TensorSlice(vec![Extent::Full; rank])
    }

    /// Parses extents joined by colons: `start,length`, or `-` for a whole dimension.
    pub fn parse(text: &str) -> Result<TensorSlice> {
        let extent = |part: &str| {
            if part == "-" {
                return Ok(Extent::Full);
            }
            let pair = part.split_once(',');
            let pair = pair.and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
            let Some((start, length)) = pair else {
                return Err(Status::invalid_argument(format!(
                    "Expected a pair of numbers or '-' but got '{part}': string = {text}"
                )));
            };
            if start < 0i64 || length <= 0i64 {
                return Err(Status::invalid_argument(format!(
                    "Expected non-negative start and positive length but got start = {start}, \
                     length = {length}: string = {text}"
                )));
            }
            Ok(Extent::Range { start, length })
        };
        let parts = text.split(':').filter(|part| !part.is_empty());
        parts.map(extent).collect::<Result<_>>().map(TensorSlice)
    }

    /// The slice in an index entry; negative numbers are `DATA_LOSS`.
    pub(super) fn from_proto(slice: &proto::TensorSliceProto) -> Result<TensorSlice> {
        let extent = |extent: &proto::tensor_slice_proto::Extent| match extent.has_length_hack {
            None if extent.start == 0 => Ok(Extent::Full),
            Some(proto::tensor_slice_proto::extent::HasLengthHack::Length(length))
                if extent.start >= 0 && length >= 0 =>
            {
                let start = extent.start;
                Ok(Extent::Range { start, length })
            }
            _ => Err(Status::data_loss(format!(
                "Invalid slice in bundle entry: {extent:?}"
            ))),
        };
        let extents = slice.extent.iter().map(extent);
        extents.collect::<Result<_>>().map(TensorSlice)
    }

    pub(super) fn to_proto(&self) -> proto::TensorSliceProto {
        let extent = |extent: &Extent| match extent.range() {
            None => proto::tensor_slice_proto::Extent::default(),
            Some((start, length)) => proto::tensor_slice_proto::Extent {
                start,
                has_length_hack: Some(proto::tensor_slice_proto::extent::HasLengthHack::Length(
                    length,
                )),
            },
        };
        proto::TensorSliceProto {
            extent: self.0.iter().map(extent).collect(),
        }
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// The dimensions.
    pub fn extents(&self) -> &[Extent] {
        &self.0
    }

    /// Whether every extent is the whole dimension by its notation (`-`).
    pub fn is_full(&self) -> bool {
        self.0.iter().all(|extent| *extent == Extent::Full)
    }

    /// The elements of a tensor of shape `shape` that this slice covers.
    pub(super) fn region(&self, shape: &Shape) -> Result<Region> {
        if self.rank() != shape.rank() {
            return Err(Status::internal(format!(
                "Mismatching ranks: shape = {shape}, slice = {self}"
            )));
        }
        let mut region = Region::default();
        for (d, (extent, &size)) in self.0.iter().zip(shape.dims()).enumerate() {
            let (start, length) = match extent.range() {
                None => (0, size),
                Some((start, length)) => {
                    let fits = |n: i64| usize::try_from(n).ok();
                    fits(start)
                        .zip(fits(length))
                        .filter(|(start, length)| {
                            start.checked_add(*length).is_some_and(|end| end <= size)
                        })
                        .ok_or_else(|| {
                            Status::internal(format!(
                                "Extent in dimension {d} out of bounds: shape = {shape}, \
                                 slice = {self}"
                            ))
                        })?
                }
            };
            region.start.push(start);
            region.length.push(length);
        }
        Ok(region)
    }

    /// Whether the slice is all of a tensor of shape `shape`, by notation or by numbers.
    pub fn covers(&self, shape: &Shape) -> bool {
        let mut dims = self.0.iter().zip(shape.dims());
        self.rank() == shape.rank()
            && dims.all(|(extent, &size)| match extent.range() {
                None => true,
                Some((start, length)) => start == 0 && usize::try_from(length) == Ok(size),
            })
    }

    /// The shape that this slice cuts out of `shape`.
    pub fn slice_shape(&self, shape: &Shape) -> Result<Shape> {
        Ok(self.region(shape)?.shape())
    }
}

impl fmt::Display for TensorSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, extent) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(":")?;
            }
            match extent.range() {
                None => f.write_str("-")?,
                Some((start, length)) => write!(f, "{start},{length}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for TensorSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a `shape_and_slice` string says: `"10 4 0,5:-"` is rows 0 to 5 of a 10 by 4 tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeAndSlice {
    /// Shape of the whole tensor.
    pub shape: Shape,
    /// The part of it.
    pub slice: TensorSlice,
    /// Shape of the part.
    pub slice_shape: Shape,
}

impl ShapeAndSlice {
    /// Parses a `shape_and_slice` string that is not empty.
    pub fn parse(text: &str) -> Result<ShapeAndSlice> {
        let Some((dims, slice)) = text.rsplit_once(' ') else {
            return Err(Status::invalid_argument(format!(
                "Need least two elements in shape_and_slice specification: {text}"
            )));
        };
        let dims = dims.split(' ').map(|dim| match dim.parse::<i64>() {
            // TensorFlow aborts on a negative number; it is no dimension either.
            Ok(dim) if dim >= 0 => Ok(dim),
            _ => Err(Status::invalid_argument(format!(
                "Non numerical dimension in shape_and_slice: {text}"
            ))),
        });
        let shape = Shape::checked(dims.collect::<Result<Vec<_>>>()?)?;
        let slice = TensorSlice::parse(slice)?;
        let slice_shape = slice.slice_shape(&shape)?;
        Ok(ShapeAndSlice {
            shape,
            slice,
            slice_shape,
        })
    }
}

/// A slice within a known shape: in bounds by construction.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Region {
    pub(super) start: Vec<usize>,
    pub(super) length: Vec<usize>,
}

impl Region {
    pub(super) fn shape(&self) -> Shape {
        self.length.iter().copied().collect()
    }

    /// Number of elements.
    pub(super) fn volume(&self) -> usize {
        self.length.iter().fold(1, |v, &l| v.saturating_mul(l))
    }

    /// Whether both regions cover a common element.
    pub(super) fn overlaps(&self, other: &Region) -> bool {
        let here = self.start.iter().zip(&self.length);
        let there = other.start.iter().zip(&other.length);
        here.zip(there)
            .all(|((&a, &a_len), (&b, &b_len))| a.max(b) < (a + a_len).min(b + b_len))
    }

    /// What both regions cover, or `None` when that is nothing.
    pub(super) fn intersect(&self, other: &Region) -> Option<Region> {
        let mut common = Region::default();
        let here = self.start.iter().zip(&self.length);
        let there = other.start.iter().zip(&other.length);
        for ((&a, &a_len), (&b, &b_len)) in here.zip(there) {
            let start = a.max(b);
            let end = (a + a_len).min(b + b_len);
            common.start.push(start);
            common
                .length
                .push(end.checked_sub(start).filter(|&n| n > 0)?);
        }
        Some(common)
    }

    /// Calls `run(from, to, count)` for every stretch of elements that `common` (inside both)
    /// occupies without a gap in the arrays of region `self` and region `target`.
    pub(super) fn for_each_run(
        &self,
        target: &Region,
        common: &Region,
        mut run: impl FnMut(usize, usize, usize),
    ) {
        if common.volume() == 0 {
            return;
        }
        let from = self.shape().strides();
        let to = target.shape().strides();
        let offset = |region: &Region, strides: &[usize]| {
            let inside = common.start.iter().zip(&region.start);
            let inside = inside.zip(strides);
            inside.map(|((c, r), s)| (c - r) * s).sum::<usize>()
        };
        let mut at = (offset(self, &from), offset(target, &to));
        // Inner dimensions that are whole in both arrays make one run with the one outside them.
        let whole = |d: &usize| {
            let length = common.length.get(*d);
            length == self.length.get(*d) && length == target.length.get(*d)
        };
        let rank = common.length.len();
        let joined = (1..rank).rev().take_while(whole).count();
        let outer = rank.saturating_sub(joined + 1);
        let inner = common.length.iter().skip(outer).product();
        let mut counter = vec![0; outer];
        loop {
            run(at.0, at.1, inner);
            // Steps the odometer of the outer dimensions.
            let mut d = outer;
            loop {
                let Some(next) = d.checked_sub(1) else {
                    return;
                };
                d = next;
                let dims = counter.get_mut(d).zip(common.length.get(d));
                let steps = from.get(d).zip(to.get(d));
                let (Some((count, &length)), Some((&from, &to))) = (dims, steps) else {
                    return;
                };
                *count += 1;
                at = (at.0 + from, at.1 + to);
                if *count < length {
                    break;
                }
                *count = 0;
                at = (at.0 - from * length, at.1 - to * length);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::Code;

    #[test]
    fn specifications_parse() {
        let spec = ShapeAndSlice::parse("10 4 2,5:-").unwrap();
        assert_eq!(spec.shape, Shape::from([10, 4]));
        assert_eq!(spec.slice.to_string(), "2,5:-");
        assert_eq!(spec.slice_shape, Shape::from([5, 4]));
        assert!(!spec.slice.is_full());
        assert!(TensorSlice::full(3).is_full());
    }

    #[test]
    fn bad_specifications_read_as_in_tensorflow() {
        use Code::{Internal, InvalidArgument};
        let cases = [
            (
                "4",
                InvalidArgument,
                "Need least two elements in shape_and_slice specification: 4",
            ),
            (
                "a 0,1",
                InvalidArgument,
                "Non numerical dimension in shape_and_slice: a 0,1",
            ),
            (
                "-4 0,1",
                InvalidArgument,
                "Non numerical dimension in shape_and_slice: -4 0,1",
            ),
            (
                "4  0,1",
                InvalidArgument,
                "Non numerical dimension in shape_and_slice: 4  0,1",
            ),
            (
                "2 2 junk",
                InvalidArgument,
                "Expected a pair of numbers or '-' but got 'junk': string = junk",
            ),
            (
                "4 -1,2",
                InvalidArgument,
                "Expected non-negative start and positive length but got start = -1, length = 2: \
                 string = -1,2",
            ),
            (
                "4 0,0",
                InvalidArgument,
                "Expected non-negative start and positive length but got start = 0, length = 0: \
                 string = 0,0",
            ),
            (
                "2 2 0,1",
                Internal,
                "Mismatching ranks: shape = [2,2], slice = 0,1",
            ),
            (
                "4 0,5",
                Internal,
                "Extent in dimension 0 out of bounds: shape = [4], slice = 0,5",
            ),
            (
                "4 9223372036854775807,9223372036854775807",
                Internal,
                "Extent in dimension 0 out of bounds: shape = [4], \
                 slice = 9223372036854775807,9223372036854775807",
            ),
        ];
        for (text, code, message) in cases {
            let status = ShapeAndSlice::parse(text).unwrap_err();
            assert_eq!((status.code, status.message.as_str()), (code, message));
        }
    }

    #[test]
    fn runs_copy_the_common_part() {
        let shape = Shape::from([4, 3, 5]);
        let whole: Vec<usize> = (0..60).collect();
        let source = TensorSlice::parse("1,3:0,2:-")
            .unwrap()
            .region(&shape)
            .unwrap();
        let target = TensorSlice::parse("0,3:1,2:2,3")
            .unwrap()
            .region(&shape)
            .unwrap();
        let cut = |region: &Region| {
            let all = TensorSlice::full(3).region(&shape).unwrap();
            let mut out = vec![usize::MAX; region.volume()];
            all.for_each_run(region, region, |from, to, n| {
                out[to..to + n].copy_from_slice(&whole[from..from + n]);
            });
            out
        };
        let from = cut(&source);
        let expected = cut(&target);
        assert_eq!(expected[..3], [7, 8, 9]);
        let common = source.intersect(&target).unwrap();
        assert_eq!(common.volume(), 2 * 3);
        let mut out = vec![usize::MAX; target.volume()];
        source.for_each_run(&target, &common, |a, b, n| {
            out[b..b + n].copy_from_slice(&from[a..a + n]);
        });
        let hits = out.iter().zip(&expected).filter(|(a, b)| a == b).count();
        assert_eq!(hits, 6);
        let scalar = Region::default();
        let mut runs = 0;
        scalar.for_each_run(&scalar, &scalar, |_, _, n| runs += n);
        assert_eq!(runs, 1);
    }

    #[test]
    fn disjoint_regions_have_nothing_in_common() {
        let shape = Shape::from([4, 4]);
        let region = |text| TensorSlice::parse(text).unwrap().region(&shape).unwrap();
        assert!(region("0,2:-").intersect(&region("2,2:-")).is_none());
        assert!(region("0,2:0,1").intersect(&region("1,2:1,3")).is_none());
        assert_eq!(
            region("0,2:-").intersect(&region("-:3,1")),
            Some(region("0,2:3,1"))
        );
    }
}
