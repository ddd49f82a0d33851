//! Whether a model can be trained: all its variables have values, and the chief has said that
//! these belong together. Without that word a worker could begin on parts of different ages, while
//! the chief is still restoring the others.

use crate::shards::Era;
use downpour_build::{Graph, Init, Operation, Output, Result, Status, Variable};
use downpour_client::Session;

/// Name of the variable that holds the chief's word.
const WORD: &str = "ready/word";

/// Asks all tasks which variables have values.
pub(crate) struct Ready {
    names: Vec<String>,
    all: Option<Output>,
    word: Output,
    give: Operation,
    take_back: Operation,
}

impl Ready {
    /// Adds the operations to the graph.
    pub(crate) fn new(graph: &Graph) -> Ready {
        let step = crate::global_step(graph);
        let home = step.handle().operation();
        let (word, give, take_back) = graph.without_control(|| {
            graph.with_colocation(&home, || {
                // A graph that was supervised before keeps its word: its model goes on.
                let word = graph.find_variable(WORD).unwrap_or_else(|_| {
                    let word = graph.variable(WORD).absolute().init(Init::value(false));
                    word.trainable(false).saved(false).build()
                });
                let say = |value: bool| word.assign(&graph.constant(value));
                (word.value().clone(), say(true), say(false))
            })
        });
        let variables: Vec<Variable> = graph.variables();
        let asked: Vec<Output> = graph.without_control(|| {
            graph.with_scope("ready", || {
                let ask = |v: &Variable| {
                    graph.with_colocation(&v.handle().operation(), || v.is_initialized())
                };
                variables.iter().map(ask).collect()
            })
        });
        let all = (!asked.is_empty()).then(|| downpour_build::stack(&asked, 0));
        Ready {
            names: variables.iter().map(|v| v.name().to_owned()).collect(),
            all,
            word,
            give,
            take_back,
        }
    }

    /// The chief's word that the values belong together.
    pub(crate) fn give_word(&self, session: &Session) -> Result<()> {
        // What is not saved, the era among it, has its first value again.
        Era::begin(session.graph(), session)?;
        session.run(&self.give)
    }

    /// From now on the values may be of different ages.
    pub(crate) fn take_word_back(&self, session: &Session) -> Result<()> {
        session.run(&self.take_back)?;
        Era::begin(session.graph(), session)
    }

    /// What is missing before training may begin.
    pub(crate) fn missing(&self, session: &Session) -> Result<Vec<String>> {
        let missing = self.without_value(session)?;
        if !missing.is_empty() {
            return Ok(missing);
        }
        let word = session.fetch(&self.word)?.scalar_value::<bool>();
        match word.map_err(|e| Status::internal(e.to_string()))? {
            true => Ok(Vec::new()),
            false => Ok(vec!["the chief's word".to_owned()]),
        }
    }

    /// Names of variables without a value.
    pub(crate) fn without_value(&self, session: &Session) -> Result<Vec<String>> {
        let Some(all) = &self.all else {
            return Ok(Vec::new());
        };
        let values = session.fetch(all)?;
        let values = values.as_slice::<bool>();
        let values = values.map_err(|e| Status::internal(e.to_string()))?;
        let missing = self.names.iter().zip(values).filter(|(_, ready)| !**ready);
        Ok(missing.map(|(name, _)| name.clone()).collect())
    }
}
