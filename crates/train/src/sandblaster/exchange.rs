//! How portions of the batch reach replicas and their gradients the parameters: tickets in a queue
//! that replicas take from, gradients in a queue of each shard that the coordinator lets the shard
//! add up, one after the other.
//!
//! Invariant: a shard adds a portion's gradient to an evaluation once. It remembers for each portion
//! the last evaluation that has it, and one step does the rest: look, add, remember. A replica that
//! dies on its way has put its gradient into some of the queues and not into others: the portion is
//! computed again, and each shard takes it from whoever comes first. Numbers of evaluations are never
//! used twice, so what comes too late is known by its number.

use super::order::{Order, beside, integers, place};
use super::vectors::Shard;
use crate::queue::Queue;
use downpour_build::{
    DType, Graph, Init, Operation, Output, Result, Status, Tensor, Variable, stack,
};
use downpour_client::{Run, Session};
use std::time::Duration;

/// The portion of a ticket that says that all is done.
pub(super) const END: i64 = -1;

/// Operations of the exchange.
pub(super) struct Exchange {
    tickets: Tickets,
    merges: Vec<Merge>,
    current: Order,
    push: Push,
}

struct Tickets {
    evaluation: Output,
    portion: Output,
    issue: Operation,
    /// Evaluation and portion of a ticket, the current evaluation, the last one for which all shards have the portion.
    take: Output,
    untaken: Output,
}

struct Merge {
    /// Evaluation, portion, replica, whether it was added, how many tickets are to be taken.
    facts: Output,
    value: Output,
    targets: Vec<Operation>,
}

struct Push {
    evaluation: Output,
    portion: Output,
    replica: Output,
    targets: Vec<Operation>,
}

/// A portion to compute.
pub(super) struct Ticket {
    pub(super) evaluation: i64,
    pub(super) portion: i64,
    /// Whether its evaluation goes on.
    pub(super) is_current: bool,
    /// Whether somebody else was quicker.
    pub(super) is_done: bool,
}

/// What a shard did with a gradient.
pub(super) struct Merged {
    pub(super) evaluation: i64,
    pub(super) portion: i64,
    pub(super) replica: i64,
    /// It is in the sum, since now or before.
    pub(super) counts: bool,
    /// Since now.
    pub(super) added: bool,
    pub(super) value: f64,
    /// Only the first shard knows.
    pub(super) untaken: usize,
}

impl Exchange {
    /// Adds the operations: `value` and `gradients`, by shard, are those of one portion.
    pub(super) fn new(
        graph: &Graph,
        shards: &[Shard],
        portions: usize,
        value: &Output,
        gradients: &[Vec<Output>],
    ) -> Exchange {
        graph.with_scope("sandblaster", || {
            let home = shards[0].home();
            let tickets = beside(home, || {
                let queue = Queue::fifo(graph, "tickets", -1);
                let queue = queue
                    .component(DType::Int64, ())
                    .component(DType::Int64, ());
                queue.shared("sandblaster/tickets").build()
            });
            let states: Vec<ShardState> = shards
                .iter()
                .enumerate()
                .map(|(i, shard)| ShardState::new(graph, i, shard, portions))
                .collect();
            let mut current = Order {
                fed: vec![Vec::new()],
                ..Order::default()
            };
            for (state, shard) in states.iter().zip(shards) {
                let fed = place(shard.home(), "evaluation", DType::Int64, &[]);
                let assign = beside(shard.home(), || state.current.assign(&fed));
                current.targets.push(assign);
                current.fed[0].push(fed);
            }
            let push = Push::new(graph, &states, value, gradients);
            let merges = shards
                .iter()
                .zip(&states)
                .enumerate()
                .map(|(i, (shard, state))| {
                    let tickets = (i == 0).then_some(&tickets);
                    beside(shard.home(), || Merge::new(graph, shard, state, tickets))
                });
            Exchange {
                merges: merges.collect(),
                tickets: Tickets::new(graph, shards, &tickets, &states),
                current,
                push,
            }
        })
    }

