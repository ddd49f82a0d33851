//! Variables in parts: how many parts a shape gets, with TensorFlow's arithmetic, and a variable
//! whose parts are variables of their own, usually on different tasks, read as one.

use crate::variable::VariablePlan;
use crate::{
    DType, Graph, Init, Lookup, Operation, Output, PartialShape, Shape, Variable, VariableBuilder,
    concat, embedding_lookup,
};
use downpour_graph::{Result, Status};
use std::ops::Deref;
use std::panic::Location;
use std::sync::Arc;

/// Where a variable belongs in the larger one that it is a part of; checkpoints keep it there.
///
/// ```
/// use downpour_build::{Graph, SaveSlice, Shape};
/// let g = Graph::new();
/// let rows_3_to_5 = SaveSlice {
///     full_name: "table".to_owned(),
///     full_shape: Shape::from([10, 4]),
///     offset: vec![3, 0],
///     shape: Shape::from([3, 4]),
/// };
/// let part = g.variable("mine").shape([3, 4]).slice_of(rows_3_to_5).build();
/// assert_eq!((part.name(), part.save_name()), ("mine", "table"));
/// assert_eq!(part.save_slice(), "10 4 3,3:0,4");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaveSlice {
    /// Name of the whole.
    pub full_name: String,
    /// Shape of the whole.
    pub full_shape: Shape,
    /// Where the part begins, by dimension.
    pub offset: Vec<usize>,
    /// Shape of the part.
    pub shape: Shape,
}

impl SaveSlice {
    /// In TensorFlow's words, as its save and restore operations take it: `10 4 3,3:0,4`.
    pub fn spec(&self) -> String {
        let sizes = self.full_shape.dims().iter();
        let mut spec: String = sizes.map(|d| format!("{d} ")).collect();
        let pairs = self.offset.iter().zip(self.shape.dims());
        let pairs: Vec<String> = pairs.map(|(o, d)| format!("{o},{d}")).collect();
        spec.push_str(&pairs.join(":"));
        spec
    }
}

/// Says in how many parts a variable is kept.
///
/// ```
/// use downpour_build::{DType, Partitioner, Shape};
/// let shape = Shape::from(&[1000usize, 64][..]);
/// let rows_of_100_kib = Partitioner::axis_size(100 << 10);
/// assert_eq!(rows_of_100_kib.parts(&shape, DType::Float)?, (0, 3));
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[derive(Clone)]
pub struct Partitioner(Kind);

#[derive(Clone)]
enum Kind {
    Fixed {
        parts: usize,
        axis: usize,
    },
    AxisSize {
        max_bytes: u64,
        axis: usize,
        max_parts: Option<usize>,
    },
    MinMax {
        max_parts: usize,
        axis: usize,
        min_bytes: u64,
    },
    Function(Arc<Choose>),
}

/// Numbers of parts, by dimension.
type Choose = dyn Fn(&Shape, DType) -> Vec<usize> + Send + Sync;

/// What a string counts for.
const STRING_BYTES: u64 = 16;

impl Partitioner {
    /// This number of parts, or as many as there are rows, if those are fewer.
    pub fn fixed(parts: usize) -> Partitioner {
        Partitioner(Kind::Fixed { parts, axis: 0 })
    }

    /// Parts of at most `max_bytes` each, or of one row if that is larger.
    pub fn axis_size(max_bytes: u64) -> Partitioner {
        Partitioner(Kind::AxisSize {
            max_bytes,
            axis: 0,
            max_parts: None,
        })
    }

    /// At most `max_parts` parts, of at least 256 KiB each.
    pub fn min_max(max_parts: usize) -> Partitioner {
        Partitioner(Kind::MinMax {
            max_parts,
            axis: 0,
            min_bytes: 256 << 10,
        })
    }

    /// As a function says: the number of parts for each dimension, one of them for all but one.
    pub fn by(choose: impl Fn(&Shape, DType) -> Vec<usize> + Send + Sync + 'static) -> Partitioner {
        Partitioner(Kind::Function(Arc::new(choose)))
    }

    /// Cuts along another dimension than the first.
    pub fn axis(mut self, along: usize) -> Partitioner {
        match &mut self.0 {
            Kind::Fixed { axis, .. } | Kind::AxisSize { axis, .. } | Kind::MinMax { axis, .. } => {
                *axis = along;
            }
            Kind::Function(_) => {}
        }
        self
    }

    /// Never more parts than these.
    pub fn max_parts(mut self, most: usize) -> Partitioner {
        match &mut self.0 {
            Kind::AxisSize { max_parts, .. } => *max_parts = Some(most),
            Kind::MinMax { max_parts, .. } => *max_parts = most,
            Kind::Fixed { .. } | Kind::Function(_) => {}
        }
        self
    }

