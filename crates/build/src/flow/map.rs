//! Loops over the first dimension of tensors: `map_fn`, `fold`, `scan`.

use super::repeat::{Counted, While};
use crate::function::ArgSpec;
use crate::{Graph, Output, TensorList};
use downpour_graph::Status;
use downpour_tensor::{DType, PartialShape};
use std::panic::Location;

/// What `f` returns for each slice of `elems` along their first dimension, stacked. Slices do not
/// wait for each other.
///
/// ```
/// use downpour_build::{DType, Graph, map_fn};
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [None, Some(3)]);
/// let y = map_fn(&[x], |_, row| vec![row[0].square().sum(())]);
/// assert_eq!(y[0].rank(), Some(1));
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn map_fn(elems: &[Output], f: impl FnOnce(&Graph, &[Output]) -> Vec<Output>) -> Vec<Output> {
    let Some((graph, lists, count)) = begin(elems, Location::caller()) else {
        return Vec::new();
    };
    let index = graph.constant(0i32);
    let mut made = Vec::new();
    let mut body = Counted::build(&graph, &[ArgSpec::like(&index)], |g, vars| {
        let items: Vec<Output> = lists.iter().map(|l| l.get(&vars[0])).collect();
        made = f(g, &items);
        vec![&vars[0] + 1]
    });
    let at = body.body.args[2].clone();
    let mut vars = vec![index];
    let mut outs = Vec::new();
    for item in &made {
        let list = TensorList::reserve(&graph, item.dtype(), item.shape(), &count);
        vars.push(list.handle().clone());
        body.add(list.handle(), |var| match TensorList::from_handle(var) {
            Ok(list) => list.set(&at, item).handle().clone(),
            Err(_) => var.clone(),
        });
        outs.push(list);
    }
    let last = While::new()
        .name("map/while")
        .maximum_iterations_of(&count)
        .run_body(&graph, &vars, body, |_, vars| vars[0].less(&count));
    let stacks = last[1..].iter().zip(&outs);
    stacks.map(|(last, list)| list.at(last).stack()).collect()
}

/// Goes through the slices of `elems` along their first dimension with a state: `f` is given the
/// state and the slices and returns the next state; the last one is returned.
///
/// ```
/// use downpour_build::{Graph, fold};
/// let g = Graph::new();
/// let x = g.constant([1.0f32, 2.0, 3.0]);
/// let sum = fold(&[x], &[g.constant(0.0f32)], |_, state, x| vec![&state[0] + &x[0]]);
/// assert_eq!(sum[0].rank(), Some(0));
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn fold(
    elems: &[Output],
    state: &[Output],
    f: impl FnOnce(&Graph, &[Output], &[Output]) -> Vec<Output>,
) -> Vec<Output> {
    let Some((graph, lists, count)) = begin(elems, Location::caller()) else {
        return state.to_vec();
    };
    let mut vars = vec![graph.constant(0i32)];
    vars.extend(state.iter().cloned());
    let fold = While::new()
        .name("fold/while")
        .maximum_iterations_of(&count);
    let last = fold.run(
        &vars,
        |_, vars| vars[0].less(&count),
        |g, vars| {
            let items: Vec<Output> = lists.iter().map(|l| l.get(&vars[0])).collect();
            let mut next = vec![&vars[0] + 1];
            next.extend(f(g, &vars[1..], &items));
            next
        },
    );
    last[1..].to_vec()
}

/// As [`fold`], but returns every state on the way, stacked.
///
/// ```
/// use downpour_build::{Graph, scan};
/// let g = Graph::new();
/// let x = g.constant([1.0f32, 2.0, 3.0]);
/// let sums = scan(&[x], &[g.constant(0.0f32)], |_, state, x| vec![&state[0] + &x[0]]);
/// assert_eq!(sums[0].shape().to_string(), "[3]");
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn scan(
    elems: &[Output],
    state: &[Output],
    f: impl FnOnce(&Graph, &[Output], &[Output]) -> Vec<Output>,
) -> Vec<Output> {
    let Some((graph, lists, count)) = begin(elems, Location::caller()) else {
        return Vec::new();
    };
    let n = state.len();
    let outs: Vec<TensorList> = state
        .iter()
        .map(|s| TensorList::reserve(&graph, s.dtype(), s.shape(), &count))
        .collect();
    let mut vars = vec![graph.constant(0i32)];
    vars.extend(state.iter().cloned());
    vars.extend(outs.iter().map(|l| l.handle().clone()));
    let scan = While::new()
        .name("scan/while")
        .maximum_iterations_of(&count);
    let last = scan.run(
        &vars,
        |_, vars| vars[0].less(&count),
        |g, vars| {
            let items: Vec<Output> = lists.iter().map(|l| l.get(&vars[0])).collect();
            let mut next = vec![&vars[0] + 1];
            next.extend(f(g, &vars[1..=n], &items));
            for (i, list) in outs.iter().enumerate() {
                let list = list.at(&vars[1 + n + i]);
                let item = next.get(1 + i).cloned().unwrap_or_else(|| g.invalid());
                next.push(list.set(&vars[0], &item).handle().clone());
            }
            next
        },
    );
    let stacks = last[1 + n..].iter().zip(&outs);
    stacks.map(|(last, list)| list.at(last).stack()).collect()
}

/// The slices as lists, and how many there are.
fn begin(
    elems: &[Output],
    at: &'static Location<'static>,
) -> Option<(Graph, Vec<TensorList>, Output)> {
    let first = elems.first()?;
    let graph = first.graph().innermost();
    for elem in elems {
        if elem.rank() == Some(0) {
            let error = Status::invalid_argument(format!(
                "'{}' is a scalar: there is nothing to go through",
                elem.name()
            ));
            graph.fail(error, at);
        }
    }
    let lists = elems.iter().map(TensorList::from_tensor).collect();
    let known = first.shape().dims().and_then(|d| d.first().copied()?);
    let count = match known.and_then(|n| i32::try_from(n).ok()) {
        Some(n) => graph.constant(n),
        None => {
            let (zero, one) = (graph.constant([0i32]), graph.constant([1i32]));
            graph
                .op("StridedSlice")
                .input(&first.shape_op())
                .input(&zero)
                .input(&one)
                .input(&one)
                .attr("shrink_axis_mask", 1i64)
                .output()
        }
    };
    debug_assert_eq!(count.dtype(), DType::Int32);
    count.set_shape(&PartialShape::from_dims([]));
    Some((graph, lists, count))
}