    /// Lets an evaluation be the current one.
    pub(super) fn set_current(&self, session: &Session, evaluation: i64) -> Result<()> {
        self.current
            .give(session, &[Tensor::scalar(evaluation)])
            .map(|_| ())
    }

    /// Puts tickets into the queue.
    pub(super) fn issue(&self, session: &Session, evaluation: i64, portions: &[i64]) -> Result<()> {
        let tickets = &self.tickets;
        let evaluations = vec![evaluation; portions.len()];
        let step = session.step().feed(&tickets.evaluation, evaluations);
        let step = step.feed(&tickets.portion, portions.to_vec());
        step.target(&tickets.issue).run()
    }

    /// How many tickets nobody has taken.
    pub(super) fn untaken(&self, session: &Session) -> Result<usize> {
        let size = session.fetch(&self.tickets.untaken)?.scalar_value::<i32>();
        let size = size.map_err(|e| Status::internal(e.to_string()))?;
        Ok(usize::try_from(size).unwrap_or(0))
    }

    /// Takes a ticket; waits so long for one.
    pub(super) fn take(&self, session: &Session, patience: Duration) -> Result<Ticket> {
        let step = session.step().timeout(patience);
        let facts = integers(&step.fetch(&self.tickets.take)?)?;
        let [evaluation, portion, current, seen] = facts[..] else {
            return Err(Status::internal("a ticket has four numbers"));
        };
        Ok(Ticket {
            evaluation,
            portion,
            is_current: evaluation == current,
            is_done: seen == evaluation,
        })
    }

    /// The step that computes a portion and puts its gradients into the queues; what the portion
    /// feeds is to be added.
    pub(super) fn push(&self, ticket: &Ticket, replica: i64) -> Run {
        let mut run = Run::new();
        run.feed(&self.push.evaluation, ticket.evaluation);
        run.feed(&self.push.portion, ticket.portion);
        run.feed(&self.push.replica, replica);
        for target in &self.push.targets {
            run.target(target);
        }
        run
    }

    /// Lets a shard add the next gradient of its queue, unless it has it; waits for one.
    pub(super) fn merge(&self, session: &Session, shard: usize) -> Result<Merged> {
        let merge = &self.merges[shard];
        let mut run = Run::new();
        run.fetch(&merge.facts);
        run.fetch(&merge.value);
        for target in &merge.targets {
            run.target(target);
        }
        let values = session.execute(&run)?;
        let wrong = || Status::internal("a merged gradient has six numbers");
        let [facts, value] = &values[..] else {
            return Err(wrong());
        };
        let [evaluation, portion, replica, added, seen, untaken] = integers(facts)?[..] else {
            return Err(wrong());
        };
        let value = value.scalar_value::<f64>();
        Ok(Merged {
            evaluation,
            portion,
            replica,
            added: added != 0,
            counts: added != 0 || seen == evaluation,
            value: value.map_err(|e| Status::internal(e.to_string()))?,
            untaken: usize::try_from(untaken).unwrap_or(0),
        })
    }
}

/// What a shard remembers.
struct ShardState {
    queue: Queue,
    /// The evaluation under way.
    current: Variable,
    /// By portion: the last evaluation that has it.
    seen: Variable,
}

impl ShardState {
    fn new(graph: &Graph, i: usize, shard: &Shard, portions: usize) -> ShardState {
        beside(shard.home(), || {
            let mut queue = Queue::fifo(graph, &format!("gradients_{i}"), -1);
            for dtype in [DType::Int64, DType::Int64, DType::Int64, DType::Double] {
                queue = queue.component(dtype, ());
            }
            for parameter in shard.parameters() {
                queue = queue.component(parameter.dtype(), parameter.shape());
            }
            let counter = |name: &str| {
                let name = format!("Sandblaster/{name}_{i}");
                let made = graph.variable(&name).absolute().dtype(DType::Int64);
                made.init(Init::zeros()).trainable(false).saved(false)
            };
            ShardState {
                queue: queue.shared(&format!("sandblaster/gradients_{i}")).build(),
                current: counter("current").shape(()).build(),
                seen: counter("seen").shape([portions]).build(),
            }
        })
    }
}

