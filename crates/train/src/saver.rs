//! Checkpoints: which variables go where, which files are kept, how training goes on from one.
//!
//! Every task writes the variables it holds, all at once; joining the parts' indexes under the
//! checkpoint's name is what makes it exist. TensorFlow reads what this writes, and the reverse.
//! An elected chief's is committed where it is elected (`Fence`) before the `checkpoint` file names it.

use crate::election::{Fence, gives_way, name_in_epoch};
use crate::meta::MetaGraph;
use downpour_build::{
    AttrList, AttrValue, Code, DType, Graph, Operation, Output, Result, Status, Tensor, Variable,
};
use downpour_client::Session;
use downpour_formats::bundle::BundleReader;
use downpour_formats::checkpoint_state::{CheckpointState, latest_complete};
use downpour_formats::meta_graph::SaverDef;
use downpour_formats::storage::{dirname, join};
use downpour_formats::{Files, Storage};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tracing::{info, warn};

/// Name of the file that lists a directory's checkpoints.
const STATE: &str = "checkpoint";

/// How often TensorFlow keeps a checkpoint for good unless told otherwise: so seldom that it never
/// does.
const NEVER_HOURS: f64 = 10_000.0;

/// Saves and restores variables.
///
/// ```
/// use downpour::train::Saver;
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let dir = tempfile::tempdir()?;
/// # let prefix = dir.path().join("model").to_str().unwrap().to_owned();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(1.0f32)).build();
/// let spoil = w.assign(&g.constant(9.0f32));
/// let saver = Saver::new(&g)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// let path = saver.save(&session, &prefix, Some(7))?;
/// assert!(path.ends_with("model-7"));
/// session.run(&spoil)?;
/// saver.restore(&session, &path)?;
/// assert_eq!(session.fetch(&w)?.scalar_value::<f32>()?, 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Saver {
    filename: Output,
    /// The checkpoint's name, once it is written.
    saved: Output,
    restore: Operation,
    keep: usize,
    keep_every: Option<Duration>,
    storage: Arc<dyn Storage>,
    fence: Option<Arc<dyn Fence>>,
    kept: Mutex<Kept>,
    /// Whether the graph is written beside checkpoints, and how it was when it had so many nodes.
    writes_meta: bool,
    meta: Mutex<Option<(usize, MetaGraph)>>,
}

/// Checkpoints that were written and not deleted, oldest first.
#[derive(Default)]
struct Kept {
    paths: Vec<(String, f64)>,
    /// When the last checkpoint was set aside for good.
    preserved: f64,
}

/// A saver about to be made.
///
/// [`Saver::builder`] begins it.
///
/// ```
/// use downpour::train::{Saver, read_checkpoint};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let dir = tempfile::tempdir()?;
/// # let prefix = dir.path().join("model").to_str().unwrap().to_owned();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(1.0f32)).build();
/// g.variable("scratch").init(Init::value(0.0f32)).build();
/// let saver = Saver::builder(&g).variables(&[w]).keep(2).build()?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// let mut paths = Vec::new();
/// for step in 1..=3 {
///     paths.push(saver.save(&session, &prefix, Some(step))?);
/// }
/// // Two are kept, and of the variables one is in them.
/// assert!(read_checkpoint(&paths[0], "w").is_err());
/// assert_eq!(read_checkpoint(&paths[1], "w")?.scalar_value::<f32>()?, 1.0);
/// assert!(read_checkpoint(&paths[2], "scratch").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a saver is made by `build`"]
pub struct SaverBuilder {
    graph: Graph,
    variables: Option<Vec<Variable>>,
    keep: usize,
    keep_every: Option<Duration>,
    writes_meta: bool,
}

impl Saver {
    /// Begins a saver of all variables of a graph that are to be saved.
    pub fn builder(graph: &Graph) -> SaverBuilder {
        SaverBuilder {
            graph: graph.clone(),
            variables: None,
            keep: 5,
            keep_every: None,
            writes_meta: true,
        }
    }

    /// The saver of a graph that was imported, by the operations that it came with.
    pub(crate) fn imported(
        filename: Output,
        saved: Output,
        restore: Operation,
        def: &SaverDef,
    ) -> Saver {
        let hours = f64::from(def.keep_every_hours);
        Saver {
            filename,
            saved,
            restore,
            keep: usize::try_from(def.max_to_keep).unwrap_or(0),
            keep_every: (hours > 0.0 && hours < NEVER_HOURS)
                .then(|| Duration::from_secs_f64(hours * 3600.0)),
            storage: Arc::new(Files::new()),
            fence: None,
            kept: Mutex::default(),
            writes_meta: true,
            meta: Mutex::default(),
        }
    }

