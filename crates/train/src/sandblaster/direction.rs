//! Directions of descent from inner products alone: the two-loop recursion of L-BFGS, and nonlinear
//! conjugate gradients, carried out on the coefficients of vectors that live elsewhere. Called by
//! [`super::machine`].
//!
//! The basis is the history and the gradient, `s_0 … s_{m-1}, y_0 … y_{m-1}, g`. Whoever keeps these
//! vectors computes their inner products and forms `Σ coefficient · vector` once: the recursion's
//! own 4m products and sums need no message. (Chen, Wang and Zhou, "Large-scale L-BFGS using
//! MapReduce", 2014, have the idea.)
//!
//! Invariant: no vector of the model's size, no message, ever passes here.

/// Which direction is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// L-BFGS with a history of so many pairs.
    LBfgs(usize),
    /// Nonlinear conjugate gradients: Polak and Ribière's, begun anew where its factor is negative.
    ConjugateGradient,
}

impl Method {
    /// Pairs that are remembered.
    pub(super) fn history(self) -> usize {
        match self {
            Method::LBfgs(pairs) => pairs.max(1),
            Method::ConjugateGradient => 1,
        }
    }
}

/// Inner products of the basis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Products {
    history: usize,
    values: Vec<f64>,
}

impl Products {
    /// All zero, for a history of so many pairs.
    pub(super) fn new(history: usize) -> Products {
        let size = 2 * history + 1;
        Products {
            history,
            values: vec![0.0; size * size],
        }
    }

    /// Those that [`Products::values`] told; nothing if they do not fit the history.
    pub(super) fn from_values(history: usize, values: &[f64]) -> Option<Products> {
        let mut products = Products::new(history);
        (values.len() == products.values.len()).then(|| {
            products.values.copy_from_slice(values);
            products
        })
    }

    /// All of them, by rows.
    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }

    /// Number of vectors of the basis.
    pub(super) fn size(&self) -> usize {
        2 * self.history + 1
    }

    /// Where `s` of a slot stands in the basis.
    pub(super) fn s(&self, slot: usize) -> usize {
        slot
    }

    /// Where `y` of a slot stands in the basis.
    pub(super) fn y(&self, slot: usize) -> usize {
        self.history + slot
    }

    /// Where the gradient stands in the basis.
    pub(super) fn g(&self) -> usize {
        2 * self.history
    }

    /// The product of two vectors of the basis.
    pub(super) fn get(&self, a: usize, b: usize) -> f64 {
        self.values[a * self.size() + b]
    }

    /// Takes the product of two vectors of the basis.
    pub(super) fn set(&mut self, a: usize, b: usize, value: f64) {
        let size = self.size();
        self.values[a * size + b] = value;
        self.values[b * size + a] = value;
    }

    /// Takes the products of one vector with all.
    pub(super) fn set_row(&mut self, a: usize, row: &[f64]) {
        for (b, value) in row.iter().enumerate().take(self.size()) {
            self.set(a, b, *value);
        }
    }

    /// The product of a sum of the basis with one of its vectors.
    fn with(&self, coefficients: &[f64], b: usize) -> f64 {
        let terms = coefficients.iter().enumerate();
        terms.map(|(a, c)| c * self.get(a, b)).sum()
    }
}

/// The coefficients of the direction of descent. `slots` are those of the pairs to be used, oldest
/// first; without any it is the steepest.
pub(super) fn direction(
    method: Method,
    products: &Products,
    slots: &[usize],
    last: &Last,
) -> Vec<f64> {
    match (method, slots.last()) {
        (_, None) => steepest(products),
        (Method::LBfgs(_), Some(_)) => two_loops(products, slots),
        (Method::ConjugateGradient, Some(newest)) => conjugate(products, *newest, last),
    }
}

/// What is remembered of the last step, for conjugate gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Last {
    /// Its length in directions.
    pub(super) step: f64,
    /// The square of the gradient where it began.
    pub(super) square: f64,
}

fn steepest(products: &Products) -> Vec<f64> {
    let mut coefficients = vec![0.0; products.size()];
    coefficients[products.g()] = -1.0;
    coefficients
}

/// `-H g`, where `H` is what the pairs say of the inverse of the second derivative.
fn two_loops(p: &Products, slots: &[usize]) -> Vec<f64> {
    let mut c = steepest(p);
    let mut alphas = Vec::with_capacity(slots.len());
    for slot in slots.iter().rev() {
        let (s, y) = (p.s(*slot), p.y(*slot));
        let alpha = p.with(&c, s) / p.get(s, y);
        c[y] -= alpha;
        alphas.push(alpha);
    }
    if let Some(newest) = slots.last() {
        let (s, y) = (p.s(*newest), p.y(*newest));
        let scale = p.get(s, y) / p.get(y, y);
        c.iter_mut().for_each(|c| *c *= scale);
    }
    for (slot, alpha) in slots.iter().zip(alphas.into_iter().rev()) {
        let (s, y) = (p.s(*slot), p.y(*slot));
        let beta = p.with(&c, y) / p.get(s, y);
        c[s] += alpha - beta;
    }
    c
}

