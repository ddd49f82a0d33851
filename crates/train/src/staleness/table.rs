//! The table of replicas in the graph: who is there, how far each has come, how stale its updates
//! were. A few vectors of one number for each replica, all on the task that counts the steps.
//!
//! A push changes a replica's own row by atomic scatter operations; who comes, begins or goes takes a
//! lock for it. Nothing of it is saved: replicas enter anew after a loss. Its columns have the names by
//! which the task knows the table again when it reports (`wire::replicas`).

use super::view::{PARKED, View};
use downpour_build::{
    AttrList, AttrValue, DType, Graph, Init, Operation, Output, Result, Status, Tensor, Variable,
};
use downpour_client::{Run, Session};
use downpour_wire::replicas;

/// The least staleness of each class in which a replica's updates are counted.
pub const CLASSES: [u64; 20] = replicas::CLASSES_FROM;

/// What an update of a replica that was given up begins its error with.
pub(crate) const EXPELLED: &str = "this replica was given up";

/// How stale the updates of one replica were: how many updates came between its read and its own.
///
/// `DownpourTraining::staleness` reads it from the parameter server.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaStaleness {
    /// Its updates so far.
    pub updates: u64,
    /// Of all its updates together.
    pub total: u64,
    /// The largest.
    pub worst: u64,
    /// How many updates fell into each of [`CLASSES`].
    pub classes: Vec<u64>,
}

impl ReplicaStaleness {
    /// The mean; 0 without updates.
    pub fn mean(&self) -> f64 {
        self.total as f64 / self.updates.max(1) as f64
    }
}

/// The operations on the table.
#[derive(Debug)]
pub(crate) struct Table {
    /// The columns.
    clocks: Variable,
    lives: Variable,
    beats: Variable,
    updates: Variable,
    total: Variable,
    worst: Variable,
    classes: Variable,
    version: Variable,
    /// What is fed.
    who: Output,
    life: Output,
    clock: Output,
    heard: Output,
    read_version: Output,
    /// What is run.
    enter: Operation,
    start: Output,
    remove: Operation,
    beat: Operation,
    /// Version, clocks, lives and beats.
    reads: [Output; 4],
}

impl Table {
    /// Builds it for so many replicas, beside the count of steps.
    pub(crate) fn new(g: &Graph, version: &Variable, count: usize, trained: &[&str]) -> Table {
        let home = version.handle().operation();
        let fed = |name: &str| g.placeholder(name, DType::Int64, [1]);
        let (who, life) = (fed("who"), fed("life"));
        let (clock, heard) = (fed("clock"), fed("heard"));
        let read_version = g.placeholder("read_version", DType::Int64, ());
        g.with_colocation(&home, || {
            let column = |name: &str, length: usize, first: i64| {
                let column = g.variable(name).init(Init::value(vec![first; length]));
                column.trainable(false).saved(false).build()
            };
            let (clocks, lives) = (
                column(replicas::CLOCKS, count, PARKED),
                column("replica_lives", count, 0),
            );
            let beats = column("replica_beats", count, 0);
            let names = g
                .variable(replicas::VARIABLES)
                .trainable(false)
                .saved(false);
            names.init(Init::value(trained.to_vec())).build();
            let one = g.constant([1i64]);
            let beat = scatter(&beats, "Add", &who, &one);
            let enter = g.group(
                "enter",
                &[
                    scatter(&lives, "Update", &who, &life),
                    scatter(&clocks, "Update", &who, &g.constant([PARKED])),
                    scatter(&beats, "Add", &who, &one),
                ],
            );
            let start = locked(g, "start", || {
                let slowest = clocks.read().min_keep([0]);
                let nobody = slowest.equal(&g.constant([PARKED]));
                let begin = nobody.select(&clock, &slowest);
                let written = scatter(&clocks, "Update", &who, &begin);
                (begin, vec![written])
            });
            let start = g.with_control(&[start.1], || start.0.identity());
            let (_, remove) = locked(g, "remove", || {
                let (now_life, now_beats) = (lives.gather(&who), beats.gather(&who));
                let any = heard.less(&g.constant([0i64]));
                let unheard = any.logical_or(&now_beats.equal(&heard));
                let is_it = now_life.equal(&life).logical_and(&unheard);
                let new_life = is_it.select(&g.constant([0i64]), &now_life);
                let parked = is_it.select(&g.constant([PARKED]), &clocks.gather(&who));
                let written = vec![
                    scatter(&lives, "Update", &who, &new_life),
                    scatter(&clocks, "Update", &who, &parked),
                ];
                (new_life, written)
            });
            Table {
                reads: [version.read(), clocks.read(), lives.read(), beats.read()],
                updates: column(replicas::UPDATES, count, 0),
                total: column(replicas::TOTAL, count, 0),
                worst: column(replicas::WORST, count, 0),
                classes: column(replicas::CLASSES, count * CLASSES.len(), 0),
                version: version.clone(),
                clocks,
                lives,
                beats,
                who,
                life,
                clock,
                heard,
                read_version,
                enter,
                start,
                remove,
                beat,
            }
        })
    }

