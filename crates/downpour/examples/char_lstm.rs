//! Text, character by character, by a network with memory, on a cluster: an LSTM cell unrolled
//! over windows of text, whose state goes from window to window; at the end it writes lines of
//! its own.
//!
//! The text is made by a small grammar, so it is known what cannot be guessed: a line is worth
//! 17.6 bits, however long. A verb agrees with the noun before it, which only a memory tells. The
//! model needs at most 9 % more than that (`bits_per_character`, of which `best_bits` would be
//! enough; without a model it were 4.75), and of the lines that it writes itself 80 % and more
//! are of the grammar (`grammatical`).
//!
//! `cargo run --release --example char_lstm -- --ps 2 --workers 2 [--sync] [--json]`

use downpour::layers::{Dense, LstmCell, LstmState};
use downpour::losses::sparse_softmax_cross_entropy;
use downpour::program::{Program, Report, Worker};
use downpour::train::{Adam, MonitoredSession, Schedule};
use downpour::{DType, Draws, Graph, Operation, Output, Result, Session, Tensor, stack};

const NOUNS: [&str; 8] = [
    "dog", "cat", "goat", "bird", "child", "sailor", "farmer", "painter",
];
const PREPOSITIONS: [&str; 4] = ["at", "by", "in", "on"];
const PLACES: [&str; 8] = [
    "bridge", "house", "mill", "tower", "tree", "wall", "gate", "ship",
];
const VERBS: [&str; 6] = ["see", "hear", "follow", "want", "find", "know"];
const ADJECTIVES: [&str; 8] = [
    "old", "red", "small", "quiet", "wet", "bright", "round", "empty",
];
const OBJECTS: [&str; 8] = [
    "boat", "lamp", "stone", "basket", "road", "window", "barrel", "net",
];

/// Letters, the space and the end of a line.
const SYMBOLS: usize = 28;
const UNITS: usize = 96;
const WINDOW: usize = 64;
const BATCH: usize = 16;

/// The nouns and verbs of a number: `dogs see`, `a dog sees`.
fn ends(many: bool) -> (&'static str, &'static str) {
    if many { ("s", "") } else { ("", "s") }
}

/// A line of the grammar.
fn line(draws: &mut Draws) -> String {
    let (noun, verb) = ends(draws.below(2) == 0);
    format!(
        "the {}{noun} {}{verb} the {} {} {} the {}\n",
        draws.pick(&NOUNS),
        draws.pick(&VERBS),
        draws.pick(&ADJECTIVES),
        draws.pick(&OBJECTS),
        draws.pick(&PREPOSITIONS),
        draws.pick(&PLACES)
    )
}

/// Whether the grammar makes a line.
fn is_line(text: &str) -> bool {
    let words: Vec<&str> = text.split(' ').collect();
    let ["the", noun, verb, "the", rest @ ..] = &words[..] else {
        return false;
    };
    let [adjective, object, preposition, "the", place] = rest else {
        return false;
    };
    let has = |words: &[&str], word: &str, end: &str| {
        let stem = word.strip_suffix(end).unwrap_or("");
        words.contains(&stem)
    };
    let agree = |many: bool| {
        let (of_noun, of_verb) = ends(many);
        has(&NOUNS, noun, of_noun) && has(&VERBS, verb, of_verb)
    };
    (agree(true) || agree(false))
        && PREPOSITIONS.contains(preposition)
        && PLACES.contains(place)
        && ADJECTIVES.contains(adjective)
        && OBJECTS.contains(object)
}

/// What a character of the text is worth at least, in bits.
fn best_bits() -> f64 {
    let lists: [&[&str]; 6] = [
        &NOUNS,
        &PREPOSITIONS,
        &PLACES,
        &VERBS,
        &ADJECTIVES,
        &OBJECTS,
    ];
    let choices = lists.iter().map(|list| (list.len() as f64).log2());
    let letters = lists.iter().map(|list| {
        let all: usize = list.iter().map(|word| word.len()).sum();
        all as f64 / list.len() as f64
    });
    // Three times "the", eight spaces, one "s" and the line's end around the words.
    let length = letters.sum::<f64>() + 9.0 + 8.0 + 1.0 + 1.0;
    (1.0 + choices.sum::<f64>()) / length
}

