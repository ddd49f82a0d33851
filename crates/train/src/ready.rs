//! Whether a model can be trained: all its variables have values.

use downpour_build::{Graph, Output, Result, Variable};
use downpour_client::Session;

/// Asks all tasks which variables have values.
pub(crate) struct Ready {
    names: Vec<String>,
    all: Option<Output>,
}

impl Ready {
    /// Adds the operations to the graph.
    pub(crate) fn new(graph: &Graph) -> Ready {
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
        }
    }

    /// Names of variables without a value.
    pub(crate) fn missing(&self, session: &Session) -> Result<Vec<String>> {
        let Some(all) = &self.all else {
            return Ok(Vec::new());
        };
        let values = session.fetch(all)?;
        let values = values.as_slice::<bool>();
        let values = values.map_err(|e| downpour_build::Status::internal(e.to_string()))?;
        let missing = self.names.iter().zip(values).filter(|(_, ready)| !**ready);
        Ok(missing.map(|(name, _)| name.clone()).collect())
    }
}