    /// The names of its operations and how it keeps checkpoints, as meta graphs tell them.
    pub(crate) fn describe(&self) -> SaverDef {
        let hours = self.keep_every.map(|every| every.as_secs_f64() / 3600.0);
        SaverDef {
            filename: self.filename.name(),
            save: self.saved.name(),
            restore: self.restore.name(),
            max_to_keep: i32::try_from(self.keep).unwrap_or(i32::MAX),
            sharded: true,
            keep_every_hours: hours.unwrap_or(NEVER_HOURS) as f32,
        }
    }

    /// Writes the graph beside a checkpoint.
    fn write_meta(&self, session: &Session, path: &str) {
        let graph = session.graph();
        let mut known = self.meta.lock();
        let nodes = graph.len();
        let fresh = match known.take().filter(|(then, _)| *then == nodes) {
            Some((_, meta)) => Ok(meta),
            None => MetaGraph::of(graph, Some(self)),
        };
        let written = fresh.and_then(|meta| {
            meta.write(&format!("{path}.meta"))?;
            *known = Some((nodes, meta));
            Ok(())
        });
        if let Err(why) = written {
            // The checkpoint itself is whole.
            warn!(path, %why, "the graph could not be written beside the checkpoint");
        }
    }

    /// A saver of all variables of a graph, which keeps the last five checkpoints.
    pub fn new(graph: &Graph) -> Result<Saver> {
        Saver::builder(graph).build()
    }

    /// Lets an election say whether this worker's checkpoints count.
    pub(crate) fn fenced(mut self, fence: Option<Arc<dyn Fence>>) -> Saver {
        self.fence = fence;
        self
    }

    /// Writes a checkpoint `prefix-step` and lists it in its directory; its name.
    ///
    /// # Errors
    /// `FAILED_PRECONDITION` if the chief is elected and another worker is the chief now.
    pub fn save(&self, session: &Session, prefix: &str, step: Option<i64>) -> Result<String> {
        let saved = self.save_as_chief(session, prefix, step)?;
        saved.ok_or_else(|| {
            Status::failed_precondition(format!(
                "no checkpoint was saved to {prefix}: another worker is the chief"
            ))
        })
    }

    /// As [`Self::save`]; `None` if this worker is no longer the elected chief. What it wrote is not restored then.
    pub(crate) fn save_as_chief(
        &self,
        session: &Session,
        prefix: &str,
        step: Option<i64>,
    ) -> Result<Option<String>> {
        let not_chief = |at: &str| {
            warn!(
                prefix,
                "another worker is the chief {at}: the checkpoint is not committed"
            );
            Ok(None)
        };
        let mut path = prefix.to_owned();
        let epoch = match &self.fence {
            None => None,
            Some(fence) => match fence.epoch() {
                None => return not_chief("already"),
                Some(epoch) => {
                    path = name_in_epoch(&path, epoch);
                    Some((fence, epoch))
                }
            },
        };
        if let Some(step) = step {
            path = format!("{path}-{step}");
        }
        let dir = dirname(&path).to_owned();
        make_dirs(&*self.storage, &dir)?;
        let run = session.step().feed(&self.filename, path.as_str());
        let written = run.fetch(&self.saved);
        // Whether or not this one was written: what an earlier one left that was broken off goes as well.
        self.clear_parts(prefix);
        written?;
        if self.writes_meta {
            self.write_meta(session, &path);
        }
        let name = path.rsplit('/').next().unwrap_or(&path);
        if let Some((fence, epoch)) = epoch
            && !fence.commit(epoch, name)
        {
            return not_chief("now");
        }
        let now = seconds(SystemTime::now());
        let mut kept = self.kept.lock();
        kept.paths.retain(|(known, _)| *known != path);
        kept.paths.push((path.clone(), now));
        let removed = self.choose(&mut kept);
        self.list(&kept, &dir)?;
        // A checkpoint goes only when the list no longer names it.
        for old in removed {
            self.delete(&old);
        }
        info!(path, "checkpoint written");
        Ok(Some(path))
    }

    /// Gives the variables the values of a checkpoint.
    pub fn restore(&self, session: &Session, path: &str) -> Result<()> {
        info!(path, "restoring");
        let run = session.step().feed(&self.filename, path);
        run.target(&self.restore).run()
    }

