//! Datasets kept in folders: `SaveDataset(V2)` and `LoadDataset`; `SnapshotDatasetV2`, whose first whole walk writes
//! what the later ones read; and what TensorFlow makes to read them, `SnapshotDatasetReader`,
//! `SnapshotNestedDatasetReader`, `SnapshotChunkDataset`. `SnapshotDataset`, the first of them, writes files of a framing
//! of its own.
//!
//! A folder that `save` wrote can be loaded by TensorFlow and the reverse. A snapshot's folder has the fingerprint of the
//! pipeline in its path, which is our own: TensorFlow and we do not find each other's, nor do versions of TensorFlow.

use super::dataset::{Cardinality, Dataset, Element, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, declared, now};
use super::function::{Captured, Fun, dataset_name, only};
use super::graph::fingerprint;
use super::sources::Elements;
use super::task::run_op;
use crate::io::file::{create_dirs, path};
use crate::io::storage;
use crate::random::philox::{Philox, Words, entropy};
use downpour_formats::record::Compression;
use downpour_formats::snapshot::{
    Metadata, OLD_VERSION, Reader, VERSION, Writer, chunk, compression, read_metadata, shard_dir,
    write_metadata,
};
use downpour_formats::storage::join;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Device, Host, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, PartialShape, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("SaveDataset", save);
    r.add("SaveDatasetV2", save_v2);
    r.add("LoadDataset", load);
    r.add("SnapshotDatasetV2", snapshot);
    r.add("SnapshotDataset", old_snapshot);
    r.add("SnapshotDatasetReader", |b| {
        let spec = declared(b)?;
        let packing = compression(b.attrs().str("compression")?)?;
        let version = b.attrs().int("version")?;
        define::dataset(move |ctx| {
            let start = define::int(ctx, 1, "start_index")?;
            let shard = Shard {
                dir: text(ctx, 0, "shard_dir")?,
                packing,
                version,
                spec: spec.clone(),
                start: u64::try_from(start).unwrap_or(0),
            };
            shard.dataset()
        })
    });
    r.add("SnapshotNestedDatasetReader", |_| {
        define::dataset(|ctx| {
            let inputs = ctx.inputs(0..ctx.num_inputs())?;
            let shards: Vec<Tensor> = inputs.into_iter().cloned().collect();
            for shard in &shards {
                Dataset::from_tensor(shard)?;
            }
            nested(shards)
        })
    });
    r.add("SnapshotChunkDataset", |b| {
        let spec = declared(b)?;
        let packing = compression(b.attrs().str("compression")?)?;
        define::dataset(move |ctx| {
            let file = Files {
                files: vec![text(ctx, 0, "chunk_file")?].into(),
                packing,
                version: VERSION,
                types: spec.types.clone(),
            };
            Dataset::new("SnapshotChunk", spec.clone(), vec![], file)
        })
    });
}

/// The path in the string scalar at input `i`.
fn text(ctx: &OpContext<'_>, i: usize, name: &str) -> Result<String> {
    Ok(path(&define::string(ctx, i, name)?)?.to_owned())
}

/// How an element's shard is found.
enum Sharding {
    Function(Fun),
    /// All in the first.
    One,
}

/// A run that is being written: a file for each shard.
struct Run {
    device: Arc<Device>,
    /// Where the metadata lies.
    home: String,
    metadata: Metadata,
    packing: Compression,
    sharding: Sharding,
    shards: HashMap<i64, Writer>,
}

impl Run {
    /// Makes the folders and says that a run has begun.
    fn begin(
        device: &Arc<Device>,
        home: String,
        hash: String,
        types: &[DType],
        packing: Compression,
        sharding: Sharding,
    ) -> Result<Run> {
        let host = device.extensions.get::<Host>();
        let metadata = Metadata {
            graph_hash: hash,
            run_id: entropy().to_string(),
            creation_timestamp: host.map_or(0, |h| h.now_micros() as i64),
            version: VERSION,
            dtype: types.iter().map(|t| t.number()).collect(),
            num_elements: 0,
            finalized: false,
        };
        let storage = storage(device);
        create_dirs(storage, &join(&home, &metadata.run_id))?;
        write_metadata(storage, &home, &metadata)?;
        Ok(Run {
            device: device.clone(),
            home,
            metadata,
            packing,
            sharding,
            shards: HashMap::new(),
        })
    }