    /// What a reader of the model must wait for, so that the model is no older than the table.
    pub(crate) fn read_first(&self) -> Vec<Operation> {
        self.reads.iter().map(Output::operation).collect()
    }

    /// The operation that fails if the replica was given up; what depends on it is then not done.
    pub(crate) fn fence(&self, g: &Graph) -> Operation {
        g.with_colocation(&self.version.handle().operation(), || {
            let is_here = self.lives.gather(&self.who).equal(&self.life).all(());
            g.op("Assert")
                .input(&is_here)
                .inputs(&[g.constant(EXPELLED)])
                .attr("T", AttrValue::List(AttrList::Type(vec![DType::String])))
                .build()
        })
    }

    /// What records an update once `applied` is done.
    pub(crate) fn record(&self, g: &Graph, applied: &Operation) -> Operation {
        g.with_colocation(&self.version.handle().operation(), || {
            let marks = g.with_control(std::slice::from_ref(applied), || {
                let one = g.constant([1i64]);
                // Between the read and this update, which the version counts already.
                let stale = self.version.read() - &self.read_version - 1;
                let stale = stale.maximum(&g.constant(0i64)).reshape(&[1]);
                let count = CLASSES.len() as i32;
                let from = g.constant(CLASSES.map(|c| c as i64).to_vec());
                let class = stale.greater_equal(&from).cast(DType::Int64).sum_keep([0]) - 1;
                let class = &self.who * count + class;
                vec![
                    scatter(&self.clocks, "Update", &self.who, &self.clock),
                    scatter(&self.beats, "Add", &self.who, &one),
                    scatter(&self.updates, "Add", &self.who, &one),
                    scatter(&self.total, "Add", &self.who, &stale),
                    scatter(&self.worst, "Max", &self.who, &stale),
                    scatter(&self.classes, "Add", &class, &one),
                ]
            });
            g.group("record", &marks)
        })
    }

    /// Adds to a push whose it is, from which version it was computed, and which clock it brings.
    pub(crate) fn feed_push(&self, run: &mut Run, member: Member, version: u64, clock: u64) {
        run.feed(&self.who, [member.replica as i64]);
        run.feed(&self.read_version, version as i64);
        run.feed(&self.clock, [clock as i64]);
        run.feed(&self.life, [member.life]);
    }

    /// Fetches the table in a step.
    pub(crate) fn fetch_view(&self, run: &mut Run) {
        self.reads.iter().for_each(|read| {
            run.fetch(read);
        });
    }

    /// What [`Self::fetch_view`] fetched, and what was fetched after it.
    pub(crate) fn view(values: Vec<Tensor>) -> Result<(View, Vec<Tensor>)> {
        let mut values = values.into_iter();
        let mut column = || -> Result<Vec<i64>> {
            let value = values.next();
            let value = value.ok_or_else(|| Status::internal("the table was not fetched"))?;
            let numbers = value.as_slice::<i64>().map(<[i64]>::to_vec);
            numbers.map_err(|e| Status::internal(e.to_string()))
        };
        let (version, clocks, lives, beats) = (column()?, column()?, column()?, column()?);
        let version = version.first().copied().unwrap_or_default();
        Ok((View::of(version, &clocks, &lives, &beats), values.collect()))
    }

