//! Which advertisement a person clicks on, by a wide and deep model on a cluster. Wide: one weight
//! for each age and tag together, with Ftrl, which keeps half of them and more at exactly zero
//! (`zero_weights`). Deep: vectors of people, items and tags under a small network, with Adagrad.
//! All tables lie in parts on the parameter servers, and a step touches only the rows that its
//! examples name.
//!
//! The log of clicks is made by a known rule, so the best possible result is known too: the area
//! under the ROC curve (`auc`) must reach 96 % of what the rule itself reaches (`best_auc`).
//!
//! `cargo run --release --example wide_deep -- --ps 2 --workers 2 [--sync] [--json]`

use downpour::layers::Dense;
use downpour::losses::sigmoid_cross_entropy;
use downpour::program::{Program, Report, Worker};
use downpour::train::{Adagrad, Ftrl, MonitoredSession, PerVariable};
use downpour::{
    Combiner, DType, Draws, Init, Lookup, Operation, Output, Partitioner, Result, SparseTensor,
    Tensor, concat, embedding_lookup, embedding_lookup_sparse,
};

const PEOPLE: usize = 1000;
const ITEMS: usize = 300;
const AGES: usize = 10;
const TAGS: usize = 60;
/// Tastes of people, and kinds of items.
const KINDS: usize = 6;
const BATCH: usize = 256;

/// What the clicks follow from.
struct Rule {
    ages: Vec<usize>,
    tastes: Vec<usize>,
    kinds: Vec<usize>,
    /// How much a taste likes a kind.
    likes: Vec<f32>,
    /// What a tag does to an age: for most nothing.
    moves: Vec<f32>,
}

impl Rule {
    fn new(seed: u64) -> Rule {
        let mut draws = Draws::new(seed);
        let mut below = |count: usize, limit: usize| -> Vec<usize> {
            (0..count).map(|_| draws.below(limit)).collect()
        };
        let (ages, tastes) = (below(PEOPLE, AGES), below(PEOPLE, KINDS));
        let kinds = below(ITEMS, KINDS);
        let signs = |halves: Vec<usize>| halves.into_iter().map(|h| h as f32 * 4.0 - 2.0);
        let likes = signs(below(KINDS * KINDS, 2)).collect();
        let moves = signs(below(AGES * TAGS, 2)).zip(below(AGES * TAGS, 5));
        Rule {
            likes,
            moves: moves.map(|(m, n)| if n == 0 { m } else { 0.0 }).collect(),
            ages,
            tastes,
            kinds,
        }
    }

    /// A part of the log: people who were shown items with tags, and whether they clicked.
    fn log(&self, draws: &mut Draws, count: usize) -> Log {
        let mut log = Log::default();
        for row in 0..count {
            let (person, item) = (draws.below(PEOPLE), draws.below(ITEMS));
            let age = self.ages[person];
            let mut odds = self.likes[self.tastes[person] * KINDS + self.kinds[item]];
            for _ in 0..1 + draws.below(3) {
                let tag = draws.below(TAGS);
                odds += self.moves[age * TAGS + tag];
                log.tagged.extend([row as i64, log.tags_of(row)]);
                log.tags.push(tag as i64);
            }
            let probability = 1.0 / (1.0 + (-odds).exp());
            log.people.push(person as i64);
            log.items.push(item as i64);
            log.ages.push(age as i64);
            log.clicks.push(f32::from(draws.uniform() < probability));
            log.truth.push(probability);
        }
        log
    }
}

/// Part of the log, by column.
#[derive(Default)]
struct Log {
    people: Vec<i64>,
    items: Vec<i64>,
    ages: Vec<i64>,
    /// Row and place of each tag.
    tagged: Vec<i64>,
    tags: Vec<i64>,
    clicks: Vec<f32>,
    /// How likely each click was.
    truth: Vec<f32>,
}

impl Log {
    /// How many tags the last row has, if that is it.
    fn tags_of(&self, row: usize) -> i64 {
        match self.tagged.as_slice() {
            [.., last, place] if *last == row as i64 => place + 1,
            _ => 0,
        }
    }
}

/// The columns as a model takes them.
struct Columns {
    people: Output,
    items: Output,
    ages: Output,
    tags: SparseTensor,
    clicks: Output,
}

struct Model {
    columns: Columns,
    probability: Output,
    weights: Output,
    train: Operation,
    sparse_updates: usize,
    draws: Draws,
}

impl Program for Rule {
    const STEPS: i64 = 2500;
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let column = |name: &str, dtype: DType| g.placeholder(name, dtype, [None]);
        let columns = Columns {
            people: column("people", DType::Int64),
            items: column("items", DType::Int64),
            ages: column("ages", DType::Int64),
            tags: g.sparse_placeholder("tags", DType::Int64, 2),
            clicks: column("clicks", DType::Float),
        };
        let parts = Partitioner::fixed(worker.ps());
        let table = |name: &str, rows: usize, width: usize, init: Init| {
            let table = g.variable(name).shape([rows, width]);
            table.init(init).partitioned(&parts)
        };
        let tags = &columns.tags;

