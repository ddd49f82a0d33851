//! Variables: state that outlives a step, shared by name between all who build the same graph.

use crate::{
    DType, Graph, Init, IntoShape, Operation, Output, PartitionedVariable, Partitioner, Reuse,
    SaveSlice,
};
use downpour_graph::{AttrValue, Result, Status};
use downpour_tensor::PartialShape;
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;

/// A variable of a graph. Where a tensor is wanted, it stands for its value.
///
/// ```
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([1.0f32, 2.0])).build();
/// let (init, add) = (g.initialize_variables(), w.assign_add(&g.constant([10.0f32, 10.0])));
/// let twice = &*w * 2.0;
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&init)?;
/// session.run(&add)?;
/// assert_eq!(session.fetch(&w)?.as_slice::<f32>()?, [11.0, 12.0]);
/// assert_eq!(session.fetch(&twice)?.as_slice::<f32>()?, [22.0, 24.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Variable(pub(crate) Shared);

pub(crate) type Shared = Arc<Parts>;

/// What a variable is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    name: String,
    dtype: DType,
    shape: PartialShape,
    handle: Output,
    value: Output,
    initial: Output,
    initializer: Operation,
    trainable: bool,
    saved: bool,
    slice: Option<SaveSlice>,
}

/// A variable about to be made.
///
/// ```
/// use downpour::{DType, Graph, Init, Server, ServerConfig, Session};
/// let g = Graph::new();
/// let seen = g.variable("seen").shape([2]).dtype(DType::Int64).trainable(false).build();
/// let rate = g.variable("rate").init(Init::value(0.5f32)).saved(false).build();
/// assert_eq!((g.trainable_variables()[0].name(), g.saved_variables()[0].name()), ("rate", "seen"));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// // What is no float begins with zeros.
/// assert_eq!(session.fetch(seen.initial_value())?.as_slice::<i64>()?, [0, 0]);
/// assert_eq!(session.fetch(rate.initial_value())?.scalar_value::<f32>()?, 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a variable is made by `build`"]
pub struct VariableBuilder {
    graph: Graph,
    name: String,
    dtype: Option<DType>,
    shape: Option<PartialShape>,
    init: Option<Init>,
    trainable: bool,
    saved: bool,
    absolute: bool,
    reuse: Option<Reuse>,
    slice: Option<SaveSlice>,
}

impl Graph {
    /// Begins a variable.
    ///
    /// ```
    /// use downpour_build::{Graph, Init};
    /// let g = Graph::new();
    /// let w = g.variable("w").shape([3, 2]).init(Init::truncated_normal(0.0, 0.1)).build();
    /// let steps = g.variable("steps").init(Init::value(0i64)).trainable(false).build();
    /// assert_eq!((w.shape().to_string(), g.trainable_variables().len()), ("[3,2]".to_owned(), 1));
    /// # assert_eq!(steps.name(), "steps");
    /// ```
    pub fn variable(&self, name: &str) -> VariableBuilder {
        VariableBuilder {
            graph: self.clone(),
            name: name.to_owned(),
            dtype: None,
            shape: None,
            init: None,
            trainable: true,
            saved: true,
            absolute: false,
            reuse: None,
            slice: None,
        }
    }

    /// All variables, in the order they were made.
    pub fn variables(&self) -> Vec<Variable> {
        self.outermost()
            .inner
            .lock()
            .variables
            .iter()
            .cloned()
            .map(Variable)
            .collect()
    }

    /// The variables that optimizers change.
    pub fn trainable_variables(&self) -> Vec<Variable> {
        let all = self.variables().into_iter();
        all.filter(|v| v.0.trainable).collect()
    }

    /// The variables that checkpoints keep.
    pub fn saved_variables(&self) -> Vec<Variable> {
        self.variables().into_iter().filter(|v| v.0.saved).collect()
    }

    /// Gives every variable its first value.
    #[track_caller]
    pub fn initialize_variables(&self) -> Operation {
        let all: Vec<Operation> = self
            .variables()
            .iter()
            .map(|v| v.initializer().clone())
            .collect();
        self.group("init", &all)
    }

    /// The variable of this name.
    pub fn find_variable(&self, name: &str) -> Result<Variable> {
        let found = self.variables().into_iter().find(|v| v.name() == name);
        found.ok_or_else(|| Status::not_found(format!("the graph has no variable '{name}'")))
    }
}

