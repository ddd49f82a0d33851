//! Moving averages of variables: smoother than the variables themselves, for evaluation.

use crate::optimizer::slots::beside;
use downpour_build::{DType, Graph, Init, Operation, Output, Result, Status, Variable};
use parking_lot::Mutex;

/// Keeps `average = decay · average + (1 - decay) · variable` for variables, under TensorFlow's
/// names: `variable/ExponentialMovingAverage`.
///
/// ```
/// use downpour_build::Graph;
/// use downpour_train::ExponentialMovingAverage;
/// let g = Graph::new();
/// let w = g.variable("w").shape([2]).build();
/// let averages = ExponentialMovingAverage::new(0.99);
/// let update = averages.apply(&[w.clone()])?;
/// let average = averages.average(&w).expect("apply made it");
/// assert_eq!(average.name(), "w/ExponentialMovingAverage");
/// # assert_eq!(update.op(), "NoOp");
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[derive(Debug)]
pub struct ExponentialMovingAverage {
    decay: f64,
    updates: Option<Variable>,
    name: String,
    averages: Mutex<Vec<(Variable, Variable)>>,
}

impl ExponentialMovingAverage {
    /// With this decay: near 1, as 0.999, for a long memory.
    pub fn new(decay: f64) -> ExponentialMovingAverage {
        ExponentialMovingAverage {
            decay,
            updates: None,
            name: "ExponentialMovingAverage".to_owned(),
            averages: Mutex::default(),
        }
    }

    /// Forgets faster in the beginning: decays by at most `(1 + n) / (10 + n)` after `n` updates,
    /// usually the global step.
    pub fn num_updates(mut self, updates: &Variable) -> ExponentialMovingAverage {
        self.updates = Some(updates.clone());
        self
    }

    /// What averages are named after.
    pub fn named(mut self, name: &str) -> ExponentialMovingAverage {
        self.name = name.to_owned();
        self
    }

    /// The operation that brings the averages of these variables up to date. Make it wait for
    /// the training operation ([`Graph::with_control`]) to average what that left behind.
    #[track_caller]
    pub fn apply(&self, variables: &[Variable]) -> Result<Operation> {
        let Some(first) = variables.first() else {
            return Err(Status::invalid_argument("there is nothing to average"));
        };
        let graph = first.handle().graph().clone();
        for variable in variables {
            if !variable.dtype().is_floating() {
                return Err(Status::invalid_argument(format!(
                    "The variables must be half, float, or double: {}",
                    variable.name()
                )));
            }
            self.get_or_make(&graph, variable);
        }
        let update = graph.with_scope(&self.name, || {
            let decay = self.decay_now(&graph);
            let updates: Vec<Operation> = variables
                .iter()
                .map(|variable| {
                    let average = self.get_or_make(&graph, variable);
                    graph.with_scope("AssignMovingAvg", || {
                        let rest = (1.0 - &decay).cast(variable.dtype());
                        graph.with_colocation(&average.handle().operation(), || {
                            average.assign_sub(&((average.read() - variable.read()) * rest))
                        })
                    })
                })
                .collect();
            graph.group_scope(&updates)
        });
        graph.check()?;
        Ok(update)
    }

    /// The average of a variable, once [`Self::apply`] made it.
    pub fn average(&self, variable: &Variable) -> Option<Variable> {
        let averages = self.averages.lock();
        let mut of = averages.iter().filter(|(v, _)| same(v, variable));
        of.next().map(|(_, average)| average.clone())
    }

    /// Under which name a checkpoint holds the average of a variable.
    pub fn average_name(&self, variable: &Variable) -> String {
        match self.average(variable) {
            Some(average) => average.save_name().to_owned(),
            None => format!("{}/{}", variable.save_name(), self.name),
        }
    }

    /// What to restore for an evaluation with averages: each trainable variable under its
    /// average's name, all others under their own.
    pub fn variables_to_restore(&self, graph: &Graph) -> Vec<(String, Variable)> {
        let all = graph.saved_variables().into_iter();
        let averages: Vec<Variable> = self.averages.lock().iter().map(|a| a.1.clone()).collect();
        let all = all.filter(|v| !averages.iter().any(|a| same(a, v)));
        all.map(|v| match v.is_trainable() || self.average(&v).is_some() {
            true => (self.average_name(&v), v),
            false => (v.save_name().to_owned(), v),
        })
        .collect()
    }

    #[track_caller]
    fn decay_now(&self, graph: &Graph) -> Output {
        let decay = graph.constant(self.decay as f32);
        let Some(updates) = &self.updates else {
            return decay;
        };
        let count = updates.read().cast(DType::Float);
        decay.minimum(&((&count + 1.0) / (&count + 10.0)))
    }

    #[track_caller]
    fn get_or_make(&self, graph: &Graph, variable: &Variable) -> Variable {
        if let Some(known) = self.average(variable) {
            return known;
        }
        let of = variable.clone();
        let first = Init::function(move |g, _, _| present(g, &of));
        let made = graph.without_control(|| beside(variable, first, &self.name));
        let mut averages = self.averages.lock();
        averages.push((variable.clone(), made.clone()));
        made
    }
}

fn same(a: &Variable, b: &Variable) -> bool {
    a.handle() == b.handle()
}

/// The value of a variable if it has one, else the one that it is about to get.
#[track_caller]
fn present(g: &Graph, variable: &Variable) -> Output {
    let ready = variable.is_initialized();
    let switch = |value: &Output| g.op("Switch").input(value).input(&ready).build();
    let there = switch(&ready).output(1).identity();
    let read = g.op("ReadVariableOp").input(variable.handle());
    let read = read
        .attr("dtype", variable.dtype())
        .control(&there.operation())
        .output();
    let first = switch(variable.initial_value()).output(0);
    g.op("Merge").inputs(&[first, read]).output()
}
