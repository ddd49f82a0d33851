//! Vectors of words by skip-gram and noise-contrastive estimation, on a cluster: a word's vector
//! must tell the words around it from random ones. Both tables lie in parts on the parameter
//! servers, and a step touches only the rows of its words.
//!
//! The text is made by a small grammar, so it is known which words are alike: of the five nearest
//! neighbours of a word 90 % and more are of its own class (`same_class`); by chance it were 10 %.
//!
//! `cargo run --release --example word2vec -- --ps 2 --workers 2 [--sync] [--json]`

use downpour::program::{Program, Report, Worker};
use downpour::train::{Adagrad, MonitoredSession};
use downpour::{
    Candidates, DType, Draws, Init, Lookup, Operation, Output, Partitioner, Result, Tensor,
    embedding_lookup, nce_loss,
};

/// Words of one kind: what a sentence says of one it may say of any.
const CLASSES: [(&str, &str); 10] = [
    (
        "ANIMAL",
        "dog cat horse cow goat sheep fox hare owl crow duck goose",
    ),
    (
        "FOOD",
        "bread cheese soup rice beans apples plums honey butter cake fish eggs",
    ),
    (
        "PLACE",
        "harbour market forest castle village garden station bridge tower island valley mill",
    ),
    (
        "TOOL",
        "hammer saw drill chisel wrench file plane clamp shovel axe needle rope",
    ),
    (
        "PERSON",
        "baker miller smith tailor sailor farmer doctor teacher painter singer weaver cook",
    ),
    (
        "COLOUR",
        "red green blue yellow white black brown grey purple orange golden silver",
    ),
    (
        "WEATHER",
        "rain snow fog wind hail frost sunshine thunder drizzle clouds sleet storm",
    ),
    (
        "INSTRUMENT",
        "violin flute drum harp trumpet piano cello horn lute organ fiddle oboe",
    ),
    (
        "MONTH",
        "january february march april may june july august september october november december",
    ),
    (
        "CLOTH",
        "wool silk linen cotton felt velvet leather fur lace denim tweed satin",
    ),
];

const SENTENCES: [&str; 12] = [
    "the COLOUR ANIMAL eats FOOD near the PLACE",
    "a ANIMAL drinks water and a ANIMAL sleeps",
    "the PERSON plays the INSTRUMENT in the PLACE",
    "an old INSTRUMENT sounds softer than a new INSTRUMENT",
    "the PERSON repairs the door with a TOOL",
    "bring me the TOOL and the TOOL said the PERSON",
    "in MONTH there was WEATHER over the PLACE",
    "after the WEATHER came WEATHER until MONTH",
    "she wears a COLOUR coat of CLOTH in MONTH",
    "CLOTH is warmer than CLOTH",
    "they sell FOOD and FOOD at the PLACE",
    "the PERSON cuts COLOUR CLOTH with a TOOL",
];

const WIDTH: usize = 32;
const BATCH: usize = 256;
/// Random words that each word is compared with.
const SAMPLE: usize = 16;
/// Words to either side that a word must tell.
const WINDOW: usize = 2;
const NEIGHBOURS: usize = 5;

/// A text of numbered words.
struct Corpus {
    words: Vec<&'static str>,
    /// The class of each word that has one.
    classes: Vec<Option<usize>>,
    counts: Vec<f32>,
    sentences: Vec<Vec<usize>>,
}

impl Corpus {
    fn new(count: usize, seed: u64) -> Corpus {
        let mut corpus = Corpus {
            words: Vec::new(),
            classes: Vec::new(),
            counts: Vec::new(),
            sentences: Vec::new(),
        };
        let members = CLASSES.map(|(_, members)| members.split(' ').collect::<Vec<_>>());
        let mut draws = Draws::new(seed);
        for _ in 0..count {
            let mut sentence = Vec::new();
            for word in draws.pick(&SENTENCES).split(' ') {
                let class = CLASSES.iter().position(|(name, _)| *name == word);
                let word = match class {
                    Some(class) => *draws.pick(&members[class]),
                    None => word,
                };
                sentence.push(corpus.number(word, class));
            }
            corpus.sentences.push(sentence);
        }
        corpus
    }

    /// The number of a word, which is one more of it.
    fn number(&mut self, word: &'static str, class: Option<usize>) -> usize {
        let known = self.words.iter().position(|w| *w == word);
        let number = known.unwrap_or_else(|| {
            self.words.push(word);
            self.classes.push(class);
            self.counts.push(0.0);
            self.words.len() - 1
        });
        self.counts[number] += 1.0;
        number
    }

