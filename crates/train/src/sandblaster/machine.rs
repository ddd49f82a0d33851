//! The minimizer as a state machine: a [`Command`] out, its [`Answer`] in. The coordinator carries
//! commands out on the parameter servers; tests do so on vectors of their own.
//!
//! Invariant: every command can be given twice in a row without harm, because none reads what it
//! writes. So a coordinator that was killed gives its last command again and goes on, and the state
//! (a few numbers, [`Machine::numbers`]) need only be written down between commands.

use super::direction::{Last, Method, Products, direction};
use super::search::{SEARCH_NUMBERS, Search, Verdict, Wolfe};

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Limits {
    /// After so many iterations.
    pub(super) iterations: u64,
    /// When no element of the gradient is larger.
    pub(super) gradient: f64,
    /// When an iteration lowers the objective by no larger part of it.
    pub(super) decrease: f64,
}

/// What does not change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settings {
    pub(super) method: Method,
    pub(super) wolfe: Wolfe,
    pub(super) limits: Limits,
}

/// What is to be done with the vectors: `x` the parameters, `g` the gradient there, `d` the direction,
/// `x0` and `g0` where the line search began, and the history.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    /// The objective and its gradient where `x` is. Answered by [`Answer::Value`].
    Value,
    /// `x = x0 + step d`, then as [`Command::Value`].
    Try(f64),
    /// `s = x - x0` and `y = g - g0` in a slot, if there is one; then the products of `s`, `y` and `g`
    /// with the basis. Answered by [`Answer::Products`].
    Pair(Option<usize>),
    /// `x0 = x`, `g0 = g`, and `d` is this sum of the basis. Answered by [`Answer::Direction`].
    Direct(Vec<f64>),
    /// `x = x0`, `g = g0`. Answered by [`Answer::Done`].
    Return,
}

/// What came of a command.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Value {
        value: f64,
        /// `g · d`.
        slope: f64,
        /// Of the gradient's elements.
        largest: f64,
    },
    Products {
        /// Of the slot's `s` and `y`, if there is a slot.
        pair: Option<[Vec<f64>; 2]>,
        gradient: Vec<f64>,
    },
    Direction {
        /// `g · d`.
        slope: f64,
        /// `d · d`.
        square: f64,
    },
    Done,
}

/// Why it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// No element of the gradient is larger than asked for.
    SmallGradient,
    /// The last iteration lowered the objective by no larger part than asked for.
    SmallDecrease,
    /// As many iterations as allowed.
    Iterations,
    /// Not even along the steepest descent is there a lower point: rounding, or a wrong gradient.
    Stuck,
    /// Who observes it wanted no more; another run goes on from there.
    Stopped,
}

/// Where it is.
///
/// ```text
/// First ─► Directing ─► Searching ─► Pairing ─► Directing …
///                ▲           │           └────► Ended
///                └ Returning ◄┘ (no step was good enough; once more along the steepest descent)
/// ```
#[derive(Clone, Debug, PartialEq)]
enum Phase {
    First,
    Directing,
    Searching(Search),
    /// `x` is taken; the pair goes into the slot, if it is worth it.
    Pairing(Option<usize>),
    Returning,
    Ended(End),
}

/// The minimizer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Machine {
    settings: Settings,
    phase: Phase,
    iteration: u64,
    evaluations: u64,
    /// At `x`.
    value: f64,
    largest: f64,
    /// Before the last iteration.
    before: f64,
    last: Last,
    /// Slope of the last search where it began.
    slope: f64,
    products: Products,
    /// Slots that hold pairs, oldest first.
    slots: Vec<usize>,
}

/// A pair is left out when the slope changes by no larger part than this: SciPy's rule.
const CURVATURE: f64 = f64::EPSILON;

/// Numbers of a machine beside the search, the slots and the products.
const OWN_NUMBERS: usize = 12;

impl Machine {
    /// At the first point.
    pub(super) fn new(settings: Settings) -> Machine {
        Machine {
            settings,
            phase: Phase::First,
            iteration: 0,
            evaluations: 0,
            value: f64::INFINITY,
            largest: f64::INFINITY,
            before: f64::INFINITY,
            last: Last::default(),
            slope: 0.0,
            products: Products::new(settings.method.history()),
            slots: Vec::new(),
        }
    }

    /// Steps taken so far.
    pub(super) fn iteration(&self) -> u64 {
        self.iteration
    }

    /// How often the objective was computed.
    pub(super) fn evaluations(&self) -> u64 {
        self.evaluations
    }