    async fn write(&mut self, element: &Element) -> Result<()> {
        let number = match &self.sharding {
            Sharding::One => 0,
            Sharding::Function(f) => {
                let made = f.call(element.clone()).await?;
                only::<i64>(&made, "`shard_func` must return a scalar int64.")?
            }
        };
        if !self.shards.contains_key(&number) {
            let storage = storage(&self.device);
            let dir = shard_dir(&join(&self.home, &self.metadata.run_id), number);
            create_dirs(storage, &dir)?;
            let writer = Writer::create(storage, &chunk(&dir, 0), self.packing, VERSION)?;
            self.shards.insert(number, writer);
        }
        if let Some(writer) = self.shards.get_mut(&number) {
            writer.write(element)?;
        }
        self.metadata.num_elements += 1;
        Ok(())
    }

    /// Ends the files and says that all is there.
    fn finish(mut self) -> Result<()> {
        for (_, writer) in self.shards.drain() {
            writer.finish()?;
        }
        self.metadata.finalized = true;
        write_metadata(storage(&self.device), &self.home, &self.metadata)
    }
}

fn save(b: &KernelBuilder<'_>) -> Result<Built> {
    let packing = compression(b.attrs().str("compression")?)?;
    let f = b.callee("shard_func")?;
    let sharded = b.attrs().bool("use_shard_func")?;
    let count = b.attrs().dtypes("Tshard_func_args")?.len();
    Built::waiting(move |op| {
        let ready = (|| {
            let dataset = Dataset::from_tensor(op.input(0)?)?.clone();
            let home = op.input(1)?;
            let home = home.as_strings()?.first().filter(|_| home.rank() == 0);
            let home = home.ok_or_else(|| Status::invalid_argument("path must be a scalar"))?;
            let home = path(home)?.to_owned();
            let captured = (2..2 + count).map(|i| op.input(i).cloned());
            let captured = captured.collect::<Result<_>>()?;
            let f = Captured::of(op.env(), &f, captured)?;
            Ok((dataset, home, f))
        })();
        let (dataset, home, f) = match ready {
            Ok(ready) => ready,
            Err(e) => return op.finish(Err(e)),
        };
        let device = op.env().device.clone();
        run_op(op, async move {
            let sharding = match sharded {
                true => Sharding::Function(f.at(&Place::new(&device, "Save"))?),
                false => Sharding::One,
            };
            let types = dataset.spec().types.clone();
            let mut run = Run::begin(&device, home, String::new(), &types, packing, sharding)?;
            let mut walk = dataset.start(&device, "Save")?;
            while let Some(element) = walk.next().await? {
                run.write(&element).await?;
            }
            run.finish()?;
            Ok(vec![])
        });
    })
}

/// A dataset whose walks write what passes, from their first element on.
struct Saving {
    input: Dataset,
    home: String,
    /// The pipeline's fingerprint, which goes into the metadata.
    hash: String,
    packing: Compression,
    f: Option<Arc<Captured>>,
}

impl Saving {
    fn stream(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let f = self.f.as_ref().map(|f| f.at(place)).transpose()?;
        Ok(Box::new(SavingStream {
            input: self.input.iterate(place)?,
            begin: Some(Begin {
                device: place.device.clone(),
                home: self.home.clone(),
                hash: self.hash.clone(),
                types: self.input.spec().types.clone(),
                packing: self.packing,
                sharding: f.map_or(Sharding::One, Sharding::Function),
            }),
            run: None,
        }))
    }
}

impl Recipe for Saving {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        self.stream(place)
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }
}

/// What a run is begun with.
struct Begin {
    device: Arc<Device>,
    home: String,
    hash: String,
    types: Vec<DType>,
    packing: Compression,
    sharding: Sharding,
}

struct SavingStream {
    input: Iter,
    begin: Option<Begin>,
    run: Option<Run>,
}

