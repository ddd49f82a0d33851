//! `RebatchDatasetV2`: cuts batches into rows and makes batches of other sizes of them.

use super::batch::batch_elements;
use super::dataset::{Dataset, Element, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, batched};
use downpour_graph::{Result, Status};
use downpour_runtime::{Device, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("RebatchDatasetV2", |_| define::dataset(rebatch));
}

fn rebatch(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let sizes = ctx.input(1)?;
    if sizes.rank() > 1 {
        return Err(Status::invalid_argument(
            "`batch_sizes` must be a scalar or a vector.",
        ));
    }
    let sizes = crate::args::ints(sizes)?;
    let drop_rest = define::boolean(ctx, 2, "drop_remainder")?;
    let mut checked = Vec::with_capacity(sizes.len());
    for size in sizes {
        checked.push(usize::try_from(size).map_err(|_| {
            Status::invalid_argument(format!("batch_sizes must all be positive, but got {size}"))
        })?);
    }
    if checked.iter().all(|s| *s == 0) {
        return Err(Status::invalid_argument("batch_sizes must not be empty"));
    }
    let first = (drop_rest && checked.windows(2).all(|w| w[0] == w[1])).then(|| checked[0]);
    let shapes = input.spec().shapes.iter();
    let spec = Spec {
        types: input.spec().types.clone(),
        shapes: shapes
            .map(|s| batched(first, &define::unbatched(s)))
            .collect(),
    };
    let recipe = Rebatch {
        input: input.clone(),
        sizes: checked.into(),
        drop_rest,
    };
    Dataset::new(("Rebatch", "RebatchV2"), spec, vec![input], recipe)
}

struct Rebatch {
    input: Dataset,
    sizes: Arc<[usize]>,
    drop_rest: bool,
}

impl Recipe for Rebatch {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(RebatchStream {
            input: self.input.iterate(place)?,
            device: place.device.clone(),
            sizes: self.sizes.clone(),
            drop_rest: self.drop_rest,
            turn: 0,
            rows: VecDeque::new(),
            shapes: None,
        }))
    }
}

struct RebatchStream {
    input: Iter,
    device: Arc<Device>,
    sizes: Arc<[usize]>,
    drop_rest: bool,
    /// Whose size the next batch has.
    turn: usize,
    rows: VecDeque<Element>,
    /// Types and shapes of rows, for batches that have none.
    shapes: Option<Vec<(DType, Shape)>>,
}

impl Stream for RebatchStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let size = self.sizes[self.turn % self.sizes.len()];
            while self.rows.len() < size || self.shapes.is_none() {
                let Some(batch) = self.input.next().await? else {
                    break;
                };
                self.cut(&batch)?;
            }
            if (self.rows.is_empty() && (size > 0 || self.ended().await?))
                || (self.drop_rest && self.rows.len() < size)
            {
                return Ok(None);
            }
            self.turn = (self.turn + 1) % self.sizes.len();
            let taken: Vec<Element> = self.rows.drain(..size.min(self.rows.len())).collect();
            if taken.is_empty() {
                return self.empty().map(Some);
            }
            batch_elements(&self.device, &taken).map(Some)
        })
    }
}

impl RebatchStream {
    fn cut(&mut self, batch: &[Tensor]) -> Result<()> {
        if batch.iter().any(|t| t.rank() == 0) {
            return Err(Status::invalid_argument(
                "Input element must have a non-scalar value in each component.",
            ));
        }
        let rows = batch
            .first()
            .and_then(|t| t.dims().first().copied())
            .unwrap_or(0);
        if batch.iter().any(|t| t.dims().first() != Some(&rows)) {
            return Err(Status::invalid_argument(
                "Input element must have the same batch size in each component.",
            ));
        }
        let inner = |t: &Tensor| {
            (
                t.dtype(),
                Shape::from(t.dims().get(1..).unwrap_or_default()),
            )
        };
        self.shapes
            .get_or_insert_with(|| batch.iter().map(inner).collect());
        for i in 0..rows {
            let row = batch.iter().map(|t| super::sources::row(t, i));
            self.rows.push_back(row.collect::<Result<_>>()?);
        }
        Ok(())
    }

    /// Whether nothing is left; what comes is kept.
    async fn ended(&mut self) -> Result<bool> {
        while self.rows.is_empty() {
            match self.input.next().await? {
                Some(batch) => self.cut(&batch)?,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// A batch of no rows.
    fn empty(&self) -> Result<Element> {
        let shapes = self.shapes.iter().flatten();
        let tensors = shapes.map(|(dtype, inner)| {
            let shape = super::batch::with_rows(0, inner.dims())?;
            Ok(Tensor::zeros(*dtype, shape)?)
        });
        tensors.collect()
    }
}