fn number(symbol: char) -> i32 {
    match symbol {
        '\n' => 0,
        ' ' => 1,
        letter => letter as i32 - 'a' as i32 + 2,
    }
}

fn symbol(number: usize) -> char {
    match number {
        0 => '\n',
        1 => ' ',
        letter => (b'a' + letter as u8 - 2) as char,
    }
}

/// Endless texts, one for each row of a batch.
struct Texts {
    draws: Draws,
    rows: Vec<Vec<i32>>,
}

impl Texts {
    fn new(seed: u64) -> Texts {
        Texts {
            draws: Draws::new(seed),
            rows: vec![Vec::new(); BATCH],
        }
    }

    /// The next window of each text, and the same one symbol later.
    fn next_window(&mut self) -> Result<(Tensor, Tensor)> {
        let (mut now, mut next) = (Vec::new(), Vec::new());
        for row in &mut self.rows {
            while row.len() <= WINDOW {
                row.extend(line(&mut self.draws).chars().map(number));
            }
            now.extend_from_slice(&row[..WINDOW]);
            next.extend_from_slice(&row[1..=WINDOW]);
            row.drain(..WINDOW);
        }
        let shape = [BATCH, WINDOW];
        Ok((
            Tensor::from_vec(now, shape)?,
            Tensor::from_vec(next, shape)?,
        ))
    }
}

/// The layers, which every window shares.
struct Layers {
    cell: LstmCell,
    logits: Dense,
}

/// The layers over some symbols of each text.
struct Window {
    symbols: Output,
    /// Memory before and after.
    before: [Output; 2],
    after: [Output; 2],
    /// `[texts · length, SYMBOLS]`.
    logits: Output,
}

impl Window {
    fn unrolled(g: &Graph, layers: &Layers, name: &str, length: usize) -> Window {
        g.with_scope(name, || {
            let symbols = g.placeholder("symbols", DType::Int32, [None, Some(length)]);
            let memory = |name: &str| g.placeholder(name, DType::Float, [None, Some(UNITS)]);
            let before = [memory("c"), memory("h")];
            let [c, h] = before.clone();
            let mut state = LstmState { c, h };
            let mut seen = Vec::new();
            for x in symbols
                .one_hot(SYMBOLS as i32, DType::Float)
                .unstack(length, 1)
            {
                state = layers.cell.step(&x, &state);
                seen.push(state.h.clone());
            }
            let seen = stack(&seen, 1).reshape(&[-1, UNITS as i32]);
            Window {
                symbols,
                before,
                after: [state.c, state.h],
                logits: layers.logits.apply(&seen),
            }
        })
    }
}

/// The memory of so many texts that have not begun.
fn nothing_yet(texts: usize) -> Result<[Tensor; 2]> {
    let zeros = Tensor::zeros(DType::Float, [texts, UNITS])?;
    Ok([zeros.clone(), zeros])
}

struct Writer;

struct Model {
    window: Window,
    /// One symbol at a time.
    single: Window,
    next: Output,
    loss: Output,
    train: Operation,
    texts: Texts,
    memory: [Tensor; 2],
}

impl Program for Writer {
    const STEPS: i64 = 1500;
    type Model = Model;

    fn build(&self, worker: &Worker) -> Result<Model> {
        let g = worker.graph();
        let layers = Layers {
            cell: LstmCell::new(g, "lstm", SYMBOLS, UNITS),
            logits: Dense::new(g, "logits", UNITS, SYMBOLS),
        };
        let window = Window::unrolled(g, &layers, "window", WINDOW);
        let next = g.placeholder("next", DType::Int32, [None, Some(WINDOW)]);
        let loss = sparse_softmax_cross_entropy(&next.reshape(&[-1]), &window.logits);
        let rate = Schedule::exponential(1e-2, 600.0, 0.5).at(worker.global_step());
        Ok(Model {
            train: worker.minimize(&Adam::new(&rate), &loss)?,
            single: Window::unrolled(g, &layers, "single", 1),
            window,
            next,
            loss,
            texts: Texts::new(1 + worker.index() as u64),
            memory: nothing_yet(BATCH)?,
        })
    }