/// The operations of a variable that a graph holds already, as after an import.
///
/// ```
/// use downpour::{Adopted, Graph, Init, Server, ServerConfig, Session};
/// # let original = Graph::new();
/// # original.variable("w").init(Init::value(3.0f32)).build();
/// # let def = original.to_graph_def()?;
/// let g = Graph::new();
/// g.import(&def)?;
/// assert!(g.variables().is_empty());
/// let w = g.adopt_variable(Adopted {
///     handle: g.output("w:0")?,
///     value: g.output("w/Read/ReadVariableOp:0")?,
///     initial: g.output("w/Initializer/Const:0")?,
///     initializer: g.operation("w/Assign")?,
///     trainable: true,
///     saved: true,
///     slice: None,
/// })?;
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(w.initializer())?;
/// assert_eq!(session.fetch(&w)?.scalar_value::<f32>()?, 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Adopted {
    /// Its handle.
    pub handle: Output,
    /// Its value.
    pub value: Output,
    /// Its first value.
    pub initial: Output,
    /// What gives it its first value.
    pub initializer: Operation,
    /// Whether optimizers change it.
    pub trainable: bool,
    /// Whether checkpoints keep it.
    pub saved: bool,
    /// Which part of a larger whole it is.
    pub slice: Option<SaveSlice>,
}

impl Graph {
    /// Takes operations that the graph holds already for a variable.
    ///
    /// ```
    /// use downpour_build::{Adopted, Graph, Init};
    /// let g = Graph::new();
    /// g.variable("w").init(Init::value(1.0f32)).build();
    /// let other = Graph::new();
    /// other.import(&g.to_graph_def()?)?;
    /// let w = other.adopt_variable(Adopted {
    ///     handle: other.output("w:0")?,
    ///     value: other.output("w/Read/ReadVariableOp:0")?,
    ///     initial: other.output("w/Initializer/Const:0")?,
    ///     initializer: other.operation("w/Assign")?,
    ///     trainable: true,
    ///     saved: true,
    ///     slice: None,
    /// })?;
    /// assert_eq!((w.name(), other.trainable_variables().len()), ("w", 1));
    /// # Ok::<(), downpour_build::Status>(())
    /// ```
    pub fn adopt_variable(&self, parts: Adopted) -> Result<Variable> {
        let operation = parts.handle.operation();
        let name = operation.name();
        if self.find_variable(&name).is_ok() {
            let text = format!("the graph has a variable '{name}' already");
            return Err(Status::already_exists(text));
        }
        let attrs = operation.attrs();
        let (dtype, shape) = (attrs.get("dtype"), attrs.get("shape"));
        let (Ok(AttrValue::Type(dtype)), Ok(AttrValue::Shape(shape))) = (dtype, shape) else {
            return Err(Status::invalid_argument(format!(
                "'{name}' is a {}, not the handle of a variable",
                operation.op()
            )));
        };
        let made = Arc::new(Parts {
            name,
            dtype: *dtype,
            shape: shape.clone(),
            handle: parts.handle,
            value: parts.value,
            initial: parts.initial,
            initializer: parts.initializer,
            trainable: parts.trainable,
            saved: parts.saved,
            slice: parts.slice,
        });
        self.outermost().inner.lock().variables.push(made.clone());
        Ok(Variable(made))
    }
}

impl VariableBuilder {
    /// Its shape, all dimensions known.
    pub fn shape(mut self, shape: impl IntoShape) -> VariableBuilder {
        self.shape = Some(shape.into_shape());
        self
    }

    /// Its element type; float if not given.
    pub fn dtype(mut self, dtype: DType) -> VariableBuilder {
        self.dtype = Some(dtype);
        self
    }

    /// Its first value; Glorot's uniform one, or zeros for what is no float, if not given.
    pub fn init(mut self, init: Init) -> VariableBuilder {
        self.init = Some(init);
        self
    }

    /// Whether optimizers change it.
    pub fn trainable(mut self, trainable: bool) -> VariableBuilder {
        self.trainable = trainable;
        self
    }

    /// Whether checkpoints keep it.
    pub fn saved(mut self, saved: bool) -> VariableBuilder {
        self.saved = saved;
        self
    }

    /// Takes the name as it is, whatever scope the variable is made in.
    pub fn absolute(mut self) -> VariableBuilder {
        self.absolute = true;
        self
    }

    /// Whether a variable of this name may or must exist already, whatever the variable scope says.
    pub fn reuse(mut self, reuse: Reuse) -> VariableBuilder {
        self.reuse = Some(reuse);
        self
    }

    /// Says that it is a part of something larger, as which checkpoints keep it.
    pub fn slice_of(mut self, slice: SaveSlice) -> VariableBuilder {
        self.slice = Some(slice);
        self
    }

