//! The vectors of a minimization where they live, on the parameter servers: gradient, direction,
//! the line search's beginning and the history beside each parameter, and the commands that work on
//! them in place.
//!
//! Invariant: no vector leaves its server; commands bring back sums of doubles. None reads what it
//! writes, so each may be given twice in a row ([`super::machine`]).

use super::order::{Order, beside, place, total};
use crate::optimizer::slots;
use downpour_build::{
    DType, Graph, Init, Operation, Output, Result, Tensor, Variable, concat, stack,
};
use downpour_client::Session;
use std::collections::BTreeMap;

/// One parameter and the vectors beside it.
struct Kept {
    x: Variable,
    g: Variable,
    d: Variable,
    x0: Variable,
    g0: Variable,
    s: Vec<Variable>,
    y: Vec<Variable>,
}

/// The parameters of one task.
pub(super) struct Shard {
    kept: Vec<Kept>,
}

impl Shard {
    /// What stands for the shard's device.
    pub(super) fn home(&self) -> &Variable {
        &self.kept[0].x
    }

    /// The gradients to add to, in the order of [`Shard::parameters`].
    pub(super) fn gradients(&self) -> Vec<Variable> {
        self.kept.iter().map(|k| k.g.clone()).collect()
    }

    /// The parameters.
    pub(super) fn parameters(&self) -> impl Iterator<Item = &Variable> {
        self.kept.iter().map(|k| &k.x)
    }
}

/// All vectors, and the commands on them.
pub(super) struct Vectors {
    pub(super) shards: Vec<Shard>,
    history: usize,
    l2: f64,
    go: Order,
    clear: Order,
    measure: Order,
    store: Vec<Order>,
    products: Order,
    direct: Order,
    back: Order,
    record: Variable,
    write: Order,
}

/// What [`Vectors::measure`] finds.
pub(super) struct Measured {
    /// `g · d`.
    pub(super) slope: f64,
    /// Of the gradient's elements.
    pub(super) largest: f64,
    /// What the weights add to the objective.
    pub(super) penalty: f64,
}

/// Products of the newest pair and the gradient with the basis.
pub(super) struct Rows {
    /// Of `x - x0`, `g - g0` and `g`, with each `s`, then each `y`, as they were.
    pub(super) old: [Vec<f64>; 3],
    /// Among themselves.
    pub(super) own: [[f64; 3]; 3],
}

impl Rows {
    /// The products of the pair's `s` (0), its `y` (1) or the gradient (2) with the basis, once the
    /// pair is in a slot.
    pub(super) fn row(&self, which: usize, slot: Option<usize>) -> Vec<f64> {
        let mut row = self.old[which].clone();
        let history = row.len() / 2;
        if let Some(slot) = slot {
            row[slot] = self.own[which][0];
            row[history + slot] = self.own[which][1];
        }
        row.push(self.own[which][2]);
        row
    }
}

impl Vectors {
    /// Makes the vectors of these parameters, and a record of so many numbers.
    pub(super) fn new(
        graph: &Graph,
        parameters: &[Variable],
        history: usize,
        numbers: usize,
        l2: f64,
    ) -> Vectors {
        let mut devices: BTreeMap<String, Vec<Kept>> = BTreeMap::new();
        for x in parameters {
            let make = |name: &str| slots::beside(x, Init::zeros(), &format!("Sandblaster/{name}"));
            let many = |name: &str| -> Vec<Variable> {
                (0..history).map(|i| make(&format!("{name}_{i}"))).collect()
            };
            let kept = Kept {
                g: make("gradient"),
                d: make("direction"),
                x0: make("x0"),
                g0: make("gradient0"),
                s: many("s"),
                y: many("y"),
                x: x.clone(),
            };
            let device = x.handle().operation().device();
            devices.entry(device).or_default().push(kept);
        }
        let shards: Vec<Shard> = devices.into_values().map(|kept| Shard { kept }).collect();
        let home = shards[0].home().clone();
        let record = beside(&home, || {
            let record = graph.variable("Sandblaster/record").absolute();
            let record = record.shape([numbers]).dtype(DType::Double);
            record.init(Init::zeros()).trainable(false).build()
        });
        graph.with_scope("sandblaster", || {
            let value = place(&home, "record", DType::Double, &[numbers]);
            let write = beside(&home, || record.assign(&value));
            Vectors {
                go: go(&shards),
                clear: clear(&shards, l2),
                measure: measure(&shards, l2),
                store: (0..history).map(|slot| store(&shards, slot)).collect(),
                products: products(&shards),
                direct: direct(&shards, history),
                back: back(&shards),
                write: Order {
                    fed: vec![vec![value]],
                    targets: vec![write],
                    fetched: Vec::new(),
                },
                record,
                shards,
                history,
                l2,
            }
        })
    }