    fn step(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<()> {
        let (now, next) = m.texts.next_window()?;
        let [c, h] = &m.window.before;
        let step = session
            .step()
            .feed(&m.window.symbols, now)
            .feed(&m.next, next);
        let step = step.feed(c, &m.memory[0]).feed(h, &m.memory[1]);
        let [c, h] = &m.window.after;
        m.memory = step.target(&m.train).fetch_all([c, h])?;
        Ok(())
    }

    #[expect(clippy::print_stdout, reason = "a program shows what it has learnt")]
    fn finish(&self, m: &mut Model, session: &mut MonitoredSession) -> Result<Report> {
        let session = session.raw()?;
        let lines = m.write(&session, 200, 160)?;
        let grammatical = lines.iter().filter(|line| is_line(line)).count();
        println!("{}", lines.first().map_or("", String::as_str));
        let numbers = [
            ("bits_per_character", m.bits(&session, 20)?),
            ("best_bits", best_bits()),
            (
                "grammatical",
                grammatical as f64 / lines.len().max(1) as f64,
            ),
        ];
        Ok(numbers.map(|(name, n)| (name.to_owned(), n)).into())
    }
}

impl Model {
    /// What a symbol of new texts costs, in bits.
    fn bits(&self, session: &Session, windows: usize) -> Result<f64> {
        let (mut texts, mut memory) = (Texts::new(0), nothing_yet(BATCH)?);
        let mut total = 0.0;
        for _ in 0..windows {
            let (now, next) = texts.next_window()?;
            let ([c, h], [after_c, after_h]) = (&self.window.before, &self.window.after);
            let step = session.step().feed(&self.window.symbols, now);
            let step = step.feed(&self.next, next);
            let step = step.feed(c, &memory[0]).feed(h, &memory[1]);
            let [loss, c, h] = step.fetch_all([&self.loss, after_c, after_h])?;
            total += f64::from(loss.scalar_value::<f32>()?);
            memory = [c, h];
        }
        Ok(total / windows as f64 / std::f64::consts::LN_2)
    }

    /// The second line of each of some texts of the model's own: none ever began with a line's end.
    fn write(&self, session: &Session, texts: usize, length: usize) -> Result<Vec<String>> {
        let (mut draws, mut memory) = (Draws::new(7), nothing_yet(texts)?);
        let mut written = vec!["\n".to_owned(); texts];
        for _ in 0..length {
            let last = |text: &String| text.chars().last().map_or(0, number);
            let last: Vec<i32> = written.iter().map(last).collect();
            let ([c, h], [after_c, after_h]) = (&self.single.before, &self.single.after);
            let last = Tensor::from_vec(last, [texts, 1])?;
            let step = session.step().feed(&self.single.symbols, last);
            let step = step.feed(c, &memory[0]).feed(h, &memory[1]);
            let [logits, c, h] = step.fetch_all([&self.single.logits, after_c, after_h])?;
            memory = [c, h];
            let rows = logits.as_slice::<f32>()?.chunks(SYMBOLS);
            for (text, row) in written.iter_mut().zip(rows) {
                text.push(symbol(draw(row, &mut draws)));
            }
        }
        let lines = written.iter().map(|text| text.split('\n').nth(2));
        Ok(lines.map(|line| line.unwrap_or("").to_owned()).collect())
    }
}

/// A symbol, each as likely as the model says.
fn draw(logits: &[f32], draws: &mut Draws) -> usize {
    let highest = logits.iter().copied().fold(f32::MIN, f32::max);
    let weights: Vec<f32> = logits.iter().map(|l| (l - highest).exp()).collect();
    let mut rest = draws.uniform() * weights.iter().sum::<f32>();
    let stops = |weight: &f32| {
        rest -= weight;
        rest < 0.0
    };
    weights.iter().position(stops).unwrap_or(0)
}

fn main() -> std::process::ExitCode {
    downpour::program::main(|| Ok(Writer))
}
