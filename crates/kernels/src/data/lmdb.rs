//! `LMDBDataset`: keys and values of LMDB databases, one after the other.

use super::dataset::{Dataset, Got, Next, Place, Recipe, Spec, Stream};
use super::define::{self, now};
use super::files::filenames;
use super::state::{Saving, State};
use crate::io::file::path;
use crate::io::lmdb::Records;
use crate::io::storage;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Device, OpContext, Registry};
use downpour_tensor::{DType, PartialShape, Tensor};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in ["LMDBDataset", "ExperimentalLMDBDataset"] {
        r.add(op, |_| define::dataset(lmdb));
    }
}

fn lmdb(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let files = filenames(ctx, 0)?;
    let spec = Spec {
        types: vec![DType::String; 2],
        shapes: vec![PartialShape::from_dims([]), PartialShape::from_dims([])],
    };
    Dataset::new("LMDB", spec, vec![], Files(files.into()))
}

struct Files(Arc<[Bytes]>);

impl Recipe for Files {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(FilesStream {
            files: self.0.clone(),
            device: place.device.clone(),
            at: 0,
            current: None,
        }))
    }
}

struct FilesStream {
    files: Arc<[Bytes]>,
    device: Arc<Device>,
    at: usize,
    current: Option<Records>,
}

impl FilesStream {
    fn record(&mut self) -> Got {
        loop {
            let Some(name) = self.files.get(self.at) else {
                return Ok(None);
            };
            let records = match &mut self.current {
                Some(records) => records,
                None => self
                    .current
                    .insert(Records::open(storage(&self.device), path(name)?)?),
            };
            if let Some((key, value)) = records.next()? {
                return Ok(Some(vec![Tensor::string(key), Tensor::string(value)]));
            }
            self.current = None;
            self.at += 1;
        }
    }
}

impl Stream for FilesStream {
    fn save(&mut self) -> Saving<'_> {
        let refused: Result<Option<State>> = Err(Status::unimplemented(
            "Checkpointing is currently not supported for LMDBDataset.",
        ));
        Box::pin(std::future::ready(refused))
    }

    fn next(&mut self) -> Next<'_> {
        now(self.record())
    }
}