        // Age and tag of each tag of each example, as one number.
        let rows = tags.indices.slice(&[0, 0], &[-1, 1]).reshape(&[-1]);
        let crossed = SparseTensor {
            values: columns.ages.gather(&rows, 0) * TAGS as i32 + &tags.values,
            ..tags.clone()
        };
        let weights = table("wide/weights", AGES * TAGS, 1, Init::zeros());
        let wide = embedding_lookup_sparse(&weights, &crossed, None, Lookup::Div, Combiner::Sum);

        let vectors = || Init::normal(0.0, 0.1);
        let of_people = table("deep/people", PEOPLE, 8, vectors());
        let of_items = table("deep/items", ITEMS, 8, vectors());
        let of_tags = table("deep/tags", TAGS, 4, vectors());
        let input = concat(
            &[
                embedding_lookup(&of_people, &columns.people, Lookup::Div),
                embedding_lookup(&of_items, &columns.items, Lookup::Div),
                embedding_lookup_sparse(&of_tags, tags, None, Lookup::Div, Combiner::Mean),
            ],
            1,
        );
        // How wide looked-up rows are is not known while the graph is built.
        let input = input.reshape(&[-1, 20]);
        let hidden = Dense::new(g, "deep/hidden", 20, 32).apply(&input).relu();
        let deep = Dense::new(g, "deep/logit", 32, 1).apply(&hidden);

        let logits = (wide + deep).reshape(&[-1]);
        let loss = sigmoid_cross_entropy(&columns.clicks, &logits);
        let wide_variables = |v: &downpour::Variable| v.name().starts_with("wide/");
        let optimizer =
            PerVariable::new(Adagrad::new(0.5)).with(wide_variables, Ftrl::new(0.5).l1(0.2));
        let train = worker.minimize(&optimizer, &loss)?;
        let updates = g.operations().into_iter();
        let updates = updates.filter(|op| op.op().starts_with("ResourceSparseApply"));
        Ok(Model {
            columns,
            probability: logits.sigmoid(),
            weights: weights.value().clone(),
            train,
            sparse_updates: updates.count(),
            draws: Draws::new(1 + worker.index() as u64),
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        let log = self.log(&mut m.draws, BATCH);
        let mut step = session.step();
        for (column, value) in m.columns.of(&log)? {
            step = step.feed(column, value);
        }
        step.feed(&m.columns.clicks, log.clicks)
            .target(&m.train)
            .run()
    }

    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let session = session.raw()?;
        let log = self.log(&mut Draws::new(0), 20_000);
        let mut step = session.step();
        for (column, value) in m.columns.of(&log)? {
            step = step.feed(column, value);
        }
        let [guess, weights] = step.fetch_all([&m.probability, &m.weights])?;
        let weights = weights.as_slice::<f32>()?;
        let zeros = weights.iter().filter(|w| **w == 0.0).count();
        let best = area_under_curve(&log.truth, &log.clicks);
        let auc = area_under_curve(guess.as_slice::<f32>()?, &log.clicks);
        let numbers = [
            ("auc", auc),
            ("best_auc", best),
            ("share_of_best", auc / best),
            ("zero_weights", zeros as f64 / weights.len() as f64),
            ("sparse_updates", m.sparse_updates as f64),
        ];
        Ok(numbers.map(|(name, n)| (name.to_owned(), n)).into())
    }
}

impl Columns {
    /// What to feed for a part of the log, but for the clicks.
    fn of(&self, log: &Log) -> Result<[(&Output, Tensor); 6]> {
        let count = log.tags.len();
        let rows = log.people.len() as i64;
        Ok([
            (&self.people, Tensor::vector(log.people.clone())),
            (&self.items, Tensor::vector(log.items.clone())),
            (&self.ages, Tensor::vector(log.ages.clone())),
            (
                &self.tags.indices,
                Tensor::from_vec(log.tagged.clone(), [count, 2])?,
            ),
            (&self.tags.values, Tensor::vector(log.tags.clone())),
            (&self.tags.shape, Tensor::vector(vec![rows, 3])),
        ])
    }
}

/// How likely a clicked example scores above another: the sum of the clicked ones' ranks tells.
fn area_under_curve(scores: &[f32], clicks: &[f32]) -> f64 {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
    let (mut ranks, mut yes, mut at) = (0.0, 0.0, 0);
    while at < order.len() {
        // Equal scores share their ranks.
        let same = order[at..].iter();
        let same = same
            .take_while(|i| scores[**i] == scores[order[at]])
            .count()
            .max(1);
        let rank = at as f64 + (same as f64 + 1.0) / 2.0;
        for i in &order[at..at + same] {
            ranks += rank * f64::from(clicks[*i]);
            yes += f64::from(clicks[*i]);
        }
        at += same;
    }
    let no = scores.len() as f64 - yes;
    (ranks - yes * (yes + 1.0) / 2.0) / (yes * no)
}

fn main() -> std::process::ExitCode {
    downpour::program::main(|| Ok(Rule::new(42)))
}
