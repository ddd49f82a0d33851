//! Tables of replicas among a task's variables, found by their names (`wire::replicas`) and read as
//! they are: whatever a client put there, a report is at most bounded nonsense.

use downpour_runtime::{ResourceManager, Variable};
use downpour_tensor::{DType, Tensor};
use downpour_wire::control::{ReplicaReport, StalenessReport, TrainingReport};
use downpour_wire::replicas::{
    CLASSES, CLASSES_FROM, CLOCKS, PARKED, TOTAL, UPDATES, VARIABLES, WORST,
};

/// Most trainings, replicas of one, and variables of one that a report names.
const MAX_TRAININGS: usize = 16;
const MAX_REPLICAS: usize = 1000;
const MAX_VARIABLES: usize = 2000;

/// The trainings whose tables are among these variables, given by container and name.
pub(crate) fn trainings<'a>(
    resources: &ResourceManager,
    names: impl Iterator<Item = (&'a str, &'a str)>,
) -> Vec<TrainingReport> {
    let scopes = names.filter_map(|(container, name)| {
        let scope = name.strip_suffix(CLOCKS)?;
        (scope.is_empty() || scope.ends_with('/')).then_some((container, scope))
    });
    let tables = scopes.filter_map(|(container, scope)| table(resources, container, scope));
    tables.take(MAX_TRAININGS).collect()
}

/// The table of a scope; nothing if a column is missing or is none.
fn table(resources: &ResourceManager, container: &str, scope: &str) -> Option<TrainingReport> {
    let value = |column: &str| {
        let name = format!("{scope}{column}");
        resources.find::<Variable>(container, &name)?.read()
    };
    let clocks = numbers(&value(CLOCKS)?)?;
    let (updates, total) = (numbers(&value(UPDATES)?)?, numbers(&value(TOTAL)?)?);
    let (worst, classes) = (numbers(&value(WORST)?)?, numbers(&value(CLASSES)?)?);
    let mut rows = classes.chunks(CLASSES_FROM.len());
    let mut replicas = Vec::new();
    for (i, clock) in clocks.iter().enumerate().take(MAX_REPLICAS) {
        let takes_part = *clock != PARKED;
        replicas.push(ReplicaReport {
            takes_part,
            clock: if takes_part { count(*clock) } else { 0 },
            staleness: Some(StalenessReport {
                updates: count(*updates.get(i)?),
                total: count(*total.get(i)?),
                worst: count(*worst.get(i)?),
                classes: rows.next()?.iter().map(|n| count(*n)).collect(),
            }),
        });
    }
    let variables = value(VARIABLES)?;
    let variables = variables.as_strings().ok()?.iter().take(MAX_VARIABLES);
    Some(TrainingReport {
        name: scope.trim_end_matches('/').to_owned(),
        variables: variables
            .map(|name| String::from_utf8_lossy(name).into_owned())
            .collect(),
        replicas,
        classes_from: CLASSES_FROM.to_vec(),
    })
}

fn numbers(column: &Tensor) -> Option<Vec<i64>> {
    let is_column = column.dtype() == DType::Int64 && column.dims().len() == 1;
    is_column.then(|| column.as_slice::<i64>().ok().map(<[i64]>::to_vec))?
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn put(resources: &ResourceManager, scope: &str, column: &str, value: Tensor) {
        let variable = Arc::new(Variable::with_value(value));
        resources.insert("ps", &format!("{scope}{column}"), variable);
    }

    fn fill(resources: &ResourceManager, scope: &str) {
        let columns = [
            (CLOCKS, vec![7, PARKED]),
            (UPDATES, vec![5, 2]),
            (TOTAL, vec![9, 0]),
            (WORST, vec![4, 0]),
            (CLASSES, (0..2 * CLASSES_FROM.len() as i64).collect()),
        ];
        for (column, values) in columns {
            put(resources, scope, column, Tensor::vector::<i64>(values));
        }
        let names = Tensor::strings(vec!["w".into(), "b".into()], [2]);
        put(resources, scope, VARIABLES, names.unwrap());
    }

    fn found(resources: &ResourceManager) -> Vec<TrainingReport> {
        let names = resources.variables();
        let names = names.iter().map(|(c, n, _)| (c.as_str(), n.as_str()));
        trainings(resources, names)
    }

    #[test]
    fn a_table_is_known_by_its_columns() {
        let resources = ResourceManager::new();
        fill(&resources, "model/downpour/");
        let [training] = &found(&resources)[..] else {
            panic!("{:?}", found(&resources));
        };
        assert_eq!(training.name, "model/downpour");
        assert_eq!(training.variables, ["w", "b"]);
        let [first, second] = &training.replicas[..] else {
            panic!("{training:?}");
        };
        assert_eq!((first.takes_part, first.clock), (true, 7));
        assert_eq!((second.takes_part, second.clock), (false, 0));
        let staleness = first.staleness.clone().unwrap();
        assert_eq!(
            (staleness.updates, staleness.total, staleness.worst),
            (5, 9, 4)
        );
        assert_eq!(second.staleness.clone().unwrap().classes[0], 20);
    }

    #[test]
    fn replicas_and_tasks_count_in_the_same_classes() {
        assert_eq!(CLASSES_FROM, downpour_runtime::STALENESS_FROM);
    }

    #[test]
    fn what_only_looks_like_a_table_is_none() {
        for column in [CLOCKS, UPDATES, TOTAL, WORST, CLASSES, VARIABLES] {
            let resources = ResourceManager::new();
            fill(&resources, "");
            assert_eq!(found(&resources).len(), 1);
            for wrong in [
                Tensor::scalar(1.0f32),
                Tensor::scalar(1i64),
                Tensor::vector(vec![1.0f32, 2.0]),
            ] {
                put(&resources, "", column, wrong);
                assert_eq!(found(&resources).len(), 0, "{column}");
            }
            resources.remove::<Variable>("ps", column);
            assert_eq!(found(&resources).len(), 0, "{column}");
        }
        let resources = ResourceManager::new();
        fill(&resources, "");
        put(&resources, "", UPDATES, Tensor::vector(vec![-1i64]));
        assert_eq!(found(&resources).len(), 0, "too short");
        fill(&resources, "not_a_scope_of_");
        assert_eq!(found(&resources).len(), 0);
    }
}