    /// `x = x0 + step d`.
    pub(super) fn go(&self, session: &Session, step: f64) -> Result<()> {
        self.go.give(session, &[Tensor::scalar(step)]).map(|_| ())
    }

    /// The gradient is that of the weights' penalty.
    pub(super) fn clear(&self, session: &Session) -> Result<()> {
        self.clear.give(session, &[]).map(|_| ())
    }

    /// Slope, size of the gradient, penalty.
    pub(super) fn measure(&self, session: &Session) -> Result<Measured> {
        let answers = self.measure.give(session, &[])?;
        let sums = total(&answers);
        let largest = |most: f64, answer: &Vec<f64>| match answer[1] {
            // A gradient that is no number must not look small.
            nan if nan.is_nan() => f64::INFINITY,
            value => most.max(value),
        };
        Ok(Measured {
            slope: sums[0],
            largest: answers.iter().fold(0.0, largest),
            penalty: 0.5 * self.l2 * sums[2],
        })
    }

    /// Products of the newest pair and the gradient with the basis.
    pub(super) fn products(&self, session: &Session) -> Result<Rows> {
        let all = total(&self.products.give(session, &[])?);
        let width = 2 * self.history + 3;
        let row = |i: usize| &all[i * width..(i + 1) * width];
        let old = |i: usize| row(i)[..2 * self.history].to_vec();
        let own = |i: usize| {
            let [a, b, c] = [0, 1, 2].map(|j| row(i)[2 * self.history + j]);
            [a, b, c]
        };
        Ok(Rows {
            old: [0, 1, 2].map(old),
            own: [0, 1, 2].map(own),
        })
    }

    /// `s = x - x0`, `y = g - g0` in a slot.
    pub(super) fn store(&self, session: &Session, slot: usize) -> Result<()> {
        self.store[slot].give(session, &[]).map(|_| ())
    }

    /// `x0 = x`, `g0 = g`, `d = Σ coefficient · basis`; `g · d` and `d · d`.
    pub(super) fn direct(&self, session: &Session, coefficients: &[f64]) -> Result<(f64, f64)> {
        let fed = Tensor::vector(coefficients.to_vec());
        let sums = total(&self.direct.give(session, &[fed])?);
        Ok((sums[0], sums[1]))
    }

    /// `x = x0`, `g = g0`.
    pub(super) fn back(&self, session: &Session) -> Result<()> {
        self.back.give(session, &[]).map(|_| ())
    }

    /// Writes the record.
    pub(super) fn write(&self, session: &Session, record: Vec<f64>) -> Result<()> {
        self.write
            .give(session, &[Tensor::vector(record)])
            .map(|_| ())
    }

    /// Reads the record.
    pub(super) fn read(&self, session: &Session) -> Result<Vec<f64>> {
        super::order::numbers(&session.fetch(&self.record)?)
    }
}

/// A flat vector of doubles.
fn wide(value: &Output) -> Output {
    let flat = value.reshape(&[-1]);
    match flat.dtype() {
        DType::Double => flat,
        _ => flat.cast(DType::Double),
    }
}

/// The inner product of two flat vectors of doubles. A product of matrices, because that adds up in
/// one pass and needs no memory.
fn dot(a: &Output, b: &Output) -> Output {
    a.reshape(&[1, -1])
        .matmul(&b.reshape(&[-1, 1]))
        .reshape(&[])
}

fn add(terms: Vec<Output>) -> Output {
    let first = terms[0].clone();
    terms.iter().skip(1).fold(first, |sum, term| &sum + term)
}

/// `variable += factor · vector`, in place.
fn axpy(variable: &Variable, minus_factor: &Output, vector: &Output) -> Operation {
    let graph = variable.handle().graph();
    let op = graph.op("ResourceApplyGradientDescent");
    op.input(variable.handle())
        .input(minus_factor)
        .input(vector)
        .build()
}

/// Builds the part of a command on each shard's device.
fn on_each(shards: &[Shard], mut body: impl FnMut(&Shard)) {
    for shard in shards {
        beside(shard.home(), || body(shard));
    }
}

