//! Graphs with what belongs to them, as files beside checkpoints: a program of TensorFlow's goes on
//! with what this one trained, and the reverse.

use crate::runner::Registered;
use crate::saver::Saver;
use downpour_build::{
    Adopted, Graph, Operation, Output, Result, SaveSlice, Shape, Status, Variable,
};
use downpour_formats::Files;
use downpour_formats::meta_graph::{
    Collection, MetaGraph as File, QueueRunnerDef, SliceDef, VariableDef,
};
use std::collections::BTreeMap;
use tracing::warn;

/// TensorFlow's names for collections that are not only names of nodes.
const VARIABLES: &str = "variables";
const TRAINABLE: &str = "trainable_variables";
const LOCAL: &str = "local_variables";
const GLOBAL_STEP: &str = "global_step";
const QUEUE_RUNNERS: &str = "queue_runners";

/// A graph with the names of its variables, its saver, its collections.
///
/// ```
/// use downpour::train::{GradientDescent, MetaGraph, Minimize, Saver, global_step};
/// use downpour::{Graph, Init};
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("model.meta").to_str().unwrap().to_owned();
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(1.0f32)).build();
/// let train = GradientDescent::new(0.1).minimize(&w.square(), Some(&global_step(&g)))?;
/// let saver = Saver::new(&g)?;
/// MetaGraph::of(&g, Some(&saver))?.write(&path)?;
///
/// let meta = MetaGraph::read(&path)?;
/// assert_eq!(meta.collections(), ["global_step", "train_op", "trainable_variables", "variables"]);
/// assert_eq!(meta.names("train_op"), ["GradientDescent"]);
/// let h = Graph::new();
/// let imported = meta.import(&h)?;
/// assert!(imported.saver.is_some() && imported.operations("train_op")[0].name() == train.name());
/// assert_eq!(h.trainable_variables()[0].name(), "w");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MetaGraph {
    file: File,
}

/// What an import brought beside nodes.
///
/// [`MetaGraph::import`] makes it.
///
/// ```
/// use downpour::train::{GradientDescent, MetaGraph, Minimize, Saver};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let dir = tempfile::tempdir()?;
/// # let prefix = dir.path().join("model").to_str().unwrap().to_owned();
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(8.0f32)).build();
/// GradientDescent::new(0.25).minimize(&w.square(), None)?;
/// let saver = Saver::new(&g)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// let path = saver.save(&session, &prefix, None)?;
///
/// let h = Graph::new();
/// let imported = MetaGraph::read(&format!("{path}.meta"))?.import(&h)?;
/// let session = Session::new(&server, &h)?;
/// imported.saver.as_ref().unwrap().restore(&session, &path)?;
/// session.run(&imported.operations("train_op")[0])?;
/// let w = h.find_variable("w")?;
/// assert_eq!(session.fetch(&w)?.scalar_value::<f32>()?, 4.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Imported {
    /// The saver that the graph came with.
    pub saver: Option<Saver>,
    /// Collections of operations, by name; those of tensors are the graph's own now.
    operations: BTreeMap<String, Vec<Operation>>,
}

impl Imported {
    /// The operations of a collection.
    pub fn operations(&self, collection: &str) -> &[Operation] {
        let found = self.operations.get(collection);
        found.map(Vec::as_slice).unwrap_or_default()
    }
}

impl MetaGraph {
    /// A graph as it is now, with what saves it.
    pub fn of(graph: &Graph, saver: Option<&Saver>) -> Result<MetaGraph> {
        let mut collections: BTreeMap<String, Collection> = graph
            .collections()
            .into_iter()
            .map(|name| {
                let members = graph.collection_names(&name);
                (name, Collection::Nodes(members))
            })
            .collect();
        let all = graph.variables();
        let mut keep = |collection: &str, belongs: &dyn Fn(&Variable) -> bool| {
            let members = all.iter().filter(|v| belongs(v));
            let members: Vec<_> = members.map(|v| describe(v).encode()).collect();
            if !members.is_empty() {
                collections.insert(collection.to_owned(), Collection::Bytes(members));
            }
        };
        keep(VARIABLES, &Variable::is_saved);
        keep(LOCAL, &|v| !v.is_saved());
        keep(TRAINABLE, &|v| v.is_saved() && v.is_trainable());
        keep(GLOBAL_STEP, &|v| v.name() == GLOBAL_STEP);
        let runners = Registered::of(graph);
        let runners = runners.iter().filter_map(Registered::describe);
        let runners: Vec<_> = runners.map(|runner| runner.encode()).collect();
        if !runners.is_empty() {
            collections.insert(QUEUE_RUNNERS.to_owned(), Collection::Bytes(runners));
        }
        Ok(MetaGraph {
            file: File {
                graph: graph.to_graph_def()?,
                saver: saver.map(Saver::describe),
                collections,
            },
        })
    }

    /// Reads a `.meta` file, TensorFlow's or ours.
    pub fn read(path: &str) -> Result<MetaGraph> {
        let file = File::read(&Files::new(), path)?;
        Ok(MetaGraph { file })
    }