    /// The least size of a part, for [`Partitioner::min_max`].
    pub fn min_bytes(mut self, least: u64) -> Partitioner {
        if let Kind::MinMax { min_bytes, .. } = &mut self.0 {
            *min_bytes = least;
        }
        self
    }

    /// Along which dimension and into how many parts a variable is cut.
    pub fn parts(&self, shape: &Shape, dtype: DType) -> Result<(usize, usize)> {
        let length = |axis: usize| match shape.dims().get(axis) {
            Some(length) => Ok(*length),
            None => invalid(format!(
                "Cannot partition variable along axis {axis} when shape is only {shape}"
            )),
        };
        let size = crate::place::element_size(dtype, STRING_BYTES);
        let elements = shape.num_elements() as u64;
        let (axis, parts) = match &self.0 {
            Kind::Fixed { parts, axis } => (*axis, length(*axis)?.min(*parts)),
            Kind::AxisSize {
                max_bytes,
                axis,
                max_parts,
            } => {
                let rows = length(*axis)?;
                let row = elements.checked_div(rows as u64).unwrap_or(0) * size;
                let held = max_bytes.checked_div(row).unwrap_or(u64::MAX).max(1);
                let parts = (rows as u64).div_ceil(held) as usize;
                (*axis, parts.min(max_parts.unwrap_or(usize::MAX)))
            }
            Kind::MinMax {
                max_parts,
                axis,
                min_bytes,
            } => {
                let wanted = (elements * size).div_ceil((*min_bytes).max(1)) as usize;
                (*axis, length(*axis)?.min(*max_parts).min(wanted).max(1))
            }
            Kind::Function(choose) => {
                let parts = choose(shape, dtype);
                if parts.len() != shape.rank() {
                    return invalid(format!(
                        "a partitioner gave {parts:?} for shape {shape}: one number per dimension is wanted"
                    ));
                }
                let cut: Vec<usize> = (0..parts.len()).filter(|i| parts[*i] != 1).collect();
                match cut.as_slice() {
                    [] => (0, 1),
                    [axis] => (*axis, parts[*axis]),
                    _ => {
                        return invalid(format!(
                            "Can only slice a variable along one dimension: shape: {shape}, partitioning: {parts:?}"
                        ));
                    }
                }
            }
        };
        match parts {
            0 => invalid(format!("a variable of shape {shape} cannot have 0 parts")),
            parts if parts > length(axis)?.max(1) => {
                invalid(format!("shape {shape} cannot be cut in {parts} parts"))
            }
            parts => Ok((axis, parts)),
        }
    }
}

/// A variable kept in parts. Where a tensor is wanted, it stands for all of its value.
///
/// ```
/// use downpour::{Graph, Init, Partitioner, Server, ServerConfig, Session};
/// let g = Graph::new();
/// let all = Init::value([[1.0f32], [2.0], [3.0]]);
/// let table = g.variable("table").init(all).partitioned(&Partitioner::fixed(2));
/// let (twice, init) = (&*table * 2.0, g.initialize_variables());
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&init)?;
/// assert_eq!(session.fetch(&table.parts()[0])?.as_slice::<f32>()?, [1.0, 2.0]);
/// assert_eq!(session.fetch(&table.parts()[1])?.as_slice::<f32>()?, [3.0]);
/// assert_eq!(session.fetch(&twice)?.as_slice::<f32>()?, [2.0, 4.0, 6.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PartitionedVariable(Arc<Whole>);

#[derive(Debug)]
struct Whole {
    name: String,
    dtype: DType,
    shape: Shape,
    axis: usize,
    parts: Vec<Variable>,
    value: Output,
}

impl PartitionedVariable {
    #[track_caller]
    pub(crate) fn make(builder: VariableBuilder, partitioner: &Partitioner) -> PartitionedVariable {
        let plan = builder.plan();
        let g = plan.graph.clone();
        let shape = plan.shape.to_shape().unwrap_or_else(Shape::scalar);
        let cut = partitioner.parts(&shape, plan.dtype);
        let (axis, count) = cut.unwrap_or_else(|e| {
            g.fail(e, Location::caller());
            (0, 1)
        });
        if plan.reuse.is_some() {
            let known = g.inner.lock().partitioned.clone();
            let known = known.into_iter().find(|v| v.name() == plan.name);
            let whole = known.as_ref().map(|v| (v.dtype(), v.shape().into()));
            let facts = whole.as_ref().map(|(d, s): &(DType, PartialShape)| (*d, s));
            match (plan.refuse(facts), known) {
                (Some(error), _) => g.fail(error, Location::caller()),
                (None, Some(known)) if known.parts().len() == count && known.axis() == axis => {
                    return known;
                }
                (None, Some(known)) => {
                    let error = Status::invalid_argument(format!(
                        "variable '{}' has {} parts along dimension {}, not {count} along {axis}",
                        plan.name,
                        known.parts().len(),
                        known.axis()
                    ));
                    g.fail(error, Location::caller());
                }
                (None, None) => {}
            }
        }
        PartitionedVariable::cut(plan, shape, axis, count)
    }