fn go(shards: &[Shard]) -> Order {
    let mut order = Order {
        fed: vec![Vec::new()],
        ..Order::default()
    };
    on_each(shards, |shard| {
        let graph = shard.home().handle().graph();
        let step = place(shard.home(), "step", DType::Double, &[]);
        for k in &shard.kept {
            let copied = k.x.assign(k.x0.value());
            let minus = (-&step).cast(k.x.dtype());
            let moved = graph.with_control(&[copied], || axpy(&k.x, &minus, k.d.value()));
            order.targets.push(moved);
        }
        order.fed[0].push(step);
    });
    order
}

fn clear(shards: &[Shard], l2: f64) -> Order {
    let mut order = Order::default();
    on_each(shards, |shard| {
        let graph = shard.home().handle().graph();
        for k in &shard.kept {
            let first = match l2 == 0.0 {
                true => graph.zeros(k.g.dtype(), k.g.shape()),
                false => k.x.value() * l2,
            };
            order.targets.push(k.g.assign(&first));
        }
    });
    order
}

fn measure(shards: &[Shard], l2: f64) -> Order {
    let mut order = Order::default();
    on_each(shards, |shard| {
        let graph = shard.home().handle().graph();
        let each =
            |f: &dyn Fn(&Kept) -> Output| -> Vec<Output> { shard.kept.iter().map(f).collect() };
        let slope = add(each(&|k| dot(&wide(k.g.value()), &wide(k.d.value()))));
        let largest = each(&|k| k.g.value().abs().max(()).cast(DType::Double));
        let weights = match l2 == 0.0 {
            true => graph.constant(0.0f64),
            false => add(each(&|k| {
                let x = wide(k.x.value());
                dot(&x, &x)
            })),
        };
        let largest = stack(&largest, 0).max(());
        order.fetched.push(stack(&[slope, largest, weights], 0));
    });
    order
}

fn store(shards: &[Shard], slot: usize) -> Order {
    let mut order = Order::default();
    on_each(shards, |shard| {
        for k in &shard.kept {
            let (s, y) = (k.x.value() - k.x0.value(), k.g.value() - k.g0.value());
            order.targets.push(k.s[slot].assign(&s));
            order.targets.push(k.y[slot].assign(&y));
        }
    });
    order
}

fn products(shards: &[Shard]) -> Order {
    let mut order = Order::default();
    on_each(shards, |shard| {
        let graph = shard.home().handle().graph();
        // One vector after the other: as doubles they need room.
        let mut before: Vec<Operation> = Vec::new();
        let mut sums = Vec::new();
        for k in &shard.kept {
            let newest = graph.with_control(&before, || {
                let (s, y) = (k.x.read() - k.x0.read(), k.g.read() - k.g0.read());
                stack(&[wide(&s), wide(&y), wide(&k.g.read())], 0)
            });
            before = vec![newest.operation()];
            let mut columns = Vec::new();
            for b in k.s.iter().chain(&k.y) {
                let b = graph.with_control(&before, || wide(&b.read()));
                let column = newest.matmul(&b.reshape(&[-1, 1]));
                before = vec![column.operation()];
                columns.push(column);
            }
            columns.push(newest.matmul_as(&newest, false, true));
            sums.push(concat(&columns, 1));
        }
        order.fetched.push(add(sums).reshape(&[-1]));
    });
    order
}

fn direct(shards: &[Shard], history: usize) -> Order {
    let mut order = Order {
        fed: vec![Vec::new()],
        ..Order::default()
    };
    on_each(shards, |shard| {
        let graph = shard.home().handle().graph();
        let size = 2 * history + 1;
        let fed = place(shard.home(), "coefficients", DType::Double, &[size]);
        let (mut slopes, mut squares) = (Vec::new(), Vec::new());
        for k in &shard.kept {
            let c = fed.cast(k.x.dtype()).unstack(size, 0);
            order.targets.push(k.x0.assign(k.x.value()));
            order.targets.push(k.g0.assign(k.g.value()));
            let mut last = k.d.assign(&(k.g.value() * &c[size - 1]));
            for (b, c) in k.s.iter().chain(&k.y).zip(&c) {
                last = graph.with_control(&[last], || axpy(&k.d, &-c, &b.read()));
            }
            let d = graph.with_control(&[last], || wide(&k.d.read()));
            slopes.push(dot(&wide(k.g.value()), &d));
            squares.push(dot(&d, &d));
        }
        order.fetched.push(stack(&[add(slopes), add(squares)], 0));
        order.fed[0].push(fed);
    });
    order
}

fn back(shards: &[Shard]) -> Order {
    let mut order = Order::default();
    on_each(shards, |shard| {
        for k in &shard.kept {
            order.targets.push(k.x.assign(k.x0.value()));
            order.targets.push(k.g.assign(k.g0.value()));
        }
    });
    order
}