impl Stream for SavingStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            if let Some(b) = self.begin.take() {
                let run = Run::begin(&b.device, b.home, b.hash, &b.types, b.packing, b.sharding)?;
                self.run = Some(run);
            }
            let got = self.input.next().await?;
            match (&got, &mut self.run) {
                (Some(element), Some(run)) => run.write(element).await?,
                (None, Some(_)) => {
                    if let Some(run) = self.run.take() {
                        run.finish()?;
                    }
                }
                (_, None) => {}
            }
            Ok(got)
        })
    }
}

fn save_v2(b: &KernelBuilder<'_>) -> Result<Built> {
    let packing = compression(b.attrs().str("compression")?)?;
    let f = b.callee("shard_func")?;
    let sharded = b.attrs().bool("use_shard_func")?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let f = Captured::new(ctx, &f, 2..ctx.num_inputs())?;
        let recipe = Saving {
            input: input.clone(),
            home: text(ctx, 1, "path")?,
            hash: String::new(),
            packing,
            f: sharded.then(|| Arc::new(f)),
        };
        Dataset::new("SaveV2", input.spec().clone(), vec![input], recipe)
    })
}

/// One shard of a run: numbered files, one after the other.
#[derive(Clone)]
struct Shard {
    dir: String,
    packing: Compression,
    version: i64,
    spec: Spec,
    /// Elements to leave out at the beginning.
    start: u64,
}

impl Shard {
    fn dataset(self) -> Result<Dataset> {
        let spec = self.spec.clone();
        Dataset::new("SnapshotDatasetReader", spec, vec![], self)
    }
}

impl Recipe for Shard {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(ShardStream {
            device: place.device.clone(),
            shard: self.clone(),
            next: 0,
            reader: None,
            skip: self.start,
        }))
    }
}

struct ShardStream {
    device: Arc<Device>,
    shard: Shard,
    /// Number of the file after the one that is open.
    next: u64,
    reader: Option<Reader>,
    skip: u64,
}

impl ShardStream {
    fn element(&mut self) -> Result<Option<Element>> {
        loop {
            if let Some(reader) = &mut self.reader {
                match reader.read()? {
                    Some(_) if self.skip > 0 => self.skip -= 1,
                    Some(element) => return Ok(Some(element)),
                    None => self.reader = None,
                }
                continue;
            }
            let file = chunk(&self.shard.dir, self.next);
            if self.next > 0 && !storage(&self.device).exists(&file)? {
                return Ok(None);
            }
            let types = &self.shard.spec.types;
            let (packing, version) = (self.shard.packing, self.shard.version);
            self.reader = Some(open(&self.device, &file, packing, version, types)?);
            self.next += 1;
        }
    }
}

fn open(
    device: &Device,
    file: &str,
    packing: Compression,
    version: i64,
    types: &[DType],
) -> Result<Reader> {
    let limit = device.memory.max_tensor_bytes as u64;
    Reader::open(
        storage(device),
        file,
        packing,
        version,
        types.to_vec(),
        limit,
    )
}

impl Stream for ShardStream {
    fn next(&mut self) -> Next<'_> {
        now(self.element())
    }
}

/// The datasets of shards as the elements of one.
fn nested(shards: Vec<Tensor>) -> Result<Dataset> {
    let spec = Spec {
        types: vec![DType::Variant],
        shapes: vec![PartialShape::from_dims([])],
    };
    let elements = shards.into_iter().map(|s| vec![s]).collect();
    Dataset::new(
        "SnapshotNestedDatasetReader",
        spec,
        vec![],
        Elements(Arc::new(elements)),
    )
}

/// What reads a finished run.
#[derive(Clone)]
struct Loading {
    home: String,
    packing: Compression,
    spec: Spec,
    f: Arc<Captured>,
    name: String,
}