    /// Random words of every `workers`-th sentence, and one of those beside each.
    fn pairs(&self, draws: &mut Draws, worker: usize, workers: usize) -> (Vec<i64>, Vec<i64>) {
        let share = self.sentences.len() / workers;
        let mut pair = || {
            let sentence = &self.sentences[draws.below(share) * workers + worker];
            let at = draws.below(sentence.len());
            let (low, high) = (
                at.saturating_sub(WINDOW),
                (at + WINDOW).min(sentence.len() - 1),
            );
            // Any place of the window but its own.
            let beside = low + draws.below(high - low);
            let beside = beside + usize::from(beside >= at);
            (sentence[at] as i64, sentence[beside] as i64)
        };
        (0..BATCH).map(|_| pair()).unzip()
    }

    /// The nearest of the words that have a class, nearest first. Vectors have length 1.
    fn neighbours(&self, vectors: &[Vec<f32>], word: usize) -> Vec<usize> {
        let classed = (0..self.words.len()).filter(|w| *w != word && self.classes[*w].is_some());
        let dot = |w: usize| -> f32 {
            let pairs = vectors[w].iter().zip(&vectors[word]);
            pairs.map(|(a, b)| a * b).sum()
        };
        let mut order: Vec<(f32, usize)> = classed.map(|w| (dot(w), w)).collect();
        order.sort_by(|a, b| b.0.total_cmp(&a.0));
        order.into_iter().take(NEIGHBOURS).map(|(_, w)| w).collect()
    }
}

struct Model {
    words: Output,
    beside: Output,
    vectors: Output,
    train: Operation,
    draws: Draws,
    worker: (usize, usize),
}

impl Program for Corpus {
    const STEPS: i64 = 1500;
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let size = self.words.len();
        let words = g.placeholder("words", DType::Int64, [None]);
        let beside = g.placeholder("beside", DType::Int64, [None, Some(1)]);
        let parts = Partitioner::fixed(worker.ps());
        let table = g.variable("vectors").shape([size, WIDTH]);
        let table = table.init(Init::uniform(-0.5, 0.5)).partitioned(&parts);
        let weights = g.variable("weights").shape([size, WIDTH]);
        let weights = weights.init(Init::zeros()).partitioned(&parts);
        let biases = g.variable("biases").shape([size]).init(Init::zeros());
        let biases = biases.partitioned(&parts);
        let rows = embedding_lookup(&table, &words, Lookup::Div).reshape(&[-1, WIDTH as i32]);
        // Frequent words are drawn more often, but less so than they occur.
        let candidates = Candidates::unigram(&beside, SAMPLE, &self.counts, 0.75);
        let loss = nce_loss(&weights, &biases, &rows, &candidates).mean(());
        let train = worker.minimize(&Adagrad::new(0.5), &loss)?;
        let length = table.value().square().sum_keep(1).sqrt();
        Ok(Model {
            words,
            beside,
            vectors: table.value() / length,
            train,
            draws: Draws::new(worker.index() as u64),
            worker: (worker.index(), worker.count()),
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        let (words, beside) = self.pairs(&mut m.draws, m.worker.0, m.worker.1);
        let step = session.step().feed(&m.words, words);
        let step = step.feed(&m.beside, Tensor::from_vec(beside, [BATCH, 1])?);
        step.target(&m.train).run()
    }

    #[expect(clippy::print_stdout, reason = "a program shows what it has learnt")]
    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let table = session.raw()?.fetch(&m.vectors)?;
        let rows = table.as_slice::<f32>()?.chunks(WIDTH);
        let vectors: Vec<Vec<f32>> = rows.map(<[f32]>::to_vec).collect();
        let (mut right, mut all) = (0, 0);
        for (word, class) in self.classes.iter().enumerate() {
            if class.is_none() {
                continue;
            }
            let near = self.neighbours(&vectors, word);
            right += near.iter().filter(|w| self.classes[**w] == *class).count();
            all += near.len();
            if ["dog", "silk", "flute"].contains(&self.words[word]) {
                let near: Vec<&str> = near.iter().map(|w| self.words[*w]).collect();
                println!("{}: {}", self.words[word], near.join(" "));
            }
        }
        let share = f64::from(right as u32) / f64::from(all as u32);
        Ok(Report::from([("same_class".to_owned(), share)]))
    }
}

fn main() -> std::process::ExitCode {
    downpour::program::main(|| Ok(Corpus::new(20_000, 42)))
}
