//! The operations of the barrier: accumulators beside the variables, queues beside the global step.

use super::SyncReplicas;
use downpour_build::{
    AttrList, AttrValue, DType, Gradient, Graph, IndexedSlices, Init, Operation, Output, Variable,
    concat,
};

/// The operations of the barrier.
pub(super) struct Parts {
    /// This worker's step: pushes its gradients and says so.
    pub(super) train: Operation,
    /// The step whose gradients are pushed.
    pub(super) local_step: Output,
    /// The newest of this worker's tokens; waits for one.
    pub(super) token: Output,
    /// Who has pushed, and for which step: all that is known; waits for one. Not for so many as are missing: what a
    /// dequeue has taken is lost when it is given up, as in TensorFlow.
    pub(super) arrived: [Output; 2],
    /// Brings the gradients of all into the model at once, when all have come.
    pub(super) gate: Gate,
    /// The means.
    pub(super) taken: Vec<(Gradient, Variable)>,
    /// Lets the accumulators begin at a step.
    pub(super) reset: Operation,
    pub(super) step_to_reset: Output,
    /// The workers' tokens.
    pub(super) tokens: Vec<Output>,
    /// Gives a token to each worker.
    pub(super) give: Vec<Operation>,
    pub(super) token_to_give: Output,
    /// Gives the step after an update to each worker.
    pub(super) give_applied: Vec<Operation>,
    pub(super) beat: Operation,
    pub(super) beats: Output,
    pub(super) leave: Operation,
    pub(super) join: Operation,
    pub(super) left: Output,
    /// The highest epoch in which each worker has claimed to lead.
    pub(super) epochs: Output,
    /// Claims to lead in an epoch. What was claimed never becomes less.
    pub(super) claim: Operation,
    pub(super) claimed: Output,
}

impl Parts {
    pub(super) fn new(
        g: &Graph,
        settings: &SyncReplicas,
        pairs: &[(Gradient, Variable)],
        global_step: &Variable,
    ) -> Parts {
        let home = global_step.handle().operation();
        let at_home = |body: &mut dyn FnMut() -> Output| g.with_colocation(&home, body);
        let scalar = |name: &str, dtype: DType| g.placeholder(name, dtype, ());
        let local_step = scalar("local_step", DType::Int64);
        let (step_to_reset, token_to_give) = (
            scalar("step_to_reset", DType::Int64),
            scalar("token_to_give", DType::Int64),
        );
        let ready = at_home(&mut || queue(g, "ready", 2));
        let member = |name: &str| {
            g.with_colocation(&home, || {
                let counts = g.variable(name).shape([settings.replicas]);
                let counts = counts.dtype(DType::Int64).init(Init::zeros());
                counts.trainable(false).saved(false).build()
            })
        };
        let epochs = member("epochs");
        let gate = g.with_colocation(&home, || Gate::new(g, &ready, &epochs, settings.replicas));
        let (mut pushed, mut taken, mut reset) = (Vec::new(), Vec::new(), Vec::new());
        for (gradient, variable) in pairs {
            g.with_colocation(&variable.handle().operation(), || {
                let accumulator = Accumulator::new(g, gradient, variable);
                pushed.push(accumulator.push(&local_step, gradient));
                taken.push((accumulator.take(&gate.count), variable.clone()));
                reset.push(accumulator.reset(&step_to_reset));
            });
        }
        let tokens: Vec<Output> = (0..settings.replicas)
            .map(|i| at_home(&mut || queue(g, &format!("tokens_{i}"), 1)))
            .collect();
        let me = at_home(&mut || g.constant(settings.worker as i64));
        let train = g.with_control(&pushed, || {
            g.with_colocation(&home, || enqueue(g, &ready, &[me, local_step.clone()]))
        });
        let own = &tokens[settings.worker];
        let token = g.with_control(std::slice::from_ref(&train), || {
            g.with_colocation(&home, || newest(g, own))
        });
        let arrived = g.with_colocation(&home, || {
            let known = g.op("QueueSizeV2").input(&ready).output();
            dequeue(&ready, &known.maximum(&g.constant(1i32)))
        });
        let (beats, left) = (member("beats"), member("left"));
        let put = |variable: &Variable, op: &str, value: &Output| {
            g.with_colocation(&home, || {
                g.op(op)
                    .input(variable.handle())
                    .input(&g.constant([settings.worker as i64]))
                    .input(value)
                    .attr("dtype", DType::Int64)
                    .build()
            })
        };
        let mark = |variable: &Variable, op: &str, value: i64| {
            let value = g.with_colocation(&home, || g.constant([value]));
            put(variable, op, &value)
        };
        let claimed = g.placeholder("claimed", DType::Int64, [1]);
        let mut parts = Parts {
            train,
            local_step,
            token,
            arrived,
            gate,
            taken,
            reset: g.group("reset", &reset),
            step_to_reset,
            tokens,
            give: Vec::new(),
            token_to_give,
            give_applied: Vec::new(),
            beat: mark(&beats, "ResourceScatterAdd", 1),
            beats: beats.value().clone(),
            leave: mark(&left, "ResourceScatterUpdate", 1),
            join: mark(&left, "ResourceScatterUpdate", 0),
            left: left.value().clone(),
            epochs: epochs.value().clone(),
            claim: put(&epochs, "ResourceScatterMax", &claimed),
            claimed,
        };
        parts.give = parts.give(&parts.token_to_give);
        parts
    }