impl Tickets {
    fn new(graph: &Graph, shards: &[Shard], queue: &Queue, states: &[ShardState]) -> Tickets {
        let home = shards[0].home();
        let list = |name: &str| beside(home, || graph.placeholder(name, DType::Int64, [None]));
        let (evaluation, portion) = (list("evaluations"), list("portions"));
        let (issue, taken, position) = beside(home, || {
            let issue = queue.enqueue_many(&[evaluation.clone(), portion.clone()]);
            let taken = queue.dequeue();
            // The last ticket names no portion.
            let position = taken[1].maximum(&graph.constant(0i64));
            (issue, taken, position)
        });
        // A replica may have died between two shards: all must have the portion, or it is computed again.
        let last = states.iter().zip(shards);
        let last: Vec<Output> = last
            .map(|(state, shard)| beside(shard.home(), || state.seen.gather(&position)))
            .collect();
        let take = beside(home, || {
            let all_have = stack(&last, 0).min(0);
            let current = graph.with_control(&[taken[0].operation()], || states[0].current.read());
            stack(&[taken[0].clone(), taken[1].clone(), current, all_have], 0)
        });
        let untaken = beside(home, || queue.size());
        Tickets {
            evaluation,
            portion,
            issue,
            take,
            untaken,
        }
    }
}

impl Push {
    fn new(
        graph: &Graph,
        states: &[ShardState],
        value: &Output,
        gradients: &[Vec<Output>],
    ) -> Push {
        let scalar = |name: &str| graph.placeholder(name, DType::Int64, ());
        let (evaluation, portion, replica) =
            (scalar("my_evaluation"), scalar("my_portion"), scalar("me"));
        let value = value.cast(DType::Double);
        let targets = states.iter().zip(gradients).map(|(state, gradients)| {
            let mut element = vec![evaluation.clone(), portion.clone(), replica.clone()];
            element.push(value.clone());
            element.extend_from_slice(gradients);
            state.queue.enqueue(&element)
        });
        Push {
            targets: targets.collect(),
            evaluation,
            portion,
            replica,
        }
    }
}

impl Merge {
    fn new(graph: &Graph, shard: &Shard, states: &ShardState, tickets: Option<&Queue>) -> Merge {
        let element = states.queue.dequeue();
        // Should the graph be broken, it has kept why, and what stands in here is never run.
        let at = |i: usize| element.get(i).unwrap_or(states.current.value());
        let (evaluation, portion, replica, value) = (at(0), at(1), at(2), at(3));
        let gradients = element.get(4..).unwrap_or_default();
        graph.with_control(&[evaluation.operation()], || {
            let (current, seen) = (states.current.read(), states.seen.gather(portion));
            let is_new = seen.not_equal(evaluation);
            let adds = evaluation.equal(&current).logical_and(&is_new);
            let if_adds = |output: &Output| {
                let switch = graph.op("Switch").input(output).input(&adds);
                switch.build().output(1)
            };
            let sums = shard.gradients();
            let mut targets: Vec<Operation> = sums
                .iter()
                .zip(gradients)
                .map(|(sum, gradient)| sum.assign_add(&if_adds(gradient)))
                .collect();
            let remember = graph.with_control(&targets, || {
                graph
                    .op("ResourceScatterUpdate")
                    .input(states.seen.handle())
                    .input(portion)
                    .input(&if_adds(evaluation))
                    .attr("dtype", DType::Int64)
                    .build()
            });
            targets.push(remember);
            let untaken = match tickets {
                Some(tickets) => tickets.size().cast(DType::Int64),
                None => graph.constant(0i64),
            };
            let added = adds.cast(DType::Int64);
            let facts = [
                evaluation.clone(),
                portion.clone(),
                replica.clone(),
                added,
                seen,
                untaken,
            ];
            Merge {
                facts: stack(&facts, 0),
                value: value.clone(),
                targets,
            }
        })
    }
}