impl Loading {
    fn stream(&self, place: &Place, metadata: &Metadata) -> Result<Box<dyn Stream>> {
        let run = join(&self.home, path(metadata.run_id.as_bytes())?);
        let mut dirs = storage(&place.device).glob(&join(&run, "*.shard"))?;
        dirs.sort();
        let shards = dirs.into_iter().map(|dir| {
            let shard = Shard {
                dir,
                packing: self.packing,
                version: metadata.version,
                spec: self.spec.clone(),
                start: 0,
            };
            shard.dataset().map(Dataset::into_tensor)
        });
        let shards = nested(shards.collect::<Result<_>>()?)?;
        Ok(Box::new(LoadingStream {
            shards: Some(shards),
            f: self.f.at(place)?.of(&self.name, place),
            place: place.clone(),
            walk: None,
        }))
    }
}

struct LoadingStream {
    /// Until the function has made a dataset of them.
    shards: Option<Dataset>,
    f: Fun,
    place: Place,
    walk: Option<Iter>,
}

impl Stream for LoadingStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            if let Some(shards) = &self.shards {
                let shards = vec![shards.clone().into_tensor()];
                self.walk = Some(self.f.walk(shards, &self.place).await?);
                self.shards = None;
            }
            match &mut self.walk {
                Some(walk) => walk.next().await,
                None => Ok(None),
            }
        })
    }
}

fn load(b: &KernelBuilder<'_>) -> Result<Built> {
    let (spec, f, naming) = (declared(b)?, b.callee("reader_func")?, dataset_name(b)?);
    let packing = compression(b.attrs().str("compression")?)?;
    define::dataset(move |ctx| {
        let home = text(ctx, 0, "path")?;
        let Some(metadata) = read_metadata(storage(ctx.device()), &home)? else {
            return Err(Status::not_found(format!(
                "Could not find metadata file [{home}]"
            )));
        };
        let recipe = Load {
            loading: Loading {
                home,
                packing,
                spec: spec.clone(),
                f: Arc::new(Captured::new(ctx, &f, 1..ctx.num_inputs())?),
                name: naming.next(),
            },
            metadata,
        };
        Dataset::new("Load", spec.clone(), vec![], recipe)
    })
}

struct Load {
    loading: Loading,
    metadata: Metadata,
}

impl Recipe for Load {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        self.loading.stream(place, &self.metadata)
    }
    fn cardinality(&self) -> Cardinality {
        Cardinality::Known(self.metadata.num_elements)
    }
}

fn snapshot(b: &KernelBuilder<'_>) -> Result<Built> {
    let spec = declared(b)?;
    let packing = compression(b.attrs().str("compression")?)?;
    let given = match b.attrs().bool("hash_valid")? {
        true => Some(b.attrs().int("hash")? as u64),
        false => None,
    };
    let prefix = |name: &str| -> Result<String> { Ok(b.attrs().str(name)?.to_owned()) };
    let (read_at, write_at) = (prefix("reader_prefix")?, prefix("writer_prefix")?);
    let (reader, shard) = (b.callee("reader_func")?, b.callee("shard_func")?);
    let count = b.attrs().dtypes("Treader_func_args")?.len();
    let naming = dataset_name(b)?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let home = text(ctx, 1, "path")?;
        let hash = match given {
            Some(hash) => hash,
            None => fingerprint(ctx.device(), &input)?,
        };
        let middle = 2 + count;
        let place = |prefix: &str| join(&format!("{prefix}{home}"), &hash.to_string());
        let recipe = Snapshot {
            loading: Loading {
                home: place(&read_at),
                packing,
                spec: spec.clone(),
                f: Arc::new(Captured::new(ctx, &reader, 2..middle)?),
                name: naming.next(),
            },
            saving: Saving {
                input: input.clone(),
                home: place(&write_at),
                hash: hash.to_string(),
                packing,
                f: Some(Arc::new(Captured::new(
                    ctx,
                    &shard,
                    middle..ctx.num_inputs(),
                )?)),
            },
        };
        Dataset::new(
            ("SnapshotV2", "Snapshot"),
            spec.clone(),
            vec![input],
            recipe,
        )
    })
}

struct Snapshot {
    loading: Loading,
    saving: Saving,
}

impl Recipe for Snapshot {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        // One that is not whole, because it is being written or was left, is written anew.
        match read_metadata(storage(&place.device), &self.loading.home)? {
            Some(metadata) if metadata.finalized => self.loading.stream(place, &metadata),
            _ => self.saving.stream(place),
        }
    }
    fn cardinality(&self) -> Cardinality {
        self.saving.input.cardinality()
    }
}