    /// The table as it is now.
    pub(crate) fn look(&self, session: &Session) -> Result<View> {
        let mut run = Run::new();
        self.fetch_view(&mut run);
        Ok(Table::view(session.execute(&run)?)?.0)
    }

    /// A replica is there, and waits to begin.
    pub(crate) fn enter(&self, session: &Session, member: Member) -> Result<()> {
        let step = session.step().feed(&self.who, [member.replica as i64]);
        step.feed(&self.life, [member.life])
            .target(&self.enter)
            .run()
    }

    /// A replica begins, with the slowest; where nobody has begun, at `clock`. What its clock is.
    pub(crate) fn start(&self, session: &Session, member: Member, clock: u64) -> Result<u64> {
        let step = session.step().feed(&self.who, [member.replica as i64]);
        let begun = step.feed(&self.clock, [clock as i64]).fetch(&self.start)?;
        let begun = begun
            .as_slice::<i64>()
            .ok()
            .and_then(|c| c.first().copied());
        Ok(begun.and_then(|c| u64::try_from(c).ok()).unwrap_or(clock))
    }

    /// A replica goes, or is given up if it was not heard of since it had beaten so often.
    pub(crate) fn remove(
        &self,
        session: &Session,
        member: Member,
        heard: Option<i64>,
    ) -> Result<()> {
        let step = session.step().feed(&self.who, [member.replica as i64]);
        let step = step.feed(&self.life, [member.life]);
        step.feed(&self.heard, [heard.unwrap_or(-1)])
            .target(&self.remove)
            .run()
    }

    /// A replica lives.
    pub(crate) fn beat(&self, session: &Session, replica: usize) -> Result<()> {
        let step = session.step().feed(&self.who, [replica as i64]);
        step.target(&self.beat).run()
    }

    /// How stale each replica's updates were.
    pub(crate) fn staleness(&self, session: &Session) -> Result<Vec<ReplicaStaleness>> {
        let columns = [&self.updates, &self.total, &self.worst, &self.classes];
        let values = session.step().fetch_all(columns.map(|c| c.value()))?;
        let [updates, total, worst, classes] = values.map(|v| {
            let numbers = v.as_slice::<i64>().unwrap_or_default();
            numbers
                .iter()
                .map(|n| n.cast_unsigned())
                .collect::<Vec<u64>>()
        });
        let rows = classes.chunks(CLASSES.len());
        let all = updates.iter().zip(&total).zip(&worst).zip(rows);
        let replica = |(((updates, total), worst), classes): (((&u64, &u64), &u64), &[u64])| {
            ReplicaStaleness {
                updates: *updates,
                total: *total,
                worst: *worst,
                classes: classes.to_vec(),
            }
        };
        Ok(all.map(replica).collect())
    }
}

/// A replica in one of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) replica: usize,
    pub(crate) life: i64,
}

/// Runs what `body` builds while nobody else does so.
fn locked(
    g: &Graph,
    name: &str,
    body: impl FnOnce() -> (Output, Vec<Operation>),
) -> (Output, Operation) {
    let mutex = g
        .op("MutexV2")
        .attr("shared_name", "downpour/table")
        .output();
    let lock = g.op("MutexLock").input(&mutex).output();
    g.with_scope(name, || {
        let (value, written) = g.with_control(&[lock.operation()], body);
        let release = || g.op("ConsumeMutexLock").input(&lock).build();
        (value, g.with_control(&written, release))
    })
}

fn scatter(variable: &Variable, how: &str, at: &Output, values: &Output) -> Operation {
    let op = variable
        .handle()
        .graph()
        .op(&format!("ResourceScatter{how}"));
    let op = op.input(variable.handle()).input(at).input(values);
    op.attr("dtype", DType::Int64).build()
}
