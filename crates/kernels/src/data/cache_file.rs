//! `Cache` with a file: the first walk writes its elements into a checkpoint as TensorFlow does,
//! under `<file>_0` and a lock file beside it, and gives the whole its name at its end; later
//! walks read it.

use super::dataset::{Cardinality, Dataset, Element, Iter, Next, Place, Recipe, Stream};
use super::define::now;
use crate::io::{shared_storage, storage};
use downpour_formats::bundle::{BundleReader, BundleWriter, data_path, index_path, merge_v2};
use downpour_formats::storage::{dirname, read_bounded};
use downpour_graph::{Code, Result, Status};
use downpour_runtime::Device;
use std::sync::Arc;

/// Most elements a cache may have; their names have seven digits.
const MAX_ITEMS: usize = 10_000_000;

pub(super) struct Cache {
    input: Dataset,
    file: Arc<str>,
}

impl Cache {
    pub(super) fn new(input: Dataset, file: String) -> Cache {
        Cache {
            input,
            file: file.into(),
        }
    }
}

impl Recipe for Cache {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let width = self.input.spec().types.len();
        let device = place.device.clone();
        if storage(&device).exists(&index_path(&self.file))? {
            let reader = BundleReader::open_shared(shared_storage(&device), &self.file)?;
            return Ok(Box::new(Reading {
                reader,
                width,
                at: 0,
            }));
        }
        Ok(Box::new(Writing {
            input: self.input.iterate(place)?,
            device,
            file: self.file.clone(),
            width,
            at: 0,
            bundle: None,
            whole: false,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }
}

/// The name of component `c` of element `i`.
fn key(i: usize, c: usize, width: usize) -> String {
    let digits = width.saturating_sub(1).to_string().len();
    format!("{i:7}_{c:digits$}")
}

struct Reading {
    reader: BundleReader<'static>,
    width: usize,
    at: usize,
}

impl Reading {
    fn element(&mut self) -> Result<Option<Element>> {
        let mut element = Vec::with_capacity(self.width);
        for c in 0..self.width {
            let key = key(self.at, c, self.width);
            match self.reader.read(&key) {
                Ok(tensor) => element.push(tensor),
                Err(e) if e.code == Code::NotFound && c == 0 => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        self.at += 1;
        Ok(Some(element))
    }
}

impl Stream for Reading {
    fn next(&mut self) -> Next<'_> {
        now(self.element())
    }
}

struct Writing {
    input: Iter,
    device: Arc<Device>,
    file: Arc<str>,
    width: usize,
    at: usize,
    bundle: Option<BundleWriter<'static>>,
    whole: bool,
}

impl Writing {
    fn shard(&self) -> String {
        format!("{}_0", self.file)
    }

    fn lock_file(&self) -> String {
        format!("{}.lockfile", self.shard())
    }

    /// Takes the lock and starts the shard.
    fn begin(&self) -> Result<BundleWriter<'static>> {
        let (storage, shard, lock) = (storage(&self.device), self.shard(), self.lock_file());
        if storage.exists(&index_path(&shard))? {
            return Err(Status::already_exists(format!(
                "Existing cache files found: \n{}\n{}\nTo continue delete the above files.",
                index_path(&shard),
                data_path(&shard, 0, 1)
            )));
        }
        if storage.exists(&lock)? {
            let contents = read_bounded(storage, &lock, 150).unwrap_or_default();
            return Err(Status::already_exists(format!(
                "There appears to be a concurrent caching iterator running - cache lockfile already exists ('{lock}'). If you are sure no other running TF computations are using this cache prefix, delete the lockfile and re-initialize the iterator. Lockfile contents: {}",
                String::from_utf8_lossy(&contents)
            )));
        }
        crate::io::file::create_dirs(storage, dirname(&lock))?;
        let mut file = storage.create_stream(&lock)?;
        file.write(b"Created by Downpour")?;
        file.flush()?;
        BundleWriter::create_shared(shared_storage(&self.device), &shard)
    }

    fn add(&mut self, element: &Element) -> Result<()> {
        if element.len() != self.width {
            return Err(Status::internal(format!(
                "Upstream iterator returned invalid number of tensors. Expected {} got: {}",
                self.width,
                element.len()
            )));
        }
        if let Some(bundle) = &mut self.bundle {
            for (c, tensor) in element.iter().enumerate() {
                bundle.add(&key(self.at, c, self.width), tensor)?;
            }
        }
        self.at += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let storage = storage(&self.device);
        if let Some(bundle) = self.bundle.take() {
            bundle.finish()?;
            merge_v2(storage, &[self.shard().as_str()], &self.file, false, false)?;
        }
        self.whole = true;
        storage.delete(&self.lock_file())
    }
}

impl Stream for Writing {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            if self.bundle.is_none() {
                self.bundle = Some(self.begin()?);
            }
            if self.at >= MAX_ITEMS {
                self.finish()?;
                return Err(Status::invalid_argument(format!(
                    "Upstream iterator is producing more than {MAX_ITEMS} items, which is more than the cache limit."
                )));
            }
            let got = self.input.next().await?;
            match &got {
                Some(element) => self.add(element)?,
                None => self.finish()?,
            }
            Ok(got)
        })
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        // A walk that did not get to its end leaves nothing behind.
        if self.bundle.take().is_some() && !self.whole {
            let _ = storage(&self.device).delete(&self.lock_file());
        }
    }
}