    /// Writes a `.meta` file.
    pub fn write(&self, path: &str) -> Result<()> {
        self.file.write(&Files::new(), path)
    }

    /// The names of all collections.
    pub fn collections(&self) -> Vec<&str> {
        self.file.collections.keys().map(String::as_str).collect()
    }

    /// What a collection holds: names of tensors and operations, or of variables.
    pub fn names(&self, collection: &str) -> Vec<String> {
        match self.file.collections.get(collection) {
            Some(Collection::Nodes(names)) => names.clone(),
            Some(Collection::Bytes(_)) => {
                let defs = self.variables(collection).unwrap_or_default();
                defs.into_iter().map(|def| def.variable).collect()
            }
            _ => Vec::new(),
        }
    }

    fn variables(&self, collection: &str) -> Result<Vec<VariableDef>> {
        match self.file.collections.get(collection) {
            Some(Collection::Bytes(all)) => all.iter().map(VariableDef::decode).collect(),
            _ => Ok(Vec::new()),
        }
    }

    /// Adds the graph to another, under the current scope's names if there is one: nodes,
    /// variables, collections, queue runners and the saver.
    ///
    /// Variables of TensorFlow's first kind, which are no resources, are imported as nodes only.
    pub fn import(&self, graph: &Graph) -> Result<Imported> {
        graph.import(&self.file.graph)?;
        let prefix = match graph.scope().as_str() {
            "" => String::new(),
            scope => format!("{scope}/"),
        };
        let names = Names {
            graph,
            prefix: &prefix,
        };
        for (collection, saved) in [(VARIABLES, true), (LOCAL, false)] {
            for def in self.variables(collection)? {
                names.adopt(def, saved)?;
            }
        }
        let mut operations: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
        for (collection, members) in &self.file.collections {
            let Collection::Nodes(members) = members else {
                continue;
            };
            for member in members {
                match member.contains(':') {
                    true => graph.add_to_collection(collection, &names.output(member)?),
                    false => {
                        let found = names.operation(member)?;
                        graph.add_operation_to_collection(collection, &found);
                        operations
                            .entry(collection.clone())
                            .or_default()
                            .push(found);
                    }
                }
            }
        }
        if let Some(Collection::Bytes(runners)) = self.file.collections.get(QUEUE_RUNNERS) {
            for runner in runners {
                Registered::import(graph, QueueRunnerDef::decode(runner)?, &prefix)?;
            }
        }
        let saver = match &self.file.saver {
            None => None,
            Some(def) => Some(Saver::imported(
                names.output(&def.filename)?,
                names.output(&def.save)?,
                names.operation(&def.restore)?,
                def,
            )),
        };
        Ok(Imported { saver, operations })
    }
}

/// Finds what was imported.
struct Names<'a> {
    graph: &'a Graph,
    prefix: &'a str,
}

impl Names<'_> {
    fn output(&self, name: &str) -> Result<Output> {
        self.graph.output(&format!("{}{name}", self.prefix))
    }

    fn operation(&self, name: &str) -> Result<Operation> {
        self.graph.operation(&format!("{}{name}", self.prefix))
    }

    fn adopt(&self, def: VariableDef, saved: bool) -> Result<()> {
        if !def.is_resource {
            warn!(
                variable = def.variable,
                "a variable of the first kind stays a node"
            );
            return Ok(());
        }
        let slice = def.slice.map(slice).transpose()?;
        self.graph.adopt_variable(Adopted {
            handle: self.output(&def.variable)?,
            value: self.output(&def.snapshot)?,
            initial: self.output(&def.initial_value)?,
            initializer: self.operation(&def.initializer)?,
            trainable: def.trainable,
            saved,
            slice,
        })?;
        Ok(())
    }
}

/// The names of what a variable is made of.
fn describe(variable: &Variable) -> VariableDef {
    let ints = |dims: &[usize]| dims.iter().map(|d| *d as i64).collect();
    VariableDef {
        variable: variable.handle().name(),
        initializer: variable.initializer().name(),
        snapshot: variable.value().name(),
        initial_value: variable.initial_value().name(),
        slice: variable.part_of().map(|slice| SliceDef {
            full_name: slice.full_name.clone(),
            full_shape: ints(slice.full_shape.dims()),
            offset: ints(&slice.offset),
            shape: ints(slice.shape.dims()),
        }),
        is_resource: true,
        trainable: variable.is_trainable(),
        only_first_replica: variable.name() == GLOBAL_STEP,
    }
}

fn slice(def: SliceDef) -> Result<SaveSlice> {
    let wrong = || Status::data_loss(format!("a part of '{}' has no shape", def.full_name));
    let sizes = |dims: &[i64]| -> Result<Vec<usize>> {
        let sizes = dims
            .iter()
            .map(|d| usize::try_from(*d).map_err(|_| wrong()));
        sizes.collect()
    };
    Ok(SaveSlice {
        full_shape: Shape::from(sizes(&def.full_shape)?),
        offset: sizes(&def.offset)?,
        shape: Shape::from(sizes(&def.shape)?),
        full_name: def.full_name.clone(),
    })
}