/// `-g + β d`, where the last direction `d` is the last difference over its length.
fn conjugate(p: &Products, newest: usize, last: &Last) -> Vec<f64> {
    let mut c = steepest(p);
    let beta = p.get(p.y(newest), p.g()) / last.square;
    if beta > 0.0 && beta.is_finite() && last.step > 0.0 {
        c[p.s(newest)] = beta / last.step;
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    fn products(history: usize, basis: &[Vec<f64>]) -> Products {
        let mut products = Products::new(history);
        for (i, a) in basis.iter().enumerate() {
            let row: Vec<f64> = basis.iter().map(|b| dot(a, b)).collect();
            products.set_row(i, &row);
        }
        products
    }

    fn sum(coefficients: &[f64], basis: &[Vec<f64>]) -> Vec<f64> {
        let size = basis[0].len();
        let at = |i: usize| coefficients.iter().zip(basis).map(|(c, b)| c * b[i]).sum();
        (0..size).map(at).collect()
    }

    /// The recursion on vectors, as in Nocedal and Wright, algorithm 7.4.
    fn on_vectors(pairs: &[(Vec<f64>, Vec<f64>)], g: &[f64]) -> Vec<f64> {
        let mut q = g.to_vec();
        let mut alphas = Vec::new();
        for (s, y) in pairs.iter().rev() {
            let alpha = dot(s, &q) / dot(s, y);
            q.iter_mut().zip(y).for_each(|(q, y)| *q -= alpha * y);
            alphas.push(alpha);
        }
        let (s, y) = &pairs[pairs.len() - 1];
        let scale = dot(s, y) / dot(y, y);
        q.iter_mut().for_each(|q| *q *= scale);
        for ((s, y), alpha) in pairs.iter().zip(alphas.iter().rev()) {
            let beta = dot(y, &q) / dot(s, y);
            q.iter_mut()
                .zip(s)
                .for_each(|(q, s)| *q += (alpha - beta) * s);
        }
        q.iter().map(|q| -q).collect()
    }

    /// Numbers without order.
    fn vector(seed: u64) -> Vec<f64> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as f64 / f64::from(u32::MAX) - 0.25
        };
        (0..6).map(|_| next()).collect()
    }

    #[test]
    fn the_recursion_on_coefficients_is_the_one_on_vectors() {
        // A ring of four slots, of which three hold pairs, the oldest in slot 2.
        let (history, slots) = (4, [2, 3, 0]);
        let mut basis: Vec<Vec<f64>> = (0..9).map(vector).collect();
        for slot in 0..4 {
            // Pairs of a convex function.
            basis[4 + slot] = (0..6).map(|i| basis[slot][i] * (1.0 + i as f64)).collect();
        }
        let pairs: Vec<_> = slots
            .iter()
            .map(|i| (basis[*i].clone(), basis[4 + i].clone()))
            .collect();
        let p = products(history, &basis);
        let c = direction(Method::LBfgs(4), &p, &slots, &Last::default());
        assert_eq!((c[1], c[5]), (0.0, 0.0), "slot 1 holds no pair");
        let (found, expected) = (sum(&c, &basis), on_vectors(&pairs, &basis[8]));
        for (a, b) in found.iter().zip(&expected) {
            assert!((a - b).abs() < 1e-12, "{found:?} {expected:?}");
        }
    }

    #[test]
    fn without_a_history_it_is_the_steepest() {
        let p = Products::new(2);
        let c = direction(Method::LBfgs(2), &p, &[], &Last::default());
        assert_eq!(c, [0.0, 0.0, 0.0, 0.0, -1.0]);
    }

    #[test]
    fn conjugate_gradients_are_those_of_polak_and_ribiere() {
        let (before, d, step, g) = (vector(1), vector(2), 0.3, vector(3));
        let s: Vec<f64> = d.iter().map(|d| step * d).collect();
        let y: Vec<f64> = g.iter().zip(&before).map(|(g, b)| g - b).collect();
        let basis = [s, y.clone(), g.clone()];
        let square = dot(&before, &before);
        let beta = dot(&g, &y) / square;
        let last = Last { step, square };
        let c = direction(Method::ConjugateGradient, &products(1, &basis), &[0], &last);
        let found = sum(&c, &basis);
        for i in 0..6 {
            let expected = -g[i] + beta.max(0.0) * d[i];
            assert!((found[i] - expected).abs() < 1e-12);
        }
        // A negative factor is none.
        let turned = [basis[0].clone(), g.iter().map(|g| -g).collect(), g];
        let c = direction(
            Method::ConjugateGradient,
            &products(1, &turned),
            &[0],
            &last,
        );
        assert_eq!(c, [0.0, 0.0, -1.0]);
    }

    #[test]
    fn products_survive_being_written_down() {
        let p = products(1, &[vector(1), vector(2), vector(3)]);
        assert_eq!(Products::from_values(1, p.values()).as_ref(), Some(&p));
        assert_eq!(Products::from_values(2, p.values()), None);
    }
}