    /// Makes it in parts, each a variable of its own called `name/part_0` and so on.
    ///
    /// ```
    /// use downpour_build::{Graph, Partitioner};
    /// let g = Graph::new();
    /// let table = g.variable("table").shape([10, 4]).partitioned(&Partitioner::fixed(3));
    /// let rows: Vec<String> = table.parts().iter().map(|p| p.shape().to_string()).collect();
    /// assert_eq!(rows, ["[4,4]", "[3,4]", "[3,4]"]);
    /// assert_eq!(table.value().shape().to_string(), "[10,4]");
    /// ```
    #[track_caller]
    pub fn partitioned(self, partitioner: &Partitioner) -> PartitionedVariable {
        PartitionedVariable::make(self, partitioner)
    }

    /// Makes the variable, on the device that the scopes say; its first value is computed there.
    #[track_caller]
    pub fn build(self) -> Variable {
        let plan = self.plan();
        if let Some(known) = plan.graph.shared(&plan) {
            return known;
        }
        plan.make()
    }

    /// Settles name, type, shape and first value.
    #[track_caller]
    pub(crate) fn plan(self) -> VariablePlan {
        // A variable outlives the function in whose body it may be made.
        let g = self.graph.outermost();
        let given = self.init.as_ref().and_then(Init::given);
        let dtype = self
            .dtype
            .or(given.as_ref().map(|g| g.0))
            .unwrap_or(DType::Float);
        let init = self.init.unwrap_or_else(|| match dtype.is_floating() {
            true => Init::glorot_uniform(),
            false => Init::zeros(),
        });
        let shape = self.shape.or(given.map(|g| g.1)).unwrap_or_default();
        if shape.to_shape().is_none() {
            let error = Status::invalid_argument(format!(
                "variable '{}' needs a known shape, not {shape}",
                self.name
            ));
            g.fail(error, Location::caller());
        }
        let sharing = match self.absolute {
            true => None,
            false => g.inner.lock().sharing.clone(),
        };
        let reuse = self.reuse.or(sharing.as_ref().map(|s| s.reuse));
        let name = match (&sharing, self.absolute) {
            (Some(sharing), _) => sharing.full(&self.name),
            (None, true) => self.name,
            (None, false) => match g.scope().as_str() {
                "" => self.name,
                scope => format!("{scope}/{}", self.name),
            },
        };
        VariablePlan {
            graph: g,
            name,
            dtype,
            shape,
            init,
            trainable: self.trainable,
            saved: self.saved,
            reuse,
            slice: self.slice,
        }
    }
}

/// A variable of which everything is settled.
pub(crate) struct VariablePlan {
    pub(crate) graph: Graph,
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: PartialShape,
    pub(crate) init: Init,
    pub(crate) trainable: bool,
    pub(crate) saved: bool,
    /// Nothing if a name that is taken gets a number.
    pub(crate) reuse: Option<Reuse>,
    pub(crate) slice: Option<SaveSlice>,
}

impl VariablePlan {
    /// The mistake in what exists under this name, if there is one.
    pub(crate) fn refuse(&self, found: Option<(DType, &PartialShape)>) -> Option<Status> {
        let name = &self.name;
        let text = match (self.reuse?, found) {
            (Reuse::Never, Some(_)) => format!(
                "variable '{name}' exists already; Reuse::Auto or Reuse::Always would share it"
            ),
            (Reuse::Always, None) => format!("there is no variable '{name}' to share"),
            (_, Some((_, shape))) if *shape != self.shape => {
                format!("variable '{name}' has shape {shape}, not {}", self.shape)
            }
            (_, Some((dtype, _))) if dtype != self.dtype => format!(
                "variable '{name}' is {}, not {}",
                dtype.name(),
                self.dtype.name()
            ),
            _ => return None,
        };
        Some(Status::invalid_argument(text))
    }

    /// Makes the variable.
    #[track_caller]
    pub(crate) fn make(self) -> Variable {
        let graph = self.graph.clone();
        graph.itself(|| self.make_here())
    }

