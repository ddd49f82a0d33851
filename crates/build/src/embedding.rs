//! Looking up rows of a table by id, also of a table in parts: each id goes to the part that has
//! its row, and gradients go back to those rows only.

use crate::{DType, Graph, IntoShape, Output, PartitionedVariable, Variable};
use downpour_graph::Status;
use std::panic::Location;

/// Which part has the row of an id.
///
/// ```
/// use downpour::{Graph, Init, Lookup, Server, ServerConfig, Session, embedding_lookup};
/// let g = Graph::new();
/// let part = |name, rows: [[f32; 1]; 2]| g.variable(name).init(Init::value(rows)).build();
/// let parts = vec![part("a", [[10.0], [11.0]]), part("b", [[20.0], [21.0]])];
/// let ids = g.constant([0i64, 1, 2, 3]);
/// let [by_mod, by_div] = [Lookup::Mod, Lookup::Div].map(|how| embedding_lookup(&parts, &ids, how));
/// let init = g.initialize_variables();
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&init)?;
/// assert_eq!(session.fetch(&by_mod)?.as_slice::<f32>()?, [10.0, 20.0, 11.0, 21.0]);
/// assert_eq!(session.fetch(&by_div)?.as_slice::<f32>()?, [10.0, 11.0, 20.0, 21.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Lookup {
    /// Id modulo the number of parts: neighbours are in different parts, so that no part has
    /// all the frequent ids of a sorted vocabulary.
    #[default]
    Mod,
    /// The parts one after the other, as they are when the table is read as one.
    Div,
}

/// How the rows of one example become one row.
///
/// ```
/// use downpour::{Combiner, Graph, Init, Lookup, SparseTensor, embedding_lookup_sparse};
/// # use downpour::{Server, ServerConfig, Session};
/// let g = Graph::new();
/// let table = g.variable("table").init(Init::value([[1.0f32], [8.0]])).build();
/// // One example, which has both ids.
/// let ids = SparseTensor {
///     indices: g.constant([[0i64, 0], [0, 1]]),
///     values: g.constant([0i64, 1]),
///     shape: g.constant([1i64, 2]),
/// };
/// let weights = g.constant([3.0f32, 4.0]);
/// let rows = [Combiner::Sum, Combiner::Mean, Combiner::SqrtN]
///     .map(|how| embedding_lookup_sparse(&table, &ids, Some(&weights), Lookup::Mod, how));
/// # let server = Server::start(ServerConfig::local())?;
/// # let session = Session::new(&server, &g)?;
/// # session.run(table.initializer())?;
/// // 3 * 1 + 4 * 8; divided by 3 + 4; divided by the root of 9 + 16.
/// for (row, expected) in rows.iter().zip([35.0, 5.0, 7.0]) {
///     assert_eq!(session.fetch(row)?.as_slice::<f32>()?, [expected]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Combiner {
    /// Their weighted sum.
    Sum,
    /// The sum divided by that of the weights.
    #[default]
    Mean,
    /// The sum divided by the root of the weights' squares' sum.
    SqrtN,
}

/// What rows can be looked up in: a variable, one in parts, or parts in a list.
///
/// ```
/// use downpour::{Graph, Init, Lookup, Table, Variable, embedding_lookup};
/// # use downpour::{Server, ServerConfig, Session};
/// /// A table of the user's own, in two parts.
/// struct Words {
///     common: Variable,
///     rare: Variable,
/// }
/// impl Table for Words {
///     fn table_parts(&self) -> Vec<Variable> {
///         vec![self.common.clone(), self.rare.clone()]
///     }
/// }
/// let g = Graph::new();
/// let part = |name, rows: [[f32; 1]; 2]| g.variable(name).init(Init::value(rows)).build();
/// let words = Words { common: part("a", [[1.0], [2.0]]), rare: part("b", [[3.0], [4.0]]) };
/// let rows = embedding_lookup(&words, &g.constant([3i64, 0]), Lookup::Div);
/// # let init = g.initialize_variables();
/// # let server = Server::start(ServerConfig::local())?;
/// # let session = Session::new(&server, &g)?;
/// # session.run(&init)?;
/// assert_eq!(session.fetch(&rows)?.as_slice::<f32>()?, [4.0, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Table {
    /// The variables that hold the rows.
    fn table_parts(&self) -> Vec<Variable>;
}

impl Table for Variable {
    fn table_parts(&self) -> Vec<Variable> {
        vec![self.clone()]
    }
}