    #[track_caller]
    fn cut(plan: VariablePlan, shape: Shape, axis: usize, count: usize) -> PartitionedVariable {
        let g = plan.graph.clone();
        let name = g.in_scope(String::new(), || g.inner.lock().unique(&plan.name));
        let given = plan.init.given().is_some().then(|| {
            g.without_control(|| {
                g.in_scope(format!("{name}/PartitionedInitializer"), || {
                    plan.init.build(&g, plan.dtype, &plan.shape, &plan.shape)
                })
            })
        });
        let mut parts = Vec::with_capacity(count);
        for (i, (offset, length)) in pieces(&shape, axis, count).into_iter().enumerate() {
            let init = match &given {
                None => plan.init.clone(),
                Some(all) => slice_of(all, &shape, axis, offset, length),
            };
            let (mut begin, mut dims) = (vec![0; shape.rank()], shape.dims().to_vec());
            if let (Some(begin), Some(dim)) = (begin.get_mut(axis), dims.get_mut(axis)) {
                (*begin, *dim) = (offset, length);
            }
            let slice = SaveSlice {
                full_name: name.clone(),
                full_shape: shape.clone(),
                offset: begin,
                shape: Shape::from(dims.as_slice()),
            };
            let part = VariablePlan {
                graph: g.clone(),
                name: format!("{name}/part_{i}"),
                dtype: plan.dtype,
                shape: (&slice.shape).into(),
                init,
                trainable: plan.trainable,
                saved: plan.saved,
                reuse: None,
                slice: Some(slice),
            };
            parts.push(part.make());
        }
        let value = read(&g, &name, &parts, axis);
        let whole = PartitionedVariable(Arc::new(Whole {
            name,
            dtype: plan.dtype,
            shape,
            axis,
            parts,
            value,
        }));
        g.inner.lock().partitioned.push(whole.clone());
        whole
    }

    /// Its name, as in checkpoints.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Shape of the whole.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// The dimension it is cut along.
    pub fn axis(&self) -> usize {
        self.0.axis
    }

    /// Its parts, in order.
    pub fn parts(&self) -> &[Variable] {
        &self.0.parts
    }

    /// All of its value at the beginning of a step, one part after the other.
    pub fn value(&self) -> &Output {
        &self.0.value
    }

    /// Rows at these positions; each part gives its own, and gradients touch only them.
    #[track_caller]
    pub fn gather(&self, positions: &Output) -> Output {
        if self.0.axis != 0 {
            return self.value().gather(positions, 0);
        }
        embedding_lookup(self, positions, Lookup::Div)
    }

    /// Gives each part its share of a value.
    #[track_caller]
    pub fn assign(&self, value: &Output) -> Operation {
        let g = value.graph();
        g.with_scope(&format!("{}_assign", self.0.name), || {
            let assign = |part: &Variable| {
                let Some(slice) = part.part_of() else {
                    return part.assign(value);
                };
                let ints = |dims: &[usize]| dims.iter().map(|d| *d as i32).collect::<Vec<_>>();
                part.assign(&value.slice(&ints(&slice.offset), &ints(slice.shape.dims())))
            };
            let all: Vec<Operation> = self.parts().iter().map(assign).collect();
            g.group_scope(&all)
        })
    }
}

impl Deref for PartitionedVariable {
    type Target = Output;

    /// The value, so that a variable can be used like any output.
    fn deref(&self) -> &Output {
        &self.0.value
    }
}