    /// Gives a token to each worker.
    pub(super) fn give(&self, token: &Output) -> Vec<Operation> {
        let g = token.graph();
        let give = |queue: &Output| {
            g.with_colocation(&queue.operation(), || {
                enqueue(g, queue, std::slice::from_ref(token))
            })
        };
        self.tokens.iter().map(give).collect()
    }
}

/// What lets the chief wait for all workers and update the model in one step.
///
/// The step takes as many words from the queue as there are workers to wait for. If each of those workers is among
/// them with gradients that are new enough, and no chief of a later epoch has claimed to lead, the update goes on; if
/// not, as after a wake-up, it is not made, and the step's outcome is who has come.
pub(super) struct Gate {
    /// How many words to wait for.
    pub(super) expected: Output,
    /// For each worker, which step its gradients must be of at least; the lowest number for one not waited for.
    pub(super) least: Output,
    /// The epoch in which the update is made.
    pub(super) epoch: Output,
    /// How many gradients to take the mean of.
    count: Output,
    /// A word that means nothing, as often as is fed here: wakes a step that waits.
    pub(super) wake: Operation,
    pub(super) wake_words: Output,
    is_open: Output,
    /// Who has pushed, and for which step. Fed, nobody is waited for.
    pub(super) words: [Output; 2],
}

impl Gate {
    fn new(g: &Graph, ready: &Output, epochs: &Variable, replicas: usize) -> Gate {
        let expected = g.placeholder("expected", DType::Int32, ());
        let least = g.placeholder("least", DType::Int64, [replicas]);
        let wake_words = g.placeholder("wake_words", DType::Int64, [None]);
        let words = dequeue(ready, &expected);
        // Nobody's words have a negative number, which counts for no segment.
        let newest = g.op("UnsortedSegmentMax").input(&words[1]).input(&words[0]);
        let newest = newest.input(&g.constant(replicas as i32)).output();
        let enough = g.op("GreaterEqual").input(&newest).input(&least).output();
        let axis = g.constant([0i32]);
        let all_came = g.op("All").input(&enough).input(&axis).output();
        let size = g.op("Size").input(&words[0]).output();
        // As the claims are when the words have come, not when the step began to wait.
        let epochs = g.with_control(&[size.operation()], || epochs.read());
        let epoch = g.placeholder("epoch", DType::Int64, ());
        let highest = g.op("Max").input(&epochs).input(&axis).output();
        let leads = g.op("Equal").input(&highest).input(&epoch).output();
        let is_open = g.op("LogicalAnd").input(&all_came).input(&leads).output();
        let wake = g.op("QueueEnqueueManyV2").input(ready);
        Gate {
            // Not what is fed: a switch stays with the value that it passes on, and that must not be the chief.
            count: side(&size, &is_open, true),
            wake: wake
                .inputs(&[wake_words.clone(), wake_words.clone()])
                .build(),
            expected,
            least,
            epoch,
            wake_words,
            is_open,
            words,
        }
    }

    /// What a step through the gate gives: the step after the update, or whose words it took and of which steps.
    pub(super) fn outcome(&self, applied: &Output) -> Output {
        let words = concat(&self.words, 0);
        let words = side(&words, &self.is_open, false);
        let merge = applied.graph().op("Merge");
        merge
            .inputs(&[applied.reshape(&[1]), words])
            .build()
            .output(0)
    }
}