    /// The objective at the last point taken.
    pub(super) fn value(&self) -> f64 {
        self.value
    }

    /// The gradient's largest element there.
    pub(super) fn largest(&self) -> f64 {
        self.largest
    }

    /// Why it ended, if it has.
    pub(super) fn end(&self) -> Option<End> {
        match self.phase {
            Phase::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// Whether it is between two iterations: `x`, `g` and the history are all there is.
    pub(super) fn is_between(&self) -> bool {
        matches!(self.phase, Phase::Directing | Phase::Ended(_))
    }

    /// Goes on where other limits ended it.
    pub(super) fn continue_with(&mut self, settings: Settings) {
        self.settings.wolfe = settings.wolfe;
        self.settings.limits = settings.limits;
        if let Phase::Ended(end) = self.phase
            && end != End::Stuck
        {
            self.phase = match self.reached() {
                Some(end) => Phase::Ended(end),
                None => Phase::Directing,
            };
        }
    }

    /// What is to be done next; nothing when it has ended.
    pub(super) fn command(&self) -> Option<Command> {
        Some(match &self.phase {
            Phase::First => Command::Value,
            Phase::Directing => Command::Direct(direction(
                self.settings.method,
                &self.products,
                &self.slots,
                &self.last,
            )),
            Phase::Searching(search) => Command::Try(search.step()),
            Phase::Pairing(slot) => Command::Pair(*slot),
            Phase::Returning => Command::Return,
            Phase::Ended(_) => return None,
        })
    }

    /// Takes what came of [`Machine::command`]. An answer to another one changes nothing.
    pub(super) fn tell(&mut self, answer: Answer) {
        let phase = std::mem::replace(&mut self.phase, Phase::First);
        self.phase = match (phase, answer) {
            (Phase::First, Answer::Value { value, largest, .. }) => self.begin(value, largest),
            (Phase::Directing, Answer::Direction { slope, square }) => self.search(slope, square),
            (
                Phase::Searching(search),
                Answer::Value {
                    value,
                    slope,
                    largest,
                },
            ) => self.tried(search, value, slope, largest),
            (Phase::Pairing(slot), Answer::Products { pair, gradient }) => {
                self.paired(slot, pair, &gradient)
            }
            (Phase::Returning, Answer::Done) => Phase::Directing,
            (phase, _) => phase,
        };
    }

    fn begin(&mut self, value: f64, largest: f64) -> Phase {
        self.evaluations += 1;
        (self.value, self.largest) = (value, largest);
        match value.is_finite() {
            false => Phase::Ended(End::Stuck),
            true if largest <= self.settings.limits.gradient => Phase::Ended(End::SmallGradient),
            true if self.settings.limits.iterations == 0 => Phase::Ended(End::Iterations),
            true => Phase::Directing,
        }
    }

    /// Begins a line search, along the steepest descent if this is none.
    fn search(&mut self, slope: f64, square: f64) -> Phase {
        let descends = slope < 0.0 && slope.is_finite() && square.is_finite();
        if !descends && self.slots.is_empty() {
            return Phase::Ended(End::Stuck);
        }
        if !descends {
            self.slots.clear();
            return Phase::Directing;
        }
        if self.slots.is_empty() {
            // The direction is the gradient, turned round.
            let g = self.products.g();
            self.products.set(g, g, square);
        }
        let unit = 1.0 / square.sqrt();
        let step = match (self.settings.method, self.slots.is_empty()) {
            (_, true) => unit,
            (Method::LBfgs(_), false) => 1.0,
            // The change to first order is that of the last step.
            (Method::ConjugateGradient, false) => self.last.step * self.slope / slope,
        };
        self.slope = slope;
        Phase::Searching(Search::new(self.value, slope, step))
    }

    fn tried(&mut self, mut search: Search, value: f64, slope: f64, largest: f64) -> Phase {
        self.evaluations += 1;
        let step = search.step();
        let (began, first) = search.start();
        match search.tell(&self.settings.wolfe, value, slope) {
            Verdict::Goes => Phase::Searching(search),
            Verdict::Failed if self.slots.is_empty() => Phase::Ended(End::Stuck),
            Verdict::Failed => {
                self.slots.clear();
                Phase::Returning
            }
            Verdict::Found => {
                self.iteration += 1;
                (self.before, self.value, self.largest) = (began, value, largest);
                self.last = Last {
                    step,
                    square: self.products.get(self.products.g(), self.products.g()),
                };
                // s · y is the step times the change of the slope.
                let bends = slope - first > CURVATURE * -first;
                Phase::Pairing(bends.then(|| self.free_slot()))
            }
        }
    }

    /// Where the next pair goes: beside the others, or over the oldest.
    fn free_slot(&self) -> usize {
        let history = self.settings.method.history();
        let free = (0..history).find(|slot| !self.slots.contains(slot));
        free.or(self.slots.first().copied()).unwrap_or(0)
    }

    fn paired(&mut self, slot: Option<usize>, pair: Option<[Vec<f64>; 2]>, g: &[f64]) -> Phase {
        if let (Some(slot), Some([s, y])) = (slot, pair) {
            let (at_s, at_y) = (self.products.s(slot), self.products.y(slot));
            self.products.set_row(at_s, &s);
            self.products.set_row(at_y, &y);
            self.slots.retain(|known| *known != slot);
            // What rounding has left of the curvature must still be one.
            if self.products.get(at_s, at_y) > 0.0 {
                self.slots.push(slot);
            }
        }
        if slot.is_none() && self.settings.method == Method::ConjugateGradient {
            // The last direction is needed, not an older one.
            self.slots.clear();
        }
        self.products.set_row(self.products.g(), g);
        match self.reached() {
            Some(end) => Phase::Ended(end),
            None => Phase::Directing,
        }
    }

    fn reached(&self) -> Option<End> {
        let limits = &self.settings.limits;
        let scale = self.before.abs().max(self.value.abs()).max(1.0);
        if self.largest <= limits.gradient {
            Some(End::SmallGradient)
        } else if self.before - self.value <= limits.decrease * scale {
            Some(End::SmallDecrease)
        } else if self.iteration >= limits.iterations {
            Some(End::Iterations)
        } else {
            None
        }
    }

    /// How many numbers the state of such a minimizer is.
    pub(super) fn count(method: Method) -> usize {
        let history = method.history();
        OWN_NUMBERS + SEARCH_NUMBERS + history + Products::new(history).values().len()
    }

    /// The whole state as numbers.
    pub(super) fn numbers(&self) -> Vec<f64> {
        let history = self.settings.method.history();
        let (phase, detail) = match &self.phase {
            Phase::First => (0, 0),
            Phase::Directing => (1, 0),
            Phase::Searching(_) => (2, 0),
            Phase::Pairing(slot) => (3, slot.map_or(0, |slot| slot + 1)),
            Phase::Returning => (4, 0),
            Phase::Ended(end) => (5, *end as usize),
        };
        let kind = match self.settings.method {
            Method::LBfgs(_) => 1.0,
            Method::ConjugateGradient => 2.0,
        };
        let own: [f64; OWN_NUMBERS] = [
            kind,
            history as f64,
            f64::from(phase),
            detail as f64,
            self.iteration as f64,
            self.evaluations as f64,
            self.value,
            self.largest,
            self.before,
            self.last.step,
            self.last.square,
            self.slope,
        ];
        let mut numbers = own.to_vec();
        numbers.extend(match &self.phase {
            Phase::Searching(search) => search.numbers(),
            _ => [0.0; SEARCH_NUMBERS],
        });
        let order = self.slots.iter().map(|slot| (slot + 1) as f64);
        numbers.extend(order.chain(std::iter::repeat(0.0)).take(history));
        numbers.extend(self.products.values());
        numbers
    }

    /// A minimizer in the state that [`Machine::numbers`] told; nothing if they are not those of
    /// this method.
    pub(super) fn from_numbers(settings: Settings, numbers: &[f64]) -> Option<Machine> {
        let history = settings.method.history();
        if numbers.len() != Machine::count(settings.method) {
            return None;
        }
        let fresh = Machine::new(settings);
        let (own, rest) = numbers.split_at(OWN_NUMBERS);
        let (search, rest) = rest.split_at(SEARCH_NUMBERS);
        let (slots, products) = rest.split_at(history);
        if own[..2] != fresh.numbers()[..2] {
            return None;
        }
        let slot = |number: f64| match number as usize {
            0 => None,
            slot => Some((slot - 1).min(history - 1)),
        };
        let phase = match own[2] as u8 {
            0 => Phase::First,
            1 => Phase::Directing,
            2 => Phase::Searching(Search::from_numbers(search.try_into().ok()?)),
            3 => Phase::Pairing(slot(own[3])),
            4 => Phase::Returning,
            5 => Phase::Ended(match own[3] as u8 {
                0 => End::SmallGradient,
                1 => End::SmallDecrease,
                2 => End::Iterations,
                _ => End::Stuck,
            }),
            _ => return None,
        };
        Some(Machine {
            phase,
            iteration: own[4] as u64,
            evaluations: own[5] as u64,
            value: own[6],
            largest: own[7],
            before: own[8],
            last: Last {
                step: own[9],
                square: own[10],
            },
            slope: own[11],
            slots: slots.iter().filter_map(|s| slot(*s)).collect(),
            products: Products::from_values(history, products)?,
            ..fresh
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    /// Carries commands out on vectors in memory.
    struct Bench<F> {
        f: F,
        x: Vec<f64>,
        g: Vec<f64>,
        d: Vec<f64>,
        x0: Vec<f64>,
        g0: Vec<f64>,
        s: Vec<Vec<f64>>,
        y: Vec<Vec<f64>>,
    }

    impl<F: Fn(&[f64]) -> (f64, Vec<f64>)> Bench<F> {
        fn new(f: F, x: Vec<f64>, history: usize) -> Bench<F> {
            let zero = vec![0.0; x.len()];
            let many = vec![zero.clone(); history];
            Bench {
                f,
                g: zero.clone(),
                d: zero.clone(),
                x0: x.clone(),
                g0: zero,
                s: many.clone(),
                y: many,
                x,
            }
        }

        fn basis(&self) -> Vec<&Vec<f64>> {
            self.s.iter().chain(&self.y).chain([&self.g]).collect()
        }

        fn value(&mut self) -> Answer {
            let (value, g) = (self.f)(&self.x);
            self.g = g;
            Answer::Value {
                value,
                slope: dot(&self.g, &self.d),
                largest: self.g.iter().fold(0.0, |m, g| g.abs().max(m)),
            }
        }

        fn carry_out(&mut self, command: &Command) -> Answer {
            match command {
                Command::Value => self.value(),
                Command::Try(step) => {
                    let ends = self.x0.iter().zip(&self.d);
                    self.x = ends.map(|(x, d)| x + step * d).collect();
                    self.value()
                }
                Command::Pair(slot) => {
                    if let Some(slot) = slot {
                        let minus = |a: &[f64], b: &[f64]| -> Vec<f64> {
                            a.iter().zip(b).map(|(a, b)| a - b).collect()
                        };
                        self.s[*slot] = minus(&self.x, &self.x0);
                        self.y[*slot] = minus(&self.g, &self.g0);
                    }
                    let row = |a: &Vec<f64>| self.basis().iter().map(|b| dot(a, b)).collect();
                    Answer::Products {
                        pair: slot.map(|slot| [row(&self.s[slot]), row(&self.y[slot])]),
                        gradient: row(&self.g),
                    }
                }
                Command::Direct(c) => {
                    (self.x0, self.g0) = (self.x.clone(), self.g.clone());
                    let at = |i: usize| self.basis().iter().zip(c).map(|(b, c)| b[i] * c).sum();
                    self.d = (0..self.x.len()).map(at).collect();
                    Answer::Direction {
                        slope: dot(&self.g, &self.d),
                        square: dot(&self.d, &self.d),
                    }
                }
                Command::Return => {
                    (self.x, self.g) = (self.x0.clone(), self.g0.clone());
                    Answer::Done
                }
            }
        }
    }

    fn settings(method: Method) -> Settings {
        Settings {
            method,
            wolfe: Wolfe {
                decrease: 1e-3,
                curvature: if matches!(method, Method::LBfgs(_)) {
                    0.9
                } else {
                    0.1
                },
                width: 0.1,
                trials: 20,
            },
            limits: Limits {
                iterations: 500,
                gradient: 1e-8,
                decrease: 0.0,
            },
        }
    }

    /// Minimizes; with `killed`, by a new machine for every command, each of which is given twice.
    fn minimize(
        f: impl Fn(&[f64]) -> (f64, Vec<f64>),
        x: Vec<f64>,
        settings: Settings,
        killed: bool,
    ) -> (Machine, Vec<f64>) {
        let mut bench = Bench::new(f, x, settings.method.history());
        let mut machine = Machine::new(settings);
        while let Some(command) = machine.command() {
            if killed {
                bench.carry_out(&command);
                machine = Machine::from_numbers(settings, &machine.numbers()).unwrap();
                assert_eq!(machine.command().as_ref(), Some(&command));
            }
            machine.tell(bench.carry_out(&command));
        }
        (machine, bench.x)
    }

    fn rosenbrock(x: &[f64]) -> (f64, Vec<f64>) {
        let (a, b) = (1.0 - x[0], x[1] - x[0] * x[0]);
        let g = vec![-2.0 * a - 400.0 * x[0] * b, 200.0 * b];
        (a * a + 100.0 * b * b, g)
    }

    /// Curvatures from 1 to 1000 in 20 dimensions.
    fn bowl(x: &[f64]) -> (f64, Vec<f64>) {
        let weight = |i: usize| 1000f64.powf(i as f64 / 19.0);
        let g: Vec<f64> = x
            .iter()
            .enumerate()
            .map(|(i, x)| weight(i) * (x - 1.0))
            .collect();
        let value = x.iter().zip(&g).map(|(x, g)| 0.5 * g * (x - 1.0)).sum();
        (value, g)
    }

    #[test]
    fn both_methods_find_the_bottom_of_the_valley() {
        for (method, most) in [(Method::LBfgs(10), 60), (Method::ConjugateGradient, 150)] {
            let (machine, x) = minimize(rosenbrock, vec![-1.2, 1.0], settings(method), false);
            assert_eq!(machine.end(), Some(End::SmallGradient), "{method:?}");
            assert!(
                (x[0] - 1.0).abs() < 1e-6 && (x[1] - 1.0).abs() < 1e-6,
                "{method:?} {x:?}"
            );
            assert!(
                machine.evaluations() < most,
                "{method:?}: {}",
                machine.evaluations()
            );
            let (machine, x) = minimize(bowl, vec![0.0; 20], settings(method), false);
            assert_eq!(machine.end(), Some(End::SmallGradient), "{method:?}");
            assert!(x.iter().all(|x| (x - 1.0).abs() < 1e-7), "{method:?}");
        }
    }

    #[test]
    fn a_machine_killed_before_and_after_every_command_ends_at_the_same_bits() {
        for method in [Method::LBfgs(3), Method::ConjugateGradient] {
            let whole = minimize(rosenbrock, vec![-1.2, 1.0], settings(method), false);
            let killed = minimize(rosenbrock, vec![-1.2, 1.0], settings(method), true);
            assert_eq!(whole, killed, "{method:?}");
        }
    }

    #[test]
    fn limits_end_it_and_larger_ones_let_it_go_on() {
        let few = |iterations| Settings {
            limits: Limits {
                iterations,
                ..settings(Method::LBfgs(5)).limits
            },
            ..settings(Method::LBfgs(5))
        };
        let (whole, x) = minimize(
            rosenbrock,
            vec![-1.2, 1.0],
            settings(Method::LBfgs(5)),
            false,
        );
        let mut bench = Bench::new(rosenbrock, vec![-1.2, 1.0], 5);
        let mut machine = Machine::new(few(4));
        for more in [4, 9, 500] {
            machine.continue_with(few(more));
            while let Some(command) = machine.command() {
                machine.tell(bench.carry_out(&command));
            }
            assert_eq!(machine.iteration(), more.min(whole.iteration()));
        }
        assert_eq!(bench.x, x);
    }

    #[test]
    fn a_gradient_of_the_wrong_sign_leads_nowhere() {
        let wrong = |x: &[f64]| (x[0] * x[0], vec![-2.0 * x[0]]);
        let (machine, x) = minimize(wrong, vec![3.0], settings(Method::LBfgs(3)), false);
        assert!(matches!(
            machine.end(),
            Some(End::Stuck | End::SmallDecrease)
        ));
        assert!(
            (x[0] - 3.0).abs() < 1e-6 && machine.iteration() <= 1,
            "{x:?}"
        );
        let nan = |_: &[f64]| (f64::NAN, vec![f64::NAN]);
        let (machine, _) = minimize(nan, vec![3.0], settings(Method::LBfgs(3)), false);
        assert_eq!(machine.end(), Some(End::Stuck));
    }

    #[test]
    fn numbers_of_another_method_are_refused() {
        let numbers = Machine::new(settings(Method::LBfgs(1))).numbers();
        assert!(Machine::from_numbers(settings(Method::LBfgs(1)), &numbers).is_some());
        assert!(Machine::from_numbers(settings(Method::LBfgs(2)), &numbers).is_none());
        assert!(Machine::from_numbers(settings(Method::ConjugateGradient), &numbers).is_none());
    }
}