    /// Restores the newest complete checkpoint of a directory; its name, if there is one.
    pub fn restore_latest(&self, session: &Session, dir: &str) -> Result<Option<String>> {
        let latest = latest_complete(&*self.storage, dir, STATE)?;
        for (path, why) in &latest.skipped {
            warn!(path, %why, "checkpoint passed over");
        }
        let committed = match gives_way(latest.prefix.as_deref()) {
            true => self.committed(dir)?,
            false => None,
        };
        let Some(path) = committed.or(latest.prefix) else {
            return Ok(None);
        };
        self.restore(session, &path)?;
        self.recover(dir)?;
        Ok(Some(path))
    }

    /// What an elected chief committed last, if it is in this directory and whole.
    fn committed(&self, dir: &str) -> Result<Option<String>> {
        let Some(name) = self.fence.as_ref().and_then(|fence| fence.committed()) else {
            return Ok(None);
        };
        let path = join(dir, &name);
        let opened = BundleReader::open(&*self.storage, &path);
        match opened.and_then(|checkpoint| checkpoint.verify()) {
            Ok(()) => Ok(Some(path)),
            // Removed by hand, or of a job in another directory.
            Err(why) if matches!(why.code, Code::NotFound | Code::DataLoss) => {
                warn!(path, %why, "the committed checkpoint is passed over");
                Ok(None)
            }
            Err(why) => Err(why),
        }
    }

    /// A new chief learns which checkpoints there are to keep or delete.
    pub(crate) fn take_over(&self, prefix: &str) {
        if self.fence.is_none() {
            return;
        }
        self.kept.lock().paths.clear();
        if let Err(why) = self.recover(dirname(prefix)) {
            warn!(prefix, %why, "the list of checkpoints was not read: older ones stay");
        }
    }

    /// Counts the checkpoints that an earlier run listed among those to keep or delete.
    fn recover(&self, dir: &str) -> Result<()> {
        let Some(state) = CheckpointState::read(&*self.storage, dir, STATE)? else {
            return Ok(());
        };
        let times = &state.all_model_checkpoint_timestamps;
        let mut kept = self.kept.lock();
        if !kept.paths.is_empty() {
            return Ok(());
        }
        kept.preserved = state.last_preserved_timestamp;
        for (i, path) in state.all_model_checkpoint_paths.iter().enumerate() {
            if let Ok(path) = downpour_formats::checkpoint_state::resolve(dir, path) {
                kept.paths
                    .push((path, times.get(i).copied().unwrap_or(0.0)));
            }
        }
        Ok(())
    }

    /// Takes those that are too many off the list; what is to be deleted.
    fn choose(&self, kept: &mut Kept) -> Vec<String> {
        let mut removed = Vec::new();
        while self.keep > 0 && kept.paths.len() > self.keep {
            let (path, time) = kept.paths.remove(0);
            match self.keep_every {
                Some(every) if time >= kept.preserved + every.as_secs_f64() => {
                    kept.preserved = time;
                }
                _ => removed.push(path),
            }
        }
        removed
    }

    fn list(&self, kept: &Kept, dir: &str) -> Result<()> {
        let relative = |path: &str| -> String {
            let below = path.strip_prefix(dir).map(|p| p.trim_start_matches('/'));
            below.filter(|_| !dir.is_empty()).unwrap_or(path).to_owned()
        };
        let all: Vec<String> = kept.paths.iter().map(|(p, _)| relative(p)).collect();
        let state = CheckpointState {
            model_checkpoint_path: all.last().cloned().unwrap_or_default(),
            all_model_checkpoint_paths: all,
            all_model_checkpoint_timestamps: kept.paths.iter().map(|(_, t)| *t).collect(),
            last_preserved_timestamp: kept.preserved,
        };
        state.write(&*self.storage, dir, STATE)
    }

    /// Deletes what checkpoints `prefix-step` that were not finished have left: their parts lie in folders `…_temp`, which
    /// the last step of a save removes. Only this saver writes such checkpoints, and it writes none now.
    fn clear_parts(&self, prefix: &str) {
        let dir = dirname(prefix);
        let base = prefix.get(dir.len()..).unwrap_or(prefix);
        let base = base.trim_start_matches('/');
        let dir = if dir.is_empty() { "." } else { dir };
        let is_ours = |name: &str| {
            let rest = name
                .strip_prefix(base)
                .and_then(|r| r.strip_suffix("_temp"));
            let step = |r: &str| {
                let step = r.strip_prefix('-')?;
                (!step.is_empty() && step.bytes().all(|b| b.is_ascii_digit())).then_some(())
            };
            rest.is_some_and(|r| r.is_empty() || step(r).is_some())
        };
        let names = self.storage.list(dir).unwrap_or_default();
        for name in names.iter().filter(|n| is_ours(n)) {
            let folder = in_dir(dir, name);
            let removed = self.storage.list(&folder).and_then(|parts| {
                for part in parts {
                    self.storage.delete(&in_dir(&folder, &part))?;
                }
                self.storage.remove_dir(&folder)
            });
            match removed {
                Ok(()) => info!(folder, "parts of an unfinished checkpoint removed"),
                Err(why) => warn!(folder, %why, "parts of an unfinished checkpoint stay"),
            }
        }
    }

