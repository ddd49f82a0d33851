//! Variables: state that outlives a step, shared by name between all who build the same graph.

use crate::{DType, Graph, Init, IntoShape, Operation, Output};
use downpour_graph::{AttrValue, Result, Status};
use downpour_tensor::PartialShape;
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;

/// A variable of a graph. Where a tensor is wanted, it stands for its value.
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
}

/// A variable about to be made.
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
        }
    }

    /// All variables, in the order they were made.
    pub fn variables(&self) -> Vec<Variable> {
        self.inner
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

    /// Makes the variable, on the device that the scopes say; its first value is computed there.
    #[track_caller]
    pub fn build(self) -> Variable {
        let g = &self.graph;
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
        let name = match self.absolute {
            true => g.in_scope(String::new(), || g.inner.lock().unique(&self.name)),
            false => g.inner.lock().unique(&self.name),
        };
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
                    let initial = g.with_scope("Initializer", || init.build(g, dtype, &shape));
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
            });
            g.inner.lock().variables.push(parts.clone());
            Variable(parts)
        })
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
        let graph = self.0.handle.graph();
        let op = graph.op("ReadVariableOp").input(&self.0.handle);
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
        &self.0.name
    }

    /// Which part of that it is, in TensorFlow's words; empty if it is the whole.
    pub fn save_slice(&self) -> String {
        String::new()
    }

    /// Whether optimizers change it.
    pub fn is_trainable(&self) -> bool {
        self.0.trainable
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

    #[track_caller]
    fn update(&self, op: &str, value: &Output) -> Operation {
        let op = self.0.handle.graph().op(op).input(&self.0.handle);
        op.input(value).build()
    }

    /// Whether it has a value.
    #[track_caller]
    pub fn is_initialized(&self) -> Output {
        let op = self.0.handle.graph().op("VarIsInitializedOp");
        op.input(&self.0.handle).output()
    }

    /// Rows at these positions; the gradient touches only them.
    #[track_caller]
    pub fn gather(&self, positions: &Output) -> Output {
        let op = self
            .0
            .handle
            .graph()
            .op("ResourceGather")
            .input(&self.0.handle);
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
