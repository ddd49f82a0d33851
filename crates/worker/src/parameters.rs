//! Which of a task's variables are the model's, and which one counts its steps: for reports, so that
//! what is shown as "parameters" and "global step" means what its reader takes it for.

use downpour_runtime::{ResourceManager, Variable, VariableFacts};
use downpour_tensor::DType;
use std::collections::HashSet;

/// The name, alone or at the end of a scope, of the count of steps that all workers share.
const GLOBAL_STEP: &str = "global_step";
/// Scopes in which a training keeps its own ledger.
const BOOKS: [&str; 1] = ["Sandblaster/"];

/// Tells parameters from what optimizers and trainings keep beside them.
pub(crate) struct Parameters<'a> {
    names: HashSet<(&'a str, &'a str)>,
}

impl<'a> Parameters<'a> {
    /// Among these variables.
    pub(crate) fn among(variables: &'a [(String, String, VariableFacts)]) -> Parameters<'a> {
        let names = variables.iter().map(|(c, n, _)| (c.as_str(), n.as_str()));
        Parameters {
            names: names.collect(),
        }
    }

    /// Whether a variable is a parameter: numbers with a fraction that are nobody's slot. A slot is
    /// called by its variable's name and its own.
    pub(crate) fn has(&self, container: &str, name: &str, facts: &VariableFacts) -> bool {
        let is_real = facts.contents.as_ref().is_some_and(|(dtype, _)| {
            matches!(
                dtype,
                DType::Float | DType::Double | DType::Half | DType::BFloat16
            )
        });
        let mut above = name.match_indices('/').filter_map(|(at, _)| name.get(..at));
        let is_slot = above.any(|variable| self.names.contains(&(container, variable)));
        let own = name.rsplit('/').next().unwrap_or(name);
        let is_power = own.starts_with("beta1_power") || own.starts_with("beta2_power");
        let is_book = BOOKS.iter().any(|scope| name.starts_with(scope));
        is_real && !is_slot && !is_power && !is_book
    }
}

/// The count of steps among these variables; the furthest if there are several.
pub(crate) fn global_step<'a>(
    resources: &ResourceManager,
    names: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<i64> {
    let counts = names.filter(|(_, name)| {
        let scope = name.strip_suffix(GLOBAL_STEP);
        scope.is_some_and(|scope| scope.is_empty() || scope.ends_with('/'))
    });
    let values = counts.filter_map(|(container, name)| {
        let value = resources.find::<Variable>(container, name)?.read()?;
        if !value.dims().is_empty() {
            return None;
        }
        match value.dtype() {
            DType::Int64 => value.as_slice::<i64>().ok()?.first().copied(),
            DType::Int32 => value
                .as_slice::<i32>()
                .ok()?
                .first()
                .copied()
                .map(i64::from),
            _ => None,
        }
    });
    values.max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_tensor::Tensor;
    use std::sync::Arc;

    fn task(variables: &[(&str, Tensor)]) -> ResourceManager {
        let resources = ResourceManager::new();
        for (name, value) in variables {
            let variable = Arc::new(Variable::with_value(value.clone()));
            resources.insert("", name, variable);
        }
        resources
    }

    #[test]
    fn slots_and_counters_are_no_parameters() {
        let one = || Tensor::vector(vec![1.0f32, 2.0]);
        let resources = task(&[
            ("w", one()),
            ("w/Adam", one()),
            ("w/Adam_1", one()),
            ("w/Sandblaster/gradient", one()),
            ("table/part_0", one()),
            ("table/part_0/Adagrad", one()),
            ("train/beta1_power", Tensor::scalar(0.9f32)),
            ("Sandblaster/record", Tensor::vector(vec![1.0f64])),
            ("global_step", Tensor::scalar(7i64)),
        ]);
        let all = resources.variables();
        let parameters = Parameters::among(&all);
        let mut found: Vec<&str> = all
            .iter()
            .filter(|(c, n, facts)| parameters.has(c, n, facts))
            .map(|(_, n, _)| n.as_str())
            .collect();
        found.sort_unstable();
        assert_eq!(found, ["table/part_0", "w"]);
    }

    #[test]
    fn the_count_of_steps_is_known_by_its_name() {
        let resources = task(&[
            ("my_global_step", Tensor::scalar(99i64)),
            ("global_step", Tensor::scalar(7i64)),
            ("tower/global_step", Tensor::scalar(5i32)),
            ("odd/global_step", Tensor::vector(vec![70i64])),
        ]);
        let names = resources.variables();
        let names = || names.iter().map(|(c, n, _)| (c.as_str(), n.as_str()));
        assert_eq!(global_step(&resources, names()), Some(7));
        assert_eq!(global_step(&ResourceManager::new(), names()), None);
    }
}