/// A value that is there only if a condition is so.
fn side(value: &Output, condition: &Output, is: bool) -> Output {
    let g = value.graph();
    let sides = g.op("Switch").input(value).input(condition).outputs();
    g.op("Identity").input(&sides[usize::from(is)]).output()
}

/// Gradients of one variable on their way to a mean.
struct Accumulator {
    handle: Output,
    sparse: bool,
    dtype: DType,
}

impl Accumulator {
    fn new(g: &Graph, gradient: &Gradient, variable: &Variable) -> Accumulator {
        let sparse = matches!(gradient, Gradient::Sparse(_));
        let op = match sparse {
            true => "SparseConditionalAccumulator",
            false => "ConditionalAccumulator",
        };
        let handle = g
            .op(op)
            .attr("dtype", variable.dtype())
            .attr("shape", AttrValue::Shape(variable.shape()))
            .attr(
                "shared_name",
                format!("{}/grad_accum", variable.name()).as_str(),
            )
            .output();
        Accumulator {
            handle,
            sparse,
            dtype: variable.dtype(),
        }
    }

    fn push(&self, step: &Output, gradient: &Gradient) -> Operation {
        let g = self.handle.graph();
        match gradient {
            Gradient::Dense(gradient) => {
                let op = g.op("AccumulatorApplyGradient").input(&self.handle);
                op.input(step).input(gradient).build()
            }
            Gradient::Sparse(slices) => g
                .op("SparseAccumulatorApplyGradient")
                .input(&self.handle)
                .input(step)
                .input(&slices.indices.cast(DType::Int64))
                .input(&slices.values)
                .input(&slices.shape.cast(DType::Int64))
                .attr("has_known_shape", true)
                .build(),
        }
    }

    fn take(&self, required: &Output) -> Gradient {
        let g = self.handle.graph();
        let op = match self.sparse {
            true => "SparseAccumulatorTakeGradient",
            false => "AccumulatorTakeGradient",
        };
        let op = g.op(op).input(&self.handle).input(required);
        let taken = op.attr("dtype", self.dtype).build();
        match self.sparse {
            false => Gradient::Dense(taken.output(0)),
            true => Gradient::Sparse(IndexedSlices {
                indices: taken.output(0),
                values: taken.output(1),
                shape: taken.output(2),
            }),
        }
    }

    fn reset(&self, step: &Output) -> Operation {
        let op = self.handle.graph().op("AccumulatorSetGlobalStep");
        op.input(&self.handle).input(step).build()
    }
}

/// A queue of so many int64 scalars, shared by name.
fn queue(g: &Graph, name: &str, parts: usize) -> Output {
    let scalar = downpour_build::PartialShape::from_dims([]);
    g.op("FIFOQueueV2")
        .name(name)
        .attr(
            "component_types",
            AttrValue::List(AttrList::Type(vec![DType::Int64; parts])),
        )
        .attr(
            "shapes",
            AttrValue::List(AttrList::Shape(vec![scalar; parts])),
        )
        .attr("capacity", -1i64)
        .attr("shared_name", format!("sync/{name}").as_str())
        .output()
}

fn enqueue(g: &Graph, queue: &Output, values: &[Output]) -> Operation {
    g.op("QueueEnqueueV2").input(queue).inputs(values).build()
}

/// So many pairs out of a queue.
fn dequeue(queue: &Output, count: &Output) -> [Output; 2] {
    let types = AttrValue::List(AttrList::Type(vec![DType::Int64; 2]));
    let g = queue.graph();
    let op = g.op("QueueDequeueManyV2").input(queue).input(count);
    let taken = op.attr("component_types", types).build();
    [taken.output(0), taken.output(1)]
}

/// The last of all that a queue holds; waits for one if it holds none.
fn newest(g: &Graph, queue: &Output) -> Output {
    let size = g.op("QueueSizeV2").input(queue).output();
    let count = size.maximum(&g.constant(1i32));
    let types = AttrValue::List(AttrList::Type(vec![DType::Int64]));
    let op = g.op("QueueDequeueManyV2").input(queue).input(&count);
    let all = op.attr("component_types", types).output();
    all.gather(&(count - 1), 0)
}