    fn delete(&self, path: &str) {
        let mut files = self
            .storage
            .glob(&format!("{path}.data-*"))
            .unwrap_or_default();
        files.extend([format!("{path}.index"), format!("{path}.meta")]);
        for file in files {
            if self.storage.exists(&file).unwrap_or(false)
                && let Err(why) = self.storage.delete(&file)
            {
                warn!(file, %why, "an old checkpoint's file stays");
            }
        }
    }
}

impl SaverBuilder {
    /// Only these variables.
    pub fn variables(mut self, variables: &[Variable]) -> SaverBuilder {
        self.variables = Some(variables.to_vec());
        self
    }

    /// How many checkpoints stay; 0 keeps all.
    pub fn keep(mut self, count: usize) -> SaverBuilder {
        self.keep = count;
        self
    }

    /// Of those that would be deleted, keeps one for each such time.
    pub fn keep_every(mut self, time: Duration) -> SaverBuilder {
        self.keep_every = Some(time);
        self
    }

    /// Whether the graph is written beside every checkpoint, as a `.meta` file that
    /// `tf.train.import_meta_graph` and [`MetaGraph`] read. It is unless told otherwise.
    ///
    /// ```
    /// use downpour::train::Saver;
    /// use downpour::{Graph, Init, Server, ServerConfig, Session};
    /// # let dir = tempfile::tempdir()?;
    /// # let prefix = dir.path().join("model").to_str().unwrap().to_owned();
    /// let server = Server::start(ServerConfig::local())?;
    /// let g = Graph::new();
    /// g.variable("w").init(Init::value(1.0f32)).build();
    /// let savers = [true, false].map(|meta| Saver::builder(&g).meta(meta).build().unwrap());
    /// let session = Session::new(&server, &g)?;
    /// session.run(&g.initialize_variables())?;
    /// for (saver, step, expected) in [(&savers[0], 1, true), (&savers[1], 2, false)] {
    ///     let path = saver.save(&session, &prefix, Some(step))?;
    ///     assert_eq!(std::path::Path::new(&format!("{path}.meta")).exists(), expected);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn meta(mut self, write: bool) -> SaverBuilder {
        self.writes_meta = write;
        self
    }

    /// Adds the operations to the graph.
    pub fn build(self) -> Result<Saver> {
        let g = &self.graph;
        let variables = self.variables.unwrap_or_else(|| g.saved_variables());
        if variables.is_empty() {
            return Err(Status::invalid_argument("there are no variables to save"));
        }
        let mut shards: BTreeMap<String, Vec<Variable>> = BTreeMap::new();
        for variable in variables {
            let device = variable.handle().operation().device();
            shards.entry(device).or_default().push(variable);
        }
        let (filename, saved, restore) = g.without_control(|| {
            g.with_scope("save", || {
                let default = g.constant("model");
                let filename = g.placeholder_with_default("filename", &default, ());
                let saved = save_op(g, &filename, &shards);
                let restore = restore_op(g, &filename, &shards);
                (filename, saved, restore)
            })
        });
        g.check()?;
        Ok(Saver {
            filename,
            saved,
            restore,
            keep: self.keep,
            keep_every: self.keep_every,
            storage: Arc::new(Files::new()),
            fence: None,
            kept: Mutex::default(),
            writes_meta: self.writes_meta,
            meta: Mutex::default(),
        })
    }
}

/// Runs `body` on the CPU of the task that a device belongs to.
fn on_task<R>(g: &Graph, device: &str, body: impl FnOnce() -> R) -> R {
    let task = downpour_build::DeviceName::parse(device).unwrap_or_default();
    let cpu = downpour_build::DeviceName {
        kind: Some("CPU".to_owned()),
        id: Some(0),
        ..task.task_name()
    };
    g.without_device(|| g.with_device(&cpu.to_string(), body))
}

fn strings(g: &Graph, values: Vec<String>) -> Output {
    g.constant(values)
}