    #[track_caller]
    fn make_here(self) -> Variable {
        let (g, dtype, shape) = (&self.graph, self.dtype, self.shape);
        let name = g.in_scope(String::new(), || g.inner.lock().unique(&self.name));
        let full = self.slice.as_ref().map(|s| (&s.full_shape).into());
        let full: PartialShape = full.unwrap_or_else(|| shape.clone());
        // Whatever scope it is made in, its operations are called after it.
        g.without_control(|| {
            let handle = g.in_scope(String::new(), || {
                g.inner.lock().release(&name);
                g.op("VarHandleOp")
                    .name(name.as_str())
                    .attr("dtype", dtype)
                    .attr("shape", AttrValue::Shape(shape.clone()))
                    .attr("shared_name", name.as_str())
                    .output()
            });
            let (initial, initializer, value) = g.in_scope(name.clone(), || {
                g.with_colocation(&handle.operation(), || {
                    let make = || self.init.build(g, dtype, &shape, &full);
                    let initial = g.with_scope("Initializer", make);
                    let assign = g.op("AssignVariableOp").name("Assign");
                    let assign = assign.input(&handle).input(&initial).build();
                    let read = g.op("ReadVariableOp").name("Read/ReadVariableOp");
                    let value = read.input(&handle).attr("dtype", dtype).output();
                    (initial, assign, value)
                })
            });
            let parts = Arc::new(Parts {
                name,
                dtype,
                shape,
                handle,
                value,
                initial,
                initializer,
                trainable: self.trainable,
                saved: self.saved,
                slice: self.slice,
            });
            g.inner.lock().variables.push(parts.clone());
            Variable(parts)
        })
    }
}

impl Graph {
    /// The variable that exists under a planned name and may be shared.
    #[track_caller]
    fn shared(&self, plan: &VariablePlan) -> Option<Variable> {
        plan.reuse?;
        let found = self.find_variable(&plan.name).ok();
        let facts = found.as_ref().map(|v| (v.0.dtype, &v.0.shape));
        if let Some(error) = plan.refuse(facts) {
            self.fail(error, Location::caller());
            return None;
        }
        found
    }
}

impl Variable {
    /// Its name, as in checkpoints.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Shape.
    pub fn shape(&self) -> PartialShape {
        self.0.shape.clone()
    }

    /// Where it is kept: what updates and gradients refer to.
    pub fn handle(&self) -> &Output {
        &self.0.handle
    }

    /// Its value at the beginning of a step.
    pub fn value(&self) -> &Output {
        &self.0.value
    }

    /// Its value when everything that the current scopes wait for is done.
    #[track_caller]
    pub fn read(&self) -> Output {
        let op = self.op("ReadVariableOp");
        op.attr("dtype", self.0.dtype).output()
    }

    /// Its first value.
    pub fn initial_value(&self) -> &Output {
        &self.0.initial
    }

    /// Gives it its first value.
    pub fn initializer(&self) -> &Operation {
        &self.0.initializer
    }

    /// What it is called in checkpoints.
    pub fn save_name(&self) -> &str {
        let slice = self.0.slice.as_ref();
        slice.map_or(&self.0.name, |s| &s.full_name)
    }

    /// Which part of that it is, in TensorFlow's words; empty if it is the whole.
    pub fn save_slice(&self) -> String {
        let slice = self.0.slice.as_ref();
        slice.map(SaveSlice::spec).unwrap_or_default()
    }

    /// Whether optimizers change it.
    pub fn is_trainable(&self) -> bool {
        self.0.trainable
    }

    /// Which part of a larger whole it is, if it is one.
    pub fn part_of(&self) -> Option<&SaveSlice> {
        self.0.slice.as_ref()
    }

    /// Whether checkpoints keep it.
    pub fn is_saved(&self) -> bool {
        self.0.saved
    }

    /// Gives it a value.
    #[track_caller]
    pub fn assign(&self, value: &Output) -> Operation {
        self.update("AssignVariableOp", value)
    }

    /// Adds to it.
    #[track_caller]
    pub fn assign_add(&self, value: &Output) -> Operation {
        self.update("AssignAddVariableOp", value)
    }

    /// Subtracts from it.
    #[track_caller]
    pub fn assign_sub(&self, value: &Output) -> Operation {
        self.update("AssignSubVariableOp", value)
    }

    /// Begins an operation on the variable, where it is kept.
    #[track_caller]
    fn op(&self, op: &str) -> crate::OpBuilder {
        let handle = &self.0.handle;
        let op = handle.graph().op(op).input(handle);
        match handle.operation().device().as_str() {
            "" => op,
            device => op.device(device),
        }
    }

    #[track_caller]
    fn update(&self, op: &str, value: &Output) -> Operation {
        self.op(op).input(value).build()
    }

    /// Whether it has a value.
    #[track_caller]
    pub fn is_initialized(&self) -> Output {
        self.op("VarIsInitializedOp").output()
    }

    /// Rows at these positions; the gradient touches only them.
    #[track_caller]
    pub fn gather(&self, positions: &Output) -> Output {
        let op = self.op("ResourceGather");
        op.input(positions).attr("dtype", self.0.dtype).output()
    }
}

impl Deref for Variable {
    type Target = Output;

    /// The value, so that a variable can be used like any output.
    fn deref(&self) -> &Output {
        &self.0.value
    }
}