/// What a walk over the first kind of snapshot does.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Auto,
    Read,
    Write,
    Pass,
}

fn old_snapshot(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let spec = declared(b)?;
    let packing = compression(attrs.str("compression")?)?;
    let mode = match attrs.str("mode")? {
        "auto" => Mode::Auto,
        "read" => Mode::Read,
        "write" => Mode::Write,
        "passthrough" => Mode::Pass,
        other => {
            return Err(Status::invalid_argument(format!(
                "mode must be 'auto', 'read', 'write' or 'passthrough', but it is '{other}'"
            )));
        }
    };
    let name = attrs.str("snapshot_name")?.to_owned();
    if matches!(mode, Mode::Read | Mode::Write) && name.is_empty() {
        return Err(Status::invalid_argument(
            "snapshot_name must be set where mode is 'read' or 'write'",
        ));
    }
    let largest = u64::try_from(attrs.int("shard_size_bytes")?).unwrap_or(u64::MAX);
    let expires = attrs.int("pending_snapshot_expiry_seconds")?;
    let shuffled = attrs.bool("shuffle_on_read")?;
    let seeds = (attrs.int("seed")?, attrs.int("seed2")?);
    let prefixes = [
        attrs.str("reader_path_prefix")?.to_owned(),
        attrs.str("writer_path_prefix")?.to_owned(),
    ];
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let home = text(ctx, 1, "path")?;
        let hash = fingerprint(ctx.device(), &input)?;
        let [read_at, write_at] = [&prefixes[0], &prefixes[1]]
            .map(|prefix| join(&format!("{prefix}{home}"), &format!("{hash:x}")));
        let recipe = OldSnapshot {
            input: input.clone(),
            read_at,
            write_at,
            hash: format!("{hash:x}"),
            packing,
            mode,
            name: name.clone(),
            largest,
            expires,
            shuffled: shuffled.then_some(seeds),
        };
        Dataset::new("Snapshot", spec.clone(), vec![input], recipe)
    })
}

struct OldSnapshot {
    input: Dataset,
    read_at: String,
    write_at: String,
    hash: String,
    packing: Compression,
    mode: Mode,
    /// What the run is called; without, its folder is a random number.
    name: String,
    /// Bytes after which another file is begun.
    largest: u64,
    /// Seconds after which a run that is not whole has been given up.
    expires: i64,
    /// Seeds of the order in which files are read, where it is not theirs.
    shuffled: Option<(i64, i64)>,
}

impl OldSnapshot {
    /// What this walk does, by what is there.
    fn mode(&self, place: &Place, found: Option<&Metadata>) -> Result<Mode> {
        match self.mode {
            Mode::Read if found.is_none_or(|m| !m.finalized) => Err(Status::not_found(format!(
                "there is no whole snapshot in {} to be read",
                self.read_at
            ))),
            Mode::Auto => {
                let host = place.device.extensions.get::<Host>();
                let age =
                    |m: &Metadata| host.map_or(0, |h| h.now_micros() as i64 - m.creation_timestamp);
                Ok(match found {
                    None => Mode::Write,
                    Some(m) if m.finalized => Mode::Read,
                    Some(m) if age(m) >= self.expires.saturating_mul(1_000_000) => Mode::Write,
                    Some(_) => Mode::Pass,
                })
            }
            mode => Ok(mode),
        }
    }

    fn reader(&self, place: &Place, metadata: &Metadata) -> Result<Box<dyn Stream>> {
        let run = join(&self.read_at, path(metadata.run_id.as_bytes())?);
        let mut files = storage(&place.device).glob(&join(&run, "*.snapshot"))?;
        files.sort();
        if let Some((seed, seed2)) = self.shuffled {
            let seeds = super::seeds::given_or_random((seed, seed2));
            let mut words = Words::new(Philox::from_seeds(seeds.0, seeds.1));
            for i in (1..files.len()).rev() {
                let other = words.below(u32::try_from(i + 1).unwrap_or(u32::MAX)) as usize;
                files.swap(i, other);
            }
        }
        let files = Files {
            files: files.into(),
            packing: self.packing,
            version: metadata.version,
            types: self.input.spec().types.clone(),
        };
        files.open(place)
    }
}

