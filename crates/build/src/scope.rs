//! Variable scopes: parts of a model that are built several times over the same variables, as
//! towers and training beside evaluation are.
//!
//! Invariant: within a variable scope a variable's name depends only on the path of scopes from
//! there, never on how often the scope was entered or which name scopes are around it.

use crate::Graph;
use std::collections::HashMap;

/// What happens when a variable of that name exists, or does not.
///
/// ```
/// use downpour_build::{Graph, Reuse};
/// let g = Graph::new();
/// let layer = |reuse| g.with_variable_scope("layer", reuse, || g.variable("w").shape([2]).build());
/// let (made, shared) = (layer(Reuse::Never), layer(Reuse::Always));
/// assert_eq!(made.handle(), shared.handle());
/// layer(Reuse::Never);
/// assert!(g.check().unwrap_err().message.contains("'layer/w' exists already"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Reuse {
    /// Each is made once: one that exists already is a mistake.
    #[default]
    Never,
    /// None is made: one that does not exist yet is a mistake.
    Always,
    /// Whoever asks first makes it; the others share it.
    Auto,
}

/// The variable scope that is open.
#[derive(Clone)]
pub(crate) struct Sharing {
    /// Scopes from the outermost variable scope on.
    pub(crate) path: String,
    pub(crate) reuse: Reuse,
    /// Paths that were entered since the variable scope was, and the last number given to each.
    entered: HashMap<String, usize>,
}

impl Sharing {
    /// `name` inside this scope.
    pub(crate) fn full(&self, name: &str) -> String {
        match self.path.as_str() {
            "" => name.to_owned(),
            path => format!("{path}/{name}"),
        }
    }
}

impl Graph {
    /// Names what `body` makes `name/…`, and shares its variables with every other scope of that
    /// name: they are found by name, whatever name scopes are around.
    ///
    /// Operations get names of their own each time (`name_1/…`), as in [`Graph::with_scope`]; scopes
    /// inside count towards a variable's name, and begin anew each time this scope is entered, so
    /// that the second `dense` of a model is the same as the second `dense` of its next copy. A
    /// scope inside that says [`Reuse::Never`] does as the one around it. A variable that is asked
    /// for again with another shape or type is a mistake at that line.
    ///
    /// ```
    /// use downpour_build::{DType, Graph, Reuse};
    /// let g = Graph::new();
    /// let tower = |x| {
    ///     g.with_variable_scope("model", Reuse::Auto, || {
    ///         let w = g.variable("w").shape([3, 2]).build();
    ///         g.with_scope("product", || g.placeholder(x, DType::Float, [None, Some(3)]).matmul(&w))
    ///     })
    /// };
    /// let (a, b) = (tower("a"), tower("b"));
    /// assert_eq!(g.variables().len(), 1);
    /// assert_eq!(g.variables()[0].name(), "model/w");
    /// assert_ne!(a.name(), b.name());
    ///
    /// g.with_variable_scope("model", Reuse::Always, || g.variable("w").shape([5]).build());
    /// let error = g.check().unwrap_err();
    /// assert!(error.message.contains("'model/w' has shape [3,2], not [5]"), "{error}");
    /// ```
    pub fn with_variable_scope<R>(&self, name: &str, reuse: Reuse, body: impl FnOnce() -> R) -> R {
        let root = self.outermost();
        let outer = root.inner.lock().sharing.take();
        let (path, around) = match &outer {
            Some(outer) => (outer.full(name), outer.reuse),
            None => (name.to_owned(), Reuse::Never),
        };
        let reuse = match reuse {
            Reuse::Never => around,
            other => other,
        };
        let mine = Sharing {
            path,
            reuse,
            entered: HashMap::new(),
        };
        root.inner.lock().sharing = Some(mine);
        let full = self.innermost().inner.lock().unique(name);
        let result = self.in_scope(full, body);
        root.inner.lock().sharing = outer;
        result
    }

    /// Inside a variable scope, adds a scope to the path of variables while `body` runs.
    pub(crate) fn in_variable_path<R>(&self, name: &str, body: impl FnOnce() -> R) -> R {
        let root = self.outermost();
        let outer = {
            let mut inner = root.inner.lock();
            let Some(sharing) = &mut inner.sharing else {
                drop(inner);
                return body();
            };
            let full = sharing.full(name);
            let mut path = full.clone();
            let mut number = sharing.entered.get(&full).copied().unwrap_or(0);
            while sharing.entered.contains_key(&path) {
                number += 1;
                path = format!("{full}_{number}");
            }
            sharing.entered.insert(path.clone(), 0);
            sharing.entered.insert(full, number);
            std::mem::replace(&mut sharing.path, path)
        };
        let result = body();
        if let Some(sharing) = &mut root.inner.lock().sharing {
            sharing.path = outer;
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Partitioner};

    fn names(g: &Graph) -> Vec<String> {
        let all = g.variables();
        all.iter().map(|v| v.name().to_owned()).collect()
    }

    #[test]
    fn copies_of_a_model_share_layer_by_layer() {
        let g = Graph::new();
        let model = || {
            g.with_variable_scope("model", Reuse::Auto, || {
                for _ in 0..2 {
                    g.with_scope("dense", || g.variable("w").shape([2]).build());
                }
            });
        };
        g.with_scope("tower_0", model);
        g.with_scope("tower_1", model);
        assert_eq!(names(&g), ["model/dense/w", "model/dense_1/w"]);
        g.check().unwrap();
    }

    #[test]
    fn outside_a_variable_scope_each_is_its_own() {
        let g = Graph::new();
        for _ in 0..2 {
            g.with_scope("dense", || g.variable("w").shape([2]).build());
        }
        g.variable("shared").shape([2]).reuse(Reuse::Auto).build();
        g.variable("shared").shape([2]).reuse(Reuse::Auto).build();
        assert_eq!(names(&g), ["dense/w", "dense_1/w", "shared"]);
    }

    #[test]
    fn mistakes_are_named() {
        let after = |reuse: Reuse, make: &dyn Fn(&Graph)| {
            let g = Graph::new();
            g.with_variable_scope("s", Reuse::Never, || g.variable("v").shape([2]).build());
            g.with_variable_scope("s", reuse, || make(&g));
            g.check().unwrap_err().message
        };
        let again = |g: &Graph| drop(g.variable("v").shape([2]).build());
        let wrong = |g: &Graph| drop(g.variable("v").shape([2]).dtype(DType::Double).build());
        let other = |g: &Graph| drop(g.variable("u").shape([2]).build());
        assert!(after(Reuse::Never, &again).contains("'s/v' exists already"));
        assert!(after(Reuse::Auto, &wrong).contains("'s/v' is float, not double"));
        assert!(after(Reuse::Always, &other).contains("no variable 's/u' to share"));
    }

    #[test]
    fn variables_in_parts_are_shared_too_if_the_parts_agree() {
        let g = Graph::new();
        let table = |parts: usize| {
            g.with_variable_scope("s", Reuse::Auto, || {
                let table = g.variable("table").shape([4, 2]);
                table.partitioned(&Partitioner::fixed(parts))
            })
        };
        assert_eq!(table(2).parts()[1].handle(), table(2).parts()[1].handle());
        assert_eq!(g.variables().len(), 2);
        table(4);
        let error = g.check().unwrap_err();
        assert!(error.message.contains("has 2 parts"), "{error}");
    }
}
