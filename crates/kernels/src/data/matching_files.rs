//! `MatchingFilesDataset`: the names of files that match patterns.

use super::dataset::{Dataset, Element, Next, Place, Recipe, Spec, Stream};
use super::define::{self, now};
use crate::io::file::path;
use crate::io::storage;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Device, OpContext, Registry};
use downpour_tensor::{DType, PartialShape, Tensor};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in ["MatchingFilesDataset", "ExperimentalMatchingFilesDataset"] {
        r.add(op, |_| define::dataset(matching_files));
    }
}

fn matching_files(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let patterns = ctx.input(0)?;
    let spec = Spec {
        types: vec![DType::String],
        shapes: vec![PartialShape::from_dims([])],
    };
    let recipe = MatchingFiles(patterns.as_strings()?.to_vec().into());
    Dataset::new("MatchingFiles", spec, vec![], recipe)
}

struct MatchingFiles(Arc<[Bytes]>);

impl Recipe for MatchingFiles {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(MatchingFilesStream {
            patterns: self.0.clone(),
            device: place.device.clone(),
            names: None,
        }))
    }
}

struct MatchingFilesStream {
    patterns: Arc<[Bytes]>,
    device: Arc<Device>,
    /// Pattern by pattern, each sorted, the other way round; found at the first element asked for.
    names: Option<Vec<String>>,
}

impl MatchingFilesStream {
    fn name(&mut self) -> Result<Option<Element>> {
        if self.names.is_none() {
            let mut names = Vec::new();
            for pattern in self.patterns.iter() {
                let mut found = storage(&self.device).glob(path(pattern)?)?;
                found.sort();
                names.extend(found);
            }
            if names.is_empty() {
                return Err(Status::not_found("Don't find any matched files"));
            }
            names.reverse();
            self.names = Some(names);
        }
        let name = self.names.as_mut().and_then(Vec::pop);
        Ok(name.map(|name| vec![Tensor::string(name)]))
    }
}

impl Stream for MatchingFilesStream {
    fn next(&mut self) -> Next<'_> {
        now(self.name())
    }
}