impl Recipe for OldSnapshot {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let found = read_metadata(storage(&place.device), &self.read_at)?;
        let mode = self.mode(place, found.as_ref())?;
        if let (Mode::Read, Some(metadata)) = (mode, &found) {
            return self.reader(place, metadata);
        }
        let input = self.input.iterate(place)?;
        if mode != Mode::Write {
            return Ok(Box::new(super::prefetch::Through(input)));
        }
        let run_id = match self.name.as_str() {
            "" => format!("{:x}", entropy()),
            name => name.to_owned(),
        };
        let host = place.device.extensions.get::<Host>();
        Ok(Box::new(OldWriting {
            input,
            device: place.device.clone(),
            home: self.write_at.clone(),
            metadata: Metadata {
                graph_hash: self.hash.clone(),
                run_id,
                creation_timestamp: host.map_or(0, |h| h.now_micros() as i64),
                version: OLD_VERSION,
                dtype: self.input.spec().types.iter().map(|t| t.number()).collect(),
                num_elements: 0,
                finalized: false,
            },
            packing: self.packing,
            largest: self.largest,
            begun: false,
            writer: None,
            files: 0,
            bytes: 0,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }
}

struct OldWriting {
    input: Iter,
    device: Arc<Device>,
    home: String,
    metadata: Metadata,
    packing: Compression,
    largest: u64,
    begun: bool,
    writer: Option<Writer>,
    files: u64,
    /// In the file that is open.
    bytes: u64,
}

impl OldWriting {
    fn write(&mut self, element: &Element) -> Result<()> {
        let storage = storage(&self.device);
        if self.writer.is_none() {
            let file = chunk(&join(&self.home, &self.metadata.run_id), self.files);
            let writer = Writer::create(storage, &file, self.packing, OLD_VERSION)?;
            self.writer = Some(writer);
            self.files += 1;
            self.bytes = 0;
        }
        if let Some(writer) = &mut self.writer {
            self.bytes += writer.write(element)?;
        }
        if self.bytes >= self.largest
            && let Some(writer) = self.writer.take()
        {
            writer.finish()?;
        }
        self.metadata.num_elements += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        if let Some(writer) = self.writer.take() {
            writer.finish()?;
        }
        self.metadata.finalized = true;
        write_metadata(storage(&self.device), &self.home, &self.metadata)
    }
}

impl Stream for OldWriting {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            if !self.begun {
                let storage = storage(&self.device);
                create_dirs(storage, &join(&self.home, &self.metadata.run_id))?;
                write_metadata(storage, &self.home, &self.metadata)?;
                self.begun = true;
            }
            let got = self.input.next().await?;
            match &got {
                Some(element) => self.write(element)?,
                None => self.finish()?,
            }
            Ok(got)
        })
    }
}

/// Files read one after the other.
struct Files {
    files: Arc<[String]>,
    packing: Compression,
    version: i64,
    types: Vec<DType>,
}

impl Recipe for Files {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(FilesStream {
            device: place.device.clone(),
            files: self.files.clone(),
            packing: self.packing,
            version: self.version,
            types: self.types.clone(),
            next: 0,
            reader: None,
        }))
    }
}

struct FilesStream {
    device: Arc<Device>,
    files: Arc<[String]>,
    packing: Compression,
    version: i64,
    types: Vec<DType>,
    next: usize,
    reader: Option<Reader>,
}

impl FilesStream {
    fn element(&mut self) -> Result<Option<Element>> {
        loop {
            if let Some(reader) = &mut self.reader {
                match reader.read()? {
                    None => self.reader = None,
                    element => return Ok(element),
                }
                continue;
            }
            let Some(file) = self.files.get(self.next) else {
                return Ok(None);
            };
            let reader = open(&self.device, file, self.packing, self.version, &self.types)?;
            self.reader = Some(reader);
            self.next += 1;
        }
    }
}

impl Stream for FilesStream {
    fn next(&mut self) -> Next<'_> {
        now(self.element())
    }
}
