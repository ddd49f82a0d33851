//! Which stored slices make up a wanted region. Slices that overlap are refused: which of them
//! holds the value nobody can say.

use super::slice::{Region, TensorSlice};
use downpour_graph::{Result, Status};
use downpour_tensor::Shape;
use std::collections::BTreeSet;

/// Comparisons spent on finding overlaps; real tensors need a few thousand.
const OVERLAP_BUDGET: usize = 10_000_000;

/// A stored slice that holds something wanted.
pub(super) struct Piece<'a> {
    /// Place in the list of stored slices.
    pub(super) index: usize,
    pub(super) slice: &'a TensorSlice,
    /// What the slice covers.
    pub(super) region: Region,
    /// What of that is wanted.
    pub(super) common: Region,
}

/// The slices of a tensor of shape `shape` that make up `wanted`; `None` if they leave a gap.
pub(super) fn cover<'a>(
    slices: &'a [TensorSlice],
    shape: &Shape,
    wanted: &Region,
) -> Result<Option<Vec<Piece<'a>>>> {
    let regions = slices.iter().map(|s| s.region(shape));
    let regions = regions.collect::<Result<Vec<_>>>()?;
    if let Some((i, j)) = overlap(&regions)? {
        let slice = |i: usize| slices.get(i).map(ToString::to_string);
        return Err(Status::internal(format!(
            "Overlapping slices: existing slice = {}, new slice = {}",
            slice(i).unwrap_or_default(),
            slice(j).unwrap_or_default()
        )));
    }
    let mut covered = 0usize;
    let mut pieces = Vec::new();
    for (index, (slice, region)) in slices.iter().zip(regions).enumerate() {
        if let Some(common) = region.intersect(wanted) {
            covered = covered.saturating_add(common.volume());
            pieces.push(Piece {
                index,
                slice,
                region,
                common,
            });
        }
    }
    Ok((covered == wanted.volume()).then_some(pieces))
}

/// Two regions that have elements in common, if there are any. Sweeps along the dimension that
/// separates most of them, so that the usual partitioning by rows is linear.
fn overlap(regions: &[Region]) -> Result<Option<(usize, usize)>> {
    let rank = regions.first().map_or(0, |r| r.start.len());
    let distinct = |d: usize| {
        let starts = regions.iter().filter_map(|r| r.start.get(d));
        starts.collect::<BTreeSet<_>>().len()
    };
    let Some(axis) = (0..rank).max_by_key(|&d| distinct(d)) else {
        // Scalars: any two are the same element.
        return Ok((regions.len() > 1).then_some((0, 1)));
    };
    let start = |r: &Region| r.start.get(axis).copied().unwrap_or(0);
    let mut order: Vec<(usize, &Region)> = regions.iter().enumerate().collect();
    order.sort_by_key(|(_, r)| start(r));
    let mut budget = OVERLAP_BUDGET;
    let mut rest = order.as_slice();
    while let Some(((i, region), later)) = rest.split_first() {
        let end = start(region) + region.length.get(axis).copied().unwrap_or(0);
        for (j, other) in later {
            if start(other) >= end {
                break;
            }
            budget = budget.checked_sub(1).ok_or_else(|| {
                Status::resource_exhausted(format!(
                    "a tensor stored in {} entangled slices is not read",
                    regions.len()
                ))
            })?;
            if region.overlaps(other) {
                return Ok(Some((*i.min(j), *i.max(j))));
            }
        }
        rest = later;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::Code;

    fn covered(slices: &[&str], shape: &Shape, wanted: &str) -> Result<Option<usize>> {
        let slices: Vec<_> = slices
            .iter()
            .map(|s| TensorSlice::parse(s).unwrap())
            .collect();
        let wanted = TensorSlice::parse(wanted).unwrap().region(shape)?;
        Ok(cover(&slices, shape, &wanted)?.map(|pieces| pieces.len()))
    }

    #[test]
    fn gaps_and_overlaps_are_seen() {
        let shape = Shape::from([4, 4]);
        let quarters = ["0,2:0,2", "0,2:2,2", "2,2:0,2", "2,2:2,2"];
        assert_eq!(covered(&quarters, &shape, "-:-").unwrap(), Some(4));
        assert_eq!(covered(&quarters, &shape, "-:1,2").unwrap(), Some(4));
        assert_eq!(covered(&quarters, &shape, "3,1:-").unwrap(), Some(2));
        assert_eq!(covered(&quarters[1..], &shape, "-:-").unwrap(), None);
        assert_eq!(covered(&quarters[1..], &shape, "2,2:-").unwrap(), Some(2));
        let status = covered(&["0,2:-", "3,1:-", "1,2:-"], &shape, "-:-").unwrap_err();
        assert_eq!(status.code, Code::Internal);
        assert_eq!(
            status.message,
            "Overlapping slices: existing slice = 0,2:-, new slice = 1,2:-"
        );
    }

    #[test]
    fn ten_thousand_row_slices_are_quick_in_either_direction() {
        let parts = 10_000;
        let shape = Shape::from([parts, parts]);
        let rows: Vec<String> = (0..parts).map(|i| format!("{i},1:-")).collect();
        let columns: Vec<String> = (0..parts).map(|i| format!("-:{i},1")).collect();
        for slices in [rows, columns] {
            let slices: Vec<&str> = slices.iter().map(String::as_str).collect();
            assert_eq!(covered(&slices, &shape, "-:-").unwrap(), Some(parts));
        }
    }

    #[test]
    fn hostile_tangles_run_out_of_budget() {
        // Every pair overlaps in both dimensions' ranges but no two have an element in common.
        let n = 20_000usize;
        let shape = Shape::from([1 << 20, 2, n]);
        let slices: Vec<String> = (0..n / 2)
            .flat_map(|i| [format!("0,1000:0,1:{i},1"), format!("0,1000:1,1:{i},1")])
            .collect();
        let slices: Vec<&str> = slices.iter().map(String::as_str).collect();
        assert_eq!(covered(&slices, &shape, "0,1:0,1:0,1").unwrap(), Some(1));
        let wide = Shape::from([3, 3, 3, 3, 3, 3, 3, 3, 3, 3]);
        let mut slices = Vec::new();
        for i in 0..3usize.pow(10) {
            let digit = |d: u32| i / 3usize.pow(d) % 3;
            let text: Vec<String> = (0..10).map(|d| format!("{},1", digit(d))).collect();
            slices.push(text.join(":"));
        }
        let slices: Vec<&str> = slices.iter().map(String::as_str).collect();
        let status = covered(&slices, &wide, "-:-:-:-:-:-:-:-:-:-").unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted);
    }
}