impl Graph {
    /// All variables kept in parts, in the order they were made.
    pub fn partitioned_variables(&self) -> Vec<PartitionedVariable> {
        self.inner.lock().partitioned.clone()
    }
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// Where each part begins and how long it is: the first ones are longer if it does not come out
/// even.
pub(crate) fn pieces(shape: &Shape, axis: usize, count: usize) -> Vec<(usize, usize)> {
    let length = shape.dims().get(axis).copied().unwrap_or(0);
    let (base, extra) = (length / count, length % count);
    let mut offset = 0;
    (0..count)
        .map(|i| {
            let length = base + usize::from(i < extra);
            let piece = (offset, length);
            offset += length;
            piece
        })
        .collect()
}

/// The part of a given first value that belongs to one part.
fn slice_of(all: &Output, shape: &Shape, axis: usize, offset: usize, length: usize) -> Init {
    let mut begin = vec![0; shape.rank()];
    let mut size: Vec<i32> = shape.dims().iter().map(|d| *d as i32).collect();
    if let (Some(begin), Some(size)) = (begin.get_mut(axis), size.get_mut(axis)) {
        (*begin, *size) = (offset as i32, length as i32);
    }
    let all = all.clone();
    Init::function(move |_, _, _| all.slice(&begin, &size))
}

/// The parts as one tensor, which carries the variable's name.
#[track_caller]
fn read(g: &Graph, name: &str, parts: &[Variable], axis: usize) -> Output {
    let values: Vec<Output> = parts.iter().map(|p| p.value().clone()).collect();
    g.without_control(|| {
        let joined = g.in_scope(format!("{name}/ConcatPartitions"), || {
            match values.as_slice() {
                [one] => one.clone(),
                _ => concat(&values, axis as i32),
            }
        });
        g.in_scope(name.to_owned(), || {
            g.op("Identity").name_of_scope().input(&joined).output()
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(partitioner: &Partitioner, dims: &[usize], dtype: DType) -> usize {
        let (_, parts) = partitioner.parts(&Shape::from(dims), dtype).unwrap();
        parts
    }

    // Expected numbers: tf.compat.v1's partitioners in TensorFlow 2.21.
    #[test]
    fn partitioners_count_as_tensorflows() {
        let float = DType::Float;
        assert_eq!(parts(&Partitioner::fixed(3), &[10, 4], float), 3);
        assert_eq!(parts(&Partitioner::fixed(30), &[10, 4], float), 10);
        assert_eq!(parts(&Partitioner::fixed(3).axis(1), &[10, 2], float), 2);
        let size = Partitioner::axis_size;
        assert_eq!(parts(&size(64), &[10, 4], float), 3);
        assert_eq!(parts(&size(8), &[10, 4], float), 10);
        assert_eq!(parts(&size(1 << 20), &[10, 4], float), 1);
        assert_eq!(parts(&size(64).max_parts(2), &[10, 4], float), 2);
        assert_eq!(parts(&size(64), &[10, 4], DType::String), 10);
        assert_eq!(parts(&size(100).axis(1), &[7, 9], DType::Double), 9);
        let most = Partitioner::min_max;
        assert_eq!(parts(&most(8), &[1000, 100], float), 2);
        assert_eq!(parts(&most(8), &[100_000, 100], float), 8);
        assert_eq!(parts(&most(8), &[3, 1_000_000], float), 3);
        assert_eq!(parts(&most(8).min_bytes(16), &[10, 4], float), 8);
        assert_eq!(parts(&most(8), &[10, 4], DType::String), 1);
    }

    #[test]
    fn what_cannot_be_cut_is_a_mistake() {
        let shape = Shape::from(&[4usize, 4][..]);
        let cut = |parts: Vec<usize>| {
            let partitioner = Partitioner::by(move |_, _| parts.clone());
            partitioner.parts(&shape, DType::Float)
        };
        assert_eq!(cut(vec![1, 3]).unwrap(), (1, 3));
        for wrong in [vec![2, 2], vec![2], vec![0, 1], vec![5, 1]] {
            cut(wrong).unwrap_err();
        }
        let scalar = Partitioner::fixed(2).parts(&Shape::scalar(), DType::Float);
        scalar.unwrap_err();
    }

    #[test]
    fn parts_know_their_place_in_the_whole() {
        let g = Graph::new();
        let table = g
            .variable("t")
            .shape([10, 4])
            .partitioned(&Partitioner::fixed(3));
        let slices: Vec<_> = table.parts().iter().map(|p| p.part_of().unwrap()).collect();
        let offsets: Vec<usize> = slices.iter().map(|s| s.offset[0]).collect();
        assert_eq!(offsets, [0, 4, 7]);
        assert!(
            slices
                .iter()
                .all(|s| s.full_name == "t" && s.full_shape.dims() == [10, 4])
        );
        let names: Vec<&str> = table.parts().iter().map(|p| p.name()).collect();
        assert_eq!(names, ["t/part_0", "t/part_1", "t/part_2"]);
        let last = &table.parts()[2];
        assert_eq!(
            (last.save_name(), last.save_slice().as_str()),
            ("t", "10 4 7,3:0,4")
        );
        assert_eq!(table.value().name(), "t:0");
        g.check().unwrap();
    }
}