/// Writes a checkpoint; its name, once it is there.
fn save_op(g: &Graph, filename: &Output, shards: &BTreeMap<String, Vec<Variable>>) -> Output {
    let count = shards.len() as i32;
    let temporary = g
        .op("StringJoin")
        .inputs(&[filename.clone(), g.constant("_temp/part")])
        .output();
    let (mut parts, mut written) = (Vec::new(), Vec::new());
    // A ledger of data is text. It is read before the model, which then has all that it calls done.
    let is_text = |v: &Variable| v.dtype() == DType::String;
    let texts = shards.values().flatten().filter(|v| is_text(v));
    let texts: Vec<Operation> = texts.map(|v| v.value().operation()).collect();
    let value = |v: &Variable| match texts.is_empty() || is_text(v) {
        true => v.value().clone(),
        false => g.with_control(&texts, || v.read()),
    };
    for (i, (device, variables)) in shards.iter().enumerate() {
        on_task(g, device, || {
            let part = g
                .op("ShardedFilename")
                .input(&temporary)
                .input(&g.constant(i as i32))
                .input(&g.constant(count))
                .output();
            let names = variables.iter().map(|v| v.save_name().to_owned()).collect();
            let slices = variables.iter().map(Variable::save_slice).collect();
            let values: Vec<Output> = variables.iter().map(value).collect();
            let save = g
                .op("SaveV2")
                .input(&part)
                .input(&strings(g, names))
                .input(&strings(g, slices))
                .inputs(&values)
                .build();
            parts.push(part);
            written.push(save);
        });
    }
    let first = shards.keys().next().cloned().unwrap_or_default();
    on_task(g, &first, || {
        g.with_control(&written, || {
            let prefixes = downpour_build::stack(&parts, 0);
            let merge = g.op("MergeV2Checkpoints").input(&prefixes).input(filename);
            let merged = merge.attr("delete_old_dirs", true).build();
            g.with_control(&[merged], || g.op("Identity").input(filename).output())
        })
    })
}

fn restore_op(g: &Graph, filename: &Output, shards: &BTreeMap<String, Vec<Variable>>) -> Operation {
    let mut restored = Vec::new();
    for (device, variables) in shards {
        on_task(g, device, || {
            let names = variables.iter().map(|v| v.save_name().to_owned()).collect();
            let slices = variables.iter().map(Variable::save_slice).collect();
            let types: Vec<DType> = variables.iter().map(Variable::dtype).collect();
            let values = g
                .op("RestoreV2")
                .input(filename)
                .input(&strings(g, names))
                .input(&strings(g, slices))
                .attr("dtypes", AttrValue::List(AttrList::Type(types)))
                .outputs();
            for (variable, value) in variables.iter().zip(&values) {
                restored.push(
                    g.with_colocation(&variable.handle().operation(), || variable.assign(value)),
                );
            }
        });
    }
    g.group("restore_all", &restored)
}

/// The newest complete checkpoint of a directory.
///
/// ```
/// use downpour::train::{Saver, latest_checkpoint};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// g.variable("w").init(Init::value(1.0f32)).build();
/// let saver = Saver::new(&g)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// assert_eq!(latest_checkpoint(dir)?, None);
/// for step in [10, 20] {
///     saver.save(&session, &format!("{dir}/model"), Some(step))?;
/// }
/// assert_eq!(latest_checkpoint(dir)?, Some(format!("{dir}/model-20")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn latest_checkpoint(dir: &str) -> Result<Option<String>> {
    Ok(latest_complete(&Files::new(), dir, STATE)?.prefix)
}

/// The value of a tensor in a checkpoint.
///
/// ```
/// use downpour::train::{Saver, read_checkpoint};
/// use downpour::{Code, Graph, Init, Server, ServerConfig, Session};
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// g.variable("layer/w").init(Init::value([1.0f32, 2.0])).build();
/// let saver = Saver::new(&g)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// let path = saver.save(&session, &format!("{dir}/model"), None)?;
/// assert_eq!(read_checkpoint(&path, "layer/w")?.as_slice::<f32>()?, [1.0, 2.0]);
/// assert_eq!(read_checkpoint(&path, "w").unwrap_err().code, Code::NotFound);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn read_checkpoint(path: &str, name: &str) -> Result<Tensor> {
    let storage = Files::new();
    let reader = BundleReader::open(&storage, path)?;
    reader.read(name)
}

/// Creates a directory and what is above it.
pub(crate) fn make_dirs(storage: &dyn Storage, dir: &str) -> Result<()> {
    if dir.is_empty() || storage.exists(dir)? {
        return Ok(());
    }
    make_dirs(storage, dirname(dir))?;
    match storage.create_dir(dir) {
        Err(e) if e.code != Code::AlreadyExists => Err(e),
        _ => Ok(()),
    }
}

fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}

/// The path of a checkpoint `name` in `dir`.
pub(crate) fn in_dir(dir: &str, name: &str) -> String {
    join(dir, name)
}