impl Table for PartitionedVariable {
    fn table_parts(&self) -> Vec<Variable> {
        self.parts().to_vec()
    }
}

impl Table for [Variable] {
    fn table_parts(&self) -> Vec<Variable> {
        self.to_vec()
    }
}

impl Table for Vec<Variable> {
    fn table_parts(&self) -> Vec<Variable> {
        self.clone()
    }
}

/// A tensor of which few elements are there.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, SparseTensor};
/// let g = Graph::new();
/// let sparse = SparseTensor {
///     indices: g.constant([[0i64, 1], [1, 2]]),
///     values: g.constant([7.0f32, 9.0]),
///     shape: g.constant([2i64, 3]),
/// };
/// let dense = g.op("SparseToDense").input(&sparse.indices).input(&sparse.shape);
/// let dense = dense.input(&sparse.values).input(&g.constant(0.0f32)).output();
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&dense)?.as_slice::<f32>()?, [0.0, 7.0, 0.0, 0.0, 0.0, 9.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SparseTensor {
    /// Positions, one row each, in order.
    pub indices: Output,
    /// The element at each position.
    pub values: Output,
    /// Shape of the whole.
    pub shape: Output,
}

impl Graph {
    /// A sparse tensor that every step must be fed with: `name/indices`, `name/values` and
    /// `name/shape`.
    #[track_caller]
    pub fn sparse_placeholder(&self, name: &str, dtype: DType, rank: usize) -> SparseTensor {
        let part = |part: &str, dtype: DType, shape: &[Option<usize>]| {
            let shape = crate::PartialShape::from_dims(shape.iter().copied());
            self.placeholder(&format!("{name}/{part}"), dtype, shape.into_shape())
        };
        SparseTensor {
            indices: part("indices", DType::Int64, &[None, Some(rank)]),
            values: part("values", dtype, &[None]),
            shape: part("shape", DType::Int64, &[Some(rank)]),
        }
    }
}

/// The rows of these ids, in the ids' shape.
///
/// ```
/// use downpour_build::{Graph, Lookup, Partitioner, embedding_lookup};
/// let g = Graph::new();
/// let table = g.variable("words").shape([1000, 8]).partitioned(&Partitioner::fixed(4));
/// let ids = g.constant([[3i64, 999], [0, 3]]);
/// let rows = embedding_lookup(&table, &ids, Lookup::Mod);
/// assert_eq!(rows.shape().rank(), Some(3));
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn embedding_lookup<T: Table + ?Sized>(table: &T, ids: &Output, lookup: Lookup) -> Output {
    let g = ids.graph();
    let parts = table.table_parts();
    g.with_scope("embedding_lookup", || match parts.as_slice() {
        [] => {
            let error = Status::invalid_argument("a lookup needs at least one part of a table");
            g.fail(error, Location::caller());
            g.invalid()
        }
        [table] => {
            let handle = table.handle().operation();
            let rows = g.with_colocation(&handle, || table.gather(ids));
            rows.identity()
        }
        parts => from_parts(g, parts, ids, lookup),
    })
}

#[track_caller]
fn from_parts(g: &Graph, parts: &[Variable], ids: &Output, lookup: Lookup) -> Output {
    let count = parts.len();
    let flat = ids.reshape(&[-1]);
    let zero = g.constant(0i32);
    let positions = g.op("Range").input(&zero).input(&flat.size_op());
    let positions = positions.input(&g.constant(1i32)).output();
    let (part, row) = match lookup {
        Lookup::Mod => {
            let count = flat.scalar_like(count as f64);
            (&flat % &count, flat.floor_div(&count))
        }
        Lookup::Div => {
            let rows = parts.iter().map(rows_of).sum::<Option<usize>>();
            let Some(rows) = rows else {
                let error = Status::invalid_argument("a scalar has no rows to look up");
                g.fail(error, Location::caller());
                return g.invalid();
            };
            let (base, extra) = (rows / count, rows % count);
            if extra == 0 {
                let base = flat.scalar_like(base as f64);
                (flat.floor_div(&base), &flat % &base)
            } else {
                let (base, longer) = (
                    flat.scalar_like(base as f64),
                    flat.scalar_like(base as f64 + 1.0),
                );
                let extra = flat.scalar_like(extra as f64);
                let behind = &flat - &extra;
                let part = flat.floor_div(&longer).maximum(&behind.floor_div(&base));
                let row = part
                    .less(&extra)
                    .select(&(&flat % &longer), &(&behind % &base));
                (part, row)
            }
        }
    };
    let part = part.cast(DType::Int32);
    let split = |what: &Output| {
        let op = g.op("DynamicPartition").input(what).input(&part);
        op.attr("num_partitions", count as i64).outputs()
    };
    let (rows, places) = (split(&row), split(&positions));
    let found: Vec<Output> = parts
        .iter()
        .zip(&rows)
        .map(|(table, rows)| {
            g.without_device(|| {
                g.with_colocation(&table.handle().operation(), || table.gather(rows))
            })
        })
        .collect();
    let op = g.op("ParallelDynamicStitch").inputs(&places);
    let all = op.inputs(&found).output();
    back_in_shape(g, &all, ids, &parts[0])
}

/// Rows in the shape of the ids that they were looked up by.
#[track_caller]
fn back_in_shape(g: &Graph, rows: &Output, ids: &Output, table: &Variable) -> Output {
    let row: Vec<i32> = table.shape().to_shape().map_or_else(Vec::new, |s| {
        s.dims().iter().skip(1).map(|d| *d as i32).collect()
    });
    let shape = crate::concat(&[ids.shape_op(), g.constant(row)], 0);
    rows.reshape_to(&shape)
}

/// Number of rows.
fn rows_of(variable: &Variable) -> Option<usize> {
    variable.shape().dims()?.first().copied().flatten()
}

/// For each row of `ids`, the combined rows of the table that its ids name: the way to look up
/// features of which each example has several.
///
/// `weights` has a number for each of `ids.values`. The result has a row for each row of `ids` up to
/// the last one that has an id; rows without ids are zero.
///
/// ```
/// use downpour_build::{Combiner, DType, Graph, Lookup, embedding_lookup_sparse};
/// let g = Graph::new();
/// let table = g.variable("words").shape([1000, 8]).build();
/// let ids = g.sparse_placeholder("words_of_each", DType::Int64, 2);
/// let rows = embedding_lookup_sparse(&table, &ids, None, Lookup::Mod, Combiner::Mean);
/// assert_eq!(rows.dtype(), DType::Float);
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn embedding_lookup_sparse<T: Table + ?Sized>(
    table: &T,
    ids: &SparseTensor,
    weights: Option<&Output>,
    lookup: Lookup,
    combiner: Combiner,
) -> Output {
    let g = ids.values.graph();
    g.with_scope("embedding_lookup_sparse", || {
        let op = g.op("StridedSlice").input(&ids.indices);
        let segments = op
            .input(&g.constant([0i32, 0]))
            .input(&g.constant([0i32, 1]))
            .input(&g.constant([1i32, 1]))
            .attr("begin_mask", 1i64)
            .attr("end_mask", 1i64)
            .attr("shrink_axis_mask", 2i64)
            .output()
            .cast(DType::Int32);
        let unique = g.op("Unique").input(&ids.values).outputs();
        let [unique, positions] = unique.as_slice() else {
            return g.invalid();
        };
        let rows = embedding_lookup(table, unique, lookup);
        match weights {
            None => {
                let op = match combiner {
                    Combiner::Sum => "SparseSegmentSum",
                    Combiner::Mean => "SparseSegmentMean",
                    Combiner::SqrtN => "SparseSegmentSqrtN",
                };
                let op = g.op(op).input(&rows).input(positions);
                op.input(&segments).output()
            }
            Some(weights) => weighted(g, &rows.gather(positions, 0), weights, &segments, combiner),
        }
    })
}

#[track_caller]
fn weighted(
    g: &Graph,
    rows: &Output,
    weights: &Output,
    segments: &Output,
    combiner: Combiner,
) -> Output {
    // Half precision is too little to add up many rows in.
    let narrow = matches!(rows.dtype(), DType::Half | DType::BFloat16);
    let wide = match narrow {
        true => rows.cast(DType::Float),
        false => rows.clone(),
    };
    let mut weights = weights.cast(wide.dtype());
    for axis in 1..wide.rank().unwrap_or(2) {
        weights = weights.expand_dims(axis as i32);
    }
    let sum = |x: &Output| g.op("SegmentSum").input(x).input(segments).output();
    let total = sum(&(&wide * &weights));
    let combined = match combiner {
        Combiner::Sum => total,
        Combiner::Mean => total.div_no_nan(&sum(&weights)),
        Combiner::SqrtN => total.div_no_nan(&sum(&weights.square()).sqrt()),
    };
    combined.cast(rows.dtype())
}
